"""The README says what is true: tables, code blocks, the curl line, the commands.

python3 tests/test_readme.py --write    writes the limits table anew
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import http.client
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import typing
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == "__main__":
    sys.path.insert(0, ROOT)

import tinymcp  # noqa: E402  (the path is set first)
from tinymcp.client import Client, SyncClient  # noqa: E402  (the path is set first)

rt = sys.modules[tinymcp.Server.__module__]
README = os.path.join(ROOT, "README.md")
LIMIT = 30.0  # seconds until a subprocess is given up
MARKS = ("<!-- limits: written by tests/test_readme.py -->\n", "<!-- end of limits -->")


def readme() -> str:
    with open(README, encoding="utf-8") as file:
        return file.read()


def blocks(language: str) -> list:
    """The code blocks of one language, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", readme(), re.DOTALL | re.MULTILINE
    )


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return " in ".join(shown(part) for part in value) + " s"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def limits_table() -> str:
    """One row for each limit of class Limits: name, default, its comment."""
    rows = ["| limit | default | what it bounds |", "|---|--:|---|"]
    source = inspect.getsource(rt.Limits)
    for name, text in re.findall(r"^    (\w+) = .+?  # (.+)$", source, re.MULTILINE):
        rows.append(f"| `{name}` | {shown(getattr(rt.Limits, name))} | {text} |")
    return "\n".join(rows) + "\n"


def modern(number, method, **params):
    params["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


def python(*command, cwd=ROOT, text=b""):
    (done,) = pythons(command, cwd=cwd, text=text)
    return done


def pythons(*commands, cwd=ROOT, text=b""):
    """(exit code, stdout, stderr) of each; they run side by side."""
    found, pipes = [], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with contextlib.ExitStack() as stack:
        running = []
        for command in commands:
            process = subprocess.Popen([sys.executable, *command], cwd=cwd, **pipes)
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in running:
            out, err = process.communicate(text, LIMIT)
            found.append((process.returncode, out, err.decode()))
    return found


class TablesTest(unittest.TestCase):
    def test_limits_table_is_class_limits(self) -> None:
        text = readme()
        table = text.partition(MARKS[0])[2].partition(MARKS[1])[0]
        renew = "run: python3 tests/test_readme.py --write"
        self.assertEqual(table.strip(), limits_table().strip(), renew)
        public = [name for name in vars(rt.Limits) if not name.startswith("_")]
        self.assertEqual(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE), public)

    def test_every_public_name_is_in_the_api_table(self) -> None:
        section = readme().partition("\n## API\n")[2].partition("\n## ")[0]
        table = "\n".join(re.findall(r"^\|.*\|$", section, re.MULTILINE))
        named = set(re.findall(r"\w+", table))
        self.assertEqual([n for n in tinymcp.__all__ if n not in named], [])

    def test_api_table_names_what_exists(self) -> None:
        """Methods of Server and members of Context in the table, and the reverse."""
        section = readme().partition("\n## API\n")[2].partition("\n## ")[0]
        for owner, prefix in ((tinymcp.Server, "server"), (tinymcp.Context, "ctx")):
            named = set(re.findall(rf"`{prefix}\.(\w+)", section))
            missing = [name for name in named if not hasattr(owner, name)]
            self.assertEqual(missing, [], prefix)

    def test_rows_of_the_decorators_name_their_options(self) -> None:
        for kind in ("tool", "resource", "prompt"):
            (row,) = re.findall(rf"^\| `@server\.{kind}\((.+?)\)`", readme(), re.M)
            add = inspect.signature(getattr(tinymcp.Server, f"add_{kind}"))
            own = {p.name for p in add.parameters.values() if p.kind != p.VAR_KEYWORD}
            first, star, *rest = row.split(", ")
            self.assertEqual((star, first in ("name", "uri")), ("*", True), kind)
            named = [first, *rest]
            self.assertEqual(set(named), rt._HOW | own - {"self", "function"}, kind)
            self.assertEqual(len(named), len(set(named)), kind)

    def test_rows_show_what_goes_by_keyword_alone(self) -> None:
        for name in ("run", "call", "serve_http"):
            method = inspect.signature(getattr(tinymcp.Server, name))
            kinds = [p.kind for p in method.parameters.values()]
            before = kinds.index(inspect.Parameter.KEYWORD_ONLY) - 1
            rows = re.findall(rf"`(?:await )?server\.{name}\((.+?)\)`", readme())
            starred = [row.split(", ").index("*") for row in rows if "*" in row]
            self.assertEqual({*starred}, {before}, name)

    def test_revisions(self) -> None:
        for revision in rt._LEGACY + rt._MODERN:
            self.assertIn(revision, readme())

    def test_exit_codes_of_the_command_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bad.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write("import nothing_of_that_name\n")
            cases = [
                (("run", "no-such-app.py"), 2),
                (("run", path), 2),
                (("run", "examples/hello.py:nobody"), 2),
                (("run", "examples/hello.py", "--http", "0.0.0.0:0"), 2),
                (("run", "examples/hello.py"), 0),
                (("check", "examples/hello.py"), 0),
                (("--help",), 0),
            ]
            words = [("-m", "tinymcp", *arguments) for arguments, _ in cases]
            for (arguments, wanted), done in zip(cases, pythons(*words)):
                with self.subTest(arguments=arguments):
                    code, _, stderr = done
                    self.assertEqual(code, wanted, stderr)
                    self.assertNotIn("Traceback", stderr)


