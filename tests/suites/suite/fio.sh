# fio: what was written is read back and compared, by several engines, sizes and orders
# quick: dir/auto striped/none/mlf
# full: dir/auto dir/writeback dir/none/* striped/none/* striped/auto striped/writeback
. "$SUITE_HERE/lib.sh"
need fio

verify() {
    fio --name=job --directory=. --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --randseed="$SUITE_SEED" \
        --output-format=terse "$@" && rm -f job.*
}
few=$(amount 2 256)M some=$(amount 1 64)M

check libaio-direct-random verify --rw=randwrite --bs=4k --size=$few --ioengine=libaio --iodepth=32 --direct=1
check libaio-direct-mixed-sizes verify --rw=randrw --bsrange=4k-128k --blockalign=4k --size=$few --ioengine=libaio --iodepth=16 --direct=1
check psync-odd-sizes verify --rw=randrw --bsrange=512-128k --size=$some --ioengine=psync --numjobs=4 --thread
check mapped verify --rw=randwrite --bs=4k --size=$some --ioengine=mmap
check io_uring verify --rw=randwrite --bs=16k --size=$few --ioengine=io_uring --iodepth=32
check pvsync2-lfsr verify --rw=randwrite --bs=8k --size=$few --ioengine=pvsync2 --random_generator=lfsr
check overwritten-in-any-order verify --rw=randwrite --norandommap --bs=4k --size=$some --io_size=$few --ioengine=libaio --iodepth=16 --direct=1 --serialize_overlap=1
check synced verify --rw=write --bs=64k --size=$some --ioengine=sync --fsync=8 --end_fsync=1
check backlog verify --rw=randwrite --bs=4k --size=$few --ioengine=libaio --iodepth=8 --verify_backlog=32
check checksums-by-others verify --rw=randwrite --bs=4k --size=$few --ioengine=psync --verify_async=2 --verify=sha256
