"""A loader of shards, as for training: samples of one size, read in random order by several workers.

    python3 shards.py make POOL      # writes 4 shards of 64 MiB
    python3 shards.py read POOL [--native]

With PyTorch the class goes to DataLoader as it is (a map-style data set); native, with multiprocessing_context="spawn".
"""

import multiprocessing
import random
import sys
import time

import fsspec

SHARDS, SAMPLES, SAMPLE = 4, 512, 128 << 10


class Shards:
    """Samples by number. A worker gets it pickled, and opens the pool by itself."""

    def __init__(self, pool, native):
        self.fs = fsspec.filesystem("braid", pool=pool, native=native)

    def __len__(self):
        return SHARDS * SAMPLES

    def __getitems__(self, numbers):
        """A batch: PyTorch asks for it in this way if it can."""
        paths = [f"/shards/{n // SAMPLES}" for n in numbers]
        starts = [n % SAMPLES * SAMPLE for n in numbers]
        return self.fs.cat_ranges(paths, starts, [start + SAMPLE for start in starts], on_error="raise")


def make(pool):
    fs = fsspec.filesystem("braid", pool=pool)
    for shard in range(SHARDS):
        with fs.open(f"/shards/{shard}", "wb", block_size=4 << 20) as file:
            for n in range(SAMPLES):
                file.write((shard * SAMPLES + n).to_bytes(8, "little") * (SAMPLE // 8))
            file.fsync()


def work(shards, numbers):
    for at in range(0, len(numbers), 32):
        batch = numbers[at : at + 32]
        for number, sample in zip(batch, shards.__getitems__(batch)):
            assert int.from_bytes(sample[:8], "little") == number and len(sample) == SAMPLE


def read(pool, native, workers=2):
    shards = Shards(pool, native)
    numbers = random.sample(range(len(shards)), len(shards))
    context = multiprocessing.get_context("spawn")
    begun = time.monotonic()
    started = [context.Process(target=work, args=(shards, numbers[n::workers])) for n in range(workers)]
    for worker in started:
        worker.start()
    for worker in started:
        worker.join()
        assert worker.exitcode == 0
    took = time.monotonic() - begun
    print(f"{len(shards)} samples, {len(shards) * SAMPLE / took / 1e9:.2f} GB/s, start of the workers included")


if __name__ == "__main__":
    task, name = sys.argv[1:3]
    make(name) if task == "make" else read(name, "--native" in sys.argv)
