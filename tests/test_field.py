"""Failures that users of other servers reported: one test a case, with its input.

The letter is the kind: A stdio and process life, B JSON-RPC, C HTTP, D schemas and
results, E lifecycle, F 2026-07-28 and both eras at once, G small machines. Where the
report and the specification differ, the specification wins. Cases of the client half
are in test_client.py and test_transports.py.
"""

import asyncio
import contextlib
import enum
import functools
import gc
import json
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tracemalloc
import typing
import unittest
from dataclasses import dataclass
from unittest import mock

import tinymcp
from tests.test_endpoint import (
    META,
    Client,
    Live,
    initialize,
    legacy,
    message,
    modern,
    request,
    soon,
)
from tests.test_streams import HOME, POSIX, App, line
from tests.test_streams import initialize as hello
from tinymcp import Context, DefinitionError, Limits, Server

# What site loads is not ours, and may take longer than all else; coverage needs it.
SITE = [] if "COVERAGE_PROCESS_CONFIG" in os.environ else ["-S"]

rt = sys.modules[tinymcp.Server.__module__]
A, B, C, D, E = "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"
PATIENCE = 20.0  # seconds until a test that waits for something has failed


def no_constant(name):
    raise AssertionError(f"{name} on the wire")


def parse(data):
    return json.loads(data, parse_constant=no_constant)


def fixture(use_async=True, **options):
    """The tools that the cases name, and a switch that ends `block` and `nap`."""
    server = Server("field", "1", log=lambda *a: server.logged.append(a), **options)
    server.logged, server.proceed, server.late = [], threading.Event(), []
    server.entered = threading.Event()

    @server.tool(inline=True)
    def echo(text: str) -> str:
        return text

    @server.tool(inline=True)
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool(inline=True)
    def scale(x: float) -> float:
        server.late.append(x)
        return x

    @server.tool
    def block(seconds: float = 0) -> str:
        server.entered.set()
        server.proceed.wait(PATIENCE)
        return "blocked"

    @server.tool(inline=True)
    def boom() -> str:
        raise ValueError("boom in /etc/secret/app.py")

    @server.tool
    def steps(ctx: Context) -> str:
        for value in (0, 0.5, 0.5, 1.0):
            ctx.report_progress(value)
        server.late.append(ctx)
        return "stepped"

    @server.tool
    def after() -> str:
        server.late.pop().report_progress(2)
        return "after"

    if use_async:

        @server.tool
        async def nap(seconds: float = 0) -> str:
            server.entered.set()
            end = time.monotonic() + PATIENCE
            while not server.proceed.is_set() and time.monotonic() < end:
                await asyncio.sleep(0.01)
            return "napped"

    @server.resource("x://a")
    def a() -> str:
        return "a"

    @server.prompt
    def p() -> str:
        return "p"

    return server


class Wire:
    """A server on two pipes, read all the time."""

    def __init__(self, server=None, loop=False):
        self.server = server or fixture(use_async=loop)
        self.in_fd, to = os.pipe()
        out, self.out_fd = os.pipe()
        self.to, self.file = os.fdopen(to, "wb", buffering=0), os.fdopen(out, "rb")
        run = functools.partial(
            self.server._run_stdio, self.in_fd, self.out_fd, loop=loop
        )
        self.found, self.changed = [], threading.Condition()
        self.reading = threading.Event()
        self.reading.set()
        self.threads = [threading.Thread(target=t) for t in (run, self._read)]
        for thread in self.threads:
            thread.start()

    def _read(self):
        while True:
            self.reading.wait(PATIENCE)
            data = self.file.readline()
            with self.changed:
                self.found.append(parse(data) if data else None)
                self.changed.notify_all()
            if not data:
                return

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    def send(self, *data):
        for piece in data:
            view = memoryview(piece)
            while view:
                view = view[self.to.write(view) :]

    def wait(self, id):
        """The reply with this id."""

        def found():
            return next((m for m in self.found if m and m.get("id") == id), None)

        with self.changed:
            if not self.changed.wait_for(found, PATIENCE):
                raise AssertionError(f"no reply {id!r} in {self.found}")
            return found()

    def end(self):
        """Close the input; returns all that was said."""
        if not self.to.closed:
            self.to.close()
            self.threads[0].join(PATIENCE)
            assert not self.threads[0].is_alive(), "the server did not end"
            os.close(self.out_fd)
            self.threads[1].join(PATIENCE)
            self.file.close()
            os.close(self.in_fd)
        return [m for m in self.found if m is not None]


def talk(*data, loop=False, server=None, revision=D):
    """What comes back on stdio after a legacy handshake."""
    with Wire(server, loop) as wire:
        if revision:
            wire.send(hello(revision))
            assert "result" in wire.wait("i")
        wire.send(*data)
        return [m for m in wire.end() if m.get("id") != "i"]


def call(tool, arguments=None, id=1, **more):
    params = {"name": tool, **more}
    if arguments is not None:
        params["arguments"] = arguments
    return line("tools/call", params, id)


def ping(id):
    return b'{"jsonrpc":"2.0","id":%b,"method":"ping"}\n' % id


def modern_line(method, params=None, id=1):
    return line(method, {**(params or {}), "_meta": META}, id)


def text_of(reply):
    return reply["result"]["content"][0]["text"]


def code_of(reply):
    return reply["error"]["code"] if "error" in reply else None


class Case(unittest.TestCase):
    def codes(self, replies, wanted):
        """(id, error code) of each reply; None as an id means that there is none."""
        found = [(m.get("id"), code_of(m)) for m in replies]
        self.assertEqual(sorted(found, key=repr), sorted(wanted, key=repr), replies)
        for reply in replies:
            self.assertNotIn(None, (reply.get("id", 0),), "id is left out, not null")

    def quiet(self, app, out=None, codes=(0,)):
        """The process ends by itself, without a traceback."""
        found, err = app.end() if out is None else (out, app.process.stderr.read())
        self.assertIn(app.process.returncode, codes, err)
        self.assertNotIn(b"Traceback", err)
        self.assertNotIn(b"Exception ignored", err)
        return found


ENGINES = (False, True)


