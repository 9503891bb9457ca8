"""Native against mount, from Python: GB/s of the same work, in turns.

    python3 measure.py POOL [ROUNDS]     # mounted on this host, and with a free node slot; needs 1 GiB of space

Write: 4 MiB a call, then fsync. Read: 32 MiB a call into one buffer; the mount's pages are dropped before. Samples:
128 KiB from random places, 64 at once, by `cat_ranges` of fsspec.
"""

import os
import random
import statistics
import sys
import time

import braid
import fsspec

SIZE, CALL, PART = 1 << 30, 32 << 20, 4 << 20
SAMPLE, SAMPLES, AT_ONCE = 128 << 10, 2048, 64


def timed(work):
    begun = time.monotonic()
    return work() / (time.monotonic() - begun) / 1e9


def native_write(fs, data):
    with fs.open("/measured", "w") as file:
        for at in range(0, SIZE, CALL):
            file.write_ranges([(at + n, data[n : n + PART]) for n in range(0, CALL, PART)])
        file.fsync()
    return SIZE


def native_read(fs, buffer):
    with fs.open("/measured") as file:
        return sum(file.read_into(buffer, at) for at in range(0, SIZE, CALL))


def mount_write(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for at in range(0, SIZE, CALL):
        for n in range(0, CALL, PART):
            os.pwrite(fd, data[n : n + PART], at + n)
    os.fsync(fd)
    os.close(fd)
    return SIZE


def mount_read(path, buffer, direct):
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    done = 0
    while done < SIZE:
        done += os.preadv(fd, [buffer], done)
    os.close(fd)
    return done


def forget(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def samples(fs):
    done = 0
    for _ in range(SAMPLES // AT_ONCE):
        starts = [random.randrange(SIZE // SAMPLE) * SAMPLE for _ in range(AT_ONCE)]
        got = fs.cat_ranges(["/measured"] * AT_ONCE, starts, [s + SAMPLE for s in starts], on_error="raise")
        done += sum(map(len, got))
    return done


def main(pool, rounds):
    path = braid.find_mount(pool) + "/measured"
    native, mount = fsspec.filesystem("braid", pool=pool, native=True), fsspec.filesystem("braid", pool=pool)
    fs = native._on.fs
    buffer = braid.aligned_buffer(CALL)
    buffer[:] = random.randbytes(CALL)
    data = memoryview(buffer)
    rows = {}
    for _ in range(rounds):
        for name, work in [
            ("write, native", lambda: native_write(fs, data)),
            ("write, mount", lambda: mount_write(path, data)),
            ("read, native", lambda: native_read(fs, data)),
            ("read, mount, direct", lambda: mount_read(path, data, True)),
            ("read, mount, cold pages", lambda: mount_read(path, data, False)),
            ("samples, native", lambda: samples(native)),
            ("samples, mount, cold pages", lambda: samples(mount)),
        ]:
            forget(path) if os.path.exists(path) else None
            rows.setdefault(name, []).append(timed(work))
    data.release()
    print(f"load {os.getloadavg()[0]:.1f}; {rounds} rounds; GB/s: median (lowest to highest)")
    for name, rates in rows.items():
        print(f"{name:28} {statistics.median(rates):5.2f} ({min(rates):.2f} to {max(rates):.2f})")
    fs.unlink("/measured")
    native.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7)
