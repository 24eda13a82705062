# a file that many write to: each rereads what it wrote just now into a block of its own; appended lines stay whole
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback
. "$SUITE_HERE/lib.sh"
need python3
rounds=$(amount 1500 100000) processes=$(if quick; then echo 8; else echo 32; fi)

own_blocks() {
    python3 - $rounds $processes <<'END'
import os, sys
rounds, processes, block = int(sys.argv[1]), int(sys.argv[2]), 8192
os.close(os.open("shared", os.O_CREAT | os.O_WRONLY))
children = []
for n in range(processes):
    child = os.fork()
    if child == 0:
        file = os.open("shared", os.O_RDWR)
        for version in range(rounds):
            data = f"{n:8}{version:8}".encode() * (block // 16)
            os.pwrite(file, data, n * block)
            found = os.pread(file, block, n * block)
            if found != data:
                print(f"process {n}, version {version}: found {found[:16]}", flush=True)
                os._exit(1)
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
END
}

appended_lines() {
    local n pids=()
    for n in $(seq 4); do
        (for line in $(seq 300); do echo "$n $line the whole line" >> log; done) & pids+=($!)
    done
    for n in "${pids[@]}"; do wait "$n"; done
    [ "$(grep -c '^[1-4] [0-9]* the whole line$' log)" = 1200 ]
    [ "$(sort -u log | wc -l)" = 1200 ]
}

# A reader that follows a writer sees a part of what will be written, never zeros.
followed() {
    python3 - $rounds <<'END'
import os, sys
rounds = int(sys.argv[1])
os.close(os.open("followed", os.O_CREAT | os.O_WRONLY))
child = os.fork()
if child == 0:
    file = os.open("followed", os.O_WRONLY | os.O_APPEND)
    for n in range(rounds):
        os.write(file, bytes([1 + n % 255]) * 20000)
    os._exit(0)
file, at = os.open("followed", os.O_RDONLY), 0
while at < rounds * 20000:
    data = os.pread(file, 60000, at)
    zero = data.find(0)
    if zero >= 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
        sys.exit(f"a zero at {at + zero}, which nobody wrote")
    at += len(data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
END
}

check own-blocks own_blocks
check appended-lines appended_lines
check followed-by-a-reader followed