class CodeTest(unittest.TestCase):
    def test_python_blocks_compile(self) -> None:
        found = blocks("python")
        self.assertGreater(len(found), 2)
        for number, text in enumerate(found):
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compile(text, f"README block {number}", "exec", flags)

    def test_json_blocks_are_json(self) -> None:
        for text in blocks("json"):
            json.loads(text)

    def test_the_12_line_server_answers(self) -> None:
        text = blocks("python")[0]
        self.assertEqual(len(text.splitlines()), 12)
        asked = modern(1, "tools/call", name="set_target", arguments={"celsius": 21})
        asked += modern(2, "tools/call", name="set_target", arguments={"celsius": 31})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "app.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            with open(os.path.join(folder, "tinymcp.py"), "wb") as copy:
                with open(rt.__file__, "rb") as file:
                    copy.write(file.read())
            commands = ["app.py"], ["tinymcp.py", "run", "app.py"]
            for code, stdout, stderr in pythons(*commands, cwd=folder, text=asked):
                self.assertEqual(code, 0, stderr)
                replies = {r["id"]: r for r in map(json.loads, stdout.splitlines())}
                good, bad = replies[1]["result"], replies[2]["result"]
                self.assertEqual(good["structuredContent"], {"target": 21})
                self.assertTrue(bad["isError"])
                # What the README shows of the refusal is what the server says.
                self.assertIn(bad["content"][0]["text"], readme())

    def test_the_resources_of_that_server(self) -> None:
        first, last = blocks("python")[0].split("\nif __name__")
        text = next(block for block in blocks("python") if "notify_updated" in block)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "app.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{first}\n{text}\nif __name__{last}")
            command = [sys.executable, path]
            level = asyncio.run(asyncio.wait_for(self.pour(command), LIMIT))
        self.assertEqual(json.loads(level), {"litres": 42})

    async def pour(self, command: list) -> str:
        async with Client(command, env={"PYTHONPATH": ROOT}) as client:
            day = await client.read_resource("log://monday")
            self.assertEqual(day.text, "monday: nothing")
            report = await client.get_prompt("report", {"day": "monday"})
            self.assertIn("log://monday", report.text)
            async with client.subscribe("tank://level") as changes:
                await client.call_tool("pour", {"litres": 2})
                change = await changes.__anext__()
                return (await client.read_resource(change.uri)).text

    def test_the_thread_at_a_sensor(self) -> None:
        """It begins with the server, and whoever subscribed hears of it."""
        text = next(block for block in blocks("python") if "threading.Thread" in block)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "app.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            command = [sys.executable, "-m", "tinymcp", "run", path]
            asyncio.run(asyncio.wait_for(self.watch(command), LIMIT))

    async def watch(self, command: list) -> None:
        async with Client(command, env={"PYTHONPATH": ROOT}) as client:
            async with client.subscribe("sensor://load") as changes:
                change = await changes.__anext__()
                text = (await client.read_resource(change.uri)).text
        self.assertIsInstance(json.loads(text)["load"], float)

    def test_compiled_whatever_the_time(self) -> None:
        """The command for images: Python takes what was compiled, no time matters."""
        (line,) = re.findall(r"`python3 (-m compileall .+?)`", readme())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "one.py")
            for text in ("print(1)", "print(22)"):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                if text == "print(1)":
                    words = shlex.split(line.replace("/opt/app", folder))
                    self.assertEqual(python(*words)[0], 0)
            code, stdout, _ = python("-c", "import one", cwd=folder)
            self.assertEqual((code, stdout.strip()), (0, b"1"))

    def test_the_server_that_asks(self) -> None:
        """The block about questions asks once and keeps its side effect."""
        space: dict = {"log": []}
        text = next(block for block in blocks("python") if "ctx.once" in block)
        exec(compile(text, "README", "exec"), space)
        server = space["server"]
        for answers, wanted in (
            ({"1": False}, "not fed"),
            ({"1": True, "2": False}, "portion 1, bell silent"),
            ({"1": True, "2": True}, "portion 2, bell rung"),
        ):
            result = server.call("feed_fish", answers=answers)
            self.assertEqual(result["content"][0]["text"], wanted)


