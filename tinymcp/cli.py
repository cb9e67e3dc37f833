# SPDX-License-Identifier: MIT
"""Command line beside the runtime: `check`, and commands for people (client)."""

from __future__ import annotations

import re

from .tinymcp import E, Server, _encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# What real clients and the model providers behind them refuse, found in their public
# bug reports; nothing here is a rule of the protocol.
_CALLABLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DESCRIPTION = 1024  # characters; some providers cut or refuse longer ones
_SCHEMA = 8192  # bytes; a model reads every schema before every answer
_TOOLS = 40  # some editors show a model no more


def check(server: Server) -> int:
    """Print what a server offers, with schema sizes in bytes, and what clients refuse.

    Returns the exit status: 1 if there are errors, else 0.
    """
    rows = [("", "name", "runs", "bytes in", "bytes out", "arguments")]
    notes = [*server.warnings]
    for kind in ("tool", "resource", "template", "prompt"):
        for record in getattr(server._registry, kind).items.values():
            rows.append(_row(kind, record))
            notes += _complaints(kind, record)
    if len(server._registry.tool.items) > _TOOLS:
        notes.append(f"more than {_TOOLS} tools: some clients show a model no more")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    total = sum(len(page) for page in _pages(server))
    print(f"\nall lists together: {total} bytes at {E}")
    errors = 0 if len(rows) > 1 else 1
    if errors:
        print("error: the server offers nothing")
    for note in dict.fromkeys(notes):
        print(f"warning: {note}")
    return 1 if errors else 0


def _pages(server: Server) -> Iterator[bytes]:
    for kind in ("tool", "resource", "template", "prompt"):
        items = list(getattr(server._registry, kind).items.values())
        yield server._page(E, kind, items)


def _row(kind: str, record: Any) -> tuple[str, ...]:
    runs = "inline" if record.inline else "async" if record.is_async else "worker"
    if record.lane:
        runs += f" [{record.lane}]"
    schema = record.fields.get("inputSchema")
    output = record.fields.get("outputSchema")
    names = list((schema or {}).get("properties") or record.properties or ())
    return (
        kind,
        record.name,
        runs,
        str(len(_encode(schema))) if schema else "",
        str(len(_encode(output))) if output else "",
        ", ".join(names),
    )


def _complaints(kind: str, record: Any) -> Iterator[str]:
    where = f"{kind} {record.name!r}"
    text = record.fields.get("description") or ""
    if len(text) > _DESCRIPTION:
        yield f"{where}: description over {_DESCRIPTION} characters"
    if kind == "tool":
        if not _CALLABLE_NAME.fullmatch(record.name):
            yield f"{where}: some models call only names of A-Z a-z 0-9 _ -, up to 64"
        schema = record.fields["inputSchema"]
        if len(_encode(schema)) > _SCHEMA:
            yield f"{where}: input schema over {_SCHEMA} bytes"
        for key in ("anyOf", "oneOf", "allOf", "$ref"):
            if key in schema:
                yield f"{where}: {key} at the root of a schema is refused by some models"
        yield from (f"{where}: {fault}" for fault in sorted(set(_faults(schema))))
    elif kind in ("resource", "template") and re.search(r"\s", record.name):
        yield f"{where}: white space in a URI"


def _faults(schema: Any) -> Iterator[str]:
    """Constructs of one schema that some model providers refuse."""
    if isinstance(schema, bool):
        yield "a boolean as a schema is refused by some models"
    if not isinstance(schema, dict):
        return
    if "$ref" in schema or "$defs" in schema:
        yield "$ref and $defs are refused by some models"
    if isinstance(schema.get("type"), list):
        yield "a list of types is refused by some models; use anyOf"
    for name, child in (schema.get("properties") or {}).items():
        if not _PROPERTY_NAME.fullmatch(name):
            yield f"argument {name!r} is no A-Z a-z 0-9 _ . -, up to 64"
        yield from _faults(child)
    for key in ("items", "additionalProperties", "not", "if", "then", "else"):
        if key in schema and not (key == "additionalProperties" and schema[key] is False):
            yield from _faults(schema[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for child in schema.get(key, ()):
            yield from _faults(child)
