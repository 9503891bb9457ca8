"""fsspec's own suite (fsspec.tests.abstract), natively. It needs pytest, and Debian's fsspec lacks it: scripts/setup.sh
fetches both."""

import os

import common
import fsspec.tests.abstract as abstract
import pytest
from braid.fsspec import BraidFileSystem


class OnAPool(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("pool")
        paths = []
        for n in range(2):
            paths.append(str(folder / f"disk{n}"))
            with open(paths[-1], "wb") as disk:
                disk.truncate(128 << 20)
        common.braid("create", "safe", *paths)
        fs = BraidFileSystem(pool="safe", members=tuple(paths), native=True, skip_instance_cache=True)
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self, fs):
        return "/test"

    @pytest.fixture(autouse=True)
    def empty(self, fs):
        yield
        if fs.exists("/test"):
            fs.rm("/test", recursive=True)


class TestCopy(abstract.AbstractCopyTests, OnAPool):
    pass


class TestGet(abstract.AbstractGetTests, OnAPool):
    pass


class TestPut(abstract.AbstractPutTests, OnAPool):
    pass


if hasattr(abstract, "AbstractPipeTests"):

    class TestPipe(abstract.AbstractPipeTests, OnAPool):
        pass


if hasattr(abstract, "AbstractOpenTests"):

    class TestOpen(abstract.AbstractOpenTests, OnAPool):
        pass
