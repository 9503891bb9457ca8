"""Tables and arrays on a pool by fsspec: pandas with Parquet, and zarr.

    pip install pandas pyarrow zarr
    python3 tables.py POOL [--native]
"""

import sys

import fsspec
import numpy
import pandas
import zarr


def main(pool, native):
    options = {"native": native}
    table = pandas.DataFrame({"n": range(1_000_000), "square": numpy.arange(1_000_000) ** 2})
    table.to_parquet(f"braid://{pool}/table.parquet", storage_options=options)
    back = pandas.read_parquet(
        f"braid://{pool}/table.parquet", columns=["square"], filters=[("n", ">=", 999_990)], storage_options=options
    )
    assert back["square"].tolist() == [n * n for n in range(999_990, 1_000_000)], back

    fs = fsspec.filesystem("braid", pool=pool, **options)
    store = zarr.storage.FsspecStore(fs=fs_for_zarr(fs), path="/array.zarr")
    array = zarr.create_array(store, shape=(4096, 4096), chunks=(1024, 1024), dtype="f4", overwrite=True)
    array[:] = numpy.arange(4096 * 4096, dtype="f4").reshape(4096, 4096)
    array = zarr.open_array(store, mode="r")
    assert array[4095, 4095] == 4096 * 4096 - 1 and array[:, 7].sum() > 0
    print(f"read back what was written: {fs.du('/table.parquet')} and {fs.du('/array.zarr')} bytes")
    if native:
        fs.close()


def fs_for_zarr(fs):
    """zarr calls asynchronous file systems: fsspec has a wrapper for others."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    return AsyncFileSystemWrapper(fs, asynchronous=True)


if __name__ == "__main__":
    main(sys.argv[1], "--native" in sys.argv)
