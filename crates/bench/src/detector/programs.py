"""Processes whose access pattern is known, past the cache, like IOR's with a file per process, a shared one, or interleaved.

Arguments: directory, pattern (contiguous, strided), files (shared, own), operation (read, write), processes, bytes of a request,
requests of a process, seconds.
"""

import mmap
import os
import sys
import time


def work(rank, directory, pattern, files, operation, processes, request, calls, end):
    name = f"{directory}/data.{rank if files == 'own' else 0}"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    buffer = mmap.mmap(-1, request)
    while time.monotonic() < end:
        for call in range(calls):
            if files == "own":
                block = call
            elif pattern == "strided":
                block = call * processes + rank
            else:
                block = rank * calls + call
            if operation == "read":
                done = os.preadv(file, [buffer], block * request)
            else:
                done = os.pwritev(file, [buffer], block * request)
            if done != request:
                raise OSError(f"{done} of {request} bytes at block {block}")
            if time.monotonic() >= end:
                return


def main():
    directory, pattern, files, operation, *numbers = sys.argv[1:]
    processes, request, calls = map(int, numbers[:3])
    end = time.monotonic() + float(numbers[3])
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            try:
                work(rank, directory, pattern, files, operation, processes, request, calls, end)
            except OSError as error:
                print(f"process {rank}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(1 if failed else 0)


main()
