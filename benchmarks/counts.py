"""python3 -m benchmarks counts: instructions, which no other program can disturb.

A call costs the difference of a run with 2N and one with N calls, divided by N: start,
warm-up and exit cancel out. Counts belong to one interpreter build: COUNTS.md has a
section for each, `--write` renews that of this build, `--check` fails when one grew.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from .client import LEGACY, MODERN, lines, many, posts
from .process import ROOT, Process, environment, free_port
from .targets import CACHE, HERE, bare, own, references

FILE = HERE / "COUNTS.md"
SNAPSHOT = CACHE / "counted"
GROWTH = 1.05  # more than this over COUNTS.md fails --check
CALLS = 150
CROWD = 64  # connections that share the turns of the loop
TITLE = """# Instructions

User-space instructions counted by valgrind (callgrind). `python3 -m benchmarks counts`
prints them, `--write` renews this file, `--check` (`make counts`) fails when one has
grown by more than 5 % on the same interpreter build. M: a whole process, k: one call.
L1, L2r, L3 and L4 are the bare references beside them.
"""


def add_parser(commands) -> None:
    parser = commands.add_parser("counts", help="instruction counts (needs valgrind)")
    parser.add_argument("--write", action="store_true", help="renew COUNTS.md")
    parser.add_argument("--check", action="store_true", help="compare with COUNTS.md")
    parser.add_argument("--only", nargs="*", metavar="WORD", help="rows with a word")
    parser.set_defaults(run=run)


def build() -> str:
    """Which interpreter this is: counts of another one cannot be compared."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    kind = "shared" if "--enable-shared" in flags else "static"
    kind += ", optimised" if "--enable-optimizations" in flags else ", not optimised"
    kind += ", lto" if "--with-lto" in flags else ""
    name, date = platform.python_build()
    libc = " ".join(platform.libc_ver())
    return (
        f"CPython {platform.python_version()} ({name}, {date}; "
        f"{platform.python_compiler()}; {kind}; {libc}; {platform.machine()})"
    )


def plan() -> dict[str, tuple]:
    """row -> (argv, transport, era, kind, tools): kind "" is one start to exit."""
    inline, threaded, asynchronous = (target.argv for target in own())
    refs = {target.name: target.argv for target in references()}
    rows = {
        "import tinymcp": ([bare(), "-c", "import tinymcp"], "", "", "", 0),
        "start stdio, first answer, exit": (inline, "stdio", LEGACY, "", 0),
        "start stdio modern, first answer, exit": (inline, "stdio", MODERN, "", 0),
        "start stdio async, first answer, exit": (asynchronous, "stdio", LEGACY, "", 0),
        "start HTTP, first answer, exit": (inline, "http", MODERN, "", 0),
        "start L1": (refs["L1"], "stdio", LEGACY, "", 0),
        "start L3": (refs["L3"], "http", MODERN, "", 0),
        "stdio tools/list, 100 tools": (inline, "stdio", LEGACY, "list", 100),
        "stdio ping": (inline, "stdio", LEGACY, "ping", 100),
        "stdio resources/read": (inline, "stdio", MODERN, "read", 0),
        "stdio read_sensor": (inline, "stdio", MODERN, "sensor", 0),
        "stdio server/discover": (inline, "stdio", MODERN, "discover", 0),
    }
    modes = {"inline": inline, "def": threaded, "async": asynchronous}
    for era, label in ((MODERN, "modern"), (LEGACY, "legacy")):
        for mode, argv in modes.items():
            rows[f"stdio {mode} echo, {label}"] = (argv, "stdio", era, "echo", 0)
            rows[f"HTTP {mode} echo, {label}"] = (argv, "http", era, "echo", 0)
        for name, argv in refs.items():
            transport = "stdio" if name in ("L1", "L2r") else "http"
            rows[f"{name} echo, {label}"] = (argv, transport, era, "echo", 0)
    crowd = {"HTTP inline": inline, "HTTP async": asynchronous}
    for name, argv in {**crowd, "L3": refs["L3"], "L4": refs["L4"]}.items():
        rows[f"{name} echo, {CROWD} connections"] = (argv, "http", MODERN, "crowd", 0)
    return rows


