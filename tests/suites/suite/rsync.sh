# rsync: trees with links, modes, times, holes and attributes are copied, changed, copied again, and compared by checksum
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback
. "$SUITE_HERE/lib.sh"
need rsync python3
files=$(amount 300 20000)

python3 - "$SUITE_SCRATCH/tree" $files "$SUITE_SEED" <<'END'
import os, random, sys
root, files, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
for n in range(files):
    d = f"{root}/{n % 7}/{n % 31}"
    os.makedirs(d, exist_ok=True)
    p = f"{d}/{'x' * rng.randrange(1, 60)}-{n}"
    with open(p, "wb") as f:
        f.write(rng.randbytes(rng.choice([0, 1, 100, 4095, 4097, 20000, 70000])))
        if n % 50 == 0:
            f.seek(500000)
            f.write(b"end")
    os.chmod(p, rng.choice([0o644, 0o600, 0o755, 0o444]))
    os.utime(p, ns=(rng.randrange(10**18), rng.randrange(10**18)))
    if n % 9 == 0: os.link(p, f"{d}/hard-{n}")
    if n % 11 == 0: os.symlink(os.path.basename(p), f"{d}/soft-{n}")
    if n % 13 == 0: os.setxattr(p, "user.n", str(n).encode())
os.mkfifo(f"{root}/fifo")
END
tree=$SUITE_SCRATCH/tree

same() { # what would be changed to make the second like the first, by contents: nothing
    local differs
    differs=$(rsync -aHAXcn --delete --itemize-changes "$1/" "$2/")
    [ -z "$differs" ] || { echo "$differs" | head -n 20; return 1; }
    rsync -aHAXcn --delete --itemize-changes "$2/" "$1/" | { ! grep .; }
}

copied() { rsync -aHAX "$tree/" copy/ && same "$tree" copy; }
within() { rsync -aHAXS copy/ second/ && same copy second; }
changed() {
    find second -type f -name '*1*' -exec sh -c 'for f; do chmod u+w "$f"; echo changed >> "$f"; done' sh {} +
    find second -type f -name '*2*' -delete
    ! same copy second > /dev/null
    rsync -aHAXc --delete $1 copy/ second/ && same copy second
}

check copied-in copied
check copied-within within
check changed changed --whole-file
check changed-in-place changed "--inplace --no-whole-file"
check changed-by-differences changed "--no-whole-file --partial-dir=.part --delay-updates"
