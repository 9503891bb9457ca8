"""The compiled part of the package `braid`. What it says here about errors is beside `OSError`, which every call raises
with an errno and a message that says what to do: EIO if devices fail, EBADF in a child of a fork, ENOENT and so on as the
calls of `os`. A closed file or file system raises ValueError."""

import os
from types import TracebackType
from typing import Final, Sequence, Union

from typing_extensions import Buffer, Self

_Path = Union[str, os.PathLike[str]]
_Source = Union[_Path, Sequence[_Path]]

__version__: Final[str]
REQUEST_MAX: Final[int]
"""Bytes: larger reads and writes are cut into requests of this size, several at a time."""

class Member:
    """A member of a pool: a device or a file."""

    index: int
    """Its number in the pool."""
    uuid: str
    """Its identity."""
    path: str
    """Where it is, or was seen last."""
    size: int
    """Bytes of the device."""
    data_size: int
    """Bytes of it that hold contents of the pool."""
    state: str
    """"active", "failed", "offline", "rebuilding", "spare", "leaving" or "missing"."""

class NodeInfo:
    """A node that has the pool mounted, or had when it died."""

    slot: int
    """Its slot."""
    host: str
    """The host that it runs on."""
    pid: int
    """Its process."""
    mount_point: str
    """Where it is mounted; of a native node, that it is one."""
    since: int
    """Since when, Unix seconds."""
    state: str
    """"alive", "silent", "recovering" or "unreadable"."""

class Pool:
    """What a pool was at the moment when this was made: nothing is joined, locked, written or kept open.

    `source` is the pool's name or UUID, or the path of its member, or those of all its members. A pool on plain files is
    found by name only if the environment variable BRAID_DEVICES names them. Members may be missing if the others hold
    everything.

    Raises FileNotFoundError if there is no such pool or device, PermissionError if this user may not read the devices.
    """

    name: str
    uuid: str
    epoch: int
    """How often the pool's shape has changed."""
    size: int
    """Bytes that it holds, redundancy not counted."""
    fs_size: int
    """Bytes for file data."""
    fs_free: int
    """Of those, bytes that are free, as the nodes last wrote it: seconds old while the pool is in use."""
    inodes: int
    """Files, directories and so on, as the nodes last wrote it."""
    block_size: int
    """Bytes: the file system's unit."""
    stripe_unit: int
    """Bytes on one member before the next."""
    stripe_width: int
    """Bytes in a full row: what large requests are best a multiple of."""
    redundant: bool
    """Whether it has mirrors or parity."""
    node_slots: int
    """How many nodes may have it mounted at once."""
    members: list[Member]
    """Its members, in order."""
    nodes: list[NodeInfo]
    """Nodes that have it mounted, or had when they died."""

    def __init__(self, source: _Source) -> None: ...
    @property
    def paths(self) -> list[str]:
        """Paths of the members that are there."""

class DirEntry:
    """A name in a directory, with its attributes at the moment when the directory was read."""

    @property
    def name(self) -> str:
        """The name."""
    def stat(self) -> os.stat_result:
        """Attributes, not those of what a symbolic link leads to."""
    def inode(self) -> int:
        """The inode's number."""
    def is_dir(self) -> bool:
        """Whether it is a directory."""
    def is_file(self) -> bool:
        """Whether it is a regular file."""
    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""

