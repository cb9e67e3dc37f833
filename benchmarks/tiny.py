"""python3 -m benchmarks.tiny: the board example as a small board would run it.

48 MB for data, 1 MB stacks, one CPU, a read-only root, no HOME, no .pyc files; driven
over stdio and HTTP. Needs root (or user namespaces), unshare, prlimit and taskset.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from .client import LEGACY, MODERN, Http, message, payload, post
from .process import ROOT, Process, free_port
from .targets import bare

DATA = 48 << 20
CAGE = """
mount --rbind / "$0" && mount -o remount,bind,ro "$0" && cd "$0" &&
exec env -i PATH=/usr/sbin:/usr/bin:/bin taskset -c 0 \
prlimit --data={data} --stack=1048576 chroot . "$@"
"""


def argv(root: Path, app: Path, *more: str) -> list[str]:
    """The command that runs the app in its cage."""
    inside = [str(bare()), "-B", str(app), *more]
    enter = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid():
        enter.insert(1, "--map-root-user")
    return [*enter, "sh", "-c", CAGE.format(data=DATA), str(root), *inside]


def start_time(root: Path, app: Path) -> float:
    """Milliseconds from spawn to the initialize reply, median of seven."""
    times = []
    for _ in range(7):
        with Process(argv(root, app)) as process:
            process.connect().call(message("initialize", 1, LEGACY) + b"\n")
            times.append((time.perf_counter() - process.started) * 1e3)
    return statistics.median(times)


def ask(call, kind: str, era: str, changes: dict | None = None) -> dict:
    """One request; its result, or an exit that shows the answer."""
    body = json.loads(message(kind, 7, era))
    body["params"].update(changes or {})
    answer = payload(call(json.dumps(body).encode()))
    if "result" not in answer or answer["result"].get("isError"):
        raise SystemExit(f"tiny: {kind} {changes} was answered with {answer}")
    return answer["result"]


def drive(call, era: str) -> tuple[int, int]:
    """Read every resource, call every tool that needs no arguments."""
    body = json.loads(message("list", 8, era))
    body["method"] = "resources/list"
    found = payload(call(json.dumps(body).encode()))["result"]["resources"]
    for entry in found:
        ask(call, "read", era, {"uri": entry["uri"]})
    tools = ask(call, "list", era)["tools"]
    free = [tool for tool in tools if not tool["inputSchema"].get("required")]
    for tool in free:
        ask(call, "echo", era, {"name": tool["name"], "arguments": {}})
    return len(found), len(free)


def stdio(root: Path, app: Path) -> None:
    with Process(argv(root, app)) as process:
        connection = process.connect()
        connection.open(LEGACY)
        done = drive(lambda body: connection.call(body + b"\n"), LEGACY)
        report("stdio", process, done)


def http(root: Path, app: Path) -> None:
    port = free_port()
    runner = [str(app.parent / "serve.py"), str(port)]
    with Process(argv(root, Path(runner[0]), runner[1]), port) as process:
        connection = process.connect()

        def call(body: bytes) -> bytes:
            method = json.loads(body)
            name = method["params"].get("name") or method["params"].get("uri")
            request = post(body, port, "list", MODERN).replace(
                b"Mcp-Method: tools/list\r\n",
                f"Mcp-Method: {method['method']}\r\n".encode()
                + (f"Mcp-Name: {name}\r\n".encode() if name else b""),
            )
            return connection.call(request)

        report("HTTP", process, drive(call, MODERN))
        for _ in range(16):
            Http(port).close()


def report(transport: str, process: Process, done: tuple[int, int]) -> None:
    used = {}
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        used[name] = value.strip()
    print(
        f"{transport}: {done[0]} resources read, {done[1]} tools called; "
        f"RSS {int(used['VmRSS'].split()[0]) / 1024:.1f} MB, data "
        f"{int(used['VmData'].split()[0]) / 1024:.1f} of {DATA >> 20} MB, "
        f"{used['Threads']} threads"
    )


def main() -> int:
    missing = [t for t in ("unshare", "prlimit", "taskset") if not shutil.which(t)]
    if missing:
        print(f"tiny needs {', '.join(missing)} (util-linux)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as top:
        home, root = Path(folder), Path(top)
        home.chmod(0o755)
        (home / "tinymcp").mkdir()
        for file in (ROOT / "tinymcp").glob("*.py"):
            shutil.copy(file, home / "tinymcp")
        app = Path(shutil.copy(ROOT / "examples" / "board.py", home))
        (home / "serve.py").write_text(
            "import sys\nfrom board import server\n"
            "server.run('http', port=int(sys.argv[1]))\n"
        )
        stdio(root, app)
        http(root, app)
        without = start_time(root, app)
        compileall.compile_dir(home, quiet=2)
        compiled = start_time(root, app)
        print(f"start to first answer, no .pyc: {without:.0f} ms; after ", end="")
        print(f"python3 -m compileall in the image: {compiled:.0f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
