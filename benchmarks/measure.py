"""The measurements: targets take turns in rounds, every value is kept."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

from .client import (
    LEGACY,
    MODERN,
    Http,
    Listeners,
    lines,
    many,
    message,
    payload,
    post,
    posts,
)
from .process import environment
from .targets import Target, size

TOOLS = 100  # tools of the server that is asked for tools/list
WARM = 100  # calls of a new process that are not measured


class Bench:
    """Values by (row, target): a row is named transport.era.what or transport.what."""

    def __init__(self, targets: list[Target], quick: bool) -> None:
        self.targets = targets
        self.rounds = 3 if quick else 11
        self.calls = 100 if quick else 400
        self.values: dict[tuple[str, str], list[float]] = {}
        self.started = time.monotonic()

    def add(self, row: str, target: Target, value: float) -> None:
        self.values.setdefault((row, target.name), []).append(value)

    def say(self, text: str) -> None:
        seconds = time.monotonic() - self.started
        print(f"[{seconds:5.0f} s] {text}", file=sys.stderr, flush=True)

    def run(self) -> None:
        self.say("size and import")
        self.footprint()
        self.say("cold start")
        self.cold()
        for transport in ("stdio", "http"):
            for era in (MODERN, LEGACY):
                self.say(f"{transport} {era}")
                self.load(transport, era)
            self.say(f"{transport} memory")
            self.memory(transport)
        self.say("fan-out")
        self.fan_out()

    def pairs(self, transport: str, era: str) -> list[Target]:
        return [t for t in self.targets if era in getattr(t, transport)]

    def footprint(self) -> None:
        """Installed size, packages, and import over an empty interpreter."""
        for target in self.targets:
            found = size(target)
            if found:
                self.add("size", target, found[0])
                self.add("packages", target, found[1])
        for _ in range(min(self.rounds, 5)):
            for target in self.targets:
                if target.module:
                    empty = _spawn([target.argv[0], "-c", "pass"])
                    loaded = _spawn([target.argv[0], "-c", f"import {target.module}"])
                    self.add("import", target, (loaded - empty) * 1e3)

    def cold(self) -> None:
        """From spawn to the first reply."""
        for number in range(self.rounds):
            for transport in ("stdio", "http"):
                for era in (MODERN, LEGACY):
                    for target in self.pairs(transport, era):
                        if number < 3 or target.fast_start:
                            self.cold_once(target, transport, era)

    def cold_once(self, target: Target, transport: str, era: str) -> None:
        kind = "discover" if era == MODERN else "initialize"
        body = message(kind, 1, era)
        with target.start(transport) as process:
            connection = process.connect()
            if transport == "http":
                reply = connection.call(post(body, process.port, kind, era))
            else:
                reply = connection.call(body + b"\n")
            seconds = time.perf_counter() - process.started
        if "result" not in payload(reply):
            raise ValueError(f"{target.name}: {reply[:300]!r}")
        self.add(f"{transport}.{era}.cold", target, seconds * 1e3)

    def load(self, transport: str, era: str) -> None:
        """Latency, throughput and CPU of one era, all targets running at once."""
        with contextlib.ExitStack() as stack:
            peers = []
            for target in self.pairs(transport, era):
                process = stack.enter_context(target.start(transport))
                lists = stack.enter_context(target.start(transport, TOOLS))
                peers.append(Peer(self, target, era, transport, process, lists))
            for peer in peers:
                peer.latency("echo", WARM, keep=False)
                peer.latency("list", WARM, keep=False)
            for _ in range(self.rounds):
                for peer in peers:
                    peer.latency("echo", self.calls)
                for peer in peers:
                    peer.others(self.calls)
                for peer in peers:
                    peer.renew(stack)
            time.sleep(0.5)  # what the last call left to do is not idling
            before = [peer.process.wakeups() for peer in peers]
            seconds = 2.0
            time.sleep(seconds)
            for peer, count in zip(peers, before):
                woken = (peer.process.wakeups() - count) / seconds
                self.add(f"{transport}.{era}.idle", peer.target, woken)

    def memory(self, transport: str) -> None:
        """Memory of one server at a time: PSS depends on who else shares."""
        for target in self.targets:
            if not getattr(target, transport):
                continue
            self.fresh(target, transport, lambda peer: None)
            if transport == "http":
                self.fresh(target, transport, self.crowd)
            if transport == "http" and target.sessions:
                self.fresh(target, transport, self.sessions)
            if transport == "http" and target.listens:
                self.fresh(target, transport, self.streams)

    def fresh(self, target: Target, transport: str, more) -> None:
        """A new server, 1,000 calls, then what is to be weighed: memory that was freed
        before would hide it."""
        era = getattr(target, transport)[0]
        with target.start(transport) as process:
            connection = process.connect()
            peer = Peer(self, target, era, transport, process, None, connection)
            peer.latency("echo", 1, keep=False)
            self.footprint_of(process, target, f"{transport}.start")
            peer.latency("echo", 1000, keep=False)
            self.footprint_of(process, target, f"{transport}.loaded")
            more(peer)

    def footprint_of(self, process, target: Target, row: str) -> None:
        for name, value in process.memory().items():
            self.add(f"{row}.{name}", target, value)

    def crowd(self, peer: Peer) -> None:
        """Memory with 64 and 500 idle connections that have made a call each."""
        before = peer.process.memory()["uss"]
        crowd: list[Http] = []
        for count in (64, 500):
            while len(crowd) < count:
                crowd.append(Http(peer.process.port))
                crowd[-1].session = peer.connection.session
                peer.one(crowd[-1])
            self.footprint_of(peer.process, peer.target, f"http.connections{count}")
        grown = (peer.process.memory()["uss"] - before) * 1024 / len(crowd)
        self.add("http.connection", peer.target, grown)
        for connection in crowd:
            connection.close()

    def sessions(self, peer: Peer) -> None:
        count = 500
        connection = Http(peer.process.port)
        connection.open(LEGACY)
        before = peer.process.memory()["uss"]
        for _ in range(count):
            connection.open(LEGACY)
        grown = (peer.process.memory()["uss"] - before) * 1024 / count
        self.footprint_of(peer.process, peer.target, "http.sessions500")
        self.add("http.session", peer.target, grown)
        connection.close()

    def streams(self, peer: Peer) -> None:
        count = 100
        Listeners(peer.process.port, 1).close()
        before = peer.process.memory()["uss"]
        listeners = Listeners(peer.process.port, count)
        grown = (peer.process.memory()["uss"] - before) * 1024 / count
        self.footprint_of(peer.process, peer.target, "http.streams100")
        self.add("http.stream", peer.target, grown)
        listeners.close()

    def fan_out(self) -> None:
        """One update to 100 subscribers at a time: updates/s and the p99 delay."""
        for target in self.targets:
            if not target.listens:
                continue
            with target.start("http") as process:
                trigger = process.connect()
                listeners = Listeners(process.port, 100)
                rounds = self.calls // 2
                requests = posts("touch", rounds, MODERN, process.port)
                start = time.perf_counter()
                delays = [listeners.update(trigger, request) for request in requests]
                seconds = time.perf_counter() - start
                self.add("http.fanout.rate", target, rounds / seconds)
                flat = sorted(delay for row in delays for delay in row)
                self.add("http.fanout.p99", target, _quantile(flat, 0.99) * 1e3)
                listeners.close()


class Peer:
    """One running target in one era."""

    def __init__(
        self, bench, target, era, transport, process, lists, connection=None
    ) -> None:
        self.bench = bench
        self.target = target
        self.era = era
        self.transport = transport
        self.lists = lists and lists.connect()
        if lists:
            self.lists.open(era)
        self.number = 10
        self.attach(process, connection or process.connect())

    def attach(self, process, connection) -> None:
        self.process = process
        self.port = process.port
        self.connection = connection
        connection.open(self.era)

    def renew(self, stack: contextlib.ExitStack) -> None:
        """Another process of the program, if it starts fast: where the memory of one
        lies makes up to a third of its time, and one process would be one throw."""
        if not self.target.fast_start:
            return
        self.process.__exit__()
        process = stack.enter_context(self.target.start(self.transport))
        self.attach(process, process.connect())
        self.latency("echo", WARM, keep=False)

    def requests(self, kind: str, count: int, connection=None) -> list[bytes]:
        first, self.number = self.number, self.number + count
        if self.transport == "stdio":
            return lines(kind, count, self.era, first)
        owner = connection or self.connection
        return posts(kind, count, self.era, owner.port, owner.session, first)

    def row(self, what: str) -> str:
        return f"{self.transport}.{self.era}.{what}"

    def add(self, what: str, value: float) -> None:
        self.bench.add(self.row(what), self.target, value)

    def one(self, connection) -> None:
        connection.call(self.requests("echo", 1)[0])

    def latency(self, kind: str, count: int, keep: bool = True) -> None:
        """Sequential calls: p50 and p99 in us, and the CPU that the server took."""
        connection = self.lists if kind == "list" else self.connection
        if self.transport == "http":
            connection.close()
            connection.connect()
            connection.call(self.requests("echo", 1, connection)[0])
        requests = self.requests(kind, count, connection)
        times = []
        clock = time.perf_counter
        cpu = self.process.cpu()
        for request in requests:
            start = clock()
            reply = connection.call(request)
            times.append(clock() - start)
        cpu = (self.process.cpu() - cpu) / count
        if b'"result"' not in reply:
            raise ValueError(f"{self.target.name}: {reply[:300]!r}")
        if keep:
            times.sort()
            self.add(f"{kind}.p50", _quantile(times, 0.5) * 1e6)
            self.add(f"{kind}.p99", _quantile(times, 0.99) * 1e6)
            if kind == "echo":
                self.add("cpu", cpu * 1e6)

    def others(self, calls: int) -> None:
        """What needs fewer values than the latency of one call."""
        if self.transport == "stdio":
            seconds = self.connection.pipeline(self.requests("echo", calls * 2))
            self.add("rate", calls * 2 / seconds)
        else:
            for connections in (1, 8, 64):
                requests = self.requests("echo", calls)
                self.add(
                    f"rate{connections}", calls / many(self.port, connections, requests)
                )
            self.new_connections(calls // 8)
        self.latency("big", calls // 10)
        self.latency("list", calls // 10)
        if self.era == LEGACY:
            self.latency("ping", calls // 10)

    def new_connections(self, count: int) -> None:
        times = []
        for request in self.requests("echo", count):
            start = time.perf_counter()
            connection = Http(self.port)
            connection.call(request)
            connection.close()
            times.append(time.perf_counter() - start)
        self.add("new", _quantile(sorted(times), 0.5) * 1e6)


def _quantile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


def _spawn(argv: list[str]) -> float:
    """Seconds of one process from start to exit."""
    start = time.perf_counter()
    subprocess.run(argv, check=True, env=environment(), cwd="/", close_fds=False)
    return time.perf_counter() - start
