"""`braid.fsspec`: through a mount, and natively."""

import errno
import multiprocessing
import os
import pickle
import random
import shutil

import braid
import common
import fsspec
from braid.fsspec import BraidFileSystem
from common import MIB


def reads_in_worker(fs, path, results):
    results.put((os.getpid(), fs.cat_file(path)))


class Both:
    """What holds for both kinds. `self.fs` is one, `self.options` make it."""

    def test_contents_go_in_and_out(self):
        fs = self.fs
        data = random.Random(1).randbytes(3 * MIB + 7)
        fs.pipe_file("/deep/er/file", data)
        self.assertEqual(fs.cat_file("/deep/er/file"), data)
        self.assertEqual(fs.cat("/deep/er/file"), data)
        for start, end in [(5, 10), (None, 7), (-7, None), (10, -10), (0, 0), (len(data) - 2, len(data) + 9), (20, 10)]:
            self.assertEqual(fs.cat_file("/deep/er/file", start, end), data[start:end] if end is None or end < 0 or end >= (start or 0) else b"")
        with fs.open("/deep/er/file", "rb") as file:
            file.seek(MIB)
            self.assertEqual(file.read(100), data[MIB : MIB + 100])
            self.assertEqual(file.tell(), MIB + 100)
            self.assertEqual(file.size, len(data))
        with fs.open("/text", "w") as file:
            file.writelines(["one\n", "two\n"])
        with fs.open("/text", "a") as file:
            file.write("three\n")
        with fs.open("/text") as file:
            self.assertEqual([line.strip() for line in file], [b"one", b"two", b"three"])
        with fs.open("/text", "rt") as file:
            self.assertEqual(file.read(), "one\ntwo\nthree\n")

    def test_many_ranges_of_many_files(self):
        fs = self.fs
        rng = random.Random(2)
        files = {f"/r{n}": rng.randbytes(MIB) for n in range(3)}
        for path, data in files.items():
            fs.pipe_file(path, data)
        wanted = [(rng.choice(list(files)), rng.randrange(MIB), rng.randrange(1, 100_000)) for _ in range(60)]
        got = fs.cat_ranges([p for p, _, _ in wanted], [s for _, s, _ in wanted], [s + n for _, s, n in wanted])
        self.assertEqual(got, [files[p][s : s + n] for p, s, n in wanted])
        self.assertEqual(fs.cat_ranges(["/r0", "/r1"], 0, 4), [files["/r0"][:4], files["/r1"][:4]])
        self.assertEqual(fs.cat_ranges(["/r0"], [-3], [None]), [files["/r0"][-3:]])
        there, gone = fs.cat_ranges(["/r0", "/gone"], [0, 0], [1, 1])
        self.assertEqual(there, files["/r0"][:1])
        self.assertIsInstance(gone, FileNotFoundError)
        with self.assertRaises(FileNotFoundError):
            fs.cat_ranges(["/r0", "/gone"], [0, 0], [1, 1], on_error="raise")

    def test_names_are_made_listed_found_and_removed(self):
        fs = self.fs
        fs.makedirs("/a/b", exist_ok=True)
        self.assertRaises(FileExistsError, fs.makedirs, "/a/b")
        self.assertRaises(FileExistsError, fs.mkdir, "/a")
        fs.pipe({"/a/1": b"1", "/a/b/2": b"22"})
        self.assertEqual(fs.ls("/a", detail=False), ["/a/1", "/a/b"])
        infos = {info["name"]: (info["type"], info["size"]) for info in fs.ls("braid://safe/a")}
        self.assertEqual(infos, {"/a/1": ("file", 1), "/a/b": ("directory", 0)})
        self.assertEqual(fs.find("/"), ["/a/1", "/a/b/2"])
        self.assertEqual(sorted(fs.glob("/a/*/*")), ["/a/b/2"])
        self.assertEqual(fs.du("/a"), 3)
        self.assertTrue(fs.isdir("/a") and fs.isfile("/a/1") and not fs.exists("/a/1/x") and not fs.exists("/x"))
        fs.copy("/a/1", "/c/d/1")
        fs.mv("/c/d/1", "/c/d/2")
        self.assertEqual((fs.ls("/c/d", detail=False), fs.cat("/c/d/2")), (["/c/d/2"], b"1"))
        self.assertRaises(OSError, fs.rm, "/a")
        fs.rm("/a", recursive=True)
        fs.rm(["/c/d/2"])
        self.assertEqual(fs.find("/"), [])
        self.assertRaises(FileNotFoundError, fs.ls, "/a")
        self.assertRaises(FileNotFoundError, fs.rm, "/a")

    def test_a_tree_is_removed_without_what_its_links_lead_to(self):
        self.fs.pipe_file("/kept/file", b"kept")
        self.fs.makedirs("/tree")
        self.link("/kept", "/tree/link")
        self.assertEqual(self.fs.info("/tree/link")["islink"], True)
        self.fs.rm("/tree", recursive=True)
        self.assertEqual(self.fs.find("/"), ["/kept/file"])

    def test_files_come_from_and_go_to_the_local_file_system(self):
        local = os.path.join(self.folder, "local")
        os.makedirs(os.path.join(local, "sub"))
        for name, data in [("x", b"x" * MIB), ("sub/y", b"y")]:
            with open(os.path.join(local, name), "wb") as file:
                file.write(data)
        self.fs.put(local + "/", "/up/", recursive=True)
        self.assertEqual(self.fs.find("/up"), ["/up/sub/y", "/up/x"])
        self.fs.get("/up/", os.path.join(self.folder, "down") + "/", recursive=True)
        with open(os.path.join(self.folder, "down", "x"), "rb") as file:
            self.assertEqual(file.read(), b"x" * MIB)

    def test_a_transaction_shows_all_files_at_its_end_or_none(self):
        fs = self.fs
        with fs.transaction:
            with fs.open("/t", "wb") as file:
                file.write(b"whole")
            self.assertFalse(fs.exists("/t"))
        self.assertEqual(fs.cat("/t"), b"whole")
        with self.assertRaises(KeyError):
            with fs.transaction:
                with fs.open("/u", "wb") as file:
                    file.write(b"half")
                raise KeyError
        self.assertEqual(fs.ls("/", detail=False), ["/t"])

    def test_objects_are_pickled_and_used_by_other_processes(self):
        self.fs.pipe_file("/shared", b"contents")
        # One of these is the same object (fsspec keeps instances); a worker that was spawned has its own.
        again = pickle.loads(pickle.dumps(self.fs))
        self.assertEqual(again.cat("/shared"), b"contents")
        with self.fs.open("/shared") as file:
            file.read(3)
            with pickle.loads(pickle.dumps(file)) as copy:
                self.assertEqual(copy.read(), b"tents")
        for method in self.methods:
            context = multiprocessing.get_context(method)
            results = context.Queue()
            worker = context.Process(target=reads_in_worker, args=(self.fs, "/shared", results))
            worker.start()
            pid, data = results.get(timeout=100)
            worker.join()
            results.close()
            results.join_thread()
            self.assertEqual((pid, data, worker.exitcode), (worker.pid, b"contents", 0), method)
        self.assertEqual(self.fs.cat("/shared"), b"contents")

    def test_urls_name_the_pool(self):
        fs, path = fsspec.core.url_to_fs("braid://safe/a/../b", **self.url_options)
        self.assertIs(type(fs), BraidFileSystem)
        self.assertEqual((fs.pool, path), ("safe", "/b"))
        with fsspec.open("braid://safe/by-url", "wb", **self.url_options) as file:
            file.write(b"url")
        self.assertEqual(self.fs.cat("/by-url"), b"url")
        self.assertEqual(fs.unstrip_protocol("/by-url"), "braid://safe/by-url")
        self.assertEqual(BraidFileSystem._strip_protocol("/../../etc/passwd"), "/etc/passwd")
        self.assertEqual(BraidFileSystem._strip_protocol("braid://safe"), "/")
        if fs is not self.fs:
            fs.close()


