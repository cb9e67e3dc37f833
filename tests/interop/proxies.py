"""Three instances behind nginx and behind HAProxy: `python3 tests/interop/proxies.py`.

Needs nginx and haproxy on the PATH (Debian: nginx-light, haproxy). Everything
listens on loopback, on free ports put in place of those in proxies/, and is ended by
its process id. Prints a line for each check; exit 1 if one fails, 2 without them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
E = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": E,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(port: int) -> None:
    end = time.monotonic() + 15
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 1),
        ):
            return
        if time.monotonic() > end:
            raise SystemExit(f"nothing listens on {port}")
        time.sleep(0.02)


class Reply:
    def __init__(self, file: Any) -> None:
        line = file.readline()
        if not line:
            raise ConnectionError("closed")
        self.status = int(line.split()[1])
        self.headers = {}
        while field := file.readline().strip():
            name, _, value = field.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self.file = file

    def body(self) -> Any:
        if "content-length" in self.headers:
            return self.file.read(int(self.headers["content-length"]))
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        while True:
            size = int(self.file.readline(), 16)
            data = self.file.read(size)
            self.file.readline()
            if not size:
                return
            yield data

    def json(self) -> Any:
        body = self.body()
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            lines = [line for line in body.splitlines() if line.startswith(b"data: {")]
            body = lines[-1][6:]
        return json.loads(body)


def post(port: int, body: dict[str, Any], **headers: str) -> Reply:
    data = json.dumps(body).encode()
    lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += ["Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection = socket.create_connection(("127.0.0.1", port), 20)
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return Reply(connection.makefile("rb"))


def modern(
    port: int, name: str, arguments: Any = None, meta: Any = None, **params: Any
) -> Reply:
    params.update(name=name, arguments=arguments or {}, _meta={**META, **(meta or {})})
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return post(
        port, body, MCP_Protocol_Version=E, Mcp_Method="tools/call", Mcp_Name=name
    )


def where(port: int) -> int:
    return int(modern(port, "where").json()["result"]["structuredContent"])


class Fleet:
    """Three instances and a proxy before them."""

    def __init__(self, proxy: str, folder: Path) -> None:
        front, *backs = free_ports(4)
        self.port, self.backs = front, backs
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(HERE / "proxies" / "app.py")]
        self.instances = [
            subprocess.Popen([*command, str(port)], env=env) for port in backs
        ]
        name = "nginx.conf" if proxy == "nginx" else "haproxy.cfg"
        text = (HERE / "proxies" / name).read_text()
        for known, port in zip(("8000", "8001", "8002", "8003"), (front, *backs)):
            text = text.replace(f"127.0.0.1:{known}", f"127.0.0.1:{port}")
        (folder / name).write_text(text)
        if proxy == "nginx":
            run = ["nginx", "-p", str(folder), "-c", name]
        else:
            run = ["haproxy", "-db", "-f", str(folder / name)]
        for port in backs:
            wait_for(port)
        self.proxy = subprocess.Popen(run, stderr=subprocess.DEVNULL, cwd=folder)
        wait_for(front)

    def end(self) -> list[int]:
        for process in (self.proxy, *self.instances):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return [process.wait(15) for process in (self.proxy, *self.instances)][1:]


def check_rounds(fleet: Fleet) -> str:
    """The rounds of one question land on different instances."""
    pids = set()
    for _ in range(6):
        params: dict[str, Any] = {}
        for _ in range(3):
            pids.add(where(fleet.port))
            result = modern(fleet.port, "ask", **params).json()["result"]
            if result["resultType"] == "complete":
                break
            answer = {"action": "accept", "content": {"confirm": True}}
            params = {"requestState": result["requestState"]}
            params["inputResponses"] = dict.fromkeys(result["inputRequests"], answer)
        found = result["structuredContent"]
        assert found["first"] is True and found["second"] is True, found
        pids.add(found["pid"])
    assert len(pids) == 3, pids
    return f"6 calls of 3 rounds over {len(pids)} instances"


def check_stream(fleet: Fleet) -> str:
    """Progress passes unbuffered, each within a second."""
    began = time.monotonic()
    reply = modern(
        fleet.port, "steps", {"count": 3, "pause": 0.4}, {"progressToken": 1}
    )
    times = []
    for chunk in reply.chunks():
        if b"notifications/progress" in chunk:
            times.append(time.monotonic() - began)
    assert len(times) == 3, times
    late = [at - 0.4 * (n + 1) for n, at in enumerate(times)]
    assert max(late) < 1.0, late
    return "3 events, the latest %.0f ms behind" % (max(late) * 1000)


def open_session(port: int) -> str:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    params["clientInfo"] = {"name": "t", "version": "0"}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    return str(post(port, body).headers["mcp-session-id"])


def check_session(fleet: Fleet) -> str:
    """A session stays with its instance; elsewhere it is a 404 and opened anew."""
    body = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    session = open_session(fleet.port)
    for _ in range(6):
        assert post(fleet.port, body, Mcp_Session_Id=session).status == 200
    one, two = fleet.backs[:2]
    lost = open_session(one)
    assert post(two, body, Mcp_Session_Id=lost).status == 404
    again = open_session(two)
    assert post(two, body, Mcp_Session_Id=again).status == 200
    return "6 of 6 found their instance; a wrong one answers 404"


def check_kill(fleet: Fleet) -> str:
    """An instance that is killed under load loses only what was in flight in it."""
    results: list[bool] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                good = (
                    modern(fleet.port, "where").json()["result"]["structuredContent"]
                    > 0
                )
            except (OSError, ValueError, KeyError, IndexError):
                good = False
            results.append(good)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(results) < 50:
        time.sleep(0.01)
    fleet.instances[0].kill()
    while len(results) < 400:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    lost = results.count(False)
    assert lost <= 4, f"{lost} of {len(results)} calls lost"
    assert all(results[-50:])
    return f"{lost} of {len(results)} calls lost with one of three instances"


def check_shared_port() -> str:
    """Two processes share one port with reuse_port."""
    (port,) = free_ports(1)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / "proxies" / "app.py"), str(port), "--share"]
    processes = [subprocess.Popen(command, env=env) for _ in range(2)]
    try:
        wait_for(port)
        end = time.monotonic() + 15
        seen: set[int] = set()
        while len(seen) < 2 and time.monotonic() < end:
            seen.add(where(port))
        assert len(seen) == 2, seen
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(15) for process in processes]
    assert codes == [0, 0], codes
    return "2 processes on one port"


def main() -> int:
    missing = [name for name in ("nginx", "haproxy") if not shutil.which(name)]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    failed = 0

    def run(name: str, check: Any, *arguments: Any) -> None:
        nonlocal failed
        try:
            print(f"pass  {name}: {check(*arguments)}")
        except (AssertionError, OSError, ValueError, KeyError, IndexError) as error:
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__} {error}")

    for proxy in ("nginx", "haproxy"):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            fleet = Fleet(proxy, Path(folder))
            try:
                for check in (check_rounds, check_stream, check_session, check_kill):
                    run(f"{proxy} {check.__name__[6:]}", check, fleet)
            finally:
                codes = fleet.end()
            if codes[1:] != [0, 0]:
                failed += 1
                print(f"FAIL  {proxy}: instances ended with {codes}")
    run("reuse_port", check_shared_port)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