class FileSystem:
    """A node of a pool in this process. No mount is needed, and none is in the way.

    It takes one of the pool's node slots until `close`, or until the process ends. It needs access to the devices
    (root, as a rule), and checks no permissions: new files belong to the process's effective user. Locks and caches
    are coherent with all other nodes, mounts among them. There is no page cache: each read of what this node has not
    just written goes to the devices.

    `memory` bounds the node's own memory, bytes (default 512 MiB, least 64 MiB). Objects may be used by many threads. After
    a fork the child's copies raise, and the child never touches the pool. Nor can it open one itself (OSError): start
    workers as new programs ("spawn" or "forkserver" of multiprocessing), or use a mount.

    Paths begin at the root of the file system, with or without a slash, and so do absolute symbolic links.

    Raises OSError: no node slot is free, a member is missing or cannot be opened, EROFS for devices that cannot be written.
    """

    def __init__(
        self, source: Pool | _Source, *, read_only: bool = False, memory: int | None = None, slot: int | None = None
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    @property
    def name(self) -> str:
        """The pool's name."""
    @property
    def uuid(self) -> str:
        """The pool's identity."""
    @property
    def slot(self) -> int:
        """The node's slot."""
    @property
    def read_only(self) -> bool:
        """Whether it was opened to be read only."""
    @property
    def closed(self) -> bool:
        """Whether the node has left."""
    def close(self) -> None:
        """Leaves the pool: all that was written is durable on return, and the slot is free. Open files are closed."""
    def open(
        self,
        path: _Path,
        mode: str = "r",
        *,
        direct: bool = False,
        sync: bool = False,
        permissions: int = 0o666,
    ) -> File:
        """Opens a regular file. `mode` is r, w, a or x, with + or without, as for the built-in `open`; always binary.

        `direct`: writes go to the devices, past this node's cache. `sync`: each write is durable on return, with all
        metadata. `permissions` are those of a new file, less the umask.
        """
    def listdir(self, path: _Path = "/") -> list[str]:
        """The names in a directory, in no order."""
    def scandir(self, path: _Path = "/") -> list[DirEntry]:
        """The names in a directory with their attributes, in no order. Takes each file's lock, shared."""
    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """Attributes, as `os.stat`. `st_dev` is 0."""
    def exists(self, path: _Path) -> bool:
        """Whether a path leads to something."""
    def mkdir(self, path: _Path, permissions: int = 0o777) -> None:
        """Makes a directory. Durable after `fsync_dir` of the directory that it is in."""
    def rmdir(self, path: _Path) -> None:
        """Removes an empty directory."""
    def unlink(self, path: _Path) -> None:
        """Removes a name that is not a directory's."""
    def rename(self, src: _Path, dst: _Path, *, replace: bool = True, exchange: bool = False) -> None:
        """Renames in one step for all nodes. What has the name `dst` is replaced (or FileExistsError is raised, without
        `replace`); with `exchange` both change names."""
    def link(self, src: _Path, dst: _Path) -> None:
        """Gives a file another name."""
    def symlink(self, target: _Path, path: _Path) -> None:
        """Makes `path` a symbolic link to `target`."""
    def readlink(self, path: _Path) -> str:
        """Where a symbolic link leads."""
    def chmod(self, path: _Path, permissions: int) -> None:
        """Sets permission bits."""
    def chown(self, path: _Path, uid: int, gid: int) -> None:
        """Sets owner and group; -1 leaves one alone."""
    def utime(self, path: _Path, ns: tuple[int, int] | None = None) -> None:
        """Sets times of access and modification, nanoseconds since 1970; without them, to the present."""
    def truncate(self, path: _Path, size: int) -> None:
        """Makes a file as long as `size` bytes."""
    def fsync_dir(self, path: _Path) -> None:
        """The names in a directory are durable on return."""
    def sync(self) -> None:
        """All that was written through this node is durable on return."""
    def space(self) -> tuple[int, int]:
        """Bytes for file data, and those of them that files can still take."""

class File:
    """An open file of a native node: raw and binary, with a position, so that `io.BufferedReader` and the like take it.

    Buffers are anything that has contiguous memory (bytes, bytearray, mmap, memoryview, arrays of NumPy). Contents go
    straight in or out; memory that begins with a page (`braid.aligned_buffer`), and offsets that are multiples of the
    block size, save a copy. Nothing else may use a buffer until the call returns.

    What was written is seen by all nodes on return, and durable after `fsync`, or once the file system is closed. Of
    a write that fails some parts may have been written.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    @property
    def name(self) -> str:
        """The path that it was opened by."""
    @property
    def mode(self) -> str:
        """As it was opened."""
    @property
    def closed(self) -> bool:
        """Whether it is closed, or its file system is."""
    def readable(self) -> bool:
        """Whether it may be read."""
    def writable(self) -> bool:
        """Whether it may be written."""
    @staticmethod
    def seekable() -> bool:
        """True."""
    @staticmethod
    def isatty() -> bool:
        """False."""
    def fileno(self) -> int:
        """Raises OSError: it has no descriptor."""
    def pread(self, length: int, offset: int) -> bytes:
        """At most `length` bytes from `offset`; fewer only at the end of the file."""
    def read_into(self, buffer: Buffer, offset: int) -> int:
        """Fills `buffer` from `offset`; returns how many bytes, fewer only at the end of the file. Of what is behind
        them some may be zeros then."""
    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Contents of many ranges, given as (offset, length), read at once."""
    def read_ranges_into(self, ranges: Sequence[tuple[int, Buffer]]) -> list[int]:
        """Fills many buffers, given as (offset, buffer), at once; returns how many bytes each got. Buffers may not
        overlap (ValueError)."""
    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes all of `data` at `offset` (at the end, if the file was opened to append); returns its length."""
    def write_ranges(self, ranges: Sequence[tuple[int, Buffer]]) -> int:
        """Writes many pieces, given as (offset, data), at once, in no order; returns the length of all."""
    def read(self, size: int | None = None, /) -> bytes:
        """At most `size` bytes from the position on, or all."""
    def readall(self) -> bytes:
        """All from the position on."""
    def readinto(self, buffer: Buffer, /) -> int:
        """Fills `buffer` from the position on; returns how many bytes."""
    def write(self, data: Buffer, /) -> int:
        """Writes all of `data` at the position; returns its length."""
    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Moves the position: from the start (0), from where it is (1), from the end (2)."""
    def tell(self) -> int:
        """The position."""
    def flush(self) -> None:
        """Does nothing: nothing is kept in this object."""
    def truncate(self, size: int | None = None, /) -> int:
        """Makes the file as long as `size` bytes, or as the position says."""
    def fsync(self, data_only: bool = False) -> None:
        """What any node has written to the file is durable on return, with all metadata; with `data_only` with what is
        needed to read it."""
    def allocate(self, offset: int, length: int) -> None:
        """Gives the file space for `length` bytes from `offset`, and makes it at least as long."""
    def stat(self) -> os.stat_result:
        """Its attributes."""
    def flock(self, operation: int) -> None:
        """A lock of the whole file among all nodes, as `fcntl.flock` (LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB). It
        belongs to this object. A signal whose handler raises ends the wait. BlockingIOError: another has it."""
    def lockf(self, cmd: int, len: int = 0, start: int = 0, whence: int = 0) -> None:
        """A lock of bytes among all nodes, as `fcntl.lockf`; `len` 0 is to the end of the file, however long it gets. It
        belongs to this object (as Linux's open file description locks), not to the process."""
    def close(self) -> None:
        """Drops the file's locks and closes it. Makes nothing durable."""
