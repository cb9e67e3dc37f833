"""The goals of the project as ratios within one run, and whether this run met them."""

from __future__ import annotations

import sys

from .client import LEGACY, MODERN
from .report import Results, number

# (what, limit, function of results -> value); met when the value is at most the limit
ASYNC = 1.5 if sys.version_info >= (3, 12) else 2.5


def ratio(row: str, name: str, base: str):
    return lambda results: results.ratio(row, name, base)


def inverse(row: str, name: str, base: str):
    return lambda results: results.ratio(row, base, name)


def difference(row: str, name: str, base: str):
    def value(results: Results) -> float | None:
        mine, other = results.get(row, name), results.get(row, base)
        return None if mine is None or other is None else mine - other

    return value


def plain(row: str, name: str):
    return lambda results: results.get(row, name)


def across(first: str, second: str, name: str):
    """One row of a target over another row of the same target."""

    def value(results: Results) -> float | None:
        top, base = results.get(first, name), results.get(second, name)
        return top / base if top and base else None

    return value


def lists(transport: str, name: str):
    row = f"{transport}.{LEGACY}."
    return across(row + "list.p50", row + "ping.p50", name)


def goals() -> list[tuple]:
    out = []
    for era in (MODERN, LEGACY):
        p50 = f"stdio.{era}.echo.p50"
        out += [
            (f"stdio p50 inline / L1, {era}", 2.0, ratio(p50, "tiny inline", "L1")),
            (f"stdio p50 def / L1, {era}", 5.0, ratio(p50, "tiny def", "L1")),
            (f"stdio p50 async / L2r, {era}", ASYNC, ratio(p50, "tiny async", "L2r")),
            (
                f"stdio pipelined L1 / inline, {era}",
                2.0,
                inverse(f"stdio.{era}.rate", "tiny inline", "L1"),
            ),
            (
                f"stdio cold start inline / L1, {era}",
                1.6,
                ratio(f"stdio.{era}.cold", "tiny inline", "L1"),
            ),
        ]
    out.append(
        (
            "stdio PSS after 1,000 calls, inline - L1, MB",
            3.0,
            difference("stdio.loaded.pss", "tiny inline", "L1"),
        )
    )
    p50 = f"http.{MODERN}.echo.p50"
    for mode in ("inline", "async"):
        name = f"tiny {mode}"
        out += [
            (f"HTTP p50 {mode} / L3, modern", 1.2, ratio(p50, name, "L3")),
            (f"HTTP p50 {mode} / mcp, modern", 0.25, ratio(p50, name, "mcp")),
        ]
        for connections in (8, 64):
            row = f"http.{MODERN}.rate{connections}"
            text = f"HTTP L3 / {mode}, {connections} connections"
            out.append((text, 1 / 0.7, inverse(row, name, "L3")))
    name = "tiny inline"
    cold = f"http.{MODERN}.cold"
    return [
        *out,
        ("HTTP cold start / L3", 1.25, ratio(cold, name, "L3")),
        ("HTTP PSS - L3, MB", 3.0, difference("http.loaded.pss", name, "L3")),
        ("USS per idle connection, kB", 8.0, plain("http.connection", name)),
        ("USS per legacy session, kB", 4.0, plain("http.session", name)),
        ("USS per listen stream, kB", 10.0, plain("http.stream", name)),
        # 27 kB through a pipe take 10 us whoever sends them, a ping takes 25 in all.
        ("stdio tools/list (100) / ping", 1.3, lists("stdio", name)),
        ("HTTP tools/list (100) / ping", 1.3, lists("http", name)),
        ("stdio idle wake-ups", 0.0, plain(f"stdio.{LEGACY}.idle", name)),
        ("HTTP idle wake-ups", 0.0, plain(f"http.{MODERN}.idle", name)),
    ]


MISSED = (
    "MISSED: a goal of the project that this run did not meet; nothing is broken. "
    "Times on a busy machine, or of a --quick run, miss some."
)


def table(results: Results) -> str:
    """One line a goal: limit, value, met or not; what that means, if one is not."""
    out = []
    for what, limit, function in goals():
        value = function(results)
        if value is not None:
            verdict = "met" if value <= limit else "MISSED"
            out.append(f"{what:48} <= {number(limit):>5} {number(value):>7}  {verdict}")
    if any(line.endswith("MISSED") for line in out):
        out += ["", MISSED]
    return "\n".join(out)
