"""`braid.FileSystem` and `braid.File`: a node in this process."""

import array
import errno
import fcntl
import io
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref

import braid
import common
from common import MIB


class Native(common.PoolTest):
    def setUp(self):
        super().setUp()
        self.fs = braid.FileSystem(self.paths)
        self.addCleanup(self.fs.close)


class Contents(Native):
    def test_what_is_written_is_read_again_by_another_node(self):
        data = random.Random(1).randbytes(9 * MIB + 123)
        with self.fs.open("/a", "w") as file:
            self.assertEqual(file.pwrite(data, 0), len(data))
            file.fsync()
        with braid.FileSystem(self.paths) as other, other.open("a") as file:
            self.assertNotEqual(other.slot, self.fs.slot)
            self.assertEqual(file.pread(len(data) + 5, 0), data)
            self.assertEqual(file.pread(1000, 4 * MIB - 500), data[4 * MIB - 500 :][:1000])
            self.assertEqual(file.pread(10, len(data)), b"")
            self.assertEqual(file.pread(10, len(data) - 3), data[-3:])

    def test_after_close_all_is_durable_and_the_check_is_clean(self):
        data = random.Random(2).randbytes(3 * MIB)
        with self.fs.open("/kept", "w") as file:
            file.write(data)
        self.fs.close()
        self.assertTrue(self.fs.closed)
        common.braid("check", *self.paths)
        with braid.FileSystem(self.paths) as fs, fs.open("kept") as file:
            self.assertEqual(file.read(), data)

    def test_many_ranges_go_at_once_in_both_directions(self):
        rng = random.Random(3)
        model = bytearray(20 * MIB)
        with self.fs.open("/ranges", "w+") as file:
            file.truncate(len(model))
            cuts = sorted(rng.sample(range(len(model)), 41))
            pieces = [(a, rng.randbytes(b - a)) for a, b in zip(cuts, cuts[1:])]
            rng.shuffle(pieces)
            for offset, data in pieces:
                model[offset : offset + len(data)] = data
            self.assertEqual(file.write_ranges(pieces), sum(len(d) for _, d in pieces))
            file.fsync()
            ranges = [(rng.randrange(len(model)), rng.choice([0, 1, 511, 4096, 70000, 5 * MIB])) for _ in range(50)]
            got = file.read_ranges(ranges)
            self.assertEqual([model[o : o + n] for o, n in ranges], got)
            buffers = [(o, bytearray(b"x" * n)) for o, n in ranges]
            counts = file.read_ranges_into(buffers)
            for (offset, buffer), n in zip(buffers, counts):
                there = model[offset : offset + len(buffer)]
                self.assertEqual((n, buffer[:n]), (len(there), there))

    def test_buffers_of_all_kinds_are_filled_in_place(self):
        data = random.Random(4).randbytes(MIB)
        with self.fs.open("/buffers", "w+") as file:
            file.pwrite(data, 0)
            aligned = braid.aligned_buffer(MIB)
            numbers = array.array("d", bytes(MIB))
            plain = bytearray(MIB)
            for buffer in [aligned, numbers, plain, memoryview(plain)[:]]:
                self.assertEqual(file.read_into(buffer, 0), MIB)
                self.assertEqual(bytes(memoryview(buffer).cast("B")), data)
            part = bytearray(MIB)
            self.assertEqual(file.read_into(memoryview(part)[100:200], 7), 100)
            self.assertEqual(part[99:201], b"\0" + data[7:107] + b"\0")
            self.assertEqual(file.pwrite(numbers, MIB), MIB)
            self.assertEqual(file.pread(MIB, MIB), data)

    def test_memory_behind_the_end_of_a_file_shows_nothing_of_the_device(self):
        with self.fs.open("/old", "w") as file:
            file.write(b"secret" * 100000)
            file.fsync()
        self.fs.unlink("/old")
        with self.fs.open("/short", "w+") as file:
            file.write(b"s" * 5000)
            file.fsync()
            for offset in [0, 4096]:
                buffer = bytearray(b"x" * 16384)
                n = file.read_into(buffer, offset)
                self.assertEqual(buffer[:n], b"s" * (5000 - offset))
                self.assertEqual(set(buffer[n:]) - set(b"\0x"), set())
        with self.fs.open("/cut", "w+", direct=True) as file:
            file.pwrite(b"s" * 16384, 0)
            file.fsync()
            file.truncate(5000)
            file.fsync()
            buffer = bytearray(b"x" * 16384)
            self.assertEqual(file.read_into(buffer, 4096), 904)
            self.assertEqual(set(buffer[904:]) - set(b"\0x"), set())

    def test_buffers_that_will_not_do_are_refused(self):
        with self.fs.open("/refused", "w+") as file:
            file.write(b"12345678")
            with self.assertRaisesRegex(BufferError, "read-only"):
                file.read_into(b"12345678", 0)
            with self.assertRaisesRegex(BufferError, "not contiguous"):
                file.read_into(memoryview(bytearray(8))[::2], 0)
            with self.assertRaises(TypeError):
                file.read_into("text", 0)
            shared = memoryview(bytearray(8))
            with self.assertRaisesRegex(ValueError, "overlap"):
                file.read_ranges_into([(0, shared[:5]), (0, shared[4:])])
            self.assertEqual(file.read_ranges_into([(0, shared[:4]), (4, shared[4:])]), [4, 4])
            self.assertEqual(shared, b"12345678")
            with self.assertRaises(ValueError):
                file.pwrite(b"x", 2**63)
            with self.assertRaises((ValueError, OverflowError)):
                file.pread(1, -1)

    def test_a_buffer_cannot_be_resized_while_it_is_read_into(self):
        # The buffer is held: Python refuses to move it.
        with self.fs.open("/held", "w+") as file:
            file.truncate(32 * MIB)
            file.pwrite(b"x" * (32 * MIB), 0)
            buffer = bytearray(32 * MIB)
            refused = []

            def grows():
                while not refused and not done.is_set():
                    try:
                        buffer.append(1)
                        del buffer[-1]
                    except BufferError as error:
                        refused.append(error)

            done = threading.Event()
            thread = threading.Thread(target=grows)
            thread.start()
            for _ in range(20):
                if refused:
                    break
                file.read_into(buffer, 0)
            done.set()
            thread.join()
            self.assertTrue(refused)


