"""Tests that run in the second process are reported as if they ran in the first."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

from . import beside

HERE = pathlib.Path(__file__).resolve().parent
MANY = """
import unittest
class Many(unittest.TestCase):
    pass
for n in range(300):
    setattr(Many, f"test_{n}", lambda self: None)
"""
OUTCOMES = """
import os, unittest
class Good(unittest.TestCase):
    def test_good(self):
        print("noise")
    @unittest.skip("no reason")
    def test_skipped(self):
        pass
class Bad(unittest.TestCase):
    def test_failure(self):
        self.assertEqual(1, 2, "one and two")
    def test_error(self):
        raise KeyError("the key")
    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(n, 1)
class Never(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError("nothing set up")
    def test_never(self):
        pass
"""


@unittest.skipIf(beside.processors() < 2, "there is one process only")
class BesideTest(unittest.TestCase):
    def run_tests(self, code, *words):
        with tempfile.TemporaryDirectory() as folder:
            tests = pathlib.Path(folder, "tests")
            tests.mkdir()
            for name in ("__init__.py", "beside.py"):
                shutil.copy(HERE / name, tests)
            (tests / "test_many.py").write_text(MANY)
            (tests / "test_cli.py").write_text(textwrap.dedent(code))
            child = subprocess.run(
                [sys.executable, "-m", "unittest", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": ""},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )
        told = child.stderr.splitlines(True)
        return child.returncode, "".join(t for t in told if "test_many" not in t)

    def test_every_outcome_by_its_name(self):
        code, told = self.run_tests(OUTCOMES, "-v")
        self.assertEqual(code, 1)
        self.assertIn("Ran 306 tests", told)
        self.assertIn("skipped=1", told)
        self.assertIn("one and two", told)
        self.assertIn("KeyError: 'the key'", told)
        self.assertIn("OSError: nothing set up", told)
        self.assertEqual(told.count("0 != 1") + told.count("2 != 1"), 2)
        self.assertRegex(told, r"FAIL: test_failure \(tests\.test_cli\.Bad")
        self.assertRegex(told, r"test_good \(tests\.test_cli\.Good.* ok\n")
        self.assertEqual(told.count("noise"), 1)  # told of the one that did not run

    def test_a_process_that_dies_is_an_error_of_the_tests_that_it_owes(self):
        code, told = self.run_tests(
            """
            import os, sys, unittest
            class Deadly(unittest.TestCase):
                def test_a(self):
                    pass
                def test_b(self):
                    print("last words", file=sys.stderr, flush=True)
                    os._exit(0)
                def test_c(self):
                    pass
            """
        )
        self.assertEqual(code, 1)
        self.assertIn("FAILED (errors=2)", told)
        self.assertIn("it did not run: last words", told)

    def test_few_tests_need_no_second_process(self):
        code, told = self.run_tests(OUTCOMES, "-k", "good")
        self.assertEqual((code, "Ran 1 test" in told), (0, True), told)


if __name__ == "__main__":
    unittest.main()
