"""The package as it is installed, and interpreters and places that lack something."""

import contextlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import tinymcp

try:
    import tomllib
except ImportError:  # Python 3.9 and 3.10
    tomllib = None

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a Python that was built without some C library, or cut down for a board, lacks.
WITHOUT = """
import sys
for name in "ssl _ssl ctypes _ctypes sqlite3 curses multiprocessing bz2 lzma".split():
    sys.modules[name] = None
"""
SERVE = """
from tinymcp import Server
server = Server("probe")
@server.tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b
server.run()
"""
SERVE_HTTP = """
import asyncio
from tinymcp import Server
async def main():
    ready = asyncio.get_running_loop().create_future()
    served = Server("probe").serve_http(port=0, ready=ready.set_result)
    task = asyncio.ensure_future(served)
    reader, writer = await asyncio.open_connection(*(await ready)[0][:2])
    writer.write(b"GET /healthz HTTP/1.0\\r\\n\\r\\n")
    print((await reader.read()).split(b" ")[1].decode())
    writer.close()
    task.cancel()
asyncio.run(main())
"""
REQUESTS = (
    {
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"method": "tools/call", "params": {"name": "add", "arguments": {"a": 2, "b": 3}}},
)
INPUT = "".join(
    json.dumps({"jsonrpc": "2.0", "id": number, **request}) + "\n"
    for number, request in enumerate(REQUESTS, 1)
)


def python(*runs, cwd=ROOT, env=None, data=INPUT):
    """Runs each (code, options) in a Python of its own, side by side."""
    with contextlib.ExitStack() as stack:
        running = []
        for code, options in runs:
            process = subprocess.Popen(
                [sys.executable, *options, "-c", code],
                cwd=cwd,
                env=env,
                **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
                text=True,
            )
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process, (_, options) in zip(running, runs):
            out, err = process.communicate(data, 60)
            yield subprocess.CompletedProcess(options, process.returncode, out, err)


class Package(unittest.TestCase):
    @unittest.skipUnless(tomllib, "tomllib came with Python 3.11")
    def test_pyproject(self):
        with open(ROOT / "pyproject.toml", "rb") as file:
            pyproject = tomllib.load(file)
        project = pyproject["project"]
        self.assertEqual(project["name"], "tinymcp")
        self.assertEqual(project["requires-python"], ">=3.9")
        self.assertEqual(project["dependencies"], [])
        module, _, name = project["scripts"]["tinymcp"].partition(":")
        self.assertEqual(getattr(importlib.import_module(module), name), tinymcp.main)
        self.assertEqual(
            pyproject["tool"]["setuptools"]["dynamic"]["version"],
            {"attr": "tinymcp.tinymcp.__version__"},
        )

    def test_version(self):
        self.assertRegex(tinymcp.__version__, r"^\d+\.\d+\.\d+$")
        changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
        newest = re.search(r"^## .*?(\d+\.\d+\.\d+)", changes, re.MULTILINE)
        self.assertEqual(newest[1], tinymcp.__version__)

    def test_an_old_python(self):
        code = "import sys; sys.version_info = (3, 8, 1); import tinymcp"
        (done,) = python((code, []))
        text = "ImportError: tinymcp needs Python 3.9 or newer, this is 3.8"
        self.assertEqual(done.stderr.splitlines()[-1], text)

    def test_typed(self):
        self.assertTrue((ROOT / "tinymcp" / "py.typed").exists())


class Serves(unittest.TestCase):
    def assert_serves(self, done):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        replies = {r["id"]: r for r in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(replies[1]["result"]["protocolVersion"], "2025-11-25")
        self.assertEqual(replies[2]["result"]["content"][0]["text"], "5")

    def test_in_every_mode_of_python(self):
        """G05: no assert does work, no warning is raised."""
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + SERVE
        modes = (["-OO"], ["-X", "dev"], ["-W", "error"], ["-I", "-S"])
        for done in python(*((code, options) for options in modes)):
            with self.subTest(done.args):
                self.assert_serves(done)

    def test_without_the_optional_modules(self):
        """G01: a Python without ssl, ctypes and others serves stdio and HTTP."""
        looped = SERVE.replace("run()", "run(loop=True)")
        codes = (SERVE, looped, SERVE_HTTP)
        plain, loop, http = python(*((WITHOUT + code, ()) for code in codes))
        self.assert_serves(plain)
        self.assert_serves(loop)
        self.assertEqual((http.returncode, http.stdout), (0, "200\n"), http.stderr)

    def test_nothing_is_written_and_no_home_is_needed(self):
        """G04: a read-only folder, no HOME, no PATH, no locale."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o555)
            env = {"PYTHONPATH": str(ROOT), "TMPDIR": "/nonexistent"}
            (done,) = python((SERVE, ()), cwd=folder, env=env)
            self.assert_serves(done)
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