class Sequential(Native):
    def test_it_is_a_raw_file_for_the_io_module(self):
        with self.fs.open("/lines", "w") as file:
            writer = io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8")
            writer.writelines(f"line {n}\n" for n in range(1000))
            writer.flush()
            writer.detach().detach()
        with io.TextIOWrapper(io.BufferedReader(self.fs.open("/lines")), encoding="utf-8") as lines:
            self.assertEqual([int(line.split()[1]) for line in lines], list(range(1000)))
        self.assertTrue(lines.closed)

    def test_the_position_moves_as_that_of_a_file(self):
        with self.fs.open("/position", "w+") as file:
            self.assertEqual((file.write(b"hello world"), file.tell()), (11, 11))
            self.assertEqual((file.seek(-5, 2), file.read()), (6, b"world"))
            self.assertEqual((file.seek(0), file.read(5), file.read(0), file.tell()), (0, b"hello", b"", 5))
            self.assertEqual((file.seek(1, 1), file.readall()), (6, b"world"))
            with self.assertRaises(ValueError):
                file.seek(-1)
            self.assertEqual((file.seek(3), file.truncate(), file.stat().st_size), (3, 3, 3))
            self.assertEqual(file.pread(10, 0), b"hel")
        for _ in range(2):
            with self.fs.open("/position", "a") as file:
                file.write(b"+")
                file.flush()
        with self.fs.open("/position") as file:
            self.assertEqual(file.read(), b"hel++")

    def test_modes_are_those_of_open(self):
        for mode in ["", "rw", "rt", "w+t", "q", "r++", "rbb"]:
            with self.assertRaises(ValueError, msg=mode):
                self.fs.open("/modes", mode)
        with self.assertRaises(FileNotFoundError) as raised:
            self.fs.open("/modes", "r+")
        self.assertEqual(raised.exception.filename, "/modes")
        self.fs.open("/modes", "xb").close()
        with self.assertRaises(FileExistsError):
            self.fs.open("/modes", "x")
        with self.fs.open("/modes", "w") as file:
            file.write(b"text")
            for read in [lambda: file.read(), lambda: file.pread(1, 0)]:
                with self.assertRaisesRegex(OSError, "not open for reading") as raised:
                    read()
                self.assertEqual(raised.exception.errno, errno.EBADF)
        with self.fs.open("/modes") as file:
            with self.assertRaisesRegex(OSError, "not open for writing"):
                file.write(b"x")
            self.assertRaises(OSError, file.fileno)
        self.assertTrue(file.closed)
        self.assertRaises(ValueError, file.read)
        file.close()
        self.fs.open("/modes", "w").close()
        self.assertEqual(self.fs.stat("/modes").st_size, 0)

    def test_direct_and_synchronous_writes_arrive(self):
        data = random.Random(5).randbytes(MIB)
        for options in [{"direct": True}, {"sync": True}, {"direct": True, "sync": True}]:
            with self.fs.open("/direct", "w+", **options) as file:
                file.pwrite(data, 0)
                file.pwrite(b"odd", 4097)
                self.assertEqual(file.pread(MIB, 0), data[:4097] + b"odd" + data[4100:])

    def test_a_file_that_nobody_closed_is_closed_with_its_object(self):
        file = self.fs.open("/dropped", "w")
        file.flock(fcntl.LOCK_EX)
        alive = weakref.ref(file)
        del file
        self.assertIsNone(alive())
        with self.fs.open("/dropped") as other:
            other.flock(fcntl.LOCK_EX | fcntl.LOCK_NB)


