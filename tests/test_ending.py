"""SIGTERM under load, and starting again after a kill -9."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

from tests.test_endpoint import Client, initialize, legacy, modern, request
from tests.test_field import META, PATIENCE, call, hello, parse
from tests.test_streams import HOME, POSIX, App, line

# What site loads is not ours, and may take longer than all else; coverage needs it.
SITE = [] if "COVERAGE_PROCESS_CONFIG" in os.environ else ["-S"]

SERVER = """
import os, sys, threading, time
from tinymcp import Context, Limits, Server
server = Server("ending", "1", limits=Limits(grace=5.0))

@server.tool
def slow(ctx: Context) -> str:
    ctx.info("entered")
    os.write(2, b"entered\\n")
    time.sleep(0.3)
    return "slow"

@server.tool
async def nap(ctx: Context) -> str:
    import asyncio
    os.write(2, b"entered\\n")
    await asyncio.sleep(0.3)
    return "napped"

server.run(*sys.argv[1:2], **eval(sys.argv[2]))
"""
LISTEN = {"notifications": {"toolsListChanged": True}}


def start(kind, **options):
    return subprocess.Popen(
        [sys.executable, *SITE, "-c", SERVER, kind, repr(options)],
        env={**os.environ, "PYTHONPATH": str(HOME)},
        stderr=subprocess.PIPE,
    )


def wait_for(process, *words):
    """Read its log until each word was there as often as it is given.

    Threads that print at once may share a line, so each occurrence counts; a process
    that stays silent is killed, which ends the wait with an error.
    """
    left = list(words)
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        while left:
            text = process.stderr.readline()
            if not text:
                raise AssertionError(f"it has ended before it said {left}")
            for word in set(left):
                for _ in range(min(text.count(word), left.count(word))):
                    left.remove(word)
    finally:
        watchdog.cancel()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(kind, **options):
    process = start(kind, **options)
    try:
        wait_for(process, b"serving on")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@unittest.skipUnless(POSIX, "POSIX signals")
class Terminated(unittest.TestCase):
    def ended(self, process):
        process.wait(PATIENCE)
        err = process.stderr.read()
        self.assertEqual(process.returncode, 0, err)
        self.assertNotIn(b"Traceback", err)
        self.assertNotIn(b"Exception ignored", err)

    def test_http_answers_what_it_has_accepted(self):
        port = free_port()
        with running("http", port=port) as process, contextlib.ExitStack() as stack:

            def client():
                return stack.enter_context(Client(port))

            first = client()
            first.send(initialize())
            session = first.reply().headers["mcp-session-id"]
            listener, stream = client(), client()
            listener.send(modern("subscriptions/listen", LISTEN, "l"))
            listener.head()
            listener.chunk()
            stream.send(request("GET", headers=[("Mcp-Session-Id", session)]))
            stream.head()
            calls = [client() for _ in range(6)]
            for n, each in enumerate(calls):
                name = ("slow", "nap")[n % 2]
                data = modern("tools/call", {"name": name}, n)
                if n == 5:
                    data = legacy(session, "tools/call", {"name": name}, n)
                each.send(data)
            silent = [client() for _ in range(5)]
            wait_for(process, *[b"entered"] * 6)
            process.send_signal(signal.SIGTERM)
            for n, each in enumerate(calls):
                reply = each.reply()
                self.assertEqual(reply.status, 200)
                self.assertEqual(reply.json["id"], n)
                self.assertFalse(reply.json["result"].get("isError"), reply.json)
            self.assertEqual([m["id"] for m in listener.messages()], ["l"])
            self.assertEqual([d for _, d in stream.events()], [])
            for each in silent:
                with contextlib.suppress(ConnectionError):
                    # Closed, or refused if it was accepted after the signal.
                    self.assertIn(each.file.read()[:12], (b"", b"HTTP/1.1 503"))
            self.ended(process)

    def test_stdio_answers_what_it_has_accepted(self):
        looped = SERVER.replace("server.run(*sys.argv[1:2], **eval(sys.argv[2]))", "")
        plain = looped.replace("async def", "def").replace("await asyncio", "time")
        with App(False, code=plain) as one, App(True, code=looped) as two:
            for app in (one, two):
                app.send(hello() + line("subscriptions/listen", LISTENING, "l"))
                app.send(call("slow", {}, 1) + call("nap", {}, 2))
            for app in (one, two):
                wait_for(app.process, b"entered", b"entered")
                app.process.send_signal(signal.SIGTERM)
            for app in (one, two):
                out = [parse(m) for m in app.process.stdout]
                self.ended(app.process)
                replies = {m["id"]: m for m in out if "id" in m}
                self.assertEqual(set(replies), {"i", "l", 1, 2})
                self.assertEqual(replies[1]["result"]["content"][0]["text"], "slow")

    def test_a_unix_socket_answers_what_it_has_accepted(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/s"
            with running("unix", unix=path) as process:
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(PATIENCE)
                    client.connect(path)
                    client.sendall(hello() + call("slow", {}, 1) + call("nap", {}, 2))
                    wait_for(process, b"entered", b"entered")
                    process.send_signal(signal.SIGTERM)
                    with client.makefile("rb") as file:
                        out = [json.loads(each) for each in file]
                    self.assertEqual(
                        {m["id"] for m in out if "id" in m}, {"i", 1, 2}, out
                    )
                self.ended(process)
            self.assertFalse(pathlib.Path(path).exists())


INTERRUPT = """
import asyncio, threading
from tinymcp import Server
server = Server("interrupt", "1")
proceed = threading.Event()