class Stdio(Case):
    def each(self):
        yield from ENGINES  # a subTest here would hide what fails in the loop

    def test_field_A01_crlf_and_blank_lines(self):
        for loop in self.each():
            data = hello().replace(b"\n", b"\r\n", 1)
            found = talk(data, b"\r\n", b"\n", ping(b"2"), loop=loop, revision=None)
            self.codes(found, [(2, None)])
            with Wire(loop=loop) as wire:
                wire.send(hello().replace(b"\n", b"\r\n"))
                self.assertIn("result", wire.wait("i"))

    def test_field_A02_text_mode_stdout(self):
        wrap = (
            "import io\n"
            "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, newline='\\r\\n')\n"
        )
        env = {"PYTHONIOENCODING": "cp1252", "LC_ALL": "C"}
        with App(after=wrap, env=env) as app:
            out, _ = app.end(ping(b"1") + hello() + call("echo", {"text": "é𝄞"}, 2))
        self.assertEqual(out.count(b"\n"), 3)
        self.assertNotIn(b"\r", out)
        self.assertIn("é𝄞".encode(), out)

    def test_field_A03_bytes_that_are_no_utf8(self):
        for loop in self.each():
            bad = call("echo", {"text": "?"}).replace(b'"?"', b'"\x92"')
            found = talk(b"\xff\xfe\n", bad, ping(b"2"), loop=loop)
            self.codes(found, [(None, -32700), (None, -32700), (2, None)])

    def test_field_A04_print_in_tools_and_at_import(self):
        code = textwrap.dedent("""
            import logging, sys, threading
            print("at import", flush=True)
            from tinymcp import Server
            server = Server("app", "1")
            @server.tool
            def noisy() -> str:
                print("hi")
                logging.basicConfig(stream=sys.stdout)
                logging.warning("w")
                return "x" * 300000
            def babble():
                for _ in range(2000):
                    print("babble", flush=True)
            threading.Thread(target=babble).start()
        """)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "app.py")
            path.write_text(code, "utf-8")
            done = subprocess.run(
                [sys.executable, *SITE, "-u", "-m", "tinymcp", "run", str(path)],
                input=hello() + call("noisy", {}),
                capture_output=True,
                env={**os.environ, "PYTHONPATH": str(HOME)},
                timeout=PATIENCE,
            )
        self.assertEqual({parse(m)["id"] for m in done.stdout.splitlines()}, {"i", 1})
        for word in (b"at import", b"hi", b"WARNING:root:w", b"babble"):
            self.assertIn(word, done.stderr)

    def test_field_A05_long_line(self):
        chance, text = random.Random(5), "x\U0001d11e" * 100_000
        data = call("echo", {"text": text})
        pieces, at = [], 0
        while at < len(data):
            step = 1 if at % 50_000 < 200 else chance.randint(1, 4093)
            pieces.append(data[at : at + step])
            at += step
        for loop in self.each():
            for sent in ([data], pieces):
                (reply,) = talk(*sent, loop=loop)
                self.assertEqual(text_of(reply), text)
            server = fixture(loop, limits=Limits(line=4096))
            long = [b"x" * 1000] * 5000
            found = talk(*long, b"\n" + ping(b"9"), loop=loop, server=server)
            self.codes(found, [(None, -32600), (9, None)])
            exact = call("echo", {"text": ""})
            exact = exact.replace(b'""', b'"%s"' % (b"y" * (4097 - len(exact))))
            for extra, wanted in ((b"", [(1, None)]), (b" ", [(None, -32600)])):
                server = fixture(loop, limits=Limits(line=4096))
                found = talk(exact[:-1] + extra + b"\n", loop=loop, server=server)
                self.codes(found, wanted)

    def test_field_A06_nothing_outlives_the_client(self):
        stuck = (
            "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
            "import contextlib\n"
            "@contextlib.asynccontextmanager\n"
            "async def life(server):\n"
            "    server.task = asyncio.create_task(asyncio.sleep(3600))\n"
            "    yield\n"
            "if ASYNC: server._lifespan = life\n"
        )
        limits = {"exit_grace": 0.2}
        with contextlib.ExitStack() as stack:
            apps = []
            for loop in ENGINES:
                after = stuck.replace("ASYNC", str(loop))
                for kind in (subprocess.DEVNULL, subprocess.PIPE):
                    app = App(loop, loop, after, stdin=kind, limits=limits)
                    apps.append(stack.enter_context(app))
            for app in apps:
                if app.process.stdin:
                    app.send(hello())
                    self.assertIn("result", app.read())
            for app in apps:
                if app.process.stdin:
                    app.process.stdin.close()
                    app.process.stdin = None
            for app in apps:
                self.assertEqual(self.quiet(app), b"")

    def test_field_A07_requests_before_the_end_are_answered(self):
        for loop in self.each():
            server = fixture(loop)
            tool = "nap" if loop else "block"
            with Wire(server, loop) as wire:
                wire.send(hello(), *(call(tool, {"seconds": 0.3}, n) for n in "123"))
                wire.server.entered.wait(PATIENCE)
                wire.to.flush()
                timer = threading.Timer(0.05, server.proceed.set)
                timer.start()
                found = wire.end()
                timer.join()
            self.assertEqual({m["id"] for m in found}, {"i", "1", "2", "3"})

    def test_field_A07_replies_that_other_threads_are_about_to_write(self):
        send, ended = rt._FdPeer.send, threading.Event()

        def slow(peer, data):
            if threading.current_thread().name.startswith("tinymcp-"):
                ended.wait(0.2)  # the end must not come while we are here
            send(peer, data)

        for loop in self.each():
            ended.clear()
            with mock.patch.object(rt._FdPeer, "send", slow), Wire(loop=loop) as wire:
                wire.server.proceed.set()
                wire.send(hello(), *(call("block", {}, n) for n in range(4)))
                found = wire.end()
                ended.set()
            self.assertEqual({m["id"] for m in found}, {"i", 0, 1, 2, 3})

    @unittest.skipUnless(POSIX, "a pty")
    def test_field_A08_a_terminal(self):
        """A file, a socket, nothing at all: test_every_kind_of_standard_input_A08."""
        import pty
        import tty

        with contextlib.ExitStack() as stack:
            running = []
            for loop in ENGINES:
                master, slave = pty.openpty()
                tty.setraw(slave)
                stack.callback(os.close, master)
                app = stack.enter_context(App(loop, stdin=slave))
                running.append((app, master))
                os.close(slave)
            for app, master in running:
                os.write(master, hello() + ping(b"1"))
                self.assertEqual(app.read()["id"], "i")
                self.assertEqual(app.read()["id"], 1)
                app.process.send_signal(signal.SIGTERM)
                self.quiet(app)

    def test_field_A09_a_loop_that_cannot_watch_stdin(self):
        kind = asyncio.SelectorEventLoop
        real = kind.add_reader
        for error in (OSError, NotImplementedError):

            def add_reader(self, fd, *how, error=error):
                if type(fd) is int:  # not a socket
                    raise error
                real(self, fd, *how)

            with mock.patch.object(kind, "add_reader", add_reader):
                found = talk(line("tools/list"), loop=True)
            self.assertIn("tools", found[0]["result"])

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_field_A10_one_signal_ends_it(self):
        import pty

        life = (
            "import contextlib\n"
            "@contextlib.contextmanager\n"
            "def life(server):\n"
            "    try: yield\n"
            "    finally: print('life ended', file=sys.stderr)\n"
            "server._lifespan = life\n"
        )
        with contextlib.ExitStack() as stack:
            apps = []
            # Each signal with each of them: test_one_signal_ends_it_A10.
            for loop, number in zip(ENGINES, (signal.SIGINT, signal.SIGTERM)):
                master, slave = pty.openpty()
                stack.callback(os.close, master)
                terminal = number == signal.SIGINT
                source = slave if terminal else subprocess.PIPE
                app = stack.enter_context(App(loop, after=life, stdin=source))
                os.close(slave)
                apps.append((app, number, master if terminal else None))
            for app, number, master in apps:
                if master is None:
                    app.send(ping(b"1"))
                else:
                    os.write(master, ping(b"1"))
                self.assertEqual(app.read()["id"], 1)
                began = time.monotonic()
                app.process.send_signal(number)
                app.process.wait(PATIENCE)
                self.assertLess(time.monotonic() - began, 5)
                err = app.process.stderr.read()
                self.assertEqual(app.process.returncode, 0, err)
                self.assertIn(b"atexit ran", err)
                self.assertIn(b"life ended", err)
                self.assertNotIn(b"Traceback", err)

    def test_field_A11_a_blocking_tool_blocks_nobody(self):
        for loop in self.each():
            with Wire(loop=loop) as wire:
                wire.send(hello(), call("block", {"seconds": 3}))
                wire.server.entered.wait(PATIENCE)
                wire.send(ping(b"2"), call("echo", {"text": "x"}, 3))
                wire.wait(2)
                wire.wait(3)
                self.assertNotIn(1, [m.get("id") for m in wire.found])
                wire.server.proceed.set()
                self.assertEqual(text_of(wire.wait(1)), "blocked")

    def test_field_A12_a_malformed_line_gets_an_error_without_id(self):
        bad = [b"{\n", b"not json\n", b'{"jsonrpc":"2.0","id":7,"method":"ping"\n']
        for loop in self.each():
            found = talk(*bad, ping(b"8"), loop=loop)
            self.codes(found, [(None, -32700)] * 3 + [(8, None)])

    def test_field_A15_the_reader_has_closed(self):
        with contextlib.ExitStack() as stack:
            apps = [stack.enter_context(App(loop)) for loop in ENGINES]
            for app in apps:
                app.send(hello())
                app.read()
                app.process.stdout.close()
                with contextlib.suppress(BrokenPipeError):
                    app.send(call("echo", {"text": "x"}) + ping(b"2"))
            for app in apps:
                app.process.wait(PATIENCE)
                err = app.process.stderr.read()
                self.assertEqual(app.process.returncode, 0, err)
                lines = set(err.splitlines()) - {b"at import", b"atexit ran"}
                self.assertLessEqual(len(lines), 1, err)

    def test_field_A19_much_to_read_before_the_client_reads(self):
        text = "y" * 20_000
        for loop in self.each():
            with Wire(loop=loop) as wire:
                wire.send(hello())
                wire.wait("i")
                wire.reading.clear()
                token = {"progressToken": "t"}
                for n in range(200):
                    wire.send(call("echo", {"text": text}, n))
                    if n % 50 == 0:
                        wire.send(call("steps", {}, f"s{n}", _meta=token))
                wire.reading.set()
                wire.send(ping(b'"last"'))
                wire.wait("last")
                found = wire.end()
            echoes = [m for m in found if type(m.get("id")) is int]
            self.assertEqual({m["id"] for m in echoes}, set(range(200)))
            self.assertEqual({text_of(m) for m in echoes}, {text})


