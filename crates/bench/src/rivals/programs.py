"""What programs do with many small files, and with a database. Prints what it has done and the seconds it took.

Arguments: part, directory, seconds, seed, directories of small files, files in each.
"""

import os
import random
import sqlite3
import sys
import time

PROCESSES = 4
FILE_BYTES = 8192
DATABASES = 3
ROWS = 30_000
ROW_BYTES = 1000


def together(count, work):
    """Runs `work(i)` in `count` processes, which return how much they have done; gives the sum and the seconds."""
    pipes = []
    begin = time.monotonic()
    for i in range(count):
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                os.write(writing, str(work(i)).encode())
            except BaseException as error:  # A process of its own: its parent hears of it by the missing number.
                print(f"process {i}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    done = sum(int(os.read(pipe, 64)) for pipe in pipes)
    for _ in range(count):
        os.wait()
    return done, time.monotonic() - begin


def put(path, content, sync):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(file, content)
    if sync:
        os.fsync(file)
    os.close(file)


def create(directory, seconds, seed, *_):
    content = os.urandom(FILE_BYTES)
    end = time.monotonic() + seconds
    made = f"{directory}/created-{seed}"
    os.mkdir(made)

    def work(i):
        mine, done = f"{made}/{i}", 0
        os.mkdir(mine)
        while time.monotonic() < end:
            put(f"{mine}/{done}", content, True)
            done += 1
        return done

    return together(PROCESSES, work)


def read(directory, seconds, seed, dirs, files):
    everything = [f"{directory}/small/{d}/{f}" for d in range(dirs) for f in range(files)]
    random.Random(seed).shuffle(everything)
    end = time.monotonic() + seconds

    def work(i):
        done = 0
        for path in everything[i::PROCESSES]:
            if time.monotonic() >= end:
                return done
            with open(path, "rb", buffering=0) as file:
                if len(file.read(2 * FILE_BYTES)) != FILE_BYTES:
                    raise ValueError(f"{path} is not as long as it was made")
            done += 1
        # That was all: what follows would be read from memory.
        return done

    return together(PROCESSES, work)


def database(directory, seconds, seed, *_):
    end = time.monotonic() + seconds

    def work(i):
        numbers, done = random.Random(seed * DATABASES + i), 0
        connection = sqlite3.connect(f"{directory}/database-{i}", isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -256")
        while time.monotonic() < end:
            row = numbers.randrange(ROWS)
            if done % 2:
                connection.execute("UPDATE rows SET content = randomblob(?) WHERE id = ?", (ROW_BYTES, row))
            else:
                (length,) = connection.execute("SELECT length(content) FROM rows WHERE id = ?", (row,)).fetchone()
                if length != ROW_BYTES:
                    raise ValueError(f"row {row} has {length} bytes")
            done += 1
        connection.close()
        return done

    return together(DATABASES, work)


def lay_small(directory, _seconds, seed, dirs, files):
    content = os.urandom(FILE_BYTES)
    for d in range(dirs):
        os.makedirs(f"{directory}/small/{d}")
        for f in range(files):
            put(f"{directory}/small/{d}/{f}", content, False)
    os.sync()
    return dirs * files, 1


def lay_database(directory, *_):
    for i in range(DATABASES):
        connection = sqlite3.connect(f"{directory}/database-{i}")
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, content BLOB)")
        rows = ((row, os.urandom(ROW_BYTES)) for row in range(ROWS))
        connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
        connection.commit()
        connection.close()
    return DATABASES * ROWS, 1


def check_database(directory, *_):
    for i in range(DATABASES):
        # In order, into memory: the check itself goes through it at random.
        with open(f"{directory}/database-{i}", "rb") as file:
            while file.read(1 << 20):
                pass
        connection = sqlite3.connect(f"file:{directory}/database-{i}?mode=ro", uri=True)
        (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
        if answer != "ok":
            raise ValueError(f"database {i}: {answer}")
    return DATABASES, 1


PARTS = [create, read, database, lay_small, lay_database, check_database]

if __name__ == "__main__":
    part = {function.__name__.replace("_", "-"): function for function in PARTS}[sys.argv[1]]
    done, took = part(sys.argv[2], *map(int, sys.argv[3:]))
    print(done, took)
