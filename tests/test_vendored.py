"""tinymcp.py alone in an empty folder passes the section tests, without site."""

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


class Vendored(unittest.TestCase):
    def test_section_tests_pass_beside_the_lone_file(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(FILE, folder)
            for section in SECTIONS:
                if (TESTS / f"test_{section}.py").exists():
                    shutil.copy(TESTS / f"test_{section}.py", folder)
            done = subprocess.run(
                [sys.executable, "-S", "-m", "unittest"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
            )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertRegex(done.stderr, r"Ran [1-9]\d* tests")
        self.assertRegex(done.stderr, r"\nOK\b")


if __name__ == "__main__":
    unittest.main()
