# Space is allocated without and with a change of the size, and given back in the middle of a file.
set -euo pipefail

fallocate -l 1M space
test "$(stat -c %s space)" = 1048576
test "$(stat -c %b space)" -ge 2048
fallocate -n -l 2M space
test "$(stat -c %s space)" = 1048576
test "$(tr -d '\0' < space | wc -c)" = 0

tr '\0' x < space > full
dd if=full of=space conv=notrunc bs=64K status=none
fallocate -p -o 100000 -l 500000 space
test "$(stat -c %s space)" = 1048576
test "$(head -c 100000 space | tr -d x | wc -c)" = 0
test "$(tail -c +100001 space | head -c 500000 | tr -d '\0' | wc -c)" = 0
test "$(tail -c +600001 space | tr -d x | wc -c)" = 0
