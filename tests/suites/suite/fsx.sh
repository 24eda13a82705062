# fsx: random operations on one file, compared with what it must hold
# quick: dir/auto dir/writeback striped/none/mlf
# full: dir/auto dir/writeback dir/none/* striped/none/* striped/auto striped/writeback
. "$SUITE_HERE/lib.sh"
PATH=$SUITE_TOOLS:$PATH
need fsx
operations=$(amount 700 200000)

settings() { # other weights than the defaults
    printf 'flen = %s\n[opsize]\nmin = %s\nmax = %s\nalign = %s\n' "$1" "$2" "$3" "$4"
    printf '[weights]\nclose_open = 1\nread = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\ninvalidate = 1\ntruncate = 2\nfsync = 1\nfdatasync = 1\n'
    printf 'posix_fallocate = 1\npunch_hole = 2\nsendfile = 2\nposix_fadvise = 1\ncopy_file_range = 2\n'
}

exercise() {
    local name=$1 size=$2
    shift
    settings "$@" > "$SUITE_SCRATCH/$name.toml"
    fsx -q -f "$SUITE_SCRATCH/$name.toml" -S "$SUITE_SEED" -N $operations -P "$SUITE_SCRATCH" "$name" > "$SUITE_SCRATCH/$name.said" 2>&1 ||
        { tail -n 60 "$SUITE_SCRATCH/$name.said"; return 1; }
}

check default exercise default 262144 0 65536 1
check small exercise small 20000 0 600 1
check pages exercise pages 1048576 4096 131072 4096
check large exercise large 8388608 0 1048576 1
