"""What a fork makes of a native node: the child's copy raises, and never touches the pool."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import braid
import common


def in_child(work):
    """Runs `work` in a forked child; returns what it printed, and how it ended."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__} {getattr(error, 'errno', None)} {error}"
        os.write(into, text.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as text:
        said = text.read().decode()
    return said, os.waitpid(pid, 0)[1]


def joins_and_writes(paths, name):
    fs = braid.FileSystem(paths)
    with fs.open(name, "w") as file:
        file.write(str(os.getpid()).encode())
    return fs.slot


def run_workers(method, paths):
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=joins_and_writes, args=(paths, f"/{method}{n}")) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0, (method, worker.exitcode)


class Forks(common.PoolTest):
    def test_each_call_of_a_child_raises_and_says_what_to_do(self):
        with braid.FileSystem(self.paths) as fs, fs.open("/a", "w+") as file:
            file.write(b"parent")
            calls = [
                fs.listdir, fs.sync, fs.close, fs.space, fs.__enter__,
                lambda: fs.open("/a"), lambda: fs.stat("/a"), lambda: fs.exists("/a"), lambda: fs.mkdir("/d"),
                lambda: fs.unlink("/a"), file.read, file.tell, file.fsync, file.stat, file.close,
                lambda: file.pwrite(b"child", 0), lambda: file.read_into(bytearray(1), 0), lambda: file.flock(1),
            ]
            for call in calls:
                said, ended = in_child(call)
                self.assertEqual(ended, 0)
                self.assertIn(f"OSError {errno.EBADF}", said)
                self.assertIn(f"opened by process {os.getpid()}", said)
                self.assertIn("spawn", said)
            self.assertEqual(file.pread(10, 0), b"parent")
            self.assertEqual(fs.listdir(), ["a"])

    def test_a_child_that_drops_its_copies_changes_nothing(self):
        fs = braid.FileSystem(self.paths)
        file = fs.open("/a", "w+")
        file.write(b"parent")
        copies = [fs, file]

        def drop():
            import gc

            copies.clear()
            globals_of_test.clear()
            gc.collect()
            return "dropped"

        globals_of_test = {"fs": fs, "file": file}
        del fs, file
        said, ended = in_child(drop)
        self.assertEqual((said, ended), ("dropped", 0))
        fs, file = globals_of_test["fs"], globals_of_test["file"]
        self.assertEqual(file.pread(10, 0), b"parent")
        self.assertEqual(len(braid.Pool(self.paths).nodes), 1)
        copies.clear()
        fs.close()
        common.braid("check", *self.paths)

    def test_a_child_of_a_process_that_has_used_a_pool_is_refused_with_advice(self):
        # Locks and lists of the library are as the parent's threads had them in the moment of the fork.
        braid.FileSystem(self.paths).close()
        for join in [lambda: braid.FileSystem(self.paths), lambda: braid.Pool(self.paths)]:
            said, ended = in_child(join)
            self.assertEqual(ended, 0)
            self.assertIn(f"OSError {errno.EBADF}", said)
            self.assertIn(f"forked from process {os.getpid()}", said)
            self.assertIn("spawn", said)
        self.assertEqual(braid.Pool(self.paths).nodes, [])

    def test_workers_of_multiprocessing_leave_cleanly(self):
        with braid.FileSystem(self.paths) as fs:
            for method in ["spawn", "forkserver"]:
                run_workers(method, self.paths)
                # No node was left to be recovered.
                self.assertEqual([n.pid for n in braid.Pool(self.paths).nodes], [os.getpid()])
                self.assertTrue(fs.exists(f"/{method}0") and fs.exists(f"/{method}1"))

    def test_forked_workers_of_a_process_that_has_used_no_pool_join(self):
        script = "import sys, braid, test_fork; test_fork.run_workers('fork', sys.argv[1:])"
        subprocess.run([sys.executable, "-X", "dev", "-c", script, *self.paths], check=True)
        with braid.FileSystem(self.paths) as fs:
            self.assertTrue(fs.exists("/fork0") and fs.exists("/fork1"))
            self.assertEqual([n.pid for n in braid.Pool(self.paths).nodes], [os.getpid()])

    def test_a_child_that_lives_does_not_keep_its_dead_parent_alive(self):
        """The child has the parent's descriptors of the members, and with them its kernel locks."""
        script = """
import os, sys, time, braid
fs = braid.FileSystem(sys.argv[1:])
file = fs.open("/a", "w")
file.write(b"durable")
file.fsync()
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""
        parent = subprocess.Popen([sys.executable, "-c", script, *self.paths], stdout=subprocess.PIPE, text=True)
        child = int(parent.stdout.readline().split()[1])
        try:
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            begun = time.monotonic()
            with braid.FileSystem(self.paths) as fs, fs.open("/a", "r+") as file:
                self.assertEqual(file.read(), b"durable")
                file.write(b", and changed")
            self.assertLess(time.monotonic() - begun, 60)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
            parent.stdout.close()


if __name__ == "__main__":
    common.main()
