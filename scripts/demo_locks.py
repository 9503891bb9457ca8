#!/usr/bin/env python3
"""fcntl locks across two mounts of one file: held on one, refused on the other; then handed over."""
import fcntl
import os
import sys

on_a, on_b = (os.open(path, os.O_RDWR) for path in sys.argv[1:3])
fcntl.lockf(on_a, fcntl.LOCK_EX | fcntl.LOCK_NB, 10)
child = os.fork()
if child == 0:
    try:
        fcntl.lockf(on_b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10)
    except BlockingIOError:
        fcntl.lockf(on_b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)  # another range is free
        os._exit(0)
    os._exit(1)
_, status = os.waitpid(child, 0)
if status != 0:
    sys.exit("node B got a lock that node A holds")
fcntl.lockf(on_a, fcntl.LOCK_UN, 10)
fcntl.lockf(on_b, fcntl.LOCK_EX, 10)