class ThroughAMount(Both, common.PoolTest):
    methods = ["fork", "spawn"]

    def setUp(self):
        super().setUp()
        BraidFileSystem.clear_instance_cache()
        self.folder_of_mount = self.mount()
        self.url_options = {}
        self.fs = fsspec.filesystem("braid", pool="safe")

    def link(self, target, path):
        os.symlink(self.folder_of_mount + target, self.folder_of_mount + path)

    def test_the_mount_is_found_and_no_slot_is_taken(self):
        self.fs.pipe_file("/there", b"1")
        self.assertEqual(os.listdir(self.folder_of_mount), ["there"])
        self.assertEqual(len(braid.Pool(self.paths).nodes), 1)
        named = BraidFileSystem(mount=self.folder_of_mount)
        self.assertEqual(named.cat("/there"), b"1")

    def test_copies_of_the_members_are_not_joined_beside_the_mount(self):
        self.fs.pipe_file("/there", b"1")
        copies = [path + ".copy" for path in self.paths]
        for path, copy in zip(self.paths, copies):
            shutil.copyfile(path, copy)
            os.chmod(copy, 0o600)
        with self.assertRaisesRegex(OSError, f"mounted on {self.folder_of_mount} from other") as raised:
            braid.FileSystem(copies)
        self.assertEqual(raised.exception.errno, errno.EBUSY)
        # Those that are mounted may be joined.
        with braid.FileSystem(self.paths) as fs:
            self.assertEqual(fs.listdir(), ["there"])

    def test_nothing_is_written_where_the_pool_is_not_mounted_any_more(self):
        named = BraidFileSystem(mount=self.folder_of_mount)
        self.fs.pipe_file("/there", b"1")
        common.braid("unmount", self.folder_of_mount)
        for fs, advice in [(self.fs, "braid mount safe DIR"), (named, "braid mount NAME")]:
            for call in [lambda: fs.pipe_file("/lost", b"2"), lambda: fs.ls("/"), lambda: fs.exists("/there")]:
                with self.assertRaisesRegex(OSError, advice) as raised:
                    call()
                self.assertEqual(raised.exception.errno, errno.ENODEV)
        self.assertEqual(os.listdir(self.folder_of_mount), [])
        common.braid("mount", *self.paths, self.folder_of_mount)
        self.assertEqual((self.fs.cat("/there"), named.cat("/there")), (b"1", b"1"))


