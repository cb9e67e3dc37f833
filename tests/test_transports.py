"""How the client reaches a server: child processes, byte streams, HTTP."""

import asyncio
import contextlib
import functools
import gc
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from tinymcp import client, transports
from tinymcp.client import (
    Client,
    ClientError,
    ClientLimits,
    ConnectionLost,
    HttpStatusError,
    MCPError,
    RequestTimeout,
)

from .fakes import (
    LEGACY,
    MODERN,
    SSE,
    FakeHttp,
    FakeStream,
    Script,
    chunk,
    event,
    over_http,
    response,
)

HERE = pathlib.Path(__file__).resolve().parent
QUICK = {"probe": 2.0, "timeout": 5.0, "grace": 2.0}


def fake(**spec):
    """The command of a fake server."""
    return [sys.executable, "-S", "-E", str(HERE / "fake_server.py"), json.dumps(spec)]


# A server that answers one call, and then hears nothing while its output stays open:
# it has closed its input, or exited and left a process behind that has its descriptors.
DEAF = """
import json, os, subprocess, sys, time
def left(**options):
    return subprocess.Popen(["sleep", "60"], start_new_session=True, **options).pid
for line in sys.stdin.buffer:
    message = json.loads(line)
    call = message["method"] == "tools/call"
    result = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
    if call:
        numbers = [os.getpid(), LEFT]
        result = {"content": [{"type": "text", "text": json.dumps(numbers)}]}
    result["resultType"] = "complete"
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    sys.stdout.flush()
    if call:
        END
"""


def quick(**limits):
    return ClientLimits(**{**QUICK, **limits})


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Logged(unittest.IsolatedAsyncioTestCase):
    """Collects what the client logs, and has a folder."""

    # unittest turns the debug mode of asyncio on. It finds calls from a wrong thread,
    # and takes three quarters of the time of these tests: some of them keep it, all do
    # with -X dev.
    debug = sys.flags.dev_mode

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(self.debug)

    def setUp(self):
        self.logged = []
        client._eras.clear()  # ports come again
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.starts = self.folder / "starts"

    def client(self, target, **options):
        options.setdefault("limits", quick())
        return Client(target, log=self.logged.append, **options)

    def noted(self):
        """Lines of the `starts` file of a fake server."""
        return self.starts.read_text().split("\n")[:-1] if self.starts.exists() else []


