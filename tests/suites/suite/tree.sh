# a tree of more files than the mount may have descriptors (1024): made, walked, walked again, changed and removed
# quick: dir/auto striped/auto
# full: dir/auto dir/none striped/auto striped/none
# descriptors: 1024
. "$SUITE_HERE/lib.sh"
need python3
files=$(amount 20000 1000000)

made() {
    python3 - $files <<'END'
import os, sys
for n in range(int(sys.argv[1])):
    d = f"tree/{n // 10000}/{n // 200 % 50}"
    if n % 200 == 0: os.makedirs(d)
    os.close(os.open(f"{d}/{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
END
}

walked() { # all of them, each looked at
    [ "$(find tree -type f -printf '%s %m %u\n' | sort | uniq -c | awk '{ print $1, $2, $3 }')" = "$files 0 640" ]
}

# Files that are open and have no name while others are walked.
open_without_names() {
    python3 - <<'END'
import os, subprocess
held = []
for n in range(100):
    f = os.open(f"held{n}", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(f, str(n).encode() * 100)
    os.unlink(f"held{n}")
    held.append(f)
subprocess.run(["sh", "-c", "find tree -type f -size +1000000k | wc -l"], check=True)
for n, f in enumerate(held):
    assert os.pread(f, 1000, 0) == str(n).encode() * 100, n
    os.pwrite(f, b"again", 0)
    os.ftruncate(f, 5)
    assert os.fstat(f).st_nlink == 0 and os.fstat(f).st_size == 5
    os.fchmod(f, 0o400)
END
}

# More files open at a time than there are descriptors for, striped over three.
many_open() {
    python3 - <<'END'
import os
held = [os.open(f"open{n}", os.O_CREAT | os.O_RDWR, 0o600) for n in range(600)]
text = lambda n: b"%6d." % n * 30000
for n, f in enumerate(held):
    os.pwrite(f, text(n), 0)
for n, f in enumerate(held):
    assert os.pread(f, 300000, 0) == text(n), n
    os.fsync(f)
    os.unlink(f"open{n}") if n % 10 == 0 else os.chmod(f"open{n}", 0o400)
for n, f in enumerate(held):
    assert os.pread(f, 300000, 0) == text(n), n
    os.close(f)
    if n % 10: os.unlink(f"open{n}")
END
}

# Names that were looked at long ago still lead to their objects.
old_names() {
    python3 - <<'END'
import os, subprocess
dirs = [os.open(f"tree/0/{n}", os.O_RDONLY | os.O_DIRECTORY) for n in range(50)]
subprocess.run(["sh", "-c", "find tree -type f -links +5 | wc -l"], check=True)
for n, d in enumerate(dirs):
    assert len(os.listdir(d)) == 200
    os.rename(f"{n * 200}", "moved", src_dir_fd=d, dst_dir_fd=d)
    os.rename("moved", f"{n * 200}", src_dir_fd=d, dst_dir_fd=d)
END
}

removed() { rm -r tree; [ -z "$(ls)" ]; }

check made made
check walked walked
check open-without-names open_without_names
check many-open many_open
check old-names old_names
check walked-again walked
check removed removed
