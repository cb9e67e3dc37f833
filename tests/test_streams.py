"""Section 8: newline framing, the Outlet, the stdout guard and both engines."""

import asyncio
import collections
import contextlib
import contextvars
import gc
import inspect
import io
import itertools
import json
import math
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

import tinymcp
from tinymcp import Context, Limits, Server

# What site loads is not ours, and may take longer than all else; coverage needs it.
SITE = [] if "COVERAGE_PROCESS_CONFIG" in os.environ else ["-S"]

rt = sys.modules[tinymcp.Server.__module__]
HOME = pathlib.Path(rt.__file__).parent
if (HOME / "__init__.py").exists():
    HOME = HOME.parent

D = "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(HOME),
    "PYTHONUNBUFFERED": "",
}
PATIENCE = 20.0  # seconds until a test that waits for something has failed
POSIX = os.name == "posix"


def soon(condition, what="condition"):
    """Wait until something that another thread does has happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true in {PATIENCE} s")
        time.sleep(0.005)


def stuck(outlet):
    return outlet.queued and not outlet.queue


def line(method, params=None, id=1):
    message = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        message["id"] = id
    if params is not None:
        message["params"] = params
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


def call(tool, id=1, **arguments):
    return line("tools/call", {"name": tool, "arguments": arguments}, id)


def initialize(revision=D, **capabilities):
    params = {"protocolVersion": revision, "capabilities": capabilities}
    params["clientInfo"] = {"name": "t", "version": "0"}
    return line("initialize", params, "i") + line(
        "notifications/initialized", None, None
    )


def replies(data):
    return [json.loads(each) for each in data.splitlines()]


def by_id(data):
    return {reply.get("id"): reply for reply in replies(data)}


APP = """
import atexit, asyncio, logging, os, subprocess, sys, threading, time
print("at import")
from tinymcp import Context, Limits, Server
server = Server("app", "1", limits=Limits(**LIMITS))

@server.tool(inline=True)
def echo(text: str) -> str:
    return text

@server.tool
def block(seconds: float) -> str:
    time.sleep(seconds)
    return "blocked"

@server.tool
def noisy() -> str:
    print("from print")
    os.write(1, b"from write\\n")
    logging.basicConfig(stream=sys.stdout)
    logging.warning("from logging")
    subprocess.run([sys.executable, "-S", "-c", "print('from child')"], check=True)
    return "quiet" + sys.stdin.read()

if ASYNC:
    @server.tool
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "napped"

@atexit.register
def bye():
    print("atexit ran", file=sys.stderr)