class Natively(Both, common.PoolTest):
    methods = ["spawn", "forkserver"]

    def setUp(self):
        super().setUp()
        BraidFileSystem.clear_instance_cache()
        self.url_options = {"native": True}
        self.fs = fsspec.filesystem("braid", pool="safe", native=True)
        self.addCleanup(self.fs.close)

    def link(self, target, path):
        self.fs._on.fs.symlink(target, path)

    def test_it_takes_a_slot_until_it_is_closed(self):
        self.assertEqual([n.pid for n in braid.Pool(self.paths).nodes], [os.getpid()])
        self.fs.pipe_file("/a", b"1")
        self.fs.close()
        self.assertEqual(braid.Pool(self.paths).nodes, [])
        self.assertEqual(self.fs.cat("/a"), b"1")

    def test_a_forked_child_is_refused_with_advice(self):
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                said = str(self.fs.ls("/"))
            except OSError as error:
                said = str(error)
            os.write(into, said.encode())
            os._exit(0)
        os.close(into)
        with os.fdopen(out) as text:
            self.assertIn("spawn", text.read())
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.fs.ls("/"), [])

    def test_members_may_be_named(self):
        del os.environ["BRAID_DEVICES"]
        self.fs.close()
        fs = BraidFileSystem(members=self.paths, native=True)
        fs.pipe_file("/a", b"1")
        self.assertEqual(fs.cat("/a"), b"1")
        fs.close()


class Refused(common.PoolTest):
    def test_what_cannot_be_is_refused_with_advice(self):
        BraidFileSystem.clear_instance_cache()
        with self.assertRaisesRegex(FileNotFoundError, "braid mount safe DIR"):
            fsspec.filesystem("braid", pool="safe")
        with self.assertRaisesRegex(FileNotFoundError, "braid scan"):
            fsspec.filesystem("braid", pool="nobody", native=True)
        with self.assertRaisesRegex(ValueError, "name the pool"):
            fsspec.filesystem("braid")
        with self.assertRaisesRegex(ValueError, "native=True uses no mount"):
            fsspec.filesystem("braid", pool="safe", native=True, mount="/tmp")
        with self.assertRaisesRegex(ValueError, "are for native=True"):
            fsspec.filesystem("braid", pool="safe", members=self.paths)
        with self.assertRaisesRegex(FileNotFoundError, "no pool is mounted"):
            fsspec.filesystem("braid", mount=self.folder)


# As the entry point of an installed package does it (pyproject.toml).
fsspec.register_implementation("braid", "braid.fsspec.BraidFileSystem")

if __name__ == "__main__":
    common.main()
