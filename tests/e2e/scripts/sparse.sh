# Holes are read as zeros, take no space, and are kept or filled when copied; truncation cuts and extends.
set -euo pipefail

truncate -s 8M holes
printf end | dd of=holes bs=1 seek=5000000 conv=notrunc status=none
sync holes
test "$(stat -c %s holes)" = 8388608
test "$(stat -c %b holes)" -lt 1000
test "$(tr -d '\0' < holes)" = end
for how in auto always never; do
    cp --sparse=$how holes copy
    cmp holes copy
done

truncate -s 5000001 holes
test "$(tail -c 1 holes)" = e
truncate -s 6M holes
test "$(stat -c %s holes)" = 6291456
test "$(tr -d '\0' < holes)" = e
truncate -s 0 holes
test ! -s holes