class Rpc(Case):
    """JSON-RPC edges, on stdio and on HTTP."""

    @classmethod
    def setUpClass(cls):
        cls.live = Live(fixture())
        cls.live.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.live.__exit__()

    def post(self, body, *headers, revision=D):
        session = self.live.open(revision)
        headers = [("Mcp-Session-Id", session), *headers]
        return self.live.ask(request(body=body, headers=headers))

    def test_field_B01_falsy_ids_are_ids(self):
        found = talk(ping(b"0"), ping(b'""'), ping(b"-3"))
        self.codes(found, [(0, None), ("", None), (-3, None)])
        for loop in ENGINES:
            with Wire(loop=loop) as wire:
                wire.send(hello(), call("block", {}, 0))
                wire.server.entered.wait(PATIENCE)
                wire.send(line("notifications/cancelled", {"requestId": 0}, None))
                soon(lambda w=wire: not w.server._open.lines(), "the call is gone")
                wire.server.proceed.set()
                self.assertNotIn(0, [m.get("id") for m in wire.end()])
        with Wire() as wire:
            wanted = {"notifications": {"toolsListChanged": True}}
            wire.send(modern_line("subscriptions/listen", wanted, 0))
            soon(lambda: wire.found, "acknowledged")
            wire.server.notify_tools_changed()
            soon(lambda: len(wire.found) > 1, "changed")
            key = "io.modelcontextprotocol/subscriptionId"
            found = wire.end()
            for m in found:
                meta = (m.get("params") or m.get("result"))["_meta"]
                self.assertIs(type(meta[key]), int)
                self.assertEqual(meta[key], 0)
            self.assertEqual(len(found), 3)

    def test_field_B02_ids_keep_their_type(self):
        found = talk(ping(b'"1"'), ping(b'"01"'), ping(b'"1.0"'), ping(b"1"))
        self.codes(found, [("1", None), ("01", None), ("1.0", None), (1, None)])

    SHAPES = [
        (b"42", None),
        (b'"x"', None),
        (b"null", None),
        (b"true", None),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', 1),
        (b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":["echo"]}', 2),
        (b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":"x"}', 2),
        (b'{"id":3,"method":"ping"}', 3),
        (b'{"jsonrpc":"1.0","id":4,"method":"ping"}', 4),
    ]

    def test_field_B03_json_that_is_no_request(self):
        for data, id in self.SHAPES:
            with self.subTest(data):
                reply, last = talk(data + b"\n", ping(b"9"))
                self.assertEqual(last["id"], 9)
                for found in (reply, self.post(data).json):
                    self.assertIn(code_of(found), (-32600, -32602))
                    self.assertEqual(found.get("id"), id)
                    if id is None:
                        self.assertNotIn("id", found)
                self.assertEqual(self.post(data).status, 400)

    def test_field_B04_no_method_or_an_unknown_one(self):
        found = talk(
            b'{"jsonrpc":"2.0","id":1,"method_":"tools/list"}\n',
            b'{"hello":"world"}\n',
            b'{"jsonrpc":"2.0","id":2,"method":"tools/lit"}\n',
            b'{"jsonrpc":"2.0","method":"notifications/nope"}\n',
        )
        self.codes(found, [(1, -32600), (None, -32600), (2, -32601)])
        reply = self.post(b'{"jsonrpc":"2.0","method":"notifications/nope"}')
        self.assertEqual((reply.status, reply.body), (202, b""))

    ARRAY = b"[" + b",".join(
        [
            ping(b"1")[:-1],
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            ping(b"2")[:-1] + b"]",
        ]
    )

    def test_field_B05_batches_in_one_revision_only(self):
        (found,) = talk_array(self.ARRAY, B)
        self.codes(found, [(1, None), (2, None)])
        self.codes(self.post(self.ARRAY, revision=B).json, [(1, None), (2, None)])
        for revision in (A, C, D):
            self.codes(talk(self.ARRAY + b"\n", revision=revision), [(None, -32600)])
            reply = self.post(self.ARRAY, revision=revision)
            self.assertEqual((reply.status, code_of(reply.json)), (400, -32600))
        self.codes(talk(self.ARRAY + b"\n", revision=None), [(None, -32600)])
        headers = [("MCP-Protocol-Version", E), ("Mcp-Method", "ping")]
        reply = self.live.ask(request(body=self.ARRAY, headers=headers))
        self.assertEqual((reply.status, code_of(reply.json)), (400, -32600))

    def test_field_B06_deep_nesting(self):
        for depth in (150, 1000, 100_000):
            deep = b'{"a":' * depth + b"1" + b"}" * depth
            data = call("echo", {"text": 5}).replace(b"5}", deep + b"}")
            for sent in (data, b"[" * depth + b"\n"):
                with self.subTest(depth=depth, sent=sent[:1]):
                    reply, last = talk(sent, ping(b"9"))
                    self.assertEqual(last["id"], 9)
                    self.assertIn(code_of(reply), (-32700, -32600))
                    status = self.live.ask(request(body=sent)).status
                    self.assertEqual(status, 400)
        # Within the bound it is the tool that refuses.
        deep = functools.reduce(lambda inner, _: {"a": inner}, range(40), 1)
        (reply,) = talk(call("echo", {"text": deep}))
        self.assertTrue(reply["result"]["isError"])

    def test_field_B07_results_that_are_not_finite(self):
        server = fixture(False)
        for n, value in enumerate(
            (float("nan"), {"m": float("inf")}, [1, float("-inf")])
        ):
            for m, kind in enumerate((object, typing.Any, type(value), None)):
                options = {"structured_output": False} if kind is None else {}
                tool = eval("lambda: value", {"value": value})
                tool.__annotations__ = {"return": kind} if kind else {}
                server.add_tool(tool, name=f"t{n}{m}", **options)
        names = [name for name in server._registry.tool.items if name[0] == "t"]
        for revision in (A, D):
            asked = (call(name, {}, name) for name in names)
            found = talk(*asked, server=server, revision=revision)
            self.assertEqual(len(found), 12)
            for reply in found:
                self.assertTrue(reply["result"]["isError"], reply)
                self.assertRegex(text_of(reply), "NaN|Infinity")

    def test_field_B08_who_gets_to_see_the_error(self):
        unknown = [call("nope", {}, 1), line("tools/call", {"arguments": {}}, 2)]
        self.codes(talk(*unknown), [(1, -32602), (2, -32602)])
        bad = call("add", {"a": 1, "b": "x"}, 2)
        found = talk(call("echo", {}, 1), bad, call("boom", {}, 3))
        for reply, word in zip(found, ("text", "b", "boom")):
            self.assertTrue(reply["result"]["isError"])
            self.assertIn(word, text_of(reply))
            self.assertNotIn(".py", text_of(reply))
            self.assertNotIn("Traceback", text_of(reply))

    def test_field_B09_progress_tokens(self):
        for loop in ENGINES:
            for token in (None, 0, "", "a"):
                meta = {} if token is None else {"_meta": {"progressToken": token}}
                with self.subTest(token=token), Wire(loop=loop) as wire:
                    wire.send(hello(), call("steps", {}, 1, **meta))
                    wire.wait(1)
                    wire.send(call("after", {}, 2))
                    wire.wait(2)
                    found = wire.end()
                    told = [m["params"] for m in found if m.get("method")]
                    values = [m["progress"] for m in told]
                    self.assertEqual(values, [] if token is None else [0, 0.5, 1.0])
                    for m in told:
                        self.assertEqual(
                            (type(m["progressToken"]), m["progressToken"]),
                            (type(token), token),
                        )

    def test_field_B10_responses_that_nobody_waits_for(self):
        stray = [
            b'{"jsonrpc":"2.0","id":99,"result":{}}',
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}',
        ]
        found = talk(*(data + b"\n" for data in stray), ping(b"1"))
        self.codes(found, [(1, None)])
        for data in stray:
            self.assertEqual(self.post(data).status, 202)
            headers = [("MCP-Protocol-Version", E)]
            reply = self.live.ask(request(body=data, headers=headers))
            self.assertEqual(reply.status, 400)

    def test_field_B12_numbers_that_are_not_finite(self):
        server = fixture(False)
        for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"):
            for data in (
                call("scale", {"x": 5}).replace(b"5}", word + b"}"),
                call("echo", {"text": "x"}, _meta={"y": 5}).replace(b"5}", word + b"}"),
                ping(word),
            ):
                with self.subTest(data):
                    (reply,) = talk(data, server=server)
                    wanted = (-32700,) if b"1e" not in word else (-32602, -32600)
                    self.assertIn(code_of(reply), wanted)
                    reply = self.post(data)
                    parse(reply.body)
                    self.assertIn(code_of(reply.json), wanted)
        self.assertEqual(server.late, [])

    def test_field_B15_odd_batches(self):
        note = b'{"jsonrpc":"2.0","method":"x"}'
        one, first = ping(b"1")[:-1], hello()[:-1].split(b"\n")[0]
        twice = b"[" + one + b"," + one + b"]"
        for data, wanted in (
            (b"[]", (None, -32600)),
            (b"[1]", [(None, -32600)]),
            (b"[" + one + b",42," + note + b"]", [(1, None), (None, -32600)]),
            (b"[" + note + b"," + note + b"]", None),
            (b"[" + first + b"]", [("i", -32600)]),
            (twice, [(1, None), (1, None)]),
        ):
            with self.subTest(data):
                self.check(talk_array(data, B), wanted)
                reply = self.post(data, revision=B)
                self.assertEqual(reply.status == 202, wanted is None)
                self.check([reply.json] if reply.body else [], wanted)
        (found,) = talk(b"[" + first + b"]\n", revision=None)
        self.assertEqual(code_of(found), -32600)
        before = self.live.state()
        self.assertEqual(self.live.ask(request(body=b"[" + first + b"]")).status, 400)
        self.assertEqual(self.live.state()[0], before[0])
        session = self.live.open(B)
        headers = [("Mcp-Session-Id", session), ("Accept", "text/event-stream")]
        with self.live.client() as client:
            client.send(request(body=self.ARRAY, headers=headers))
            self.assertEqual(client.head().headers["content-type"], "text/event-stream")
            (found,) = client.messages()
            self.codes(found, [(1, None), (2, None)])

    def check(self, found, wanted):
        if wanted is None:
            self.assertEqual(found, [])
        elif type(wanted) is tuple:
            self.codes(found, [wanted])
        else:
            self.codes(found[0], wanted)


def talk_array(data, revision):
    """The same as talk for replies that may be arrays."""
    with Wire() as wire:
        wire.send(hello(revision))
        wire.wait("i")
        for_arrays = len(wire.found)
        wire.to.write(data + b"\n")
        wire.to.close()
        wire.threads[0].join(PATIENCE)
        os.close(wire.out_fd)
        wire.threads[1].join(PATIENCE)
        wire.file.close()
        os.close(wire.in_fd)
        return [m for m in wire.found[for_arrays:] if m is not None]


class Http(Case):
    """Over HTTP, mostly on one server that must be as it was after each test."""

    @classmethod
    def setUpClass(cls):
        cls.live = Live(fixture())
        cls.live.__enter__()
        cls.ask = cls.live.ask

    @classmethod
    def tearDownClass(cls):
        cls.live.__exit__()

    def legacy_ping(self, *headers, body=b'{"jsonrpc":"2.0","id":1,"method":"ping"}'):
        session = self.live.open()
        return request(body=body, headers=[("Mcp-Session-Id", session), *headers])

    def test_field_C01_accept_is_read_liberally(self):
        both = ("Accept", "text/event-stream"), ("accept", "application/json")
        for headers, kind in (
            ([], "application/json"),
            ([("Accept", "*/*")], "application/json"),
            ([("Accept", "application/*, text/*;q=0.5")], "application/json"),
            ([("Accept", "text/event-stream, application/json")], "application/json"),
            ([("Accept", "APPLICATION/JSON")], "application/json"),
            ([("Accept", "application/json")], "application/json"),
            ([("Accept", "text/event-stream")], "text/event-stream"),
            (both, "application/json"),
            ([("Accept", "application/json;q=0, text/event-stream")], "text/event-s"),
        ):
            with self.subTest(headers), self.live.client() as client:
                client.send(self.legacy_ping(*headers))
                reply = client.head()
                self.assertEqual(reply.status, 200)
                self.assertTrue(reply.headers["content-type"].startswith(kind))
                if kind != "application/json":
                    self.assertEqual([m["id"] for m in client.messages()], [1])
        for value in ("text/html", "application/json;q=0, text/event-stream;q=0"):
            reply = self.ask(self.legacy_ping(("Accept", value)))
            self.assertEqual(reply.status, 406)
            self.assertIn("application/json", reply.json["error"]["message"])
        note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        data = self.legacy_ping(("Accept", "application/json"), body=note)
        self.assertEqual(self.ask(data).status, 202)

    def test_field_C02_content_type(self):
        for value, status in (
            ("application/json; charset=utf-8", 200),
            ('Application/JSON;charset="UTF-8"', 200),
            ("application/json ;x=1", 200),
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
            ("application/jsonx", 415),
            ("application/json; charset=utf-16", 415),
            (None, 415),
        ):
            with self.subTest(value):
                for data in (
                    self.legacy_ping(("Content-Type", value)),
                    modern("tools/list", headers={"Content-Type": value}),
                ):
                    self.assertEqual(self.ask(data).status, status)

    def test_field_C03_chunked_bodies(self):
        _, _, body = initialize().partition(b"\r\n\r\n")
        sizes, pieces, at = [1, 10, 11, len(body) - 22], [], 0
        for n, size in enumerate(sizes):
            form = (b"%x;ext=1", b"%X", b"%x", b"%x ;a=b")[n] % size
            pieces += [form, b"\r\n", body[at : at + size], b"\r\n"]
            at += size
        data = b"".join([*pieces, b"0\r\nX: y\r\n\r\n"])
        head = request(headers=[("Transfer-Encoding", "chunked")])
        head = head.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")
        with self.live.client() as client:
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in head + data:
                client.send(bytes([byte]))
            self.assertEqual(client.reply().status, 200)
            client.send(head + data + modern("tools/list"))
            self.assertEqual(client.reply().status, 200)
            self.assertEqual(client.reply().status, 200)
        limit = self.live.server._limits.body
        with self.live.client() as client:
            client.send(head + b"8\r\n12345678\r\n%x\r\n" % (limit - 7))
            self.assertEqual(client.reply().status, 413)
            self.assertTrue(client.closed())

    def test_field_C04_expect_continue(self):
        text = "x" * 69_000
        arguments = {"name": "echo", "arguments": {"text": text}}
        expect = {"Expect": "100-continue"}
        head, _, body = modern("tools/call", arguments, headers=expect).partition(
            b"\r\n\r\n"
        )
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        length = b"Content-Length: %d" % len(body)
        for first, rest in (
            (head, body),
            (head.replace(length, b"Transfer-Encoding: chunked"), chunks),
        ):
            with self.live.client() as client:
                client.send(first + b"\r\n\r\n")
                self.assertEqual(client.file.readline(), b"HTTP/1.1 100 Continue\r\n")
                self.assertEqual(client.file.readline(), b"\r\n")
                client.send(rest)
                self.assertEqual(text_of(client.reply().json), text)
        origin = b"\r\nOrigin: http://evil.example"
        for first, status in (
            (head.replace(length, b"Content-Length: 99999999"), 413),
            (head + origin, 403),
            (head.replace(b"100-continue", b"tea"), 417),
        ):
            with self.subTest(status), self.live.client() as client:
                client.send(first + b"\r\n\r\n")
                self.assertEqual(client.reply().status, status)

    def test_field_C05_no_redirects(self):
        for target, status in (
            ("/mcp", 200),
            ("/mcp/", 200),
            ("/mcp?x=1", 200),
            (f"http://localhost:{self.live.port}/mcp", 200),
            ("/%6dcp", 404),
            ("/", 404),
            ("/mcp/x", 404),
            ("//mcp", 404),
        ):
            data = modern("tools/list").replace(b" /mcp ", b" %b " % target.encode())
            reply = self.ask(data)
            self.assertEqual(reply.status, status, target)
            if status == 404:
                self.assertIn("/mcp", reply.json["error"]["message"])

    def test_field_C06_hosts_and_origins(self):
        def status(live, host, *more):
            data = modern("tools/list")
            lines = b"".join(b"Host: %b\r\n" % h.encode() for h in (host or ()))
            lines += b"".join(b"%b\r\n" % m for m in more)
            return live.ask(data.replace(b"Host: localhost\r\n", lines)).status

        evil = b"Origin: https://evil.example"
        for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"):
            self.assertEqual(status(self.live, [host]), 200)
            self.assertEqual(status(self.live, [host], evil), 403)
        for host in ("evil.example", "192.168.1.50"):
            self.assertEqual(status(self.live, [host]), 421)
        self.assertEqual(status(self.live, None), 400)
        self.assertEqual(status(self.live, ["localhost", "localhost"]), 400)
        options = {"host": "0.0.0.0", "insecure": True}
        with Live(fixture(), allow_hosts=("pi.lan",), **options) as live:
            for host in ("192.168.1.50:8000", "pi.lan:8000", "PI.LAN", "192.168.1.50"):
                self.assertEqual(status(live, [host]), 200)
                self.assertEqual(status(live, [host], evil), 403)
            data = modern("tools/list").replace(b"localhost", b"other.lan")
            reply = live.ask(data)
            self.assertEqual(reply.status, 421)
            self.assertIn("--allow-host", reply.json["error"]["message"])

    ASKED = (
        "content-type,mcp-protocol-version,mcp-session-id,mcp-method,mcp-name,"
        "mcp-param-x,authorization,last-event-id"
    )

    def test_field_C07_cross_origin_clients(self):
        origin = ("Origin", "http://localhost:6274")
        asks = [
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", self.ASKED),
        ]
        preflight = request("OPTIONS", headers=[origin, *asks])
        with Live(fixture(), allow_origins=(origin[1],), token="t" * 16) as live:
            before = live.state()[0]
            reply = live.ask(preflight)
            self.assertIn(reply.status, (200, 204))
            for name in self.ASKED.split(","):
                allowed = reply.headers["access-control-allow-headers"]
                self.assertIn(name, allowed.split(","))
            self.assertIn("DELETE", reply.headers["access-control-allow-methods"])
            self.assertEqual(live.state()[0], before)
            token = ("Authorization", "Bearer " + "t" * 16)
            for headers, status in (
                ({}, 401),
                ({token[0]: token[1]}, 200),
                ({token[0]: token[1], "Accept": "text/html"}, 406),
                ({token[0]: token[1], "Accept": "text/event-stream"}, 200),
            ):
                data = modern("tools/list", headers={**headers, origin[0]: origin[1]})
                with live.client() as client:
                    client.send(data)
                    reply = client.head()
                    self.assertEqual(reply.status, status)
                    self.assertEqual(
                        reply.headers["access-control-allow-origin"], origin[1]
                    )
                    self.assertIn("Origin", reply.headers["vary"])
                    exposed = reply.headers["access-control-expose-headers"]
                    self.assertIn("Mcp-Session-Id", exposed)
        with Live(fixture()) as live:
            foreign = preflight.replace(b"localhost:6274", b"app.example")
            for data in (preflight, foreign):
                reply = live.ask(data)
                self.assertIn(reply.status, (403, 405))
                self.assertNotIn("access-control-allow-origin", reply.headers)

    def test_field_C08_unknown_sessions_are_404(self):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        ended = self.live.open()
        delete = request("DELETE", headers=[("Mcp-Session-Id", ended)])
        self.assertEqual(self.ask(delete).status, 204)
        before = self.live.state()[0]
        for ids, wanted in (
            (["deadbeef"], {404}),
            ([ended], {404}),
            (["a b"], {400, 404}),
            (["x" * 10_240], {400, 404}),
            (["deadbeef", "deadbeef"], {400, 404}),
        ):
            headers = [("Mcp-Session-Id", id) for id in ids]
            for method in ("POST", "GET", "DELETE"):
                data = request(method, body if method == "POST" else b"", headers)
                reply = self.ask(data)
                self.assertIn(reply.status, wanted, (method, ids))
                self.assertIn("error", reply.json)
                self.assertNotIn("mcp-session-id", reply.headers)
        self.assertEqual(self.ask(request(body=body)).status, 400)
        self.assertEqual(self.live.state()[0], before)

    def test_field_C09_initialize_with_a_stale_session(self):
        data = initialize()
        stale = data.replace(b"Host:", b"Mcp-Session-Id: stale\r\nHost:")
        reply = self.ask(stale)
        self.assertEqual(reply.status, 200)
        self.assertNotEqual(reply.headers["mcp-session-id"], "stale")

    def test_field_C10_refusals_leave_nothing(self):
        def size():
            fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else 0
            return self.live.state(), len(self.live.endpoint.connections), fds

        bad = {
            "get": request("GET"),
            "head": request("HEAD"),
            "options": request("OPTIONS"),
            "delete": request("DELETE"),
            "accept": initialize().replace(b"Host:", b"Accept: text/html\r\nHost:"),
            "origin": initialize().replace(b"Host:", b"Origin: http://e.x\r\nHost:"),
            "json": request(body=b"{"),
            "version": initialize().replace(
                b"Host:", b"MCP-Protocol-Version: 1.0\r\nHost:"
            ),
        }
        soon(lambda: not self.live.endpoint.connections, "nobody is connected")
        before = size()
        for name, data in bad.items():
            with self.subTest(name), self.live.client() as client:
                for _ in range(30):
                    client.send(data * 10)
                    for _ in range(10):
                        reply = client.reply(bodiless=name == "head")
                        self.assertGreaterEqual(reply.status, 400)
                        self.assertNotIn("mcp-session-id", reply.headers)
        soon(lambda: size() == before, "all is as it was")

    def test_field_C11_sessions_that_nobody_ends(self):
        server = fixture(False, limits=Limits(sessions=20))
        with Live(server) as live:

            def once(client, end=False):
                client.send(initialize())
                session = client.reply().headers["mcp-session-id"]
                ready = legacy(session, "notifications/initialized", None, None)
                echo = {"name": "echo", "arguments": {"text": "x"}}
                client.send(ready + legacy(session, "tools/call", echo))
                self.assertEqual(client.reply().status, 202)
                self.assertEqual(client.reply().status, 200)
                if end:
                    gone = [("Mcp-Session-Id", session)]
                    client.send(request("DELETE", headers=gone))
                    self.assertEqual(client.reply().status, 204)
                return session

            def sizes():
                lines = live.endpoint.deadlines.by_length.values()
                return (
                    len(live.endpoint.sessions),
                    len({each for key in server._hub.wanted.values() for each in key}),
                    live.endpoint.kept_bytes,
                    len(server._open.lines()),
                    sum(len(x) for x in lines),
                )

            first = None
            for _ in range(60):
                with live.client() as client:
                    first = first or once(client)
                    once(client)
            soon(lambda: not live.endpoint.connections, "nobody is connected")
            self.assertEqual(sizes(), (20, 20, 0, 0, 20))
            self.assertEqual(live.ask(legacy(first, "tools/list")).status, 404)
            with live.client() as client:
                once(client, end=True)
                tracemalloc.start()
                for rounds in (50, 150):
                    for _ in range(rounds):
                        once(client, end=True)
                        client.send(modern("tools/list"))
                        client.reply()
                    gc.collect()  # what is in cycles is garbage, not growth
                    used = tracemalloc.get_traced_memory()[0]
                    if rounds == 50:
                        base = used
                tracemalloc.stop()
            self.assertLess((used - base) / 150, 1024)
            self.assertLessEqual(sizes()[:2], (20, 20))
        with Live(fixture(limits=Limits(session_idle=0.05))) as live:
            session = live.open()
            soon(lambda: not live.endpoint.sessions, "the session has expired")
            self.assertEqual(live.ask(legacy(session, "tools/list")).status, 404)

    def test_field_C12_methods_that_are_not_offered(self):
        before = self.live.state()[0]
        stream = [("Accept", "text/event-stream")]
        for method, headers in (
            ("GET", stream),
            ("GET", [("Accept", "*/*")]),
            ("PUT", []),
            ("PATCH", []),
            ("TRACE", []),
            ("FOO", []),
        ):
            reply = self.ask(request(method, headers=headers))
            self.assertIn(reply.status, (405, 501), method)
            self.assertIn("POST", reply.headers["allow"])
        with self.live.client() as client:
            client.send(request("HEAD") + modern("tools/list"))
            self.assertEqual(client.reply(bodiless=True).status, 405)
            self.assertEqual(client.reply().status, 200)
        self.assertEqual(self.live.state()[0], before)

    def test_field_C13_clients_that_vanish(self):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}'
        sized = request(body=body + b" " * 1000)
        chunky = request(headers=[("Transfer-Encoding", "chunked")])
        for data in (
            sized[:-600],
            chunky + b"ff\r\nabc",
            b"POST /mcp HT",
            request(body=body)[:60],
            b"",
        ):
            for reset in (False, True):
                client = self.live.client()
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    client.socket.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, linger
                    )
                if data:
                    client.send(data)
                client.close()
        soon(lambda: not self.live.endpoint.connections, "nobody is connected")
        logged = [t for level, t in self.live.server.logged if level == "critical"]
        self.assertEqual(logged, [])
        self.assertEqual(self.ask(modern("tools/list")).status, 200)

    def test_field_C14_quiet_streams_are_kept_alive(self):
        limits = Limits(keep_alive=0.05, json_or_sse=0.05)
        with Live(fixture(limits=limits)) as live:
            session = live.open()
            get = request("GET", headers=[("Mcp-Session-Id", session)])
            nap = legacy(session, "tools/call", {"name": "nap"})
            listen = modern("subscriptions/listen", {"notifications": {}})
            for data in (get, nap, listen):
                with self.subTest(data[:20]), live.client() as client:
                    client.send(data)
                    reply = client.head()
                    self.assertEqual(reply.headers["x-accel-buffering"], "no")
                    self.assertIn("no-cache", reply.headers["cache-control"])
                    comments = 0
                    while comments < 3:
                        chunk = client.chunk()
                        comments += chunk == b":\n\n"
                        fields = [
                            f for f in chunk.split(b"\n") if f.startswith(b"data")
                        ]
                        if b"retry" not in chunk:
                            self.assertTrue(all(len(f) > 6 for f in fields), chunk)
            live.server.proceed.set()
            soon(lambda: not live.endpoint.connections, "nobody is connected")
            left = [k for x in live.endpoint.deadlines.lines() for k in x]
            self.assertEqual([type(k) for k in left], [rt._HttpSession])

    def test_field_C15_silent_connections(self):
        limits = Limits(head_timeout=0.3, idle_timeout=0.3)
        expect = rt._Connection.expect

        def soon_over(connection, state, seconds):  # 2 s for who goes on sending
            expect(connection, state, 0.3 if state == "end" else seconds)

        patch = mock.patch.object(rt._Connection, "expect", soon_over)
        with (
            patch,
            Live(fixture(limits=limits)) as live,
            contextlib.ExitStack() as stack,
        ):
            silent = [stack.enter_context(live.client()) for _ in range(50)]
            slow = [stack.enter_context(live.client()) for _ in range(5)]
            (tls,) = [stack.enter_context(live.client())]
            for client in slow:
                client.send(b"P")
            tls.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 50)
            began = time.monotonic()
            self.assertEqual(live.ask(modern("tools/list")).status, 200)
            self.assertLess(time.monotonic() - began, 2)
            for client in silent:
                self.assertTrue(client.closed())
            for client in slow:
                self.assertEqual(client.reply().status, 408)
            self.assertEqual(tls.reply().status, 400)
            soon(lambda: not live.endpoint.connections, "nobody is connected")
        with Live(fixture(limits=Limits(connections=3))) as live:
            with contextlib.ExitStack() as stack:
                for _ in range(3):
                    stack.enter_context(live.client())
                soon(lambda: len(live.endpoint.connections) == 3, "all are in")
                self.assertEqual(stack.enter_context(live.client()).reply().status, 503)

    def test_field_C16_requests_that_are_too_large(self):
        start = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
        kind = b"Content-Type: application/json\r\n"
        with Live(fixture(limits=Limits(body=8192))) as live:
            empty = {"name": "echo", "arguments": {"text": ""}}
            _, _, body = modern("tools/call", empty).partition(b"\r\n\r\n")
            for size, status in ((8192, 200), (8193, 413)):
                text = "x" * (size - len(body))
                data = modern(
                    "tools/call", {"name": "echo", "arguments": {"text": text}}
                )
                self.assertEqual(live.ask(data).status, status)
            tracemalloc.start()
            for data, status in (
                (start + kind + b"Content-Length: 10000000000\r\n\r\n", 413),
                (start + kind + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 413),
                (start + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 40, 413),
                (start + b"X: " + b"y" * (1 << 20), 431),
                (start + b"a: b\r\n" * 5000, 431),
                (b"POST /" + b"x" * 100_000, 414),
            ):
                with self.subTest(status, data=data[39:60]), live.client() as client:
                    with contextlib.suppress(ConnectionError):
                        client.send(data)
                    reply = self.last(client)
                    if reply is not None:  # a reset may overtake it
                        self.assertEqual(reply.status, status)
                        self.assertEqual(reply.headers["connection"], "close")
                    self.assertTrue(client.closed())
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # Our own copies of the input are 1 MB; the server keeps a head or a chunk.
            self.assertLess(peak, 3 << 20)
            self.assertEqual(live.ask(modern("tools/list")).status, 200)

    def last(self, client):
        try:
            return client.reply()
        except (ConnectionError, EOFError):
            return None

    def test_field_C17_conflicting_framing(self):
        start = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
        more = modern("tools/list")
        for lines, status in (
            (b"Content-Length: 5\r\nContent-Length: 6\r\n", 400),
            (b"Content-Length: 5, 5\r\n", 400),
            (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
            (b"Transfer-Encoding: gzip, chunked\r\n", 501),
            (b"Transfer-Encoding: identity\r\n", 501),
        ):
            self.refused(start + lines + b"\r\nhello" + more, status)
        old = start.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n"
        self.refused(old + b"0\r\n\r\n" + more, 400)
        neither = request(headers=[("Content-Type", "application/json")])
        reply = self.ask(neither)
        self.assertEqual((reply.status, code_of(reply.json)), (400, -32700))

    def refused(self, data, status):
        with self.subTest(data[36:90]), self.live.client() as client:
            client.send(data)
            self.assertEqual(client.reply().status, status)
            self.assertTrue(client.closed())

    def test_field_C18_open_streams_do_not_hold_the_end(self):
        with Live(fixture(limits=Limits(grace=0.2))) as live:
            session = live.open()
            with live.client() as get, live.client() as listen, live.client() as nap:
                get.send(request("GET", headers=[("Mcp-Session-Id", session)]))
                get.head()
                wanted = {"notifications": {"toolsListChanged": True}}
                listen.send(modern("subscriptions/listen", wanted, 7))
                listen.head()
                listen.chunk()
                nap.send(modern("tools/call", {"name": "nap"}))
                live.server.entered.wait(PATIENCE)
                began = time.monotonic()
                live.loop.call_soon_threadsafe(live.stop.set)
                self.assertEqual(list(get.events()), [])
                self.assertEqual([m["id"] for m in listen.messages()], [7])
                live.thread.join(PATIENCE)
                self.assertLess(time.monotonic() - began, 3)
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", live.port))

    def test_field_C19_probes_without_a_session(self):
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        body = {
            "list": b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
            "call": call("echo", {"text": "x"}),
            "garbage": b"\xff{",
        }
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self.live.client()) for _ in range(100)]
            for client in clients:
                client.send(b"".join(request(body=each) for each in body.values()))
            for client in clients:
                for _ in body:
                    self.assertEqual(client.reply().status, 400)
        self.assertEqual(self.live.faults, [])
        self.assertEqual(self.ask(modern("tools/list")).status, 200)
        after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        self.assertEqual(after, before)

    def test_field_C20_localhost_is_every_loopback_family(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
            wanted = {"127.0.0.1", "::1"}
        except OSError:
            wanted = {"127.0.0.1"}
        with Live(fixture(), host="localhost") as live:
            self.assertEqual({name[0] for name in live.names}, wanted)
            for host in wanted:
                with Client(live.port, host) as client:
                    client.send(modern("tools/list"))
                    self.assertEqual(client.reply().status, 200)
        if "::1" in wanted:
            with Live(fixture(), host="::", insecure=True) as live:
                for host in wanted:
                    with Client(live.port, host) as client:
                        client.send(modern("tools/list"))
                        self.assertEqual(client.reply().status, 200)
        real = socket.socket

        def no_ipv6(family=socket.AF_INET, *rest, **more):
            if family == socket.AF_INET6:
                raise OSError(97, "Address family not supported by protocol")
            return real(family, *rest, **more)

        with mock.patch("socket.socket", no_ipv6):
            (listener,) = rt._listen("localhost", 0)
        listener.close()

    def test_field_C27_replay_stays_within_its_session(self):
        one, two = self.live.open(), self.live.open()
        ids = {}
        for session, secret in ((one, "secret of one"), (two, "two")):
            with self.live.client() as client:
                echo = {"name": "echo", "arguments": {"text": secret}}
                accept = [("Accept", "text/event-stream")]
                client.send(legacy(session, "tools/call", echo, headers=accept))
                client.head()
                ids[session] = [id for id, _ in client.events()]
        known = set(ids[one]) | set(ids[two])
        for id in [*sorted(known), "garbage", "-1--1", "9" * 30, "1-99999", "99-1"]:
            headers = [("Mcp-Session-Id", two), ("Last-Event-ID", id)]
            with self.subTest(id), self.live.client() as client:
                client.send(request("GET", headers=headers))
                reply = client.head()
                self.assertIn(reply.status, (200, 400, 404, 405))
                if reply.status == 200:
                    data = b"".join(d for _, d in client.events())
                    self.assertNotIn(b"secret of one", data)
                    self.assertIn(id, known)
        headers = {"Last-Event-ID": ids[one][0]}
        with self.live.client() as client:
            client.send(modern("tools/list", headers=headers))
            self.assertIn("tools", client.reply().json["result"])
        with self.live.client() as older, self.live.client() as newer:
            for client in (older, newer):
                client.send(request("GET", headers=[("Mcp-Session-Id", two)]))
                self.assertEqual(client.head().status, 200)
                self.assertEqual(client.chunk(), b":\n\n")
            self.live.server.notify_tools_changed()
            change = next(newer.events())[1]
            self.assertIn(b"tools/list_changed", change)
            self.assertEqual(list(older.events()), [])


CHUNK = b"400\r\n" + b"x" * 1024 + b"\r\n"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Node:
    value: int
    next: "typing.Optional[Node]" = None


class TD(typing.TypedDict):
    a: int


def said(server, name, arguments):
    """(text, is error) of a call."""
    result = server.call(name, arguments)
    return result["content"][0]["text"], result.get("isError", False)


class Schemas(Case):
    def listed(self, server, revision=D):
        found = talk(line("tools/list"), server=server, revision=revision)
        (reply,) = [m for m in found if "id" in m]  # not a list_changed
        return {tool["name"]: tool for tool in reply["result"]["tools"]}

    def test_field_D01_strings_stay_as_they_are(self):
        server, got = Server("x", "1"), []

        @server.tool
        def f(
            text: str,
            maybe: typing.Optional[str] = None,
            either: typing.Union[str, int] = 0,
        ) -> str:
            got.append((text, maybe, either))
            return text

        for value in ("12345", "007", "null", "true", "[1]", "1e3", "{}", " ", ""):
            text, wrong = said(
                server, "f", dict.fromkeys(("text", "maybe", "either"), value)
            )
            self.assertFalse(wrong)
            self.assertEqual(text, value)
            self.assertEqual(got.pop(), (value,) * 3)

    def test_field_D02_json_texts_in_place_of_values(self):
        """Refused with the name, what was expected, what came: nothing is guessed."""
        server = Server("x", "1")

        @server.tool
        def f(
            xs: typing.List[int] = (),
            n: int = 0,
            d: dict = {},
            on: bool = True,
        ) -> str:
            raise AssertionError("must not run")

        for name, value, wanted in (
            ("xs", "[1271, 2106]", "array"),
            ("n", "2000", "integer"),
            ("d", '{"a":1}', "object"),
            ("on", "true", "boolean"),
            ("n", "20x", "integer"),
            ("n", " 5 ", "integer"),
            ("n", "0x10", "integer"),
            ("on", "yes", "boolean"),
        ):
            text, wrong = said(server, "f", {name: value})
            self.assertTrue(wrong)
            self.assertTrue(text.startswith(f"{name}: expected"), text)
            self.assertRegex(text, f"{wanted}|true")
            self.assertIn(json.dumps(value), text)

    def test_field_D03_annotations_as_text(self):
        body = textwrap.dedent("""
            import typing
            from typing import Annotated, Literal, Optional
            from tinymcp import Context
            def f(a: int, b: Optional[list[int]] = None, c: Literal["x", "y"] = "x",
                  d: Annotated[float, "metres"] = 0.5, ctx: Context = None
                  ) -> dict[str, int]:
                return {"ctx": int(ctx is not None)}
        """)
        schemas = []
        for start in ("", "from __future__ import annotations\n"):
            space = {"__name__": __name__}
            exec(start + body, space)
            server = Server("x", "1")
            server.add_tool(space["f"], description="f")
            tool = self.listed(server)["f"]
            schemas.append((tool["inputSchema"], tool["outputSchema"]))
            self.assertEqual(said(server, "f", {"a": 1})[0], '{"ctx":1}')
        self.assertEqual(schemas[0], schemas[1])
        self.assertEqual(list(schemas[0][0]["properties"]), list("abcd"))
        modern_union = "from __future__ import annotations\ndef f(b: int | None): pass"
        space = {"__name__": __name__}
        exec(modern_union, space)
        if sys.version_info >= (3, 10):
            Server("x", "1").add_tool(space["f"])
        else:
            with self.assertRaisesRegex(DefinitionError, "b"):
                Server("x", "1").add_tool(space["f"])

    def test_field_D04_optional_is_not_default(self):
        server, got = Server("x", "1"), []

        @server.tool
        def f(
            a: typing.Optional[int],
            b: typing.Optional[int] = None,
            c: int = 3,
            d: typing.Optional[str] = "x",
        ) -> str:
            got.append((a, b, c, d))
            return ""

        self.assertFalse(said(server, "f", {"a": None})[1])
        self.assertFalse(said(server, "f", {"a": 1, "b": None})[1])
        self.assertEqual(got, [(None, None, 3, "x"), (1, None, 3, "x")])
        text, wrong = said(server, "f", {"a": 1, "c": None})
        self.assertTrue(wrong and text.startswith("c: "), text)
        text, wrong = said(server, "f", {})
        self.assertTrue(wrong and "a" in text, text)
        schema = self.listed(server)["f"]["inputSchema"]
        self.assertEqual(schema["required"], ["a"])
        self.assertEqual(schema["properties"]["c"]["default"], 3)

        @server.tool
        def g(a: typing.Any = object()) -> str:
            return ""

        self.assertNotIn("default", self.listed(server)["g"]["inputSchema"])

    def test_field_D05_arguments_that_are_no_object(self):
        server = Server("x", "1")
        server.add_tool(lambda: "ran", name="f")
        for given in ({}, {"arguments": None}, {"arguments": {}}):
            (reply,) = talk(line("tools/call", {"name": "f", **given}), server=server)
            self.assertEqual(text_of(reply), "ran")
        for given in ([], "", 0, False, "x"):
            (reply,) = talk(call("f", given), server=server)
            self.assertEqual(code_of(reply), -32602, given)

    def test_field_D06_signatures(self):
        server = Server("x", "1")

        class Bound:
            def method(self, x: int) -> int:
                return x

            def __call__(self, x: int) -> int:
                return x

        async def generator(x: int):
            yield x

        space = {}
        exec("def h(secret, /): pass", space)
        for function, name in (
            (lambda *many: 0, "many"),
            (lambda **free: 0, "free"),
            (space["h"], "secret"),
        ):
            with self.assertRaises(DefinitionError) as caught:
                server.add_tool(function, name="bad")
            self.assertIsInstance(caught.exception, TypeError)
            self.assertIn(name, str(caught.exception))

        def i(*, x: int) -> int:
            return x

        for n, function in enumerate(
            (i, Bound().method, functools.partial(i, x=5), Bound(), lambda x: x)
        ):
            server.add_tool(function, name=f"t{n}", description="t")
            given = {} if n == 2 else {"x": 5}  # what a partial has bound stays bound
            self.assertEqual(said(server, f"t{n}", given)[0], "5")
        try:
            server.add_tool(generator)
        except DefinitionError:
            pass
        else:
            self.assertTrue(said(server, "generator", {"x": 1})[1])

        def odd(self, _meta, class_, name, arguments) -> str:
            return f"{self}{_meta}{class_}{name}{arguments}"

        server.add_tool(odd)
        given = dict(zip(("self", "_meta", "class_", "name", "arguments"), "12345"))
        self.assertEqual(said(server, "odd", given)[0], "12345")

    def test_field_D07_the_root_of_a_schema_is_an_object(self):
        server = Server("x", "1")
        server.add_tool(lambda: 0, name="none")

        @server.tool
        def union(p: typing.Union[Point, Node]) -> str:
            return ""

        for name, tool in self.listed(server).items():
            schema = tool["inputSchema"]
            self.assertEqual(schema["type"], "object", name)
            self.assertIn("properties", schema)
            self.assertFalse({"anyOf", "oneOf", "$ref", "allOf"} & set(schema))
        for schema in ({"anyOf": [{}]}, {"message": {"type": "string"}}):
            with self.assertRaisesRegex(DefinitionError, "object"):
                server.add_tool(lambda message: 0, name="bad", input_schema=schema)

    def test_field_D08_plain_schemas(self):
        server = Server("x", "1")

        @server.tool
        def f(
            e: Color,
            p: Point,
            t: TD,
            o: typing.Optional[Point],
            l: typing.List[typing.Optional[Point]],  # noqa: E741  (l is one letter)
        ) -> str:
            return ""

        @server.tool
        def tree(node: Node) -> str:
            return str(node.next.next)

        tools = self.listed(server)
        text = json.dumps(tools["f"]["inputSchema"])
        for word in ('"$ref"', '"$defs"', '"type": [', ": true", "oneOf"):
            self.assertNotIn(word, text)
        fields = tools["f"]["inputSchema"]["properties"]
        self.assertEqual(fields["e"]["enum"], ["red", "blue"])
        self.assertEqual(fields["e"]["type"], "string")
        self.assertEqual(len(fields["o"]["anyOf"]), 2)
        self.assertLess(len(json.dumps(tools["tree"])), 5000)
        deep = {"node": {"value": 1, "next": {"value": 2, "next": None}}}
        self.assertEqual(said(server, "tree", deep), ("None", False))

    def test_field_D09_structured_content_fits_its_schema(self):
        values = {
            "int": (int, 5),
            "l": (typing.List[int], [1]),
            "n": (type(None), None),
            "d": (typing.Dict[str, int], {"a": 1}),
            "p": (Point, Point(1)),
            "t": (TD, {"a": 1}),
            "s": (str, "x"),
            "b": (bytes, b"x"),
        }
        server = Server("x", "1", log=lambda *a: None)

        def add(name, kind, value):
            def tool(fail: bool = False):
                if fail:
                    raise ValueError("no")
                return value

            tool.__annotations__ = {"fail": bool, "return": kind}
            server.add_tool(tool, name=name, description="d")

        for name, (kind, value) in values.items():
            add(name, kind, value)
        for revision in (A, C, D):
            tools = self.listed(server, revision)
            asked = [call(n, {}, n) for n in values]
            asked += [call(n, {"fail": True}, n + "!") for n in values]
            found = talk(*asked, server=server, revision=revision)
            results = {m["id"]: m["result"] for m in found}
            for name in values:
                result, schema = results[name], tools[name].get("outputSchema")
                self.assertFalse(result.get("isError"), result)
                self.assertTrue(results[name + "!"]["isError"])
                if schema is None:
                    continue
                self.assertEqual(schema["type"], "object")
                structured = result["structuredContent"]
                self.assertIsNone(rt._compile(schema, name)(structured))
                shown = result["content"][0]["text"]
                inner = structured.get("result", structured)
                self.assertIn(shown, (json.dumps(inner, separators=(",", ":")), inner))
            self.assertTrue(revision > A or not any("outputSchema" in t for t in tools))

    def test_field_D10_arguments_that_nobody_asked_for(self):
        server = Server("x", "1")

        @server.tool
        def f(text: str, ctx: Context) -> str:
            return f"{text}{type(ctx).__name__}"

        self.assertEqual(said(server, "f", {"text": "a"}), ("aContext", False))
        for extra in ("metadata", "ctx", "self"):
            text, wrong = said(server, "f", {"text": "a", extra: {}})
            self.assertTrue(wrong)
            self.assertIn(extra, text)
            self.assertNotIn(".py", text)
        self.assertIs(
            self.listed(server)["f"]["inputSchema"]["additionalProperties"], False
        )


class Lifecycle(Case):
    def test_field_E01_before_initialized(self):
        with Wire() as wire:
            start, ready = hello().splitlines(True)
            wire.send(start)
            wire.wait("i")
            wire.server.notify_tools_changed()
            wire.send(line("tools/list", None, 2))
            self.assertIn("result", wire.wait(2))
            self.assertEqual([m for m in wire.found if "method" in m], [])
            wire.send(ready)
            soon(lambda: any("method" in m for m in wire.found), "the change came")
        with Live(fixture()) as live:
            for _ in range(50):
                with live.client() as one, live.client() as two:
                    one.send(initialize())
                    session = one.reply().headers["mcp-session-id"]
                    note = legacy(session, "notifications/initialized", None, None)
                    one.send(note)
                    two.send(legacy(session, "tools/list"))
                    self.assertEqual(two.reply().status, 200)
                    self.assertEqual(one.reply().status, 202)

    def test_field_E02_no_handshake(self):
        for loop in ENGINES:
            data = [call("echo", {"text": "x"}), ping(b"2"), hello()]
            found = talk(*data, line("tools/list", None, 3), loop=loop, revision=None)
            self.codes(found, [(1, -32600), (2, None), (3, None)])
            (refused,) = [m for m in found if m["id"] == 1]
            self.assertIn("initialize", refused["error"]["message"])
        with Live(fixture()) as live:
            body = json.dumps(message("tools/list")).encode()
            for headers, status in (([], 400), ([("Mcp-Session-Id", "old")], 404)):
                reply = live.ask(request(body=body, headers=headers))
                self.assertEqual(reply.status, status)
                self.assertIn("initialize", reply.json["error"]["message"])
            self.assertEqual(live.ask(legacy(live.open(), "tools/list")).status, 200)

    def test_field_E03_version_negotiation(self):
        def negotiate(version):
            (start, _) = hello("?").splitlines(True)
            given = b"" if version is None else json.dumps(version).encode()
            data = start.replace(b'"protocolVersion": "?"', b'"x": 1')
            if version is not None:
                data = start.replace(b'"?"', given)
            with Wire() as wire:
                wire.send(data, ping(b"2"))
                wire.wait(2)
                return wire.wait("i")

        for version in ("2024-10-07", "2099-01-01", "1.0", "", E):
            result = negotiate(version)["result"]
            self.assertEqual(result["protocolVersion"], D, version)
        for version in (A, B, C, D):
            result = negotiate(version)["result"]
            self.assertEqual(result["protocolVersion"], version)
            self.assertLessEqual(
                set(result["capabilities"]),
                {"tools", "prompts", "resources", "logging", "completions"},
            )
        for version in (None, 5):
            self.assertEqual(code_of(negotiate(version)), -32602)

    def test_field_E08_fields_by_revision(self):
        icons = [{"src": "https://x.example/i.png", "sizes": ["48x48"]}]
        how = {"icons": icons, "title": "T", "description": "D"}
        server = Server("x", "1", website_url="https://x.example", **how)
        server.add_tool(lambda: 1, name="f", output_schema={"type": "integer"}, **how)
        server.add_resource("x://a", lambda: "a", name="a", **how)
        server.add_prompt(lambda: "p", name="p", **how)
        since = {
            "title": C,
            "icons": D,
            "websiteUrl": D,
            "description": D,
            "outputSchema": C,
        }
        lists = [line(f"{k}/list", None, k) for k in ("tools", "resources", "prompts")]
        for revision in (A, B, C, D):
            with Wire(server) as wire:
                wire.send(hello(revision), *lists)
                found = {m["id"]: m["result"] for m in wire.end()}
            self.assertEqual(set(found), {"i", "tools", "resources", "prompts"})
            info = found["i"]["serverInfo"]
            for field in ("title", "icons", "websiteUrl", "description"):
                self.assertEqual(field in info, revision >= since[field], field)
            tool = found["tools"]["tools"][0]
            for field in ("title", "icons", "outputSchema"):
                self.assertEqual(field in tool, revision >= since[field], field)
            for kind in ("resources", "prompts"):
                for field in ("title", "icons"):
                    entry = found[kind][kind][0]
                    self.assertEqual(field in entry, revision >= since[field], field)
            if revision == D:
                self.assertEqual(info["icons"][0]["sizes"], ["48x48"])


class Dual(Case):
    def test_field_F01_discover_first(self):
        for loop in ENGINES:
            discover = modern_line("server/discover", None, "d")
            bare = line("server/discover", None, "b")
            rest = [hello(), line("tools/list", None, 3)]
            found = talk(discover, bare, *rest, loop=loop, revision=None)
            by = {m.get("id"): m for m in found}
            result = by["d"]["result"]
            self.assertIn(E, result["supportedVersions"])
            self.assertEqual(result["resultType"], "complete")
            self.assertIn("ttlMs", result)
            self.assertIn("cacheScope", result)
            self.assertIn(code_of(by["b"]), (-32602, -32601))
            self.assertIn("tools", by[3]["result"])
            old = fixture(loop, modern=False)
            found = talk(discover, *rest, loop=loop, server=old, revision=None)
            by = {m.get("id"): m for m in found}
            self.assertIsNotNone(code_of(by["d"]))
            self.assertIn("tools", by[3]["result"])
        with Live(fixture()) as live:
            self.assertIn(E, live.ask(modern("server/discover")).body.decode())
            self.assertEqual(live.ask(legacy(live.open(), "tools/list")).status, 200)

    def test_field_F03_unknown_and_removed_methods(self):
        methods = ("foo/bar", "ping", "logging/setLevel", "resources/subscribe")
        with Live(fixture()) as live:
            for method in methods:
                reply = live.ask(modern(method, {}, "x"))
                self.assertEqual(reply.status, 404, method)
                self.assertEqual((reply.json["id"], code_of(reply.json)), ("x", -32601))
        found = talk(*(modern_line(m, None, m) for m in methods), revision=None)
        self.codes(found, [(m, -32601) for m in methods])

    def test_field_F04_headers_that_differ_from_the_body(self):
        server = fixture()
        ran = []
        server.add_tool(lambda text: ran.append(text), name="spy", inline=True)
        spy = {"name": "spy", "arguments": {"text": "x"}}
        with Live(server) as live:
            for headers in (
                {"MCP-Protocol-Version": None},
                {"MCP-Protocol-Version": D},
                {"Mcp-Method": None},
                {"Mcp-Method": "tools/list"},
                {"Mcp-Name": None},
                {"Mcp-Name": "other"},
                {"Mcp-Method": "Tools/Call"},
            ):
                with self.subTest(headers):
                    reply = live.ask(modern("tools/call", spy, 5, headers=headers))
                    self.assertEqual((reply.status, code_of(reply.json)), (400, -32020))
                    self.assertEqual(reply.json["id"], 5)
            twice = modern("tools/call", spy).replace(
                b"Mcp-Name: spy\r\n", b"Mcp-Name: spy\r\nMcp-Name: spy\r\n"
            )
            self.assertEqual(code_of(live.ask(twice).json), -32020)
            data = modern("tools/call", spy)
            bare = data.replace(b'"io.modelcontextprotocol/clientCapabilities"', b'"x"')
            bare = bare.replace(
                b"Content-Length: %d" % len(data.partition(b"\r\n\r\n")[2]),
                b"Content-Length: %d" % len(bare.partition(b"\r\n\r\n")[2]),
            )
            reply = live.ask(bare)
            self.assertEqual((reply.status, code_of(reply.json)), (400, -32602))
            self.assertEqual(ran, [])
            self.assertEqual(live.ask(data.replace(b"Mcp-N", b"MCP-n")).status, 200)
            self.assertEqual(ran, ["x"])

    def test_field_F05_unsupported_versions(self):
        key = "io.modelcontextprotocol/protocolVersion"
        with Live(fixture()) as live:
            for version in ("2027-01-01", "1900-01-01", 7):
                meta = {key: version}
                headers = {"MCP-Protocol-Version": str(version)}
                reply = live.ask(modern("tools/list", meta=meta, headers=headers))
                params = {"_meta": {**META, **meta}}
                (other,) = talk(line("tools/list", params), revision=None)
                self.assertEqual(reply.status, 400)
                for found in (reply.json, other):
                    if version == 7:
                        self.assertEqual(code_of(found), -32602)
                        continue
                    self.assertEqual(code_of(found), -32022)
                    data = found["error"]["data"]
                    self.assertIn(E, data["supported"])
                    self.assertEqual(data["requested"], version)

    def test_field_F06_members_of_results(self):
        cached = {
            "tools/list": {},
            "prompts/list": {},
            "resources/list": {},
            "resources/templates/list": {},
            "resources/read": {"uri": "x://a"},
            "server/discover": {},
        }
        plain = {"tools/call": {"name": "echo", "arguments": {"text": "x"}}}
        both = {**cached, **plain}
        found = talk(*(modern_line(m, p, m) for m, p in both.items()), revision=None)
        server_key = "io.modelcontextprotocol/serverInfo"
        for reply in found:
            result = reply["result"]
            self.assertEqual(result["resultType"], "complete")
            self.assertEqual(result["_meta"][server_key]["name"], "field")
            self.assertEqual("ttlMs" in result, reply["id"] in cached)
            if reply["id"] in cached:
                self.assertGreaterEqual(result["ttlMs"], 0)
                self.assertIs(type(result["ttlMs"]), int)
                self.assertIn(result["cacheScope"], ("public", "private"))
        self.assertEqual(len(found), 7)
        del both["server/discover"]
        for reply in talk(*(line(m, p, m) for m, p in both.items())):
            names = {"resultType", "ttlMs", "cacheScope", "_meta"}
            self.assertFalse(names & set(reply["result"]))
        orders = [
            [t["name"] for t in m["result"]["tools"]]
            for m in talk(*(line("tools/list", None, n) for n in "12"))
        ]
        self.assertEqual(orders[0], orders[1])

    def test_field_F07_both_eras_at_once(self):
        with Live(fixture()) as live:
            session = live.open()
            before = live.state()[0]
            odd = {"Mcp-Session-Id": "x", "Last-Event-ID": "9"}
            with live.client() as one, live.client() as two:
                for _ in range(100):
                    one.send(modern("tools/list", headers=odd))
                    two.send(legacy(session, "tools/list"))
                    reply = one.reply()
                    self.assertEqual(reply.json["result"]["resultType"], "complete")
                    self.assertNotIn("mcp-session-id", reply.headers)
                    self.assertNotIn("resultType", two.reply().json["result"])
            self.assertEqual(live.state()[0], before)

    def test_field_F08_encoded_header_values(self):
        server = fixture()
        schema = {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "x-mcp-header": "Region"},
                "on": {"type": "boolean", "x-mcp-header": "On"},
            },
        }

        def tool(n: object = None, on: object = None) -> str:
            return "ok"

        names = ("größe", "=?base64?QQ==?=", "plain")
        for name in names:
            server.add_tool(tool, name=name, input_schema=schema, description="d")
        server.add_resource("x://with space", lambda: "r", name="r")
        with Live(server) as live:

            def status(name, headers, arguments=None):
                params = {"name": name, "arguments": arguments or {}}
                return live.ask(modern("tools/call", params, headers=headers)).status

            uri = {"uri": "x://with space"}
            encoded = {"Mcp-Name": "=?base64?eDovL3dpdGggc3BhY2U=?="}
            for headers in ({}, encoded):
                reply = live.ask(modern("resources/read", uri, headers=headers))
                self.assertEqual(reply.status, 200)
            good = "=?base64?Z3LDtsOfZQ==?="
            for name, value, wanted in (
                ("größe", good, 200),
                ("größe", good.replace("base64", "BASE64"), 400),
                ("größe", "=?base64?Z3LDtsOfZQ=?=", 400),
                ("größe", "=?base64?*?=", 400),
                ("größe", "größe".encode().decode("latin-1"), 400),
                ("=?base64?QQ==?=", "=?base64?QQ==?=", 400),
                ("=?base64?QQ==?=", "=?base64?PT9iYXNlNjQ/UVE9PT89?=", 200),
                ("plain", "  plain  ", 200),
            ):
                with self.subTest(value):
                    self.assertEqual(status(name, {"Mcp-Name": value}), wanted)
            for arguments, headers, wanted in (
                ({"n": 42}, {"Mcp-Param-Region": "42.0"}, 200),
                ({"n": 42}, {"Mcp-Param-Region": "43"}, 400),
                ({"n": 42}, {}, 400),
                ({"n": None}, {"Mcp-Param-Region": "1"}, 400),
                ({}, {"Mcp-Param-Region": "1"}, 400),
                ({"on": True}, {"Mcp-Param-On": "true"}, 200),
                ({"on": True}, {"Mcp-Param-On": "True"}, 400),
            ):
                with self.subTest(arguments, headers=headers):
                    self.assertEqual(status("plain", headers, arguments), wanted)


