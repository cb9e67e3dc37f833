"""Real clients against the examples: `tests/interop/run.py [--short] [--only NAME]`.

Installs every client, pinned, below .cache/interop (once), connects each over stdio and
HTTP with a recording man in the middle (tap.py), compares what it got with scenario.py,
and has validate.py judge every message that the server sent. Prints a table; exit 1 if
anything is wrong. Recordings stay in .cache/interop/runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import scenario
from environments import (
    CACHE,
    ROOT,
    check,
    install,
    node_packages,
    python_packages,
)
from tap import Relay

HERE = Path(__file__).resolve().parent
RUNS = CACHE / "runs"

# What is installed where. Everything else that a client draws in is its own affair.
OLD = "pydantic==2.11.9"  # the last one that mcp of that age works with
NODE22 = "node-{}-{}@22.23.3".format(
    sys.platform, {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "x64")
)
SCHEMAS = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
PYTHON_ENVS = {
    "validator": ["jsonschema==4.26.0"],
    "mcp-2.3.0": ["mcp==2.3.0"],
    "mcp-1.30.0": ["mcp==1.30.0"],
    "mcp-1.12.4": ["mcp==1.12.4", OLD],
    "mcp-1.9.4": ["mcp==1.9.4", OLD],
    "mcp-1.2.1": ["mcp==1.2.1", OLD],
    "fastmcp-4.2.3": ["fastmcp==4.2.3"],
}
NODE_ENVS = {
    "client-2.4.0": ["@modelcontextprotocol/client@2.4.0"],
    "sdk-1.32.2": ["@modelcontextprotocol/sdk@1.32.2"],
    # It needs Node 22.19, which comes as a package of its own.
    "inspector-2.12.0": ["@modelcontextprotocol/inspector@2.12.0", NODE22],
    "mcp-remote-0.15.1": ["mcp-remote@0.15.1"],
    "supergateway-4.0.0": ["supergateway@4.0.0"],
}


class Client(NamedTuple):
    """A row of the table: an SDK in one mode, perhaps with a bridge in front."""

    name: str
    env: str
    kind: str  # the driver's class
    mode: str
    revision: str  # what must be negotiated
    transports: tuple[str, ...] = ("stdio", "http")
    lacks: frozenset[str] = frozenset()  # needs of steps that the SDK cannot serve
    only: frozenset[str] = frozenset()  # these steps alone
    apps: tuple[str, ...] = ("greenhouse", "extra")
    short: bool = False


CANNOT_CANCEL = frozenset({"cancel"})
OF_2025_03 = CANNOT_CANCEL | {"elicit"}
OF_2024 = OF_2025_03 | {"progress", "sample", "roots", "templates"}
# No subscriptions in fastmcp's client; its modern mode has no other way to changes, and
# nothing names a log level.
FAST_LEGACY = frozenset({"subscribe"})
FAST_MODERN = FAST_LEGACY | {"changes", "log"}
# Towards HTTP supergateway passes requests and their answers, and nothing between.
FROM_HTTP = frozenset(
    {"progress", "cancel", "elicit", "sample", "roots", "log", "subscribe", "changes"}
)
FEW = frozenset({"tools", "plan", "alarm", "light", "diagnose"})
LIST = frozenset({"tools"})
ALL = ("greenhouse", "extra", "board")
HOUSE = ("greenhouse",)

PY, TS = ("mcp-2.3.0", "mcp2"), ("client-2.4.0", "v2")
FAST, CLI = ("fastmcp-4.2.3", "fastmcp"), ("inspector-2.12.0", "inspector")
LEGACY, AUTO = ("legacy", "2025-11-25"), ("auto", "2026-07-28")
PINNED, MODERN = ("2026-07-28", "2026-07-28"), ("modern", "2026-07-28")

CLIENTS = [
    Client("py auto", *PY, *AUTO, apps=ALL, short=True),
    Client("py legacy", *PY, *LEGACY, short=True),
    Client("py pinned", *PY, *PINNED, apps=HOUSE, short=True),
    Client("py 1.30.0", "mcp-1.30.0", "mcp1", "", "2025-11-25", lacks=CANNOT_CANCEL),
    Client("py 1.12.4", "mcp-1.12.4", "mcp1", "", "2025-06-18", lacks=CANNOT_CANCEL),
    Client("py 1.9.4", "mcp-1.9.4", "mcp1", "", "2025-03-26", lacks=OF_2025_03),
    # 1.2.1 knows no streamable HTTP.
    Client("py 1.2.1", "mcp-1.2.1", "mcp1", "", "2024-11-05", ("stdio",), OF_2024),
    Client("fastmcp auto", *FAST, *AUTO, lacks=FAST_MODERN),
    Client("fastmcp legacy", *FAST, *LEGACY, lacks=FAST_LEGACY),
    Client("ts auto", *TS, *AUTO, apps=ALL, short=True),
    Client("ts legacy", *TS, *LEGACY, short=True),
    Client("ts pinned", *TS, *PINNED, apps=HOUSE, short=True),
    Client("ts 1.32.2", "sdk-1.32.2", "v1", "", "2025-11-25"),
    Client("inspector legacy", *CLI, *LEGACY, only=FEW, apps=HOUSE, short=True),
    Client("inspector modern", *CLI, *MODERN, only=FEW, apps=HOUSE, short=True),
    Client(
        "inspector strict", *CLI, *MODERN, ("stdio",), only=LIST, short=True, apps=ALL
    ),
    # Bridges: the transport is the one on our side of the bridge. mcp-remote's
    # `--protocol auto` (2026-07-28 to us, 2025-11-25 to its client) is no row: it
    # passes on output schemas whose root is no object, and its client refuses them.
    Client("mcp-remote", *PY, *LEGACY, ("http",)),
    Client("supergateway", *PY, *LEGACY, ("stdio",)),
    Client("supergateway", *PY, *LEGACY, ("http",), FROM_HTTP),
]
BRIDGES = {"mcp-remote": "mcp-remote-0.15.1", "supergateway": "supergateway-4.0.0"}


class Run(NamedTuple):
    """One client, one transport, one server."""

    client: Client
    transport: str
    app: str

    @property
    def folder(self) -> Path:
        """Where its recordings are."""
        name = f"{self.client.name} {self.transport} {self.app}"
        return RUNS / name.replace(" ", "-")

    @property
    def steps(self) -> list[scenario.Step]:
        """What the client has to do."""
        one = self.client
        return scenario.steps(self.app, one.revision, one.lacks, one.only)


# ---- Environments --------------------------------------------------------------------


def program(env: str, *parts: str) -> list[str]:
    """What runs a file in an environment: its interpreter and the file."""
    home = CACHE / env
    if env in PYTHON_ENVS:
        return [str(home / "bin" / "python"), *parts]
    packaged = home / "node_modules" / NODE22.split("@")[0] / "bin" / "node"
    node = str(packaged) if packaged.exists() else "node"
    return [node, str(home.joinpath(*parts))]


def schemas(home: Path, packages: list[str]) -> None:
    """The official schemas, as JSON Schema files."""
    check(["npm", "pack", "--silent", *packages], home)
    (archive,) = home.glob("*.tgz")
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/dist/index.js")
        assert member
        (home / "bundle.js").write_bytes(member.read())
    check(["node", str(HERE / "schemas.mjs"), str(home / "bundle.js"), str(home)])


def filling(env: str) -> Any:
    """How an environment is made."""
    if env == "schemas":
        return schemas
    return python_packages if env in PYTHON_ENVS else node_packages


# ---- Servers and bridges -------------------------------------------------------------


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def listening(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A server on a port, ended by SIGTERM; how it ended is kept beside `log`."""
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server on its port: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
        end = {"exit": process.wait(), "after": time.monotonic() - started}
        log.with_suffix(".json").write_text(json.dumps(end))


