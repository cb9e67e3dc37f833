"""make soak: does a server that is abused for long keep its size?

python3 tests/soak.py [--seconds 1200]    on loopback only; exit 1 if anything grew

One server process per transport. Clients open sessions and drop them, listen to a fast
resource, read a stream not at all, cancel, fail, send too much, vanish. After a warm-up
its size is measured with all clients gone, and again at the end: RSS (1 MB may come, a
heap takes long to settle), blocks of Python, calls, sessions, tasks, threads and file
descriptors. At last it gets SIGTERM under load: exit 0, no traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_endpoint import (  # noqa: E402  (the path is set first)
    Client,
    initialize,
    legacy,
    modern,
    request,
)
from tests.test_streams import call, line  # noqa: E402  (the path is set first)
from tests.test_streams import initialize as hello  # noqa: E402  (the path is set first)

GROWTH = 1024  # kB of RSS
CLIENTS = 6
APP = """
import asyncio, gc, os, sys, threading, time
from tinymcp import Context, Limits, Server
server = Server("soak", "1", log=lambda *a: None, limits=Limits(
    sessions=20, streams=50, replay=65536, call_timeout=1.0, answer_timeout=1.0,
    body=65536, line=65536, grace=2.0,
    head_timeout=1.0, body_timeout=1.0, write_timeout=2.0, json_or_sse=0.5,
    keep_alive=0.2, stream_queue=65536, in_flight=64))

@server.tool(inline=True)
def echo(text: str) -> str:
    return text

@server.tool
def fails() -> str:
    raise ValueError("as always")

@server.tool
def slow(ctx: Context) -> str:
    for step in range(20):
        ctx.report_progress(step)
        if ctx.wait(0.01):
            break
    return "slow"

@server.tool(lock="bus")
async def nap() -> str:
    await asyncio.sleep(0.02)
    return "napped"

@server.tool
def sure(ctx: Context) -> bool:
    return ctx.confirm("Sure?")

@server.resource("x://fast")
def fast() -> str:
    return str(time.monotonic())

@server.tool(inline=True)
def sizes() -> dict:
    gc.collect()
    with open("/proc/self/status") as file:
        rss = next(int(l.split()[1]) for l in file if l.startswith("VmRSS"))
    found = {"calls": len(server._open.lines()),
             "listeners": len({l for d in server._hub.wanted.values() for l in d}),
             "threads": threading.active_count(), "rss": rss,
             "blocks": sys.getallocatedblocks(),
             "fds": len(os.listdir("/proc/self/fd"))}
    try:
        found["tasks"] = len(asyncio.all_tasks())
    except RuntimeError:
        found["tasks"] = 0
    return found

def change():
    while True:
        server.notify_updated("x://fast")
        time.sleep(0.002)
threading.Thread(target=change, daemon=True).start()
server.run(sys.argv[1], **({"port": int(sys.argv[2])} if sys.argv[1] == "http" else {}))
"""


def start(*arguments):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", APP, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )


def finish(process):
    """SIGTERM under load: exit 0 within the grace, and no traceback."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        return ["did not end on SIGTERM"]
    err = process.stderr.read()
    faults = [] if process.returncode == 0 else [f"exit {process.returncode}"]
    return [*faults, err.decode()[-2000:]] if b"Traceback" in err else faults