"""


class App:
    """A server in a process of its own."""

    def __init__(self, loop=False, use_async=False, after="", code=APP, **options):
        limits = options.pop("limits", {})
        body = code.replace("LIMITS", repr(limits)).replace("ASYNC", repr(use_async))
        run = f"{body}\n{after}\nserver.run(loop={loop})\n"
        env = {**ENVIRONMENT, **options.pop("env", {})}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        pipes.update(stderr=subprocess.PIPE, env=env)
        self.process = subprocess.Popen(
            [sys.executable, *SITE, "-c", run], **{**pipes, **options}
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self):
        return json.loads(self.process.stdout.readline())

    def end(self, data=b""):
        """(stdout, stderr) until the process has ended by itself."""
        found = self.process.communicate(data, PATIENCE)
        return found


class Framing(unittest.TestCase):
    CASES = [
        (b"", []),
        (b"a\n", [b"a"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\n\r\n\nb", [b"a\r", b"\r", b""]),
        (b"\xe2\x80\xa8\x0b\x0c\x1c\x85\n", [b"\xe2\x80\xa8\x0b\x0c\x1c\x85"]),
        (b"12345678\n", [b"12345678"]),
        (b"123456789\nok\n", [None, b"ok"]),
        (b"x" * 50 + b"\nok\n" + b"y" * 50 + b"\n", [None, b"ok", None]),
    ]

    def test_lines_whole_and_byte_by_byte_STD_01_STD_10(self):
        for data, wanted in self.CASES:
            for size in (1, 3, len(data) or 1):
                with self.subTest(data[:20], size=size):
                    lines = rt._Lines(8)
                    found = []
                    for start in range(0, len(data), size):
                        found += lines.feed(data[start : start + size])
                        self.assertLessEqual(len(lines.rest), 8)
                    self.assertEqual(found, wanted)

    def test_a_last_line_without_newline(self):
        for data, wanted in ((b"a\nb", [b"b"]), (b"a\n", []), (b"x" * 9, [None])):
            lines = rt._Lines(8)
            lines.feed(data)
            self.assertEqual(lines.end(), wanted)


class Outlets(unittest.TestCase):
    def setUp(self):
        self.reader, self.writer = os.pipe()
        self.outlets = []
        self.addCleanup(self.end)

    def end(self):
        self.close_reader()
        for outlet in self.outlets:  # its thread must not meet a new file there
            soon(lambda outlet=outlet: not outlet.queued, "the outlet is done")
        os.close(self.writer)

    def close_reader(self):
        if self.reader is not None:
            os.close(self.reader)
            self.reader = None

    def outlet(self, limit=1 << 20, **options):
        self.outlets.append(rt._Outlet(self.writer, limit, **options))
        return self.outlets[-1]

    def test_a_small_message_goes_out_at_once(self):
        outlet = self.outlet()
        self.assertTrue(outlet.write(b"one\n"))
        self.assertEqual(os.read(self.reader, 100), b"one\n")
        self.assertFalse(outlet.started)

    def test_writers_do_not_interleave_nor_wait_A19(self):
        outlet = self.outlet(1 << 24)
        messages = [b"%d" % n * 9000 + b"\n" for n in range(10)]
        threads = [
            threading.Thread(target=lambda m=m: [outlet.write(m) for _ in range(20)])
            for m in messages
        ]
        for thread in threads:
            thread.start()
        for thread in threads:  # nobody has read a byte yet
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())
        size = 20 * sum(map(len, messages))
        data = b""
        while len(data) < size:
            data += os.read(self.reader, 1 << 16)
        self.assertEqual(sorted(set(data.splitlines(True))), messages)
        outlet.flush(PATIENCE)
        self.assertEqual(outlet.queued, 0)

    def test_over_the_limit_it_drops_or_waits(self):
        filler = b"x" * 70000
        dropping = self.outlet(100000, drop=True)
        self.assertTrue(dropping.write(filler))
        soon(lambda: stuck(dropping), "the writer is stuck")
        results = [dropping.write(filler) for _ in range(3)]
        self.assertIn(False, results)

    def test_a_waiting_writer_goes_on_when_there_is_room(self):
        outlet = self.outlet(100000)
        filler = b"x" * 70000
        done = threading.Event()

        def write():
            for _ in range(4):
                outlet.write(filler)
            done.set()

        threading.Thread(target=write, daemon=True).start()
        self.assertFalse(done.wait(0.05))
        data = b""
        while len(data) < 4 * len(filler):
            data += os.read(self.reader, 1 << 16)
        self.assertTrue(done.wait(PATIENCE))

    def test_an_ending_outlet_waits_for_nobody(self):
        outlet = self.outlet(100000)
        outlet.write(b"x" * 90000)
        soon(lambda: stuck(outlet), "the writer is stuck")
        outlet.ending = True
        self.assertFalse(outlet.write(b"x" * 90000))
        outlet.flush(0.01)

    def test_a_closed_reader_breaks_it_quietly_A15(self):
        outlet = self.outlet()
        self.close_reader()
        self.assertFalse(outlet.write(b"lost\n"))
        self.assertTrue(outlet.broken)
        self.assertFalse(outlet.write(b"never\n"))

    def test_a_reader_that_closes_while_much_is_queued(self):
        outlet = self.outlet()
        outlet.write(b"x" * 200000)
        soon(lambda: stuck(outlet), "the writer is stuck")
        self.close_reader()
        soon(lambda: outlet.broken, "the outlet is broken")
        outlet.flush(PATIENCE)

    def test_drained_is_told_once_the_queue_is_low(self):
        outlet = self.outlet(160000)
        told = threading.Event()
        outlet.on_drain = told.set
        outlet.write(b"x" * 150000)
        self.assertFalse(told.is_set())
        data = 0
        while data < 150000:
            data += len(os.read(self.reader, 1 << 16))
        self.assertTrue(told.wait(PATIENCE))

    def test_a_non_blocking_pipe_of_somebody_else(self):
        os.set_blocking(self.writer, False)
        outlet = self.outlet()
        outlet.write(b"y" * 300000)
        outlet.write(b"end\n")
        data = b""
        while not data.endswith(b"end\n"):
            data += os.read(self.reader, 1 << 16)
        self.assertEqual(len(data), 300004)

    def test_without_poll_the_thread_writes(self):
        outlet = self.outlet()
        outlet.poll = None
        outlet.write(b"one\n")
        self.assertEqual(os.read(self.reader, 100), b"one\n")

    def test_a_short_write_is_finished(self):
        outlet = self.outlet()
        real = os.write
        with mock.patch.object(rt.os, "write", lambda fd, data: real(fd, data[:2])):
            outlet.write(b"abcdef\n")
            data = b""
            while len(data) < 7:
                data += os.read(self.reader, 100)
        self.assertEqual(data, b"abcdef\n")

    def test_a_regular_file_takes_everything(self):
        with tempfile.TemporaryFile() as file:
            outlet = rt._Outlet(file.fileno(), 1 << 20)
            outlet.write(b"z" * 300000)
            outlet.flush(PATIENCE)
            self.assertEqual(os.fstat(file.fileno()).st_size, 300000)


def pipe_server(**options):
    server = Server("pipes", "1", log=lambda level, text: None, **options)
    server.proceed = threading.Event()

    @server.tool(inline=True)
    def echo(text: str) -> str:
        return text

    @server.tool
    def work(ctx: Context) -> str:
        server.proceed.wait(PATIENCE)
        return f"worked {ctx.cancelled}"

    @server.tool
    def sure(ctx: Context) -> str:
        return str(ctx.confirm("Sure?"))

    @server.resource("x://a")
    def a() -> str:
        return "a"

    return server


class Piped:
    """A server on two pipes in a thread, with either engine."""

    def __init__(self, server, loop):
        self.server = server
        self.in_fd, self.to = os.pipe()
        self.out, self.out_fd = os.pipe()
        self.file = os.fdopen(self.out, "rb")
        self.thread = threading.Thread(
            target=server._run_stdio, args=(self.in_fd, self.out_fd, loop)
        )
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.proceed.set()
        self.end()
        self.file.close()
        os.close(self.in_fd)

    def send(self, data):
        os.write(self.to, data)

    def read(self):
        return json.loads(self.file.readline())

    def end(self):
        """Close the input; returns what is still said."""
        if self.to is None:
            return b""
        os.close(self.to)
        self.to = None
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server did not end"
        os.close(self.out_fd)
        return self.file.read()


class Engines(unittest.TestCase):
    """What both engines do alike, whoever reads."""

    def each(self, **options):
        # Without a loop: the first thread reads all the time, or workers do at once.
        for loop, patience in ((False, math.inf), (False, 0), (True, 0)):
            with mock.patch.object(rt._Turns, "PATIENCE", patience):
                with Piped(pipe_server(**options), loop) as piped:
                    with self.subTest(loop=loop, patience=patience):
                        yield piped

    def test_requests_replies_and_noise(self):
        for piped in self.each():
            piped.send(b"\r\n\n   \n" + initialize() + b"\xff\xfe\nnot json\n42\n")
            piped.send(call("echo", 0, text="é\u2028𝄞") + line("ping", id="p"))
            found = replies(piped.end())
            self.assertEqual(
                [f.get("id", f.get("error", {}).get("code")) for f in found],
                ["i", -32700, -32700, -32600, 0, "p"],
            )
            self.assertEqual(found[4]["result"]["content"][0]["text"], "é\u2028𝄞")
            self.assertTrue(all("id" not in f for f in found[1:4]))  # A12: never null

    def test_a_slow_call_does_not_hold_up_a_fast_one_RPC_12(self):
        for piped in self.each():
            piped.send(initialize() + call("work", 1) + call("echo", 2, text="fast"))
            self.assertEqual([piped.read()["id"], piped.read()["id"]], ["i", 2])
            piped.server.proceed.set()
            self.assertEqual(piped.read()["id"], 1)

    def test_cancel_gets_no_reply_CAN_01(self):
        for piped in self.each():
            piped.send(initialize() + call("work", 0))
            piped.read()
            soon(piped.server._open.lines, "the call is open")
            piped.send(line("notifications/cancelled", {"requestId": 0}, None))
            piped.send(line("ping", id=1))
            self.assertEqual(piped.read()["id"], 1)
            piped.server.proceed.set()
            self.assertEqual(piped.end(), b"")

    def test_an_over_long_line_costs_itself_only_STD_10(self):
        for piped in self.each(limits=Limits(line=200)):
            piped.send(initialize() + b"x" * 5000 + b"\n" + line("ping", id=9))
            self.assertEqual(piped.read()["id"], "i")
            self.assertEqual(piped.read()["error"]["code"], -32600)
            self.assertEqual(piped.read()["id"], 9)

    def test_a_legacy_question_is_a_request_on_the_stream(self):
        for piped in self.each():
            piped.send(initialize(elicitation={}) + call("sure", 5))
            piped.read()
            question = piped.read()
            self.assertEqual(question["method"], "elicitation/create")
            answer = {"action": "accept", "content": {"confirm": True}}
            reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
            piped.send(json.dumps(reply).encode() + b"\n")
            self.assertEqual(piped.read()["result"]["content"][0]["text"], "True")

    def test_changes_reach_both_eras_SUB_03(self):
        for piped in self.each():
            piped.send(initialize() + line("resources/subscribe", {"uri": "x://a"}, 1))
            wanted = {
                "notifications": {"resourceSubscriptions": ["x://a"]},
                "_meta": META,
            }
            piped.send(line("subscriptions/listen", wanted, 2))
            piped.send(line("subscriptions/listen", wanted, 3))
            for _ in range(4):
                piped.read()
            piped.server.notify_updated("x://a")
            found = [piped.read()["params"] for _ in range(3)]
            key = "io.modelcontextprotocol/subscriptionId"
            tags = {f.get("_meta", {}).get(key) for f in found}
            self.assertEqual(tags, {None, 2, 3})
            last = by_id(piped.end())
            self.assertEqual(set(last), {2, 3})  # each stream ends with its result

    def test_accepted_calls_are_answered_at_the_end_of_input_A07(self):
        for piped in self.each():
            piped.send(initialize() + call("work", 1) + call("work", 2))
            lines = piped.server._open.lines
            soon(lambda lines=lines: sum(map(len, lines())) == 2, "both are open")
            threading.Timer(0.05, piped.server.proceed.set).start()
            self.assertEqual(set(by_id(piped.end())), {"i", 1, 2})

    def test_a_question_that_nobody_can_answer_ends_with_the_input(self):
        for piped in self.each():
            piped.send(initialize(elicitation={}) + call("sure", 1))
            piped.read()
            piped.read()
            began = time.monotonic()
            piped.end()
            self.assertLess(time.monotonic() - began, 5)

    def test_calls_beyond_the_grace_are_given_up(self):
        for piped in self.each(limits=Limits(grace=0.05)):
            piped.send(initialize() + call("work", 1))
            piped.read()
            soon(piped.server._open.lines, "the call is open")
            self.assertEqual(piped.end(), b"")

    def test_timeouts_come_by_themselves(self):
        for piped in self.each(limits=Limits(call_timeout=0.05)):
            piped.send(initialize() + call("work", 1))
            piped.read()
            reply = piped.read()
            self.assertTrue(reply["result"]["isError"])
            piped.server.proceed.set()  # the late value is dropped
            self.assertEqual(piped.end(), b"")

    def test_a_closed_output_ends_it(self):
        for loop in (False, True):
            server = pipe_server()
            in_fd, to = os.pipe()
            out, out_fd = os.pipe()
            thread = threading.Thread(
                target=server._run_stdio, args=(in_fd, out_fd, loop)
            )
            thread.start()
            os.close(out)
            os.write(to, line("ping") * 3)
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())
            for fd in (in_fd, to, out_fd):
                os.close(fd)

    def test_a_fault_of_ours_costs_one_reply(self):
        for piped in self.each():
            with mock.patch.object(rt, "_classify", side_effect=ZeroDivisionError):
                piped.send(line("ping"))
                self.assertEqual(piped.read()["error"]["code"], -32603)
            piped.send(line("ping", id=2))
            self.assertEqual(piped.read()["id"], 2)

    def test_a_descriptor_that_cannot_be_polled_is_read_by_a_thread_A09(self):
        async def main(server, in_fd, out_fd):
            loop = asyncio.get_running_loop()
            with mock.patch.object(loop, "add_reader", side_effect=NotImplementedError):
                async with server._entered():
                    outlet = rt._Outlet(out_fd, 1 << 20)
                    await rt._run_fds(server, in_fd, outlet, asyncio.Event())

        in_fd, to = os.pipe()
        out, out_fd = os.pipe()
        os.write(to, initialize() + call("echo", 1, text="x"))
        os.close(to)
        asyncio.run(main(pipe_server(), in_fd, out_fd))
        os.close(out_fd)
        with os.fdopen(out, "rb") as file:
            self.assertEqual(set(by_id(file.read())), {"i", 1})
        os.close(in_fd)

    def test_reading_waits_also_where_the_descriptor_does_not(self):
        in_fd, to = os.pipe()
        os.set_blocking(in_fd, False)
        found = []
        thread = threading.Thread(target=lambda: found.append(rt._reader(in_fd)()))
        thread.start()
        self.assertEqual(found, [])
        os.write(to, b"late")
        thread.join(PATIENCE)
        self.assertEqual(found, [b"late"])
        for fd in (in_fd, to):
            os.close(fd)
        self.assertEqual(rt._reader(-1)(), b"")  # an error is an end of input

    def test_reading_without_readv(self):
        in_fd, to = os.pipe()
        with (
            mock.patch.object(rt.os, "readv", new=None),
            mock.patch.object(rt, "hasattr", lambda *_: False, create=True),
        ):
            read = rt._reader(in_fd)
        os.write(to, b"a\n")
        self.assertEqual(read(), b"a\n")
        for fd in (in_fd, to):
            os.close(fd)

    def test_async_calls_beyond_the_grace_are_cancelled(self):
        server = pipe_server(limits=Limits(grace=0.05))
        steps = []

        @server.tool
        async def stay() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("left")
            return ""

        with Piped(server, True) as piped:
            piped.send(initialize() + call("stay", 1))
            piped.read()
            soon(server._open.lines, "the call is open")
            self.assertEqual(piped.end(), b"")
        self.assertEqual(steps, ["left"])

    def test_async_while_the_blocking_engine_runs_is_refused(self):
        with Piped(pipe_server(), False) as piped:
            piped.send(line("ping"))
            piped.read()

            async def late() -> str:
                return ""

            with self.assertRaisesRegex(tinymcp.DefinitionError, r"run\(loop=True\)"):
                piped.server.add_tool(late)
            piped.server.add_tool(lambda: "x", name="fine")


class Replies(rt._Peer):
    """A peer whose calls are dispatched on the loop, as those of the real ones are."""

    __slots__ = "bodies loop".split()

    def __init__(self, server):
        super().__init__(server)
        self.loop = server._loop
        self.session = rt._Session(D, {}, {})
        self.bodies = {}

    def call(self, tool, id=1, **arguments):
        """The text of the reply if it is there at once, else None."""
        found = self.server._dispatch(json.loads(call(tool, id, **arguments)), self)
        if type(found) is tuple:
            self.reply(*found)
        else:
            found.launch()
        return self.text(id)

    def reply(self, body, code):
        self.bodies[json.loads(body)["id"]] = json.loads(body)

    def text(self, id=1):
        found = self.bodies.get(id)
        return found and found["result"]["content"][0]["text"]

    async def later(self, id=1):
        end = time.monotonic() + PATIENCE
        while id not in self.bodies and time.monotonic() < end:
            await asyncio.sleep(0.001)
        return self.text(id)


def story(function):
    STORIES.append(function)
    return function


STORIES = []


@story
async def ends(seen):
    return "over"


@story
async def fails(seen):
    raise ValueError("over")


@story
async def sleeps(seen):
    before = asyncio.current_task()
    await asyncio.sleep(0.001)
    seen.append(asyncio.current_task() is before)
    return "over"


@story
async def yields(seen):
    for n in range(3):
        seen.append(n)
        await asyncio.sleep(0)
    return "over"


@story
async def awaits_what_is_done(seen):
    future = asyncio.get_running_loop().create_future()
    future.set_result("over")
    return await future


@story
async def times_out(seen):
    try:
        await asyncio.wait_for(asyncio.sleep(30), 0.01)
    except asyncio.TimeoutError:
        seen.append("time")
    return "over"


@story
async def times_out_at_once(seen):
    try:
        await asyncio.wait_for(asyncio.sleep(30), 0)
    except asyncio.TimeoutError:
        seen.append("time")
    return "over"


@story
async def times_out_in_a_block(seen):
    if sys.version_info >= (3, 11):
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(30)
        except TimeoutError:
            seen.append("time")
        seen.append(asyncio.current_task().cancelling())
    return "over"


@story
async def gathers(seen):
    async def part(n):
        await asyncio.sleep(0)
        return n

    seen.extend(await asyncio.gather(part(1), part(2)))
    if sys.version_info >= (3, 11):
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(part(n)) for n in (3, 4)]
        seen.extend(part.result() for part in parts)
    return "over"


@story
async def has_a_group_with_a_fault(seen):
    async def fault():
        raise KeyError("x")

    if sys.version_info >= (3, 11):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fault())
                await asyncio.sleep(30)
        except BaseExceptionGroup as error:  # noqa: F821  # since 3.11
            seen.append(repr(error.exceptions))
    return "over"


@story
async def keeps_its_context(seen):
    CONTEXT.set("first")
    await asyncio.sleep(0)
    seen.append(CONTEXT.get())
    token = CONTEXT.set("second")
    await asyncio.sleep(0.001)
    CONTEXT.reset(token)
    seen.append(CONTEXT.get())
    return "over"


@story
async def cancels_itself_and_waits(seen):
    asyncio.current_task().cancel()
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        seen.append("cancelled")
    await asyncio.sleep(0)
    return "over"


@story
async def cancels_itself_and_yields(seen):
    asyncio.current_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        seen.append("cancelled")
    return "over"


async def cancelled_at_a_task(seen, turns):
    async def part():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("part")
            raise

    inner = asyncio.ensure_future(part())
    for _ in range(turns):
        await asyncio.sleep(0)
    asyncio.current_task().cancel()
    try:
        await inner
    except asyncio.CancelledError:
        seen.append(inner.cancelled())
    return "over"


@story
async def cancels_itself_and_awaits_a_task(seen):
    return await cancelled_at_a_task(seen, turns=1)


@story
async def cancels_itself_and_awaits_a_task_at_once(seen):
    return await cancelled_at_a_task(seen, turns=0)


@story
async def is_cancelled_twice(seen):
    task = asyncio.current_task()
    task.cancel()
    asyncio.get_running_loop().call_soon(task.cancel)
    for _ in range(3):
        try:
            await asyncio.sleep(0.01)
            seen.append("slept")
        except asyncio.CancelledError:
            seen.append("cancelled")
    return "over"


@story
async def awaits_what_refuses_to_be_cancelled(seen):
    async def part():
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            return "refused"

    inner = asyncio.ensure_future(part())
    await asyncio.sleep(0)
    asyncio.current_task().cancel()
    seen.append(await inner)
    return "over"


@story
async def awaits_what_is_no_future(seen):
    class Odd:
        def __await__(self):
            yield "odd"

    try:
        await Odd()
    except RuntimeError:
        seen.append("refused")
    return "over"


@story
async def awaits_itself(seen):
    try:
        await asyncio.current_task()
    except RuntimeError:
        seen.append("refused")
    return "over"


CONTEXT = contextvars.ContextVar("context", default="outside")


def other_loop():
    """One that shows nobody what it has to do, as uvloop's."""
    loop = asyncio.new_event_loop()
    loop._ready = type("Ready", (collections.deque,), {})(loop._ready)
    return loop


