# A C project of 30 files, built in parallel. Built again there is nothing to do, and after a change just what is needed.
set -euo pipefail

export CC=gcc
unset MAKEFLAGS MAKELEVEL MFLAGS # these tests may run under a make of their own
for n in $(seq 29); do
    echo "int f$n(int);" >> all.h
    printf '#include "all.h"\nint f%d(int x) { return x + %d; }\n' "$n" "$n" > "f$n.c"
done
{
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int x = 0;\n'
    for n in $(seq 29); do echo "x = f$n(x);"; done
    printf 'printf("%%d\\n", x); return 0; }\n'
} > main.c
printf 'sources := $(wildcard *.c)\nprogram: $(sources:.c=.o)\n\t$(CC) -o $@ $^\n$(sources:.c=.o): all.h\n' > Makefile

make -s -e -j2
test "$(./program)" = 435
make -q -e
touch f3.c
test "$(make -n -e | grep -c -- ' -c ')" = 1
make -s -e -j2
make -q -e
touch all.h
test "$(make -n -e | grep -c -- ' -c ')" = 30
