"""Section 11: what users type: registration, call, run() and the command line."""

import asyncio
import contextlib
import functools
import io
import json
import math
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Annotated, Optional, TypedDict
from unittest import mock

import tinymcp
from tinymcp import Context, DefinitionError, Limits, MCPError, Server, ToolError

# What site loads is not ours, and may take longer than all else; coverage needs it.
SITE = [] if "COVERAGE_PROCESS_CONFIG" in os.environ else ["-S"]

rt = sys.modules[tinymcp.Server.__module__]
FILE = pathlib.Path(rt.__file__)
PACKAGE = (FILE.parent / "__init__.py").exists()
HOME = FILE.parent.parent if PACKAGE else FILE.parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(HOME),
    "PYTHONUNBUFFERED": "",
}
ENVIRONMENT.pop("TINYMCP_TOKEN", None)
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
PATIENCE = 20.0
POSIX = os.name == "posix"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def quiet(**options):
    return Server("quiet", "1", log=lambda level, text: None, **options)


def ask(server, method, **params):
    """The reply to one request of the modern era."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method}
    message["params"] = {"_meta": META, **params}
    peer = rt._Here(server)
    found = server._dispatch(message, peer)
    if type(found) is tuple:
        peer.reply(*found)
    elif found.handler.is_async:
        server._owe(found, math.inf)
        rt._run_apart(rt._acall(found))
        found.settle(found.rendered)
    else:
        server._owe(found, math.inf)
        found.settle(rt._call(found))
    return json.loads(peer.body)


def listed(server, kind="tools"):
    method = "resources/templates/list" if kind == "templates" else f"{kind}/list"
    name = "resourceTemplates" if kind == "templates" else kind
    return ask(server, method)["result"][name]


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


class Registration(unittest.TestCase):
    def test_every_form_of_the_decorator(self):
        server = quiet()
        self.assertIs(server.tool(add), add)
        server.tool("second")(add)
        server.tool(name="third", title="T", meta={"k": 1}, icons=[{"src": "x:y"}])(add)

        class Adder:
            """Adds."""

            def __call__(self, a: int) -> int:
                return a

        server.tool(Adder())
        server.tool(functools.partial(add, 1), name="part")
        self.assertEqual(
            [t["name"] for t in listed(server)],
            ["add", "second", "third", "Adder", "part"],
        )
        third = listed(server)[2]
        self.assertEqual(
            (third["title"], third["_meta"], third["icons"]),
            ("T", {"k": 1}, [{"src": "x:y"}]),
        )
        self.assertEqual(third["description"], "Add two numbers.")
        for kind in (server.prompt, server.completion):
            function = (lambda ref, argument: []) if kind == server.completion else add
            self.assertIs(kind(function), function)
        server.completion()(lambda ref, argument, context: [])
        server.prompt("named")(add)
        self.assertEqual(
            [p["name"] for p in listed(server, "prompts")], ["add", "named"]
        )

    REFUSED = [  # what is done, what the sentence holds
        (lambda s: s.tool(5), "a function is decorated, not 5"),
        (lambda s: s.tool(lambda: 1), "give name="),
        (lambda s: s.tool(functools.partial(add)), "give name="),
        (lambda s: s.tool(add, colour=1), "'add': no option colour"),
        (lambda s: s.tool(add, input_schema={}), '"type": "object"'),
        (lambda s: s.tool(add, input_schema={"type": "array"}), '"type": "object"'),
        (lambda s: s.tool(add, input_schema={"type": "object", "if": 5}), "'add'"),
        (lambda s: s.tool(add, output_schema={"type": 5}), "'add', result"),
        (lambda s: s.tool(lambda: 1, name="x", structured_output=True), "return type"),
        (lambda s: s.tool(add, inline=True, lock="bus"), "inline"),
        (lambda s: (s.tool(add), s.tool(add)), "'add'"),
        (lambda s: s.tool(lambda *a: 1, name="x"), r"\*a"),
        (lambda s: s.tool(lambda **k: 1, name="x"), r"\*\*k"),
        (lambda s: s.resource(add), "takes a URI first"),
        (lambda s: s.resource("no-scheme")(add), "has a scheme"),
        (lambda s: s.resource("x://a")(add), "need a {name}"),
        (
            lambda s: s.resource("x://{a}")(add),
            r"URI has \['a'\], the function \['a', 'b'\]",
        ),
        (lambda s: s.resource("x://{a}/{b}")(lambda a: 1), "give name="),
        (lambda s: s.completion(lambda a: []), r"\(ref, argument, context\)"),
        (lambda s: s.completion(lambda a, b, c, d: []), r"\(ref, argument, context\)"),
        (lambda s: s.prompt(5), "a function is decorated"),
        (
            lambda s: s.tool(add, colour=1),
            "there are annotations, description, icons, inline, input_schema, lock, "
            "meta, name, output_schema, rate, scopes, structured_output, timeout, titl",
        ),
        (lambda s: s.prompt(add, rate=1), "no option rate; there are desc.*, timeout"),
        (lambda s: s.resource("x://{a}", x=1)(lambda a: 1), "give name="),
        (lambda s: s.resource("x://{a}/", name="r", x=1)(lambda a: 1), ", mime_type, "),
        (lambda s: s.tool(add, readonly=True), 'say annotations={"readOnlyHint": Tru'),
        (lambda s: s.tool(add, destructive_hint=1), '{"destructiveHint": True}'),
        (lambda s: s.tool(Command.write), "self is no argument: .* object.write"),
        (lambda s: s.tool(add, annotations={"destructive": True}), "destructiveHint, "),
        (
            lambda s: s.tool(add, annotations={"read_only_hint": True}),
            "'read_only_hint'",
        ),
        (lambda s: s.tool(add, annotations={"readOnlyHint": "no"}), "True or False"),
        (lambda s: s.tool(add, scopes="write"), r"scopes= takes names: \('write',\)"),
        (lambda s: s.prompt(add, scopes=(1,)), "scopes= takes names"),
        (lambda s: s.tool(add, timeout="x"), "timeout= takes seconds"),
        (lambda s: s.prompt(add, timeout=0), "timeout= takes seconds"),
        (lambda s: s.tool(add, rate=5), r"rate= takes \(calls, seconds\)"),
        (lambda s: s.tool(add, rate=(1, 0)), r"rate= takes \(calls, seconds\)"),
        (lambda s: s.tool(add, rate=("a", 1)), r"rate= takes \(calls, seconds\)"),
    ]

    def test_refusals_name_the_place(self):
        for index, (do, text) in enumerate(self.REFUSED):
            with self.subTest(index), self.assertRaisesRegex(DefinitionError, text):
                do(quiet())

    def test_options_of_the_server_are_checked(self):
        for options, error in [
            ({"json": "ujson"}, ValueError),
            ({"cache_scope": "all"}, ValueError),
            ({"ttl_ms": -1}, ValueError),
            ({"page_size": 0}, ValueError),
            ({"colour": 1}, TypeError),
            ({"log_level": "loud"}, ValueError),
        ]:
            with self.subTest(options), self.assertRaises(error):
                Server(**options)
        with self.assertRaises(TypeError):
            Limits(nothing=1)
        for options, error, text in [
            ({"limit": 1}, TypeError, "no option limit; there are .* limits, .* icons"),
            ({"lifespan": 3}, TypeError, "lifespan= takes a function"),
            ({"state_keys": "abc"}, ValueError, "a list of keys, each 16 bytes"),
            ({"state_keys": ["x" * 16]}, ValueError, "a list of keys, each 16 bytes"),
        ]:
            with self.subTest(options), self.assertRaisesRegex(error, text):
                Server(**options)
        where = r'option host, port; .*run\("http", host=, port=, ...\)'
        with self.assertRaisesRegex(TypeError, where):
            Server(host="127.0.0.1", port=1)  # as FastMCP took them

    def test_orjson_that_is_not_there_says_so(self):
        with mock.patch.dict(sys.modules, {"orjson": None}):
            with self.assertRaisesRegex((ImportError, ValueError), "orjson"):
                Server(json="orjson")
        Server(json="json")

    def test_what_clients_are_told_LIF_11(self):
        server = quiet(
            title="T",
            description="D",
            website_url="https://x.example",
            icons=[tinymcp.Icon(src="https://x.example/i.png", mime_type="image/png")],
            instructions="Use it well.",
        )
        result = ask(server, "server/discover")["result"]
        info = (
            result.get("serverInfo")
            or result["_meta"]["io.modelcontextprotocol/serverInfo"]
        )
        self.assertEqual((info["title"], info["description"]), ("T", "D"))
        self.assertEqual(info["websiteUrl"], "https://x.example")
        self.assertEqual(info["icons"][0]["mimeType"], "image/png")
        self.assertEqual(result["instructions"], "Use it well.")

    def test_read_only_offers_only_what_only_reads(self):
        server = quiet(read_only=True)
        server.tool(add)
        server.tool("reads", annotations={"readOnlyHint": True})(add)
        notes = tinymcp.ToolAnnotations(read_only_hint=True)
        server.tool("reads_too", annotations=notes)(add)
        server.tool("writes", annotations={"readOnlyHint": False})(add)
        self.assertEqual([t["name"] for t in listed(server)], ["reads", "reads_too"])
        hidden = [text for text in server.warnings if "not offered" in text]
        self.assertEqual([text.split("'")[1] for text in hidden], ["add", "writes"])

    def test_limits_are_limits(self):
        with self.assertRaisesRegex(TypeError, r"like Limits\(workers=2\)"):
            Server("x", limits={"workers": 2})

    def test_removing(self):
        server = quiet()
        server.add_tool(add)
        server.add_resource("x://a", lambda: "a", name="a")
        server.add_resource("x://{b}", lambda b: b, name="b")
        server.add_prompt(add)
        server.remove_tool("add")
        server.remove_resource("x://a")
        server.remove_resource("x://{b}")
        server.remove_prompt("add")
        for kind in ("tools", "resources", "templates", "prompts"):
            self.assertEqual(listed(server, kind), [])
        for remove in (server.remove_tool, server.remove_prompt):
            self.assertRaises(KeyError, remove, "add")
        self.assertRaises(KeyError, server.remove_resource, "x://a")

    def test_mount(self):
        inner, outer = quiet(), quiet()
        inner.tool(lock="bus")(add)
        inner.prompt(add)
        inner.resource("x://a")(self.a)
        inner.add_resource("x://t/{b}", lambda b: f"t{b}", name="t")
        outer.tool(add)
        outer.mount(inner, prefix="bed1.")
        self.assertEqual([t["name"] for t in listed(outer)], ["add", "bed1.add"])
        self.assertEqual(listed(outer, "prompts")[0]["name"], "bed1.add")
        self.assertEqual(listed(inner)[0]["name"], "add")
        self.assertEqual(outer._registry.tool.items["bed1.add"].lane, "bed1.bus")
        self.assertEqual(outer.call("bed1.add", {"a": 1})["structuredContent"], 2)
        read = ask(outer, "resources/read", uri="x://t/9")["result"]["contents"][0]
        self.assertEqual(read["text"], "t9")
        with self.assertRaises(DefinitionError):
            outer.mount(inner, prefix="bed1.")

    @staticmethod
    def a():
        return "A"

    def test_an_explicit_schema_and_any_arguments(self):
        server = quiet()
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

        @server.tool(input_schema=schema)
        def free(**arguments):
            """Takes all."""
            return json.dumps(arguments, sort_keys=True)

        @server.tool(input_schema=schema)
        def mixed(ctx: Context, n: int = 0, **rest):
            """Takes all."""
            return f"{n} {sorted(rest)}"

        got = server.call("free", {"n": 1, "x": [2]})
        self.assertEqual(json.loads(got["content"][0]["text"]), {"n": 1, "x": [2]})
        self.assertTrue(server.call("free", {"n": "1"})["isError"])
        text = server.call("mixed", {"n": 4, "z": 1})["content"][0]["text"]
        self.assertEqual(text, "4 ['z']")
        self.assertEqual(listed(server)[0]["inputSchema"], schema)

    def test_output_schemas(self):
        server = quiet()
        wanted = {"type": "object", "properties": {"a": {"type": "integer"}}}
        server.add_tool(lambda: {"a": 1}, name="given", output_schema=wanted)
        server.add_tool(lambda: {"a": "x"}, name="wrong", output_schema=wanted)
        number = {"type": "integer"}
        server.add_tool(lambda: 5, name="number", output_schema=number)
        server.add_tool(add, name="none", structured_output=False)
        self.assertEqual(server.call("given")["structuredContent"], {"a": 1})
        self.assertTrue(server.call("wrong")["isError"])
        self.assertEqual(server.call("number")["structuredContent"], 5)
        self.assertNotIn("structuredContent", server.call("none", {"a": 1}))
        self.assertNotIn("outputSchema", listed(server)[3])

    def test_warnings_for_check(self):
        server = quiet()
        server.add_tool(lambda: 1, name="a b")
        self.assertEqual(len(server.warnings), 2)
        self.assertIn("A-Z", server.warnings[0])
        self.assertIn("no description", server.warnings[1])

    def test_prompts_list_their_arguments(self):
        server = quiet()

        @server.prompt(title="T", description="D")
        def greet(who: Annotated[str, "whom"], loud: Optional[str] = None) -> str:
            return f"Hello {who}"

        prompt = listed(server, "prompts")[0]
        self.assertEqual(prompt["title"], "T")
        self.assertEqual(
            prompt["arguments"],
            [
                {"name": "who", "required": True, "description": "whom"},
                {"name": "loud", "required": False},
            ],
        )
        got = ask(server, "prompts/get", name="greet", arguments={"who": "you"})
        self.assertEqual(got["result"]["messages"][0]["content"]["text"], "Hello you")


class Calling(unittest.TestCase):
    """Server.call: a tool in this process, questions included."""

    def setUp(self):
        self.server = server = quiet()

        @server.tool
        def plain(ctx: Context) -> str:
            form = {"type": "object", "properties": {}}
            return f"{ctx.confirm('Sure?')} {ctx.elicit('Name?', form).action}"

        @server.tool
        async def many(ctx: Context) -> str:
            name = await ctx.elicit("Name?", {"type": "object", "properties": {}}, "n")
            said = await ctx.sample("Say", key="s")
            roots = await ctx.list_roots(key="r")
            return f"{name.content} {said.text} {roots[0].uri}"

        @server.tool
        def fails() -> str:
            raise ToolError("no such bus")

        @server.tool
        def rpc() -> str:
            raise MCPError(-32050, "odd", {"a": 1})

    def text(self, *arguments, **options):
        return self.server.call(*arguments, **options)["content"][0]["text"]

    def test_answers_by_position_and_key(self):
        self.assertEqual(self.text("plain", answers={1: True, 2: None}), "True decline")
        answers = {"n": {"a": 1}, "s": "word", "r": ["file:///x"]}
        self.assertEqual(self.text("many", answers=answers), "{'a': 1} word file:///x")
        self.assertEqual(self.text("plain", answers=[True, None]), "True decline")
        whole = {"action": "cancel"}
        self.assertEqual(self.text("plain", answers={1: False, 2: whole})[:5], "False")

    def test_a_question_without_an_answer(self):
        with self.assertRaisesRegex(KeyError, "Sure"):
            self.server.call("plain")

    def test_errors(self):
        self.assertTrue(self.server.call("fails")["isError"])
        with self.assertRaises(MCPError) as caught:
            self.server.call("rpc")
        self.assertEqual(
            (caught.exception.code, caught.exception.data["a"]), (-32050, 1)
        )
        with self.assertRaises(MCPError):
            self.server.call("absent")

    def test_an_async_tool_inside_a_running_loop(self):
        async def main():
            answers = {"n": None, "s": "w", "r": ["file:///x"]}
            return self.text("many", answers=answers)

        self.assertIn("w file:///x", asyncio.run(main()))


class Talking(unittest.TestCase):
    def test_the_log(self):
        lines = []
        server = Server(log=lambda *line: lines.append(line), log_level="warning")
        server._log("info", "no")
        server._log("error", "yes")
        self.assertEqual(lines, [("error", "yes")])

    def test_on_idle_calls_once_until_the_next_message(self):
        server = quiet()
        calls = []
        server.on_idle(0.02, lambda: calls.append(1))
        in_fd, to = os.pipe()
        out, out_fd = os.pipe()
        thread = threading.Thread(target=server._run_stdio, args=(in_fd, out_fd))
        thread.start()
        end = time.monotonic() + PATIENCE
        for wanted in (1, 2):
            os.write(to, PING)
            while len(calls) < wanted:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.005)
        os.close(to)
        thread.join(PATIENCE)
        for fd in (in_fd, out, out_fd):
            os.close(fd)
        self.assertEqual(len(calls), 2)

    def test_changes_can_be_announced_from_anywhere(self):
        server = quiet()
        server.resource("x://a", min_interval=2)(Registration.a)
        server.notify_tools_changed()
        server.notify_resources_changed()
        server.notify_prompts_changed()
        server.notify_updated("x://a")
        server.notify_updated("x://unknown")


class Lifespans(unittest.TestCase):
    """Once made, once entered, once left, whatever runs."""

    def lifespan(self, asynchronous):
        self.steps = steps = []

        @contextlib.contextmanager
        def plain(server):
            steps.append("in")
            yield {"bus": 1}
            steps.append("out")

        @contextlib.asynccontextmanager
        async def other(server):
            with plain(server) as value:
                yield value

        def make(server):
            steps.append("made")
            return (other if asynchronous else plain)(server)

        return make

    def server(self, asynchronous, async_tool):
        server = quiet(lifespan=self.lifespan(asynchronous))

        def bus(ctx: Context) -> int:
            return ctx.lifespan["bus"]

        async def async_bus(ctx: Context) -> int:
            return ctx.request_context.lifespan_context["bus"]

        server.add_tool(async_bus if async_tool else bus, name="bus")
        return server

    def test_on_descriptors(self):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        body["params"] = {"name": "bus", "_meta": META}
        for asynchronous in (False, True):
            for async_tool in (False, True):
                with self.subTest((asynchronous, async_tool)):
                    server = self.server(asynchronous, async_tool)
                    in_fd, to = os.pipe()
                    out, out_fd = os.pipe()
                    os.write(to, json.dumps(body).encode() + b"\n")
                    os.close(to)
                    thread = threading.Thread(
                        target=server._run_stdio, args=(in_fd, out_fd)
                    )
                    thread.start()
                    thread.join(PATIENCE)
                    os.close(out_fd)
                    with os.fdopen(out, "rb") as file:
                        reply = json.loads(file.read())
                    os.close(in_fd)
                    self.assertEqual(reply["result"]["structuredContent"], 1)
                    self.assertEqual(self.steps, ["made", "in", "out"])

    def test_shared_by_the_transports_of_a_loop(self):
        async def talk(server, reader, writer):
            writer.write(PING)
            self.assertIn(b'"id":1', await reader.readline())

        async def main(server):
            stop, ready = asyncio.Event(), asyncio.Event()
            bound = []

            def is_ready(addresses):
                bound.extend(addresses)
                ready.set()

            http = asyncio.ensure_future(
                server.serve_http(port=0, ready=is_ready, stop=stop)
            )
            await asyncio.wait_for(ready.wait(), PATIENCE)
            here, there = socket.socketpair()
            pair = await asyncio.open_connection(sock=there)
            stream = asyncio.ensure_future(server.serve(*pair))
            reader, writer = await asyncio.open_connection(sock=here)
            await talk(server, reader, writer)
            writer.close()
            await asyncio.wait_for(stream, PATIENCE)
            self.assertEqual(self.steps, ["made", "in"])
            reader, writer = await asyncio.open_connection(*bound[0])
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200", await reader.readline())
            writer.close()
            stop.set()
            await asyncio.wait_for(http, PATIENCE)
            self.assertEqual(self.steps, ["made", "in", "out"])

        for asynchronous in (False, True):
            for _ in range(2):  # and again in a loop of its own
                asyncio.run(main(self.server(asynchronous, True)))

    def test_http_that_is_cancelled_twice_outlives_it_in_nothing(self):
        """Cancel, wait a moment, cancel again: so programs end a task."""
        found = []

        @contextlib.contextmanager
        def life(server):
            yield
            found.append("out")

        server = quiet(lifespan=life)

        @server.tool
        async def waits() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                found.append("cancelled")

        @server.tool
        def late() -> str:
            found.append("late")

        def post(name):
            meta = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
            meta = {f"io.modelcontextprotocol/{k}": v for k, v in meta.items()}
            params = {"name": name, "arguments": {}, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            data = json.dumps(body).encode()
            head = (
                "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
                "Content-Type: application/json\r\nAccept: application/json\r\n"
                "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
                f"Mcp-Name: {name}\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            return head.encode() + data

        async def main():
            bound = asyncio.get_running_loop().create_future()
            http = asyncio.ensure_future(
                server.serve_http(port=0, ready=bound.set_result)
            )
            host, port = (await asyncio.wait_for(bound, PATIENCE))[0]
            first, second = [await asyncio.open_connection(host, port) for _ in "12"]
            first[1].write(post("waits"))
            data = post("late")
            second[1].write(data[:-5])
            while not server._owes():
                await asyncio.sleep(0.001)
            for _ in range(2):
                http.cancel()
                await asyncio.wait([http], timeout=0.05)
            self.assertTrue(http.done())
            second[1].write(data[-5:])
            with contextlib.suppress(ConnectionError):
                self.assertEqual(await second[0].read(), b"")
            self.assertEqual(server._loop.extra, [])
            for _, writer in (first, second):
                writer.close()

        asyncio.run(main())
        self.assertEqual(found, ["cancelled", "out"])

    def test_one_that_fails_is_not_half_entered(self):
        tries = []

        @contextlib.asynccontextmanager
        async def broken(server):
            tries.append(1)
            raise RuntimeError("no bus")
            yield

        server = quiet(lifespan=broken)

        async def main():
            for _ in range(2):
                with self.assertRaisesRegex(RuntimeError, "no bus"):
                    await server.serve_http(port=0)

        asyncio.run(main())
        self.assertEqual((server._users, len(tries)), (0, 2))


class Misused(unittest.TestCase):
    def test_what_fails_later_is_refused_at_once(self):
        server = quiet()
        for do, text in [
            (lambda: server.mount(server, "x_"), "mount takes another Server"),
            (lambda: server.mount("x", "y"), "mount takes another Server"),
            (lambda: server.on_idle(3, 4), "on_idle takes seconds and a function"),
            (lambda: server.run("http", auth=3), r"auth= takes a function"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(TypeError, text):
                do()


class Binding(unittest.TestCase):
    def test_arguments_of_run(self):
        server = quiet()
        for arguments, options, error, text in [
            (("sse",), {}, ValueError, "stdio, http or unix"),
            (("unix",), {}, ValueError, "^unix needs unix=PATH$"),
            ((), {"colour": 1}, TypeError, "colour"),
            (("http",), {"host": "0.0.0.0"}, ValueError, "--insecure"),
            (("streamable-http",), {"host": "192.0.2.1"}, ValueError, "--insecure"),
            (("http",), {"host": "::"}, ValueError, "token_file= or token="),
            (("http",), {"port": "x"}, ValueError, "port= takes a number .*not 'x'"),
            (("http",), {"port": 70000}, ValueError, "0 to 65535, not 70000"),
            (("http",), {"host": None}, ValueError, "host= takes a name .*not None"),
            ((), {"port": 8000}, ValueError, r'only HTTP takes port=: run\("http"'),
            (("unix",), {"unix": "x", "token": "t" * 32}, ValueError, "takes token="),
        ]:
            with self.subTest(arguments), self.assertRaisesRegex(error, text):
                server.run(*arguments, **options)

    def test_what_may_be_bound_without_protection_SEC_04_SEC_05(self):
        options = rt._http_options({})
        self.assertEqual(options["host"], "127.0.0.1")
        for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
            rt._check_bind({**options, "host": host})
        rt._check_bind({**options, "host": "0.0.0.0", "insecure": True})
        with mock.patch.dict(os.environ):
            os.environ.pop("TINYMCP_TOKEN", None)
            for host in ("0.0.0.0", "::", "10.0.0.1", "device.local"):
                with self.assertRaises(ValueError):
                    rt._check_bind({**options, "host": host})

    def test_localhost_is_both_families_C20(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
            families = 2
        except OSError:
            families = 1
        found = rt._listen("localhost", 0)
        try:
            self.assertEqual(len(found), families)
            self.assertEqual(len({each.getsockname()[1] for each in found}), 1)
            with self.assertRaisesRegex(OSError, "cannot listen on 127.0.0.1:"):
                rt._listen("127.0.0.1", found[0].getsockname()[1])
        finally:
            for each in found:
                each.close()

    def test_without_ipv6_localhost_is_one(self):
        real = socket.socket

        def only_4(family, *rest):
            if family == socket.AF_INET6:
                raise OSError("no IPv6")
            return real(family, *rest)

        with mock.patch.object(socket, "socket", only_4):
            found = rt._listen("localhost", 0)
        self.assertEqual(len(found), 1)
        found[0].close()
        with self.assertRaises(OSError):
            rt._listen("203.0.113.1", 0)

    @unittest.skipUnless(POSIX, "Unix sockets")
    def test_what_is_at_the_path_of_a_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            rt._clear_socket(path)  # nothing
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(path)
            rt._clear_socket(path)
            self.assertFalse(os.path.exists(path))
            with socket.socket(socket.AF_UNIX) as live:
                live.bind(path)
                live.listen(1)
                with self.assertRaisesRegex(OSError, "served already"):
                    rt._clear_socket(path)
            os.unlink(path)
            pathlib.Path(path).write_text("mine")
            with self.assertRaisesRegex(OSError, "no socket"):
                rt._clear_socket(path)
            self.assertEqual(pathlib.Path(path).read_text(), "mine")


APP = """
import sys, threading, time, atexit
from tinymcp import Server, Limits
server = Server("app", limits=Limits(grace=0.2, exit_grace=0.2))

