"""python3 -m benchmarks soak: does memory grow over a million calls of mixed kinds?"""

from __future__ import annotations

import argparse
import random

from .client import LEGACY, MODERN, lines, many, posts
from .targets import own

KINDS = ("echo", "echo", "sensor", "read", "list", "discover", "ping", "bad")
CHUNK = 10_000


def add_parser(commands) -> None:
    parser = commands.add_parser("soak", help="RSS over a million mixed calls")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    worst = 0.0
    inline, _, asynchronous = own()
    share = options.calls // 2
    for target, transport in ((inline, "stdio"), (asynchronous, "http")):
        grown = soak(target, transport, share)
        worst = max(worst, grown)
        print(f"{target.name} {transport}: {share:,} calls, RSS grew by {grown:.2f} MB")
    return 0 if worst <= 0.5 else 1


def soak(target, transport: str, calls: int) -> float:
    """MB of growth after the first tenth."""
    chunk = min(CHUNK, calls // 10)
    first = None
    with target.start(transport) as process:
        connection = process.connect()
        connection.open(LEGACY)
        for done in range(0, calls, chunk):
            requests = mixed(transport, process.port, chunk, done + 10)
            if transport == "stdio":
                # Not all at once: what waited to be read once is no growth by calls.
                for at in range(0, chunk, 1000):
                    connection.pipeline(requests[at : at + 1000])
            else:
                many(process.port, 16, requests)
            if first is None and done + chunk >= calls // 10:
                first = process.memory()["rss"]
        return process.memory()["rss"] - first


def mixed(transport: str, port: int, count: int, first: int) -> list[bytes]:
    """Calls of all kinds, also bad ones, in an order that repeats from run to run."""
    chance = random.Random(first)
    out = []
    for number in range(first, first + count):
        kind = chance.choice(KINDS)
        era = MODERN
        if kind == "ping":
            kind, era = "echo", LEGACY if transport == "stdio" else MODERN
        bad = kind == "bad"
        kind = "sensor" if bad else kind
        make = lines if transport == "stdio" else posts
        port_too = () if transport == "stdio" else (port,)
        (request,) = make(kind, 1, era, *port_too, first=number)
        out.append(
            request.replace(b'"temperature"', b"77777777777.5") if bad else request
        )
    return out