@server.tool(inline=True)
def inline() -> str:
    proceed.set()
    raise KeyboardInterrupt

@server.tool
def waits() -> str:
    return str(proceed.wait(20))
"""
ASYNC = """
@server.tool
async def stepped() -> str:
    raise KeyboardInterrupt

@server.tool
async def waited() -> str:
    await asyncio.sleep(0)
    raise KeyboardInterrupt
"""
LISTENING = {**LISTEN, "_meta": META}


class Interrupted(unittest.TestCase):
    def test_a_handler_that_raises_it_ends_no_other_call(self):
        """run() has SIGINT to itself: what comes out of a handler is no Ctrl-C."""
        for code, tools in (
            (INTERRUPT, []),
            (INTERRUPT + ASYNC, ["stepped", "waited"]),
        ):
            with App(code=code) as app:
                calls = [call(name, {}, name) for name in ["waits", *tools, "inline"]]
                out, err = app.end(hello() + b"".join(calls))
                replies = {m["id"]: m for m in map(json.loads, out.splitlines())}
                self.assertEqual(app.process.returncode, 0, err)
                for name in [*tools, "inline"]:
                    result = replies[name]["result"]
                    self.assertTrue(result["isError"])
                    self.assertIn("KeyboardInterrupt", result["content"][0]["text"])
                text = replies["waits"]["result"]["content"][0]["text"]
                self.assertEqual(text, "True")


LATE = """
import asyncio, contextlib, os, sys
from tinymcp import Context, Server

def say(text):
    os.write(2, text.encode() + b"\\n")

@contextlib.asynccontextmanager
async def life(server):
    bus = {"open": True}
    yield bus
    bus["open"] = False
    say("closed")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

server = Server("late", "1", lifespan=life)

@server.tool
def use(ctx: Context) -> bool:
    say("used" if ctx.lifespan["open"] else "used what is closed")
    return True

@server.tool
def slow() -> None:
    say("entered")
    sys.stdin.readline()

