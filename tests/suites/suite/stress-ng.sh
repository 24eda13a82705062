# stress-ng: its stressors of file systems, each of which verifies what it did
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none dir/none/* striped/none/*
. "$SUITE_HERE/lib.sh"
need stress-ng

stress() {
    stress-ng --temp-path . --verify --seed "$SUITE_SEED" --timeout "$1" --oomable --metrics-brief "--$2" "$3"
}
time=$(amount 1 10)
if quick; then
    stressors="fallocate rename xattr iomix"
else
    # All of `stress-ng --class filesystem?` that work on files of the current directory, and what else does.
    stressors="access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify fcntl fiemap
        file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix lease link locka lockf
        lockofd mknod open rename symlink sync-file touch unlink utime verity xattr aio aiol seek readahead sendfile splice
        fault revio dynlib io-uring"
fi
for stressor in $stressors; do
    check "$stressor" stress $time "$stressor" 2
    # 3: the system has no such thing; 4 and 1: no such stressor in this version.
    rm -rf ./tmp-* 2> /dev/null
done
