"""Values to medians, ratios, a table, Markdown, and a picture."""

from __future__ import annotations

import statistics

from .client import LEGACY, MODERN

# (row after the transport, label, unit, digits); {era} rows come once per era
STDIO = [
    ("{era}.cold", "cold start to first reply", "ms"),
    ("{era}.echo.p50", "echo p50", "us"),
    ("{era}.echo.p99", "echo p99", "us"),
    ("{era}.cpu", "CPU per call", "us"),
    ("{era}.rate", "pipelined", "calls/s"),
    ("{era}.big.p50", "64 KiB argument p50", "us"),
    ("{era}.list.p50", "tools/list, 100 tools p50", "us"),
    ("{era}.ping.p50", "ping p50", "us"),
    ("{era}.idle", "idle wake-ups", "/s"),
    ("start.rss", "RSS after start", "MB"),
    ("start.pss", "PSS after start", "MB"),
    ("start.uss", "USS after start", "MB"),
    ("loaded.rss", "RSS after 1,000 calls", "MB"),
    ("loaded.pss", "PSS after 1,000 calls", "MB"),
    ("loaded.uss", "USS after 1,000 calls", "MB"),
]
HTTP = [
    *STDIO[:4],
    ("{era}.rate1", "1 connection", "calls/s"),
    ("{era}.rate8", "8 connections", "calls/s"),
    ("{era}.rate64", "64 connections", "calls/s"),
    ("{era}.new", "a new connection per call p50", "us"),
    *STDIO[5:],
    ("connections64.pss", "PSS with 64 connections", "MB"),
    ("connections500.pss", "PSS with 500 connections", "MB"),
    ("sessions500.pss", "PSS with 500 legacy sessions", "MB"),
    ("streams100.pss", "PSS with 100 listen streams", "MB"),
    ("connection", "USS per idle connection", "kB"),
    ("session", "USS per legacy session", "kB"),
    ("stream", "USS per listen stream", "kB"),
    ("fanout.rate", "update to 100 listeners", "updates/s"),
    ("fanout.p99", "update to 100 listeners, p99 delay", "ms"),
]
FOOT = [
    ("size", "installed", "MB"),
    ("packages", "packages", ""),
    ("import", "import", "ms"),
]


