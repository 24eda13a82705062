# A tree with links and modes into an archive and out of it again.
set -euo pipefail

mkdir tree out
for n in $(seq 60); do
    mkdir -p tree/a/$((n % 7))
    head -c $((n * 977)) /dev/urandom > tree/a/$((n % 7))/"$n"
done
ln -s a/1 tree/link
ln tree/a/1/1 tree/hard
chmod 640 tree/a/2/2

tar cf tree.tar tree
tar xf tree.tar -C out
tar df tree.tar
diff -r tree out/tree
test "$(stat -c %a out/tree/a/2/2)" = 640
test "$(stat -c %h out/tree/hard)" = 2
test "$(readlink out/tree/link)" = a/1
