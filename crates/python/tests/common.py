"""What the tests share: pools on files in a temporary folder, the command, and how a test says that it cannot run here.

tests/python.rs sets PYTHONPATH to the package, and BRAID_PROGRAM to the command.
"""

import faulthandler
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

# A test that hangs says where.
faulthandler.dump_traceback_later(300, exit=True)

CANNOT_RUN = 77
MIB = 1 << 20


def cannot_run(reason):
    """Ends the program: the runner counts it as skipped."""
    print(f"CANNOT RUN: {reason}")
    sys.stdout.flush()
    os._exit(CANNOT_RUN)


def program():
    path = os.environ.get("BRAID_PROGRAM")
    if not path or not os.path.exists(path):
        cannot_run("the command `braid` is not built (cargo build -p braid-cli)")
    return path


def braid(*words, fails=False):
    done = subprocess.run([program(), *map(str, words)], capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        raise AssertionError(f"braid {words}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class PoolTest(unittest.TestCase):
    """Has a pool on files for each test."""

    members = 2
    layout = ()
    nodes = 4
    pool = "safe"
    size = 128 * MIB

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="braid-python-")
        os.chmod(self.folder, 0o711)
        self.addCleanup(shutil.rmtree, self.folder)
        self.paths = []
        for n in range(self.members):
            path = os.path.join(self.folder, f"disk{n}")
            with open(path, "wb") as disk:
                disk.truncate(self.size)
            self.paths.append(path)
        braid("create", self.pool, "--nodes", self.nodes, *self.layout, *self.paths)
        # So that the pool is found by its name.
        os.environ["BRAID_DEVICES"] = self.folder

    def mount(self, name="mount"):
        """Mounts it; returns the directory."""
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            cannot_run("mounting needs /dev/fuse and root")
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        braid("mount", *self.paths, folder, "-o", f"log={folder}.log")
        self.addCleanup(braid, "unmount", folder)
        return folder


def main():
    unittest.main(verbosity=2)