@server.tool
def add(a: int) -> int:
    "Add."
    return a
"""
ASYNC = """
@server.tool
async def later() -> int:
    "Wait."
    return 1
"""
# When the server cannot start, main() goes by the default, which is 2 s.
STUCK = """
Limits.exit_grace = 0.2
threading.Thread(target=time.sleep, args=(3600,)).start()
"""


class Command(unittest.TestCase):
    """python3 -m tinymcp ..., in processes of its own.

    As a script the file is compiled at each start: one test does that.
    """

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, text=APP, name="app.py"):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self, *words, program=("-m", "tinymcp"), **options):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        pipes.update(env=ENVIRONMENT, cwd=self.folder)
        process = subprocess.Popen(
            [sys.executable, *SITE, *program, *words], **{**pipes, **options}
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def run_main(self, *words, data=b"", **options):
        process = self.start(*words, **options)
        out, err = process.communicate(data, PATIENCE)
        return process.returncode, out.decode(), err.decode()

    def address(self, process):
        """What the log says it serves on."""
        for line in process.stderr:
            if b"serving on " in line:
                return line.split(b"serving on ")[1].strip().decode()
        self.fail("it does not serve")

    def main(self, *words):
        """main() in this process: (status, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = rt.main(list(words))
        return status, out.getvalue(), err.getvalue()

    def test_help_and_version(self):
        status, out, err = self.main("--help")
        self.assertEqual((status, err), (0, ""))
        for option, *_ in rt._OPTIONS:
            self.assertIn(option, out)
        self.assertTrue(all(len(line) <= 88 for line in out.splitlines()), out)
        self.assertEqual(self.main("run", "-h")[:2], (0, out))
        self.assertEqual(self.main("check", "--help")[:2], (0, out))
        self.assertEqual(self.main(), (2, "", out))
        self.assertEqual(self.main("--version")[1], f"tinymcp {rt.__version__}\n")

    WRONG = [  # words, what the one line on stderr holds
        (["serve"], "no such command; see --help"),
        (["APP", "--http", "0"], "no such command; meant: run .*app.py?"),
        (["run", "NOTES", "--http", "0"], "whose name ends in .py"),
        (["run"], "one APP"),
        (["run", "a.py", "b.py"], "one APP"),
        (["run", "APP", "--htp", "80"], "no option --htp"),
        (["run", "APP", "--http"], r"--http takes \[HOST:\]PORT"),
        (["run", "APP", "--insecure=yes"], "--insecure takes no value"),
        (["run", "none.py", "--http", "0"], "no such file"),
        (["run", "no_module", "--http", "0"], "ModuleNotFoundError"),
        (["run", "APP:other", "--http", "0"], "no Server named other"),
        (["run", "APP:make", "--http", "0"], "no Server named make: it is a function"),
        (["run", "APP", "--http", "x"], r"\[HOST:\]PORT, not x"),
        (["run", "APP", "--http", "99999"], r"\[HOST:\]PORT"),
        (["run", "APP", "--http", "0.0.0.0:0"], "--token-file"),
        (["run", "APP", "--http", "[::]:0"], "--token-file"),
        (["run", "APP", "--http", "0", "--log-level", "loud"], "log level"),
        (["run", "APP", "--unix", "no/such/s"], "listen on no/such/s: No such file"),
        (["run", "APP", "--unix", "x" * 200], "x: AF_UNIX path too long"),
        (["run", "APP", "--http", "0", "--unix", "x"], "one of --http and --unix"),
        (["check", "none.py"], "no such file"),
    ]

    def test_mistakes_are_one_line_and_exit_2(self):
        app = self.write(APP + "\ndef make(): pass\n")
        notes = self.write("no code", "data")
        self.assertNotIn("TINYMCP_TOKEN", ENVIRONMENT)
        with mock.patch.dict(os.environ):
            os.environ.pop("TINYMCP_TOKEN", None)
            for words, text in self.WRONG:
                if words[0] == "check" and not PACKAGE:
                    continue
                words = [word.replace("APP", app) for word in words]
                words = [word.replace("NOTES", notes) for word in words]
                with self.subTest(words), mock.patch.object(sys, "path", [*sys.path]):
                    status, out, err = self.main(*words)
                    self.assertEqual((status, out), (2, ""))
                    self.assertRegex(err, text)
                    self.assertEqual(len(err.splitlines()), 1, err)

    BAD_APPS = [  # source, status of `check`, what the line holds
        ("raise RuntimeError('a\\nb')", 2, "RuntimeError, line 1: a b"),
        ("\nimport nothing_here", 2, "ModuleNotFoundError, line 2"),
        ("def f(:", 2, "SyntaxError"),
        ("1 / 0", 2, "ZeroDivisionError, line 1"),
        ("x = 1", 2, "no Server"),
        ("from tinymcp import Server as S\na, b = S(), S()", 2, "2 servers"),
        (
            "from tinymcp import Server\ns = Server()\n@s.tool\ndef f(*a): pass",
            1,
            r"DefinitionError, line [34]: tool 'f'.*\*a",
        ),
    ]

    def test_an_app_that_cannot_be_loaded(self):
        for index, (source, of_check, text) in enumerate(self.BAD_APPS):
            app = self.write(source, f"bad{index}.py")
            for words, wanted in (
                (["run", app, "--http", "0"], 2),
                (["check", app], of_check),
            ):
                if words[0] == "check" and not PACKAGE:
                    continue
                with self.subTest(words), mock.patch.object(sys, "path", [*sys.path]):
                    status, out, err = self.main(*words)
                    self.assertEqual((status, out), (wanted, ""))
                    self.assertRegex(err, text)
                    self.assertEqual(len(err.splitlines()), 1, err)

    def test_which_server_is_meant(self):
        two = "from tinymcp import Server\n{} = Server('1')\nb = Server('2')\n"
        with mock.patch.object(sys, "path", [*sys.path]):
            for name in ("server", "app", "mcp"):
                path = self.write(two.format(name), f"two_{name}.py")
                self.assertEqual(rt._load(path).name, "1")
                self.assertEqual(rt._load(f"{path}:b").name, "2")
            same = "from tinymcp import Server\nx = y = Server('1')\n"
            self.assertEqual(rt._load(self.write(same, "same.py")).name, "1")
            self.assertEqual(rt._load(self.write(APP, "json.py")).name, "app")
            self.assertIs(sys.modules["json"], json)
            here = os.getcwd()
            self.addCleanup(os.chdir, here)
            os.chdir(self.folder)
            self.assertEqual(rt._load("same:y").name, "1")

    def test_ctrl_c_while_the_app_is_loaded(self):
        app = self.write("raise KeyboardInterrupt", "slow.py")
        with mock.patch.object(sys, "path", [*sys.path]):
            self.assertEqual(self.main("run", app, "--unix", "x")[0], 130)

    def test_run_on_stdio(self):
        app = self.write("print('loading', flush=True)\n" + APP)
        for program in ((FILE,), ("-m", "tinymcp")):
            status, out, err = self.run_main("run", app, data=PING, program=program)
            self.assertEqual((status, json.loads(out)["id"]), (0, 1))
            self.assertIn("loading", err)
            self.assertNotIn("Traceback", err)
        closed = {"preexec_fn": lambda: os.close(0)} if POSIX else {}
        if closed:
            status, _, err = self.run_main("run", app, **closed)
            self.assertEqual(status, 2, err)
            self.assertIn("nobody to talk to", err)

    def test_run_starts_without_argparse_and_asyncio(self):
        app = self.write(
            APP + "atexit.register(lambda: print(*sorted({'argparse', 'asyncio'} & "
            "set(sys.modules)), 'loaded', file=sys.stderr))"
        )
        self.assertEqual(self.run_main("run", app)[2], "loaded\n")

    @unittest.skipUnless(POSIX, "terminals")
    def test_a_terminal_is_told(self):
        import pty

        there, here = pty.openpty()
        self.addCleanup(os.close, there)
        process = self.start("run", self.write(), stdin=here)
        os.close(here)
        self.assertIn(b"MCP on stdin; for HTTP: ", process.stderr.readline())
        os.write(there, b"\4")  # the end, as a person types it
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertEqual(self.run_main("run", self.write())[2], "")

    def test_check(self):
        app = self.write()
        status, out, err = self.run_main("check", app)
        if PACKAGE:
            self.assertEqual((status, err), (0, ""))
            self.assertRegex(out, r"tool +add +worker")
            bare = self.write("from tinymcp import Server\ns = Server()\n", "bare.py")
            self.assertEqual(self.run_main("check", bare)[0], 1)

    def test_the_lone_file_says_what_it_lacks(self):
        self.write(FILE.read_text(encoding="utf-8"), "tinymcp.py")
        app = self.write()
        here = {**ENVIRONMENT, "PYTHONPATH": str(self.folder)}
        for words in (["check", app], ["list", app]):
            status, out, err = self.run_main(*words, env=here)
            self.assertEqual((status, out), (2, ""))
            self.assertRegex(err, rf"\Atinymcp: {words[0]}: .*cli\.py")
            self.assertEqual(len(err.splitlines()), 1)

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_http_and_one_signal(self):
        """C18; the log tells the whole URL, and no thread stays behind."""
        app = self.write(APP + ASYNC + STUCK)
        process = self.start("run", app, "--http", "0")
        url = self.address(process)
        self.assertRegex(url, r"^http://127\.0\.0\.1:\d+/mcp$")
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b" 200 ", client.recv(4096))
            status, _, err = self.run_main("run", app, "--http", f"127.0.0.1:{port}")
            self.assertEqual(status, 2)
            self.assertIn("cannot listen", err)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 0)
        self.assertNotIn(b"Traceback", process.stderr.read())

    @unittest.skipUnless(POSIX, "Unix sockets")
    def test_unix_socket_STD_09(self):
        app = self.write(APP + STUCK)
        path = str(self.folder / "s")
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path)
        process = self.start("run", app, "--unix", path)
        self.assertEqual(self.address(process), path)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o077, 0)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(path)
            client.sendall(PING)
            self.assertIn(b'"id":1', client.recv(4096))
            status, _, err = self.run_main("run", app, "--unix", path)
            self.assertEqual(status, 2)
            self.assertIn("served already", err)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(PATIENCE), 0)
        self.assertEqual(process.stderr.read(), b"")
        self.assertFalse(os.path.exists(path))

    def test_too_many_connections_on_a_unix_socket(self):
        async def main(path):
            server = quiet(limits=Limits(connections=1))
            stop = asyncio.Event()

            async def run():
                async with server._entered():
                    await server._unix(path, stop)

            task = asyncio.ensure_future(run())
            while not os.path.exists(path):
                await asyncio.sleep(0.005)
            first = await asyncio.open_unix_connection(path)
            first[1].write(PING)
            self.assertIn(b'"id":1', await first[0].readline())
            second = await asyncio.open_unix_connection(path)
            self.assertIn(b"Too many connections", await second[0].read())
            for _, writer in (first, second):
                writer.close()
            stop.set()
            await asyncio.wait_for(task, PATIENCE)

        asyncio.run(main(str(self.folder / "s")))

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_a_late_signal_does_not_cut_the_exit_short(self):
        """Once run() is over the exit goes on in order: status 0, no traceback."""
        gate, opener = os.pipe()
        self.addCleanup(os.close, gate)
        now = "sys.stderr.write('now\\n'); sys.stderr.flush(); "
        wait = now + f"os.read({gate}, 1)"  # until all have had their signal
        # Not one long sleep: a signal just before it would come at its end.
        after = "server.run(loop={loop})\n" + now + "\nwhile 1: time.sleep(0.01)"
        hook = "@atexit.register\ndef bye():\n    " + wait
        thread = (
            "def work():\n    server.over.wait()\n    " + wait + "\n"
            "server.over = threading.Event()\n"
            "threading.Thread(target=work).start()\n"
            "server.run(loop={loop})\nserver.over.set()\n"
        )
        running = []
        for code in (after, f"{hook}\nserver.run(loop={{loop}})", thread):
            for loop in (False, True):
                text = "import os\n" + APP + code.replace("{loop}", str(loop))
                text = text.replace("exit_grace=0.2", f"exit_grace={PATIENCE}")
                process = subprocess.Popen(
                    [sys.executable, *SITE, self.write(text, f"app{len(running)}.py")],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=ENVIRONMENT,
                    pass_fds=(gate,),
                )
                self.addCleanup(self.end, process)
                running.append((code, loop, process))
        for code, loop, process in running:
            with self.subTest(code, loop=loop):
                self.assertEqual(process.stderr.readline(), b"now\n")
                process.send_signal(signal.SIGTERM)
        os.close(opener)
        for code, loop, process in running:
            with self.subTest(code, loop=loop):
                self.assertEqual(process.wait(PATIENCE), 0)
                self.assertEqual(process.stderr.read(), b"")

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_end_of_input_and_a_signal_at_once(self):
        for code in ("", ASYNC):
            app = self.write(APP + code)
            processes = [self.start("run", app) for _ in range(4)]
            for process in processes:
                process.stdin.write(PING)
                process.stdin.flush()
            for process in processes:
                process.stdout.readline()
                process.stdin.close()
                process.stdin = None
                process.send_signal(signal.SIGTERM)
            for process in processes:
                self.assertEqual(process.wait(PATIENCE), 0)
                self.assertEqual(process.stderr.read(), b"")

    @unittest.skipUnless(POSIX, "POSIX signals")
    def test_a_signal_wakes_the_loop(self):
        """No signal may wait for the next message: it writes to a watched socket."""
        look = """
import signal
@server.tool(inline=True)
def wakes() -> bool:
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    return fd >= 0
server.run(loop=True)
"""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        body["params"] = {"name": "wakes", "_meta": META}
        done = subprocess.run(
            [sys.executable, *SITE, self.write(APP + look)],
            input=json.dumps(body).encode() + b"\n",
            env=ENVIRONMENT,
            capture_output=True,
            timeout=PATIENCE,
        )
        self.assertIn(b'"structuredContent":true', done.stdout, done.stderr)


