"""Alternatives that were measured and not taken; figures are in each docstring.

python3 -m benchmarks.experiments.NAME            microseconds an operation
python3 -m benchmarks.experiments.NAME --counts   instructions an operation (valgrind)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Callable

from ..process import ROOT, environment, python


def compare(variants: dict[str, Callable[[int], object]], calls: int = 2000) -> None:
    """Each variant runs n operations; prints the cost of one."""
    module = sys.modules["__main__"].__spec__.name
    if "--one" in sys.argv:
        variants[sys.argv[-2]](int(sys.argv[-1]))
        return
    for name, variant in variants.items():
        if "--counts" in sys.argv:
            more, less = (_count(module, name, n) for n in (2 * calls, calls))
            print(f"{name:32} {(more - less) / calls / 1e3:8.1f} k instructions")
            continue
        best = float("inf")
        for _ in range(7):
            start = time.perf_counter()
            variant(calls)
            best = min(best, time.perf_counter() - start)
        print(f"{name:32} {best / calls * 1e6:8.2f} us")


def over_pipes(serve: Callable[[int, int], None]) -> Callable[[int], None]:
    """A variant whose operation is one message to a process that answers it."""

    def variant(n: int) -> None:
        (read, to), (back, write) = os.pipe(), os.pipe()
        if not os.fork():
            os.close(to)
            serve(read, write)
            os._exit(0)
        for _ in range(n):
            os.write(to, b"x" * 90)
            os.read(back, 100)
        for fd in (read, to, back, write):
            os.close(fd)
        os.wait()

    return variant


def _count(module: str, name: str, calls: int) -> int:
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    argv = [*tool, python(), "-m", module, "--one", name, str(calls)]
    env = environment(PYTHONHASHSEED="0")
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(done.stderr[-2000:])
    return int(found[1])
