"""The client above its transports: eras, questions, results, cache, subscriptions."""

import asyncio
import contextlib
import functools
import itertools
import json
import pathlib
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import tinymcp
from tinymcp import client as module
from tinymcp.client import (
    Client,
    ClientError,
    ConnectionLost,
    InvalidReply,
    MCPError,
    RequestTimeout,
    Result,
    SyncClient,
    VersionError,
)

from .fakes import (
    LEGACY,
    META,
    MODERN,
    SSE,
    Failure,
    FakeHttp,
    FakeStream,
    Script,
    event,
    over_http,
    response,
)
from .test_transports import Logged, fake, quick

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "fern"},
        "sure": {"type": "boolean"},
        "many": {"type": "integer", "default": 3},
    },
}


def question(method="elicitation/create", **params):
    if method == "elicitation/create" and "mode" not in params:
        params = {"message": "Which?", "requestedSchema": FORM, **params}
    return {"method": method, "params": params}


def asks(questions=None, state=None):
    result = {"resultType": "input_required"}
    if questions is not None:
        result["inputRequests"] = questions
    if state is not None:
        result["requestState"] = state
    return result


def unsupported(*versions):
    data = {"supported": list(versions), "requested": MODERN}
    return Failure(-32022, "Unsupported protocol version", data)