class Http:
    """Clients of a server over HTTP, each in a thread."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = start("http", str(self.port))
        end = time.monotonic() + 20
        while True:
            try:
                Client(self.port).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        self.done = 0

    def load(self, seconds):
        stop = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self.client, args=(number, stop))
            for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def kinds(self):
        return [
            self.calls,
            self.session,
            self.stream,
            self.listen,
            self.stuck,
            self.bad,
            self.vanish,
        ]

    def rehearse(self):
        chance = random.Random(0)
        for kind in self.kinds():
            self.once(kind, chance)

    def client(self, number, stop):
        chance = random.Random(number)
        kinds = self.kinds()
        while time.monotonic() < stop:
            self.once(chance.choice(kinds), chance)

    def once(self, kind, chance):
        with contextlib.suppress(OSError, EOFError, ValueError):
            with Client(self.port) as client:
                client.socket.settimeout(5)
                kind(client, chance)
        self.done += 1

    def calls(self, client, chance):
        for _ in range(20):
            name = chance.choice(("echo", "echo", "fails", "nap", "nope"))
            arguments = {"text": "x" * chance.randint(0, 2000)}
            arguments = arguments if name == "echo" else {}
            client.send(modern("tools/call", {"name": name, "arguments": arguments}))
            if "content-length" not in client.reply().headers:
                client.messages()  # it took long and became a stream

    def opened(self, client):
        client.send(initialize(elicitation={}))
        reply = client.reply()
        if reply.status != 200:  # 503: all sessions are in use, or it is ending
            raise EOFError
        session = reply.headers["mcp-session-id"]
        client.send(legacy(session, "notifications/initialized", None, None))
        client.reply()
        return session

    def session(self, client, chance):
        session = self.opened(client)
        client.send(legacy(session, "resources/subscribe", {"uri": "x://fast"}))
        client.reply()
        for id in range(5):
            client.send(legacy(session, "tools/call", {"name": "fails"}, id + 2))
            client.reply()
        if chance.random() < 0.3:
            headers = [("Mcp-Session-Id", session)]
            client.send(request("DELETE", headers=headers))
            client.reply()

    def stream(self, client, chance):
        session = self.opened(client)
        client.send(legacy(session, "resources/subscribe", {"uri": "x://fast"}))
        client.reply()
        client.send(request("GET", headers=[("Mcp-Session-Id", session)]))
        client.head()
        with Client(self.port) as other:
            other.send(legacy(session, "tools/call", {"name": "sure"}, 9))
            for _ in range(chance.randint(1, 20)):
                client.chunk()

    def listen(self, client, chance):
        wanted = {"notifications": {"resourceSubscriptions": ["x://fast"]}}
        client.send(modern("subscriptions/listen", wanted))
        client.head()
        for _ in range(chance.randint(1, 50)):
            client.chunk()

    def stuck(self, client, chance):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wanted = {"notifications": {"resourceSubscriptions": ["x://fast"]}}
        client.send(modern("subscriptions/listen", wanted))
        time.sleep(chance.random())  # it reads nothing for so long

    def bad(self, client, chance):
        client.send(
            chance.choice(
                (
                    request(body=b"x" * 70_000),
                    request(body=b"{" * 1000),
                    request("GET", headers=[("X", "y" * 20_000)]),
                    b"\0" * 100,
                    request(headers=[("Transfer-Encoding", "chunked")]) + b"zz\r\n",
                    modern("tools/list", headers={"Mcp-Method": "x"}),
                )
            )
        )
        client.reply()

    def vanish(self, client, chance):
        meta = {"progressToken": 1}
        data = modern("tools/call", {"name": chance.choice(("slow", "nap"))}, meta=meta)
        client.send(data[: len(data) - chance.choice((0, 0, 5, 200))])
        time.sleep(chance.random() / 20)

    def sizes(self):
        """Once nothing is going on any more."""
        found = None
        for _ in range(100):
            with Client(self.port) as client:
                client.send(modern("tools/call", {"name": "sizes", "arguments": {}}))
                before, found = (
                    found,
                    client.reply().json["result"]["structuredContent"],
                )
            if before and quiet(found) and before["fds"] == found["fds"]:
                break
            time.sleep(0.1)
        return found


def quiet(found):
    return found["calls"] == 0


class Stdio:
    """One client of a server on stdio."""

    NAMES = ("echo", "fails", "nap", "slow", "sure", "no")

    def __init__(self):
        self.process = start("stdio")
        self.done = 0
        self.chance = random.Random(1)
        self.got = {}
        self.changed = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        self.send(hello(elicitation={}))
        self.send(line("resources/subscribe", {"uri": "x://fast"}, "sub"))

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self):
        for data in self.process.stdout:
            message = json.loads(data)
            with self.changed:
                if "id" in message:  # a question is kept by its method
                    self.got[message.get("method", message["id"])] = message
                    self.changed.notify_all()

    def wait(self, id):
        with self.changed:
            if not self.changed.wait_for(lambda: id in self.got, 20):
                raise AssertionError(f"no reply {id!r}")
            return self.got.pop(id)

    def rehearse(self):
        for name in self.NAMES:
            self.send(call(name, name, **({"text": ""} if name == "echo" else {})))
            if name == "sure":
                question = self.wait("elicitation/create")
                answer = {"action": "accept", "content": {"confirm": True}}
                reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
                self.send(json.dumps(reply).encode() + b"\n")
            self.wait(name)

    def load(self, seconds):
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            self.done += 1
            for n in range(20):
                name = self.chance.choice(self.NAMES)
                text = {"text": "x" * self.chance.randint(0, 2000)}
                id = f"{self.done}.{n}"
                self.send(call(name, id, **(text if name == "echo" else {})))
                if self.chance.random() < 0.2 or name == "sure":
                    params = {"requestId": id}
                    self.send(line("notifications/cancelled", params, None))
            self.send(b"x" * 70_000 + b"\n" + b"{" * 500 + b"\n" + b"[]\n")
            self.send(line("ping", id="end"))
            self.wait("end")
            with self.changed:
                self.got.clear()

    def sizes(self):
        found = None
        for n in range(100):
            self.send(call("sizes", f"sizes {n}"))
            found = self.wait(f"sizes {n}")["result"]["structuredContent"]
            if quiet(found):
                break
            time.sleep(0.1)
        return found


def soak(kind, seconds):
    """What was wrong, after so many seconds."""
    target = kind()
    name = kind.__name__
    try:
        target.rehearse()
        warm = max(seconds / 10, min(seconds / 3, 20.0))
        target.load(warm)
        first = target.sizes()
        print(f"{name}: before {first}", flush=True)
        target.load(seconds - warm)
        last = target.sizes()
        print(f"{name}: after  {last}; {target.done} rounds", flush=True)
        wrong = [
            f"{what} grew from {first[what]} to {last[what]}"
            for what in first
            if last[what] - first[what] > allowed(what)
        ]
        if kind is Http:
            background = threading.Thread(target=target.load, args=(1.0,))
            background.start()
            time.sleep(0.3)
            wrong += finish(target.process)
            background.join()
        else:
            wrong += finish(target.process)
        return [f"{name}: {each}" for each in wrong]
    finally:
        if target.process.poll() is None:
            target.process.kill()
        target.process.communicate()


def allowed(what):
    # Sessions that nobody ended wait for their time-out, at most 20 of them; workers
    # are made when they are needed, at most 8.
    table = {"rss": GROWTH, "blocks": 5000, "listeners": 20, "threads": 8}
    return table.get(what, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    options = parser.parse_args()
    wrong = soak(Stdio, options.seconds / 3) + soak(Http, options.seconds * 2 / 3)
    for each in wrong:
        print(each)
    print("FAILED" if wrong else "nothing grew")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
