"""tinymcp.py alone in an empty folder passes the section tests, without site."""

import atexit
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tinymcp

FILE = pathlib.Path(sys.modules[tinymcp.Server.__module__].__file__)
TESTS = pathlib.Path(__file__).resolve().parent
SECTIONS = "json schema registry dispatch streams http endpoint server".split()


class Lone:
    """The run in the empty folder. It begins when the tests are loaded: on a second
    processor it costs no time of its own."""

    process = None

    @classmethod
    def start(cls):
        cls.folder = tempfile.TemporaryDirectory()
        atexit.register(cls.folder.cleanup)
        shutil.copy(FILE, cls.folder.name)
        for section in SECTIONS:
            shutil.copy(TESTS / f"test_{section}.py", cls.folder.name)
        cls.output = tempfile.TemporaryFile("w+")
        cls.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "unittest"],
            cwd=cls.folder.name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=cls.output,
            preexec_fn=lambda: os.nice(5),  # the tests of this process come first
        )
        atexit.register(cls.process.kill)


def load_tests(loader, tests, pattern):
    Lone.start()
    return tests


class Vendored(unittest.TestCase):
    def test_section_tests_pass_beside_the_lone_file(self):
        code = Lone.process.wait(300)
        with Lone.output as output:
            output.seek(0)
            told = output.read()
        self.assertEqual(code, 0, told[-4000:])
        self.assertRegex(told, r"Ran [1-9]\d* tests")
        self.assertRegex(told, r"\nOK\b")


if __name__ == "__main__":
    unittest.main()
