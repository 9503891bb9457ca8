"""The type stubs name what the compiled part has, with the same parameters."""

import ast
import inspect
import os
import unittest

import braid
import common
from braid import _braid

STUB = os.path.join(os.path.dirname(braid.__file__), "_braid.pyi")


def public(names):
    return {name for name in names if not name.startswith("_")}


def parameters(node):
    args = node.args
    return [arg.arg for arg in args.posonlyargs + args.args + args.kwonlyargs if arg.arg not in ("self", "cls")]


class TheStubs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(STUB) as file:
            cls.tree = ast.parse(file.read())
        cls.classes = {node.name: node for node in cls.tree.body if isinstance(node, ast.ClassDef)}

    def test_the_same_classes(self):
        classes = {name for name, value in vars(_braid).items() if isinstance(value, type)}
        self.assertEqual(public(classes), set(self.classes))

    def test_the_same_members_with_the_same_parameters(self):
        for name, node in self.classes.items():
            real = getattr(_braid, name)
            stub = {}
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    stub[part.name] = part
                elif isinstance(part, ast.AnnAssign):
                    stub[part.target.id] = part
            self.assertEqual(public(vars(real)), public(stub), name)
            for member, part in stub.items():
                is_property = not isinstance(part, ast.FunctionDef) or any(
                    getattr(d, "id", None) == "property" for d in part.decorator_list
                )
                if is_property or member in ("__enter__", "__exit__"):
                    continue
                told = inspect.signature(real if member == "__init__" else getattr(real, member))
                names = [p for p in told.parameters if p != "self"]
                self.assertEqual(names, parameters(part), f"{name}.{member}")

    def test_all_that_is_public_has_a_docstring_here_or_in_the_stubs(self):
        for name, node in self.classes.items():
            self.assertTrue(ast.get_docstring(node), name)
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not part.name.startswith("__"):
                    self.assertTrue(getattr(getattr(_braid, name), part.name).__doc__, f"{name}.{part.name}")

    def test_the_package_says_that_it_is_typed_and_exports_what_it_lists(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(braid.__file__), "py.typed")))
        for name in braid.__all__:
            self.assertTrue(hasattr(braid, name), name)


if __name__ == "__main__":
    common.main()
