"""Braid from Python: what `braid status` knows, and a node of a pool in this process.

`Pool` looks at a pool. `FileSystem` joins it as a node of its own, without a mount: it takes a node slot, needs access to
the pool's devices, and checks no permissions. Programs that only want files use a mount, or `braid.fsspec`.

Every call releases the GIL. Errors are `OSError` with an errno and a message that says what to do. A process that was
forked from one that has used a pool natively cannot do so itself; one that was started anew ("spawn", "forkserver") can.
docs/PYTHON.md has examples.
"""

import atexit as _atexit
import mmap as _mmap
import os as _os

from . import _braid
from ._braid import REQUEST_MAX, DirEntry, File, FileSystem, Member, NodeInfo, Pool, __version__
from ._mounts import Mount, find_mount, mounts

__all__ = [
    "REQUEST_MAX",
    "DirEntry",
    "File",
    "FileSystem",
    "Member",
    "Mount",
    "NodeInfo",
    "Pool",
    "__version__",
    "aligned_buffer",
    "find_mount",
    "mounts",
]


def aligned_buffer(size):
    """`size` bytes of zeros in memory of its own that begins with a page, as an `mmap`.

    Requests go between it and the devices without a copy; other memory is copied on the way if the devices
    need aligned memory. `memoryview` and `numpy.frombuffer` take it as it is.
    """
    buffer = _mmap.mmap(-1, size)
    try:
        buffer.madvise(_mmap.MADV_HUGEPAGE)
    except (OSError, AttributeError):
        pass
    return buffer


def _ends():
    """A process that ends leaves its pools: other nodes would have to recover it."""
    _braid._leave_all()


def _ends_with_multiprocessing():
    """A worker of multiprocessing ends without what `atexit` has; it has a list of its own, made after the fork."""
    import sys

    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _ends, exitpriority=0)


class _Joined:
    """Called for each node that joins (from the compiled part)."""

    pid = None

    @classmethod
    def note(cls):
        if cls.pid != _os.getpid():
            cls.pid = _os.getpid()
            _ends_with_multiprocessing()


_atexit.register(_ends)
_os.register_at_fork(before=_braid._before_fork, after_in_child=_braid._after_fork_in_child)
_braid._on_join(_Joined.note)
