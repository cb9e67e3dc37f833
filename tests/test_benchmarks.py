"""The benchmarks compare like with like: the references answer what tinymcp answers."""

from __future__ import annotations

import sys
import unittest

if not sys.platform.startswith("linux"):
    raise unittest.SkipTest("the benchmarks read /proc")

from benchmarks import goals, report, targets
from benchmarks.client import LEGACY, MODERN, lines, payload, posts
from benchmarks.process import python

KINDS = {
    MODERN: ("discover", "echo", "sensor", "read", "big"),
    LEGACY: ("initialize", "ping", "echo", "sensor", "read", "big"),
}


def answers(target: targets.Target, transport: str, era: str) -> dict[str, object]:
    """The result of one request of each kind."""
    found = {}
    with target.start(transport) as process:
        connection = process.connect()
        if transport == "http":
            connection.socket.settimeout(20)
        connection.open(era)
        for number, kind in enumerate(KINDS[era], 10):
            if transport == "stdio":
                (request,) = lines(kind, 1, era, number)
            else:
                port, session = process.port, connection.session
                (request,) = posts(kind, 1, era, port, session, number)
            reply = payload(connection.call(request))
            if reply["id"] != number:
                raise AssertionError(f"{kind}: {reply}")
            found[kind] = reply["result"]
    return found


class SameAnswers(unittest.TestCase):
    """Byte order of members aside, all of them say the same."""

    maxDiff = None

    def compare(self, transport: str) -> None:
        program = python()
        mine = targets.own(program)
        others = targets.references(program)
        others = [t for t in others if getattr(t, transport)]
        for era in (MODERN, LEGACY):
            wanted = answers(mine[0], transport, era)
            for target in [*mine[1:], *others]:
                with self.subTest(target=target.name, era=era):
                    self.assertEqual(answers(target, transport, era), wanted)

    def test_stdio(self) -> None:
        self.compare("stdio")

    def test_http(self) -> None:
        self.compare("http")


class Reports(unittest.TestCase):
    """The table, the goals and the picture from values that are made up."""

    def setUp(self) -> None:
        rows = {}
        for place, name in enumerate(("tiny inline", "tiny async", "L1", "L3", "mcp")):
            for transport in ("stdio", "http"):
                rows[f"{transport}.loaded.pss", name] = [10.0 + place]
                for what in ("echo.p50", "cold"):
                    row = f"{transport}.{MODERN}.{what}"
                    rows[row, name] = [20.0 + place, 20.0, 21.0, 30.0, 21.0]
        self.results = report.Results(rows)

    def test_table_has_medians_spread_and_ratios(self) -> None:
        table = self.results.plain()
        self.assertIn("stdio 2026-07-28 echo p50, us", table)
        self.assertRegex(table, r"21 ±\d+% \(1x\)")
        self.assertIn("| --: |", self.results.markdown())

    def test_goals_are_judged(self) -> None:
        self.assertRegex(goals.table(self.results), r"stdio p50 inline / L1.* met")

    def test_picture_is_well_formed(self) -> None:
        from xml.dom import minidom

        drawn = minidom.parseString(report.picture(self.results))
        self.assertGreater(len(drawn.getElementsByTagName("rect")), 10)


if __name__ == "__main__":
    unittest.main()
