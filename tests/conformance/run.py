"""Runs the official MCP conformance suite against server.py and client.py.

python3 tests/conformance/run.py [--only server|client] [--keep DIR] [--port N]

Needs node and npm; the suite is installed, pinned, below .cache/. A FAILURE or WARNING
in a scored scenario, or in one of ALSO, is an error. Nothing is expected to fail.
"""

import argparse
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SETS = {  # scored scenarios in each
    ("server", "2025-11-25"): 30,
    ("server", "2026-07-28"): 37,
    ("client", "2025-11-25"): 18,
    ("client", "2026-07-28"): 32,
}
# Not scored by the suite, but wanted here.
ALSO = {
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "json-schema-2020-12-preservation",
    "http-custom-header-server-validation",
    "http-header-validation",
    "json-schema-2020-12",
    "server-session-lifecycle",
    "server-sse-polling",
}
# Rows of requirements.txt that a scenario guards from outside.
ROWS = {
    "caching": "CCH-01",
    "dns-rebinding-protection": "SEC-01 SEC-02",
    "elicitation-sep1034-defaults": "ELI-01",
    "elicitation-sep1330-enums": "ELI-01",
    "http-custom-header-server-validation": "HTM-09 HTM-13",
    "http-header-validation": "HTM-06 HTM-07 HTM-08 HTM-10 HTM-20",
    "input-required-result-capability-check": "MRT-02",
    "input-required-result-ignore-extra-params": "MRT-07",
    "input-required-result-missing-input-response": "MRT-07",
    "input-required-result-multi-round": "MRT-09",
    "input-required-result-multiple-input-requests": "MRT-09",
    "input-required-result-request-state": "MRT-04",
    "input-required-result-tampered-state": "MRT-03",
    "input-required-result-unsupported-methods": "MRT-01",
    "input-required-result-validate-input": "MRT-07",
    "json-schema-2020-12": "SCH-01 SCH-05",
    "prompts-get-with-image": "PRM-01",
    "resources-read-binary": "RES-02",
    "resources-subscribe": "RES-05",
    "sep-2164-resource-not-found": "RES-01",
    "server-initialize": "LIF-01 HTL-07",
    "server-session-lifecycle": "HTL-04 HTL-05",
    "server-sse-multiple-streams": "HTL-10",
    "server-sse-polling": "HTL-12",
    "server-stateless": "ERR-01 ERR-02 ERR-04 MET-01 MET-02 SUB-01 SUB-02 VER-01",
    "tools-call-elicitation": "HTL-09",
    "tools-call-mixed-content": "TOL-09",
    "tools-call-sampling": "HTL-09",
    "tools-call-with-logging": "LOG-02",
    "tools-call-with-progress": "PRG-01",
    "tools-list": "TOL-01 TOL-11",
}

HERE = pathlib.Path(__file__).resolve().parent
PLACE = HERE.parents[1] / ".cache" / "conformance"
PACKAGE = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance"


def install():
    """Installs the suite unless this version is there already."""
    try:
        installed = json.loads((PACKAGE / "package.json").read_text("utf-8"))["version"]
    except OSError:
        installed = None
    if installed != SUITE.rpartition("@")[2]:
        for program in ("node", "npm"):
            if not shutil.which(program):
                raise SystemExit(f"the conformance suite needs {program}")
        options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]
        place = ["--prefix", str(PLACE)]
        subprocess.run(["npm", "install", *place, *options, SUITE], check=True)


def scenarios(side, revision):
    """(scored, not scored) scenarios of a set, from the suite's own list.

    The list is YAML of one shape: top-level keys, and below them items of one line, or
    of `- scenario: NAME` followed by `leg: server` or `leg: client`.
    """
    text = (PACKAGE / "requirements" / f"{revision}.yaml").read_text("utf-8")
    parts = dict(re.findall(r"^(\w+):\n((?:(?: .*)?\n)+)", text + "\n", re.MULTILINE))
    scored = re.findall(r"^ +- (\S+)$", parts[side], re.MULTILINE)
    pattern = rf"- scenario: (\S+)\n +leg: {side}\n"
    return scored, re.findall(pattern, parts["not_scored"])


def start(port):
    """The fixture as a process that listens; SystemExit if it does not come up."""
    command = [sys.executable, str(HERE / "server.py"), "--port", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process
        except OSError:
            time.sleep(0.05)
    stop(process)
    raise SystemExit("the fixture does not listen")


def stop(process):
    """Ends the fixture, and nothing else."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print("the fixture did not end on SIGTERM and was killed")


def judge(side, revision, port, folder):
    """Runs one set; returns {scenario: its checks}."""
    whom = ["--url", f"http://localhost:{port}/mcp"]
    if side == "client":
        # All clients of a set run at once: time enough for a busy machine.
        command = f'"{sys.executable}" "{HERE / "client.py"}"'
        whom = ["--command", command, "--timeout", "120000"]
    subprocess.run(
        [
            *("node", "--import", str(HERE / "node20-shim.mjs")),
            *(str(PACKAGE / "dist" / "index.js"), side, *whom),
            *("--requirements", revision, "-o", str(folder)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # what counts is in checks.json
        timeout=600,
    )
    results = {}
    for path in sorted(folder.glob("**/checks.json")):
        place = path.parent.relative_to(folder).as_posix()
        name = re.fullmatch(r"(?:server-)?(.+?)-\d{4}-\d\d-\d\dT[\d-]+Z", place)
        results[name[1]] = json.loads(path.read_text("utf-8"))
    return results


def report(side, revision, results):
    """Prints the table of one set; returns how many scenarios are wrong."""
    scored, others = scenarios(side, revision)
    wrong = passed = 0
    print(f"\n{side}, {revision}")
    for name in scored + others:
        checks = results.get(name, [])
        counted = name in scored or name in ALSO
        bad = [c for c in checks if c["status"] in ("FAILURE", "WARNING")]
        good = sum(c["status"] == "SUCCESS" for c in checks)
        ok = bool(good) and not bad
        word = "pass" if ok else "FAIL" if counted else "-"
        kind = "scored" if name in scored else "wanted" if counted else "unscored"
        count = f"{good}/{good + len(bad)}"
        print(f"  {word:4} {count:>5} {kind:8} {name:46} {ROWS.get(name, '')}".rstrip())
        wrong += counted and not ok
        passed += ok and name in scored
        for check in bad if counted else []:
            print("      ", check["status"], check["id"], check.get("errorMessage"))
    print(f"  {passed} of {len(scored)} scored scenarios pass")
    if len(scored) != SETS[side, revision]:
        print(f"  the set should have {SETS[side, revision]} scored scenarios")
        wrong += 1
    return wrong


def free_port():
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    """Installs, serves, judges, reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="DIR", help="leave the suite's results there")
    parser.add_argument("--port", type=int, help="judge the server that listens there")
    parser.add_argument("--only", choices=("server", "client"), help="one side")
    options = parser.parse_args()
    install()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.keep or temporary)
        port = options.port or free_port()
        served = options.port or options.only == "client"
        process = None if served else start(port)
        try:
            for side, revision in SETS:
                if options.only in (None, side):
                    results = judge(side, revision, port, folder / side / revision)
                    wrong += report(side, revision, results)
        finally:
            if process:
                stop(process)
    print(f"\nconformance: {'all passed' if not wrong else f'{wrong} wrong'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
