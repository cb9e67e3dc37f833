"""Prints the rows of requirements.txt that no test names; exit code 1 if there are any.

A test names a row by its id, RPC-01 or rpc_01, anywhere in its source.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = (
    "test_*.py",
    "schema_suite.py",
    "interop/*.py",
    "interop/*.mjs",
    "conformance/run.py",
)
# These guard the client's half of a row.
CLIENT = {"test_client.py", "test_transports.py", "test_oauth.py"}


def rows(text):
    """{id: rule} of the text of requirements.txt."""
    found = re.findall(r"^([A-Z]{3}-\d\d) (.+)$", text, re.MULTILINE)
    if len(dict(found)) != len(found):
        raise SystemExit("requirements.txt: an id stands there twice")
    return dict(found)


def named():
    """The ids that stand in the sources of the tests."""
    ids = set()
    for pattern in SOURCES:
        for path in HERE.glob(pattern):
            if path.name in CLIENT:
                continue
            for group, number in re.findall(
                r"(?<![A-Za-z])([A-Za-z]{3})[-_](\d\d)(?!\d)", path.read_text("utf-8")
            ):
                ids.add(f"{group.upper()}-{number}")
    return ids


def main():
    """Compares the two."""
    wanted = rows((HERE / "requirements.txt").read_text("utf-8"))
    tested = named()
    missing = [name for name in wanted if name not in tested]
    for name in missing:
        print(f"{name} {wanted[name]}")
    print(f"{len(wanted)} rows, {len(missing)} that no test names")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