def count(
    argv: list, transport: str, era: str, kind: str, tools: int, calls: int
) -> int:
    """Instructions of one process that answers so many calls and ends."""
    port = free_port() if transport == "http" else 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        more = [transport, str(port), str(tools)] if transport else []
        env = environment(PYTHONHASHSEED="0", PYTHONPATH=str(SNAPSHOT))
        whole = [*tool, f"--log-file={log}", *map(str, argv), *more]
        with Process(whole, port, env) as process:
            if transport:
                connection = process.connect()
                if kind:
                    connection.open(era)
                opening = "initialize" if era == LEGACY else "discover"
                drive(connection, kind or opening, era, calls)
                process.settle()
            process.end(60)
        found = re.search(r"Collected : (\d+)", log.read_text())
    if found is None:
        raise RuntimeError(f"valgrind counted nothing for {argv}")
    return int(found[1])


def drive(connection, kind: str, era: str, calls: int) -> None:
    """Calls one after the other, as a host makes them, or from many connections."""
    if kind == "crowd":
        many(connection.port, CROWD, posts("echo", calls, era, connection.port))
        return
    if hasattr(connection, "port"):
        port, session = connection.port, connection.session
        requests = posts(kind, calls, era, port, session, 10)
    else:
        requests = lines(kind, calls, era, 10)
    for request in requests:
        reply = connection.call(request)
        if b'"result"' not in reply:
            raise ValueError(f"{kind}: {reply[:300]!r}")


def one(row: str, entry: tuple) -> tuple[str, int]:
    kind = entry[3]
    if not kind:
        return row, count(*entry, calls=1)
    calls = CALLS if kind != "crowd" else CALLS * 4
    more, less = (count(*entry, calls=n * calls) for n in (2, 1))
    return row, (more - less) // calls


def measure(only: list[str]) -> dict[str, int]:
    rows = {
        row: entry
        for row, entry in plan().items()
        if not only or any(word in row for word in only)
    }
    # A copy: whoever edits the runtime meanwhile must not change what is counted.
    shutil.rmtree(SNAPSHOT, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tinymcp", SNAPSHOT / "tinymcp", ignore=skip)
    subprocess.run([bare(), "-m", "compileall", "-q", SNAPSHOT], check=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(pool.map(one, rows, rows.values()))
    return {row: found[row] for row in rows}


def shown(value: int) -> str:
    return f"{value / 1e6:.1f} M" if value >= 5e6 else f"{value / 1e3:.1f} k"


def stored() -> dict[str, dict[str, int]]:
    """COUNTS.md as {build: {row: instructions}}."""
    found: dict[str, dict[str, int]] = {}
    rows: dict[str, int] = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else ():
        if line.startswith("## "):
            rows = found.setdefault(line[3:], {})
        match = re.match(r"\| (.+?) \| [^|]+ \| (\d+) \|", line)
        if match:
            rows[match[1]] = int(match[2])
    return found


def write(found: dict[str, dict[str, int]]) -> None:
    text = TITLE
    for name, rows in found.items():
        text += f"\n## {name}\n\n| what | | instructions |\n|---|--:|--:|\n"
        for row, value in rows.items():
            text += f"| {row} | {shown(value)} | {value} |\n"
    FILE.write_text(text)


def run(options: argparse.Namespace) -> int:
    if shutil.which("valgrind") is None:
        print("counts needs valgrind (Debian: apt install valgrind)", file=sys.stderr)
        return 0 if options.check else 2
    known = stored()
    before = known.get(build(), {})
    if options.check and not before:
        print(f"COUNTS.md has no section for {build()}: nothing to compare")
        return 0
    print("two runs under valgrind a row, some minutes in all", file=sys.stderr)
    now = measure(options.only)
    if not now:
        print(f"--only: there is {', '.join(plan())}", file=sys.stderr)
        return 2
    worse = 0
    for row, value in now.items():
        change = f"{value / before[row] - 1:+7.1%}" if row in before else ""
        bad = row in before and value > before[row] * GROWTH
        worse += bad
        print(f"{row:44} {shown(value):>10} {change} {'GREW' if bad else ''}".rstrip())
    if options.write:
        known[build()] = {**before, **now}
        write(known)
    return 1 if options.check and worse else 0
