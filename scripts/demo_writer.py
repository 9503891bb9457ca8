#!/usr/bin/env python3
"""Writes files and fsyncs each; a name goes into the log only after its fsync returned.

With --verify: every file in the log must be there, whole.
"""
import hashlib
import os
import sys


def content(n):
    block = hashlib.sha256(str(n).encode()).digest()
    return block * (1 + n * 37 % 900)


def write(directory, log_path):
    with open(log_path, "a", buffering=1) as log:
        n = 0
        while True:
            fd = os.open(f"{directory}/{n}", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
            os.write(fd, content(n))
            os.fsync(fd)
            os.close(fd)
            directory_fd = os.open(directory, os.O_RDONLY)
            os.fsync(directory_fd)
            os.close(directory_fd)
            log.write(f"{n}\n")
            n += 1


def verify(directory, log_path):
    with open(log_path) as log:
        for n in map(int, log):
            with open(f"{directory}/{n}", "rb") as file:
                if file.read() != content(n):
                    sys.exit(f"file {n} is not what was fsynced")


if sys.argv[1] == "--verify":
    verify(*sys.argv[2:])
else:
    write(*sys.argv[1:])