class FirstStep(unittest.TestCase):
    """The first step of an async handler is taken at once, and is that of a task."""

    def run_loop(self, main, *functions, loop=asyncio.new_event_loop, **limits):
        server = Server("t", "0", limits=Limits(**limits))
        server._log = mock.Mock()
        for function in functions:
            server.add_tool(function)
        loop, complaints = loop(), []
        loop.set_exception_handler(lambda loop, context: complaints.append(context))

        async def whole():
            server._loop = rt._Loop(server)
            await main(Replies(server))
            await server._loop.drain(1.0)

        try:
            loop.run_until_complete(whole())
            loop.run_until_complete(asyncio.sleep(0))
        finally:
            loop.close()
        gc.collect()
        errors = [context.get("exception") for context in complaints]
        self.assertEqual([e for e in errors if type(e) is not KeyboardInterrupt], [])

    def as_a_task(self, function):
        """What a task of its own would see, and its outcome."""
        seen = []

        async def main():
            return await asyncio.ensure_future(function(seen))

        try:
            seen.append(asyncio.run(main()))
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
        return seen

    def test_a_call_lives_as_a_task_does(self):
        loops = (asyncio.new_event_loop, other_loop)
        for function, loop in itertools.product(STORIES, loops):
            with self.subTest(function.__name__, loop=loop.__name__):
                seen = []

                async def tool(function=function, seen=seen) -> str:
                    return await function(seen)

                async def main(peer, seen=seen):
                    seen.append(peer.call("tool") or await peer.later())

                tool.__signature__ = inspect.Signature()
                self.run_loop(main, tool, loop=loop)
                self.assertEqual(seen, self.as_a_task(function))

    def test_what_does_not_wait_costs_no_turn_of_the_loop(self):
        for loop in (asyncio.new_event_loop, other_loop):
            with self.subTest(loop.__name__):
                self.run_three(loop)

    def run_three(self, loop):
        async def main(peer):
            me, tasks = asyncio.current_task(), []

            async def which() -> str:
                tasks.append(asyncio.current_task())
                CONTEXT.set("inside")
                return "over"

            peer.server.add_tool(which)
            for n in range(3):
                self.assertEqual(peer.call("which", n), "over")
                self.assertIs(asyncio.current_task(), me)
                self.assertEqual(CONTEXT.get(), "outside")
            self.assertNotIn(None, tasks)
            self.assertNotIn(me, tasks)
            self.assertEqual(peer.calls, {})
            self.assertFalse(peer.server._owes())

        self.run_loop(main, loop=loop)

    def test_without_a_current_task(self):
        """A message that a callback of the loop reads."""

        async def main(peer):
            loop, texts = asyncio.get_running_loop(), []
            loop.call_soon(lambda: texts.append(peer.call("plain")))
            await asyncio.sleep(0)
            self.assertEqual(texts, ["outside 0"])

        self.run_loop(main, plain)

    def test_each_call_that_waits_has_a_task_until_its_end(self):
        tasks = []

        async def waits() -> str:
            tasks.append(asyncio.current_task())
            await asyncio.sleep(0.01)
            return "over"

        async def main(peer):
            for n in range(3):
                self.assertIsNone(peer.call("waits", n))
            self.assertEqual(len(peer.calls), 3)
            for n in range(3):
                self.assertEqual(await peer.later(n), "over")
            self.assertEqual(len(set(tasks)), 3)
            await asyncio.sleep(0)
            self.assertTrue(all(task.done() for task in tasks))
            self.assertFalse(peer.server._loop.tasks)

        self.run_loop(main, waits)

    def test_done_callbacks_of_its_task_are_called(self):
        ended = []

        async def registers() -> str:
            asyncio.current_task().add_done_callback(ended.append)
            return "over"

        async def main(peer):
            self.assertEqual(peer.call("registers"), "over")
            self.assertEqual(peer.call("plain", 2), "outside 0")
            for _ in range(3):
                await asyncio.sleep(0)
            self.assertEqual(len(ended), 1)

        self.run_loop(main, registers, plain)

    def test_a_call_that_is_given_up_in_its_wait_is_cancelled(self):
        seen = []

        async def waits() -> str:
            try:
                await asyncio.sleep(30)
            finally:
                seen.append("over")
            return ""

        async def main(peer):
            peer.call("waits")
            peer.calls[1].cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            self.assertEqual(seen, ["over"])
            self.assertEqual(peer.bodies, {})

        self.run_loop(main, waits)

    def test_the_deadline_of_a_call_that_waits(self):
        async def waits() -> str:
            await asyncio.sleep(30)
            return ""

        async def main(peer):
            peer.call("waits")
            self.assertIn("No result within 0.05 s", await peer.later())

        self.run_loop(main, waits, call_timeout=0.05)

    def test_a_call_that_begins_as_the_last_one_ends_has_its_grace(self):
        async def main(peer):
            server, proceed = peer.server, threading.Event()

            def work() -> str:
                proceed.wait(PATIENCE)
                return "worked"

            async def late() -> str:
                proceed.set()
                soon(lambda: not server._owes(), "the other has ended")
                await asyncio.sleep(0.02)
                return "over"

            server.add_tool(work)
            server.add_tool(late)
            peer.call("work", 1)
            draining = asyncio.ensure_future(server._loop.drain(PATIENCE))
            await asyncio.sleep(0)
            self.assertIsNotNone(server._drained)
            peer.call("late", 2)
            await draining
            self.assertEqual((peer.text(1), peer.text(2)), ("worked", "over"))

        self.run_loop(main)

    def test_too_many_in_flight_do_not_begin(self):
        begun = []

        async def waits() -> str:
            begun.append(1)
            await asyncio.sleep(0.01)
            return "over"

        async def main(peer):
            for n in range(3):
                try:
                    peer.call("waits", n)
                except KeyError:  # an error has no result
                    self.assertEqual(peer.bodies[n]["error"]["code"], 429)
            self.assertEqual(begun, [1, 1])
            await peer.later(0)

        self.run_loop(main, waits, in_flight=2)

    def test_a_long_lane_is_no_deep_stack(self):
        async def ordered(n: int) -> str:
            if n == 0:
                await asyncio.sleep(0)
            return f"{n}"

        async def main(peer):
            peer.server.add_tool(ordered, lock="bus")
            for n in range(1500):
                peer.call("ordered", n, n=n)
            self.assertEqual(await peer.later(1499), "1499")

        self.run_loop(main, in_flight=2000, waiting=2000)

    def test_a_call_within_a_call(self):
        """A handler that sends its own server a message."""

        async def main(peer):
            async def outer() -> str:
                me = asyncio.current_task()
                inner = peer.call("plain", 2)
                self.assertIs(asyncio.current_task(), me)
                return inner

            peer.server.add_tool(outer)
            self.assertEqual(peer.call("outer"), "outside 0")

        self.run_loop(main, plain)

    def test_what_others_schedule_is_theirs(self):
        """A thread may schedule something just when the task does."""
        seen = []

        class Loop(asyncio.SelectorEventLoop):
            def call_soon(self, *arguments, **options):
                handle = super().call_soon(*arguments, **options)
                super().call_soon(seen.append, "other")
                return handle

        async def main(peer):
            for n in range(3):
                peer.call("yields", n)
                self.assertEqual(await peer.later(n), f"{n + 1}")
            self.assertIn("other", seen)

        async def yields() -> str:
            steps.append(1)
            await asyncio.sleep(0)
            return f"{len(steps)}"

        steps = []
        self.run_loop(main, yields, loop=Loop)

    def test_what_ends_more_than_the_call(self):
        """Ctrl-C in a program that embeds us, and an error that means none."""

        async def main(peer):
            for n, error in enumerate([KeyboardInterrupt, GeneratorExit, SystemExit]):

                async def tool(error=error) -> str:
                    raise error

                tool.__signature__ = inspect.Signature()
                peer.server.add_tool(tool, name=error.__name__)
                try:
                    peer.call(error.__name__, n)
                except KeyboardInterrupt:
                    self.assertIs(error, KeyboardInterrupt)
                self.assertEqual(peer.text(n), error.__name__)
                self.assertEqual(peer.calls, {})
                self.assertEqual(peer.call("plain", "p"), "outside 0")

        self.run_loop(main, plain)

    def test_its_stack_can_be_printed(self):
        async def waits() -> str:
            await asyncio.sleep(0.01)
            return "over"

        async def main(peer):
            peer.call("waits")
            task, out = peer.calls[1].task, io.StringIO()
            self.assertIn("_acall", repr(task))
            task.print_stack(file=out)
            self.assertIn("_acall", out.getvalue())
            await peer.later()

        self.run_loop(main, waits)