class ChildTest(Logged):
    debug = True

    def setUp(self):
        super().setUp()
        self.children = []
        start = subprocess.Popen.__init__

        def noted(process, *args, **options):
            start(process, *args, **options)
            self.children.append(process.pid)

        patch = mock.patch.object(subprocess.Popen, "__init__", noted)
        patch.start()
        self.addCleanup(patch.stop)

    async def test_field_A13_stray_lines(self):
        first = ["Starting up...\n", "\n", "\x92\n", "[1,2]\n", '{"jsonrpc":"2.0"}\n']
        async with self.client(fake(first=first)) as client:
            self.assertEqual(client.protocol_version, LEGACY)
            result = await client.call_tool("echo", {"text": "é𝄞\u2028"})  # RPC-10
            self.assertEqual(result.text, "é𝄞\u2028")
        text = "\n".join(self.logged)
        self.assertIn("Starting up", text)
        self.assertEqual(len(self.logged), 3, text)

    async def test_field_A14_stderr_flood(self):
        """STD-03: stderr is drained, and only its end is kept."""
        async with self.client(fake(stderr=300_000)) as client:
            await client.ping()
            self.assertEqual(len(client._transport._tail), 8192)

    async def test_field_A15_child_exits_then_client_sends(self):
        """CLIENT variant: an error for each pending call and for the next one."""
        async with self.client(fake()) as client:
            calls = [client.call_tool("nothing") for _ in range(3)]
            crash = client.call_tool("crash")
            start = time.monotonic()
            outcomes = await asyncio.gather(*calls, crash, return_exceptions=True)
            self.assertLess(time.monotonic() - start, 2.0)
            for outcome in outcomes:
                self.assertIsInstance(outcome, ConnectionLost)
            self.assertIn("exited with code 3", str(outcomes[0]))
            self.assertIn("the pump is on fire", str(outcomes[0]))
            with self.assertRaises(ConnectionLost):
                await client.ping()

    async def test_a_command_that_serves_nothing(self):
        with self.assertRaisesRegex(ConnectionLost, r"code 0 before it ans.*run\(\)\?"):
            await self.client([sys.executable, "-S", "-c", ""]).__aenter__()

    async def test_field_A19_both_sides_write(self):
        """200 calls of 50 kB at once, in both directions."""
        text = "x" * 50_000
        async with self.client(fake()) as client:
            calls = (client.call_tool("echo", {"text": text}) for _ in range(200))
            results = await asyncio.gather(*calls)
            self.assertEqual({result.text for result in results}, {text})
            await client.ping()

    async def test_field_B02_id_as_text(self):
        """RPC-02, RPC-09: "3" is not the id 3."""
        async with self.client(fake()) as client:
            with self.assertRaises(RequestTimeout):
                await client.call_tool("as text", timeout=0.2)
            self.assertEqual((await client.call_tool("echo", {"text": "a"})).text, "a")
        self.assertIn("skipped an answer to id '", "\n".join(self.logged))

    async def test_field_E06_killed_in_a_call(self):
        async with self.client(fake()) as client:
            with self.assertRaisesRegex(ConnectionLost, "ended by signal 9"):
                await client.call_tool("kill")

    async def test_closes_output(self):
        """The server may end the conversation by closing its output."""
        async with self.client(fake(), limits=quick(grace=0.1)) as client:
            with self.assertRaisesRegex(ConnectionLost, "closed its output"):
                await client.call_tool("close output")

    async def all_reaped(self):
        """No child of these tests is left, not even a zombie.

        Each is asked for by its own id: the run may have other children, and a wait for
        any would take their exit codes. A loaded machine may need a moment.
        """
        self.assertTrue(self.children)
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # looks, and reaps nothing
        end = time.monotonic() + 5
        for child in self.children:
            with contextlib.suppress(ChildProcessError):
                while time.monotonic() < end:
                    os.waitid(os.P_PID, child, flags)
                    await asyncio.sleep(0.01)
            with self.assertRaises(ChildProcessError):
                os.waitid(os.P_PID, child, flags)

    async def attempt(self, spec, **options):
        with contextlib.suppress(ClientError, MCPError, asyncio.TimeoutError):
            async with self.client(fake(**spec), **options):
                pass

    async def test_field_E07_nothing_is_left(self):
        """STD-05: no child, zombie or descriptor after any kind of failed start."""
        starts = str(self.starts)
        short = quick(probe=0.15, timeout=0.3, grace=0.1)
        specs = [
            {"discover": "silent", "initialize": "silent"},
            {"initialize": -32603},
            {"first": ["garbage\n"] * 9, "initialize": "1999-01-01"},
            {"discover": "silent", "initialize": "silent", "ignores": True},
            {"grandchild": True, "initialize": -32603},
        ]
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(
            *(self.attempt({**s, "starts": starts}, limits=short) for s in specs)
        )
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        pids = [line.split()[1] for line in self.noted() if line[0] == "g"]
        end = time.monotonic() + 5
        while any(map(alive, pids)) and time.monotonic() < end:
            await asyncio.sleep(0.01)  # killed already, but not dead yet
        self.assertFalse([pid for pid in pids if alive(pid)])
        await self.all_reaped()

    async def test_field_E07_cancelled_start(self):
        """connect() cancelled half-way."""
        spec = {
            "discover": "silent",
            "initialize": "silent",
            "starts": str(self.starts),
        }

        async def cancelled(pause):
            trial = self.attempt({**spec, "ignores": True}, limits=quick(grace=0.2))
            task = asyncio.ensure_future(trial)
            await asyncio.wait([task], timeout=pause)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            self.assertTrue(task.done())

        await asyncio.gather(*map(cancelled, (0.0, 0.02, 0.1)))
        await self.all_reaped()

    async def test_field_E07_a_killed_child_that_dies_late(self):
        """SIGKILL takes its time on a loaded machine; no zombie stays after it."""
        async with self.client(fake(ignores=True), limits=quick(grace=0.0)) as client:
            await client.ping()
            late = subprocess.TimeoutExpired("fake", 0)
            wait = client._transport.process.wait

            def patient(timeout=None):
                if timeout is not None:
                    raise late
                return wait()

            client._transport.process.wait = patient
        await self.all_reaped()

    async def test_field_E07_one_child_for_all_calls(self):
        async with self.client(fake(starts=str(self.starts))) as client:
            for _ in range(20):
                await client.call_tool("echo", {"text": "x"})
        self.assertEqual(self.noted().count("start"), 1)
        self.assertEqual(self.noted()[-1], "end of input")

    async def test_shutdown_ladder(self):
        """STD-05: end of input, then SIGTERM, then SIGKILL."""
        command = fake(ignores=True, starts=str(self.starts))
        client = self.client(command, limits=quick(grace=0.2))
        async with client:
            process = client._transport.process
            start = time.monotonic()
        self.assertLess(time.monotonic() - start, 3.0)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual(self.noted()[-1], "end of input")
        async with self.client(fake()) as client:
            process = client._transport.process
        self.assertEqual(process.returncode, 0)

    async def test_cancelled_close_kills(self):
        client = self.client(fake(ignores=True), limits=quick(grace=30.0))
        await client.__aenter__()
        process = client._transport.process
        task = asyncio.ensure_future(client.close())
        await asyncio.wait([task], timeout=0.05)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        self.assertEqual(process.returncode, -signal.SIGKILL)

    async def test_environment(self):
        """STD-08: a clean environment, unless it is asked for."""
        os.environ["TINYMCP_TEST_SECRET"] = "s"
        self.addCleanup(os.environ.pop, "TINYMCP_TEST_SECRET")
        cwd = os.path.realpath(self.folder)

        async def seen(**options):
            async with self.client(fake(), **options) as client:
                return json.loads((await client.call_tool("env")).text)

        clean = await seen(env={"TOKEN": "t"}, cwd=cwd)
        self.assertNotIn("TINYMCP_TEST_SECRET", clean["env"])
        self.assertEqual(clean["env"]["TOKEN"], "t")
        self.assertEqual(clean["env"]["PATH"], os.environ["PATH"])
        self.assertEqual(clean["cwd"], cwd)
        whole = await seen(inherit_env=True)
        self.assertEqual(whole["env"]["TINYMCP_TEST_SECRET"], "s")

    async def test_stderr_choices(self):
        with open(self.folder / "log", "wb") as log:
            async with self.client(fake(stderr=10), stderr=log) as client:
                await client.ping()
        self.assertEqual((self.folder / "log").read_text(), "x" * 10)
        for mode in ("ignore", "inherit"):
            async with self.client(fake(), stderr=mode) as client:
                self.assertIsNone(client._transport.process.stderr)

    async def test_no_such_command(self):
        with self.assertRaisesRegex(ConnectionLost, "no-such-command"):
            await self.client(["/no-such-command"]).__aenter__()

    async def test_command_as_string(self):
        command = f"{sys.executable} -S -E '{HERE}/fake_server.py' '{{}}'"
        async with self.client(command) as client:
            self.assertEqual(client.server_info["name"], "fake")

    async def test_restart(self):
        """STD-07: a crashed server is started again at the next call."""
        command = fake(starts=str(self.starts))
        async with self.client(command, restart=True) as client:
            with self.assertRaises(ConnectionLost):
                await client.call_tool("crash")
            self.assertEqual((await client.call_tool("echo", {"text": "a"})).text, "a")
        self.assertEqual(self.noted().count("start"), 2)
        self.assertEqual(self.noted().count("server/discover"), 1)  # VER-06

    async def deaf(self, left, end, text):
        """Calls of a server that hears nothing after the first of them."""
        script = DEAF.replace("LEFT", left).replace("END", end)
        command = [sys.executable, "-S", "-E", "-c", script]
        limits = quick(grace=0.1)

        async def call(client):
            result = json.loads((await client.call_tool("x")).text)
            if result[1]:
                self.addCleanup(os.kill, result[1], signal.SIGKILL)
            return result[0]

        async with self.client(command, restart=True, limits=limits) as client:
            first = await call(client)
            while "_exit" in end and not client._transport._gone():
                await asyncio.sleep(0.001)
            started = time.monotonic()
            with self.assertRaisesRegex(ConnectionLost, text):
                await call(client)
            self.assertLess(time.monotonic() - started, 3.0)
            self.assertNotEqual(await call(client), first)

    @mock.patch.object(transports, "_DRAIN", 0.05)
    async def test_restart_of_a_server_that_closed_its_input(self):
        """STD-07: it is lost, though its output stays open."""
        await self.deaf("0", "os.close(0); time.sleep(60)", "closed its input")

    @mock.patch.object(transports, "_DRAIN", 0.05)
    async def test_restart_of_a_server_that_left_a_process_behind(self):
        """That has its output, and perhaps its input, too."""
        for left in ("left(stdin=subprocess.DEVNULL)", "left()"):
            with self.subTest(left):
                await self.deaf(left, "os._exit(3)", "exited with code 3")

    @mock.patch.object(transports, "_DRAIN", 0.05)
    @mock.patch.object(os, "pidfd_open", side_effect=OSError, create=True)
    async def test_restart_where_the_system_tells_of_no_exit(self, pidfd_open):
        """The next call finds out."""
        await self.deaf("left()", "os._exit(3)", "exited with code 3")

    async def test_restart_has_a_limit(self):
        limits = quick(retries=2)
        async with self.client(fake(), restart=True, limits=limits) as client:
            for _ in range(3):
                with self.assertRaises(ConnectionLost):
                    await client.call_tool("crash")
            with self.assertRaisesRegex(ConnectionLost, "does not stay alive"):
                await client.ping()

    async def test_without_waitid(self):
        """Where the system has none, the child is polled."""
        waitid = os.waitid
        del os.waitid
        try:
            async with self.client(fake()) as client:
                with self.assertRaisesRegex(ConnectionLost, "exited with code 3"):
                    await client.call_tool("crash")
        finally:
            os.waitid = waitid