@functools.lru_cache(maxsize=1)
def start_seconds():
    """What a process takes to start here: a slow board may not look like silence."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import json"], check=True, timeout=60)
    return time.monotonic() - began


def losing(plain, lost):
    """Over HTTP as `plain`; a session is at an end once when `lost` holds something."""

    async def answer(request, writer):
        if lost and "mcp-session-id" in request.headers:
            lost.clear()
            return response(404, b"")
        return await plain(request, writer)

    return answer


def patience():
    """Seconds after which silence is one."""
    return max(0.3, 4 * start_seconds())


class EraStdioTest(Logged):
    """VER-04: the era of a child process."""

    async def era(self, limits=None, **spec):
        command = fake(starts=str(self.starts), **spec)
        limits = limits or quick(probe=20.0, timeout=20.0)  # the fake takes its time
        async with self.client(command, limits=limits) as client:
            result = await client.call_tool("echo", {"text": "a"})
            self.assertEqual(result.text, "a")
            return client.protocol_version

    async def test_field_F02_errors(self):
        """The fallback is not keyed to one code."""
        codes = (-32601, -32602, -32600, -32000, -32603, 0, "null id", "empty")
        eras = await asyncio.gather(*(self.era(discover=code) for code in codes))
        self.assertEqual(dict(zip(codes, eras)), dict.fromkeys(codes, LEGACY))

    async def test_field_F02_silence(self):
        limits = quick(probe=patience())
        eras = (self.era(limits, discover=how) for how in ("silent", "garbage"))
        self.assertEqual(await asyncio.gather(*eras), [LEGACY] * 2)
        self.assertEqual(self.noted().count("start"), 2)

    async def test_field_F02_modern_errors(self):
        """No initialize after -32022 without a legacy revision, -32020 or -32021."""
        for code, error in (
            (-32022, VersionError),
            (-32020, MCPError),
            (-32021, MCPError),
        ):
            with self.subTest(code), self.assertRaises(error):
                await self.era(discover=code, supported=["2027-01-01"])
        self.assertNotIn("initialize", self.noted())

    async def test_modern(self):
        self.assertEqual(await self.era(discover="modern"), MODERN)
        self.assertEqual(self.noted().count("server/discover"), 1)

    async def test_unsupported_with_a_legacy_revision(self):
        era = await self.era(discover=-32022, supported=["2027-01-01", LEGACY])
        self.assertEqual(era, LEGACY)

    async def test_discover_without_our_revision(self):
        era = await self.era(discover="modern", supported=["2025-06-18"])
        self.assertEqual(era, LEGACY)

    async def test_field_F12_exits_on_the_probe(self):
        for how in ("exit 0", "exit 1"):
            with self.subTest(how):
                self.assertEqual(await self.era(discover=how), LEGACY)
        self.assertEqual(self.noted().count("start"), 4)

    async def test_field_F12_sulks(self):
        """Silent for good once it has seen a probe: killed, started again."""
        start, probe = time.monotonic(), patience()
        self.assertEqual(await self.era(quick(probe=probe), sulks=True), LEGACY)
        self.assertLess(time.monotonic() - start, 5.0 + 2 * probe)
        self.assertEqual(self.noted().count("start"), 2)
        self.assertEqual(self.noted().count("server/discover"), 1)

    async def test_field_F12_answers_late(self):
        limits = quick(probe=patience())
        self.assertEqual(await self.era(limits, discover="late"), LEGACY)
        self.assertIn("which waits for none", "\n".join(self.logged))

    async def test_initialize_fails(self):
        """LIF-02: an error, or a revision that nobody knows."""
        with self.assertRaises(MCPError):
            await self.era(initialize=-32603)
        with self.assertRaisesRegex(VersionError, "1999"):
            await self.era(initialize="1999-01-01")

    async def test_older_revision(self):
        self.assertEqual(await self.era(initialize="2024-11-05"), "2024-11-05")


class EraTest(Logged):
    async def test_modes(self):
        legacy, modern = FakeStream("legacy"), FakeStream("modern")
        async with self.client(legacy, mode="legacy") as client:
            self.assertEqual(client.protocol_version, LEGACY)
        self.assertFalse(legacy.sent("server/discover"))
        async with self.client(modern, mode=MODERN) as client:
            self.assertEqual(client.protocol_version, MODERN)
        with self.assertRaisesRegex(VersionError, "was asked for"):
            await self.client(FakeStream("legacy"), mode=MODERN).__aenter__()
        with self.assertRaises(MCPError):
            await self.client(FakeStream("modern"), mode="legacy").__aenter__()
        with self.assertRaisesRegex(ValueError, "mode is"):
            Client(legacy, mode="2024-11-05")

    async def test_what_is_known(self):
        """DSC-02, LIF-10, LIF-11."""
        for era in ("legacy", "modern"):
            async with self.client(FakeStream(era)) as client:
                self.assertEqual(client.server_info["name"], "fake")
                self.assertEqual(client.instructions, "Hi.")
                self.assertIn("tools", client.capabilities)
        odd = {"supportedVersions": [MODERN], "capabilities": 3, "instructions": 4}
        async with self.client(FakeStream(server__discover=odd)) as client:
            self.assertEqual((client.server_info, client.capabilities), ({}, {}))
            self.assertIsNone(client.instructions)

    async def test_retry_with_a_common_version(self):
        """VER-08: -32022 that names our version is tried once more."""
        refusals = [unsupported(MODERN)]

        def discover(params):
            if refusals:
                raise refusals.pop()
            return {"supportedVersions": [MODERN], "capabilities": {}}

        async with self.client(FakeStream(server__discover=discover)) as client:
            self.assertTrue(client.modern)

        def never(params):
            raise unsupported(MODERN)

        with self.assertRaises(VersionError):
            await self.client(FakeStream(server__discover=never)).__aenter__()

    async def test_slow_modern_server(self):
        """A probe that came too early: the refusal of initialize tells the era."""
        probes = []

        def discover(params):
            probes.append(params)
            if len(probes) > 1:
                return {"supportedVersions": [MODERN], "capabilities": {}}

        def initialize(params):
            raise unsupported(MODERN)

        server = FakeStream(server__discover=discover, initialize=initialize)
        async with self.client(server, limits=quick(probe=0.05)) as client:
            self.assertTrue(client.modern)

    async def test_metadata_of_requests(self):
        """MET-02, VER-09: each modern request says who asks; a legacy one does not."""
        server = FakeStream()
        options = {"client_info": {"name": "me", "version": "2"}, "log_level": "debug"}
        callback = {"sampling_callback": print, "list_roots_callback": ["file:///a"]}
        extensions = {"com.example/x": {}}
        async with self.client(
            server, extensions=extensions, **options, **callback
        ) as client:
            await client.list_tools(meta={"traceparent": "00-1"})
        for message in server.seen:
            meta = message["params"]["_meta"]
            declared = {"sampling": {}, "roots": {}, "extensions": extensions}
            self.assertEqual(meta[META + "clientCapabilities"], declared)
            self.assertEqual(meta[META + "clientInfo"], options["client_info"])
            self.assertEqual(meta[META + "logLevel"], "debug")
        self.assertEqual(meta["traceparent"], "00-1")
        legacy = FakeStream("legacy")
        async with self.client(legacy, elicitation_callback=print) as client:
            await client.list_tools()
        self.assertEqual(legacy.sent("tools/list"), [{}])
        self.assertEqual(
            legacy.sent("initialize")[0]["capabilities"], {"elicitation": {"form": {}}}
        )
        self.assertEqual(legacy.seen[2]["method"], "notifications/initialized")

    async def http_era(self, answer, **options):
        async with FakeHttp(answer) as server:
            async with self.client(server.url, **options) as client:
                await client.list_tools()
                return client.protocol_version, server

    async def test_field_F02_http(self):
        """VER-05: a 4xx without a modern error in it is a legacy server."""
        error = {
            "jsonrpc": "2.0",
            "error": {"code": -32000, "message": "Bad"},
            "id": None,
        }
        bodies = [
            response(400, b""),
            response(400, b"Invalid session"),
            response(404, b"<html>", content_type="text/html"),
            response(405, b""),
            response(400, error),
            response(500, b""),
            response(200, {"jsonrpc": "2.0", "id": 1, "result": {}}),
            response(200, b""),
            response(202, b""),
        ]
        for body in bodies:
            plain = over_http(Script("legacy"))

            async def answer(request, writer, plain=plain, body=body):
                if b"server/discover" in request.body:
                    return body
                return await plain(request, writer)

            with self.subTest(body[:60]):
                self.assertEqual((await self.http_era(answer))[0], LEGACY)

    async def test_field_F02_http_modern_error(self):
        error = {"code": -32020, "message": "Header mismatch"}

        async def answer(request, writer):
            return response(400, {"jsonrpc": "2.0", "id": 1, "error": error})

        async with FakeHttp(answer) as server:
            with self.assertRaises(MCPError):
                await self.client(server.url).__aenter__()
            self.assertEqual(len(server.seen), 1)

    async def test_gateway_errors_are_no_era(self):
        for status in (403, 502, 503, 504):
            async with FakeHttp(lambda r, w, s=status: response(s, b"")) as server:
                with self.assertRaises(ConnectionLost):
                    await self.client(server.url).__aenter__()
                self.assertEqual(len(server.seen), 1)

    async def test_era_is_remembered(self):
        """VER-06: one probe per URL and process; what no longer holds is found out."""
        for era in ("legacy", "modern"):
            script = Script(era)
            async with FakeHttp(over_http(script)) as server:
                for _ in range(2):
                    async with self.client(server.url):
                        pass
                probes = 1 if era == "legacy" else 2
                self.assertEqual(len(server.sent("server/discover")), probes)
                script.era = "modern"
                async with self.client(server.url) as client:
                    self.assertTrue(client.modern)

    async def test_http_probe_timeout(self):
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if b"server/discover" in request.body:
                await asyncio.sleep(30)
            return await plain(request, writer)

        limits = quick(probe=0.1)
        self.assertEqual((await self.http_era(answer, limits=limits))[0], LEGACY)

    async def test_initialize_times_out(self):
        """LIF-08: initialize is never cancelled."""
        server = FakeStream("legacy", initialize=lambda params: None)
        with self.assertRaises(RequestTimeout):
            await self.client(server, limits=quick(timeout=0.1)).__aenter__()
        self.assertFalse(server.sent("notifications/cancelled"))

    async def test_gone_after_the_probe(self):
        """A byte stream that ends at the probe is opened again."""
        hung = []

        def discover(params):
            if not hung:
                hung.append(1)
                server.hang_up()

        server = FakeStream("legacy", server__discover=discover)
        async with self.client(server) as client:
            self.assertEqual(client.protocol_version, LEGACY)


class CallTest(Logged):
    async def test_field_E04_progress_and_limits(self):
        """LIF-09, PRG-02: progress resets the limit, the maximum always holds."""
        # Five children at once: on a slow board none may be late between two steps.
        t = max(0.2, 2 * start_seconds())
        cases = [
            # timeout, max_timeout, reset_on_progress, callback: is there a result?
            (t, 50 * t, True, False, True),
            (t, None, None, True, True),
            (t, 1.5 * t, True, False, False),
            (t, 50 * t, False, True, False),
            (t, 50 * t, None, False, False),
        ]
        await asyncio.gather(*(self.limited(*case) for case in cases))

    async def limited(self, timeout, most, reset, wanted, result):
        steps, got = {"steps": 8, "pause": timeout / 4}, []
        options = {"timeout": timeout, "reset_on_progress": reset}
        if wanted:
            options["progress_callback"] = lambda *report: got.append(report)
        if most is not None:
            options["max_timeout"] = most
        async with self.client(fake()) as client:
            if not result and (wanted or reset):
                with self.assertRaises(RequestTimeout, msg=options):
                    await client.call_tool("progress", steps, **options)
                # The late answer is ignored, the next call is fine.
                await client.call_tool("echo", timeout=100 * timeout)
                return
            # Without a token the fake answers at once.
            await client.call_tool("progress", steps, **options)
            if result:
                self.assertEqual(len(got), 8 * wanted, options)

    async def test_progress_reports(self):
        reports = []

        async def work(params):
            token = params["_meta"]["progressToken"]
            for values in (
                {"progress": 0.5},
                {"progress": 1, "total": 2, "message": "m"},
            ):
                server.notify("notifications/progress", progressToken=token, **values)
            server.notify("notifications/progress", progressToken="1", progress=9)
            server.notify("notifications/progress", progressToken=True, progress=9)
            return {"content": []}

        async def report(*values):
            reports.append(values)

        server = FakeStream(tools__call=work)
        async with self.client(server) as client:
            await client.call_tool("x", progress_callback=report)
            await client.ping()
        self.assertEqual(reports, [(0.5, None, None), (1, 2, "m")])

    async def test_timeout_tells_the_server(self):
        """CAN-01, CAN-03, ERR-07, B10: cancelled is sent, the late answer ignored."""
        server = FakeStream(tools__call=lambda params: None)
        async with self.client(server) as client:
            with self.assertRaises(RequestTimeout) as raised:
                await client.call_tool("x", timeout=0.05)
            self.assertIsInstance(raised.exception, TimeoutError)
            self.assertNotIsInstance(raised.exception, MCPError)
            await server.until_method("notifications/cancelled")
            id = server.seen[-2]["id"]
            self.assertEqual(server.sent("notifications/cancelled")[0]["requestId"], id)
            server.send({"id": id, "result": {"content": []}})
            await client.ping()

    async def test_timeout_tells_of_an_error_without_an_id(self):
        """A server that could not read a request cannot say which one it was."""

        def unread(params):
            server.send({"error": {"code": -32600, "message": "over the limit"}})

        server = FakeStream(tools__call=unread, ping=lambda params: None)
        async with self.client(server) as client:
            with self.assertRaisesRegex(RequestTimeout, "a message: over the limit$"):
                await client.call_tool("x", timeout=0.1)
            with self.assertRaisesRegex(RequestTimeout, " s$"):
                await client._request("ping", {}, timeout=0.05)

    async def test_maximum_is_for_all_of_a_call(self):
        """LIF-09: rounds, pauses, pages and questions do not begin it again."""

        pages = itertools.count()

        async def page(params):
            await asyncio.sleep(0.1)
            return {"tools": [], "nextCursor": str(next(pages))}

        async def ask(params):
            await asyncio.sleep(0.1)
            return asks({"q": question()}, "s")

        def wait(client):
            return client.call_tool("x", timeout=0.2, max_timeout=0.4)

        async def ends(methods, work):
            server = FakeStream(**methods)
            async with self.client(server, elicitation_callback=lambda p: {}) as client:
                start = time.monotonic()
                with self.assertRaisesRegex(RequestTimeout, "no answer"):
                    await work(client)
                self.assertLess(time.monotonic() - start, 2.0)

        most = {"max_timeout": 0.4}
        cases = (
            ({"tools__call": asks(state="s")}, wait),
            ({"tools__call": ask}, wait),
            (
                {"resources__read": asks(state="s")},
                lambda c: c.read_resource("a", **most),
            ),
            ({"prompts__get": asks(state="s")}, lambda c: c.get_prompt("a", **most)),
            ({"tools__list": page}, lambda c: c.list_tools(**most)),
        )
        await asyncio.gather(*(ends(*case) for case in cases))

    async def test_limits_hold_for_the_list_that_a_call_needs(self):
        """LIF-09: over HTTP, and for the outputSchema of a structured result."""
        script = Script(tools__list=lambda params: asyncio.sleep(30))
        result = {"content": [], "structuredContent": {}}
        silent = {"tools__list": lambda params: None, "tools__call": result}

        async def ends(target, limits):
            async with self.client(target) as client:
                start = time.monotonic()
                with self.assertRaisesRegex(RequestTimeout, "tools/list"):
                    await client.call_tool("x", **limits)
                self.assertLess(time.monotonic() - start, 2.0)

        async with FakeHttp(over_http(script)) as server:
            limits = ({"timeout": 0.2}, {"max_timeout": 0.2})
            http = [ends(server.url, each) for each in limits]
            pipe = [ends(FakeStream(**silent), each) for each in limits]
            await asyncio.gather(*http, *pipe)

    async def test_maximum_holds_for_what_precedes_a_call(self):
        """LIF-09: a stream that is opened again, a session that is begun again."""
        server = FakeStream()
        async with self.client(server, restart=True) as client:
            server.methods["server/discover"] = lambda params: None
            server.methods["initialize"] = lambda params: None
            server.hang_up()
            while client._transport.lost is None:
                await asyncio.sleep(0.01)
            start = time.monotonic()
            with self.assertRaisesRegex(RequestTimeout, "call: no answer"):
                await client.call_tool("x", max_timeout=0.2)
            self.assertLess(time.monotonic() - start, 1.5)

        script = Script("legacy")
        plain = over_http(script, session="s")

        async def answer(request, writer):
            if b"tools/call" in request.body:
                script.methods["initialize"] = lambda params: asyncio.sleep(30)
                return response(404, b"")
            return await plain(request, writer)

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            start = time.monotonic()
            with self.assertRaisesRegex(RequestTimeout, "call: no answer"):
                await client.call_tool("x", max_timeout=0.2)
            self.assertLess(time.monotonic() - start, 1.5)

    async def test_cancelled_caller_tells_the_server(self):
        for era in ("modern", "legacy"):
            server = FakeStream(era, tools__call=lambda params: None)
            async with self.client(server) as client:
                task = asyncio.ensure_future(client.call_tool("x"))
                await server.until_method("tools/call")
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await server.until_method("notifications/cancelled")

    async def test_legacy_http_cancel(self):
        """HTL-13: a legacy server gets the notification."""
        plain = over_http(Script("legacy"))

        async def answer(request, writer):
            if b"tools/call" in request.body:
                writer.write(SSE + b"\r\n: wait\n\n")
                await asyncio.sleep(30)
            return await plain(request, writer)

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            with self.assertRaises(RequestTimeout):
                await client.call_tool("x", timeout=0.1)
            await server.until(lambda r: b"notifications/cancelled" in r.body)

    async def test_result_types(self):
        """RPC-08: absent means complete, an unknown one is an error."""
        for kind, fine in (("complete", True), (None, True), ("weird", False)):
            result = {"content": [{"type": "text", "text": "a"}]}
            if kind:
                result["resultType"] = kind
            server = FakeStream("legacy", tools__call=result)
            async with self.client(server) as client:
                if fine:
                    self.assertEqual((await client.call_tool("x")).text, "a")
                else:
                    with self.assertRaisesRegex(InvalidReply, "weird"):
                        await client.call_tool("x")

    async def test_input_required_where_it_must_not_be(self):
        """MRT-01."""
        server = FakeStream(tools__list=asks(state="s"))
        async with self.client(server) as client:
            with self.assertRaises(InvalidReply):
                await client.list_tools()

    async def test_errors_of_the_server(self):
        """RES-10, ERR-05: both codes of a missing resource arrive as they are."""

        def read(params):
            raise Failure(int(params["uri"]), "none", {"uri": "x"})

        async with self.client(FakeStream(resources__read=read)) as client:
            for code in (-32602, -32002):
                with self.assertRaises(MCPError) as raised:
                    await client.read_resource(str(code))
                self.assertEqual(raised.exception.code, code)
                self.assertEqual(raised.exception.data, {"uri": "x"})

    async def test_views_of_a_result(self):
        blocks = [
            {"type": "text", "text": "a"},
            {"type": "image", "data": "", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "x://y", "text": "b"}},
        ]
        tool = Result(content=blocks, isError=True, structuredContent=[1])
        self.assertEqual((tool.text, tool.is_error), ("a\nb", True))
        self.assertEqual(tool.structured_content, [1])
        read = Result(
            contents=[{"uri": "x", "blob": "AAE="}, {"uri": "x", "text": "t"}]
        )
        self.assertEqual((read.data, read.text), (b"\0\1", "t"))
        self.assertEqual(
            Result(contents=[{"uri": "x", "text": "é"}]).data, "é".encode()
        )
        for blob in (5, None, [], "abc", "é"):
            with self.assertRaisesRegex(ClientError, "the blob is not Base64"):
                _ = Result(contents=[{"blob": blob}]).data
        messages = [
            {"role": "user", "content": {"type": "text", "text": "a"}},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "user"},
        ]
        self.assertEqual(Result(messages=messages).text, "a\nb")
        self.assertEqual(Result(completion={"values": ["v"]}).completions, ["v"])
        self.assertEqual(
            (Result().text, Result().completions, Result().content), ("", [], [])
        )

    async def test_complete(self):
        """CMP-03."""
        values = {"completion": {"values": ["fern"]}}
        server = FakeStream(completion__complete=values)
        async with self.client(server) as client:
            ref = {"type": "ref/prompt", "name": "p"}
            argument = {"name": "plant", "value": "f"}
            got = await client.complete(ref, argument, {"bed": "1"})
            await client.complete(ref, argument)
        self.assertEqual(got.completions, ["fern"])
        params = server.sent("completion/complete")
        self.assertEqual(params[0]["context"], {"arguments": {"bed": "1"}})
        self.assertNotIn("context", params[1])

    async def test_logging(self):
        """LOG-01, LOG-02: legacy servers are told, modern ones by each request."""
        got = []

        def work(params):
            server.notify("notifications/message", level="info", data="hot")
            return {"content": []}

        for era in ("legacy", "modern"):
            server = FakeStream(era, tools__call=work, logging__setLevel={})
            async with self.client(server, logging_callback=got.append) as client:
                await client.set_logging_level("info")
                await client.call_tool("x")
                await client.ping()
            told = server.sent("logging/setLevel")
            self.assertEqual(bool(told), era == "legacy")
        self.assertEqual(server.seen[1]["params"]["_meta"][META + "logLevel"], "info")
        self.assertEqual(got, [{"level": "info", "data": "hot"}] * 2)
        async with self.client(FakeStream("legacy", {"tools": {}})) as client:
            with self.assertRaisesRegex(ClientError, "does not offer logging"):
                await client.set_logging_level("info")

    async def test_callbacks_that_fail(self):
        """A bad callback costs nothing but a line in the log."""

        async def bad(*values):
            raise ValueError("async")

        def worse(*values):
            raise ValueError("plain")

        server = FakeStream()
        callbacks = {"logging_callback": bad, "message_handler": worse}
        async with self.client(server, **callbacks) as client:
            server.notify("notifications/message", level="info", data="x")
            await client.ping()
        text = "\n".join(self.logged)
        self.assertIn("plain", text)
        self.assertIn("async", text)

    async def test_default_log(self):
        with self.assertLogs("tinymcp.client", "WARNING") as logs:
            async with Client(FakeStream()) as client:
                client._transport._calls.receive({"jsonrpc": "2.0"})
        self.assertEqual(len(logs.output), 1)


class QuestionTest(Logged):
    """MRT, ELI, SMP, ROO: one set of callbacks for both eras."""

    async def modern(self, questions, **options):
        """The inputResponses of a modern server that asks."""

        def work(params):
            if "inputResponses" not in params:
                return asks(questions, "s")
            return {"content": []}

        server = FakeStream(tools__call=work)
        async with self.client(server, **options) as client:
            await client.call_tool("x", {"a": 1})
        return server.sent("tools/call")[1]["inputResponses"]

    async def legacy(self, questions, **options):
        """The replies that a legacy server gets."""

        async def work(params):
            answers = {}
            for key, asked in questions.items():
                server.send({"id": key, **asked})
                reply = await server.until(lambda m, k=key: m.get("id") == k)
                answers[key] = reply.get("result", reply.get("error"))
            server.answers = answers
            return {"content": []}

        server = FakeStream("legacy", tools__call=work)
        async with self.client(server, **options) as client:
            await client.call_tool("x")
        return server.answers

    async def both(self, questions, wanted, **options):
        for era in (self.modern, self.legacy):
            with self.subTest(era.__name__):
                self.assertEqual(await era(questions, **options), wanted)

    async def test_forms(self):
        """ELI-01, ELI-02: defaults are filled in; every kind of answer."""
        filled = {"name": "fern", "many": 3, "sure": True}
        accepted = {"action": "accept", "content": filled}
        defaults = {"action": "accept", "content": {"name": "fern", "many": 3}}
        given = {"action": "accept", "content": {"sure": True}}
        cases = [
            (given, accepted),
            ({"sure": True}, accepted),
            ("accept", defaults),
            (True, defaults),
            ("decline", {"action": "decline"}),
            (False, {"action": "decline"}),
            (None, {"action": "cancel"}),
            (
                {"action": "decline", "content": None},
                {"action": "decline", "content": None},
            ),
        ]
        for answer, wanted in cases:
            await self.both(
                {"k": question()},
                {"k": wanted},
                elicitation_callback=lambda params, answer=answer: answer,
            )

    async def test_true_says_yes_to_a_form(self):
        """The one boolean that has to be known; where there are more, none."""
        yes, text = {"type": "boolean"}, {"type": "string", "default": "fern"}
        off = {"type": "boolean", "default": False}
        cases = [  # properties, required, content
            ({"confirm": yes}, ["confirm"], {"confirm": True}),
            ({"confirm": off}, ["confirm"], {"confirm": True}),
            ({"confirm": yes}, [], {"confirm": True}),
            ({"a": yes, "b": text}, ["a", "b"], {"a": True, "b": "fern"}),
            ({"a": yes, "b": off}, ["a", "b"], {"a": True, "b": False}),
            ({"a": off, "b": text}, ["a"], {"a": False, "b": "fern"}),
            ({"a": yes, "b": text}, [], {"b": "fern"}),
            ({"a": yes, "b": yes}, ["a", "b"], {}),
            ({}, [], {}),
        ]
        for properties, required, content in cases:
            form = {"type": "object", "properties": properties, "required": required}
            await self.both(
                {"k": question(requestedSchema=form)},
                {"k": {"action": "accept", "content": content}},
                elicitation_callback=lambda params: True,
            )

    async def test_true_is_a_yes_to_confirm(self):
        server = tinymcp.Server("feeder")

        @server.tool
        def feed(ctx: tinymcp.Context) -> bool:
            return ctx.confirm("Feed the fish?")

        for mode in ("legacy", "2026-07-28"):
            for answer in (True, False):
                options = {"elicitation_callback": lambda params, a=answer: a}
                async with self.client(server, mode=mode, **options) as client:
                    result = await client.call_tool("feed")
                self.assertEqual(
                    (result.is_error, result.text), (False, str(answer).lower())
                )

    async def test_async_and_plain_callbacks(self):
        async def later(params):
            await asyncio.sleep(0)
            return params["message"] == "Which?"

        def on_a_thread(params):
            self.assertIsNot(threading.current_thread(), threading.main_thread())
            return True

        def gives_an_awaitable(params):
            return later(params)

        wanted = {"action": "accept", "content": {"name": "fern", "many": 3}}
        for callback in (later, on_a_thread, gives_an_awaitable):
            await self.both(
                {"k": question()}, {"k": wanted}, elicitation_callback=callback
            )

    async def test_url(self):
        """ELI-05: URL mode has a callback of its own, and a consent without content."""
        asked = {"k": question(mode="url", message="Sign in", url="https://x/")}
        wanted = {"k": {"action": "accept"}}
        await self.both(asked, wanted, url_callback=lambda params: True)
        with self.assertRaisesRegex(InvalidReply, "by URL"):
            await self.modern(asked, elicitation_callback=lambda params: True)

    async def test_sampling_and_roots(self):
        """SMP-01, ROO-01, MRT-09: several questions of several kinds."""
        questions = {
            "a": question("sampling/createMessage", messages=[], maxTokens=5),
            "b": question("roots/list"),
        }
        text = {"type": "text", "text": "hi"}
        message = {"role": "assistant", "model": "unknown", "content": text}
        wanted = {"a": message, "b": {"roots": [{"uri": "file:///a", "name": "A"}]}}
        roots = [{"uri": "file:///a", "name": "A"}]
        options = [
            {"sampling_callback": lambda p: "hi", "list_roots_callback": roots},
            {
                "sampling_callback": lambda p: {"content": text},
                "list_roots_callback": lambda p: {"roots": roots},
            },
        ]
        for option in options:
            await self.both(questions, wanted, **option)

    async def test_not_offered(self):
        """LIF-07: what was not declared is refused."""
        asked = {"k": question()}
        reply = (await self.legacy(asked))["k"]
        self.assertEqual(reply["code"], -32601)
        with self.assertRaises(InvalidReply):
            await self.modern(asked)
        self.assertEqual(await self.legacy({"k": question("ping")}), {"k": {}})

    async def test_failing_callback(self):
        def bad(params):
            raise ValueError("secret")

        reply = (await self.legacy({"k": question()}, elicitation_callback=bad))["k"]
        self.assertEqual(reply["message"], "The client could not answer")
        with self.assertRaisesRegex(ValueError, "secret"):
            await self.modern({"k": question()}, elicitation_callback=bad)

    async def test_callbacks_that_raise_what_is_no_error(self):
        """next() of what has ended, sys.exit(): the call fails, and does not hang."""
        for error in (StopIteration(), SystemExit("no"), KeyboardInterrupt()):
            server = FakeStream(tools__call=asks({"a": question()}))
            ask = mock.Mock(side_effect=error)
            async with self.client(server, elicitation_callback=ask) as client:
                with self.assertRaisesRegex(ClientError, "a callback raised"):
                    await asyncio.wait_for(client.call_tool("t"), 5)

    async def test_state_and_ids(self):
        """MRT-04, MRT-08: new id, same params, state untouched and not carried over."""
        states = ['{"a": 1}', " \u2028é", None]

        def work(params):
            if params["name"] == "other":
                return {"content": []}
            if len(calls()) <= 3:
                return asks({"k": question()}, states[len(calls()) - 1])
            return {"content": []}

        def calls():
            return [p for p in server.sent("tools/call") if p["name"] == "x"]

        server = FakeStream(tools__call=work)
        async with self.client(server, elicitation_callback=lambda p: True) as client:
            await asyncio.gather(
                client.call_tool("x", {"a": 1}), client.call_tool("other")
            )
        self.assertEqual([p.get("requestState") for p in calls()], [None, *states])
        self.assertEqual(
            ["requestState" in p for p in calls()], [False, True, True, False]
        )
        self.assertTrue(all(p["arguments"] == {"a": 1} for p in calls()))
        other = next(p for p in server.sent("tools/call") if p["name"] == "other")
        self.assertFalse({"inputResponses", "requestState"} & other.keys())
        ids = [m["id"] for m in server.seen if "id" in m]
        self.assertEqual(len(set(ids)), len(ids))

    async def test_rounds_are_bounded(self):
        async def ask_again(params):
            return asks({"k": question()})

        server = FakeStream(tools__call=ask_again)
        options = {"elicitation_callback": lambda p: True, "limits": quick(rounds=3)}
        async with self.client(server, **options) as client:
            with self.assertRaisesRegex(InvalidReply, "more than 3 times"):
                await client.call_tool("x")
        self.assertEqual(len(server.sent("tools/call")), 4)

    async def test_state_alone(self):
        def work(params):
            return {"content": []} if "requestState" in params else asks(state="s")

        async with self.client(FakeStream(tools__call=work)) as client:
            await client.call_tool("x")

    async def test_bad_questions(self):
        bad = [asks(), asks({"k": 3}), asks({"k": {"method": 3}})]
        for result in bad:
            async with self.client(FakeStream(tools__call=result)) as client:
                with self.assertRaises(InvalidReply):
                    await client.call_tool("x")

    async def test_by_hand(self):
        """allow_input_required, then input_responses and request_state."""

        def work(params):
            if "inputResponses" not in params:
                return asks({"k": question("roots/list")}, "s")
            return {"content": [], "contents": [], "messages": []}

        methods = dict.fromkeys(
            ("tools__call", "prompts__get", "resources__read"), work
        )
        server = FakeStream(**methods)
        async with self.client(server) as client:
            for method in (client.call_tool, client.get_prompt, client.read_resource):
                asked = await method("x", allow_input_required=True)
                self.assertEqual(asked["requestState"], "s")
                answers = {"k": {"roots": []}}
                await method("x", input_responses=answers, request_state="s")
        for name in ("tools/call", "prompts/get", "resources/read"):
            self.assertEqual(server.sent(name)[1]["inputResponses"], answers)

    async def test_read_and_prompt_ask(self):
        def work(params):
            if "inputResponses" not in params:
                return asks({"k": question("roots/list")}, "s")
            return {
                "contents": [{"text": "c"}],
                "ttlMs": 60_000,
                "cacheScope": "public",
            }

        server = FakeStream(resources__read=work, prompts__get=work)
        async with self.client(server, list_roots_callback=[]) as client:
            for _ in range(2):
                self.assertEqual((await client.read_resource("x")).text, "c")
            await client.get_prompt("x", {"a": "b"})
        # CCH-03: what answers were needed for is not cached.
        self.assertEqual(len(server.sent("resources/read")), 4)

    async def test_questions_are_not_cached(self):
        """CCH-03: their state may be used once, whatever ttlMs says."""
        numbers = itertools.count()

        def read(params):
            if "inputResponses" in params:
                return {"contents": [{"text": params["requestState"]}]}
            asked = asks({"k": question("roots/list")}, str(next(numbers)))
            return {**asked, "ttlMs": 60_000, "cacheScope": "public"}

        server = FakeStream(resources__read=read)
        async with self.client(server, list_roots_callback=[]) as client:
            states = [(await client.read_resource("x")).text for _ in range(2)]
        self.assertEqual(states, ["0", "1"])

    async def test_person_stops_the_clock(self):
        """A person may think for longer than the call may take."""

        async def think(params):
            await asyncio.sleep(0.2)
            return True

        async def work(params):
            server.send({"id": "q", **question()})
            await server.until(lambda m: m.get("id") == "q")
            return {"content": []}

        server = FakeStream("legacy", tools__call=work)
        async with self.client(server, elicitation_callback=think) as client:
            await client.call_tool("x", timeout=0.1)

    async def test_question_withdrawn(self):
        """A legacy server may cancel its request; the person is asked no longer."""
        asked, ended = asyncio.Event(), asyncio.Event()

        async def think(params):
            asked.set()
            try:
                await asyncio.sleep(30)
            finally:
                ended.set()

        server = FakeStream("legacy")
        async with self.client(server, elicitation_callback=think) as client:
            server.send({"id": "q", **question()})
            await asyncio.wait_for(asked.wait(), 5)
            server.notify("notifications/cancelled", requestId=[1])
            server.notify("notifications/cancelled", requestId="q")
            await asyncio.wait_for(ended.wait(), 5)
            await client.ping()
        self.assertFalse([m for m in server.seen if m.get("id") == "q"])

    async def test_too_many_questions(self):
        async def think(params):
            await asyncio.sleep(30)

        server = FakeStream("legacy")
        options = {"elicitation_callback": think, "limits": quick(asking=2)}
        async with self.client(server, **options):
            for number in range(3):
                server.send({"id": f"q{number}", **question()})
            reply = await server.until(lambda m: m.get("id") == "q2")
            self.assertIn("Too many", reply["error"]["message"])

    async def test_questions_with_one_id(self):
        """The second is none: an answer could not be told from that to the first."""
        asked = []

        async def think(params):
            asked.append(params)
            await asyncio.sleep(30)

        server = FakeStream("legacy")
        async with self.client(server, elicitation_callback=think) as client:
            for _ in range(3):
                server.send({"id": "q", **question()})
            await client.ping()
        self.assertEqual(len(asked), 1)

    async def test_a_flood_of_questions(self):
        """Refusals are bounded, too."""
        script = Script("legacy")
        plain, go = over_http(script), asyncio.Event()
        pings = [event({"id": f"p{n}", "method": "ping"}) for n in range(300)]

        async def answer(request, writer):
            if request.method == "POST" and "method" not in request.json:
                await go.wait()
            if b"tools/call" in request.body:
                done = event({"id": request.json["id"], "result": {"content": []}})
                return SSE + b"\r\n" + b"".join([*pings, done])
            return await plain(request, writer)

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            call = asyncio.create_task(client.call_tool("x"))
            await asyncio.wait({call}, timeout=0.5)
            self.assertLess(len(client._tasks), 3 * client.limits.asking)
            go.set()
            await call
        self.assertIn("far too many", "\n".join(self.logged))

    async def test_modern_server_that_requests(self):
        """STD-04: it gets no response."""
        server = FakeStream()
        async with self.client(server, list_roots_callback=[]) as client:
            server.send({"id": "q", "method": "roots/list"})
            await client.ping()
        self.assertFalse([m for m in server.seen if m.get("id") == "q"])
        self.assertIn("ignored a request", self.logged[0])


class HostileTest(Logged):
    """Whatever a server sends: calls are answered, only our errors come up."""

    VALUES = [None, True, -1.5, "", "x", [], [{}], {}, {"": None}, ["x", 3], 1 << 70]

    def mutated(self, value, random):
        """A value with one random part of it replaced by something else."""
        if isinstance(value, dict) and value and random.random() < 0.8:
            key = random.choice(list(value))
            return {**value, key: self.mutated(value[key], random)}
        if isinstance(value, list) and value and random.random() < 0.8:
            place = random.randrange(len(value))
            rest = [*value[:place], self.mutated(value[place], random)]
            return rest + value[place + 1 :]
        return random.choice(self.VALUES)

    async def test_notifications(self):
        import random

        dice = random.Random(7)
        change = {"uri": "x://1", "_meta": {META + "subscriptionId": 2}}
        report = {"progressToken": 2, "progress": 1, "total": 2, "message": "m"}
        seeds = [
            ("notifications/resources/updated", change),
            ("notifications/tools/list_changed", {"_meta": {}}),
            (
                "notifications/subscriptions/acknowledged",
                {**change, "notifications": {}},
            ),
            ("notifications/progress", report),
            ("notifications/message", {"level": "info", "data": {}}),
            ("notifications/cancelled", {"requestId": 1, "reason": "x"}),
            ("roots/list", {}),
            ("elicitation/create", question()["params"]),
        ]
        for era in ("modern", "legacy"):
            server = FakeStream(era)
            options = {
                "elicitation_callback": lambda params: True,
                "list_roots_callback": [],
            }
            async with self.client(server, **options) as client:
                for number in range(200):
                    method, params = dice.choice(seeds)
                    message = {"jsonrpc": "2.0", "method": method, "params": params}
                    if "/create" in method or "/list" in method:
                        message["id"] = f"q{number}"
                    line = json.dumps(self.mutated(message, dice)).encode()
                    server.writer.write(line + b"\n")
                await client.ping()

    async def test_results(self):
        import random

        dice = random.Random(8)
        tool = {"name": "t", "inputSchema": {}, "outputSchema": {"type": "object"}}
        seeds = {
            "server/discover": Script().default("server/discover"),
            "initialize": Script("legacy").default("initialize"),
            "tools/list": {"tools": [tool], "nextCursor": "", "ttlMs": 5},
            "tools/call": {
                "content": [{"type": "text", "text": "a"}],
                "isError": False,
            },
            "resources/read": {"contents": [{"uri": "x", "text": "t"}], "ttlMs": 5},
            "prompts/get": {"messages": [{"role": "user", "content": {"text": "x"}}]},
            "completion/complete": {"completion": {"values": ["a"]}},
        }
        asked = {"resultType": "input_required", "requestState": "s"}
        asked["inputRequests"] = {"k": question()}
        sessions = []
        for number in range(45):
            methods = {
                name: self.mutated(asked if dice.random() < 0.2 else seed, dice)
                for name, seed in seeds.items()
            }
            if number % 3:
                methods["server/discover"] = seeds["server/discover"]
            server = FakeStream("legacy", **{k: v for k, v in methods.items() if v})
            limits = quick(probe=0.05, timeout=0.05, rounds=1, grace=0.5)
            options = {"elicitation_callback": lambda params: True, "limits": limits}
            sessions.append(self.session(server, options))
        for at in range(0, len(sessions), 15):  # most of them wait for a time-out
            await asyncio.gather(*sessions[at : at + 15])

    async def session(self, server, options):
        with contextlib.suppress(ClientError, MCPError):
            async with self.client(server, **options) as client:
                await self.use(client)

    async def use(self, client):
        ref, argument = {"type": "ref/prompt"}, {"name": "a", "value": ""}
        for method, words in (
            (client.list_tools, ()),
            (client.call_tool, ("t",)),
            (client.read_resource, ("x",)),
            (client.get_prompt, ("p",)),
            (client.complete, (ref, argument)),
        ):
            try:
                result = await method(*words)
            except (ClientError, MCPError):
                continue
            if isinstance(result, Result):
                views = (
                    result.text,
                    result.is_error,
                    result.completions,
                    result.content,
                )
                self.assertIsInstance(views[0], str)


class ListTest(Logged):
    async def test_pages(self):
        """PAG-02, PAG-03: "" is a cursor, null and absence are the end."""
        pages = {
            None: {"tools": [{"name": "a"}], "nextCursor": ""},
            "": {"tools": [{"name": "b"}], "nextCursor": "2"},
            "2": {"tools": [{"name": "c"}], "nextCursor": None},
        }
        server = FakeStream(tools__list=lambda params: pages[params.get("cursor")])
        async with self.client(server) as client:
            names = [tool["name"] for tool in await client.list_tools()]
        self.assertEqual(names, ["a", "b", "c"])

    async def test_bad_pages(self):
        endless = ({"tools": [], "nextCursor": str(n)} for n in range(9))
        cases = {
            "no list": lambda params: {"tools": {}},
            "no list of": lambda params: {"tools": [3]},
            "do not end": lambda params: {"tools": [], "nextCursor": "x"},
            "do not": lambda params: {"tools": [], "nextCursor": 3},
            "more than 5": lambda params: next(endless),
        }
        for text, handler in cases.items():
            server = FakeStream(tools__list=handler)
            async with self.client(server, limits=quick(pages=5)) as client:
                with self.assertRaisesRegex(InvalidReply, text):
                    await client.list_tools()

    async def test_lists(self):
        """LIF-07: what a server does not offer is not asked for."""
        server = FakeStream(
            capabilities={"resources": {}},
            resources__list={"resources": [{"uri": "x://y"}]},
            resources__templates__list=lambda params: (_ for _ in ()).throw(
                Failure(-32601)
            ),
        )
        async with self.client(server) as client:
            self.assertEqual(await client.list_resources(), [{"uri": "x://y"}])
            self.assertEqual(await client.list_resource_templates(), [])
            self.assertEqual(await client.list_prompts(), [])
            self.assertEqual(await client.list_tools(), [])
        self.assertFalse(server.sent("prompts/list"))

        def broken(params):
            raise Failure(-32603)

        server = FakeStream(resources__templates__list=broken)
        async with self.client(server) as client:
            with self.assertRaises(MCPError):
                await client.list_resource_templates()

    def listing(self, ttl=60_000, scope="public"):
        counted = iter(range(99))

        def answer(params):
            tools = [{"name": f"t{next(counted)}", "inputSchema": {}}]
            return {"tools": tools, "ttlMs": ttl, "cacheScope": scope}

        return answer

    async def test_cache(self):
        """CCH-03: fresh results are kept, and callers cannot spoil them."""
        server = FakeStream(tools__list=self.listing())
        async with self.client(server) as client:
            first = await client.list_tools()
            first[0]["name"] = "spoilt"
            self.assertEqual((await client.list_tools())[0]["name"], "t0")
            self.assertEqual((await client.list_tools(refresh=True))[0]["name"], "t1")
            await client.list_tools(meta={"a": 1})
            self.assertEqual(len(server.sent("tools/list")), 3)
        for ttl in (0, -5, None, "60000", True):
            server = FakeStream(tools__list=self.listing(ttl))
            async with self.client(server) as client:
                await client.list_tools()
                await client.list_tools()
            self.assertEqual(len(server.sent("tools/list")), 2, ttl)
        server = FakeStream(tools__list=self.listing())
        async with self.client(server, cache=False) as client:
            await client.list_tools()
            await client.list_tools()
        self.assertEqual(len(server.sent("tools/list")), 2)

    async def test_a_cursor_that_does_not_live_as_long_as_its_page(self):
        """The list is asked for anew, once, and not what the server just gave."""
        used = set()

        def listing(params):
            cursor = params.get("cursor")
            if cursor is None:
                following = f"c{len(server.sent('tools/list'))}"
                fresh = {"ttlMs": 60_000, "cacheScope": "public"}
                return {"tools": [{"name": "a"}], "nextCursor": following, **fresh}
            if cursor in used or len(used) == 2:
                raise Failure(-32602, "Invalid cursor")
            used.add(cursor)
            return {"tools": [{"name": "b"}]}

        server = FakeStream(tools__list=listing)
        async with self.client(server) as client:
            for asked in (2, 5):
                names = [tool["name"] for tool in await client.list_tools()]
                self.assertEqual(names, ["a", "b"])
                self.assertEqual(len(server.sent("tools/list")), asked)
            for refresh, asked in ((False, 8), (True, 10)):
                with self.assertRaisesRegex(MCPError, "Invalid cursor"):
                    await client.list_tools(refresh=refresh)
                self.assertEqual(len(server.sent("tools/list")), asked)

    async def test_cache_expires(self):
        server = FakeStream(tools__list=self.listing(ttl=30))
        async with self.client(server) as client:
            await client.list_tools()
            await asyncio.sleep(0.05)
            await client.list_tools()
        self.assertEqual(len(server.sent("tools/list")), 2)

    async def test_cache_invalidation(self):
        """TOL-13, CCH-03: also of an answer that was on its way when things changed."""
        server = FakeStream(
            tools__list=self.listing(),
            resources__read=lambda p: {"contents": [{"text": "v"}], "ttlMs": 60_000},
        )
        async with self.client(server) as client:
            await client.list_tools()
            await client.read_resource("x://1")
            await client.read_resource("x://2")
            server.notify("notifications/tools/list_changed")
            server.notify("notifications/resources/updated", uri="x://1")
            await client.ping()
            await client.list_tools()
            await client.read_resource("x://1")
            await client.read_resource("x://2")
            read = [params["uri"] for params in server.sent("resources/read")]
            self.assertEqual(read, ["x://1", "x://2", "x://1"])
            listing = server.methods["tools/list"]

            def change_meanwhile(params):
                server.notify("notifications/tools/list_changed")
                return listing(params)

            server.methods["tools/list"] = change_meanwhile
            await client.list_tools(refresh=True)
            await client.list_tools()
        self.assertEqual(len(server.sent("tools/list")), 4)

    async def test_cache_is_bounded(self):
        big = "x" * 30_000

        def read(params):
            return {
                "contents": [{"text": big}],
                "ttlMs": 60_000,
                "cacheScope": "public",
            }

        server = FakeStream(resources__read=read)
        limits = quick(cache=3, message=100_000)
        async with self.client(server, limits=limits) as client:
            for number in range(6):
                await client.read_resource(f"x://{number}")
            self.assertLessEqual(len(client._cache._kept), 3)
            self.assertLessEqual(client._cache._bytes, 100_000)
            big = ""
            for number in range(6):
                await client.read_resource(f"y://{number}")
            self.assertEqual(len(client._cache._kept), 3)

    async def test_cache_by_principal(self):
        """Private results belong to one Authorization; public ones to anybody."""
        who = "a"

        class Auth:
            async def headers(self, http):
                return {"Authorization": who}

            def accepted(self):
                pass

        script = Script(
            tools__list=self.listing(scope="private"),
            prompts__list={"prompts": [], "ttlMs": 60_000, "cacheScope": "public"},
        )
        async with FakeHttp(over_http(script)) as server:
            async with self.client(server.url, auth=Auth()) as client:
                for name in ("a", "a", "b", "b"):
                    who = name
                    await client.ping()
                    await client.list_tools()
                    await client.list_prompts()
        self.assertEqual(len(server.sent("tools/list")), 2)
        self.assertEqual(len(server.sent("prompts/list")), 1)


class ToolTest(Logged):
    def tool(self, name="t", **more):
        return {"name": name, "inputSchema": {"type": "object"}, **more}

    async def test_output_schema(self):
        """TOL-06, TOL-07, TOL-08: a typed result has to be what was promised."""
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        cases = [
            ({"structuredContent": {"n": 1}}, ""),
            ({"structuredContent": {"n": "1"}}, "not what its outputSchema says"),
            ({}, "no structuredContent"),
            ({"isError": True}, ""),
        ]
        for era in ("legacy", "modern"):
            for result, problem in cases:
                server = FakeStream(
                    era,
                    tools__list={"tools": [self.tool(outputSchema=schema)]},
                    tools__call={"content": [], **result},
                )
                async with self.client(server) as client:
                    await client.list_tools()
                    if not problem:
                        await client.call_tool("t")
                        continue
                    with self.assertRaisesRegex(InvalidReply, problem):
                        await client.call_tool("t")
                async with self.client(server, check_results=False) as client:
                    await client.call_tool("t")

    async def test_output_schema_is_fetched(self):
        """A structured result of an unknown tool: its schema is looked up once."""
        server = FakeStream(
            tools__list={"tools": [self.tool(outputSchema={"type": "array"})]},
            tools__call={"content": [], "structuredContent": [1]},
        )
        async with self.client(server) as client:
            for _ in range(3):
                self.assertEqual((await client.call_tool("t")).structured_content, [1])
            await client.call_tool("unlisted")
        self.assertEqual(len(server.sent("tools/list")), 1)

        def refuse(params):
            raise Failure(-32603)

        server.methods["tools/list"] = refuse
        async with self.client(server) as client:
            await client.call_tool("t")

    async def test_output_schema_dialects(self):
        """SCH-01, SCH-02, SCH-03."""
        result = {"content": [], "structuredContent": {"a": 1}}
        draft7 = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
        }
        for schema, fine in (
            (draft7, True),
            ({"$schema": "https://example.com/x", "type": "object"}, False),
            ({"$ref": "https://example.com/x"}, False),
        ):
            server = FakeStream(
                tools__list={"tools": [self.tool(outputSchema=schema)]},
                tools__call=result,
            )
            async with self.client(server) as client:
                await client.list_tools()
                if fine:
                    await client.call_tool("t")
                    continue
                with self.assertRaisesRegex(InvalidReply, "unusable"):
                    await client.call_tool("t")

    async def test_a_schema_without_an_end_refuses_nothing(self):
        """The tool has done its work: its result is not lost to such a schema."""
        endless = (
            {"$ref": "#"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        )
        for schema in endless:
            server = FakeStream(
                tools__list={"tools": [self.tool(outputSchema=schema)]},
                tools__call={"content": [], "structuredContent": {"a": 1}},
            )
            self.logged.clear()
            async with self.client(server) as client:
                result = await client.call_tool("t")
            self.assertEqual(result.structured_content, {"a": 1})
            self.assertIn("outputSchema is not used", str(self.logged))

    async def test_patterns_of_a_server_are_not_tried(self):
        """Some never end; what a schema says without them is checked."""
        slow = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
        cases = (
            (slow, "", False),
            ({**slow, "required": ["b"]}, "missing", False),
            ({**slow, "properties": {"pattern": {"type": "null"}}}, "null", False),
            ({"$ref": "#/default", "default": slow}, "", False),
            # Without the pattern these could refuse what they take.
            ({"not": slow}, "", True),
            ({"oneOf": [slow, {"type": "array"}]}, "", True),
            ({"$ref": "#/const", "const": slow}, "", True),
            ({"type": "array", "patternProperties": {"^(a+)+$": {}}}, "", True),
        )
        value = {"a": "a" * 40 + "b", "pattern": "x"}
        tried = AssertionError("a pattern of the server is tried")
        for schema, problem, noted in cases:
            server = FakeStream(
                tools__list={"tools": [self.tool(outputSchema=schema)]},
                tools__call={"content": [], "structuredContent": value},
            )
            self.logged.clear()
            with mock.patch.object(module._rt, "_search", side_effect=tried):
                async with self.client(server) as client:
                    for _ in range(2):
                        if not problem:
                            await client.call_tool("t")
                            continue
                        with self.assertRaisesRegex(InvalidReply, problem):
                            await client.call_tool("t")
            self.assertEqual(len(self.logged), noted, (schema, self.logged))

    async def test_header_parameters(self):
        """HTM-14, HTM-15, HTM-16."""
        header = {"type": "string", "x-mcp-header": "Bed"}

        def with_header(name, **field):
            schema = {"type": "object", "properties": {"bed": {**header, **field}}}
            return {"name": name, "inputSchema": schema}

        changed = False

        def listing(params):
            name = "Place" if changed else "Bed"
            tools = [
                with_header("good", **{"x-mcp-header": name}),
                with_header("bad", type="number"),
            ]
            return {"tools": tools}

        script = Script(tools__list=listing, tools__call={"content": []})
        plain = over_http(script)

        async def answer(request, writer):
            if b"tools/call" in request.body and changed:
                if "mcp-param-place" not in request.headers:
                    error = {"code": -32020, "message": "Header mismatch"}
                    reply = {"jsonrpc": "2.0", "id": request.json["id"], "error": error}
                    return response(400, reply)
            return await plain(request, writer)

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            await client.call_tool("good", {"bed": "ü"})
            call = server.sent("tools/call")[0]
            self.assertEqual(call.headers["mcp-param-bed"], "=?base64?w7w=?=")
            self.assertEqual([t["name"] for t in await client.list_tools()], ["good"])
            self.assertIn("'bad'", self.logged[-1])
            changed = True
            await client.call_tool("good", {"bed": "3"})
            self.assertEqual(
                server.sent("tools/call")[-1].headers["mcp-param-place"], "3"
            )
            with self.assertRaises(MCPError):
                await client.call_tool("good", {})
        stream = FakeStream(tools__list=listing)
        async with self.client(stream) as client:  # stdio may keep them
            self.assertEqual(len(await client.list_tools()), 2)

    async def test_header_mismatch_in_a_later_round(self):
        """That round is repeated: nobody is asked twice, no state is thrown away."""
        names, asked = ["Bed"], []

        def listing(params):
            field = {"type": "string", "x-mcp-header": names[-1]}
            schema = {"type": "object", "properties": {"bed": field}}
            return {"tools": [self.tool(inputSchema=schema)]}

        def work(params):
            if "requestState" not in params:
                names.append("Place")
                return asks({"k": question()}, "s")
            return {"content": []}

        script = Script(tools__list=listing, tools__call=work)
        plain = over_http(script)

        async def answer(request, writer):
            header = f"mcp-param-{names[-1].lower()}"
            if b"tools/call" in request.body and header not in request.headers:
                error = {"code": -32020, "message": "Header mismatch"}
                reply = {"jsonrpc": "2.0", "id": request.json["id"], "error": error}
                return response(400, reply)
            return await plain(request, writer)

        options = {"elicitation_callback": lambda params: asked.append(1)}
        async with FakeHttp(answer) as server:
            async with self.client(server.url, **options) as client:
                await client.call_tool("t", {"bed": "3"})
        calls = [request.json["params"] for request in server.sent("tools/call")]
        self.assertEqual([p.get("requestState") for p in calls], [None, "s", "s"])
        self.assertEqual(calls[1]["inputResponses"], calls[2]["inputResponses"])
        self.assertEqual((len(asked), len(server.sent("tools/list"))), (1, 2))

    async def test_tool_errors(self):
        server = FakeStream(tools__call={"content": [], "isError": True})
        async with self.client(server) as client:
            self.assertTrue((await client.call_tool("x")).is_error)


class SubscriptionTest(Logged):
    debug = True

    def listener(self, **options):
        """A modern server: listen() is acknowledged, then stays open."""

        def listen(params):
            id = server.seen[-1]["id"]
            meta = {META + "subscriptionId": id}
            server.listens.append(id)
            honored = options.get("honored", params["notifications"])
            server.notify(
                "notifications/subscriptions/acknowledged",
                _meta=meta,
                notifications=honored,
            )

        server = FakeStream(subscriptions__listen=listen)
        server.listens = []
        return server

    def change(self, server, uri, id=None):
        id = server.listens[-1] if id is None else id
        meta = {META + "subscriptionId": id}
        server.notify("notifications/resources/updated", uri=uri, _meta=meta)

    async def test_modern(self):
        """SUB-01, SUB-02, SUB-03: two streams, told apart by id."""
        server = self.listener()
        async with self.client(server) as client:
            with self.assertRaisesRegex(ValueError, "to what: URIs, tools=True"):
                client.subscribe()
            one, two = client.subscribe("x://1"), client.subscribe("x://2", tools=True)
            async with one as first, two as second:
                self.assertEqual(one.honored, {"resourceSubscriptions": ["x://1"]})
                a, b = server.listens
                self.change(server, "x://1", a)
                self.change(server, "x://1", b)  # not what it asked for
                self.change(server, "x://2/part", b)
                meta = {META + "subscriptionId": b}
                server.notify("notifications/tools/list_changed", _meta=meta)
                server.notify("notifications/prompts/list_changed", _meta=meta)
                self.change(server, "x://1", "odd")
                self.assertEqual((await first.__anext__()).uri, "x://1")
                change = await second.__anext__()
                self.assertEqual((change.kind, change.uri), ("updated", "x://2/part"))
                change = await second.__anext__()
                self.assertEqual((change.kind, change.uri), ("tools", None))
                self.assertEqual(repr(change), "Change('tools', None)")
                await client.ping()
                self.assertFalse(first._waiting or second._waiting)
            await server.until_method("notifications/cancelled", 2)

    async def test_same_change_waits_once(self):
        server = self.listener()
        async with self.client(server, limits=quick(changes=3)) as client:
            async with client.subscribe("x://1") as changes:
                for _ in range(9):
                    self.change(server, "x://1")
                await client.ping()
                self.assertEqual(len(changes._waiting), 1)
                for number in range(9):
                    self.change(server, f"x://1/{number}")
                await client.ping()
                for _ in range(3):
                    await changes.__anext__()
                with self.assertRaisesRegex(ClientError, "too many changes"):
                    await changes.__anext__()

    async def test_a_change_that_waits_needs_no_more_room(self):
        server = self.listener()
        async with self.client(server, limits=quick(changes=2)) as client:
            async with client.subscribe("x://1", "x://2") as changes:
                for uri in ("x://1", "x://2", "x://2", "x://1"):
                    self.change(server, uri)
                await client.ping()
                got = [(await changes.__anext__()).uri for _ in range(2)]
                self.assertEqual(got, ["x://1", "x://2"])
                self.change(server, "x://2")
                change = await asyncio.wait_for(changes.__anext__(), 5)
                self.assertEqual(change.uri, "x://2")

    async def test_ended_by_the_server(self):
        """SUB-04: the result ends the iteration; what came before is read first."""
        server = self.listener()
        async with self.client(server) as client:
            changes = client.subscribe("x://1")

            async def collect():
                return [change.uri async for change in changes]

            task = asyncio.ensure_future(collect())
            await server.until_method("subscriptions/listen")
            await asyncio.wait_for(changes._ready.wait(), 5)
            self.change(server, "x://1")
            server.send({"id": server.listens[0], "result": {"resultType": "complete"}})
            self.assertEqual(await asyncio.wait_for(task, 5), ["x://1"])

    async def test_refused(self):
        def listen(params):
            raise Failure(-32602, "no such resource")

        async with self.client(FakeStream(subscriptions__listen=listen)) as client:
            with self.assertRaises(MCPError):
                async with client.subscribe("x://1"):
                    self.fail("was refused")

    async def test_not_acknowledged(self):
        server = FakeStream(subscriptions__listen=lambda params: None)
        async with self.client(server, limits=quick(timeout=0.1)) as client:
            with self.assertRaises(RequestTimeout):
                async with client.subscribe("x://1"):
                    self.fail("was not acknowledged")

    async def test_opening_given_up(self):
        server = FakeStream(subscriptions__listen=lambda params: None)
        async with self.client(server) as client:
            opening = client.subscribe("x://1").__aenter__()
            task = asyncio.ensure_future(opening)
            await server.until_method("subscriptions/listen")
            task.cancel()
            await asyncio.wait([task])
            await server.until_method("notifications/cancelled")

    async def test_partly_honored(self):
        server = self.listener(honored={"toolsListChanged": True})
        async with self.client(server) as client:
            async with client.subscribe("x://1", tools=True):
                pass
        self.assertIn("does not report resourceSubscriptions", "\n".join(self.logged))

    async def test_lost_without_restart(self):
        for era in ("modern", "legacy"):
            server = self.listener()
            server.era = era
            async with self.client(server) as client:
                async with client.subscribe("x://1") as changes:
                    server.hang_up()
                    with self.assertRaises(ConnectionLost):
                        await asyncio.wait_for(changes.__anext__(), 5)

    async def test_restart(self):
        """SUB-05, STD-07: subscribed again, and every resource reported once."""

        async def restarted(era, method):
            server = self.listener()
            server.era = era
            async with self.client(server, restart=True) as client:
                async with client.subscribe("x://1", tools=True) as changes:
                    server.hang_up()
                    first = await asyncio.wait_for(changes.__anext__(), 10)
                    second = await asyncio.wait_for(changes.__anext__(), 10)
                    self.assertEqual((first.uri, second.kind), ("x://1", "tools"))
            self.assertEqual(len(server.sent(method)), 2)

        with mock.patch("os.urandom", bytes):  # the shortest pause, 0.5 s
            await asyncio.gather(
                restarted("modern", "subscriptions/listen"),
                restarted("legacy", "resources/subscribe"),
            )

    async def test_breaks_that_do_not_follow_each_other(self):
        """retries counts attempts in a row: a stream that stood begins a new row."""
        listens = []

        async def answer(request, writer):
            message = request.json
            if message["method"] != "subscriptions/listen":
                return await plain(request, writer)
            listens.append(message["id"])
            meta = {META + "subscriptionId": message["id"]}
            told = {"notifications": {"toolsListChanged": True}, "_meta": meta}
            head = SSE + b"Connection: close\r\n\r\n"
            method = "notifications/subscriptions/acknowledged"
            writer.write(head + event({"method": method, "params": told}))
            await writer.drain()

        async def at_once(seconds):
            paused.append(seconds)

        plain, paused = over_http(Script()), []
        slow = mock.patch.object(module.asyncio, "sleep", at_once)
        async with FakeHttp(answer) as server, self.client(server.url) as client:
            with slow:
                async with client.subscribe(tools=True) as changes:
                    for _ in range(12):
                        change = await asyncio.wait_for(changes.__anext__(), 10)
                        self.assertEqual(change.kind, "tools")
        self.assertGreater(len(listens), 12)
        self.assertLess(max(paused), 2.0)

    async def test_restart_in_vain(self):
        server = FakeStream("legacy")
        limits = quick(retries=0)
        async with self.client(server, restart=True, limits=limits) as client:
            async with client.subscribe("x://1") as changes:
                server.hang_up()
                with self.assertRaises(ConnectionLost):
                    await asyncio.wait_for(changes.__anext__(), 5)

    async def test_legacy(self):
        """RES-05: subscribe, unsubscribe when nobody else listens."""
        server = FakeStream("legacy")
        async with self.client(server) as client:
            async with client.subscribe("x://1") as one:
                async with client.subscribe("x://1", "x://2", tools=True) as two:
                    server.notify("notifications/resources/updated", uri="x://1")
                    server.notify("notifications/tools/list_changed")
                    self.assertEqual((await one.__anext__()).uri, "x://1")
                    self.assertEqual((await two.__anext__()).uri, "x://1")
                    self.assertEqual((await two.__anext__()).kind, "tools")
        gone = [params["uri"] for params in server.sent("resources/unsubscribe")]
        self.assertEqual(gone, ["x://2", "x://1"])

    async def test_legacy_without_subscriptions(self):
        server = FakeStream("legacy", {"resources": {}})
        async with self.client(server) as client:
            with self.assertRaisesRegex(ClientError, "does not offer subscriptions"):
                async with client.subscribe("x://1"):
                    self.fail("is not offered")
            self.assertFalse(client._watching)

    async def test_closing_the_client_ends_it(self):
        for era in ("modern", "legacy"):
            server = self.listener()
            server.era = era
            client = self.client(server)
            async with client:
                subscription = client.subscribe("x://1")
                await subscription.__aenter__()
            with self.assertRaises(StopAsyncIteration):
                await subscription.__anext__()

    async def test_http(self):
        """HTM-19, SUB-05: a listen stream that breaks is opened again."""
        plain = over_http(Script())
        streams = []

        async def answer(request, writer):
            if b"subscriptions/listen" not in request.body:
                return await plain(request, writer)
            streams.append(request)
            meta = {META + "subscriptionId": request.json["id"]}
            params = {
                "_meta": meta,
                "notifications": {"resourceSubscriptions": ["x://1"]},
            }
            name = "notifications/subscriptions/acknowledged"
            writer.write(
                SSE + b"\r\n: hi\n\n" + event({"method": name, "params": params})
            )
            if len(streams) == 2:
                params = {"_meta": meta, "uri": "x://1"}
                name = "notifications/resources/updated"
                writer.write(event({"method": name, "params": params}))
                await asyncio.sleep(30)

        shortest = mock.patch("os.urandom", bytes)  # the pause before it is 0.5 s
        async with FakeHttp(answer) as server, self.client(server.url) as client:
            async with client.subscribe("x://1") as changes:
                with shortest:
                    change = await asyncio.wait_for(changes.__anext__(), 10)
                self.assertEqual(change.uri, "x://1")
        self.assertEqual(len(streams), 2)

    async def test_calls_wait_for_the_new_session(self):
        """While a legacy session is begun again, nothing is sent without one, and a
        list is not taken for empty."""
        script = Script("legacy", tools__list={"tools": [{"name": "valve"}]})
        plain = over_http(script, session="s")
        begun, go, lost, bare = asyncio.Event(), asyncio.Event(), [], []

        async def answer(request, writer):
            method = request.json.get("method") if request.body else ""
            if method == "initialize" and lost:
                begun.set()
                await go.wait()
            elif method and "mcp-session-id" not in request.headers:
                bare.append(method)
            if lost and "mcp-session-id" in request.headers:
                return response(404, b"")
            return await plain(request, writer)

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            lost.append(1)
            first = asyncio.create_task(client.ping())
            await begun.wait()
            bare.clear()
            later = [client.list_tools(), client.ping(), client.list_tools()]
            tasks = [asyncio.create_task(work) for work in later]
            await asyncio.sleep(0)
            lost.clear()
            go.set()
            await first
            tools, _, again = await asyncio.gather(*tasks)
        self.assertEqual((tools, again), ([{"name": "valve"}],) * 2)
        self.assertEqual(bare, [])
        self.assertEqual(len(script.sent("initialize")), 2)

    async def test_agreed_again_after_a_failure(self):
        """A session that could not be begun again is tried again by the next call."""
        script = Script("legacy", tools__list={"tools": [{"name": "valve"}]})
        plain = over_http(script, session="s")
        down = []

        async def answer(request, writer):
            if down:
                session = "mcp-session-id" in request.headers
                return response(404 if session else 503, b"")
            return await plain(request, writer)

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            down.append(1)
            for _ in range(2):
                with self.assertRaises(tinymcp.client.HttpStatusError):
                    await client.ping()
            down.clear()
            self.assertEqual(await client.list_tools(), [{"name": "valve"}])

    async def test_a_modern_http_server_that_is_legacy_now(self):
        """VER-06: one call finds out, the next one is served; none is sent twice."""
        called = {"content": [{"type": "text", "text": "ok"}]}
        modern, legacy = (Script(era, tools__call=called) for era in (MODERN, "legacy"))
        modern.era = "modern"
        begin = over_http(legacy, session="s")
        refusals = (
            response(400, b"Bad Request"),
            response(404, b""),
            response(
                400, {"jsonrpc": "2.0", "error": {"code": -32000, "message": "!"}}
            ),
            response(
                400, {"jsonrpc": "2.0", "error": {"code": -32600, "message": "!"}}
            ),
        )
        for refusal in refusals:
            now = [over_http(modern)]

            async def answer(request, writer, now=now, refusal=refusal):
                new = (
                    request.method == "POST" and request.json["method"] == "initialize"
                )
                if (
                    now[0] is begin
                    and not new
                    and "mcp-session-id" not in request.headers
                ):
                    return refusal
                return await now[0](request, writer)

            async with FakeHttp(answer) as server, self.client(server.url) as client:
                self.assertTrue(client.modern)
                await client.call_tool("t")
                now[0] = begin
                with self.assertRaises((tinymcp.client.HttpStatusError, MCPError)):
                    await client.call_tool("t")
                before = len(server.sent("tools/call"))
                self.assertEqual((await client.call_tool("t")).text, "ok")
                self.assertEqual(client.protocol_version, LEGACY)
                self.assertEqual(len(server.sent("tools/call")), before + 1)

    async def test_a_subscription_of_a_server_that_is_legacy_now(self):
        """It goes on there: one resources/subscribe, and what changed meanwhile."""
        error = {"jsonrpc": "2.0", "error": {"code": -32000, "message": "no session"}}
        sleep = asyncio.sleep

        async def soon(seconds):
            await sleep(0)

        for refusal in (response(400, b""), response(400, error)):
            legacy, modern = Script("legacy"), Script("modern")
            served = [over_http(modern)]
            writers = []

            async def answer(
                request, writer, served=served, writers=writers, refusal=refusal
            ):
                post = request.method == "POST"
                listens = post and request.json["method"] == "subscriptions/listen"
                if listens and not writers:
                    writers.append(writer)
                    meta = {META + "subscriptionId": request.json["id"]}
                    params = {
                        "notifications": {"resourceSubscriptions": ["x://1"]},
                        "_meta": meta,
                    }
                    method = "notifications/subscriptions/acknowledged"
                    writer.write(
                        SSE + b"\r\n" + event({"method": method, "params": params})
                    )
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
                    return None
                if listens:
                    return refusal
                return await served[0](request, writer)

            async with FakeHttp(answer) as server, self.client(server.url) as client:
                async with client.subscribe("x://1") as changes:
                    served[0] = over_http(legacy, session="s")
                    with mock.patch.object(asyncio, "sleep", soon):
                        writers[0].transport.abort()
                        change = await asyncio.wait_for(changes.__anext__(), 5)
                    self.assertEqual(change.uri, "x://1")
                    self.assertFalse(client.modern)
            self.assertEqual(len(legacy.sent("resources/subscribe")), 1)

    async def test_an_error_of_a_tool_is_no_reason_to_doubt_its_server(self):
        def fail(params):
            raise Failure(-32000, "closed")

        script = Script(tools__call=fail)

        async def answer(request, writer):
            return response(200, await script.reply(request.json))

        async with FakeHttp(answer) as server, self.client(server.url) as client:
            for _ in range(3):
                with self.assertRaisesRegex(MCPError, "closed"):
                    await client.call_tool("t")
        self.assertEqual(len(script.sent("server/discover")), 1)
        self.assertEqual(len(script.sent("tools/list")), 1)

    async def test_sessions_that_end_at_once(self):
        """None is begun for ever; a call that succeeds begins a new row of them."""
        script, stood, paused = Script("legacy"), [], []
        plain = over_http(script, session="s")

        async def answer(request, writer):
            if request.method == "GET" and stood:
                return response(404, b"")
            if request.method == "GET":
                stood.append(1)
                return SSE + b"Content-Length: 0\r\n\r\n"
            if b'"initialize"' in request.body:
                stood.clear()
            return await plain(request, writer)

        async def at_once(seconds):
            paused.append(seconds)

        async def watch(client):
            async with client.subscribe("x://1") as changes:
                with self.assertRaisesRegex(ConnectionLost, "ends each session"):
                    while True:
                        await asyncio.wait_for(changes.__anext__(), 5)
            return len(script.sent("initialize"))

        limits = quick(retries=3)
        slow = mock.patch.object(module.asyncio, "sleep", at_once)
        async with FakeHttp(answer) as server:
            client = self.client(server.url, limits=limits)
            with slow, mock.patch("os.urandom", bytes):  # the pauses: 0.5 s, 1 s
                async with client:
                    self.assertEqual(await watch(client), 4)
                    await client.ping()
                    self.assertGreater(await watch(client), 7)
        self.assertIn(0.5, paused)

    async def test_http_session_lost(self):
        """A new legacy session is subscribed, too."""
        script = Script("legacy")
        plain = over_http(script, session="s")
        lost = []

        async with (
            FakeHttp(losing(plain, lost)) as server,
            self.client(server.url) as client,
        ):
            async with client.subscribe("x://1") as changes:
                lost.append(1)
                await client.ping()
                self.assertEqual((await changes.__anext__()).uri, "x://1")
        self.assertEqual(len(script.sent("resources/subscribe")), 2)


class AgreementTest(Logged):
    """Who waits for the agreement with a server, and what is forgotten with it."""

    async def lost(self, server, client):
        server.hang_up()
        while client._agreed:
            await asyncio.sleep(0)

    async def test_all_calls_wait_for_the_restart(self):
        """STD-07: one opens the stream again, and no call is refused meanwhile."""
        script = {"tools__list": {"tools": [{"name": "valve"}]}, "ping": {}}
        for era in ("legacy", "modern"):
            server = FakeStream(era, tools__call={"content": []}, **script)
            async with self.client(server, restart=True) as client:
                await self.lost(server, client)
                calls = [client.call_tool("x") for _ in range(3)]
                found = await asyncio.gather(
                    client.list_tools(refresh=True), client.ping(), *calls
                )
                self.assertEqual(found[0], [{"name": "valve"}])
            opened = {"legacy": "initialize", "modern": "server/discover"}[era]
            most = 3 if era == "modern" else 2  # a modern ping is server/discover
            self.assertEqual(len(server.sent(opened)), most)

    async def test_nobody_calls_a_server_that_refused(self):
        """No tool runs and no list is empty on a stream that was not agreed on."""
        server = FakeStream("legacy", tools__call={"content": []})
        async with self.client(server, restart=True) as client:
            await self.lost(server, client)

            def refuse(params):
                raise Failure(-32000, "not now")

            server.methods["initialize"] = refuse
            works = [client.call_tool("x"), client.list_tools(), client.ping()]
            found = await asyncio.gather(*works, return_exceptions=True)
            self.assertEqual([type(each) for each in found], [MCPError] * 3)
            self.assertEqual(server.sent("tools/call"), [])
            del server.methods["initialize"]
            await client.call_tool("x")

    async def test_who_gives_up_waiting_does_not_end_it(self):
        server = FakeStream("legacy")
        async with self.client(server, restart=True) as client:
            await self.lost(server, client)
            begun, go = asyncio.Event(), asyncio.Event()

            async def initialize(params):
                begun.set()
                await go.wait()
                return {"protocolVersion": LEGACY, "capabilities": {}}

            server.methods["initialize"] = initialize
            first, second = [asyncio.create_task(client.ping()) for _ in range(2)]
            await begun.wait()
            first.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await first
            go.set()
            await second
        self.assertEqual(len(server.sent("initialize")), 2)

    async def test_closed_while_it_is_awaited(self):
        """No second agreement begins, and who waits hears that it is over."""
        server = FakeStream("legacy")
        client = self.client(server, restart=True)
        async with client:
            await self.lost(server, client)
            begun = asyncio.Event()

            async def initialize(params):
                begun.set()
                await asyncio.sleep(30)

            server.methods["initialize"] = initialize
            works = [
                client.ping(),
                client.list_tools(),
                client.set_logging_level("error"),
                client.subscribe("x://1").__aenter__(),
            ]
            tasks = [asyncio.create_task(work) for work in works]
            await begun.wait()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        self.assertEqual([type(each) for each in found], [ConnectionLost] * 4)
        self.assertEqual((client._agreed, client._tasks), (False, set()))

    async def test_close_that_is_given_up(self):
        """While a callback puts its window away: the server is left all the same."""
        begun, leaving = asyncio.Event(), asyncio.Event()

        async def ask(params):
            begun.set()
            try:
                await asyncio.sleep(30)
            finally:
                leaving.set()
                await asyncio.sleep(30)

        server = FakeStream("legacy")
        client = self.client(server, elicitation_callback=ask)
        await client.__aenter__()
        server.send({"id": "q", **question()})
        await asyncio.wait_for(begun.wait(), 5)
        closing = asyncio.ensure_future(client.close())
        await asyncio.wait_for(leaving.wait(), 5)
        closing.cancel()
        await asyncio.wait([closing], timeout=5)
        self.assertTrue(closing.cancelled())
        self.assertIsNone(client._transport._out)
        self.assertEqual(client._transport._tasks, [])

    async def test_opened_twice(self):
        async with self.client(FakeStream()) as client:
            with self.assertRaisesRegex(ClientError, "is open already"):
                await client.__aenter__()
            await client.ping()

    async def test_what_the_old_server_said_is_forgotten(self):
        """The schemas of its tools, and what the cache keeps of it."""
        tool = {"name": "x", "outputSchema": {"required": ["old"]}}
        server = FakeStream(
            tools__list={"tools": [tool], "ttlMs": 60_000, "cacheScope": "public"},
            tools__call={"content": [], "structuredContent": {"old": 1}},
        )
        async with self.client(server, restart=True) as client:
            await client.call_tool("x")
            await self.lost(server, client)
            result = {"content": [], "structuredContent": {"new": 1}}
            server.methods["tools/call"] = result
            server.methods["tools/list"] = {"tools": [{"name": "x"}]}
            found = (await client.call_tool("x")).structured_content
            self.assertEqual(found, {"new": 1})
            self.assertEqual(await client.list_tools(), [{"name": "x"}])

    async def test_the_log_level_is_told_to_each_server(self):
        server = FakeStream("legacy", logging__setLevel={})
        async with self.client(server, restart=True, log_level="info") as client:
            await client.set_logging_level("error")
            await self.lost(server, client)
            await client.ping()
        levels = [params["level"] for params in server.sent("logging/setLevel")]
        self.assertEqual(levels, ["info", "error", "error"])

    async def test_a_log_level_that_is_refused_costs_nothing_else(self):
        def refuse(params):
            raise Failure(-32602, "which level?")

        server = FakeStream("legacy", logging__setLevel=refuse)
        async with self.client(server, log_level="loud") as client:
            await client.ping()
        self.assertIn("which level?", "\n".join(self.logged))

    async def test_a_subscription_that_is_not_restored_says_so(self):
        """And it is no call's fault: calls go on."""
        server = FakeStream("legacy")
        async with self.client(server, restart=True) as client:
            async with client.subscribe("x://1") as changes:

                def refuse(params):
                    raise Failure(-32002, "no such resource")

                server.methods["resources/subscribe"] = refuse
                await self.lost(server, client)
                await client.ping()
                with self.assertRaisesRegex(MCPError, "no such resource"):
                    await asyncio.wait_for(changes.__anext__(), 10)

    def listen(self, server):
        """What acknowledges a subscription and leaves it open."""

        def acknowledge(params):
            meta = {META + "subscriptionId": server.seen[-1]["id"]}
            name = "notifications/subscriptions/acknowledged"
            server.notify(name, _meta=meta, notifications={})

        return acknowledge

    async def test_a_subscription_of_a_server_that_is_modern_now(self):
        def gone(params):
            raise Failure(-32601, "Method not found")

        server = FakeStream("legacy")
        async with self.client(server, restart=True) as client:
            async with client.subscribe("x://1") as changes:
                server.era = "modern"
                server.methods["subscriptions/listen"] = self.listen(server)
                server.methods["initialize"] = gone
                await self.lost(server, client)
                await client.ping()
                self.assertTrue(client.modern)
                change = await asyncio.wait_for(changes.__anext__(), 10)
                self.assertEqual(change.uri, "x://1")

    async def test_a_subscription_of_a_server_that_is_legacy_now(self):
        """It watches as if the server had always been one."""
        server = FakeStream()
        server.methods["subscriptions/listen"] = self.listen(server)
        shortest = mock.patch("os.urandom", bytes)  # the pause before it is 0.5 s
        async with self.client(server, restart=True) as client:
            async with client.subscribe("x://1") as changes:
                server.era = "legacy"
                with shortest:
                    await self.lost(server, client)
                    await asyncio.wait_for(changes.__anext__(), 10)
                self.assertFalse(client.modern)
                server.notify("notifications/resources/updated", uri="x://1")
                await asyncio.wait_for(changes.__anext__(), 10)
        self.assertEqual(len(server.sent("subscriptions/listen")), 1)
        self.assertEqual(len(server.sent("resources/subscribe")), 1)
        self.assertEqual(server.sent("resources/unsubscribe"), [{"uri": "x://1"}])

    async def test_a_legacy_server_now_that_offers_no_subscriptions(self):
        server = FakeStream()
        server.methods["subscriptions/listen"] = self.listen(server)
        async with self.client(server, restart=True) as client:
            async with client.subscribe("x://1") as changes:
                server.era, server.capabilities = "legacy", {"resources": {}}
                with mock.patch("os.urandom", bytes):
                    await self.lost(server, client)
                    with self.assertRaisesRegex(ClientError, "does not offer"):
                        await asyncio.wait_for(changes.__anext__(), 10)

    async def test_subscribing_where_the_session_has_ended(self):
        """HTL-04 holds for a subscription, too."""
        script = Script("legacy")
        plain = over_http(script, session="s")
        lost = []

        async with (
            FakeHttp(losing(plain, lost)) as server,
            self.client(server.url) as client,
        ):
            lost.append(1)
            async with client.subscribe("x://1"):
                self.assertEqual(len(script.sent("initialize")), 2)

    async def test_subscribing_to_a_server_that_is_gone(self):
        for uris in ((), ("x://1",)):
            server = FakeStream("legacy")
            async with self.client(server) as client:
                await self.lost(server, client)
                with self.assertRaises(ConnectionLost):
                    await client.subscribe(*uris, tools=True).__aenter__()