def bridge(name: str, *options: str) -> list[str]:
    """The command of a bridge."""
    files = {"mcp-remote": "proxy.js", "supergateway": "index.js"}
    return [
        *program(BRIDGES[name], "node_modules", name, "dist", files[name]),
        *options,
    ]


def target(run: Run, server: str, stack: contextlib.ExitStack) -> dict[str, Any]:
    """What the driver connects to: {"command"} or {"url"}, bridges included."""
    folder, name = run.folder, run.client.name
    path = scenario.APPS[run.app][0]
    tap = [sys.executable, str(HERE / "tap.py"), str(folder), "--", server]
    stdio = (
        [*tap, path]
        if run.app == "greenhouse"
        else [*tap, "-m", "tinymcp", "run", path]
    )
    if run.transport == "stdio":
        if name not in BRIDGES:
            return {"command": stdio}
        port = free_port()
        options = ["--stdio", shlex.join(stdio), "--port", str(port)]
        options += ["--outputTransport", "streamableHttp", "--stateful"]
        stack.enter_context(
            listening(bridge(name, *options), port, folder / "bridge.log")
        )
        return {"url": f"http://127.0.0.1:{port}/mcp"}
    port = free_port()
    command = [server, "-m", "tinymcp", "run", path, "--http", str(port)]
    stack.enter_context(listening(command, port, folder / "server.log"))
    relay = Relay(folder, port)
    stack.callback(relay.close)
    url = f"http://127.0.0.1:{relay.port}/mcp"
    if name == "mcp-remote":
        settings = ["env", f"MCP_REMOTE_CONFIG_DIR={folder}"]
        return {"command": [*settings, *bridge(name, url, "--transport", "http-only")]}
    if name == "supergateway":
        return {"command": bridge(name, "--streamableHttp", url, "--logLevel", "none")}
    return {"url": url}


# ---- Running and judging -------------------------------------------------------------