class Names(Native):
    def test_directories_are_made_listed_and_removed(self):
        self.fs.mkdir("/d")
        self.fs.mkdir("d/e", 0o700)
        self.fs.open("/d/f", "w").close()
        self.fs.symlink("f", "/d/l")
        self.assertEqual(sorted(self.fs.listdir("/d")), ["e", "f", "l"])
        kinds = {e.name: (e.is_dir(), e.is_file(), e.is_symlink()) for e in self.fs.scandir("/d")}
        self.assertEqual(kinds, {"e": (True, False, False), "f": (False, True, False), "l": (False, False, True)})
        self.assertEqual(stat.S_IMODE(self.fs.stat("/d/e").st_mode), 0o700)
        with self.assertRaises(OSError) as raised:
            self.fs.rmdir("/d")
        self.assertEqual(raised.exception.errno, errno.ENOTEMPTY)
        self.assertRaises(FileExistsError, self.fs.mkdir, "/d")
        self.assertRaises(IsADirectoryError, self.fs.open, "/d")
        self.assertRaises(IsADirectoryError, self.fs.unlink, "/d")
        self.assertRaises(NotADirectoryError, self.fs.listdir, "/d/f")
        for name in ["f", "l"]:
            self.fs.unlink(f"/d/{name}")
        self.fs.rmdir("/d/e")
        self.fs.rmdir("/d")
        self.assertEqual(self.fs.listdir(), [])

    def test_a_large_directory_is_listed_whole(self):
        names = {f"file-{n:05}" for n in range(3000)}
        for name in names:
            self.fs.open(name, "w").close()
        self.assertEqual(sorted(self.fs.listdir()), sorted(names))
        self.assertEqual({entry.name for entry in self.fs.scandir()}, names)

    def test_renames_replace_exchange_or_refuse(self):
        for name in ["a", "b"]:
            with self.fs.open(name, "w") as file:
                file.write(name.encode())

        def contents(name):
            with self.fs.open(name) as file:
                return file.read()

        self.assertRaises(FileExistsError, self.fs.rename, "a", "b", replace=False)
        self.fs.rename("a", "b", exchange=True)
        self.assertEqual((contents("a"), contents("b")), (b"b", b"a"))
        self.fs.rename("a", "b")
        self.assertEqual((self.fs.listdir(), contents("b")), (["b"], b"b"))
        self.fs.link("b", "c")
        self.assertEqual(self.fs.stat("c").st_nlink, 2)

    def test_symbolic_links_are_followed_inside_of_the_file_system(self):
        self.fs.mkdir("/real")
        self.fs.open("/real/file", "w").close()
        self.fs.symlink("real", "/relative")
        self.fs.symlink("/real", "/absolute")
        self.fs.symlink("../../../real/../real", "/real/up")
        self.fs.symlink("loop", "/loop")
        number = self.fs.stat("/real/file").st_ino
        for path in ["/relative/file", "absolute/file", "/real/up/file", "real/./../real//file", "/../real/file"]:
            self.assertEqual(self.fs.stat(path).st_ino, number, path)
        self.assertEqual(self.fs.readlink("/absolute"), "/real")
        self.assertTrue(stat.S_ISLNK(self.fs.stat("/absolute", follow_symlinks=False).st_mode))
        with self.assertRaises(OSError) as raised:
            self.fs.stat("/loop")
        self.assertEqual(raised.exception.errno, errno.ELOOP)
        # Through a link that leads nowhere a file is created where it leads.
        self.fs.symlink("/real/new", "/dangling")
        self.assertFalse(self.fs.exists("/dangling"))
        self.fs.open("/dangling", "w").close()
        self.assertTrue(self.fs.exists("/real/new"))
        self.fs.unlink("/dangling")
        self.assertTrue(self.fs.exists("/real/new"))
        self.assertRaises(NotADirectoryError, self.fs.stat, "/real/file/below")
        self.assertRaises(FileNotFoundError, self.fs.stat, "/none/below")
        with self.assertRaises(OSError) as raised:
            self.fs.rename("/", "/elsewhere")
        self.assertEqual(raised.exception.errno, errno.EBUSY)

    def test_attributes_are_set_and_seen(self):
        old = os.umask(0o027)
        try:
            self.fs.open("/a", "w").close()
        finally:
            os.umask(old)
        st = self.fs.stat("/a")
        self.assertEqual(stat.S_IMODE(st.st_mode), 0o640)
        self.assertEqual((st.st_uid, st.st_gid), (os.geteuid(), os.getegid()))
        self.fs.chmod("/a", 0o604)
        self.fs.chown("/a", 7, -1)
        self.fs.utime("/a", ns=(-1, 1_234_567_890_123_456_789))
        self.fs.truncate("/a", 12345)
        self.fs.utime("/a", ns=(-1, 1_234_567_890_123_456_789))
        st = self.fs.stat("/a")
        self.assertEqual(stat.S_IMODE(st.st_mode), 0o604)
        self.assertEqual((st.st_uid, st.st_gid, st.st_size), (7, os.getegid(), 12345))
        self.assertEqual((st.st_atime_ns, st.st_mtime_ns), (-1, 1_234_567_890_123_456_789))
        self.assertAlmostEqual(st.st_mtime, 1_234_567_890.123, 2)

    def test_names_of_any_bytes(self):
        odd = os.fsdecode(b"\xff\xfe\n name")
        self.fs.open(odd, "w").close()
        self.assertEqual(self.fs.listdir(), [odd])
        self.assertEqual(self.fs.scandir()[0].name, odd)
        self.assertRaises(ValueError, self.fs.open, "a\0b", "w")
        with self.assertRaises(OSError) as raised:
            self.fs.open("n" * 256, "w")
        self.assertEqual(raised.exception.errno, errno.ENAMETOOLONG)