class RealServerTest(Logged):
    """Against the runtime itself, in process and over every transport."""

    debug = True

    def server(self):
        server = tinymcp.Server("greenhouse", version="1.0")

        @server.tool()
        def add(a: int, b: int) -> int:
            return a + b

        @server.tool()
        def open_wide(ctx: tinymcp.Context) -> str:
            return "open" if ctx.confirm("Sure?") else "closed"

        @server.resource("sensor://t", mime_type="application/json")
        def temperature() -> dict:
            return {"value": 21}

        return server

    async def check(self, client, version):
        self.assertEqual(client.protocol_version, version)
        self.assertEqual(client.server_info["name"], "greenhouse")
        names = [tool["name"] for tool in await client.list_tools()]
        self.assertEqual(names, ["add", "open_wide"])
        self.assertEqual((await client.call_tool("add", {"a": 1, "b": 2})).text, "3")
        self.assertTrue((await client.call_tool("add", {"a": "x"})).is_error)
        self.assertEqual((await client.call_tool("open_wide")).text, "open")
        self.assertEqual(
            json.loads((await client.read_resource("sensor://t")).text), {"value": 21}
        )
        with self.assertRaises(MCPError):
            await client.call_tool("nope")
        await client.ping()

    async def test_in_process(self):
        for mode, version in (("auto", MODERN), ("legacy", LEGACY)):
            options = {"mode": mode, "elicitation_callback": agree}
            async with self.client(self.server(), **options) as client:
                await self.check(client, version)

    async def test_http(self):
        server = self.server()
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(
            server.serve_http(port=0, ready=lambda where: ready.set_result(where))
        )
        try:
            host, port = (await asyncio.wait_for(ready, 10))[0][:2]
            url = f"http://{host}:{port}/mcp"
            for mode, version in (("auto", MODERN), ("legacy", LEGACY)):
                options = {"mode": mode, "elicitation_callback": agree}
                async with self.client(url, **options) as client:
                    await self.check(client, version)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def agree(params):
    """Accept a form, with true for whatever it asks."""
    fields = params["requestedSchema"]["properties"]
    return dict.fromkeys(fields, True)


