"""The commands for people: output, exit status, questions on a terminal."""

import abc
import asyncio
import base64
import contextlib
import dataclasses
import datetime
import decimal
import enum
import io
import json
import os
import pathlib
import pty
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest
import uuid
from typing import Annotated, Any, Optional
from unittest import mock

from tinymcp import Context, InputRequired, Server, TextContent, cli
from tinymcp.client import Client, ClientError, ConnectionLost, InvalidReply, MCPError

from .fakes import FakeStream
from .test_transports import fake

# What site loads is not ours, and may take longer than all else; coverage needs it.
SITE = [] if "COVERAGE_PROCESS_CONFIG" in os.environ else ["-S"]

ROOT = pathlib.Path(__file__).resolve().parents[1]
APP = '''
import asyncio
import base64
from typing import Annotated, Literal

from tinymcp import Context, ImageContent, MCPError, ResourceLink, Server, ToolError

server = Server("greenhouse", version="1.0", instructions="Close it at night.",
                description="A greenhouse", website_url="https://g.example/")
level = [0]

@server.tool()
def set_vent(percent: Annotated[int, {"maximum": 100}], how: str = "now") -> dict:
    """Open the roof vent.

    More text that a list does not show.
    """
    return {"percent": percent, "how": how}

@server.tool()
def fail() -> str:
    raise ToolError("the pump is \\x1b[31mempty")

@server.tool()
def blocks():
    return [ImageContent(data="AAAA", mime_type="image/png"),
            ResourceLink(name="log", uri="file:///log")]

@server.tool()
def work(ctx: Context) -> str:
    ctx.report_progress(1, 4, "first")
    ctx.report_progress(2)
    ctx.info("half way")
    return "done"

@server.tool()
def ask(ctx: Context) -> str:
    form = {"type": "object", "required": ["name", "sure"], "properties": {
        "name": {"type": "string", "title": "Plant", "description": "which one"},
        "sure": {"type": "boolean"},
        "beds": {"type": "integer", "default": 3},
        "size": {"type": "string", "enum": ["small", "big"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "note": {"type": "string"}}}
    answer = ctx.elicit("Plant what?", form)
    return f"{answer.action} {answer.content}"

@server.tool()
def sign_in(ctx: Context) -> str:
    return ctx.elicit_url("Sign in", "https://shop.example/in?x=1").action

@server.resource("sensor://level", mime_type="application/json")
def water_level() -> dict:
    """Litres in the tank."""
    return {"litres": level[0]}

@server.tool()
def pour() -> int:
    level[0] += 1
    server.notify_updated("sensor://level")
    return level[0]

@server.resource("image://logo", mime_type="image/png")
def logo() -> bytes:
    return b"\\x89PNG"

@server.resource("bed://{name}")
def bed(name: str) -> str:
    return name

@server.prompt()
def advice(plant: str, day: str = "today") -> str:
    """Ask for advice."""
    return f"{plant} {day}"

if __name__ == "__main__":
    server.run()
'''


