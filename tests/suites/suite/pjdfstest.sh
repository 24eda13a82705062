# pjdfstest: what POSIX says of names, modes, owners, times and errors
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback
. "$SUITE_HERE/lib.sh"
PATH=$SUITE_TOOLS:$PATH
need pjdfstest
need_root

cat > "$SUITE_SCRATCH/pjdfstest.toml" <<END
[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
[settings]
# Longer than a tick, by which the kernel counts times of files.
naptime = 0.011
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
pjdfstest -c "$SUITE_SCRATCH/pjdfstest.toml" -p . > "$SUITE_SCRATCH/said" 2>&1
cat "$SUITE_SCRATCH/said"
# Lines like `chmod::eloop   ok`.
sed -nE 's/^([a-z_]+::[^ ]+) +(ok|skipped|FAILED|failed|expected.*)$/\1 \2/p' "$SUITE_SCRATCH/said" |
    sed -e 's/ ok$/ pass/' -e 's/ skipped$/ skip/' -e 's/ \(FAILED\|failed\|expected.*\)$/ fail/' >> "$SUITE_CASES"
[ "$(grep -c ' pass$' "$SUITE_CASES")" -gt 100 ]