async def plain() -> str:
    cancelling = getattr(asyncio.current_task(), "cancelling", int)()
    return f"{CONTEXT.get()} {cancelling}"


@unittest.skipUnless(hasattr(select, "epoll"), "only the first thread reads")
class Turns(unittest.TestCase):
    """A worker reads and runs what it has read, as long as it can."""

    def serve(self, workers=8):
        """A server whose turn is a worker's, and where handlers ran by now."""
        server = pipe_server(limits=Limits(workers=workers))
        self.where = []

        @server.tool
        def quick(n: int) -> int:
            self.where.append(threading.get_ident())
            return n

        @server.tool(inline=True)
        def inline(n: int) -> int:
            self.where.append(threading.get_ident())
            return n

        @server.tool(inline=True)
        def asks(ctx: Context) -> str:
            self.where.append(threading.get_ident())
            return str(ctx.confirm("Sure?"))

        piped = self.enterContext(Piped(server, False))
        piped.send(initialize(elicitation={}))
        piped.read()

        def helped():
            """Two workers may both be busy with leaving a call that was answered."""
            self.run_quick(piped)
            return server._turns.helped

        soon(helped, "a worker reads")
        return piped

    def enterContext(self, manager):  # unittest has it since 3.11
        found = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return found

    def run_quick(self, piped, count=20, name="quick"):
        for n in range(count):
            piped.send(call(name, n, n=n))
            self.assertEqual(piped.read()["id"], n)

    def test_the_thread_that_reads_a_call_runs_it(self):
        piped = self.serve()
        self.where.clear()
        hand_over = mock.Mock(side_effect=AssertionError)
        with mock.patch.object(piped.server, "_hand_over", hand_over):
            self.run_quick(piped, 50)
        self.assertEqual(len(set(self.where)), 1)
        self.assertNotEqual(self.where[0], piped.thread.ident)

    def test_inline_handlers_stay_on_the_first_thread(self):
        piped = self.serve()
        self.where.clear()
        self.run_quick(piped, 3, "inline")  # one by one, the first read by a worker
        self.run_quick(piped)
        piped.send(b"".join(call("inline", n, n=n) for n in range(3)))  # in one read
        for _ in range(3):
            piped.read()
        self.run_quick(piped)
        piped.send(
            call("quick", 1, n=1) + call("inline", 2, n=1) + call("quick", 3, n=1)
        )
        self.assertEqual({piped.read()["id"] for _ in range(3)}, {1, 2, 3})
        first = [ident == piped.thread.ident for ident in self.where]
        self.assertEqual(first[:3] + first[23:26], [True] * 6)
        self.assertEqual(sum(first), 7)

    def test_an_inline_handler_that_asks_goes_on_there(self):
        piped = self.serve()
        self.where.clear()
        piped.send(call("asks", 1))
        question = piped.read()
        self.run_quick(piped)
        answer = {"action": "accept", "content": {"confirm": True}}
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
        piped.send(json.dumps(reply).encode() + b"\n")
        self.assertEqual(piped.read()["result"]["content"][0]["text"], "True")
        self.assertEqual(self.where[0], piped.thread.ident)
        self.assertEqual(self.where[-1], piped.thread.ident)

    def test_a_batch_of_both_kinds(self):
        server = pipe_server()
        with mock.patch.object(rt._Turns, "PATIENCE", 0):
            piped = self.enterContext(Piped(server, False))
            piped.send(initialize("2025-03-26"))
            piped.read()
        server.proceed.set()
        soon(lambda: server._turns.helped, "a worker reads")
        batch = [json.loads(call("echo", 1, text="x")), json.loads(call("work", 2))]
        piped.send(json.dumps(batch).encode() + b"\n")
        self.assertEqual({reply["id"] for reply in piped.read()}, {1, 2})

    def test_a_slow_call_stops_nobody_from_being_read(self):
        for workers in (2, 3):
            piped = self.serve(workers)
            for n in range(workers):
                piped.send(call("work", f"slow {n}"))
                piped.send(line("ping", id=n))
                self.assertEqual(piped.read()["id"], n)
            piped.send(call("quick", "waits", n=1))  # all workers are busy
            piped.send(line("ping", id="p"))
            self.assertEqual(piped.read()["id"], "p")
            lines = piped.server._open.lines
            # One that was answered before may not have been counted out yet.
            count = workers + 1
            soon(lambda n=count, f=lines: sum(map(len, f())) == n, "all are open")
            piped.server.proceed.set()
            ends = {piped.read()["id"] for _ in range(workers + 1)}
            self.assertEqual(ends, {f"slow {n}" for n in range(workers)} | {"waits"})
            self.run_quick(piped)

    def test_every_worker_works_however_the_calls_come(self):
        """The one that reads is one of them: it lets the first thread read."""
        for one_read in (True, False):
            piped = self.serve(3)
            calls = [call("work", n) for n in range(3)]
            for data in [b"".join(calls)] if one_read else calls:
                piped.send(data)
            soon(lambda server=piped.server: not server._waiting, "all three run")
            piped.server.proceed.set()
            self.assertEqual({piped.read()["id"] for _ in range(3)}, {0, 1, 2})

    def test_a_fault_while_a_worker_reads_costs_no_turn(self):
        piped = self.serve()
        faults = [KeyError("a fault of ours")]

        def next_call(*arguments):
            if faults:
                raise faults.pop()
            return real(*arguments)

        real = rt._next_call
        log = self.enterContext(mock.patch.object(piped.server, "_log"))
        with mock.patch.object(rt, "_next_call", next_call):
            piped.send(line("ping", id="after"))
            self.assertEqual(piped.read()["id"], "after")  # by the first thread
        soon(lambda: "a fault of ours" in str(log.call_args), "it is logged")
        self.assertFalse(piped.server._turns.helped)
        self.run_quick(piped)

    def test_a_reply_that_cannot_be_sent_costs_no_turn(self):
        piped = self.serve()
        send, faults = rt._FdPeer.send, [OSError("no way out")]

        def failing(peer, data):
            if faults:
                raise faults.pop()
            send(peer, data)

        log = self.enterContext(mock.patch.object(piped.server, "_log"))
        for name in ("quick", "inline"):
            faults[:] = [OSError("no way out")]
            with mock.patch.object(rt._FdPeer, "send", failing):
                piped.send(call(name, "lost", n=1))
                soon(lambda: "no way out" in str(log.mock_calls), "it is logged")
            self.run_quick(piped)
            log.reset_mock()

    def test_a_call_that_a_signal_overtakes_is_answered(self):
        """It is accepted, and the turn is given up all the same."""
        piped, launch = self.serve(), rt._Call.launch

        def overtaken(each):
            piped.server._turns.ended = True
            launch(each)

        with mock.patch.object(rt._Call, "launch", overtaken):
            piped.send(call("quick", "late", n=1))
            self.assertEqual(piped.read()["id"], "late")
        piped.thread.join(PATIENCE)
        self.assertFalse(piped.thread.is_alive())

    def test_an_answer_does_not_wait_for_the_call_behind_it(self):
        piped = self.serve()
        piped.send(call("asks", 1))
        question = piped.read()
        self.run_quick(piped)
        answer = {"action": "accept", "content": {"confirm": True}}
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
        piped.send(json.dumps(reply).encode() + b"\n" + call("work", 2))
        self.assertEqual(piped.read()["id"], 1)
        piped.server.proceed.set()
        self.assertEqual(piped.read()["id"], 2)

    def test_what_is_due_after_silence_finds_a_worker(self):
        server, fired = pipe_server(limits=Limits(workers=1)), threading.Event()
        server.on_idle(0.02, fired.set)
        server.proceed.set()
        with mock.patch.object(rt._Turns, "PATIENCE", 0):
            piped = self.enterContext(Piped(server, False))
            piped.send(initialize())
            for n in range(5):
                piped.send(line("ping", id=n) + call("work", n))
            self.assertTrue(fired.wait(PATIENCE))

    def test_the_end_of_input_while_a_worker_reads(self):
        piped = self.serve()
        self.assertEqual(piped.end(), b"")
        piped = self.serve()
        piped.send(call("echo", 1, text="no end of line")[:-1])
        self.assertEqual(set(by_id(piped.end())), {1})
        piped = self.serve()
        piped.send(call("work", 1))
        soon(lambda: piped.server._open.lines(), "it is open")
        threading.Timer(0.02, piped.server.proceed.set).start()
        self.assertEqual(set(by_id(piped.end())), {1})

    def test_no_descriptor_is_left(self):
        self.serve().end()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            self.serve().end()
        gone = 3 * 2  # in_fd and the file are closed at the end of the test
        self.assertEqual(len(os.listdir("/proc/self/fd")), before + gone)

    def test_input_that_cannot_be_waited_for(self):
        with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as out:
            server = pipe_server()
            server.proceed.set()
            lines = [call("work", n) for n in range(30)]
            file.write(initialize() + b"".join(lines))
            file.seek(0)
            with mock.patch.object(rt._Turns, "PATIENCE", 0):
                server._run_stdio(file.fileno(), out.fileno())
            out.seek(0)
            self.assertEqual(set(by_id(out.read())), {"i", *range(30)})
            self.assertIsNone(server._turns)  # nobody is left who reads


