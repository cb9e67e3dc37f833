"""The lean client: raw pipes and sockets, requests built before the clock starts."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
import time

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
URI = "sensor://bench/temperature"
CLIENT = {"name": "bench", "version": "1.0.0"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
# One request of each kind: name -> (method, params, Mcp-Name)
KINDS: dict = {
    "initialize": (
        "initialize",
        {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT},
        None,
    ),
    "discover": ("server/discover", {}, None),
    "ping": ("ping", None, None),
    "echo": ("tools/call", {"name": "echo", "arguments": {"text": "hello"}}, "echo"),
    "sensor": (
        "tools/call",
        {"name": "read_sensor", "arguments": {"sensor": "temperature"}},
        "read_sensor",
    ),
    "big": (
        "tools/call",
        {"name": "echo", "arguments": {"text": "0123456789abcdef" * 4096}},
        "echo",
    ),
    "touch": ("tools/call", {"name": "touch", "arguments": {}}, "touch"),
    "read": ("resources/read", {"uri": URI}, URI),
    "list": ("tools/list", {}, None),
    "listen": (
        "subscriptions/listen",
        {"notifications": {"resourceSubscriptions": [URI]}},
        None,
    ),
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def message(kind: str, number: int, era: str) -> bytes:
    """One request of this kind as JSON bytes."""
    method, params, _ = KINDS[kind]
    out = {"jsonrpc": "2.0", "id": number, "method": method}
    if era == MODERN:
        out["params"] = {**params, "_meta": META}
    elif params is not None:
        out["params"] = params
    return json.dumps(out, separators=(",", ":")).encode()


def lines(kind: str, count: int, era: str, first: int = 1) -> list[bytes]:
    """Requests for a byte stream, with rising ids."""
    return [message(kind, first + i, era) + b"\n" for i in range(count)]


def post(body: bytes, port: int, kind: str, era: str, session: bytes = b"") -> bytes:
    """One whole POST with the headers that the era asks for."""
    method, _, name = KINDS[kind]
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Content-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
    )
    if era == MODERN:
        head += f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: {method}\r\n"
        head += f"Mcp-Name: {name}\r\n" if name else ""
    elif method != "initialize":
        head += f"MCP-Protocol-Version: {LEGACY}\r\n"
        head += f"Mcp-Session-Id: {session.decode()}\r\n" if session else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def posts(
    kind: str, count: int, era: str, port: int, session: bytes = b"", first: int = 1
) -> list[bytes]:
    """POST requests with rising ids."""
    bodies = (message(kind, first + i, era) for i in range(count))
    return [post(body, port, kind, era, session) for body in bodies]


class Stdio:
    """A byte stream to a server: one line out, one line in."""

    def __init__(self, process) -> None:
        self.write_fd = process.stdin.fileno()
        self.read_fd = process.stdout.fileno()

    def call(self, line: bytes) -> bytes:
        write_all(self.write_fd, line)
        reply = os.read(self.read_fd, 1 << 16)
        while not reply.endswith(b"\n"):
            chunk = os.read(self.read_fd, 1 << 16)
            if not chunk:
                raise ConnectionError(f"server ended after {reply[-200:]!r}")
            reply += chunk
        return reply

    def open(self, era: str) -> None:
        """What a client sends before its first call."""
        if era == LEGACY:
            self.call(message("initialize", 0, era) + b"\n")
            write_all(self.write_fd, json.dumps(INITIALIZED).encode() + b"\n")

    def pipeline(self, requests: list[bytes]) -> float:
        """Seconds for all of these, written without waiting for a reply."""
        whole = b"".join(requests)
        start = time.perf_counter()
        writer = threading.Thread(target=write_all, args=(self.write_fd, whole))
        writer.start()
        missing = len(requests)
        while missing:
            chunk = os.read(self.read_fd, 1 << 16)
            if not chunk:
                raise ConnectionError("server ended")
            missing -= chunk.count(b"\n")
        writer.join()
        return time.perf_counter() - start


def write_all(fd: int, data: bytes) -> None:
    """os.write until everything is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Http:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.session = b""
        self.connect()

    def connect(self) -> None:
        """Again before a burst: some peers close a connection that rests for 5 s."""
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's time-out: Python's own would cost a poll before every recv.
        limit = struct.pack("ll", 30, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def call(self, request: bytes) -> bytes:
        """The response, head included."""
        self.socket.sendall(request)
        data = self.socket.recv(1 << 16)
        while not complete(data):
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise ConnectionError(f"server closed after {data[-300:]!r}")
            data += chunk
        return data

    def open(self, era: str) -> None:
        """What a client sends before its first call; keeps the legacy session id."""
        if era != LEGACY:
            return
        first = post(message("initialize", 0, era), self.port, "initialize", era)
        head = self.call(first).partition(b"\r\n\r\n")[0]
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"mcp-session-id":
                self.session = value.strip()
        ready = json.dumps(INITIALIZED).encode()
        self.call(post(ready, self.port, "ping", era, self.session))

    def close(self) -> None:
        self.socket.close()


def complete(data: bytes) -> bool:
    """Whether this is a whole response: by length, or chunked to its last chunk."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = data[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return len(data) >= end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0])
    if b"transfer-encoding: chunked" in head:
        return data.endswith(b"0\r\n\r\n")
    return head[9:12] in (b"202", b"204")


def payload(data: bytes) -> dict:
    """The one JSON-RPC message in a line, or in a response (chunked and SSE too)."""
    if data.startswith(b"HTTP/"):
        data = data.partition(b"\r\n\r\n")[2]
    return json.loads(data[data.find(b"{") : data.rfind(b"}") + 1])


def many(port: int, connections: int, requests: list[bytes]) -> float:
    """Seconds for all requests over so many connections, one in flight on each.

    Each has made a call before: a connect returns before the server has accepted it,
    and what that costs is another row.
    """
    sockets = {}
    poll = select.epoll()
    for _ in range(connections):
        connection = Http(port)
        connection.call(requests[0])
        peer = connection.socket
        sockets[peer.fileno()] = [peer, b""]
        poll.register(peer, select.EPOLLIN)
    waiting = iter(requests)
    missing = len(requests)
    start = time.perf_counter()
    for peer, _ in sockets.values():
        peer.sendall(next(waiting))
    while missing:
        for fd, _ in poll.poll():
            entry = sockets[fd]
            entry[1] += entry[0].recv(1 << 16)
            if complete(entry[1]):
                missing -= 1
                entry[1] = b""
                request = next(waiting, None)
                if request is not None:
                    entry[0].sendall(request)
    seconds = time.perf_counter() - start
    poll.close()
    for peer, _ in sockets.values():
        peer.close()
    return seconds


class Listeners:
    """Listen streams, each on its own connection."""

    def __init__(self, port: int, count: int) -> None:
        self.sockets = {}
        self.poll = select.epoll()
        for number in range(count):
            peer = Http(port).socket
            body = message("listen", number + 1, MODERN)
            peer.sendall(post(body, port, "listen", MODERN))
            data = b""
            while b"acknowledged" not in data:
                chunk = peer.recv(65536)
                if not chunk:
                    raise ConnectionError(f"no acknowledgement: {data[:300]!r}")
                data += chunk
            self.sockets[peer.fileno()] = peer
            self.poll.register(peer, select.EPOLLIN)

    def update(self, trigger: Http, request: bytes) -> list[float]:
        """One update: seconds from the call until each listener has it."""
        delays = []
        missing = set(self.sockets)
        start = time.perf_counter()
        trigger.socket.sendall(request)
        while missing:
            for fd, _ in self.poll.poll(5):
                if b"resources/updated" in self.sockets[fd].recv(65536):
                    delays.append(time.perf_counter() - start)
                    missing.discard(fd)
        data = b""
        while not complete(data):
            data += trigger.socket.recv(65536)
        return delays

    def close(self) -> None:
        self.poll.close()
        for peer in self.sockets.values():
            peer.close()