class CommandTest(unittest.TestCase):
    """The first two minutes: the board over HTTP and the curl line against it."""

    @unittest.skipUnless(os.name == "posix", "sh and awk")
    def test_the_files_of_tokens(self) -> None:
        """One is for the server; the client's holds one of its tokens."""
        from tinymcp import cli

        found = [
            line for b in blocks("sh") for line in b.splitlines() if "umask" in line
        ]
        with tempfile.TemporaryDirectory() as folder:
            for line in found:
                subprocess.run(line, shell=True, cwd=folder, check=True)
            files = [os.path.join(folder, name) for name in ("tokens", "token")]
            auth = rt._Auth({**rt._HTTP, "token_file": files[0]}, "/mcp")
            self.assertEqual(len(auth.tokens), 1)
            self.assertRegex(cli._token(files[1]), "^[0-9a-f]{32}$")
            with open(files[0], encoding="utf-8") as file:
                self.assertIn(f"anna {cli._token(files[1])} ", file.read())
            self.assertEqual([os.stat(path).st_mode & 0o77 for path in files], [0, 0])

    @unittest.skipUnless(os.name == "posix", "SIGTERM")
    def test_the_service_and_its_client(self) -> None:
        """What systemd starts serves whoever connects with the JSON for clients."""
        import configparser

        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str
        (text,) = blocks("ini")
        unit.read_string(text)
        words = unit["Service"]["ExecStart"].split()
        client = next(json.loads(b) for b in blocks("json") if '"headers"' in b)
        entry = client["mcpServers"]["board"]
        scheme, token = entry["headers"]["Authorization"].split()
        self.assertEqual((words[0], scheme), ("/usr/bin/python3", "Bearer"))
        words[words.index("0.0.0.0:8000")] = "127.0.0.1:0"
        with tempfile.TemporaryDirectory() as folder:
            tokens = os.path.join(folder, "tokens")
            words[words.index("/etc/board-mcp/tokens")] = tokens
            for name, held in ("tokens", f"anna {token}"), ("app.py", "import tinymcp"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(f"{held}\n")
                    if name == "app.py":
                        file.write("server = tinymcp.Server('a')\n")
            os.chmod(tokens, 0o600)
            with subprocess.Popen(
                [sys.executable, *words[1:]],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": ROOT},
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as server:
                watchdog = threading.Timer(LIMIT, server.kill)
                watchdog.start()
                try:
                    port = self.port(server.stderr)
                    url = re.sub(r"//[\d.:]+/", f"//127.0.0.1:{port}/", entry["url"])
                    with SyncClient(url, headers=entry["headers"]) as client:
                        self.assertEqual(client.server_info["name"], "a")
                finally:
                    server.terminate()
                    server.stderr.read()
                    code = server.wait()
                    watchdog.cancel()
        self.assertEqual(code, 0)

    def curl(self) -> tuple:
        """Path, headers and body of the curl command in the README."""
        line = next(block for block in blocks("sh") if "curl" in block)
        words = shlex.split(line)
        headers, body, url = {}, "", ""
        for flag, value in zip(words, words[1:]):
            if flag == "-H":
                name, _, text = value.partition(": ")
                headers[name] = text
            elif flag == "-d":
                body = value
            elif value.startswith("http"):
                url = value
        self.assertTrue(url.startswith("http://127.0.0.1:8000/"), url)
        return url.partition(":8000")[2], headers, body

    def test_the_curl_line(self) -> None:
        path, headers, body = self.curl()
        command = next(b for b in blocks("sh") if "board.py --http" in b).splitlines()[
            0
        ]
        words = shlex.split(command.partition("#")[0])
        self.assertEqual(words[0], "python3")
        words[words.index("8000")] = "127.0.0.1:0"
        server = subprocess.Popen(
            [sys.executable, *words[1:]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(LIMIT, server.kill)
        watchdog.start()
        try:
            port = self.port(server.stderr)
            reply = self.post(port, path, headers, body)
            short = self.short_form(port)
        finally:
            server.terminate()
            rest = server.stderr.read()
            code = server.wait()
            server.stderr.close()
            watchdog.cancel()
        self.assertEqual(code, 0, rest)
        self.assertNotIn("Traceback", rest)
        printed = json.loads(blocks("json")[0])
        self.assertEqual(self.shape(reply), self.shape(printed))
        self.assertEqual(short.keys(), reply["result"]["structuredContent"].keys())

    def short_form(self, port: int) -> dict:
        """The answer of `python3 -m tinymcp call`, as the README shows it."""
        line = next(b for b in blocks("sh") if "tinymcp call" in b)
        words = shlex.split(line.replace(":8000", f":{port}"))
        code, stdout, stderr = python(*words[1:])
        self.assertEqual(code, 0, stderr)
        return json.loads(stdout)

    def port(self, stderr: io.TextIOBase) -> int:
        lines = []
        for line in stderr:
            lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                return int(found.group(1))
        raise AssertionError("no address on stderr: " + "".join(lines))

    def post(self, port, path, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            text = response.read()
            self.assertEqual(response.status, 200, text)
            return json.loads(text)
        finally:
            connection.close()

    def shape(self, value):
        """The answer with its types in place of its values."""
        if isinstance(value, dict):
            return {key: self.shape(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.shape(item) for item in value]
        return type(value).__name__


SDK_SERVER = '''
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Optional, TypedDict

from mcp.server.fastmcp import Context, FastMCP, Image
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.fastmcp.prompts.base import AssistantMessage, Message, UserMessage
from mcp.types import (
    Completion,
    PromptReference,
    TextContent,
    ToolAnnotations,
)


@dataclass
class Shop:
    stock: dict


@asynccontextmanager
async def lifespan(server: FastMCP) -> AsyncIterator[Shop]:
    yield Shop(stock={"Dune": 3})


mcp = FastMCP("Bookshop", instructions="Sells books.", lifespan=lifespan)


class Book(TypedDict):
    title: str
    copies: int


@mcp.tool(title="Find", annotations=ToolAnnotations(readOnlyHint=True))
def find(title: str, ctx: Context) -> Book:
    """Finds a book."""
    stock = ctx.request_context.lifespan_context.stock
    if title not in stock:
        raise ToolError(f"No book {title!r}")
    return {"title": title, "copies": stock[title]}


@mcp.tool()
async def import_books(titles: list[str], ctx: Context) -> str:
    """Imports books."""
    for done, title in enumerate(titles, start=1):
        await ctx.report_progress(done, total=len(titles), message=title)
    await ctx.info("imported")
    return f"Imported {len(titles)} books"


@mcp.tool()
def count(numbers: list[int]) -> int:
    """Adds numbers."""
    return sum(numbers)


@mcp.tool()
def cover():
    """Shows a cover."""
    return [TextContent(type="text", text="Dune"), Image(data=b"png", format="png")]


@mcp.resource("shop://books/{title}", mime_type="text/plain")
def book(title: str) -> str:
    """One book."""
    return f"About {title}"


@mcp.prompt(title="Recommend")
def recommend(genre: str) -> list[Message]:
    """Asks for a book."""
    return [UserMessage(f"A book of {genre}?"), AssistantMessage("Which mood?")]


@mcp.completion()
async def complete(ref, argument, context) -> Optional[Completion]:
    if isinstance(ref, PromptReference) and argument.name == "genre":
        return Completion(values=["crime", "poetry"], total=2, hasMore=False)
    return None


if __name__ == "__main__":
    mcp.run(transport="stdio")
'''
# The same server in the words of version 2 of the SDK.
SDK_2_SERVER = (
    SDK_SERVER.replace("mcp.server.fastmcp", "mcp.server.mcpserver")
    .replace("FastMCP", "MCPServer")
    .replace("readOnlyHint", "read_only_hint")
    .replace("hasMore", "has_more")
)
SDK_ASKS = [
    ("tools/call", {"name": "find", "arguments": {"title": "Dune"}}),
    ("tools/call", {"name": "find", "arguments": {"title": "Emma"}}),
    ("tools/call", {"name": "import_books", "arguments": {"titles": ["a", "b"]}}),
    ("tools/call", {"name": "count", "arguments": {"numbers": [1, 2, 3]}}),
    ("tools/call", {"name": "cover", "arguments": {}}),
    ("resources/read", {"uri": "shop://books/Dune"}),
    ("prompts/get", {"name": "recommend", "arguments": {"genre": "crime"}}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "recommend"},
            "argument": {"name": "genre", "value": ""},
        },
    ),
    ("tools/list", {}),
]


class FieldInfo:
    """What pydantic's Field() gives, as a default."""

    def __init__(self, **said: object) -> None:
        self.__dict__.update(said, metadata=[], default=...)


class ChangesTest(unittest.TestCase):
    """The table of what does not move by its import lines."""

    def setUp(self) -> None:
        section = readme().partition("\n## Moving from ")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (`.+) \| (.+) \|$", section, re.MULTILINE)
        self.rows = [tuple(re.findall(r"`(.+?)`", cell) for cell in r) for r in rows]

    def schema(self, parameter: str) -> dict:
        """The input schema of a tool with this parameter."""
        space = {**vars(tinymcp), "Field": FieldInfo, "Annotated": typing.Annotated}
        space.update(App=object, ServerSession=object)
        exec(f"def f({parameter}): 'd'", space)
        server = tinymcp.Server("x")
        server.add_tool(space["f"])
        return server._registry.tool.items["f"].fields["inputSchema"]["properties"]

    def test_parameters(self) -> None:
        rows = [row for row in self.rows if re.match(r"\w+: ", row[0][0])]
        self.assertEqual(len(rows), 3)
        for (theirs, *_), ours in rows[:2]:
            with self.assertRaisesRegex(tinymcp.DefinitionError, "write Annotated"):
                self.schema(theirs)
            for parameter in (p for p in ours if p.startswith("n: ")):
                self.assertEqual(self.schema(parameter)["n"]["type"], "integer")
        for parameter in (rows[2][0][0], rows[2][1][0]):
            self.assertEqual(self.schema(parameter), {})
        self.assertFalse(hasattr(tinymcp, "ServerSession"))

    def test_imports(self) -> None:
        (ours,) = [row[1] for row in self.rows if "import base" in row[0][0]]
        exec(ours[0], {})
        self.assertFalse(hasattr(tinymcp, "base"))

    def test_names(self) -> None:
        """What the left column has is not there, what the right one has is."""
        options = [word for row in self.rows for cell in row[:1] for word in cell]
        given = re.findall(r"(\w+)=", " ".join(w for w in options if "FastMCP(" in w))
        self.assertIn("debug", given)
        for name in [*given, "warn_on_duplicate_tools"]:
            with self.assertRaisesRegex(TypeError, f"has no option {name}"):
                tinymcp.Server("x", **{name: None})
        for name in ("host", "port", "stateless_http", "json_response"):
            self.assertIn(name, rt._HTTP)
        for name in ("get_context", "call_tool", "sse_app", "custom_route"):
            self.assertFalse(hasattr(tinymcp.Server, name), name)
        self.assertFalse(hasattr(tinymcp.Context, "fastmcp"))
        log = inspect.signature(tinymcp.Context.log).parameters
        self.assertNotIn("message", log)
        with self.assertRaises(TypeError):
            tinymcp.ToolAnnotations(readOnlyHint=True)
        tinymcp.ToolAnnotations(read_only_hint=True)

    def test_dictionaries_keep_the_names_of_the_protocol(self) -> None:
        row = next(r for r in readme().splitlines() if "`ToolAnnotations`" in r)
        hint = json.loads(re.findall(r"`({.+?})`", row)[0].replace("True", "true"))
        server = tinymcp.Server("x")
        server.add_tool(lambda: None, name="f", annotations=hint, description="d")
        fields = server._registry.tool.items["f"].fields
        self.assertEqual(fields["annotations"], {"readOnlyHint": True})


class FromTheSDKTest(unittest.TestCase):
    """A server written for the official Python SDK moves by its import lines."""

    def moved(self, text: str) -> str:
        """The README's rule: every name comes from tinymcp, the class is Server, and
        keywords of SDK 1 that are camelCase are written as in SDK 2."""
        text = text.replace("readOnlyHint", "read_only_hint")
        text = text.replace("hasMore", "has_more")
        text = re.sub(
            r"^from mcp[.\w]* import", "from tinymcp import", text, flags=re.M
        )
        return re.sub(
            r"^(from tinymcp import .*)\b(FastMCP|MCPServer)\b",
            r"\1Server as \2",
            text,
            flags=re.M,
        )

    def test_a_server_moves_by_its_import_lines(self) -> None:
        texts = [self.moved(text) for text in (SDK_SERVER, SDK_2_SERVER)]
        with tempfile.TemporaryDirectory() as folder:
            commands = []
            for number, text in enumerate(texts):
                path = os.path.join(folder, f"shop{number}.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                commands.append(("-m", "tinymcp", "run", path))
            for text, done in zip(texts, pythons(*commands, text=self.asked())):
                with self.subTest(text[180:220]):
                    self.check(self.answers(*done))

    def asked(self) -> bytes:
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "0"},
        }
        messages = [
            {"id": 0, "method": "initialize", "params": params},
            {"method": "notifications/initialized"},
        ]
        for number, (method, params) in enumerate(SDK_ASKS, start=1):
            messages.append({"id": number, "method": method, "params": params})
        lines = [json.dumps({"jsonrpc": "2.0", **message}) for message in messages]
        return "\n".join(lines).encode() + b"\n"

    def answers(self, code: int, stdout: bytes, stderr: str) -> list:
        self.assertEqual(code, 0, stderr)
        replies = {}
        for line in stdout.splitlines():
            reply = json.loads(line)
            if "id" in reply:
                self.assertNotIn("error", reply)
                replies[reply["id"]] = reply["result"]
        self.assertEqual(replies[0]["instructions"], "Sells books.")
        return [replies[number] for number in range(1, len(SDK_ASKS) + 1)]

    def check(self, answers: list) -> None:
        found, missing, imported, summed, cover, read, prompt, values, listed = answers
        self.assertEqual(found["structuredContent"], {"title": "Dune", "copies": 3})
        self.assertTrue(missing["isError"])
        self.assertIn("Emma", missing["content"][0]["text"])
        self.assertEqual(imported["content"][0]["text"], "Imported 2 books")
        self.assertEqual(summed["structuredContent"], {"result": 6})
        self.assertEqual([b["type"] for b in cover["content"]], ["text", "image"])
        self.assertEqual(read["contents"][0]["text"], "About Dune")
        roles = [message["role"] for message in prompt["messages"]]
        self.assertEqual(roles, ["user", "assistant"])
        self.assertEqual(values["completion"]["values"], ["crime", "poetry"])
        tools = {tool["name"]: tool for tool in listed["tools"]}
        self.assertIs(tools["find"]["annotations"]["readOnlyHint"], True)
        self.assertEqual(tools["find"]["title"], "Find")
        self.assertEqual(list(tools), ["find", "import_books", "count", "cover"])


if __name__ == "__main__":
    if "--write" in sys.argv:
        before, _, rest = readme().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        with open(README, "w", encoding="utf-8") as file:
            file.write(before + MARKS[0] + limits_table() + MARKS[1] + after)
    else:
        unittest.main()