class Process(unittest.TestCase):
    def apps(self, *kinds, **options):
        """[(loop, one of the kinds, app)], all started before one is looked at."""
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return [
            (loop, kind, stack.enter_context(App(loop, **options)))
            for loop in (False, True)
            for kind in kinds or (None,)
        ]

    def test_stdout_carries_messages_only_STD_02_A04(self):
        for loop, _, app in self.apps():
            with self.subTest(loop=loop):
                out, err = app.end(
                    initialize() + call("noisy", 1) + call("echo", 2, text="x")
                )
                self.assertEqual(set(by_id(out)), {"i", 1, 2})
                self.assertEqual(by_id(out)[1]["result"]["content"][0]["text"], "quiet")
                for text in ("print", "write", "logging", "child"):
                    self.assertIn(b"from " + text.encode(), err)
                self.assertIn(b"at import", err)
                self.assertNotIn(b"\r", out)
                self.assertEqual(app.process.returncode, 0)

    def test_the_end_of_input_ends_the_process_A06_STD_06(self):
        stuck = "threading.Thread(target=time.sleep, args=(3600,)).start()"
        apps = self.apps(after=stuck, limits={"grace": 0.1, "exit_grace": 0.2})
        for _, _, app in apps:
            app.send(initialize() + call("block", 1, seconds=3600))
        for loop, _, app in apps:
            with self.subTest(loop=loop):
                app.read()
                began = time.monotonic()
                out, err = app.end()
                self.assertLess(time.monotonic() - began, 5)
                self.assertEqual(app.process.returncode, 0)
                self.assertEqual(out, b"")
                self.assertIn(b"atexit ran", err)
                self.assertNotIn(b"Traceback", err)

    def test_a_signal_that_a_handler_raises_ends_it(self):
        """No read and no wait of the first thread is interrupted by it."""
        code = APP + textwrap.dedent(
            """
            @server.tool
            def end() -> str:
                import signal
                signal.raise_signal(signal.SIGTERM)
                return "ending"
            """
        )
        with App(code=code) as app:
            app.send(initialize())
            app.read()
            for n in range(20):
                app.send(call("block", n, seconds=0))
                self.assertEqual(app.read()["id"], n)
            app.send(call("end", 20))
            self.assertEqual(app.read()["id"], 20)
            self.assertEqual(app.process.wait(PATIENCE), 0)

    def test_every_kind_of_standard_input_A08(self):
        data = initialize() + call("echo", 1, text="x")
        with contextlib.ExitStack() as stack:
            running = []
            for loop in (False, True):
                file, target = (
                    stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)
                )
                file.write(data)
                file.seek(0)
                here, there = map(stack.enter_context, socket.socketpair())
                apps = (
                    App(loop, stdin=file, stdout=target),
                    App(loop, stdin=subprocess.DEVNULL),
                    App(loop, stdin=there, stdout=there),
                )
                there.close()
                running.append((loop, target, here, [*map(stack.enter_context, apps)]))
            for loop, target, here, (filed, null, socketed) in running:
                with self.subTest("file", loop=loop):
                    filed.process.wait(PATIENCE)
                    err = filed.process.stderr.read()
                    self.assertEqual(filed.process.returncode, 0, err)
                    self.assertNotIn(b"Traceback", err)
                    target.seek(0)
                    self.assertEqual(set(by_id(target.read())), {"i", 1})
                with self.subTest("null", loop=loop):
                    out, err = null.end()
                    self.assertEqual((out, null.process.returncode), (b"", 0), err)
                    self.assertNotIn(b"Traceback", err)
                with self.subTest("socket", loop=loop):
                    here.sendall(data)
                    here.shutdown(socket.SHUT_WR)
                    out = b""
                    while len(out.splitlines()) < 2:
                        out += here.recv(65536)
                    socketed.process.wait(PATIENCE)
                    err = socketed.process.stderr.read()
                    self.assertEqual(socketed.process.returncode, 0, err)
                    self.assertNotIn(b"Traceback", err)
                    self.assertEqual(set(by_id(out)), {"i", 1})

    @unittest.skipUnless(POSIX, "needs a POSIX shell")
    def test_closed_standard_streams(self):
        script = textwrap.dedent("""
            from tinymcp import Server
            Server("x").run()
        """)
        cases = {"<&-": 1, ">&-": 1, "2>&- </dev/null": 0}
        running = {
            closed: subprocess.Popen(
                ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, script],
                env=ENVIRONMENT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for closed in cases
        }
        for closed, process in running.items():
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            _, err = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, cases[closed], (closed, err))

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_one_signal_ends_it_A10(self):
        import pty
        import tty

        numbers = (signal.SIGINT, signal.SIGTERM)
        on_pipe, on_terminal = self.apps(*numbers), []
        with contextlib.ExitStack() as stack:
            for loop in (False, True):
                for number in numbers:
                    master, slave = pty.openpty()
                    stack.callback(os.close, master)
                    stack.callback(os.close, slave)
                    tty.setraw(slave)
                    app = stack.enter_context(App(loop, stdin=slave))
                    os.write(master, line("ping"))
                    on_terminal.append((loop, number, app))
            for _, _, app in on_pipe:
                app.send(line("ping"))
            for loop, number, app in on_pipe + on_terminal:
                terminal = app.process.stdin is None
                with self.subTest(loop=loop, number=number, terminal=terminal):
                    app.read()
                    app.process.send_signal(number)
            for loop, number, app in on_pipe + on_terminal:
                terminal = app.process.stdin is None
                with self.subTest(loop=loop, number=number, terminal=terminal):
                    app.process.wait(PATIENCE)
                    err = app.process.stderr.read()
                    self.assertEqual(app.process.returncode, 0, err)
                    self.assertIn(b"atexit ran", err)
                    self.assertNotIn(b"Traceback", err)

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_a_signal_while_the_output_is_stuck(self):
        limits = {"queue": 50000, "grace": 0.1, "exit_grace": 0.1}
        apps = self.apps(limits=limits)
        for loop, _, app in apps:
            with self.subTest(loop=loop):
                app.send(line("ping"))
                app.read()
                for index in range(5):  # 200 KB of replies, 100 KB of calls
                    app.send(call("echo", index, text="x" * 20000))
                app.send(b"")
                app.process.send_signal(signal.SIGTERM)
        for loop, _, app in apps:
            with self.subTest(loop=loop):
                app.process.wait(PATIENCE)
                self.assertEqual(app.process.returncode, 0)

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_a_second_signal_leaves_at_once(self):
        with App(limits={"grace": 3600.0}) as app:
            app.send(initialize() + call("block", 1, seconds=3600))
            app.read()
            app.process.send_signal(signal.SIGTERM)
            end = time.monotonic() + PATIENCE
            while app.process.poll() is None and time.monotonic() < end:
                app.process.send_signal(signal.SIGTERM)
                time.sleep(0.02)
            self.assertEqual(app.process.returncode, 128 + signal.SIGTERM)

    def test_two_hundred_large_calls_before_the_client_reads_A19(self):
        for loop, _, app in self.apps():
            with self.subTest(loop=loop):
                text = "y" * 50000
                app.send(initialize())
                for index in range(200):
                    app.send(call("echo", index, text=text))
                app.send(line("ping", id="last"))
                out, _ = app.end()
                self.assertEqual(set(by_id(out)), {"i", "last", *range(200)})

    def test_a_stderr_that_nobody_reads_G09(self):
        with App(use_async=True) as app:
            for index in range(100):
                app.send(call("echo", index, text=5))
                app.send(b"x" * 4000 + b"\n")
            out = [app.read() for _ in range(200)]
            self.assertEqual(len(out), 200)

    def test_a_library_encoding_does_not_matter_A02(self):
        env = {"PYTHONIOENCODING": "cp1252", "LC_ALL": "C"}
        with App(env=env) as app:
            out, _ = app.end(initialize() + call("echo", 1, text="é"))
            self.assertIn("é".encode(), out)

    def test_the_blocking_engine_never_imports_asyncio(self):
        code = "from tinymcp import Server\nserver = Server('x')\nimport sys, atexit\n"
        code += (
            "atexit.register(lambda: print('asyncio' in sys.modules, file=sys.stderr))"
        )
        for loop, _, app in self.apps(code=code):
            self.assertEqual(app.end(line("ping"))[1], b"%r\n" % loop)


