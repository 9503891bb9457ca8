"""Pools that are mounted on this host, as /proc/self/mountinfo has them."""

import errno
import os
import re
from typing import List, NamedTuple


class Mount(NamedTuple):
    """A mounted pool."""

    pool: str
    """Its name (of a mount from a server: its place there)."""
    path: str
    """The directory."""


_ESCAPE = re.compile(r"\\([0-7]{3})")


def _plain(field: str) -> str:
    """Spaces and the like are written as \\040."""
    raw = _ESCAPE.sub(lambda m: chr(int(m.group(1), 8)), field)
    return raw


def parse(text: str) -> List[Mount]:
    """The mounts of pools in the text of a mountinfo, in the order in which they were made."""
    found = []
    for line in text.splitlines():
        first, _, second = line.partition(" - ")
        fields, rest = first.split(" "), second.split(" ")
        # A bind mount of a part of the file system has another root.
        if len(fields) > 4 and len(rest) > 1 and rest[0] == "fuse.braid" and fields[3] == "/":
            found.append(Mount(_plain(rest[1]), _plain(fields[4])))
    return found


def mounts() -> List[Mount]:
    """The pools that are mounted on this host, as this process sees it."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        return parse(table.read())


def find_mount(pool: str) -> str:
    """The directory where a pool is mounted on this host; of several, the one that was mounted last.

    Raises FileNotFoundError, with what to do, if it is not mounted.
    """
    found = [mount.path for mount in mounts() if mount.pool == pool]
    if not found:
        raise FileNotFoundError(
            errno.ENOENT,
            f"pool '{pool}' is not mounted on this host: mount it with `braid mount {pool} DIR`, or name the "
            "directory where it is mounted (mount=DIR), or take native=True, which needs no mount but a node slot",
        )
    return os.fspath(found[-1])
