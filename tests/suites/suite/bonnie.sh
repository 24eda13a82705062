# bonnie++: a large file written and reread, small files made and removed in order and at random
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none
. "$SUITE_HERE/lib.sh"
need bonnie++

bench() {
    # Removing the last tree takes some time elsewhere too, but must work.
    bonnie++ -d . -m test -q -f -u "$(id -u):$(id -g)" "$@" 2>&1 | tee said
    ! grep -iE "can't|error|bonnie:" said
}
if quick; then check all bench -s 8 -r 4 -n 0; else check all bench -s 1024 -r 512 -n 16:65536:0:16; fi