class ForgottenTest(Logged):
    debug = True

    async def test_a_client_that_nobody_closed(self):
        """Its child ends with it, also one that does not listen, and it is told."""
        for ignores in (False, True):
            target = self.client(
                fake(discover="modern", ignores=ignores), limits=quick(grace=0.2)
            )
            await target.__aenter__()
            pid = target._transport.process.pid
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            with self.assertWarnsRegex(ResourceWarning, "unclosed client"):
                del target
                gc.collect()
            end = time.monotonic() + 10
            while alive(pid) and time.monotonic() < end:
                await asyncio.sleep(0.02)
            self.assertFalse(alive(pid), f"ignores: {ignores}")


class StreamTest(Logged):
    async def test_unix_socket(self):
        """STD-09: the framing of stdio over a Unix socket."""
        server, path = FakeStream(), str(self.folder / "s")
        listener = await asyncio.start_unix_server(server.serve, path)
        try:
            for target in (path, "unix:" + path):
                async with self.client(target) as client:
                    self.assertEqual(client.protocol_version, MODERN)
        finally:
            listener.close()

    async def test_no_socket(self):
        with self.assertRaises(ConnectionLost):
            await self.client("unix:" + str(self.folder / "none")).__aenter__()

    async def test_over_long_line(self):
        """STD-10: memory stays bounded, the next message is read."""
        server = FakeStream()
        async with self.client(server, limits=quick(message=100_000)) as client:
            for _ in range(4):
                server.writer.write(b"x" * 60_000)
                await server.writer.drain()
            server.writer.write(b"rest\n")
            await client.ping()
        text = "\n".join(self.logged)
        self.assertIn("skipped a message over 100000 bytes", text)
        self.assertNotIn("rest", text)

    async def test_server_that_does_not_read(self):
        """What waits to be written is bounded."""
        done = asyncio.Event()

        async def deaf(params):
            server.reader_task.pause_reading()
            return {}

        server = FakeStream(tools__call=deaf)
        serve = server.serve

        async def keep(reader, writer):
            server.reader_task = writer.transport
            await serve(reader, writer)

        server.serve = keep
        limits = quick(message=100_000, grace=0.1)
        async with self.client(server, limits=limits) as client:
            await client.call_tool("deaf")
            big = {"text": "x" * 400_000}
            calls = [client.call_tool("x", big, timeout=0.1) for _ in range(8)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            lost = [e for e in outcomes if isinstance(e, ConnectionLost)]
            self.assertTrue(lost)
            self.assertIn("does not read", str(lost[0]))
        done.set()

    async def test_in_flight_limit(self):
        server = FakeStream(tools__call=lambda params: None)
        async with self.client(server, limits=quick(in_flight=2)) as client:
            calls = [client.call_tool("x", timeout=0.1) for _ in range(3)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            kinds = sorted(type(outcome).__name__ for outcome in outcomes)
            self.assertEqual(kinds, ["ClientError", "RequestTimeout", "RequestTimeout"])

    async def test_batch(self):
        """RPC-07, RPC-12: replies in a batch, in any order."""
        waiting = []

        def collect(params):
            waiting.append(server.seen[-1]["id"])
            if len(waiting) == 2:
                text = json.dumps(
                    [
                        {"jsonrpc": "2.0", "id": i, "result": {"n": i}}
                        for i in waiting[::-1]
                    ]
                )
                server.writer.write(text.encode() + b"\n")

        server = FakeStream("legacy", ping=collect)
        async with self.client(server) as client:
            await asyncio.gather(client.ping(), client.ping())

    async def test_never_opened(self):
        for target in ("http://localhost/", ["x"], FakeStream()):
            await self.client(target).close()
        with self.assertRaisesRegex(TypeError, "no option header"):
            self.client("http://localhost/", header={})

    async def test_used_outside_with(self):
        """No empty list is answered for a server that nobody has asked."""
        for closed in (False, True):
            client = self.client(FakeStream())
            if closed:
                async with client:
                    pass
            works = [
                client.ping,
                client.list_tools,
                functools.partial(client.call_tool, "x"),
                functools.partial(client.set_logging_level, "error"),
                client.subscribe("x://1").__aenter__,
            ]
            for work in works:
                with self.subTest(closed=closed, work=work):
                    with self.assertRaisesRegex(ConnectionLost, "not open: use it in"):
                        await work()


class RulesTest(unittest.TestCase):
    """Pure functions."""

    def test_ports(self):
        for port in (0, 65536, 99999):
            with self.assertRaisesRegex(ValueError, f"no port is {port}"):
                transports._Url(f"http://localhost:{port}/")

    def test_urls(self):
        url = transports._Url
        cases = {
            "http://localhost": ("localhost", 80, "/"),
            "http://[::1]:8000/mcp?x=1#f": ("::1", 8000, "/mcp?x=1"),
            "HTTPS://Example.com?q": ("example.com", 443, "/?q"),
        }
        for text, wanted in cases.items():
            parts = url(text)
            self.assertEqual((parts.host, parts.port, parts.target), wanted, text)
        for text in (
            "ftp://x",
            "http://",
            "http://u:p@h/",
            "http://h/ x",
            "http://h:x/",
        ):
            with self.assertRaises(ValueError, msg=text):
                url(text)
        base = url("http://h:1/mcp")
        self.assertEqual(base.join("/mcp/").text, "http://h:1/mcp/")
        self.assertEqual(base.join("https://o/").origin, "https://o:443")

    def test_local_urls(self):
        """A name that begins like an address of this machine may be anybody's."""
        for host in "localhost LOCALHOST:8000 [::1] 127.0.0.1 127.8.9.255".split():
            self.assertTrue(transports._Url(f"http://{host}/").local, host)
        for host in "h 127.evil.example 127.0.0.1.example 127. 127.0.0.256".split():
            self.assertFalse(transports._Url(f"http://{host}/").local, host)

    def test_header_values(self):
        """HTM-09: plain, or in the sentinel."""
        cases = {
            "us-west1": "us-west1",
            "a b": "a b",
            "": "",
            "Hello, 世界": "=?base64?SGVsbG8sIOS4lueVjA==?=",
            " padded ": "=?base64?IHBhZGRlZCA=?=",
            "line1\nline2": "=?base64?bGluZTEKbGluZTI=?=",
            "=?base64?literal?=": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
            True: "true",
            -7: "-7",
        }
        for value, wanted in cases.items():
            self.assertEqual(transports._header_value(value), wanted)

    def test_header_params(self):
        """HTM-14: mirrored arguments, nested ones too."""
        schema = {
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "x-mcp-header": {"type": "object"},
                "deep": {
                    "properties": {"n": {"type": "integer", "x-mcp-header": "N"}},
                    "default": {"x-mcp-header": "data"},
                },
            }
        }
        paths = transports._header_paths(schema)
        arguments = {"region": "eu", "deep": {"n": 3.0}, "other": 1}
        self.assertEqual(
            sorted(transports._header_params(paths, arguments)),
            [("Mcp-Param-N", "3"), ("Mcp-Param-Region", "eu")],
        )
        for arguments in ({"region": None}, {"deep": 3}, {}, None):
            self.assertEqual(transports._header_params(paths, arguments), [])

    def test_unusable_header_params(self):
        """HTM-15."""

        def one(**field):
            return {"properties": {"a": {"type": "string", **field}}}

        twice = {
            "a": {"type": "string", "x-mcp-header": "X"},
            "b": {"type": "string", "x-mcp-header": "x"},
        }
        marked = {"type": "string", "x-mcp-header": "X"}
        bad = [
            one(**{"x-mcp-header": ""}),
            one(**{"x-mcp-header": "a b"}),
            one(**{"x-mcp-header": 3}),
            one(**{"x-mcp-header": "é"}),
            one(**{"x-mcp-header": "X", "type": "number"}),
            {"x-mcp-header": "X", "type": "object"},
            {"properties": twice},
            {"properties": {"a": {"items": marked}}},
            {"anyOf": [{"properties": {"a": marked}}]},
            {"$defs": {"a": marked}},
            {"properties": {"a": {"patternProperties": {"x": marked}}}},
        ]
        for schema in bad:
            with self.assertRaises(ValueError, msg=str(schema)):
                transports._header_paths(schema)
        for fine in (None, True, {"properties": 1}, {"$defs": 1}):
            self.assertEqual(transports._header_paths(fine), [])

    def test_events(self):
        """HTM-19, HTL-11: comments, CR LF in any split, several data lines, ids."""
        stream = (
            b"\xef\xbb\xbfdata: first\n\n: comment\r\n\r\nevent: message\r\nid: 7\r\n"
            b"data: a\r\ndata:b\r\n\r\nretry: 1500\nretry: x\nid: z\0\nnothing\n"
            b"data\n\ndata: end\r\r"
        )
        wanted = [b"first", b"a\nb", b"end"]
        for size in (1, 2, 3, 1000):
            parser, got = transports._Sse(1000), []
            for start in range(0, len(stream), size):
                got += parser.feed(stream[start : start + size])
            got += parser.feed(b"\n")
            self.assertEqual(got, wanted, size)
            self.assertEqual((parser.last_id, parser.retry), ("7", 1.5))
        with self.assertRaises(ConnectionLost):
            transports._Sse(10).feed(b"data: 123456789\n")

    def test_limits(self):
        with self.assertRaisesRegex(TypeError, "nonsense"):
            ClientLimits(nonsense=1)
        self.assertEqual(ClientLimits(timeout=1).timeout, 1)


class HttpTest(Logged):
    async def served(self, answer, **options):
        server = await self.enterAsyncContext(FakeHttp(answer, **options))
        return server

    if sys.version_info < (3, 11):

        async def enterAsyncContext(self, context):
            value = await context.__aenter__()
            self.addAsyncCleanup(context.__aexit__, None, None, None)
            return value

    async def test_field_E06_broken_replies(self):
        """Each ends with a connection error at once."""
        head = SSE + b"Connection: close\r\n\r\n"
        half = event({"id": 1, "result": {}})[:-10]
        cases = {
            "reset": b"",
            "after the head": head,
            "within an event": head + half,
            "empty 200": response(200, b""),
            "202 for a request": response(202, b""),
            "HTML 502": response(
                502, b"<html><b>Bad gateway</b>", content_type="text/html"
            ),
            "not HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
            "bad header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "bad length": response(200, b"", content_length="-1"),
            "bad coding": response(200, b"", transfer_encoding="gzip"),
            "bad chunk": SSE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            "torn chunk": SSE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
            "short body": response(200, b"{}", content_length=50) + b"",
            "other id": response(200, {"jsonrpc": "2.0", "id": 77, "result": {}}),
            "long head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        }
        script = Script()
        plain = over_http(script)
        case = ""

        async def answer(request, writer):
            if request.json["method"] != "tools/call":
                return await plain(request, writer)
            writer.write(cases[case])

        server = await self.served(answer)
        async with self.client(server.url) as client:
            for case in cases:
                start = time.monotonic()
                with self.assertRaises(ConnectionLost, msg=case) as raised:
                    await client.call_tool("x")
                self.assertLess(time.monotonic() - start, 1.0, case)
                if case == "HTML 502":
                    self.assertEqual(raised.exception.status, 502)
                    self.assertIn("Bad gateway", str(raised.exception))
            await client.ping()
            self.assertFalse(client._transport._http._open)  # no connection is lost

    async def test_keep_alive(self):
        """One connection for calls one after the other, with JSON and with SSE."""
        for sse in (False, True):
            script = Script(tools__call={"content": []})
            server = await self.served(over_http(script, sse=sse))
            async with self.client(server.url) as client:
                for _ in range(5):
                    await client.call_tool("x")
                    await asyncio.sleep(0)  # lets the end of a stream be read
            self.assertLessEqual(server.connections, 1 + sse)

    async def test_many_at_a_time(self):
        """Connections are bounded; calls wait for one."""
        open_now, most = 0, 0

        async def slow(params):
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0.01)
            open_now -= 1
            return {"content": []}

        server = await self.served(over_http(Script(tools__call=slow)))
        async with self.client(server.url, limits=quick(connections=3)) as client:
            await asyncio.gather(*(client.call_tool("x") for _ in range(20)))
        self.assertEqual(most, 3)

    async def test_no_connection_in_time(self):
        """LIF-09: to wait for a connection, or for it to open, is a part of a call."""

        async def never(*args, **options):
            await asyncio.sleep(30)

        async def timed(client, **options):
            start = time.monotonic()
            with self.assertRaises(RequestTimeout):
                await client.ping(timeout=0.2, **options)
            self.assertLess(time.monotonic() - start, 2.0)

        script = Script(tools__call=lambda params: asyncio.sleep(30))
        server = await self.served(over_http(script))
        async with self.client(server.url, limits=quick(connections=1)) as client:
            await client.list_tools()
            tasks = [asyncio.ensure_future(client.call_tool("x")) for _ in range(2)]
            await script.until_method("tools/call")
            await timed(client)
            for task in reversed(tasks):  # the one that waits for a connection first
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            with mock.patch.object(client._transport._http, "_connect", never):
                await timed(client)
            await client.ping(timeout=2.0)  # and nothing is held by then
            self.assertEqual(len(client._transport._http._open), 0)

    async def test_idle_connection_closed(self):
        """A list goes again over a new connection; a tool call never does."""
        script = Script(tools__call={"content": []})
        plain = over_http(script)
        drop = False

        async def answer(request, writer):
            nonlocal drop
            if drop:
                drop = False
                return None
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            await client.list_tools()
            drop = True
            await client.list_tools(refresh=True)
            drop = True
            with self.assertRaises(ConnectionLost):
                await client.call_tool("x")
        self.assertEqual(len(server.sent("tools/call")), 1)

    async def test_answer_shapes(self):
        """HTM-01, HTM-20, HTM-21: chunked or sized, 1.0 or 1.1, after a 100."""
        reply = (
            b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"resultType":"complete"}}'
        )

        def shape(request):
            body = reply % request.json["id"]
            a, b = body[:9], body[9:]
            return [
                b"HTTP/1.1 200 OK\r\nCONTENT-TYPE: Application/JSON\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
                + chunk(a)
                + b"%x;x=y\r\n%s\r\n0\r\nTrailer: x\r\n\r\n" % (len(b), b),
                b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + body,
                b"HTTP/1.1 100 Continue\r\n\r\n"
                + response(200, body, content_type="a/json"),
                response(200, body, connection="close"),
                response(200, body, content_type=None),
                SSE + b"\r\n: hi\r\n\r\ndata: " + body + b"\n\n",
            ]

        script, number = Script(), 0
        plain = over_http(script)

        async def answer(request, writer):
            if request.json["method"] != "tools/call":
                return await plain(request, writer)
            data = shape(request)[number]
            writer.write(data[: len(data) // 2])
            await writer.drain()
            writer.write(data[len(data) // 2 :])
            return (
                b"" if number in (0, 2, 4) else None
            )  # others end with the connection

        server = await self.served(answer)
        async with self.client(server.url) as client:
            for _ in range(6):
                self.assertEqual((await client.call_tool("x")).content, [])
        accept = server.seen[0].headers["accept"]
        self.assertEqual(accept, "application/json, text/event-stream")

    async def test_redirects(self):
        """Within the origin only, and only where the method is kept (C05)."""
        script = Script(tools__list={"tools": []})
        plain = over_http(script)
        location, status = "/mcp/", 307

        async def answer(request, writer):
            if request.path == "/mcp":
                return response(status, b"", location=location)
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            self.assertEqual(client.protocol_version, MODERN)
            location = "http://example.invalid/mcp"
            with self.assertRaisesRegex(
                ConnectionLost, "refused a redirect to http://e"
            ):
                await client.list_tools()
            location = "/mcp"
            with self.assertRaisesRegex(ConnectionLost, "too many"):
                await client.list_tools()
            status, location = 302, "/elsewhere"
            with self.assertRaisesRegex(HttpStatusError, "redirect to /elsewhere"):
                await client.list_tools()

    async def test_standard_headers(self):
        """HTM-05, HTM-06, HTM-10: headers mirror the body; nobody else's are sent."""
        script = Script(
            tools__call={"content": []},
            resources__read={"contents": []},
            prompts__get={"messages": []},
        )
        server = await self.served(over_http(script))
        async with self.client(server.url, headers={"X-Board": "7"}) as client:
            await client.call_tool("téa")
            await client.read_resource("x://y")
            await client.get_prompt("p")
        names = {"tools/call": "=?base64?dMOpYQ==?=", "resources/read": "x://y"}
        names["prompts/get"] = "p"
        for request in server.seen:
            method, meta = request.json["method"], request.json["params"]["_meta"]
            self.assertEqual(request.headers["mcp-method"], method)
            self.assertEqual(request.headers.get("mcp-name"), names.get(method))
            self.assertEqual(request.headers["mcp-protocol-version"], MODERN)
            self.assertEqual(meta["io.modelcontextprotocol/protocolVersion"], MODERN)
            self.assertEqual(request.headers["x-board"], "7")
            self.assertNotIn("mcp-session-id", request.headers)
        with self.assertRaisesRegex(ValueError, "line end"):
            await self.client(server.url, headers={"X": "a\r\nB: c"}).__aenter__()

    async def test_timeout_closes_the_stream(self):
        """HTM-17, LIF-09: for a modern server that is the cancellation."""
        gone = asyncio.Event()

        async def answer(request, writer):
            if request.json["method"] != "tools/call":
                return await plain(request, writer)
            writer.write(SSE + b"\r\n: wait\n\n")
            try:
                while not writer.is_closing():
                    writer.write(b": wait\n\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            finally:
                gone.set()

        plain = over_http(Script())
        server = await self.served(answer)
        async with self.client(server.url) as client:
            with self.assertRaises(RequestTimeout):
                await client.call_tool("x", timeout=0.2)
            await asyncio.wait_for(gone.wait(), 5)
            gone.clear()
            task = asyncio.ensure_future(client.call_tool("x"))
            await server.until(lambda r: len(server.sent("tools/call")) == 2)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.wait_for(gone.wait(), 5)
        self.assertFalse(server.sent("notifications/cancelled"))

    async def test_timeout_before_the_head(self):
        async def answer(request, writer):
            if request.json["method"] != "tools/call":
                return await plain(request, writer)
            await asyncio.sleep(30)

        plain = over_http(Script())
        server = await self.served(answer)
        async with self.client(server.url) as client:
            with self.assertRaises(RequestTimeout):
                await client.call_tool("x", timeout=0.1)

    async def test_no_server(self):
        server = await self.served(over_http(Script()))
        await server.__aexit__()
        with self.assertRaises(ConnectionLost):
            await self.client(server.url).__aenter__()

    async def test_connect_timeout(self):
        class Never:
            pass

        async def hang(*args, **options):
            await asyncio.sleep(60)

        real, asyncio.open_connection = asyncio.open_connection, hang
        vars(transports.asyncio).pop("open_connection", None)
        try:
            with self.assertRaisesRegex(ConnectionLost, "no connection within"):
                await self.client(
                    "http://localhost:9/", limits=quick(connect=0.05)
                ).__aenter__()
        finally:
            asyncio.open_connection = real
            vars(transports.asyncio).pop("open_connection", None)

    # Legacy: sessions, the GET stream, resumption

    async def test_session(self):
        """HTL-03, HTL-05, LIF-03: the id on all requests, DELETE at the end."""
        script = Script("legacy", tools__call={"content": []})
        server = await self.served(over_http(script, session="s-1"))
        async with self.client(server.url) as client:
            self.assertEqual(client.protocol_version, LEGACY)
            await client.call_tool("x")
        discover, initialize, *rest = server.seen
        self.assertEqual(discover.json["method"], "server/discover")
        for name in ("mcp-protocol-version", "mcp-method", "mcp-session-id"):
            self.assertNotIn(name, initialize.headers)
        for request in rest:
            self.assertEqual(request.headers["mcp-session-id"], "s-1")
            self.assertEqual(request.headers["mcp-protocol-version"], LEGACY)
            self.assertNotIn("mcp-method", request.headers)
        self.assertEqual(rest[0].json["method"], "notifications/initialized")
        self.assertEqual(rest[1].method, "GET")
        self.assertEqual(rest[-1].method, "DELETE")

    async def test_an_acknowledgment_without_its_body(self):
        """What has no answer has a time limit, to the last byte of its response."""
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if b"notifications/initialized" in request.body:
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\n")
                await asyncio.sleep(30)
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url, limits=quick(timeout=0.2)) as client:
            await client.ping()
        self.assertIn("the server does not answer", "\n".join(self.logged))

    async def test_what_nobody_asked_for_is_no_reply(self):
        """A kept connection with bytes or an end on it is not used again."""
        stale = {"jsonrpc": "2.0", "id": 4, "result": {"content": [], "stale": True}}
        for extra in (response(408, b"idle"), response(200, stale)):
            plain = over_http(Script("legacy", tools__call={"content": []}))

            async def answer(request, writer, extra=extra, plain=plain):
                data = await plain(request, writer)
                return data + extra if b"tools/call" in request.body else data

            server = await self.served(answer)
            server.keep = True
            async with self.client(server.url) as client:
                for _ in range(3):
                    self.assertEqual(await client.call_tool("x"), {"content": []})
            self.assertEqual(len(server.sent("tools/call")), 3)

    async def test_session_lost_with_any_json(self):
        """HTL-04: 404 with JSON that is no object means it, too."""
        for body in (b'"x"', b"[1]", b"5", b"null", b'{"id": 5.0}'):
            plain = over_http(Script("legacy"), session="s-1")
            lost = [1]

            async def answer(request, writer, plain=plain, body=body, lost=lost):
                if lost and b'"ping"' in request.body:
                    lost.clear()
                    return response(404, body, content_type="application/json")
                return await plain(request, writer)

            server = await self.served(answer)
            async with self.client(server.url) as client:
                await client.ping()
            self.assertEqual(len(server.sent("initialize")), 2)

    async def test_malformed_session_ids(self):
        """HTL-01: visible ASCII; a line end within a header is none of it."""
        for session in ("a\nb", "a b", "\xe9", "a\tb"):
            server = await self.served(over_http(Script("legacy"), session=session))
            with self.subTest(session), self.assertRaises(ConnectionLost):
                await self.client(server.url).__aenter__()

    async def test_a_stream_that_is_awaited_ends_with_its_call(self):
        plain = over_http(Script("legacy"), session="s-1")

        async def answer(request, writer):
            if b"tools/call" in request.body:
                writer.write(SSE + b"\r\n" + event(id="1", retry=9999999))
                return None
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            before = set(client._transport._tasks)
            with self.assertRaises(RequestTimeout):
                await client.call_tool("x", timeout=0.1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            left = [t for t in client._transport._tasks - before if not t.done()]
            self.assertEqual(left, [])

    async def test_a_get_stream_that_never_was_ends_no_session(self):
        plain = over_http(Script("legacy"), session="s-1")
        go = asyncio.Event()

        async def answer(request, writer):
            if request.method == "GET":  # a proxy may hold it back
                await go.wait()
                return response(404, b"")
            return await plain(request, writer)

        server = await self.served(answer)
        wait = asyncio.wait
        briefly = mock.patch.object(
            transports.asyncio,
            "wait",
            lambda tasks, timeout=None: wait(tasks, timeout=timeout and 0.05),
        )
        with briefly:
            async with self.client(server.url) as client:
                go.set()
                await wait({client._transport._standing}, timeout=10)
                await client.ping()
        self.assertEqual(len(server.sent("initialize")), 1)

    @mock.patch.object(transports, "_RETRY", 0.0)
    async def test_the_get_stream_hears_that_the_session_is_over(self):
        """Nobody calls, and a subscription goes on in a new session."""
        script = Script("legacy")
        plain, over = over_http(script, session="s-1"), []

        async def answer(request, writer):
            if request.method == "GET":
                if not over:
                    over.append(1)
                    return SSE + b"Connection: close\r\n\r\nretry: 10\n\n"
                if len(over) == 1:
                    over.append(2)
                    return response(404, b"")
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            async with client.subscribe("x://1") as changes:
                change = await asyncio.wait_for(changes.__anext__(), 10)
                self.assertEqual(change.uri, "x://1")
        self.assertEqual(len(server.sent("initialize")), 2)

    async def test_session_lost(self):
        """HTL-04, C08: 404 means initialize again, without the stale id."""
        script = Script("legacy", tools__call={"content": []})
        plain = over_http(script, session="s-1")
        forgotten = set()

        async def answer(request, writer):
            if request.headers.get("mcp-session-id") in forgotten:
                forgotten.clear()
                return response(404, b"no such session")
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            await client.call_tool("x")
            forgotten.add("s-1")
            await client.call_tool("x")
        again = server.sent("initialize")
        self.assertEqual(len(again), 2)
        self.assertNotIn("mcp-session-id", again[1].headers)
        ids = [request.json["id"] for request in server.sent("tools/call")]
        self.assertEqual(len(set(ids)), 3)

    async def test_legacy_404_with_an_answer(self):
        """ERR-03: an unknown method with status 404 is no lost session."""
        script = Script("legacy", capabilities={"prompts": {}})
        plain = over_http(script, session="s-1")

        async def answer(request, writer):
            if (
                request.method == "POST"
                and request.json.get("method") == "prompts/list"
            ):
                error = {"code": -32601, "message": "Method not found"}
                reply = {"jsonrpc": "2.0", "id": request.json["id"], "error": error}
                return response(404, reply)
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            with self.assertRaises(MCPError):
                await client.list_prompts()
        self.assertEqual(len(server.sent("initialize")), 1)

    async def test_get_stream(self):
        """HTL-06, HTL-09: what comes on the GET stream is answered by POST."""
        script = Script("legacy")
        plain = over_http(script)
        answered = asyncio.Event()

        async def answer(request, writer):
            if request.method == "GET":
                question = {"id": "q", "method": "roots/list"}
                writer.write(SSE + b"\r\n" + event(question, id="1"))
                await answered.wait()
                return None
            if request.method == "POST" and "result" in request.json:
                answered.set()
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url, list_roots_callback=["file:///a"]) as client:
            await asyncio.wait_for(answered.wait(), 5)
            await client.ping()
        replies = server.sent("q", "id")
        self.assertEqual(replies[0].json["result"], {"roots": [{"uri": "file:///a"}]})

    @mock.patch.object(transports, "_RETRY", 0.0)
    async def test_get_stream_comes_back(self):
        """HTL-12: after the pause that the server asks for, from where it was."""
        plain = over_http(Script("legacy"))
        ids = []

        async def answer(request, writer):
            if request.method == "GET":
                ids.append(request.headers.get("last-event-id"))
                if len(ids) == 3:
                    return response(405, b"")
                writer.write(SSE + b"\r\n" + event(id=f"e{len(ids)}", retry=10))
                return None
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url):
            await server.until(lambda r: len(server.sent("GET")) == 3)
        self.assertEqual(ids, [None, "e1", "e2"])

    async def test_get_streams_that_end_at_once(self):
        """No retry of 0 makes a hot loop; the pause grows while nothing comes."""
        news = event({"method": "notifications/tools/list_changed"})
        nothing = b": hello\n\n"
        cases = [
            (b"retry: 0\n\n", [0.5, 1, 2, 4, 8]),
            (event(id="1", retry=100), [0.5, 1, 2, 4, 8]),
            (nothing, [1, 2, 4, 8, 16]),  # 1 s unless the server says otherwise
            (b"retry: 9000\n\n", [9, 18, 30, 30, 30]),
            (b"retry: 60000\n\n", [60] * 5),
            (b"retry: 0\n\n" + news, [0.5] * 5),
            (nothing, [1] * 5),
        ]
        sleep = asyncio.sleep

        async def noted(seconds):
            if seconds:
                pauses.append(seconds)
            await sleep(0)

        patch = mock.patch.object(transports.asyncio, "sleep", noted)
        for number, (sent, wanted) in enumerate(cases, 1):
            pauses, plain, streams = [], over_http(Script("legacy")), [sent] * 5

            async def answer(request, writer, plain=plain, streams=streams):
                if request.method == "GET" and streams:
                    sent = streams.pop()
                    return SSE + b"Connection: close\r\n\r\n" + sent
                return await plain(request, writer)

            server = await self.served(answer)
            brief = -1.0 if number == len(cases) else transports._BRIEF
            with patch, mock.patch.object(transports, "_BRIEF", brief):
                async with self.client(server.url) as client:
                    await asyncio.wait({client._transport._standing}, timeout=5)
            self.assertEqual(pauses, wanted, sent)

    async def test_get_stream_head_held_back(self):
        """A proxy that holds the head back does not hold the client back."""
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if request.method == "GET":
                await asyncio.sleep(30)
            return await plain(request, writer)

        server = await self.served(answer)
        wait, waited = asyncio.wait, []

        def briefly(tasks, timeout=None):
            waited.append(timeout or 0)
            return wait(tasks, timeout=timeout and 0.1)

        with mock.patch.object(transports.asyncio, "wait", briefly):
            async with self.client(server.url) as client:
                await client.ping()
        self.assertTrue(waited)
        self.assertLess(sum(waited), 3.0)

    @mock.patch.object(transports, "_RETRY", 0.0)
    async def test_resumption(self):
        """HTL-11, HTL-12: the answer comes on a GET with Last-Event-ID."""
        plain = over_http(Script("legacy"), session="s-1")
        times = []

        async def answer(request, writer):
            if request.method == "GET" and "last-event-id" in request.headers:
                times.append(time.monotonic())
                self.assertEqual(request.headers["last-event-id"], "p-1")
                self.assertEqual(request.headers["mcp-session-id"], "s-1")
                reply = {"id": call, "result": {"content": []}}
                writer.write(SSE + b"\r\n" + event(reply, id="p-2"))
                return None
            if request.method == "POST" and request.json["method"] == "tools/call":
                nonlocal_call(request.json["id"])
                writer.write(SSE + b"\r\n" + event(id="p-1", retry=300))
                times.append(time.monotonic())
                return None
            return await plain(request, writer)

        call = 0

        def nonlocal_call(id):
            nonlocal call
            call = id

        server = await self.served(answer)
        async with self.client(server.url) as client:
            self.assertEqual((await client.call_tool("x")).content, [])
        self.assertGreaterEqual(times[1] - times[0], 0.3)

    @mock.patch.object(transports, "_RETRY", 0.0)
    async def test_resumption_refused(self):
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if request.method == "POST" and request.json["method"] == "tools/call":
                writer.write(SSE + b"\r\n" + event(id="p-1", retry=1))
                return None
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            with self.assertRaises(HttpStatusError):
                await client.call_tool("x")

    async def test_events_that_are_no_messages(self):
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if request.method == "POST" and request.json["method"] == "tools/call":
                reply = {"id": request.json["id"], "result": {"content": []}}
                writer.write(SSE + b"\r\ndata: what?\n\n" + event(reply))
                return None
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            await client.call_tool("x")
        self.assertIn("skipped an event", "\n".join(self.logged))

    async def test_stream_left_open(self):
        """After the answer the client does not wait for the end of the stream."""
        plain = over_http(Script())

        async def answer(request, writer):
            if request.json["method"] == "tools/call":
                reply = {"id": request.json["id"], "result": {"content": []}}
                writer.write(SSE + b"\r\n" + event(reply))
                await asyncio.sleep(30)
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            start = time.monotonic()
            await client.call_tool("x")
            self.assertLess(time.monotonic() - start, 0.5)

    async def test_notification_refused(self):
        """A refused notification is logged; nobody waits for it."""
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if request.method == "POST" and "id" not in request.json:
                return response(400, b"no")
            return await plain(request, writer)

        server = await self.served(answer)
        async with self.client(server.url) as client:
            await client.ping()
        self.assertIn("notifications/initialized: 400", self.logged)

    async def test_unauthorized(self):
        server = await self.served(lambda request, writer: response(401, said))
        ask = "it asks for authorization: give auth= or headers="
        token = "the server does not take this token"
        for body, headers, text in (
            (b"who?", {}, f"who? ({ask})"),
            ({"error": {"code": -32600, "message": "No\nway"}}, {}, f"No way ({ask})"),
            ({"error": {"code": 1}}, {}, f'{{"error": {{"code": 1}}}} ({ask})'),
            (
                {"error": "invalid_token", "error_description": "Too old"},
                {"Authorization": "bearer x"},
                f"Too old ({token})",
            ),
            (
                {"error": "no"},
                {"Authorization": "Basic x"},
                "no (the server does not take this header)",
            ),
        ):
            said, seen = body, len(server.seen)
            with self.assertRaises(HttpStatusError) as raised:
                await self.client(server.url, headers=headers).__aenter__()
            self.assertEqual(str(raised.exception), f"{server.url}: HTTP 401: {text}")
            self.assertEqual(len(server.seen), seen + 1)  # not a word about its era

    # TLS

    def context(self, **options):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(HERE / "tls" / "server.pem")
        if options.get("client"):
            context.load_verify_locations(HERE / "tls" / "ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def test_tls(self):
        """A private CA, a client certificate, a pinned fingerprint, or a refusal."""
        import hashlib

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)  # of the fake server
        ca = str(HERE / "tls" / "ca.pem")
        text = (HERE / "tls" / "server.pem").read_text()
        block = re.search("-----BEGIN CERT.*-----END CERTIFICATE-----", text, re.S)[0]
        print_ = hashlib.sha256(ssl.PEM_cert_to_DER_cert(block)).hexdigest()
        colons = "SHA256:" + ":".join(re.findall("..", print_.upper()))
        server = await self.served(over_http(Script()), ssl=self.context())
        for options in (
            {"ca_file": ca},
            {"fingerprint": print_},
            {"fingerprint": colons},
            {"fingerprint": colons.replace("SHA256:", "sha256 Fingerprint=") + "\n"},
        ):
            async with self.client(server.url, **options) as client:
                await client.ping()
        given = ssl.create_default_context(cafile=ca)
        async with self.client(server.url, ssl_context=given) as client:
            await client.ping()
        other = str(HERE / "tls" / "client.pem")
        own = ssl.create_default_context()
        named = {"ca_file": ca, "url": server.url.replace("localhost", "127.1")}
        for options, text in (
            ({}, r"not trusted: .* \(trust it with ca_file= or fingerprint=\)$"),
            ({"ca_file": other}, r"not trusted: .* \(trust it with fingerprint=\)$"),
            (named, r"127\.1'* \(trust it with fingerprint=\)$"),
            ({"ssl_context": own}, r"not trusted: [^()]+$"),
            ({"fingerprint": "00" * 32}, "not the certificate that was pinned"),
        ):
            url = options.pop("url", server.url)
            with self.subTest(text), self.assertRaisesRegex(ConnectionLost, text):
                await self.client(url, **options).__aenter__()
        self.assertTrue(all(r.json["method"] == "server/discover" for r in server.seen))

    async def test_fingerprints_that_are_none(self):
        for text in ("", "ab", "sha1 Fingerprint=" + "AB:" * 20, "g" * 64):
            with self.assertRaisesRegex(ValueError, "fingerprint= takes the 64 hex"):
                self.client("https://localhost/", fingerprint=text)

    async def test_the_other_scheme(self):
        """Plain http to a TLS port and the reverse: said once nothing was heard."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)  # of the fake server
        reply = b""
        answer = over_http(Script())

        async def drop(request, writer):
            if request.json["method"] == "tools/call":
                return None
            return await answer(request, writer) if reply is None else reply

        sealed = await self.served(answer, ssl=self.context())
        plain = await self.served(drop)

        def refuse(reader, writer):  # as servers do with a head that is none
            writer.write(response(400, b""))
            writer.close()

        old = await asyncio.start_server(refuse, "127.0.0.1", 0)
        self.addCleanup(old.close)
        port = old.sockets[0].getsockname()[1]
        with self.assertRaisesRegex(ConnectionLost, "no TLS there .*http:// alone"):
            await self.client(f"https://127.0.0.1:{port}/").__aenter__()
        unsure = "closed the connection without an answer .perhaps it speaks https://"
        with self.assertRaisesRegex(ConnectionLost, unsure):
            await self.client(sealed.url.replace("https:", "http:")).__aenter__()
        close = b"connection: close"
        for reply, hint in (
            (b"\x15\x03\x01\x00\x02\x02F" + close, True),
            (b"HTTP/1.1 200 OK\r\n" + close, False),
            (b"SSH-2.0\r\n\r\n" + close, False),
        ):
            with self.assertRaises(ConnectionLost) as raised:
                await self.client(plain.url).__aenter__()
            self.assertEqual("https://" in str(raised.exception), hint, reply)
        reply = None  # a server that has answered before
        async with self.client(plain.url) as client:
            with self.assertRaisesRegex(ConnectionLost, "the connection$"):
                await client.call_tool("x")

    async def test_tls_client_certificate(self):
        ca, own = str(HERE / "tls" / "ca.pem"), str(HERE / "tls" / "client.pem")
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)  # of the fake server
        context = self.context(client=True)
        server = await self.served(over_http(Script()), ssl=context)
        async with self.client(server.url, ca_file=ca, client_cert=(own,)) as client:
            await client.ping()
        async with self.client(server.url, ca_file=ca, client_cert=own) as client:
            await client.ping()
        with self.assertRaises(ConnectionLost):
            await self.client(server.url, ca_file=ca).__aenter__()

    async def test_tls_files_that_do_not_fit_are_named(self):
        ca, absent = str(HERE / "tls" / "ca.pem"), "/absent.pem"
        for options, error, text in (
            ({"client_cert": (ca,)}, ValueError, f"{ca}: no certificate chain with"),
            ({"client_cert": (ca, ca)}, ValueError, f"{ca} and {ca}: no certificate"),
            ({"client_cert": (absent,)}, OSError, absent),
            ({"ca_file": __file__}, ValueError, f"{__file__} holds no certificates"),
            ({"ca_file": absent}, OSError, absent),
        ):
            with self.subTest(options), self.assertRaisesRegex(error, text):
                await self.client("https://127.0.0.1:9/", **options).__aenter__()


if __name__ == "__main__":
    unittest.main()
