# Four files at the same time, each written and read in order, with 16 requests outstanding.
set -euo pipefail

fio --name=job --directory=. --rw=write --bs=4k --size=128K --numjobs=4 --thread --ioengine=libaio --iodepth=16 --direct=1 \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --minimal > fio.out 2>&1 || { cat fio.out; exit 1; }