def drive(run: Run, reach: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the client's driver on a target."""
    client = run.client
    steps = [[step.key, step.operation, step.arguments] for step in run.steps]
    shared = {"kind": client.kind, "mode": client.mode, "revision": client.revision}
    job: dict[str, Any] = {**shared, **reach, "steps": steps}
    if client.kind in ("v1", "v2"):
        script = CACHE / client.env / "drive.mjs"
        if (
            not script.exists()
            or script.read_bytes() != (HERE / "drive_ts.mjs").read_bytes()
        ):
            shutil.copy(HERE / "drive_ts.mjs", script)
        command = program(client.env, "drive.mjs")
    elif client.kind == "inspector":
        launcher = ("inspector", "clients", "launcher", "build", "index.js")
        job["inspector"] = program(
            client.env, "node_modules", "@modelcontextprotocol", *launcher
        )
        job["strict"] = client.name.endswith("strict")
        job["home"] = str(run.folder)
        job["target"] = ["--server-url", reach.get("url", ""), "--transport", "http"]
        if "command" in reach:
            first, *rest = reach["command"]
            config = run.folder / "inspector.json"
            servers = {"mcpServers": {"it": {"command": first, "args": rest}}}
            config.write_text(json.dumps(servers))
            job["target"] = ["--config", str(config), "--server", "it"]
        command = [sys.executable, str(HERE / "drive_inspector.py")]
    else:
        command = program(client.env, str(HERE / "drive_py.py"))
    return subprocess.run(
        command, input=json.dumps(job), capture_output=True, text=True, timeout=180
    )


def attempt(run: Run, server: str) -> list[str]:
    """One run: what is wrong with what the client got and how things ended."""
    folder = run.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with contextlib.ExitStack() as stack:
            ran = drive(run, target(run, server, stack))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return [f"{type(error).__name__}: {error}"]
    (folder / "driver.log").write_text(ran.stderr)
    (folder / "records.json").write_text(ran.stdout)
    if ran.returncode or not ran.stdout.strip():
        return [f"the driver failed: {ran.stderr[-1500:]}"]
    told = json.loads(ran.stdout)
    wrong = []
    if told["protocol"] != run.client.revision:
        wanted = run.client.revision
        wrong.append(f"negotiated {told['protocol']!r}, wanted {wanted}")
    wrong += scenario.verdicts(run.steps, told["records"], run.client.revision)
    return wrong


def validate(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Every recorded message against the schema of its revision."""
    command = program("validator", str(HERE / "validate.py"), str(CACHE / "schemas"))
    folders = [str(run.folder) for run in runs]
    ran = subprocess.run([*command, *folders], capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"interop: the validator failed:\n{ran.stderr}")
    judged: dict[str, dict[str, Any]] = json.loads(ran.stdout)
    return judged


def ending(run: Run, verdict: dict[str, Any]) -> list[str]:
    """How the server processes of a run ended: by themselves, soon, without a word."""
    wrong, ends = [], verdict["ends"]
    if run.transport == "http":
        ends = [json.loads((run.folder / "server.json").read_text())]
        log = (run.folder / "server.log").read_text()
        if "Traceback" in log:
            wrong.append(f"traceback on stderr: {log[-1000:]}")
    for end in ends:
        if end is None:
            wrong.append("a server was killed before it ended")
            continue
        number = end.get("signal", 0)  # the client's: at the end of input, or twice
        expected = {0, -number, 128 + number} if number else {0}
        if end["exit"] not in expected or end["after"] > 3:
            wrong.append(f"the server ended with {end['exit']} in {end['after']:.1f} s")
    if not sum(verdict["revisions"].values()):
        wrong.append("nothing was recorded")
    return wrong


def main() -> int:
    """Install, run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="what CI runs")
    parser.add_argument("--only", metavar="NAME", help="clients whose name holds NAME")
    parser.add_argument("--app", choices=scenario.APPS, help="this server alone")
    parser.add_argument("--server", default=sys.executable, help="Python of the server")
    options = parser.parse_args()
    runs = [
        Run(client, transport, app)
        for client in CLIENTS
        for transport in client.transports
        for app in client.apps
        if (client.short or not options.short)
        and (options.only or "") in client.name
        and options.app in (None, app)
    ]
    needed = {"validator": PYTHON_ENVS["validator"], "schemas": [SCHEMAS]}
    for run in runs:
        for env in (run.client.env, BRIDGES.get(run.client.name, "validator")):
            needed[env] = {**PYTHON_ENVS, **NODE_ENVS}[env]
    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        fills = [filling(env) for env in needed]
        list(pool.map(install, needed, needed.values(), fills))
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda run: attempt(run, options.server), runs))
    judged = validate(runs)
    failures = 0
    for run, wrong in zip(runs, outcomes):
        verdict = judged[str(run.folder)]
        wrong = wrong + verdict["problems"] + ending(run, verdict)
        count = " ".join(f"{n} of {v}" for v, n in verdict["revisions"].items())
        failures += bool(wrong)
        name = f"{run.client.name:17} {run.transport:6} {run.app:11}"
        print(f"{name} {'FAILED' if wrong else 'ok':6} messages: {count}")
        for line in wrong[:12]:
            print(f"    {line[:700]}")
    print(f"interop: {time.monotonic() - started:.0f} s")
    print(f"{len(runs) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