# A server whose standard library lacks what small builds leave out.
BARE = """
import sys
sys.path.insert(0, HOME)
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(name + " is not built in")
sys.meta_path.insert(0, Blocked())
BLOCKED = BLOCKED_NAMES
import tinymcp
server = tinymcp.Server("bare", "1")
@server.tool(inline=True)
def echo(text: str) -> str:
    return text
"""
MISSING = "_ctypes ctypes _ssl ssl sqlite3 _sqlite3 curses _curses multiprocessing"


class Small(Case):
    """Constrained machines."""

    def start_bare(self, after, *flags, env=None, blocked=(), cwd=None):
        code = BARE.replace("BLOCKED_NAMES", repr(set(blocked)))
        code = code.replace("HOME", repr(str(HOME))) + after
        process = subprocess.Popen(
            [sys.executable, *SITE, *flags, "-c", code],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
            env=env,
            cwd=cwd,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def end_bare(self, process, data=b""):
        out, err = process.communicate(data, PATIENCE)
        return subprocess.CompletedProcess((), process.returncode, out, err)

    def run_bare(self, *words, data=b"", **options):
        return self.end_bare(self.start_bare(*words, **options), data)

    ASKED = hello() + call("echo", {"text": "x"})

    def answered(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({parse(m)["id"] for m in done.stdout.splitlines()}, {"i", 1})

    def test_field_G01_nothing_but_the_core_of_the_standard_library(self):
        blocked = [*MISSING.split(), "orjson", "pydantic", "anyio", "uvloop"]
        running = [
            self.start_bare(after, "-I", "-S", blocked=blocked)
            for after in ("server.run()", "server.run(loop=True)")
        ]
        http = (
            "import asyncio\n"
            "async def main():\n"
            "    stop, names = asyncio.Event(), []\n"
            "    task = asyncio.ensure_future(\n"
            "        server.serve_http(port=0, ready=names.extend, stop=stop))\n"
            "    while not names: await asyncio.sleep(0)\n"
            "    reader, writer = await asyncio.open_connection(*names[0])\n"
            "    writer.write(sys.stdin.buffer.read())\n"
            "    print((await reader.readline()).decode())\n"
            "    writer.close(); stop.set(); await task\n"
            "asyncio.run(main())\n"
        )
        blocked = [name for name in blocked if name not in ("_ssl", "ssl")]
        if sys.version_info >= (3, 11):  # before, asyncio itself wants to know of ssl
            blocked += ["_ssl", "ssl"]
        served = self.start_bare(http, "-I", "-S", blocked=blocked)
        for process in running:
            self.answered(self.end_bare(process, self.ASKED))
        done = self.end_bare(served, modern("tools/list"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"200 OK", done.stdout)

    def test_field_G02_start_loads_little(self):
        after = "import atexit\n@atexit.register\ndef _():\n print(sorted(sys.modules)"
        after += ", file=sys.stderr)\nserver.run()"
        with tempfile.TemporaryDirectory() as empty:
            env = {
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPYCACHEPREFIX": empty,
            }
            done = self.run_bare(after, "-S", data=self.ASKED, env=env)
        self.answered(done)
        modules = set(eval(done.stderr.splitlines()[-1]))
        heavy = "asyncio ssl http urllib email logging argparse subprocess typing"
        self.assertEqual(modules & set(heavy.split()), set())

    def test_field_G03_many_tools_cost_little(self):
        tracemalloc.start()
        try:
            server = Server("x", "1", page_size=1000)
            before = tracemalloc.get_traced_memory()[0]
            for n in range(524):

                def tool(text: str, count: int = 1) -> str:
                    """Do something with a text, so many times."""
                    return text

                server.add_tool(tool, name=f"tool_{n}", inline=True)
            (reply,) = talk(line("tools/list"), server=server)
            self.assertEqual(len(reply["result"]["tools"]), 524)
            del reply
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] - before
            # A third is the function and its list entry; Python 3.9 has larger dicts.
            most = 8 if sys.version_info >= (3, 11) else 10
            self.assertLess(used / 524, most * 1024)
            with Wire(server) as wire:
                sizes = []
                for round in range(3):
                    for n in range(500):
                        wire.send(call("tool_1", {"text": "x"}, n))
                    wire.send(ping(b'"%d"' % round))
                    wire.wait(str(round))
                    wire.found.clear()
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
            self.assertLess(sizes[2] - sizes[1], 50_000)
        finally:
            tracemalloc.stop()

    @unittest.skipUnless(POSIX, "POSIX limits")
    def test_field_G04_nothing_is_written(self):
        no_files = (
            "import resource\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
            "server.run(loop=%s)\n"
        )
        env = {"PATH": "", "TMPDIR": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
        running = [
            self.start_bare(no_files % loop, env=env, cwd="/") for loop in ENGINES
        ]
        for process in running:
            done = self.end_bare(process, self.ASKED)
            self.answered(done)
            self.assertEqual(done.stderr, b"")

    def test_field_G05_flags_of_the_interpreter(self):
        """The versions themselves are what the suite runs on.

        The engine without a loop: test_package, test_in_every_mode_of_python.
        """
        self.assertGreaterEqual(sys.version_info, (3, 9))
        running = [
            (flags, self.start_bare("server.run(loop=True)", *flags))
            for flags in (("-W", "error"), ("-OO",), ("-X", "dev"))
        ]
        for flags, process in running:
            done = self.end_bare(process, self.ASKED)
            self.answered(done)
            self.assertEqual(done.stderr, b"", flags)

    @unittest.skipUnless(os.path.isdir("/proc"), "Linux")
    def test_field_G06_idle_costs_nothing(self):
        code = (
            "import asyncio, os, resource, socket, time\n"
            "async def main():\n"
            "    stop, names = asyncio.Event(), []\n"
            "    task = asyncio.ensure_future(\n"
            "        server.serve_http(port=0, ready=names.extend, stop=stop))\n"
            "    while not names: await asyncio.sleep(0)\n"
            "    kept = [await asyncio.open_connection(*names[0]) for _ in range(7)]\n"
            "    for reader, writer in kept:\n"
            "        writer.write(REQUEST); await reader.readline()\n"
            "    for reader, writer in kept[:2]:\n"
            "        writer.write(LISTEN); await reader.readuntil(b'acknowledged')\n"
            "    began = time.process_time(); await asyncio.sleep(0.3)\n"
            "    print(time.process_time() - began)\n"
            "    top = len(os.listdir('/proc/self/fd')) + 4\n"
            "    resource.setrlimit(resource.RLIMIT_NOFILE, (top, top))\n"
            "    more = []\n"
            "    try:\n"
            "        while True:\n"
            "            more.append(socket.socket())\n"
            "            more[-1].connect(tuple(names[0]))\n"
            "    except OSError: pass\n"
            "    began = time.process_time(); await asyncio.sleep(0.3)\n"
            "    print(time.process_time() - began)\n"
            "    for each in more: each.close()\n"
            "    reader, writer = kept[-1]\n"
            "    writer.write(REQUEST); await reader.readuntil(b'200 OK')\n"
            "    stop.set(); await task\n"
            "    for _, writer in kept: writer.close()\n"
            "asyncio.run(main())\n"
        )
        listen = modern("subscriptions/listen", {"notifications": {}})
        code = code.replace("REQUEST", repr(modern("tools/list")))
        code = code.replace("LISTEN", repr(listen))
        served = self.start_bare(code)

        def ticks(app):
            stat = pathlib.Path(f"/proc/{app.process.pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        with contextlib.ExitStack() as stack:
            apps = [stack.enter_context(App(loop)) for loop in ENGINES]
            for app in apps:
                app.send(ping(b"1"))
                app.read()
            before = [*map(ticks, apps)]
            done = self.end_bare(served)  # they are idle meanwhile
            for app, used in zip(apps, before):
                self.assertLessEqual(ticks(app) - used, 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        for used in done.stdout.split():  # of 0.3 s, a loop that spins takes it all
            self.assertLess(float(used), 0.2, done.stdout)

    @unittest.skipUnless(POSIX, "/dev/full")
    def test_field_G09_a_log_that_nobody_reads(self):
        boom = (
            "@server.tool(inline=True)\ndef boom() -> str:\n    raise ValueError('x')"
        )
        data = b"".join(
            call("echo", {"text": "y" * 40_000, "z": 1}, n)
            + b"x" * 40_000
            + b"\n"
            + call("boom", {}, f"b{n}")
            for n in range(100)
        )
        wanted = {*range(100), *(f"b{n}" for n in range(100)), None}
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(open("/dev/full", "wb"))
            apps = []
            for loop in ENGINES:
                for kind in (subprocess.PIPE, full):
                    app = stack.enter_context(App(loop, after=boom, stderr=kind))
                    apps.append(app)
            for app in apps:
                sender = threading.Thread(target=app.send, args=(data,))
                sender.start()
                found = [app.read() for _ in range(300)]
                sender.join()
                self.assertEqual({m.get("id") for m in found}, wanted)
            for app in apps:
                if app.process.stderr:
                    app.process.stdin.close()
                    app.process.stdin = None
                    err = app.process.stderr.read()
                    self.assertNotIn(b"yyyy", err)

    def test_field_G10_any_pair_of_reader_and_writer(self):
        async def peer(server):
            ours, theirs = socket.socketpair()
            ends = [await asyncio.open_connection(sock=s) for s in (ours, theirs)]
            task = asyncio.ensure_future(server.serve(*ends[1]))
            return ends[0], task

        async def main():
            server = fixture()
            noise = b"\x00\xffrst:0x1\r\n"
            kept, waiting = await peer(server)
            kept[1].write(hello(A))
            found = json.loads(await kept[0].readline())
            self.assertEqual(found["result"]["protocolVersion"], A)
            for _ in range(2):
                (reader, writer), task = await peer(server)
                data = noise + hello(D) + call("echo", {"text": "é" * 30})
                for at in range(0, len(data), 20):
                    writer.write(data[at : at + 20])
                    await writer.drain()
                replies = [json.loads(await reader.readline()) for _ in range(3)]
                self.assertEqual([m.get("id") for m in replies], [None, "i", 1])
                self.assertEqual(replies[1]["result"]["protocolVersion"], D)
                writer.close()
                await asyncio.wait_for(task, PATIENCE)
            kept[1].write(ping(b"9"))
            self.assertEqual(json.loads(await kept[0].readline())["id"], 9)
            kept[1].close()
            await asyncio.wait_for(waiting, PATIENCE)

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
