# dbench: the file operations of a busy file server's clients
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback dir/none/* striped/none/*
. "$SUITE_HERE/lib.sh"
need dbench

# It says what failed, but not always by its status.
load() {
    dbench -D . -t "$@" > said 2>&1 || { tail -n 20 said; return 1; }
    tail -n 3 said
    ! grep -E 'failed for|ERROR|NT_STATUS' said
}
time=$(amount 2 60)
check clients load $time 4
check clients-that-sync load $time -s -S 4
check attributes load $time -x 4
