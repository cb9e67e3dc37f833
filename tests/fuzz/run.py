"""make fuzz: what tests/test_fuzz.py looks for, with hypothesis, for longer.

python3 tests/fuzz/run.py [--seconds 60]    makes its own environment below .cache/

Hypothesis makes messages from the grammar of JSON-RPC and MCP, and from none, and
shrinks what breaks an invariant to the smallest input that does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "fuzz"
HYPOTHESIS = "hypothesis==6.141.1"  # the last release for 3.9


def environment() -> str:
    """The Python of an environment that has hypothesis."""
    python = HOME / "bin" / "python"
    made = HOME / ".made"
    if not made.exists() or made.read_text("utf-8") != HYPOTHESIS:
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, HYPOTHESIS], check=True)
        made.write_text(HYPOTHESIS, "utf-8")
    return str(python)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    try:
        import hypothesis  # noqa: F401  (is it here?)
    except ImportError:
        python = environment()
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([python, __file__, *sys.argv[1:]], env=env).returncode
    sys.path.insert(0, str(ROOT))
    for name, test in tests(options.seconds / 3).items():
        began = time.monotonic()
        test()
        print(f"{name}: nothing found in {time.monotonic() - began:.0f} s")
    return 0


def tests(seconds: float):
    """The three searches, by name."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    from tests import test_fuzz as plain

    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
    )
    values = st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=5), inner)
        ),
        max_leaves=12,
    )
    message = st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0") | values},
        optional={
            "id": st.integers(0, 5) | st.text(max_size=3) | values,
            "method": st.sampled_from(METHODS) | values,
            "params": st.fixed_dictionaries(
                {}, optional=dict.fromkeys(MEMBERS, values)
            ),
            "result": values,
            "error": values,
        },
    )
    encoded = (message | values).map(lambda v: json.dumps(v).encode())
    batch = st.lists(message, max_size=4).map(lambda v: json.dumps(v).encode())
    line = (encoded | batch | st.binary(max_size=200)).map(
        lambda data: data.replace(b"\n", b" ")
    )
    lines = st.lists(line | st.sampled_from(plain.messages()), min_size=1, max_size=8)
    piece = st.binary(max_size=40) | st.sampled_from(plain.HTTP_WORDS)

    how = settings(
        max_examples=50,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    def search(strategy, function):
        """Run after run until the time is up: hypothesis itself only counts."""
        end = time.monotonic() + seconds
        run = how(given(strategy)(lambda data: function(data)))
        while time.monotonic() < end:
            run()

    def on_stdio():
        case = plain.Lines()

        def talk(data):
            given_lines, loop, handshake = data
            server = plain.fixture(loop, limits=plain.Limits(**plain.LIMITS))
            server.proceed.set()
            with plain.Wire(server, loop) as wire:
                if handshake:
                    wire.send(plain.hello("2025-03-26"))
                wire.send(*(each + b"\n" for each in given_lines))
                wire.send(plain.line("ping", id="the end"))
                found = wire.end()
            case.judge(given_lines, found)

        search(st.tuples(lines, st.booleans(), st.booleans()), talk)

    def over_http(make):
        case = plain.Http()
        case.setUp()
        try:
            seeds = case.seeds()

            def talk(data):
                case.exchange(data, 2)
                with socket.create_connection(("127.0.0.1", case.live.port), 10) as one:
                    one.sendall(plain.modern("tools/list"))
                    assert b" 200 " in one.recv(100)

            search(make(seeds), talk)
        finally:
            case.doCleanups()

    def bodies(seeds):
        headers = [("Accept", "application/json")]
        return line.map(lambda body: plain.request(body=body, headers=headers))

    def bytes_of(seeds):
        def join(data, at, inner):
            at = min(at, len(data))
            return data[:at] + inner + data[at:]

        place = st.integers(0, 400)
        return st.builds(join, st.sampled_from(seeds), place, piece) | st.binary()

    return {
        "stdio": on_stdio,
        "HTTP bodies": lambda: over_http(bodies),
        "HTTP bytes": lambda: over_http(bytes_of),
    }


METHODS = """initialize ping tools/list tools/call resources/list resources/read
resources/templates/list resources/subscribe resources/unsubscribe prompts/list
prompts/get completion/complete logging/setLevel server/discover subscriptions/listen
notifications/initialized notifications/cancelled x""".split()
MEMBERS = """name arguments uri _meta cursor ref argument context level requestId
protocolVersion capabilities clientInfo notifications progressToken inputResponses
requestState resourceSubscriptions text a b x""".split()

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