server.run("unix", unix=sys.argv[1])
"""


@unittest.skipUnless(POSIX, "Unix sockets")
class Late(unittest.TestCase):
    """What comes by a Unix socket while the server ends."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name + "/s"

    def start(self):
        process = subprocess.Popen(
            [sys.executable, *SITE, "-c", LATE, self.path],
            env={**os.environ, "PYTHONPATH": str(HOME)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        wait_for(process, b"serving on")
        return process

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.settimeout(PATIENCE)
        client.connect(self.path)
        return client

    def test_nothing_runs_once_the_lifespan_ends(self):
        process, whole, half = self.start(), self.connect(), self.connect()
        line = call("use", {}, 1)
        whole.sendall(hello() + line)
        with whole.makefile("rb") as file:
            self.assertIn(b'"id":"i"', file.readline())
            self.assertIn(b'"structuredContent"', file.readline())
        half.sendall(hello() + line[:-5])
        process.send_signal(signal.SIGTERM)
        wait_for(process, b"closed")
        for client, data in ((whole, line), (half, line[-5:])):
            with contextlib.suppress(OSError):
                client.sendall(data)
                self.assertNotIn(b'"structuredContent"', client.recv(9999))
        process.stdin.write(b"\n")
        process.stdin.flush()
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertNotIn(b"used", process.stderr.read())

    def test_the_socket_of_a_successor_stays(self):
        first, client = self.start(), self.connect()
        client.sendall(hello() + call("slow", {}, 1))
        wait_for(first, b"entered")
        first.send_signal(signal.SIGTERM)
        with self.assertRaises(OSError):  # soon it listens no more
            while True:
                self.connect().close()
                time.sleep(0.001)
        self.start()
        first.stdin.write(b"\n\n")
        first.stdin.flush()
        first.wait(PATIENCE)
        self.connect()


class NoLifespan(unittest.TestCase):
    def test_one_that_fails_at_its_end_or_is_not_made(self):
        for life in (
            "@contextlib.asynccontextmanager\nasync def life(server):\n    yield\n",
            "@contextlib.contextmanager\ndef life(server):\n    yield\n",
            "def life(server):\n",
        ):
            code = f"import contextlib\n{life}    raise OSError('no bus')\n"
            code += "from tinymcp import Server\nserver = Server('x', lifespan=life)\n"
            for extra in ("", "@server.tool\nasync def t() -> int: return 1\n"):
                with self.subTest(life=life, extra=extra):
                    self.assertEqual(*self.run_app(code + extra))

    def run_app(self, code):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "app.py")
            path.write_text(code)
            done = subprocess.run(
                [sys.executable, *SITE, "-m", "tinymcp", "run", str(path)],
                env={**os.environ, "PYTHONPATH": str(HOME)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
            )
        told = b"lifespan= failed: no bus" in done.stderr
        return (done.returncode, told), (1, True)

    def test_one_that_fails_is_no_wrong_command_line(self):
        """A supervisor does not try again after 2; a bus may be there a minute on."""
        life = """
            import contextlib
            from tinymcp import Server

            @contextlib.DECORATOR
            DEF life(server):
                raise OSError("no bus")
                yield

            server = Server("x", lifespan=life)
        """
        for decorator, word in (
            ("contextmanager", "def"),
            ("asynccontextmanager", "async def"),
        ):
            code = life.replace("DECORATOR", decorator).replace("DEF", word)
            self.assertEqual(*self.run_app(textwrap.dedent(code)))


@unittest.skipUnless(POSIX, "POSIX signals")
class Killed(unittest.TestCase):
    def test_the_port_is_free_at_once(self):
        port = free_port()
        for _ in range(2):
            with running("http", port=port) as process, Client(port) as client:
                client.send(modern("tools/list"))
                self.assertEqual(client.reply().status, 200)
                process.kill()
                process.wait(PATIENCE)

    def test_a_stale_socket_is_replaced_and_a_live_one_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/s"
            with running("unix", unix=path) as process:
                process.kill()
                process.wait(PATIENCE)
            self.assertTrue(pathlib.Path(path).exists())
            with running("unix", unix=path) as process:
                second = start("unix", unix=path)
                _, err = second.communicate(timeout=PATIENCE)
                self.assertNotEqual(second.returncode, 0)
                self.assertIn(b"is served already", err)
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)
                    client.sendall(line("ping"))
                    self.assertIn(b'"result"', client.recv(1000))


if __name__ == "__main__":
    unittest.main()
