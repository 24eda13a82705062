# A repository with four commits, packed, checked, cloned. In the current directory; ends at the first mistake.
set -euo pipefail

git init -q repository
cd repository
git config user.name Tester
git config user.email tester@example.invalid
for n in $(seq 40); do
    mkdir -p d$((n % 5))
    seq $((n * 50)) > d$((n % 5))/f"$n"
done
git add .
git commit -qm first
for n in 1 2 3; do
    seq $((n * 1000)) > d0/f5
    git commit -qam "change $n"
done
git gc -q --aggressive --prune=now
git fsck --full --strict
git checkout -q HEAD~2
test "$(wc -l < d0/f5)" = 1000
git checkout -q -
test -z "$(git status --porcelain)"
test "$(git log --oneline | wc -l)" = 4

git clone -q . ../clone
git -C ../clone fsck --full --strict
diff -r --exclude=.git . ../clone
