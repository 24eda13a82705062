# git: histories are made, packed, cloned by three at the same time, and checked
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback dir/none/* striped/none/*
. "$SUITE_HERE/lib.sh"
need git
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=$SUITE_SCRATCH
files=$(amount 150 5000) commits=$(amount 6 60)

history() {
    git init -q repository
    cd repository
    git config user.name Tester
    git config user.email tester@example.invalid
    for n in $(seq $files); do
        mkdir -p d$((n % 50))
        seq $((n * 7 % 3000)) > d$((n % 50))/f"$n"
    done
    git add .
    git commit -qm first
    for n in $(seq $commits); do
        seq $((n * 1000)) > d1/f"$n"
        git mv d0/f50 d0/moved 2> /dev/null || git mv d0/moved d0/f50
        git add . && git commit -qm "change $n"
    done
    [ "$(git log --oneline | wc -l)" = $((commits + 1)) ]
}

clones() {
    local n pids=()
    for n in 1 2 3; do git clone -q --no-hardlinks repository clone$n & pids+=($!); done
    for n in "${pids[@]}"; do wait "$n"; done
    for n in 1 2 3; do
        git -C clone$n fsck --full --strict
        diff -r --exclude=.git repository clone$n
        [ -z "$(git -C clone$n status --porcelain)" ]
    done
}

pack() {
    git -C repository gc -q --aggressive --prune=now
    git -C repository repack -q -adF --depth=50
    git -C repository fsck --full --strict
    git -C repository checkout -q HEAD~3
    git -C repository checkout -q -
    [ -z "$(git -C repository status --porcelain)" ]
}

check history history
check three-clones-of-loose-objects clones
check packed pack
rm -rf clone?
check three-clones-of-a-pack clones
check worktree-and-stash eval 'cd repository && git worktree add -q ../tree HEAD~1 && echo x >> d1/f1 && git stash -q && git stash pop -q && git diff --exit-code HEAD~0 -- d2 && git worktree remove ../tree'