class MisuseTest(Logged):
    """What is typed wrong is answered with what to type."""

    async def test_targets(self):
        for target in (3, None, b"x", object()):
            with self.assertRaisesRegex(TypeError, "a target is a URL, a command"):
                Client(target)
        for target in ("htp://a/mcp", "ws://a", " ftp://a b"):
            with self.assertRaisesRegex(ValueError, "begins with http:// or https://"):
                Client(target)
        for target in ("cat a://b", "./a://b", "unix://a", "https://a", ["htp://a"]):
            Client(target)

    async def test_options(self):
        for kind in (Client, SyncClient):
            with self.assertRaisesRegex(TypeError, "no option token ") as raised:
                kind("http://a", token="x")
            text = str(raised.exception)
            self.assertIn('headers={"Authorization": "Bearer ..."}', text)
            self.assertIn("; there are mode, client_info, ", text)
            self.assertTrue(text.endswith(", cwd, inherit_env, stderr"), text)

    async def test_with(self):
        wanted = r"use async with Client\(...\), or with SyncClient\(...\)"
        with self.assertRaisesRegex(TypeError, wanted):
            with Client(FakeStream()):
                self.fail("is no context manager without async")

    async def test_not_open(self):
        with self.assertRaisesRegex(ConnectionLost, "use it in an async with"):
            await self.client(FakeStream()).ping()
        with self.assertRaisesRegex(ConnectionLost, "use it in a with"):
            SyncClient(FakeStream()).ping()

    async def test_arguments_as_options(self):
        async with self.client(FakeStream(tools__call={"content": []})) as client:
            for method in (client.call_tool, client.get_prompt):
                name = method.__name__
                wanted = rf'^{name} has no option x; .*: {name}\(name, {{"x": ...}}\)$'
                with self.assertRaisesRegex(TypeError, wanted):
                    await method("ok", x=1)
            wanted = "tools/list has no option x; there are timeout, max_timeout"
            with self.assertRaisesRegex(TypeError, wanted):
                await client.list_tools(x=1)
            every = {"max_timeout": 5, "progress_callback": print, "meta": {}}
            await client.call_tool("ok", timeout=5, reset_on_progress=True, **every)


