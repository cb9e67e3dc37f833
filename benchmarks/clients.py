"""python3 -m benchmarks --client: calls through clients, to the same tinymcp server."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from . import targets
from .process import environment

HERE = Path(__file__).resolve().parent


def run(options: argparse.Namespace) -> int:
    """Our client and the official one, over stdio and HTTP, the best of some rounds."""
    calls, rounds = (300, 1) if options.quick else (2000, 3)
    server = targets.own()[0]
    official = targets._pip("mcp") / "bin" / "python"
    programs = {"tinymcp": str(targets.bare()), "mcp": str(official)}
    print(f"{calls} calls of an inline tool, one after the other, best of {rounds}\n")
    for transport in ("stdio", "http"):
        rows = {
            name: measure(server, transport, name, programs[name], calls, rounds)
            for name in programs
        }
        print(f"{transport:26} {'tinymcp':>10} {'mcp 2.3.0':>10}")
        for key, value in rows["tinymcp"].items():
            print(f"{key:26} {value:10.1f} {rows['mcp'][key]:10.1f}")
        print()
    return 0


def measure(server, transport, name, program, calls, rounds) -> dict[str, float]:
    """The best value of every row; each round has a server of its own."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        if transport == "stdio":
            target = ["--", *server.argv, "stdio", "0", "0"]
            found = drive(program, name, calls, target)
        else:
            with server.start("http") as process:
                process.connect()
                url = f"http://127.0.0.1:{process.port}/mcp"
                found = drive(program, name, calls, [url])
        for key, value in found.items():
            best[key] = min(value, best.get(key, value))
    return best


def drive(program: str, name: str, calls: int, target: list[str]) -> dict[str, float]:
    command = [program, str(HERE / "one_client.py"), name, str(calls), *target]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd="/", check=True
    )
    return json.loads(done.stdout.splitlines()[-1])