class Connections(unittest.TestCase):
    """await server.serve(reader, writer) over real sockets."""

    def serve(self, main, **options):
        server = pipe_server(**options)

        async def run():
            faults = []
            asyncio.get_running_loop().set_exception_handler(
                lambda loop, context: faults.append(context)
            )

            async def connected(reader, writer):
                await server.serve(reader, writer)

            listener = await asyncio.start_server(connected, "127.0.0.1", 0)
            try:
                await asyncio.wait_for(
                    main(server, *listener.sockets[0].getsockname()), 20
                )
            finally:
                server.proceed.set()
                listener.close()
            self.assertEqual(faults, [])

        asyncio.run(run())

    def test_small_packets_and_boot_noise_G10(self):
        async def main(server, host, port):
            reader, writer = await asyncio.open_connection(host, port)
            data = (
                b"\x00\xffrst:0x1\r\n" + initialize() + call("echo", 1, text="x" * 50)
            )
            for start in range(0, len(data), 20):
                writer.write(data[start : start + 20])
                await writer.drain()
            found = [json.loads(await reader.readline()) for _ in range(3)]
            self.assertEqual([f.get("id") for f in found], [None, "i", 1])
            writer.close()

        self.serve(main)

    def test_peers_are_apart_and_come_back_STD_09(self):
        async def main(server, host, port):
            for _ in range(2):
                pairs = [await asyncio.open_connection(host, port) for _ in range(2)]
                for (reader, writer), revision in zip(pairs, (D, "2025-03-26")):
                    writer.write(initialize(revision))
                    reply = json.loads(await reader.readline())
                    self.assertEqual(reply["result"]["protocolVersion"], revision)
                pairs[0][1].close()
                pairs[1][1].write(line("ping", id=2))
                self.assertEqual(json.loads(await pairs[1][0].readline())["id"], 2)
                pairs[1][1].close()
            while server._hub.listeners:
                await asyncio.sleep(0.01)

        self.serve(main)

    def test_time_outs_hold_on_a_second_loop(self):
        """What the first was to be woken for went with it."""
        server = pipe_server(limits=Limits(call_timeout=0.3, grace=0.0))

        async def work():
            here, there = socket.socketpair()
            pair = await asyncio.open_connection(sock=there)
            served = asyncio.ensure_future(server.serve(*pair))
            reader, writer = await asyncio.open_connection(sock=here)
            writer.write(line("tools/call", {"name": "work", "_meta": META}))
            reply = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))
            writer.close()
            await served
            return reply["result"]["content"][0]["text"]

        server.proceed.set()
        self.assertIn("worked", asyncio.run(work()))
        server.proceed.clear()
        self.assertIn("within 0.3 s", asyncio.run(work()))
        server.proceed.set()

    def test_what_was_asked_is_answered_after_a_half_close(self):
        async def main(server, host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(initialize(elicitation={}) + call("work", 1) + call("sure", 2))
            for _ in range(2):
                await reader.readline()
            writer.write_eof()
            server.proceed.set()
            rest = await reader.read()
            self.assertEqual(
                by_id(rest)[1]["result"]["content"][0]["text"], "worked False"
            )
            self.assertNotIn(2, by_id(rest))
            writer.close()

        self.serve(main)

    def test_changes_wait_for_a_peer_that_is_behind(self):
        """SUB-03: the last change reaches it once it reads again."""

        async def main(server, host, port):
            client = socket.create_connection((host, port))
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            subscribe = line("resources/subscribe", {"uri": "x://a"}, "s")
            await loop.sock_sendall(client, initialize() + subscribe)
            big = call("echo", 1, text="x" * 60000)
            while not any(peer.draining for peer in peers):
                await loop.sock_sendall(client, big)
                await asyncio.sleep(0)
            for _ in range(5):
                server.notify_updated("x://a")
                await asyncio.sleep(0)
            data = b""
            while b"notifications/resources/updated" not in data[-400:]:
                data += await loop.sock_recv(client, 1 << 20)
            self.assertEqual(data.count(b"notifications/resources/updated"), 1)
            client.close()

        peers = []
        real = rt._WriterPeer.__init__

        def init(peer, *arguments):
            real(peer, *arguments)
            peers.append(peer)

        with mock.patch.object(rt._WriterPeer, "__init__", init):
            self.serve(main, limits=Limits(stream_queue=50000))

    def test_a_peer_that_resets_cancels_its_calls(self):
        async def main(server, host, port):
            client = socket.create_connection((host, port))
            client.sendall(initialize() + call("work", 1))
            while not server._open.lines():
                await asyncio.sleep(0.01)
            linger = (1).to_bytes(4, "little") + bytes(4)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
            while server._open.lines():
                await asyncio.sleep(0.01)

        self.serve(main)

    def test_a_peer_that_reads_nothing_is_dropped(self):
        async def main(server, host, port):
            client = socket.create_connection((host, port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(initialize())
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            with self.assertRaises(OSError):
                while True:
                    await loop.sock_sendall(client, call("echo", 1, text="x" * 60000))
            client.close()

        for queue in (100000, 1 << 24):
            limits = Limits(queue=queue, write_timeout=0.1)
            self.serve(main, limits=limits)


if __name__ == "__main__":
    unittest.main()
