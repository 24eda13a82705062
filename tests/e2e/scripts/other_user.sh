# As another user in a directory of root's that all may write to (sticky): may do what is permitted, and nothing else.
set -euo pipefail

refused() { if "$@" 2> /dev/null; then echo "not refused: $*"; exit 1; fi; }

test "$(cat public)" = hello
refused cat secret
refused rm -f public
refused chmod 777 public
refused mv public elsewhere

umask 027
mkdir inner
echo mine > theirs
echo more >> theirs
mv theirs inner/
head -c 300000 /dev/zero > inner/zeros
ln -s inner/zeros link
test "$(stat -Lc %s link)" = 300000
