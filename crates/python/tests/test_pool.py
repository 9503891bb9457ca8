"""`braid.Pool`: what `braid status` knows."""

import errno
import json
import os
import uuid

import braid
import common


class APool(common.PoolTest):
    layout = ("--mirror", "2")

    def test_it_says_what_status_says(self):
        status = json.loads(common.braid("status", "--json", *self.paths))["pool"]
        for pool in [braid.Pool(self.paths), braid.Pool(self.pool), braid.Pool(status["uuid"])]:
            self.assertEqual(pool.name, "safe")
            self.assertEqual(uuid.UUID(pool.uuid), uuid.UUID(status["uuid"]))
            for ours, theirs in [("size", "size"), ("fs_size", "fs_size"), ("fs_free", "fs_free"),
                                 ("block_size", "block_size"), ("stripe_unit", "stripe_unit"),
                                 ("stripe_width", "stripe_width"), ("node_slots", "node_slots"),
                                 ("epoch", "epoch"), ("inodes", "inodes")]:
                self.assertEqual(getattr(pool, ours), status[theirs], ours)
            self.assertTrue(pool.redundant)
            self.assertEqual(sorted(m.path for m in pool.members), sorted(self.paths))
            self.assertEqual([m.state for m in pool.members], ["active", "active"])
            self.assertEqual([m.size for m in pool.members], [self.size] * 2)
            self.assertEqual(pool.nodes, [])

    def test_a_member_that_is_not_there_is_missing(self):
        pool = braid.Pool(self.paths[1:])
        self.assertEqual([m.state for m in pool.members], ["missing", "active"])
        self.assertEqual(pool.members[0].path, self.paths[0])
        self.assertEqual(pool.paths, self.paths[1:])

    def test_a_node_of_it_is_seen(self):
        with braid.FileSystem(self.paths) as fs:
            [node] = braid.Pool(self.paths).nodes
            self.assertEqual((node.slot, node.pid, node.state), (fs.slot, os.getpid(), "alive"))
            self.assertIn("native", node.mount_point)
        self.assertEqual(braid.Pool(self.paths).nodes, [])

    def test_what_is_no_pool_is_refused_with_advice(self):
        with self.assertRaisesRegex(FileNotFoundError, "braid scan"):
            braid.Pool("nobody")
        with self.assertRaisesRegex(FileNotFoundError, "nowhere: no such device"):
            braid.Pool("/nowhere")
        plain = os.path.join(self.folder, "plain")
        with open(plain, "wb") as file:
            file.truncate(1 << 20)
        with self.assertRaises(OSError) as raised:
            braid.Pool(plain)
        self.assertIn(plain, str(raised.exception))
        with self.assertRaises(ValueError):
            braid.Pool([])
        for kind in [braid.Pool, braid.FileSystem]:
            with self.assertRaises(TypeError):
                kind(3)

    def test_devices_that_may_not_be_opened_are_named_with_advice(self):
        if os.geteuid() != 0:
            return
        groups, group = os.getgroups(), os.getegid()
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
        try:
            os.environ["BRAID_DEVICES"] = ""
            for kind in [braid.Pool, braid.FileSystem]:
                with self.assertRaisesRegex(PermissionError, "disk0.*use a mount"):
                    kind(self.paths)
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)


class AStripe(common.PoolTest):
    def test_without_a_member_it_is_not_opened(self):
        with self.assertRaises(OSError) as raised:
            braid.FileSystem(self.paths[:1])
        self.assertEqual(raised.exception.errno, errno.ENODEV)
        self.assertIn("disk1", str(raised.exception))


if __name__ == "__main__":
    common.main()