class Locks(Native):
    def test_flock_excludes_other_files_and_nodes(self):
        self.fs.open("/l", "w").close()
        with braid.FileSystem(self.paths) as other:
            for fs in [self.fs, other]:
                with self.fs.open("/l") as first, fs.open("/l") as second:
                    first.flock(fcntl.LOCK_EX)
                    with self.assertRaises(BlockingIOError):
                        second.flock(fcntl.LOCK_SH | fcntl.LOCK_NB)
                    waited = threading.Thread(target=second.flock, args=[fcntl.LOCK_EX])
                    waited.start()
                    time.sleep(0.2)
                    self.assertTrue(waited.is_alive())
                    first.flock(fcntl.LOCK_UN)
                    waited.join(30)
                    self.assertFalse(waited.is_alive())
                # Closing drops it.
                with self.fs.open("/l") as third:
                    third.flock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_byte_ranges_belong_to_the_open_file(self):
        with self.fs.open("/l", "w+") as first, self.fs.open("/l", "r+") as second, self.fs.open("/l") as third:
            first.lockf(fcntl.LOCK_EX, 10, 0)
            second.lockf(fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
            third.close()
            with self.assertRaises(BlockingIOError):
                second.lockf(fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 9)
            first.lockf(fcntl.LOCK_UN, 1, 9)
            second.lockf(fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 9)
            with self.assertRaises(ValueError):
                first.lockf(fcntl.LOCK_EX, 1, -1)
        with self.fs.open("/l") as reader:
            with self.assertRaisesRegex(OSError, "an exclusive lock needs"):
                reader.lockf(fcntl.LOCK_EX)

    def test_a_wait_ends_with_a_signal(self):
        def ring(*_):
            raise TimeoutError("rang")

        old = signal.signal(signal.SIGALRM, ring)
        try:
            with self.fs.open("/l", "w") as first, self.fs.open("/l") as second:
                first.flock(fcntl.LOCK_EX)
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with self.assertRaisesRegex(TimeoutError, "rang"):
                    second.flock(fcntl.LOCK_EX)
                first.flock(fcntl.LOCK_UN)
                # The wait is over: nobody has the lock.
                first.flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            signal.signal(signal.SIGALRM, old)


class Lives(common.PoolTest):
    def test_a_pool_is_opened_by_name_by_members_or_by_what_is_known_of_it(self):
        for source in [self.pool, self.paths, braid.Pool(self.pool)]:
            with braid.FileSystem(source) as fs:
                self.assertEqual(fs.name, "safe")

    def test_a_closed_file_system_says_so(self):
        fs = braid.FileSystem(self.paths)
        file = fs.open("/a", "w")
        file.write(b"text")
        fs.close()
        fs.close()
        self.assertTrue(file.closed)
        for call in [fs.listdir, fs.sync, file.read, file.tell]:
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
        file.close()
        with self.assertRaises(ValueError):
            fs.__enter__()

    def test_more_nodes_than_slots_are_refused(self):
        nodes = [braid.FileSystem(self.paths) for _ in range(self.nodes)]
        with self.assertRaises(OSError) as raised:
            braid.FileSystem(self.paths)
        self.assertIn("slot", str(raised.exception))
        for node in nodes:
            node.close()

    def test_a_node_that_nobody_closed_leaves_with_its_object_and_with_its_process(self):
        fs = braid.FileSystem(self.paths)
        fs.open("/a", "w").close()
        del fs
        self.assertEqual(braid.Pool(self.paths).nodes, [])
        script = "import sys, braid; fs = braid.FileSystem(sys.argv[1:]); fs.open('/b', 'w').write(b'1')"
        subprocess.run([sys.executable, "-c", script, *self.paths], check=True)
        self.assertEqual(braid.Pool(self.paths).nodes, [])
        with braid.FileSystem(self.paths) as fs, fs.open("/b") as file:
            self.assertEqual(file.read(), b"1")

    def test_read_only_changes_nothing(self):
        with braid.FileSystem(self.paths) as fs:
            fs.open("/a", "w").close()
        with braid.FileSystem(self.paths, read_only=True) as fs:
            self.assertEqual(fs.listdir(), ["a"])
            for change in [lambda: fs.mkdir("/d"), lambda: fs.open("/a", "r+"), lambda: fs.unlink("/a")]:
                with self.assertRaises(OSError) as raised:
                    change()
                self.assertEqual(raised.exception.errno, errno.EROFS)

    def test_other_threads_run_while_one_reads(self):
        with braid.FileSystem(self.paths) as fs, fs.open("/big", "w+") as file:
            file.truncate(64 * MIB)
            file.pwrite(bytes(64 * MIB), 0)
            file.fsync()
            reads, others, done = 0, 0, threading.Event()

            def count():
                nonlocal others
                while not done.is_set():
                    others += 1
                    time.sleep(0)

            # Otherwise the interpreter would hand over by itself in the middle of what this thread does in Python.
            interval = sys.getswitchinterval()
            sys.setswitchinterval(60)
            thread = threading.Thread(target=count)
            buffer = braid.aligned_buffer(64 * MIB)
            try:
                thread.start()
                before = others
                for _ in range(5):
                    file.read_into(buffer, 0)
                    reads += 1
                self.assertGreater(others - before, reads)
            finally:
                done.set()
                sys.setswitchinterval(interval)
                thread.join()

    def test_memory_has_a_least(self):
        with self.assertRaisesRegex(ValueError, "at least"):
            braid.FileSystem(self.paths, memory=1)
        with braid.FileSystem(self.paths, memory=64 * MIB) as fs:
            size, free = fs.space()
            self.assertTrue(0 < free <= size)


if __name__ == "__main__":
    common.main()
