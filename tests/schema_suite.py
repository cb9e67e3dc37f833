"""Judge the schema checker with the official JSON-Schema-Test-Suite: make schema-suite.

    python3 tests/schema_suite.py              draft 2020-12, all required tests
    python3 tests/schema_suite.py --optional   also the optional ones, for information

The suite comes with the source distribution of the PyPI package jsonschema, which pip
downloads into .cache/ once. What is skipped is listed below with its reason, and has to
be refused by the runtime with a DefinitionError: it never fetches a document (SCH-03)
and never takes a dialect for another (SCH-02). Exit status 1 if anything differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tinymcp  # noqa: E402  (the path is set first)

rt = sys.modules[tinymcp.Server.__module__]

PACKAGE = "jsonschema==4.26.0"
CACHE = ROOT / ".cache"
REMOTE = "needs a remote document"
METASCHEMA = "needs the 2020-12 meta-schema, a remote document"
LINK = "tests for implementation dynamic anchor and reference link"
ORDER = "$ref and $dynamicAnchor are independent of order - "
SKIPPED = {
    "refRemote.json": REMOTE,
    "vocabulary.json": "needs a custom vocabulary, by a $schema of its own",
    "defs.json: validate definition against metaschema": METASCHEMA,
    "ref.json: remote ref, containing refs itself": METASCHEMA,
    "dynamicRef.json: strict-tree schema, guards against misspelled properties": REMOTE,
    f"dynamicRef.json: {LINK}": REMOTE,
    f"dynamicRef.json: {ORDER}$defs first": REMOTE,
    f"dynamicRef.json: {ORDER}$ref first": REMOTE,
    "dynamicRef.json: $ref to $dynamicRef finds detached $dynamicAnchor": REMOTE,
}
# Left out even for information: other drafts, and `format` as an assertion.
NOT_OURS = ("cross-draft", "format", "format-assertion", "dependencies-compatibility")


def suite() -> Path:
    name = PACKAGE.replace("==", "-")
    folder = CACHE / name / "json" / "tests" / "draft2020-12"
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--no-binary", "jsonschema"]
        subprocess.run([*command, "--dest", str(CACHE), PACKAGE], check=True)
        with tarfile.open(CACHE / f"{name}.tar.gz") as archive:
            for member in archive.getmembers():
                inside = member.name.startswith(f"{name}/json/tests/draft2020-12/")
                if inside and member.isfile():
                    target = CACHE / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    assert content is not None
                    target.write_bytes(content.read())
    return folder


class Counts:
    def __init__(self) -> None:
        self.passed = self.skipped = 0
        self.failed: list[str] = []
        self.reasons: dict[str, int] = {}

    def skip(self, group: dict, label: str, reason: str) -> None:
        """A skipped case is a promise, too: the runtime refuses its schema."""
        try:
            rt._compile(group["schema"], "suite")
        except rt.DefinitionError:
            self.skipped += len(group["tests"])
            self.reasons[reason] = self.reasons.get(reason, 0) + len(group["tests"])
            print(f"skip  {len(group['tests']):3} {label} ({reason})")
        else:
            self.failed.append(f"{label}: listed as skipped, but it compiles")

    def run(self, group: dict, label: str) -> None:
        try:
            check = rt._compile(group["schema"], "suite")
        except Exception as error:
            count = len(group["tests"])
            self.failed += [f"{label}: {type(error).__name__}: {error}"] * count
            return
        for test in group["tests"]:
            wrong = check(test["data"])
            if (wrong is None) == test["valid"]:
                self.passed += 1
            else:
                detail = f"valid: {test['valid']}, got: {wrong}"
                self.failed.append(f"{label}: {test['description']}: {detail}")


def judge(folder: Path, counts: Counts) -> None:
    for file in sorted(folder.glob("*.json")):
        if file.stem in NOT_OURS:
            continue
        for group in json.loads(file.read_text(encoding="utf-8")):
            label = f"{file.name}: {group['description']}"
            reason = SKIPPED.get(label) or SKIPPED.get(file.name)
            if reason:
                counts.skip(group, label, reason)
            else:
                counts.run(group, label)


def main() -> int:
    folder = suite()
    counts = Counts()
    judge(folder, counts)
    if "--optional" in sys.argv:
        optional = Counts()
        judge(folder / "optional", optional)
        for line in optional.failed:
            print("optional", line)
        print(f"optional: {optional.passed} passed, {len(optional.failed)} differ")
    for line in counts.failed:
        print("FAIL", line)
    for reason, count in counts.reasons.items():
        print(f"{count} skipped: {reason}")
    print(f"JSON-Schema-Test-Suite of {PACKAGE}, draft2020-12, required tests:")
    print(
        f"{counts.passed} passed, {len(counts.failed)} failed, {counts.skipped} skipped"
    )
    return 1 if counts.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
