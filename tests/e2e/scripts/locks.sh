# flock and POSIX locks between processes.
set -euo pipefail

: > lock
exec 9>> lock
flock -n 9
if flock -n lock true; then exit 1; fi
flock -u 9
flock -n lock true
exec 9>&-

python3 - <<'END'
import fcntl, os, sys

ours = open("lock", "r+")
fcntl.lockf(ours, fcntl.LOCK_EX, 100, 0)
child = os.fork()
if child == 0:
    theirs = open("lock", "r+")
    fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 100)
    try:
        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 99)
    except BlockingIOError:
        os._exit(7)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(0 if status == 7 else f"the other process ended with {status}")
END
