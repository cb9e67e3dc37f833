"""A second process for the tests that work with child processes most of the time.

Each test is still reported by its own name in the one run: the process is told the
names, and tells for each what came out. One processor alone gains nothing by it.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import unittest

MODULES = (
    "benchmarks cli client ending examples oauth package readme transports".split()
)
FEW = 300  # so many tests are over before a second process pays


def processors():
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flat(suite):
    """The test cases of a suite of suites, in order."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def split(suite):
    """The same tests in another suite, those of MODULES beside the others."""
    names = {f"{__package__}.test_{module}" for module in MODULES}
    there = [test for test in flat(suite) if type(test).__module__ in names]
    if processors() < 2 or suite.countTestCases() < FEW or not there:
        return suite
    return unittest.TestSuite([without(suite, names), Beside(there)])


def without(suite, modules):
    """The suites of classes stay whole: what a class sets up is set up once."""
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(without(test, modules))
        elif type(test).__module__ not in modules:
            kept.addTest(test)
    return kept


class Beside(unittest.TestSuite):
    """Tests that have been running in another process since they were loaded."""

    def __init__(self, tests):
        super().__init__(tests)
        self.told, self.noise = (
            tempfile.TemporaryFile("w+"),
            tempfile.TemporaryFile("w+"),
        )
        self.process = subprocess.Popen(
            [sys.executable, *flags(), "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=self.told,
            stderr=self.noise,
            text=True,
        )
        atexit.register(self.process.kill)
        with self.process.stdin as pipe:
            json.dump([test.id() for test in tests], pipe)

    def run(self, result, debug=False):
        self.process.wait()
        told = dict(self.lines(self.told))
        with self.noise as noise:
            noise.seek(0)
            last = noise.read()[-4000:]
        for test in self:
            outcomes = told.pop(test.id(), [["error", f"it did not run: {last}"]])
            result.startTest(test)
            for kind, text in outcomes:
                report(result, test, kind, text)
            result.stopTest(test)
        for name, outcomes in told.items():  # setUpClass and the like
            for kind, text in outcomes:
                report(result, Elsewhere(name), kind, text)
        return result

    def lines(self, file):
        with file:
            file.seek(0)
            return [json.loads(line) for line in file]


class Elsewhere(unittest.TestCase):
    """What failed there and is no test, by its name."""

    def __init__(self, name):
        super().__init__("run")
        self.name = name

    def id(self):
        return self.name

    __str__ = shortDescription = id


def report(result, test, kind, text):
    fault = (AssertionError, AssertionError(text), None)
    if kind == "success":
        result.addSuccess(test)
    elif kind == "skip":
        result.addSkip(test, text)
    elif kind == "failure":
        result.addFailure(test, fault)
    else:
        result.addError(test, fault)


def flags():
    """Those of this interpreter, as far as they change what tests see."""
    return [f"-W{option}" for option in sys.warnoptions]


class Teller(unittest.TestResult):
    """One line of JSON for each test: its name and what came out."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def stopTest(self, test):
        super().stopTest(test)
        self.tell(test.id())

    def tell(self, name):
        found = [["failure", text] for _, text in self.failures]
        found += [["error", text] for _, text in self.errors]
        found += [["skip", reason] for _, reason in self.skipped]
        for lists in (self.failures, self.errors, self.skipped):
            lists.clear()
        print(json.dumps([name, found or [["success", ""]]]), file=self.out, flush=True)

    def addError(self, test, error):
        super().addError(test, error)
        if not isinstance(test, unittest.TestCase):  # of a class or a module
            self.tell(str(test))


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is not for the other process
    names = json.load(sys.stdin)
    sys.stdin = open(os.devnull)
    result = Teller(out)
    unittest.defaultTestLoader.loadTestsFromNames(names).run(result)


if __name__ == "__main__":
    main()