class AppCase(unittest.TestCase):
    """Has a server to talk to."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.app = os.path.join(folder.name, "app.py")
        pathlib.Path(cls.app).write_text(APP)
        socket = os.path.join(folder.name, "socket")
        command = [
            sys.executable,
            *SITE,
            "-m",
            "tinymcp",
            "run",
            cls.app,
            "--unix",
            socket,
        ]
        server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.terminate)
        end = time.monotonic() + 20
        while not os.path.exists(socket):
            assert time.monotonic() < end and server.poll() is None
            time.sleep(0.01)
        cls.target = [socket]


class CliTest(AppCase):
    def run_main(self, *words, target=None, coding="utf-8"):
        """(exit status, stdout, stderr) of a command in this process."""
        out, err = io.TextIOWrapper(io.BytesIO(), coding), io.StringIO()
        target = self.target if target is None else target
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main([words[0], *target, *words[1:]])
        out.flush()
        return status, out.buffer.getvalue().decode(coding, "replace"), err.getvalue()

    def serve(self):
        """A FakeStream at a Unix socket, in a thread until the test has ended."""
        path, ready = os.path.join(self.folder, "fake"), queue.SimpleQueue()

        async def listen():
            over, fake = asyncio.Event(), FakeStream()
            async with await asyncio.start_unix_server(fake.serve, path):
                ready.put((fake, asyncio.get_running_loop(), over))
                await over.wait()

        thread = threading.Thread(target=asyncio.run, args=[listen()])
        thread.start()
        server, loop, over = ready.get(timeout=10)
        self.addCleanup(thread.join)
        self.addCleanup(loop.call_soon_threadsafe, over.set)
        return server, path

    def output(self, *words, **options):
        status, out, err = self.run_main(*words, **options)
        self.assertEqual((status, err), (0, ""))
        return out

    def test_info(self):
        text = self.output("info")
        self.assertIn(
            "greenhouse 1.0 (MCP 2026-07-28)\nA greenhouse\nhttps://g.example/", text
        )
        self.assertIn("Close it at night.", text)
        data = json.loads(self.output("info", "--json", "--mode", "legacy"))
        self.assertEqual(data["protocolVersion"], "2025-11-25")

    def test_command(self):
        """A server that is started for one command."""
        target = ["--env", f"PYTHONPATH={ROOT}", "--", sys.executable, self.app]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(cli.main(["call", "set_vent", "percent=7", *target]), 0)
        self.assertIn('"percent":7', out.getvalue())

    def test_command_that_lacks_a_variable(self):
        """The environment of a child that failed at once may be the reason."""
        code = "import sys, os; os.environ.get('KEY') or sys.exit('no KEY')"
        child = ["--", sys.executable, *SITE, "-c", code]
        hint = "--env NAME=VALUE adds one, --inherit-env gives it all"
        code = (
            "import json, sys\n"
            "found = {'supportedVersions': ['2026-07-28'], 'resultType': 'complete'}\n"
            "found['capabilities'] = {'tools': {}}\n"
            "asked = json.loads(input())\n"
            "reply = {'jsonrpc': '2.0', 'id': asked['id'], 'result': found}\n"
            "print(json.dumps(reply), flush=True)\n"
            "sys.exit(1)\n"
        )
        answers = ["--", sys.executable, *SITE, "-c", code]
        for words, wanted in (
            (child, True),
            (["--env", "OTHER=1", *child], False),
            (["--inherit-env", *child], False),
            (["--env", "KEY=1", *child], False),  # exits with 0: has a hint of its own
            (answers, False),
            (["--", "/no-such-command"], False),
        ):
            status, _, err = self.run_main("list", *words, target=[])
            with self.subTest(words, err=err):
                self.assertEqual((status, hint in err), (4, wanted))

    def test_list(self):
        text = self.output("list")
        self.assertRegex(
            text, r"set_vent\(percent: integer <= 100, \[how: string\]\) +Open the"
        )
        self.assertNotIn("More text", text)
        self.assertRegex(text, r"sensor://level +Litres in the tank\.")
        self.assertRegex(text, r"templates\n +bed://\{name\}")
        self.assertRegex(text, r"advice\(plant, \[day\]\) +Ask for advice\.")
        self.assertEqual(len(json.loads(self.output("list", "--json"))["resources"]), 2)

    def test_types(self):
        """What may be given for a parameter, as `list` shows it."""
        for field, shown in (
            (True, "any"),
            ({}, "any"),
            ({"enum": ["a", 1]}, "a|1"),
            ({"type": ["integer", "null"]}, "integer|null"),
            ({"type": "integer", "minimum": 0, "maximum": 100}, "integer 0..100"),
            ({"type": "number", "minimum": 0.5}, "number >= 0.5"),
            ({"exclusiveMinimum": 0, "maximum": 9}, "any > 0 <= 9"),
            ({"type": "number", "exclusiveMaximum": 1}, "number < 1"),
            ({"type": "integer", "minimum": "x", "maximum": True}, "integer"),
            (
                {"anyOf": [{"type": "number", "maximum": 5}, {"type": "null"}]},
                "number <= 5|null",
            ),
            ({"anyOf": [{"type": "null"}], "minimum": 1}, "null >= 1"),
            ({"anyOf": 1}, "any"),
        ):
            self.assertEqual(cli._type(field), shown)

    def test_call(self):
        cases = [
            (["percent=40"], '{"percent":40,"how":"now"}'),
            (["percent:=40", "how=5"], '{"percent":40,"how":"5"}'),
            (['{"percent": 1}'], '{"percent":1,"how":"now"}'),
        ]
        for words, wanted in cases:
            self.assertEqual(self.output("call", "set_vent", *words).strip(), wanted)
        result = json.loads(self.output("call", "--json", "set_vent", "percent=1"))
        self.assertEqual(result["structuredContent"], {"percent": 1, "how": "now"})
        text = self.output("call", "blocks")
        self.assertEqual(text, "[image/png, 3 bytes]\n[log: file:///log]\n")

    def test_call_refused(self):
        """Arguments are checked before anything is sent."""
        cases = [
            (["nope"], "no tool 'nope'; there are: set_vent"),
            (["set_vent"], "percent"),
            (["set_vent", "percent=200"], "expected an integer <= 100, got 200"),
            (["set_vent", "percent=x"], 'got the string "x"'),
            (["set_vent", "percent"], "not NAME=VALUE: 'percent'"),
            (["set_vent", "percent:={"], "'{': Parse error"),
            (["set_vent", "{1}"], "Parse error"),
            ([], "call takes TARGET NAME"),
        ]
        for words, wanted in cases:
            status, out, err = self.run_main("call", *words)
            self.assertEqual((status, out), (2, ""), words)
            self.assertRegex(err, wanted)

    def test_tool_error(self):
        status, out, err = self.run_main("call", "fail")
        self.assertEqual(status, 1)
        self.assertIn("says that it failed", err)
        self.assertIn("the pump is", out)

    def test_nobody_to_ask(self):
        """Without a terminal: where it would work, in both eras."""
        hint = "it asks a person, run it on a terminal"
        status, out, err = self.run_main("call", "ask")
        self.assertEqual((status, out), (3, ""))
        text = "This needs the client capability elicitation (-32021)"
        self.assertEqual(err, f"tinymcp: the server says: {text}: {hint}\n")
        status, _, err = self.run_main("call", "ask", "--mode", "legacy")
        self.assertEqual(status, 1)
        self.assertEqual(err.splitlines()[1:], [f"tinymcp: ask: {hint}"])
        data = {"requiredCapabilities": {"elicitation": {}}}
        for error, asks in (
            (MCPError(-32021, "No", data), True),
            (MCPError(-32021, "No", {"requiredCapabilities": {"sampling": {}}}), False),
            (InvalidReply("This client does not offer elicitation/create"), True),
        ):
            self.assertEqual(hint in cli._failure(error)[1], asks, error)

    def test_stdout_that_holds_less(self):
        """The tool has run: what ASCII cannot hold is escaped, JSON stays the same."""
        words = ("call", "set_vent", "percent=1", "how=20 \u00b0\U0001f331")
        result = {"percent": 1, "how": "20 \u00b0\U0001f331"}
        for coding in ("ascii", "latin-1"):
            status, out, err = self.run_main(*words, "--json", coding=coding)
            self.assertEqual((status, err), (0, ""))
            self.assertEqual(json.loads(out)["structuredContent"], result)
        self.assertIn(
            "\\u00b0\\ud83c\\udf31",
            self.output("call", "--json", *words[1:], coding="ascii"),
        )
        self.assertIn("20 \\xb0\\U0001f331", self.output(*words, coding="ascii"))

    def test_read(self):
        self.assertEqual(
            json.loads(self.output("read", "sensor://level")), {"litres": 0}
        )
        self.assertIn("PNG", self.output("read", "image://logo"))
        data = json.loads(self.output("read", "--json", "image://logo"))
        self.assertEqual(base64.b64decode(data["contents"][0]["blob"]), b"\x89PNG")
        status, _, err = self.run_main("read", "sensor://none")
        self.assertEqual(status, 3)
        self.assertIn("the server says: Resource not found (-32602)", err)

    def test_prompt(self):
        self.assertEqual(
            self.output("prompt", "advice", "plant=fern"), "user: fern today\n"
        )
        data = json.loads(self.output("prompt", "--json", "advice", "plant=a"))
        self.assertEqual(len(data["messages"]), 1)

    def test_ping(self):
        text = self.output("ping", "-n", "20")
        self.assertRegex(
            text, r"20 round trips: min [\d.]+, median [\d.]+, p99 [\d.]+,"
        )
        data = json.loads(self.output("ping", "--json", "-n", "1"))
        self.assertEqual((data["n"], data["min"]), (1, data["max"]))

    def test_verbose(self):
        status, out, err = self.run_main("call", "--verbose", "work")
        self.assertEqual((status, out), (0, "done\n"))
        self.assertIn("tinymcp: info: half way", err)
        target = ["--", *fake(first=["hello\n"])]
        with contextlib.redirect_stderr(io.StringIO()) as err:
            with contextlib.redirect_stdout(io.StringIO()):
                cli.main(["info", "--verbose", *target])
        self.assertIn("skipped a line", err.getvalue())

    def test_no_connection(self):
        """Exit status 4 and 2."""
        tokens = os.path.join(self.folder, "tokens")
        pathlib.Path(tokens).write_text("anna 123 read\n")  # as a server takes it
        two = f"--token-file {tokens}: a client takes a file with one token"
        cases = [
            (4, ["info", "http://127.0.0.1:9/"], "127.0.0.1:9"),
            (4, ["info", "--", "/no-such-command"], "no-such-command"),
            (
                4,
                ["info", "--timeout", "0.2", "--", *fake(initialize="silent")],
                "no answer",
            ),
            (2, ["info"], "no TARGET"),
            (2, ["list", "127.0.0.1:8000/mcp"], "begins with http:// or https://, a s"),
            (2, ["list", "examples/hello.py"], "a command comes after -- at the end"),
            (2, ["list", "/no/such"], "'/no/such' is no TARGET"),
            (4, ["list", "unix:/no/such"], "/no/such: [Errno 2]"),
            (2, ["info", "http://h", "--header", "x"], "NAME:VALUE"),
            (2, ["info", "http://h", "--token-file", "/no/such"], "/no/such"),
            (2, ["info", "http://h", "--token-file", tokens], two),
            (2, ["info", "http://h", "--token-file", os.devnull], "one token and noth"),
            (2, ["info", "http://h", "--mode", "1999"], "mode is"),
            (2, ["info", "https://h", "--fingerprint", "x"], "SHA256 takes the 64 hex"),
        ]
        for status, words, wanted in cases:
            got, _, err = self.run_main(*words, target=[])
            self.assertEqual(got, status, err)
            self.assertIn(wanted, err)

    def test_replies_that_are_none(self):
        """Shown as far as it makes sense, or one line; never a traceback."""

        def content(*blocks):
            return {"tools/call": {"content": blocks}}

        def tool(schema, **more):
            more["tools/call"] = {"content": [{"type": "text", "text": "fine"}]}
            return {**more, "tools/list": {"tools": [{"name": "t", **schema}]}}

        def typed(schema):
            return tool({"inputSchema": {"type": "object", "properties": schema}})

        def contents(**item):
            return {"resources/read": {"contents": [item]}}

        def prompt(content):
            message = {"role": 5, "content": content}
            return {"prompts/get": {"messages": [message, 5]}}

        listed = {
            "tools/list": {"tools": [{"name": "t"}]},
            "resources/list": {"resources": []},
            "resources/templates/list": {"resourceTemplates": []},
            "prompts/list": {"prompts": []},
        }
        unusable = "warning: t: its inputSchema is unusable: "
        loop = {"a": {"$ref": "#/properties/a"}}
        cases = [
            # words, answers, status, stdout, stderr
            ("call t", content({"type": "image", "data": 5}), 0, "[image, unreadable]"),
            ("call t", content({"type": "x", "resource": 5}), 0, "[x, 0 bytes]"),
            (
                "call t",
                content({"type": "resource", "resource": {"blob": [5]}}),
                0,
                "un",
            ),
            ("call t", content(5, None, {"type": "text", "text": 5}), 0, "5"),
            ("call t", content({"type": "text", "text": "\ud800"}), 0, "\\ud800\n"),
            ("call t a=1", tool({"inputSchema": 5}), 0, "fine"),
            ("call t a=1", typed(5), 0, "fine", unusable + "inputSchema: schema at #/"),
            ("call t a=1", typed({"a": {"type": "bogus"}}), 0, "fine", "bogus"),
            ("call t a=1", typed({"a": {"type": ["integer", 5]}}), 0, "fine", unusable),
            ("call t a=1", typed({"a": {"type": [[]]}}), 0, "fine", unusable),
            ("call t a=1", typed({"a": {"pattern": "^(a+)+$"}}), 0, "fine"),
            ("call t a=1", typed({"a": 5}), 0, "fine", unusable),
            ("call t a=1", typed(loop), 0, "fine"),
            ("call u", tool({"name": []}), 2, "", "no tool 'u'; there are: []"),
            ("list", typed(5), 0, "t()"),
            ("list", typed({"a": {"enum": 5}, "b": {"type": [5]}}), 0, "[b: 5])"),
            ("list", tool({"inputSchema": {"required": 5}}), 0, "t()"),
            ("list", {"prompts/list": {"prompts": [{"arguments": 5}]}}, 0, "None()"),
            ("list", {"prompts/list": {"prompts": [{"arguments": [5]}]}}, 0, "[None]"),
            ("read a:b", contents(blob=5), 4, "", "the blob is not Base64"),
            ("read a:b", contents(blob="abc"), 4, "", "the blob is not Base64"),
            ("read a:b", contents(text=5), 0, "5"),
            ("prompt p", prompt([5]), 0, "5: [no content block: 5]"),
            ("prompt p", prompt("x"), 0, '5: [no content block: "x"]'),
        ]
        server, path = self.serve()
        for words, answers, status, shown, *noted in cases:
            server.methods = {**listed, **answers}
            got, out, err = self.run_main(*words.split(), target=[path])
            with self.subTest(words, answers=answers, out=out, err=err):
                self.assertEqual((got, len(err.splitlines())), (status, len(noted)))
                self.assertIn(shown, out)
                self.assertIn(*(noted or [""]), err)

    def test_names_that_are_lines(self):
        """What a server names begins no line of its own, in a pipe neither."""
        evil = "a\n  safe()\tok\r\x85\u2028z"
        shown = "a\\x0a  safe()\\x09ok\\x0d\\x85\\x2028z"

        def listed(kind, **item):
            return {f"{kind}/list": {kind: [item]}}

        def info(**more):
            result = server.default("server/discover")
            result["_meta"]["io.modelcontextprotocol/serverInfo"].update(more)
            return {"server/discover": result}

        schema = {"properties": {"b": {"enum": [evil]}}}
        link = {"type": "resource_link", "name": "b", "uri": evil}
        image = {"type": "image", "mimeType": evil, "data": ""}
        message = {"role": evil, "content": {"type": "text", "text": "x"}}
        blocks = {"tools/call": {"content": [link, image]}}
        server, path = self.serve()
        cases = [  # words, answers, exit status, line, of how many
            ("list", listed("tools", name=evil), 0, f"  {shown}()", 4),
            ("list", listed("tools", inputSchema=schema), 0, f"([b: {shown}])", 4),
            ("list", listed("tools", name="t", title=evil), 0, "t()  a", 4),
            ("list", listed("tools", name="t", title="b\tc"), 0, "t()  b\\x09c", 4),
            ("list", listed("resources", uri=evil), 0, f"  {shown}", 4),
            ("list", listed("resources", uri="b:", name=evil), 0, f"  {shown}", 4),
            ("list", listed("prompts", arguments=[{"name": evil}]), 0, shown, 4),
            ("list", info(name=evil), 0, f"{shown} 1 (MCP 2026-07-28)", 1),
            ("info", info(description=evil), 0, shown, 5),
            ("info", info(websiteUrl=evil), 0, shown, 5),
            ("call t", {**listed("tools", name=evil)}, 2, f"there are: {shown}", 1),
            ("call t", {**listed("tools", name="t"), **blocks}, 0, f"[b: {shown}]", 2),
            ("call t", {**listed("tools", name="t"), **blocks}, 0, f"[{shown}, 0", 2),
            ("prompt p", {"prompts/get": {"messages": [message]}}, 0, f"{shown}: x", 1),
        ]
        for words, answers, wanted, line, count in cases:
            server.methods = answers
            status, out, err = self.run_main(*words.split(), target=[path])
            with self.subTest(words, answers=answers, out=out, err=err):
                self.assertEqual(status, wanted)
                self.assertEqual(len((out + err).splitlines()), count)
                self.assertIn(line, out + err)

        client = mock.Mock(read_resource=mock.AsyncMock())
        client.read_resource.return_value.text = "two\nlines"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            options = cli._options(["watch"])
            asyncio.run(cli._show_change(client, options, "updated", evil))
        self.assertEqual(out.getvalue()[8:], f" {shown} two\nlines\n")

    def test_forms_that_are_none(self):
        cases = (
            ({"requestedSchema": 5}, {}),
            ({"requestedSchema": {"properties": 5, "required": 5}}, {}),
            ({"requestedSchema": {"properties": {"a": 5}, "required": 5}}, {}),
            (
                {
                    "requestedSchema": {
                        "properties": {
                            "a": {"type": "array", "items": 5},
                            "b": {"type": "string", "oneOf": [{"const": "x"}]},
                            "c": {"type": "array", "items": {"anyOf": [5]}},
                        },
                    }
                },
                None,
            ),
        )
        for params, content in cases:
            with mock.patch("sys.stdin", io.StringIO("y\n\n\n\n")):
                with contextlib.redirect_stderr(io.StringIO()):
                    if content is None:
                        with self.assertRaisesRegex(ClientError, "unusable"):
                            cli._ask_form(params)
                        continue
                    answer = cli._ask_form(params)
            self.assertEqual(answer, {"action": "accept", "content": content})

    def test_wrong_words_are_one_line(self):
        for words, wanted in (
            (["info", "--nosuch"], "no option --nosuch; see tinymcp info --help"),
            (["info", "--timeout"], "expected one argument; see tinymcp info --help"),
            (["ping", "-n", "x"], "invalid int value: 'x'; see tinymcp ping --help"),
            (["info", "--timeout", "x"], "invalid float value: 'x'; see"),
        ):
            status, out, err = self.run_main(*words)
            self.assertEqual((status, out, len(err.splitlines())), (2, "", 1), err)
            self.assertIn(wanted, err)

    def test_authorization(self):
        """Exit status 5; a token from a file, headers."""
        code = (
            "import http.server, sys\n"
            "class Handler(http.server.BaseHTTPRequestHandler):\n"
            "    def do_POST(self):\n"
            "        sent = self.headers['authorization'], self.headers['x-y']\n"
            "        print(*sent, flush=True)\n"
            "        self.send_response(401)\n"
            "        self.send_header('content-length', '0')\n"
            "        self.end_headers()\n"
            "    do_GET = do_POST\n"
            "    def log_message(self, *words):\n"
            "        pass\n"
            "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
            "print(server.server_port, flush=True)\n"
            "server.serve_forever()\n"
        )
        command = [sys.executable, *SITE, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = f"http://127.0.0.1:{server.stdout.readline().strip()}/"
                token = pathlib.Path(self.folder, "token")
                token.write_text("secret\n")
                words = ["--token-file", str(token), "--header", "X-Y: z"]
                status, _, err = self.run_main("info", url, *words, target=[])
                self.assertEqual(status, 5)
                self.assertIn("HTTP 401 (the server does not take this token)", err)
                self.assertEqual(server.stdout.readline(), "Bearer secret z\n")
                status, _, err = self.run_main("info", url, target=[])
                self.assertEqual(status, 5)
                self.assertIn("give --token-file FILE or --oauth", err)
                server.stdout.readline()
                home = {"HOME": self.folder}
                with mock.patch.dict(os.environ, home):
                    status, _, err = self.run_main("info", url, "--oauth", target=[])
                self.assertEqual(status, 5, err)
            finally:
                server.terminate()

    def test_certificate(self):
        """What mends it is an option of this command line."""
        error = ConnectionLost("not trusted (trust it with ca_file= or fingerprint=)")
        ours = "not trusted (trust it with --ca FILE or --fingerprint SHA256)"
        self.assertEqual(cli._failure(error), (4, ours))

    def test_watch(self):
        """Prints the value now, and again when it changes; Ctrl-C ends it."""
        process = self.start("watch", "sensor://level")
        self.assertRegex(
            process.stdout.readline(), r'\d\d:\d\d:\d\d sensor://level {"litres":0}'
        )
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(20), 130)

    def test_watch_that_the_server_ends(self):
        app = os.path.join(self.folder, "ending.py")
        pathlib.Path(app).write_text(
            "import threading, os, signal\n"
            "from tinymcp import Server\n"
            "server = Server('ending')\n"
            "@server.resource('a:b')\n"
            "def read() -> str:\n"
            "    end = [os.getpid(), signal.SIGTERM]\n"
            "    threading.Timer(0.2, os.kill, end).start()\n"
            "    return 'x'\n"
        )
        command = ["--", sys.executable, *SITE, "-m", "tinymcp", "run", app]
        status, _, err = self.run_main("watch", "a:b", *command, target=[])
        self.assertEqual(status, 4)
        # Its exit may be noticed before what it has said last.
        self.assertRegex(
            err, "^tinymcp: the server (ended the subscription|exited with)"
        )

    def start(self, *words):
        first, *rest = words
        command = [sys.executable, *SITE, "-m", "tinymcp", first, *self.target, *rest]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, **pipes)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def test_watch_changes(self):
        import asyncio

        from .fakes import META, FakeStream

        def listen(params):
            meta = {META + "subscriptionId": server.seen[-1]["id"]}
            acknowledged = "notifications/subscriptions/acknowledged"
            server.notify(
                acknowledged, _meta=meta, notifications=params["notifications"]
            )
            server.notify("notifications/resources/updated", _meta=meta, uri="x://y")
            server.notify("notifications/tools/list_changed", _meta=meta)
            return {"_meta": meta}

        async def watch(*words, **methods):
            nonlocal server
            server = FakeStream(subscriptions__listen=listen, **methods)
            options = cli._options(["watch", "http://x", *words])
            _, rest = cli._client(options, [])
            await cli._run(Client(server), options, rest)

        server = None
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            read = {"contents": [{"uri": "x://y", "text": "7"}]}
            asyncio.run(watch("--json", "x://y", resources__read=read))
            asyncio.run(watch())
        first, second, third = out.getvalue().splitlines()
        self.assertEqual(json.loads(first)["kind"], "now")
        self.assertEqual(json.loads(second)["kind"], "updated")
        self.assertIn("list of tools changed", third)

    def test_broken_pipe(self):
        """As in `| head`: no traceback."""
        script = f"{sys.executable} -m tinymcp list --json {self.target[0]} | true"
        done = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True)
        self.assertEqual(done.stderr, b"")

    def test_shown_text_is_harmless(self):
        self.assertEqual(cli._clean("a\x1b[31m\n\té\x07"), "a\\x1b[31m\n\té\\x07")


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, command):
        self.text = ""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            os.execv(sys.executable, [sys.executable, *SITE, "-m", "tinymcp", *command])
        self.pid = pid

    def expect(self, pattern):
        """Wait until the screen shows something."""
        end = time.monotonic() + 20
        while not re.search(pattern, self.text):
            ready, _, _ = select.select(
                [self.fd], [], [], max(end - time.monotonic(), 0)
            )
            if not ready:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            try:
                data = os.read(self.fd, 4096)
            except OSError:  # the end, on Linux
                data = b""
            if not data:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            self.text += data.decode()
        self.text = self.text[re.search(pattern, self.text).end() :]

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        with contextlib.suppress(OSError):
            while True:
                data = os.read(self.fd, 4096)
                if not data:
                    break
                self.text += data.decode()
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class TerminalTest(AppCase):
    """Questions are asked, progress is shown."""

    def terminal(self, *words):
        return Terminal([words[0], *self.target, *words[1:]])

    def test_form(self):
        """ELI-01, ELI-02: every field, again until it is right; defaults."""
        screen = self.terminal("call", "ask")
        screen.expect("Plant what")
        screen.expect("ancel: ")
        screen.type("y\n")
        screen.expect(r"Plant \(which one\): string: ")
        screen.type("\n")  # required
        screen.expect("Plant.*: ")
        screen.type("fern\n")
        screen.expect("sure: y/n: ")
        screen.type("maybe\n")
        screen.expect("sure: y/n: ")
        screen.type("yes\n")
        screen.expect(r"beds: integer \[3\]: ")
        screen.type("\n")
        screen.expect("one of small, big: ")
        screen.type("huge\n")
        screen.expect("one of small, big: ")
        screen.type("big\n")
        screen.expect("some of a, b: ")
        screen.type("a, b\n")
        screen.expect("note: string: ")
        screen.type("\n")
        screen.expect("accept.*3.*fern.*True.*big.*a.*b")
        self.assertEqual(screen.end(), 0)

    def test_form_refused(self):
        cases = (("n\n", "decline"), ("\n", "cancel"), ("", "cancel"))
        for typed, wanted in cases:
            with mock.patch("sys.stdin", io.StringIO(typed)):
                with contextlib.redirect_stderr(io.StringIO()):
                    self.assertEqual(cli._ask_form({}), wanted)
        form = {"properties": {"open": {"type": "boolean"}}}
        cases = (("y\n", {"open": True}), ("n\n", {"open": False}), ("\n", "cancel"))
        for typed, wanted in cases:
            with mock.patch("sys.stdin", io.StringIO(typed)):
                with contextlib.redirect_stderr(io.StringIO()):
                    answer = cli._ask_form({"requestedSchema": form})
            self.assertEqual(answer, wanted)

    def test_url(self):
        """ELI-03, ELI-04: the whole URL and its host are shown first."""
        screen = self.terminal("call", "sign_in")
        screen.expect(r"https://shop\.example/in\?x=1")
        screen.expect(r"page of shop\.example\? ")
        screen.type("n\n")
        screen.expect("decline")
        self.assertEqual(screen.end(), 0)

    def test_progress(self):
        screen = self.terminal("call", "work")
        screen.expect("1.*/4.* first")
        screen.expect("done")
        self.assertEqual(screen.end(), 0)

    def test_control_characters(self):
        screen = self.terminal("call", "fail")
        screen.expect(r"the pump is \\x1b\[31mempty")
        self.assertEqual(screen.end(), 1)

    def test_json_is_harmless(self):
        """C1 controls and marks of direction are escaped, and the JSON is the same."""
        value = {
            "a\x9b1m": "\u202e\u2066\x85\x7f\U000e0041 \u00e9\u9f8d",
            "b": ["\x1b["],
        }
        with mock.patch("sys.stdout", io.StringIO()) as out:
            cli._print_json(value)
            out.isatty = lambda: True
            cli._print_json(value)
        plain, shown, _ = out.getvalue().split("\n")
        self.assertTrue(shown.isprintable(), ascii(shown))
        self.assertIn("\u00e9\u9f8d", shown)
        self.assertEqual(json.loads(shown), value)
        self.assertEqual(json.loads(plain), value)

    def test_interrupt(self):
        screen = self.terminal("call", "ask")
        screen.expect("ancel: ")
        screen.type("\x03")
        self.assertEqual(screen.end(), 130)


class CheckTest(unittest.TestCase):
    def test_parameters(self):
        server = Server("check")

        @server.tool
        def clear(a: int, ctx: Context, x: Any = 1, n: Optional[int] = None) -> str:
            """Says nothing."""

        @server.tool
        def odd(ctx, b=1, c: Annotated[int, {"maximum": 3}] = 5) -> str:
            """Says all."""

        @server.prompt
        def ask(context, day="today") -> str:
            """Says some."""

        @server.resource("x://{day}")
        def read(day) -> str:
            """Says one."""

        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(cli.check(server), 0)
        head = "warning: tool 'odd', parameter "
        self.assertEqual(
            re.findall("warning: .*", out.getvalue()),
            [
                f"{head}'ctx' is an argument of the model; for the Context write ctx: "
                "Context",
                f"{head}'b' takes any JSON: give it a type",
                f"{head}'c': its schema refuses its default: c: expected an integer <= "
                "3, got 5",
                "warning: prompt 'ask', parameter 'context' is an argument of the "
                "model; for the Context write context: Context",
            ],
        )

    def test_results_that_have_no_form(self):
        """Known before the first call: what `_plain` refuses, and nothing else."""

        class Plant:
            """Has no fields."""

        @dataclasses.dataclass
        class Bed:
            plants: int = 0

        class Soil(enum.Enum):
            SAND = 1

        class Weather(typing.TypedDict):
            rain: bool

        class Table:
            keys = __getitem__ = staticmethod(list)

        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self):
                """Of what comes in its place."""

        fine = (Bed, Soil, Weather, Table, Shape, Any, object, None, str, bytes, dict)
        fine += (datetime.date, decimal.Decimal, pathlib.Path, uuid.UUID, TextContent)
        fine += (typing.Literal["a"], list["Plant"], typing.Iterable[int])
        fine += (Optional[Bed], typing.Union[str, InputRequired])
        for hint in fine:
            self.assertEqual([*cli._formless(hint)], [], hint)
        for hint in (Plant, Optional[Plant], dict[str, Plant]):
            self.assertEqual([*cli._formless(hint)], ["Plant"], hint)
        for hint in (complex, range, datetime.timedelta, Plant, type(iter([]))):
            self.assertEqual([*cli._formless(hint)], [hint.__name__])

        server = Server("check")

        @server.tool
        def find() -> Plant:
            """Finds one."""

        @server.tool
        async def pairs() -> list[tuple[Plant, Plant]]:
            """Finds more."""

        @server.resource("x://one")
        def one() -> Plant:
            """Is one."""

        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(cli.check(server), 0)
        text = ": a Plant has no JSON form; calls that return one fail"
        self.assertEqual(
            re.findall("warning: (.*)", out.getvalue()),
            [
                f"{of}{text}"
                for of in ("tool 'find'", "tool 'pairs'", "resource 'x://one'")
            ],
        )

    def test_names_that_are_odd(self):
        """What the stream cannot hold is no reason to fail; a row is a line."""
        server = Server("check")
        server.add_tool(lambda: "", name="\u00e9t\u00e9", description="x")
        server.add_tool(lambda: "", name="a\ntool  b", description="x")
        out = io.TextIOWrapper(io.BytesIO(), "ascii")
        with contextlib.redirect_stdout(out):
            self.assertEqual(cli.check(server), 0)
        out.flush()
        self.assertIn(b"tool  \\xe9t\\xe9  ", out.buffer.getvalue())
        self.assertIn(b"tool  a\\x0atool  b  ", out.buffer.getvalue())
        self.assertIn(b"warning: tool '\\xe9t\\xe9'", out.buffer.getvalue())


class AskTest(unittest.TestCase):
    def test_question_is_a_line(self):
        """A field cannot ask in the name of another."""
        with contextlib.redirect_stderr(io.StringIO()) as err:
            with mock.patch("sys.stdin", io.StringIO("x\n")):
                cli._ask_field("a\nPassword:", {"type": "string"}, True)
        self.assertEqual(err.getvalue(), "  a\\x0aPassword:: string: ")

    def test_host_that_a_browser_opens(self):
        """ELI-04: no other than the one that is seen, or the page is refused."""
        user, unseen, none = "a user (before @)", "cannot be seen", "its host is none"
        for url, shown in (
            ("https://Bank.Example:8443/in?to=a@b", "bank.example:8443"),
            ("https://[::1]:8/", "[::1]:8"),
            ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
            ("https://\u0430.example:1", "xn--80a.example:1"),
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://2130706433/", "127.0.0.1"),
            ("https://bank.example@evil.example/", user),
            ("https://bank.example:443@evil.example/in", user),
            ("https://evil.example\\@bank.example/", unseen),
            ("https://evil.example\\.bank.example/", unseen),
            ("https://evil.exa\nmple/", unseen),
            ("https://x/\u202e", unseen),
            ("https://x/\n  https://bank.example/", unseen),
            ("https://stra\u00dfe.example/", none),  # a browser's own rule
            ("https://evil.example\uff0fbank/", none),
            ("https://b%61nk.example/", none),
            ("https://a..b/", none),
            ("https://1.2.3.4.5/", none),
            ("https://[::1]x/", none),
            ("https://x:y/", none),
        ):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                with mock.patch("sys.stdin", io.StringIO("n\n")):
                    self.assertFalse(cli._ask_url({"url": url, "message": "Go"}))
            lines = err.getvalue().splitlines()
            question = f"Open this page of {shown}? [y/N] "
            with self.subTest(ascii(url), err=err.getvalue()):
                self.assertEqual(len(lines), 4)  # an empty one, the message, the URL
                if shown in (user, unseen, none):
                    self.assertRegex(lines[3], f"{re.escape(shown)}.*: refused$")
                else:
                    self.assertEqual(lines[3], question)

    def test_pages_that_are_none(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.assertFalse(cli._ask_url({"url": "javascript:alert(1)"}))
            with mock.patch("sys.stdin", io.StringIO("")):
                self.assertFalse(cli._ask_url({"url": "https://x/"}))
            with mock.patch("sys.stdin", io.StringIO("y\n")):
                with mock.patch("webbrowser.open") as opened:
                    self.assertTrue(cli._ask_url({"url": "https://x/"}))
        opened.assert_called_once_with("https://x/")
        self.assertIn("refused", err.getvalue())


if __name__ == "__main__":
    unittest.main()
