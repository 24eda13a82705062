# Every block written is read back and its checksum compared: random writes at depth 32 past the page cache, mixed sizes
# by four threads through it, and through a mapping.
set -euo pipefail

verify() {
    fio --name=job --directory=. --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --randseed=7 \
        --minimal "$@" > fio.out 2>&1 || { cat fio.out; exit 1; }
    rm job.*
}
verify --rw=randwrite --bs=4k --size=3M --ioengine=libaio --iodepth=32 --direct=1
verify --rw=randrw --bsrange=512-128k --size=2M --ioengine=psync --numjobs=4 --thread
verify --rw=randwrite --bs=4k --size=1M --ioengine=mmap