class Results:
    """Medians and quartiles of one run."""

    def __init__(self, values: dict[tuple[str, str], list[float]]) -> None:
        self.values = values
        self.names = list(dict.fromkeys(name for _, name in values))

    def get(self, row: str, name: str) -> float | None:
        found = self.values.get((row, name))
        return statistics.median(found) if found else None

    def ratio(self, row: str, name: str, base: str) -> float | None:
        """The median of the rounds' ratios: what disturbs a round disturbs both."""
        mine, other = self.values.get((row, name)), self.values.get((row, base))
        if not mine or not other:
            return None
        if len(mine) != len(other):
            mine, other = [statistics.median(mine)], [statistics.median(other)]
        found = [value / base for value, base in zip(mine, other) if base]
        return statistics.median(found) if found else None

    def spread(self, row: str, name: str) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        found = self.values[row, name]
        if len(found) < 4:
            return 0.0
        low, middle, high = statistics.quantiles(found, n=4)
        return (high - low) / 2 / middle if middle else 0.0

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(row, label, unit, base of the ratios), those that have values."""
        out = [(row, label, unit, "") for row, label, unit in FOOT]
        for transport, table, base in (("stdio", STDIO, "L1"), ("http", HTTP, "L3")):
            for row, label, unit in table:
                for era in (MODERN, LEGACY) if "{era}" in row else ("",):
                    full = f"{transport}.{row.format(era=era)}"
                    text = f"{transport} {era + ' ' if era else ''}{label}"
                    out.append((full, text, unit, base))
        known = {row for row, _ in self.values}
        return [entry for entry in out if entry[0] in known]

    def cell(self, row: str, name: str, base: str) -> str:
        value = self.get(row, name)
        if value is None:
            return "-"
        text = number(value)
        spread = self.spread(row, name)
        if spread >= 0.005:
            text += f" ±{spread * 100:.0f}%"
        ratio = self.ratio(row, name, base)
        if ratio is not None and name != base:
            text += f" ({number(ratio)}x)"
        return text

    def grid(self) -> list[list[str]]:
        head = ["", *self.names]
        body = []
        for row, label, unit, base in self.rows():
            cells = [self.cell(row, name, base) for name in self.names]
            body.append([f"{label}, {unit}" if unit else label, *cells])
        return [head, *body]

    def plain(self) -> str:
        grid = self.grid()
        widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
        out = []
        for line in grid:
            cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
            out.append("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
        return "\n".join(out)

    def markdown(self) -> str:
        grid = self.grid()
        rule = ["---", *["--:"] * (len(grid[0]) - 1)]
        return "\n".join(
            "| " + " | ".join(r) + " |" for r in [grid[0], rule, *grid[1:]]
        )

    def as_json(self) -> dict:
        out: dict = {}
        for (row, name), found in self.values.items():
            entry = {"median": self.get(row, name), "values": found}
            out.setdefault(row, {})[name] = entry
        return out


def number(value: float) -> str:
    """Three digits that matter."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def picture(results: Results) -> str:
    """p50, memory and cold start as bars: one column each, stdio above HTTP."""
    columns = [
        ("{t}.{era}.echo.p50", "one call, p50", "us"),
        ("{t}.loaded.pss", "memory (PSS) after 1,000 calls", "MB"),
        ("{t}.{era}.cold", "spawn to first reply", "ms"),
    ]
    parts, top = [], 46
    for transport, title, base in (
        ("stdio", "stdio", "L1"),
        ("http", "Streamable HTTP", "L3"),
    ):
        peers = [n for n in results.names if n[0] != "L" and n[:4] != "tiny"]
        names = ["tiny inline", base, *peers]
        names = [n for n in names if results.get(f"{transport}.loaded.pss", n)]
        parts.append(f'<text x="16" y="{top}" class="t">{title}</text>')
        for place, (row, label, unit) in enumerate(columns):
            x = 16 + place * 300
            parts.append(f'<text x="{x}" y="{top + 22}">{label}, {unit}</text>')
            parts += bars(results, row, transport, names, x, top + 32)
        top += 60 + 20 * len(names)
    style = (
        "text{font:12px sans-serif;fill:#24292f}.t{font-size:15px;font-weight:bold}"
        ".n{fill:#57606a}.o{fill:#1a7f37}.r{fill:#afb8c1}.p{fill:#0969da}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="920" height="{top - 18}">'
        f"<style>{style}</style>"
        '<rect width="100%" height="100%" rx="8" fill="#fff"/>'
        '<text x="16" y="22">tinymcp with inline handlers, a bare loop that answers '
        "the same JSON, and other servers. Shorter is better.</text>"
        + "".join(parts)
        + "</svg>\n"
    )


def bars(results, row: str, transport: str, names, x: int, y: int) -> list[str]:
    """One column of bars; a target without the modern era shows its legacy value."""

    def value(name: str) -> float | None:
        found = results.get(row.format(t=transport, era=MODERN), name)
        legacy = row.format(t=transport, era=LEGACY)
        return results.get(legacy, name) if found is None else found

    values = {name: value(name) for name in names}
    most = max((v for v in values.values() if v), default=1.0)
    out = []
    for name, found in values.items():
        if found is None:
            continue
        kind = "o" if name.startswith("tiny") else "r" if name[0] == "L" else "p"
        shown = {"o": "tinymcp", "r": "bare loop"}.get(kind, name)
        width = max(2.0, 140 * found / most)
        out.append(
            f'<text x="{x}" y="{y + 12}" class="n">{shown}</text>'
            f'<rect x="{x + 74}" y="{y + 2}" width="{width:.1f}" height="13" rx="2" '
            f'class="{kind}"/>'
            f'<text x="{x + 80 + width:.1f}" y="{y + 12}">{number(found)}</text>'
        )
        y += 20
    return out