class SyncTest(unittest.TestCase):
    def test_calls(self):
        with SyncClient(fake()) as client:
            self.assertEqual(client.protocol_version, LEGACY)
            self.assertEqual(client.call_tool("echo", {"text": "a"}).text, "a")
            self.assertGreater(client.ping(), 0)
            with self.assertRaises(RequestTimeout):
                client.call_tool("nothing", timeout=0.05)
            with self.assertRaises(AttributeError):
                client.nonsense()

    def test_used_outside_with(self):
        """Before and after: a text that says what to do, and no coroutine is left."""
        client = SyncClient(fake())
        with self.assertRaisesRegex(ConnectionLost, "with statement"):
            client.list_tools()
        with client:
            changes = client.subscribe("x://1")
        for call in (client.list_tools, lambda: next(changes)):
            with self.assertRaisesRegex(ConnectionLost, "with statement"):
                call()

    def test_closed_under_another_thread(self):
        """Whoever waits for an answer hears that the client is closed."""
        found = []

        def wait():
            try:
                client.call_tool("nothing")
            except ConnectionLost as error:
                found.append(str(error))

        def ask(params):
            asked.set()
            threading.Event().wait(20)

        asked = threading.Event()
        more = {"resultType": "input_required", "requestState": "again"}
        question = {"method": "elicitation/create", "params": {"message": "?"}}
        for result in (more, {**more, "inputRequests": {"a": question}}):
            server = _Lazy(FakeStream, tools__call=result)
            thread = threading.Thread(target=wait)
            client = SyncClient(server, elicitation_callback=ask)
            with client:
                thread.start()
                end = time.monotonic() + 10
                while not (
                    asked.is_set()
                    if "inputRequests" in result
                    else server.made.sent("tools/call")
                ):
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.005)
            thread.join(10)
            self.assertFalse(thread.is_alive())
        self.assertEqual(found, ["the client is closed"] * 2)

    def notifier(self, reports=1):
        """A server whose tool says much before its result."""

        def work(params):
            fake = server.made
            token = params["_meta"]["progressToken"]
            for number in range(reports):
                fake.notify("notifications/message", level="info", data=number)
                report = {"progressToken": token, "progress": number}
                fake.notify("notifications/progress", **report)
            return {"content": []}

        server = _Lazy(FakeStream, tools__call=work)
        return server

    def within(self, work):
        """A deadlock fails, and does not keep the other tests waiting."""
        done = []
        thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
        thread.start()
        thread.join(10)
        self.assertEqual(len(done), 1)

    def test_callbacks_of_notifications_use_the_client(self):
        names = set()

        def call(*values):
            names.add(threading.current_thread().name)
            client.ping()

        def work():
            nonlocal client
            for option in ("message_handler", "logging_callback"):
                with SyncClient(self.notifier(), **{option: call}) as client:
                    client.call_tool("x", reset_on_progress=True)
            with SyncClient(self.notifier()) as client:
                client.call_tool("x", progress_callback=call)

        client, before = None, threading.active_count()
        self.within(work)
        self.assertEqual(names, {"tinymcp-notifications"})
        self.assertEqual(threading.active_count(), before)

    def test_callbacks_of_notifications_keep_their_order(self):
        """What came before the answer is told before the call returns."""
        told = []

        async def later(params):
            told_later.append(params["data"])

        def report(progress, total, message):
            if progress == 3:
                raise SystemExit("no reason to be silent from now on")
            told.append(progress)

        told_later, logged = [], []
        options = {"logging_callback": later, "log": logged.append}
        with SyncClient(self.notifier(20), **options) as client:
            client.call_tool("x", progress_callback=report)
            self.assertEqual(told, [n for n in range(20) if n != 3])
            client.ping()
            self.assertEqual(told_later, list(range(20)))
        self.assertEqual(len(logged), 1)
        self.assertIn("no reason", logged[0])

    def test_async_callback_uses_the_client(self):
        """On the loop itself it could only wait for ever."""
        problems = []

        async def handle(message):
            try:
                client.ping()
            except ClientError as error:
                problems.append(str(error))

        def work():
            nonlocal client
            with SyncClient(self.notifier(), message_handler=handle) as client:
                client.call_tool("x", reset_on_progress=True)
                client.ping()

        client = None
        self.within(work)
        wanted = "an async callback cannot use a SyncClient: use def"
        self.assertEqual(problems, [wanted] * 2)

    def test_callback_that_does_not_return(self):
        """It holds no call for long, and what waits for it is bounded."""
        begun, go, third = (threading.Event() for _ in range(3))
        told, logged = [], []

        def handle(params):
            told.append(params["data"])
            begun.set()
            go.wait(20)
            if len(told) == 3:
                third.set()

        limits = quick(changes=2, grace=0.05)
        options = {"logging_callback": handle, "log": logged.append, "limits": limits}
        with SyncClient(self.notifier(1), **options) as client:
            client.call_tool("x", reset_on_progress=True)
            self.assertTrue(begun.wait(5))
            for _ in range(4):
                client.call_tool("x", reset_on_progress=True)
            go.set()
            self.assertTrue(third.wait(5))
        self.assertEqual(told, [0] * 3)
        self.assertEqual(logged, ["a callback is too slow: it is not told everything"])

    def test_opened_twice(self):
        with SyncClient(fake()) as client:
            with self.assertRaisesRegex(ClientError, "is open already"):
                client.__enter__()
            client.ping()

    def test_failing_start(self):
        before = threading.active_count()
        with self.assertRaises(ConnectionLost):
            SyncClient(["/no-such-command"]).__enter__()
        self.assertEqual(threading.active_count(), before)

    def test_subscribe(self):
        class Told(FakeStream):
            def default(self, method):
                if method == "resources/subscribe":
                    self.notify("notifications/resources/updated", uri="x://1")
                return super().default(method)

        # The script of a fake lives in the loop of the client.
        with SyncClient(_Lazy(Told, "legacy")) as client:
            changes = client.subscribe("x://1")
            self.assertEqual(next(changes).uri, "x://1")
            changes.close()

    def test_subscription_that_ends(self):
        def listen(params):
            meta = {META + "subscriptionId": server.made.seen[-1]["id"]}
            server.made.notify(
                "notifications/subscriptions/acknowledged", _meta=meta, notifications={}
            )
            return {"_meta": meta}

        server = _Lazy(FakeStream, subscriptions__listen=listen)
        with SyncClient(server, log=lambda text: None) as client:
            self.assertEqual(list(client.subscribe("x://1")), [])

    def test_interrupt(self):
        """Ctrl-C while waiting: the call is given up, the server ends."""
        code = (
            "import signal, sys, threading\n"
            "from tinymcp.client import SyncClient\n"
            "with SyncClient(sys.argv[1:]) as client:\n"
            "    stop = signal.pthread_kill, (threading.main_thread().ident, 2)\n"
            "    threading.Timer(0.2, *stop).start()\n"
            "    try:\n"
            "        client.call_tool('nothing')\n"
            "    except KeyboardInterrupt:\n"
            "        result = client.call_tool('echo', {'text': 'a'})\n"
            "        print('interrupted', result.text)\n"
        )
        command = [sys.executable, "-c", code, *fake()]
        done = subprocess.run(command, capture_output=True, timeout=60, text=True)
        self.assertEqual((done.stdout, done.stderr), ("interrupted a\n", ""))


class _Lazy:
    """A fake server that is made in the loop it serves in (Python 3.9 wants that)."""

    run = None

    def __init__(self, kind, *args, **options):
        self.make = lambda: kind(*args, **options)

    async def serve(self, reader, writer):
        self.made = self.make()
        await self.made.serve(reader, writer)


class ImportTest(unittest.TestCase):
    def test_what_an_import_loads(self):
        """The client costs little over the runtime, the runtime never loads it."""
        code = (
            "import sys; sys.path.append(''); import tinymcp\n"
            "before = set(sys.modules)\n"
            "import tinymcp.client\n"
            "print(*sorted(set(sys.modules) - before))\n"
        )
        root = pathlib.Path(tinymcp.__file__).parent.parent
        command = [sys.executable, "-S", "-c", code]  # site may load more, or does not
        done = subprocess.run(
            command, cwd=root, capture_output=True, timeout=60, text=True
        )
        wanted = "tinymcp.client tinymcp.transports"
        self.assertEqual((done.stdout.strip(), done.stderr), (wanted, ""))

    def test_exports(self):
        for name in module.__all__:
            self.assertTrue(hasattr(module, name), name)


if __name__ == "__main__":
    unittest.main()