class SdkNames(unittest.TestCase):
    """What code written for the official Python SDK uses, under the same names."""

    def test_a_server_that_moved_over(self):
        from tinymcp import Server as MCPServer

        mcp = MCPServer("Demo", instructions="Use it.", log=lambda *line: None)

        class Weather(TypedDict):
            celsius: float

        @mcp.tool(title="W", annotations=tinymcp.ToolAnnotations(read_only_hint=True))
        def weather(city: str) -> Weather:
            return {"celsius": 1.5}

        @mcp.tool()
        async def report(context: "Context[None]") -> str:
            await context.report_progress(1, total=2, message="half")
            for method in (context.debug, context.info, context.warning):
                await method("text")
            await context.error("text")
            await context.log("info", "text", logger="l")
            (item,) = await context.read_resource("config://app")
            return f"{context.request_id} {item.content} {item.mime_type}"

        @mcp.tool()
        async def announce(c: Context) -> str:
            session = c.request_context.session
            await session.send_tool_list_changed()
            await session.send_prompt_list_changed()
            await session.send_resource_list_changed()
            await session.send_resource_updated("config://app")
            await c.notify_resource_updated("config://app")
            await c.notify_tools_changed()
            return c.protocol_version

        @mcp.tool()
        def picture() -> tinymcp.Image:
            return tinymcp.Image(data=b"png", format="png")

        @mcp.tool()
        def result() -> tinymcp.CallToolResult:
            return tinymcp.CallToolResult(
                content=[tinymcp.TextContent(type="text", text="t")],
                structured_content={"a": 1},
                _meta={"k": 1},
            )

        @mcp.tool()
        def refuse() -> str:
            raise MCPError(code=tinymcp.INVALID_PARAMS, message="m", data={"d": 1})

        @mcp.resource("config://app", mime_type="text/plain", name="config")
        def config() -> str:
            return "on"

        @mcp.resource("user://{id}{?tags,page}")
        def user(id: int, tags: Optional[str] = None, page: int = 1) -> dict:
            return {"id": id, "tags": tags, "page": page}

        @mcp.prompt(title="Review")
        def review(code: str) -> list:
            return [tinymcp.UserMessage(code), tinymcp.AssistantMessage("ok")]

        @mcp.completion()
        async def complete(ref, argument, context):
            if isinstance(ref, tinymcp.PromptReference) and argument.name == "code":
                return tinymcp.Completion(values=[argument.value + "!"], has_more=False)
            return None

        self.assertEqual(
            mcp.call("weather", {"city": "x"})["structuredContent"], {"celsius": 1.5}
        )
        self.assertEqual(listed(mcp)[0]["annotations"], {"readOnlyHint": True})
        text = mcp.call("report")["content"][0]["text"]
        self.assertEqual(text, "0 on text/plain")
        self.assertFalse(mcp.call("announce").get("isError"), mcp.call("announce"))
        self.assertEqual(mcp.call("picture")["content"][0]["mimeType"], "image/png")
        got = mcp.call("result")
        self.assertEqual((got["structuredContent"], got["_meta"]["k"]), ({"a": 1}, 1))
        with self.assertRaises(MCPError):
            mcp.call("refuse")
        read = ask(mcp, "resources/read", uri="user://7?tags=a&page=2")
        self.assertEqual(
            json.loads(read["result"]["contents"][0]["text"]),
            {"id": 7, "tags": "a", "page": 2},
        )
        got = ask(mcp, "prompts/get", name="review", arguments={"code": "c"})
        self.assertEqual(
            [m["role"] for m in got["result"]["messages"]], ["user", "assistant"]
        )
        ref = {"type": "ref/prompt", "name": "review"}
        got = ask(
            mcp,
            "completion/complete",
            ref=ref,
            argument={"name": "code", "value": "x"},
        )
        self.assertEqual(got["result"]["completion"]["values"], ["x!"])

    def test_a_second_tool_of_the_same_name_is_refused(self):
        server = quiet()
        server.add_tool(add)
        with self.assertRaises(DefinitionError):
            server.add_tool(add)

    def test_names(self):
        for name in (
            "Audio EmbeddedResource TextResourceContents BlobResourceContents Icon "
            "ResourceLink ResourceNotFoundError UserMessage Message PARSE_ERROR"
        ).split():
            self.assertTrue(hasattr(tinymcp, name), name)


if __name__ == "__main__":
    unittest.main()
