"""Pools as an fsspec file system: `braid://POOL/path`.

By default through the pool's mount on this host: it is found by the pool's name, and nothing else is needed. With
`native=True` through a node in this process: no mount, no copy through the kernel, but a node slot for each process, and
access to the pool's devices.

Objects may be pickled; a process that gets one uses the mount, or joins the pool itself. After a fork those that use a
mount go on; native ones raise, with advice: workers of a program that is native are started by "spawn" or "forkserver".
"""

import datetime
import errno
import io
import os
import posixpath
import shutil
import stat as _stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from fsspec.spec import AbstractFileSystem
from fsspec.utils import infer_storage_options, stringify_path

from ._mounts import find_mount, mounts

_THREADS = 8
_COPY = 4 << 20


def _kind(mode):
    if _stat.S_ISDIR(mode):
        return "directory"
    if _stat.S_ISREG(mode):
        return "file"
    return "link" if _stat.S_ISLNK(mode) else "other"


class _Mounted:
    """Paths below a mount, with the calls of `os`.

    `find` says where it is. Each call looks whether it still is: what is written into the bare directory when the pool
    is not mounted any more would be on another disk.
    """

    def __init__(self, find):
        self._find = find
        self.root = find()
        self.device = os.stat(self.root + "/").st_dev

    def _at(self, path):
        try:
            device = os.stat(self.root + "/").st_dev
        except FileNotFoundError:
            device = None
        if device != self.device:
            try:
                root = self._find()
            except FileNotFoundError as error:
                # Nobody may take it for a file that is not there.
                raise OSError(errno.ENODEV, error.strerror) from None
            self.device = os.stat(root + "/").st_dev
            self.root = root
        return self.root + path

    def open(self, path, mode):
        return open(self._at(path), mode + "b", buffering=0)

    def scandir(self, path):
        with os.scandir(self._at(path)) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue

    def stat(self, path, follow_symlinks=True):
        return os.stat(self._at(path), follow_symlinks=follow_symlinks)

    def readlink(self, path):
        return os.readlink(self._at(path))

    def mkdir(self, path):
        os.mkdir(self._at(path))

    def rmdir(self, path):
        os.rmdir(self._at(path))

    def unlink(self, path):
        os.unlink(self._at(path))

    def rename(self, old, new):
        os.replace(self._at(old), self._at(new))

    def utime(self, path):
        os.utime(self._at(path))

    def copy(self, old, new):
        # The kernel copies, and the pool need not send the bytes through this process.
        shutil.copyfile(self._at(old), self._at(new))

    def read_ranges(self, path, ranges):
        fd = os.open(self._at(path), os.O_RDONLY)
        try:
            size = None
            whole = []
            for start, end in ranges:
                if end is None or end < 0 or start < 0:
                    size = os.fstat(fd).st_size if size is None else size
                whole.append(_bounds(start, end, size))
            if len(whole) == 1:
                return [_pread(fd, *whole[0])]
            with ThreadPoolExecutor(min(_THREADS, len(whole))) as threads:
                return list(threads.map(lambda r: _pread(fd, *r), whole))
        finally:
            os.close(fd)


class _Native:
    """A node of this process."""

    def __init__(self, file_system):
        self.fs = file_system

    def open(self, path, mode):
        return self.fs.open(path, mode)

    def scandir(self, path):
        return ((entry.name, entry.stat()) for entry in self.fs.scandir(path))

    def stat(self, path, follow_symlinks=True):
        return self.fs.stat(path, follow_symlinks=follow_symlinks)

    def readlink(self, path):
        return self.fs.readlink(path)

    def mkdir(self, path):
        self.fs.mkdir(path)

    def rmdir(self, path):
        self.fs.rmdir(path)

    def unlink(self, path):
        self.fs.unlink(path)

    def rename(self, old, new):
        self.fs.rename(old, new)

    def utime(self, path):
        self.fs.utime(path)

    def copy(self, old, new):
        with self.fs.open(old) as source, self.fs.open(new, "w") as target:
            offset = 0
            while data := source.pread(_COPY, offset):
                offset += target.pwrite(data, offset)

    def read_ranges(self, path, ranges):
        with self.fs.open(path) as file:
            size = None
            whole = []
            for start, end in ranges:
                if end is None or end < 0 or start < 0:
                    size = file.stat().st_size if size is None else size
                start, end = _bounds(start, end, size)
                whole.append((start, end - start))
            return file.read_ranges(whole)


def _bounds(start, end, size):
    """A range as fsspec means it: from the end of the file if negative, to it if there is no end."""
    if start is None:
        start = 0
    if start < 0:
        start = max(size + start, 0)
    if end is None:
        end = size
    elif end < 0:
        end = max(size + end, 0)
    return start, max(end, start)


