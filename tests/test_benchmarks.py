"""The benchmarks compare like with like: the references answer what tinymcp answers."""

from __future__ import annotations

import contextlib
import sys
import unittest

if not sys.platform.startswith("linux"):
    raise unittest.SkipTest("the benchmarks read /proc")

from benchmarks import goals, report, targets
from benchmarks.client import LEGACY, MODERN, lines, payload, posts
from benchmarks.process import Process, python

KINDS = {
    MODERN: ("discover", "echo", "sensor", "read", "big"),
    LEGACY: ("initialize", "ping", "echo", "sensor", "read", "big"),
}


def answers(process: Process, era: str) -> dict[str, object]:
    """The result of one request of each kind, on a connection of its own."""
    found = {}
    connection = process.connect()
    if process.port:
        connection.socket.settimeout(20)
    connection.open(era)
    for number, kind in enumerate(KINDS[era], 10):
        if process.port:
            port, session = process.port, connection.session
            (request,) = posts(kind, 1, era, port, session, number)
        else:
            (request,) = lines(kind, 1, era, number)
        reply = payload(connection.call(request))
        if reply["id"] != number:
            raise AssertionError(f"{kind}: {reply}")
        found[kind] = reply["result"]
    if process.port:
        connection.close()
    return found


class SameAnswers(unittest.TestCase):
    """Byte order of members aside, all of them say the same."""

    maxDiff = None

    def targets(self, transport: str) -> list[targets.Target]:
        program = python()
        found = [*targets.own(program), *targets.references(program)]
        return [target for target in found if getattr(target, transport)]

    def test_stdio(self) -> None:
        """A process for each era, all started side by side."""
        known = self.targets("stdio")
        for era in (MODERN, LEGACY):
            with contextlib.ExitStack() as stack:
                running = [stack.enter_context(t.start("stdio")) for t in known]
                wanted = answers(running[0], era)
                for target, process in zip(known[1:], running[1:]):
                    with self.subTest(target=target.name, era=era):
                        self.assertEqual(answers(process, era), wanted)

    def test_http(self) -> None:
        """One process for both eras."""
        wanted = {}
        for target in self.targets("http"):
            with target.start("http") as process:
                for era in (MODERN, LEGACY):
                    found = answers(process, era)
                    with self.subTest(target=target.name, era=era):
                        self.assertEqual(found, wanted.setdefault(era, found))


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
        table = goals.table(self.results)
        self.assertRegex(table, r"stdio p50 inline / L1.* met")
        self.assertRegex(table, r"HTTP p50 inline / mcp.* MISSED\n")
        self.assertRegex(table, r"\nMISSED: a goal of the project that this run did")
        alone = {key: v for key, v in self.results.values.items() if key[1] != "mcp"}
        self.assertNotIn("MISSED", goals.table(report.Results(alone)))

    def test_picture_is_well_formed(self) -> None:
        from xml.dom import minidom

        drawn = minidom.parseString(report.picture(self.results))
        self.assertGreater(len(drawn.getElementsByTagName("rect")), 10)


if __name__ == "__main__":
    unittest.main()
