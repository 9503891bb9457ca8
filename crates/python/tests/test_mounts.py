"""`braid.mounts` and `braid.find_mount`: pools in the table of mounts."""

import unittest

import braid
import common
from braid._mounts import Mount, parse

TABLE = r"""22 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw
51 28 0:50 / /scratch rw,nosuid,nodev shared:30 - fuse.braid scratch rw,user_id=0
52 28 0:51 / /with\040space\134and\040more rw - fuse.braid two\040words rw
53 28 0:50 /part /bound rw - fuse.braid scratch rw
54 28 0:53 / /again rw - fuse.braid scratch rw
55 28 0:54 / /other rw - fuse.other scratch rw
"""


class TheTable(unittest.TestCase):
    def test_it_has_the_pools_and_nothing_else(self):
        self.assertEqual(
            parse(TABLE),
            [
                Mount("scratch", "/scratch"),
                Mount("two words", "/with space\\and more"),
                Mount("scratch", "/again"),
            ],
        )

    def test_a_pool_that_is_not_mounted_is_named_with_what_to_do(self):
        with self.assertRaisesRegex(FileNotFoundError, "braid mount nobody DIR") as raised:
            braid.find_mount("nobody")
        self.assertIn("native=True", str(raised.exception))


if __name__ == "__main__":
    common.main()