def _pread(fd, start, end):
    parts = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class BraidFileSystem(AbstractFileSystem):
    """A pool, for fsspec.

    pool: its name. native: join it in this process instead of using its mount. mount: the directory where it is mounted,
    if not the one that is found by its name. members: paths of the pool's devices, for a native node of a pool that
    cannot be found by name (one on plain files). memory: bound of a native node's memory, bytes.

    A native node takes a node slot of the pool in each process that uses it, and keeps it until `close`, or until the
    process ends.
    """

    protocol = "braid"
    root_marker = "/"
    async_impl = False

    def __init__(self, pool=None, native=False, mount=None, members=None, memory=None, **kwargs):
        super().__init__(**kwargs)
        if pool is None and mount is None and not (native and members):
            raise ValueError("name the pool: fsspec.filesystem('braid', pool=NAME), or braid://NAME/path")
        if native and mount is not None:
            raise ValueError("native=True uses no mount: leave mount=... out")
        if not native and (members is not None or memory is not None):
            raise ValueError("members=... and memory=... are for native=True")
        self.pool = pool
        self.native = native
        self._mount = mount
        self._members = members
        self._memory = memory
        self._lock = threading.Lock()
        self._used = None
        if native:
            self._on  # joins now: an error belongs here, and not to the first read
        else:
            self._on = _Mounted(self._mount_point)

    def _mount_point(self):
        if self._mount is None:
            return find_mount(self.pool).rstrip("/")
        folder = os.path.abspath(self._mount)
        inside = [mount.path for mount in mounts() if os.path.commonpath([mount.path, folder]) == mount.path]
        if not inside or not os.path.isdir(folder):
            raise FileNotFoundError(
                errno.ENOENT,
                f"no pool is mounted on mount={self._mount!r}: mount one with `braid mount NAME {self._mount}`",
            )
        return folder.rstrip("/")

    @property
    def _on(self):
        pid, on = self._used or (None, None)
        if not self.native or pid == os.getpid():
            return on
        from . import FileSystem

        if pid is not None:
            # The parent's lock may be held by a thread that is not here.
            self._lock = threading.Lock()
        with self._lock:
            pid, on = self._used or (None, None)
            if pid != os.getpid():
                source = self.pool if self._members is None else self._members
                options = {} if self._memory is None else {"memory": self._memory}
                on = _Native(FileSystem(source, **options))
                self._used = (os.getpid(), on)
        return on

    @_on.setter
    def _on(self, on):
        self._used = (os.getpid(), on)

    def close(self):
        """Ends a native node: all that was written is durable on return. The next call joins again."""
        if self.native and self._used and self._used[0] == os.getpid():
            self._used[1].fs.close()
            self._used = None

    def __reduce__(self):
        # Not what is open here.
        return _again, (type(self), self.storage_args, self.storage_options)

    # -- paths

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("braid://", "braid::"):
            if path.startswith(prefix):
                _, _, path = path[len(prefix) :].partition("/")
                break
        # "..": never above the root.
        return posixpath.normpath("/" + path.lstrip("/"))

    @staticmethod
    def _get_kwargs_from_urls(path):
        path = stringify_path(path)
        if not path.startswith("braid://"):
            return {}
        host = infer_storage_options(path).get("host")
        name = path[len("braid://") :].partition("/")[0]
        return {"pool": name} if host is not None or name else {}

    def unstrip_protocol(self, name):
        path = self._strip_protocol(name)
        return f"braid://{self.pool or ''}{path}"

    @property
    def fsid(self):
        return f"braid_{self.pool or self._mount or self._members}"

    # -- names

    def _info(self, path, st):
        kind = _kind(st.st_mode)
        info = {
            "name": path,
            "size": st.st_size if kind == "file" else 0,
            "type": kind,
            "created": st.st_ctime,
            "mtime": st.st_mtime,
            "islink": kind == "link",
            "mode": st.st_mode,
            "uid": st.st_uid,
            "gid": st.st_gid,
            "ino": st.st_ino,
            "nlink": st.st_nlink,
        }
        if kind == "link":
            info["destination"] = self._on.readlink(path)
            try:
                behind = self._on.stat(path)
                info["size"] = behind.st_size
                info["type"] = _kind(behind.st_mode)
            except OSError:
                pass
        return info

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._info(path, self._on.stat(path, follow_symlinks=False))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        below = path if path.endswith("/") else path + "/"
        found = [(below + name, st) for name, st in self._on.scandir(path)]
        found.sort(key=lambda entry: entry[0])
        return [self._info(*entry) for entry in found] if detail else [name for name, _ in found]

    def exists(self, path, **kwargs):
        try:
            self._on.stat(self._strip_protocol(path))
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def lexists(self, path, **kwargs):
        try:
            self._on.stat(self._strip_protocol(path), follow_symlinks=False)
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if self.lexists(path):
            raise FileExistsError(path)
        if create_parents:
            self.makedirs(path, exist_ok=True)
        else:
            self._on.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        path = self._strip_protocol(path)
        missing = []
        at = path
        while at != "/" and not self.lexists(at):
            missing.append(at)
            at = posixpath.dirname(at)
        if not missing:
            if exist_ok and self.isdir(path):
                return
            raise FileExistsError(path)
        for at in reversed(missing):
            try:
                self._on.mkdir(at)
            except FileExistsError:
                # Another program was quicker.
                if not exist_ok and at == path:
                    raise

    def rmdir(self, path):
        self._on.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self._on.unlink(self._strip_protocol(path))

    def _rm(self, path):
        self.rm_file(path)

    def rm(self, path, recursive=False, maxdepth=None):
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            one = self._strip_protocol(one)
            if not self._has_magic(one):
                self._rm_one(one, recursive, maxdepth)
                continue
            for found in reversed(self.expand_path(one, recursive=recursive, maxdepth=maxdepth)):
                if self.lexists(found):
                    self._rm_one(found, False, None)

    @staticmethod
    def _has_magic(path):
        return any(c in path for c in "*?[")

    def _rm_one(self, path, recursive, maxdepth):
        info = self.info(path)
        if info["islink"] or info["type"] != "directory":
            return self._on.unlink(path)
        if path == "/":
            raise ValueError("the root of a pool is not removed: name what is in it")
        if not recursive:
            return self._on.rmdir(path)
        if maxdepth is None or maxdepth > 1:
            for name, _ in list(self._on.scandir(path)):
                self._rm_one(posixpath.join(path, name), True, None if maxdepth is None else maxdepth - 1)
        self._on.rmdir(path)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if path1 == path2:
            return
        if maxdepth is not None or self._has_magic(path1):
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
        if self.isdir(path2):
            path2 = posixpath.join(path2, posixpath.basename(path1))
        self._on.rename(path1, path2)

    def mv_file(self, path1, path2, **kwargs):
        self._on.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1, path2, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            return self.makedirs(path2, exist_ok=True)
        self._with_parents(path2, lambda: self._on.copy(path1, path2))

    def _with_parents(self, path, work):
        """Directories above a new file are made if they are not there, as on stores that have none."""
        try:
            return work()
        except FileNotFoundError:
            self.makedirs(posixpath.dirname(path), exist_ok=True)
            return work()

    def _create(self, path, mode):
        return self._with_parents(path, lambda: self._on.open(path, mode))

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            self._create(path, "w").close()
        else:
            self._on.utime(path)

    def created(self, path):
        return self._time(self.info(path)["created"])

    def modified(self, path):
        return self._time(self.info(path)["mtime"])

    @staticmethod
    def _time(seconds):
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    # -- contents

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        if self.isdir(path):
            raise IsADirectoryError(path)
        return BraidFile(self, path, mode, block_size=block_size, autocommit=autocommit)

    def cat_file(self, path, start=None, end=None, **kwargs):
        [data] = self._on.read_ranges(self._strip_protocol(path), [(start or 0, end)])
        return data

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Many ranges at once. Those of one file are read by one open file, several at a time."""
        if max_gap is not None:
            raise NotImplementedError("max_gap")
        if not isinstance(paths, list):
            raise TypeError("paths: not a list")
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends: not as many of each")
        of_file = {}
        for n, path in enumerate(paths):
            of_file.setdefault(self._strip_protocol(path), []).append(n)
        out = [None] * len(paths)

        def read(path, numbers):
            try:
                data = self._on.read_ranges(path, [(starts[n] or 0, ends[n]) for n in numbers])
            except Exception as error:
                if on_error == "raise":
                    raise
                data = [error] * len(numbers)
            for n, one in zip(numbers, data):
                out[n] = one

        if len(of_file) == 1:
            read(*next(iter(of_file.items())))
            return out
        with ThreadPoolExecutor(min(_THREADS, len(of_file) or 1)) as threads:
            for done in [threads.submit(read, *one) for one in of_file.items()]:
                done.result()
        return out

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path = self._strip_protocol(path)
        with self._create(path, "x" if mode == "create" else "w") as file:
            _write_all(file, value)

    def get_file(self, rpath, lpath, callback=None, outfile=None, **kwargs):
        rpath = self._strip_protocol(rpath)
        if outfile is None and self.isdir(rpath):
            return os.makedirs(lpath, exist_ok=True)
        if outfile is None:
            folder = os.path.dirname(os.path.abspath(lpath))
            os.makedirs(folder, exist_ok=True)
        with self._on.open(rpath, "r") as source:
            target = outfile if outfile is not None else open(lpath, "wb")
            try:
                _copy(source, target, callback, self._on.stat(rpath).st_size)
            finally:
                if outfile is None:
                    target.close()

    def put_file(self, lpath, rpath, callback=None, mode="overwrite", **kwargs):
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            return self.makedirs(rpath, exist_ok=True)
        with open(lpath, "rb") as source:
            with self._create(rpath, "x" if mode == "create" else "w") as target:
                _copy(source, target, callback, os.path.getsize(lpath))

    def ukey(self, path):
        st = self._on.stat(self._strip_protocol(path))
        return f"{st.st_ino}-{st.st_size}-{st.st_mtime_ns}"

    def checksum(self, path):
        return int(hash(self.ukey(path)) & ((1 << 63) - 1))


def _again(cls, args, options):
    return cls(*args, **options)


def _write_all(file, value):
    rest = memoryview(value).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _copy(source, target, callback, size):
    if callback is not None:
        callback.set_size(size)
    buffer = memoryview(bytearray(_COPY))
    while n := source.readinto(buffer):
        _write_all(target, buffer[:n])
        if callback is not None:
            callback.relative_update(n)


class BraidFile(io.IOBase):
    """An open file, as fsspec wants it: buffered, and written under another name until it is committed if
    `autocommit` is off (in a transaction)."""

    def __init__(self, fs, path, mode, block_size=None, autocommit=True):
        super().__init__()
        self.fs = fs
        self.path = path
        self.mode = mode
        self.blocksize = block_size or io.DEFAULT_BUFFER_SIZE
        self.autocommit = autocommit or "r" in mode
        self.temp = None
        plain = mode.replace("b", "").replace("t", "")
        where = path
        if not self.autocommit:
            folder, name = posixpath.split(path)
            self.temp = where = posixpath.join(folder, f".{name}.{next(tempfile._get_candidate_names())}")
        raw = fs._create(where, plain) if plain[0] != "r" else fs._on.open(where, plain)
        size = max(int(self.blocksize) if block_size else 1 << 16, io.DEFAULT_BUFFER_SIZE)
        if "+" in plain:
            self.f = io.BufferedRandom(raw, size)
        elif plain == "r":
            self.f = io.BufferedReader(raw, size)
        else:
            self.f = io.BufferedWriter(raw, size)
        if "r" in plain and "+" not in plain:
            self.size = fs._on.stat(path).st_size
        self.readinto = getattr(self.f, "readinto", None)

    def __reduce__(self):
        if self.mode not in ("r", "rb"):
            raise ValueError("only a file that is open to be read can be pickled")
        return _file_again, (self.fs, self.path, self.mode, self.f.tell())

    def commit(self):
        if self.autocommit:
            raise RuntimeError("the file is written in its place already")
        self.fs._on.rename(self.temp, self.path)

    def discard(self):
        if self.autocommit:
            raise RuntimeError("the file is written in its place already")
        self.fs._on.unlink(self.temp)

    @property
    def details(self):
        return self.fs.info(self.path)

    def info(self):
        return self.fs.info(self.path)

    @property
    def name(self):
        return self.path

    def read(self, size=-1):
        return self.f.read(size)

    def read1(self, size=-1):
        return self.f.read1(size)

    def readline(self, size=-1):
        return self.f.readline(size)

    def __next__(self):
        return next(self.f)

    def __iter__(self):
        return self

    def write(self, data):
        return self.f.write(data)

    def seek(self, offset, whence=0):
        return self.f.seek(offset, whence)

    def tell(self):
        return self.f.tell()

    def truncate(self, size=None):
        return self.f.truncate(size)

    def flush(self, force=False):
        if not self.closed:
            self.f.flush()

    def fsync(self):
        """Writes what is buffered; contents are durable on return."""
        self.f.flush()
        raw = self.f.raw
        os.fsync(raw.fileno()) if hasattr(raw, "fileno") and not self.fs.native else raw.fsync()

    def fileno(self):
        return self.f.fileno()

    def readable(self):
        return self.f.readable()

    def writable(self):
        return self.f.writable()

    def seekable(self):
        return True

    @property
    def closed(self):
        return not hasattr(self, "f") or self.f.closed

    def close(self):
        if not self.closed:
            self.f.close()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()


def _file_again(fs, path, mode, position):
    file = BraidFile(fs, path, mode)
    file.seek(position)
    return file
