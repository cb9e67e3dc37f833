"""tinymcp's client against real servers: `tests/interop/client_run.py [--only NAME]`.

Installs every server, pinned, below .cache/interop (once), and with each: finds the
right era, lists, calls, reads, gets a prompt, gets an error, and ends it cleanly.
Prints a table; exit 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from environments import CACHE, ROOT, check, install, node_packages, python_packages

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tinymcp.client import Client, MCPError  # noqa: E402  (the path is set first)

LEGACY, MODERN = "2025-11-25", "2026-07-28"
OFFICIAL = "@modelcontextprotocol/"

PYTHON_ENVS = {
    "mcp-2.3.0": ["mcp==2.3.0"],
    "mcp-1.30.0": ["mcp==1.30.0"],
    "servers-py": [
        "mcp-server-time==2026.10.10",
        "mcp-server-git==2026.10.10",
        "mcp-server-sqlite==2025.4.25",
        "mcp==1.30.0",  # sqlite does not work with 2
    ],
}
NODE_ENVS = {
    "servers-npm": [
        f"{OFFICIAL}server-everything@2026.8.31",
        f"{OFFICIAL}server-filesystem@2026.8.31",
        f"{OFFICIAL}server-memory@2026.8.31",
    ],
    "server-2.4.0": [
        f"{OFFICIAL}server@2.4.0",
        f"{OFFICIAL}node@2.1.2",
        "zod@4.1.13",
    ],
}


class Case(NamedTuple):
    """A server and what is expected of it; PORT in the command means HTTP."""

    name: str
    env: str
    command: list[str]
    era: str
    call: tuple[str, dict[str, Any], str]  # tool, arguments, part of the text
    read: str = ""  # part of the first resource, "" for no resources
    prompt: bool = False
    environment: dict[str, str] = {}
    progress: str = ""  # a tool that reports it
    asks: tuple[str, str] = ("", "")  # a tool that asks, part of its text


def cases(folder: pathlib.Path) -> list[Case]:
    """All servers; `folder` is theirs to play in."""
    repo = folder / "repo"
    (folder / "note.txt").write_text("a note")
    add = ("add", {"a": 1, "b": 2}, "3")
    found = []
    for version, era in (("2.3.0", MODERN), ("1.30.0", LEGACY)):
        asks = ("", "") if era == MODERN else ("ask", "accept sure=True")
        for where in ("stdio", "PORT"):
            found.append(
                Case(
                    f"Python SDK {version}",
                    f"mcp-{version}",
                    ["python", str(HERE / "server_py.py"), where],
                    era,
                    add,
                    "42",
                    True,
                    progress="work",
                    asks=asks,
                )
            )
    for eras in ("dual", "modern"):
        for where in ("stdio", "PORT"):
            found.append(
                Case(
                    f"TypeScript server 2.4.0, {eras}",
                    "server-2.4.0",
                    ["server_ts.mjs", where, eras],
                    MODERN,
                    add,
                    "42",
                    True,
                )
            )
    everything = {
        "era": LEGACY,
        "call": ("echo", {"message": "hällo"}, "Echo: hällo"),
        "read": " ",
        "progress": "trigger-long-running-operation",
    }
    path, memory = str(folder / "note.txt"), str(folder / "memory.json")
    entity = {"name": "vent", "entityType": "actuator", "observations": ["open"]}
    zone, sqlite = {"timezone": "UTC"}, str(folder / "x.db")
    create = {"query": "CREATE TABLE readings (value REAL)"}
    npm, py = "servers-npm", "servers-py"
    return [
        *found,
        Case("server-everything", npm, ["mcp-server-everything"], **everything),
        Case(
            "server-everything",
            npm,
            ["mcp-server-everything", "streamableHttp"],
            environment={"PORT": "PORT"},
            **everything,
        ),
        Case(
            "server-filesystem",
            npm,
            ["mcp-server-filesystem", str(folder)],
            LEGACY,
            ("read_text_file", {"path": path}, "a note"),
        ),
        Case(
            "server-memory",
            npm,
            ["mcp-server-memory"],
            LEGACY,
            ("create_entities", {"entities": [entity]}, "vent"),
            environment={"MEMORY_FILE_PATH": memory},
        ),
        Case(
            "mcp-server-time",
            py,
            ["mcp-server-time"],
            LEGACY,
            ("get_current_time", zone, "UTC"),
        ),
        Case(
            "mcp-server-git",
            py,
            ["mcp-server-git", "--repository", str(repo)],
            LEGACY,
            ("git_status", {"repo_path": str(repo)}, "branch"),
        ),
        Case(
            "mcp-server-sqlite",
            py,
            ["mcp-server-sqlite", "--db-path", sqlite],
            LEGACY,
            ("create_table", create, "created"),
            "No business insights",
        ),
    ]


def program(case: Case, port: int) -> list[str]:
    """The whole command line of a server."""
    first, *rest = [word.replace("PORT", str(port)) for word in case.command]
    home = CACHE / case.env
    if first.endswith(".mjs"):  # has to lie beside its node_modules
        shutil.copy(HERE / first, home / first)
        return ["node", str(home / first), *rest]
    folder = home / "bin" if case.env in PYTHON_ENVS else home / "node_modules" / ".bin"
    return [str(folder / first), *rest]


class Wrong(Exception):
    """The server or the client did not do what was expected."""


def expect(test: object, text: str) -> None:
    if not test:
        raise Wrong(text)


async def visit(client: Client, case: Case) -> None:
    """List, call, read, get, err."""
    expect(client.protocol_version == case.era, f"era {client.protocol_version}")
    tools = [tool["name"] for tool in await client.list_tools()]
    name, arguments, text = case.call
    expect(name in tools, f"tools {tools}")
    result = await client.call_tool(name, arguments)
    expect(text in result.text and not result.is_error, f"{name}: {result}")
    try:
        result = await client.call_tool("no-such-tool")
        # One of them says so in words alone.
        expect(result.is_error or "Error" in result.text, f"no-such-tool: {result}")
    except MCPError:
        pass
    resources = await client.list_resources()
    await client.list_resource_templates()
    if case.read:
        read = (await client.read_resource(resources[0]["uri"])).text
        expect(case.read in read, f"{resources[0]}: {read[:80]!r}")
    if case.prompt:
        prompt = await client.get_prompt("advice", {"plant": "a fern"})
        expect("What does a fern need?" in prompt.text, f"prompt {prompt}")
        expect(await client.list_prompts(), "no prompts")
    if case.progress:
        reports: list[Any] = []
        options = {"duration": 1, "steps": 2} if "trigger" in case.progress else {}
        await client.call_tool(
            case.progress, options, progress_callback=lambda *r: reports.append(r)
        )
        expect(len(reports) >= 2, f"progress {reports}")
    if case.asks[0]:
        result = await client.call_tool(case.asks[0])
        expect(case.asks[1] in result.text, f"{case.asks[0]}: {result.text}")
    expect(await client.ping() < 5, "slow")


async def over_stdio(case: Case) -> None:
    command = program(case, 0)
    options: Any = {"elicitation_callback": lambda params: {}}
    async with Client(command, env=case.environment, **options) as client:
        await visit(client, case)
        # A command is a child process, so it has one.
        process = client._transport.process  # type: ignore[union-attr]
        start = time.monotonic()
    expect(
        process and process.returncode == 0, f"exit {process and process.returncode}"
    )
    expect(time.monotonic() - start < 3.0, "did not end at the end of its input")


async def over_http(case: Case) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {k: v.replace("PORT", str(port)) for k, v in case.environment.items()}
    process = subprocess.Popen(
        program(case, port),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await listening(port)
        options: Any = {"elicitation_callback": lambda params: {}}
        async with Client(f"http://127.0.0.1:{port}/mcp", **options) as client:
            await visit(client, case)
        expect(process.poll() is None, "the server has ended")
    finally:
        process.terminate()
        process.wait(10)


async def listening(port: int) -> None:
    """Wait until a server takes connections."""
    end = time.monotonic() + 60
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            expect(time.monotonic() < end, "the server does not start")
            await asyncio.sleep(0.05)


def main() -> int:
    """Run all cases; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="part of a server's name")
    only = parser.parse_args().only
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check(["git", "init", "-q", str(folder / "repo")])
        chosen = [case for case in cases(folder) if only in case.name]
        for env in dict.fromkeys(case.env for case in chosen):
            if env in PYTHON_ENVS:
                install(env, PYTHON_ENVS[env], python_packages)
            else:
                install(env, NODE_ENVS[env], node_packages)
        for case in chosen:
            http = "PORT" in case.command or "PORT" in case.environment.values()
            start, verdict = time.monotonic(), "ok"
            try:
                visitor = over_http(case) if http else over_stdio(case)
                asyncio.run(asyncio.wait_for(visitor, 120))
            except Exception as error:  # a row of the table, whatever it is
                failed += 1
                verdict = f"{type(error).__name__}: {error}"
            took = time.monotonic() - start
            row = (case.name, "HTTP" if http else "stdio", case.era)
            print(
                "{:34} {:6} {:11} {:5.1f} s  {}".format(*row, took, verdict), flush=True
            )
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
