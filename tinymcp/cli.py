# SPDX-License-Identifier: MIT
"""Command line beside the runtime: `check`, and commands for people (client)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys

from .tinymcp import (
    _TEXTS,
    E,
    InputRequired,
    MCPError,
    Server,
    _compile,
    _decode,
    _encode,
    _encode_text,
    _Signature,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from .client import Client

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
    head = ("", "name", "runs", "bytes in", "bytes out", "arguments")
    rows: list[tuple[str, ...]] = [head]
    notes = [*server.warnings]
    for kind in ("tool", "resource", "template", "prompt"):
        for record in getattr(server._registry, kind).items.values():
            rows.append(_row(kind, record))
            notes += _complaints(kind, record)
    if len(server._registry.tool.items) > _TOOLS:
        notes.append(f"more than {_TOOLS} tools: some clients show a model no more")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        _print("  ".join(cells).rstrip())
    total = sum(len(page) for page in _pages(server))
    print(f"\nall lists together: {total} bytes at {E}")
    errors = 0 if len(rows) > 1 else 1
    if errors:
        print("error: the server offers nothing")
    for note in dict.fromkeys(notes):
        _print(f"warning: {note}")
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
        _line(record.name),
        _line(runs),
        str(len(_encode(schema))) if schema else "",
        str(len(_encode(output))) if output else "",
        _line(", ".join(names)),
    )


def _complaints(kind: str, record: Any) -> Iterator[str]:
    where = f"{kind} {record.name!r}"
    yield from (f"{where}, parameter {fault}" for fault in _untyped(record))
    if kind != "prompt":
        returns = _Signature(record.function, record.name, free=True).returns
        for name in dict.fromkeys(_formless(returns)):
            yield f"{where}: a {name} has no JSON form; calls that return one fail"
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
                yield f"{where}: some models refuse {key} at the root of a schema"
        yield from (f"{where}: {fault}" for fault in sorted(set(_faults(schema))))
    elif kind in ("resource", "template") and re.search(r"\s", record.name):
        yield f"{where}: white space in a URI"


def _untyped(record: Any) -> Iterator[str]:
    """Parameters of a function that a model may misunderstand."""
    schema = record.fields.get("inputSchema") or {"properties": record.properties}
    properties = dict(schema.get("properties") or {})
    for parameter in _Signature(record.function, record.name, free=True).parameters:
        name = parameter.name
        field = properties.get(name)
        bare = isinstance(field, dict) and not field.keys() - {"default", "description"}
        if not bare or parameter.annotation is not object:
            continue
        if name in ("ctx", "context"):
            text = f"for the Context write {name}: Context"
            yield f"{name!r} is an argument of the model; {text}"
        elif record.kind == "tool":  # others get text
            yield f"{name!r} takes any JSON: give it a type"
    for name, field in properties.items():
        if isinstance(field, dict) and "default" in field:
            alone = {**schema, "properties": {name: field}, "required": []}
            wrong = _compile(alone, record.name)({name: field["default"]})
            if wrong:
                yield f"{name!r}: its schema refuses its default: {wrong}"


_PLAIN: Any = (str, int, float, bytes, bytearray, memoryview, type(None))
_PLAIN += (dict, list, tuple, set, frozenset, InputRequired)
_FORMS = (  # what gives a class that is none of these a JSON form
    "__members__ __dataclass_fields__ __fspath__ __index__ _mcp_content"
    " as_integer_ratio isoformat model_dump"
).split()


def _formless(hint: Any) -> Iterator[str]:
    """The classes in an annotation that a result cannot hold, as `_plain` sees them."""
    hint = getattr(hint, "__supertype__", hint)  # of a NewType
    for part in getattr(hint, "__args__", None) or ():
        yield from _formless(part)
    kind = getattr(hint, "__origin__", None) or hint
    # Of what is abstract, a subclass comes, and it may have a form.
    abstract = getattr(kind, "__abstractmethods__", None) or kind is object
    if not isinstance(kind, type) or abstract or getattr(kind, "_is_protocol", False):
        return
    name = f"{kind.__module__}.{kind.__name__}"
    known = name in _TEXTS or kind.__module__ in ("typing", "typing_extensions")
    known |= hasattr(kind, "keys") and hasattr(kind, "__getitem__")
    known |= issubclass(kind, _PLAIN) or any(hasattr(kind, mark) for mark in _FORMS)
    if not known:
        yield kind.__name__


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
        if key in schema and not (
            key == "additionalProperties" and schema[key] is False
        ):
            yield from _faults(schema[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for child in schema.get(key, ()):
            yield from _faults(child)


# ---- Client commands ---------------------------------------------------------------
# What a person at a terminal wants from a server. Results go to stdout, everything else
# (progress, questions, log messages, errors) to stderr. What a server sends is shown
# without its control characters, because a terminal obeys them; where a line is one
# item, a name in it cannot begin another, in a file neither.


class _Usage(Exception):
    """A command line that cannot be carried out."""


# Showing


def _clean(text: str) -> str:
    """Text that a terminal takes for text."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text
    )


def _line(text: Any) -> str:
    """Text that stays on its line and in its column."""
    controls = "[\x00-\x1f\x7f-\x9f\u2028\u2029]"
    return re.sub(controls, lambda found: f"\\x{ord(found[0]):02x}", str(text))


def _print(text: str) -> None:
    shown = _clean(text) if sys.stdout.isatty() else text
    coding = sys.stdout.encoding or "utf-8"
    print(shown.encode(coding, "backslashreplace").decode(coding))


def _fits(text: str, coding: str) -> bool:
    try:
        text.encode(coding)
    except UnicodeEncodeError:
        return False
    return True


def _print_json(value: Any) -> None:
    """One line of JSON; a stream that cannot hold it all (ASCII) gets the same JSON."""
    text = _encode_text(value)
    coding, seen = sys.stdout.encoding or "utf-8", sys.stdout.isatty()
    if seen or not _fits(text, coding):
        # What needs an escape stands in strings, where \u is JSON.
        text = "".join(
            c
            if (c.isprintable() or not seen) and _fits(c, coding)
            else json.dumps(c)[1:-1]
            for c in text
        )
    print(text)


def _dict(value: Any) -> Any:
    """What a server should send as an object; {} if it is none."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Any:
    """What a server should send as an array; [] if it is none."""
    return value if isinstance(value, list) else []


def _block(block: Any) -> str:
    """A content block as text."""
    if not isinstance(block, dict):
        return f"[no content block: {_encode_text(block)}]"
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource_link":
        return _line(f"[{block.get('name', 'link')}: {block.get('uri')}]")
    held = _dict(block.get("resource"))
    if "text" in held:
        return str(held["text"])
    data = block.get("data") or held.get("blob") or ""
    mime = block.get("mimeType") or held.get("mimeType") or kind
    size = f"{len(data) * 3 // 4} bytes" if isinstance(data, str) else "unreadable"
    return _line(f"[{mime}, {size}]")


def _print_result(result: Any) -> None:
    if result.is_error:
        print("tinymcp: the tool says that it failed:", file=sys.stderr)
    texts = [_block(block) for block in result.content]
    for text in texts:
        _print(text)
    if result.structured_content is not None and not texts:
        _print(_encode_text(result.structured_content))


def _note(text: str) -> None:
    print(f"tinymcp: {_clean(text)}", file=sys.stderr)


def _show_log(params: Any) -> None:
    data = params.get("data")
    text = data if isinstance(data, str) else _encode_text(data)
    _note(f"{_line(params.get('level'))}: {text}")


def _type(field: Any) -> str:
    if not isinstance(field, dict):
        return "any"
    if "enum" in field:
        return "|".join(str(value) for value in _list(field["enum"]))
    kinds = field.get("type", "any")
    if "type" not in field and isinstance(field.get("anyOf"), list):
        kinds = map(_type, field["anyOf"])  # Optional, for one
    elif not isinstance(kinds, list):
        kinds = [kinds]
    return "|".join(map(str, kinds)) + _range(field)


_BOUNDS = {  # of numbers, as they are written
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
}


def _range(field: Any) -> str:
    """The bounds of a number: " 0..100", or each with its sign."""
    given = {k: field[k] for k in _BOUNDS if type(field.get(k)) in (int, float)}
    if given.keys() == {"minimum", "maximum"}:
        return f" {given['minimum']}..{given['maximum']}"
    return "".join(f" {_BOUNDS[key]} {value}" for key, value in given.items())


def _item(kind: str, item: Any) -> tuple[str, str]:
    """A tool, resource, template or prompt: how to name it, and what it is."""
    text = str(item.get("description") or item.get("title") or "").strip()
    first = _line("".join(text.splitlines()[:1]))
    if kind in ("resources", "resourceTemplates"):
        name = _line(item.get("uri") or item.get("uriTemplate"))
        return name, first or _line(item.get("name", ""))
    if kind == "tools":
        schema = _dict(item.get("inputSchema"))
        required = _list(schema.get("required"))
        words = [
            ("{}: {}" if name in required else "[{}: {}]").format(name, _type(field))
            for name, field in _dict(schema.get("properties")).items()
        ]
    else:
        arguments = map(_dict, _list(item.get("arguments")))
        words = [
            ("{}" if a.get("required") else "[{}]").format(a.get("name"))
            for a in arguments
        ]
    return _line(f"{item.get('name')}({', '.join(words)})"), first


def _title(client: Client) -> str:
    info = client.server_info
    name = info.get("title") or info.get("name") or "a server without a name"
    text = f"{name} {info.get('version', '')} (MCP {client.protocol_version})"
    return _line(text)


class _Progress:
    """One line on the terminal that says how far a call is."""

    def __init__(self) -> None:
        self._width = 0

    def __call__(self, progress: Any, total: Any, message: Any) -> None:
        text = f"{progress}/{total}" if total is not None else f"{progress}"
        text = _clean(" ".join(f"{text} {message or ''}".split()))[:79]
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def clear(self) -> None:
        if self._width:
            print("\r" + " " * self._width, end="\r", file=sys.stderr, flush=True)


# Reading the words


def _pair(text: str, mark: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name:
        raise _Usage(f"not NAME{mark}VALUE: {text!r}")
    return name, value.strip() if mark == ":" else value


def _json(text: str, *instead: str) -> Any:
    try:
        return _decode(text.encode(), 64, 400)
    except MCPError as error:
        if instead:
            return instead[0]
        raise _Usage(f"{text!r}: {error.message}") from None


def _arguments(words: list[str], schema: Any) -> dict[str, Any]:
    """Arguments of a tool from name=value, name:=JSON, or one JSON object."""
    if len(words) == 1 and words[0].startswith("{"):
        value = _json(words[0])
        if isinstance(value, dict):
            return value
    arguments: dict[str, Any] = {}
    for word in words:
        name, text = _pair(word, "=")
        if name.endswith(":"):
            arguments[name[:-1]] = _json(text)
            continue
        kinds = _dict(_dict(schema.get("properties")).get(name)).get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        arguments[name] = text if "string" in kinds else _json(text, text)
    return arguments


# Asking

_UNASKED = re.compile(  # errors that are a question to a person, in both eras
    r'capability elicitation|offer elicitation/|"requiredCapabilities":{"elicitation'
)


def _person() -> bool:
    """True where somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _unasked(text: str) -> str:
    """What to do about an error that nobody could be asked; "" of other errors."""
    if _person() or not _UNASKED.search(text):
        return ""
    return ": it asks a person, run it on a terminal"


def _ask(question: str) -> str:
    print(_clean(_line(question)), end=" ", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def _choices(field: Any) -> str:
    """What may be answered, in a word or as a list."""
    several = field.get("type") == "array"
    held = _dict(field.get("items")) if several else field
    titled = _list(held.get("anyOf" if several else "oneOf"))
    options = _list(held.get("enum")) or [_dict(o).get("const") for o in titled]
    if several:
        return "some of " + ", ".join(map(str, options))
    if options:
        return "one of " + ", ".join(map(str, options))
    return "y/n" if field.get("type") == "boolean" else str(field.get("type", ""))


def _ask_field(name: str, field: Any, required: bool) -> Any:
    """A value for one field of a form; None leaves it out."""
    from .transports import _checker

    label = field.get("title") or name
    text = f" ({field['description']})" if field.get("description") else ""
    hint = "" if "default" not in field else f" [{field['default']}]"
    check = _checker(field, f"the question for {label}", _note)
    while True:
        answer = _ask(f"  {label}{text}: {_choices(field)}{hint}:")
        if not answer and ("default" in field or not required):
            return field.get("default")
        if not answer:
            continue
        value: Any = answer
        if field.get("type") == "boolean":
            value = {"y": True, "n": False}.get(answer.lower()[:1], answer)
        elif field.get("type") == "array":
            value = [part.strip() for part in answer.split(",")]
        elif field.get("type") != "string":
            value = _json(answer, answer)
        problem = check(value)
        if problem is None:
            return value
        print(_clean(f"  {problem}"), file=sys.stderr)


def _open_browser(url: str) -> None:
    import webbrowser

    print(
        f"Open this page if no browser does:\n  {_clean(_line(url))}", file=sys.stderr
    )
    webbrowser.open(url)


def _ask_form(params: Any) -> Any:
    """A form, one field after the other; an empty line takes the default."""
    schema = _dict(params.get("requestedSchema"))
    fields = {k: _dict(v) for k, v in _dict(schema.get("properties")).items()}
    print(_clean(f"\n{params.get('message', '')}"), file=sys.stderr)
    try:
        if [field.get("type") for field in fields.values()] == ["boolean"]:
            choice = _ask("[y]es, [n]o, [c]ancel:").lower()[:1]
            agreed = {"y": True, "n": False}.get(choice)
            return "cancel" if agreed is None else dict.fromkeys(fields, agreed)
        choice = _ask("Answer? [y]es, [n]o, [c]ancel:").lower()[:1]
        if choice != "y":
            return "decline" if choice == "n" else "cancel"
        content: dict[str, Any] = {}
        for name, field in fields.items():
            value = _ask_field(name, field, name in _list(schema.get("required")))
            if value is not None:
                content[name] = value
    except EOFError:
        return "cancel"
    return {"action": "accept", "content": content}


def _host(url: str) -> str:
    """The host that a browser opens; _Usage of a URL in which a person sees another.

    A browser takes a backslash for a slash, drops tabs and newlines, opens what comes
    after an @, and has other spellings of names and of IPv4 addresses.
    """
    import socket
    import unicodedata

    found = re.match(r"https?://([^/?#]+)", url)
    if found is None:
        raise _Usage("not a web page")
    if "\\" in url or not url.isprintable():
        raise _Usage("a backslash, or what cannot be seen, is in the URL")
    if "@" in found[1]:
        raise _Usage("a user (before @) is in the URL, which may look like the host")
    parts = re.fullmatch(r"(\[[0-9a-f:.]+]|[^][:]+)(:[0-9]*)?", found[1].lower())
    name, port = parts.groups("") if parts else ("", "")
    try:
        # Browsers disagree with this codec about names that are not in normal form.
        if unicodedata.normalize("NFKC", name.casefold()) != name:
            raise ValueError
        name = name.encode("idna").decode()
        if re.fullmatch(r"(.*\.)?([0-9]+|0x[0-9a-f]*)\.?", name):
            name = socket.inet_ntoa(socket.inet_aton(name))
    except (ValueError, OSError):
        name = ""
    if name[:1] != "[" and not re.fullmatch("[a-z0-9._-]+", name):
        raise _Usage("its host is none")
    return name + port


def _ask_url(params: Any) -> bool:
    """Consent to a page: the whole URL is shown, nothing is fetched before (ELI-04)."""
    url = str(params.get("url", ""))
    message = _clean(f"\n{params.get('message', '')}")
    print(f"{message}\n  {_clean(_line(url))}", file=sys.stderr)
    try:
        question = f"Open this page of {_host(url)}? [y/N]"
    except _Usage as fault:
        print(f"  {fault}: refused", file=sys.stderr)
        return False
    try:
        agreed = _ask(question).lower()[:1] == "y"
    except EOFError:
        return False
    if agreed:
        _open_browser(url)
    return agreed


# The commands


async def _do_info(client: Client, options: Any, words: list[str]) -> None:
    info = {
        "protocolVersion": client.protocol_version,
        "serverInfo": client.server_info,
        "capabilities": client.capabilities,
        "instructions": client.instructions,
    }
    if options.json:
        return _print_json(info)
    _print(_title(client))
    for key in ("description", "websiteUrl"):
        if client.server_info.get(key):
            _print(_line(client.server_info[key]))
    names = _line(", ".join(sorted(client.capabilities)))
    _print(f"capabilities: {names or 'none'}")
    if client.instructions:
        _print("\n" + client.instructions.strip())


async def _do_list(client: Client, options: Any, words: list[str]) -> None:
    lists = {
        "tools": await client.list_tools(),
        "resources": await client.list_resources(),
        "resourceTemplates": await client.list_resource_templates(),
        "prompts": await client.list_prompts(),
    }
    if options.json:
        return _print_json(lists)
    _print(_title(client))
    for title, items in lists.items():
        rows = [_item(title, item) for item in items]
        width = min(max([len(name) for name, _ in rows], default=0), 50)
        if rows:
            _print("\n" + ("templates" if title == "resourceTemplates" else title))
        for name, text in rows:
            _print(f"  {name.ljust(width)}  {text}".rstrip())


async def _do_call(client: Client, options: Any, words: list[str]) -> int:
    from .client import InvalidReply
    from .transports import _checker

    name = words[0]
    tools = {str(tool.get("name")): tool for tool in await client.list_tools()}
    if name not in tools:
        there = _line(", ".join(tools))
        raise _Usage(f"no tool {name!r}; there are: {there or 'none'}")
    schema = _dict(tools[name].get("inputSchema"))
    arguments = _arguments(words[1:], schema)
    try:
        problem = _checker(schema, f"{name}: its inputSchema", client._log)(arguments)
        if problem is not None:
            raise _Usage(f"{name}: {problem}")
    except InvalidReply as error:  # the server may know what it means
        _note(f"warning: {error}")
    progress = _Progress() if sys.stderr.isatty() else None
    try:
        result = await client.call_tool(name, arguments, progress_callback=progress)
    finally:
        if progress is not None:
            progress.clear()
    if options.json:
        _print_json(result)
    else:
        _print_result(result)
    if result.is_error and _unasked(result.text):
        _note(f"{name}{_unasked(result.text)}")
    return 1 if result.is_error else 0


async def _do_read(client: Client, options: Any, words: list[str]) -> None:
    from .client import Result

    result = await client.read_resource(words[0])
    if options.json:
        return _print_json(result)
    for item in result.contents:
        if "blob" in item and not sys.stdout.isatty():
            sys.stdout.flush()
            sys.stdout.buffer.write(Result(contents=[item]).data)
        else:
            _print(_block({"type": "resource", "resource": item}))


async def _do_prompt(client: Client, options: Any, words: list[str]) -> None:
    pairs = dict(_pair(word, "=") for word in words[1:])
    result = await client.get_prompt(words[0], pairs)
    if options.json:
        return _print_json(result)
    for message in result.messages:
        content = message.get("content") or {}
        for block in content if isinstance(content, list) else [content]:
            _print(f"{_line(message.get('role'))}: {_block(block)}")


async def _show_change(client: Client, options: Any, kind: str, uri: Any) -> None:
    import time

    result = await client.read_resource(uri, refresh=True) if uri is not None else None
    if options.json:
        contents = result.contents if result is not None else None
        _print_json({"kind": kind, "uri": uri, "contents": contents})
    else:
        text = result.text if result is not None else f"list of {kind} changed"
        of = _line(f"{uri} ") if uri else ""
        _print(f"{time.strftime('%H:%M:%S')} {of}{text}")
    sys.stdout.flush()


async def _do_watch(client: Client, options: Any, words: list[str]) -> int:
    kinds = dict.fromkeys(("tools", "prompts", "resources"), not words)
    async with client.subscribe(*words, **kinds) as changes:
        for uri in words:
            await _show_change(client, options, "now", uri)
        async for change in changes:
            await _show_change(client, options, change.kind, change.uri)
    _note("the server ended the subscription")  # as it does when it ends itself
    return 4


async def _do_ping(client: Client, options: Any, words: list[str]) -> None:
    times = sorted([await client.ping() * 1000 for _ in range(max(options.n, 1))])
    numbers = {
        "n": len(times),
        "min": times[0],
        "median": times[len(times) // 2],
        "p99": times[-(-len(times) * 99 // 100) - 1],
        "max": times[-1],
    }
    if options.json:
        return _print_json(numbers)
    texts = [f"{name} {value:.3f}" for name, value in numbers.items() if name != "n"]
    _print(f"{len(times)} round trips: {', '.join(texts)} ms")


# The command line

_EPILOG = """\
TARGET is a URL, a Unix socket (a path, or unix:PATH), or at the end of the line
`-- COMMAND ...`. An ARGUMENT is name=value, converted as the schema says, name:=JSON,
or one JSON object.

Exit status: 0 done, 1 the tool says that it failed, 2 wrong usage or arguments,
3 the server answered with an error, 4 no connection or no answer in time,
5 no authorization, 130 interrupted."""


_COMMANDS = {  # command -> (help, arguments after TARGET, how many at least, at most)
    "info": ("what the server is", "", 0, 0),
    "list": ("tools, resources and prompts", "", 0, 0),
    "call": ("call a tool", "NAME [ARGUMENT ...]", 1, 999),
    "read": ("read a resource", "URI", 1, 1),
    "prompt": ("get a prompt", "NAME [ARGUMENT ...]", 1, 999),
    "watch": ("print changes of resources or lists as they come", "[URI ...]", 0, 999),
    "ping": ("measure the round trip", "", 0, 0),
}


_CLIENT_OPTIONS = (  # option, value or None for a flag, help
    ("--json", None, "print JSON, one line for each result"),
    ("--timeout", "SECONDS", "for each answer (default 60)"),
    ("--mode", "ERA", "auto (default), legacy or 2026-07-28"),
    ("--header", "NAME:VALUE ...", "HTTP header"),
    ("--token-file", "FILE", "send the token in FILE as Bearer token"),
    ("--oauth", None, "sign in with a browser; kept in ~/.config/tinymcp"),
    ("--ca", "FILE", "trust this certificate authority alone"),
    ("--cert", "FILE", "client certificate and its key, in one file"),
    ("--fingerprint", "SHA256", "trust this certificate alone"),
    ("--env", "NAME=VALUE ...", "for COMMAND"),
    ("--inherit-env", None, "give COMMAND the whole environment"),
    ("--root", "DIR ...", "offer a directory as root"),
    ("--verbose", None, "show log messages, and the stderr of COMMAND"),
)


def _client_parser() -> Any:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:  # one line, as from `run`
            raise _Usage(f"{message}; see {self.prog} --help")

    shape: Any = {
        "epilog": _EPILOG,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = Parser(prog="tinymcp", **shape)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (text, words, _, _) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            description=text,
            usage=f"%(prog)s [OPTION ...] TARGET {words}".rstrip(),
            **shape,
        )
        command.add_argument("words", nargs="*", help=argparse.SUPPRESS)
        for option, field, note in _CLIENT_OPTIONS:
            kind: Any = {"action": "store_true"}
            if field is not None:
                kind = {"metavar": field.split()[0]}
            if field == "SECONDS":
                kind["type"] = float
            if field is not None and field.endswith("..."):
                kind.update(action="append", default=[])
                note += "; may be given again"
            command.add_argument(option, help=note, **kind)
        if name == "ping":
            command.add_argument("-n", metavar="TIMES", type=int, default=10)
    return parser


def _options(argv: list[str]) -> Any:
    """The parsed command line; options may stand between the words."""
    parser = _client_parser()
    options, more = parser.parse_known_args(argv)
    unknown = [word for word in more if word.startswith("-")]
    if unknown:
        raise _Usage(f"there is no option {unknown[0]}; see tinymcp {argv[0]} --help")
    options.words += more
    return options


def _token(path: str) -> str:
    """The token in a file that holds nothing else."""
    with open(path, encoding="utf-8", errors="replace") as file:
        words = file.read().split()
    if len(words) == 1 and re.fullmatch("[!-~]+", words[0]):
        return words[0]
    raise _Usage(
        f"--token-file {path}: a client takes a file with one token and nothing else; "
        "of a server's file, with lines of NAME TOKEN [SCOPE], write one second word "
        "to a file of its own"
    )


def _target(text: str) -> str:
    """A TARGET that stands before the other words; Client takes more, to start it."""
    import stat

    if text.startswith("unix:") or text.lower().startswith(("http://", "https://")):
        return text
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISSOCK(os.stat(text).st_mode):
            return text
    raise _Usage(
        f"{text!r} is no TARGET: a URL begins with http:// or https://, a socket is "
        "the path of one that exists, a command comes after -- at the end of the line"
    )


def _client(options: Any, command: list[str]) -> tuple[Client, list[str]]:
    """The client for a command line, and the words after its target."""
    from .client import Client, ClientLimits

    words = list(options.words)
    if not command and not words:
        raise _Usage("no TARGET: give a URL, a socket, or -- COMMAND at the end")
    target: Any = command or _target(words.pop(0))
    _, names, least, most = _COMMANDS[options.command]
    if not least <= len(words) <= most:
        raise _Usage(f"{options.command} takes TARGET {names}".rstrip())
    headers = dict(_pair(text, ":") for text in options.header)
    if options.token_file:
        headers["Authorization"] = "Bearer " + _token(options.token_file)
    auth = None
    if options.oauth:
        from .oauth import FileStorage, OAuth

        storage = FileStorage("~/.config/tinymcp/oauth.json")
        auth = OAuth(storage=storage, open_url=_open_browser)
    seconds = 60.0 if options.timeout is None else options.timeout
    if not 0 < seconds < float("inf"):  # nan is neither
        raise _Usage(f"--timeout takes seconds, more than 0, not {seconds:g}")
    limits = ClientLimits(timeout=seconds, probe=min(ClientLimits.probe, seconds))
    roots = [{"uri": f"file://{os.path.abspath(path)}"} for path in options.root]
    person = _person()
    client = Client(
        target,
        mode=options.mode or "auto",
        limits=limits,
        headers=headers,
        auth=auth,
        ca_file=options.ca,
        client_cert=(options.cert,) if options.cert else None,
        fingerprint=options.fingerprint,
        env=dict(_pair(text, "=") for text in options.env),
        inherit_env=options.inherit_env,
        stderr="inherit" if options.verbose else "tail",
        log=_note if options.verbose else lambda text: None,
        log_level="debug" if options.verbose else None,
        logging_callback=_show_log if options.verbose else None,
        list_roots_callback=roots or None,
        elicitation_callback=_ask_form if person else None,
        url_callback=_ask_url if person else None,
    )
    return client, words


_STARVED = (
    "\n(COMMAND gets few environment variables, no PYTHONPATH for one: "
    "--env NAME=VALUE adds one, --inherit-env gives it all)"
)


def _starved(client: Client, options: Any) -> bool:
    """Whether COMMAND failed before any answer, and may have missed a variable."""
    child: Any = client._transport
    process = getattr(child, "process", None)
    if process is None or options.env or options.inherit_env:
        return False
    return bool(process.returncode) and not child._heard


async def _run(client: Client, options: Any, words: list[str]) -> int:
    from .client import ConnectionLost

    try:
        async with client:
            function = globals()[f"_do_{options.command}"]
            return int(await function(client, options, words) or 0)
    except ConnectionLost as error:
        if _starved(client, options):
            raise ConnectionLost(f"{error}{_STARVED}") from None
        raise


_OURS = {  # option of Client, as its errors name it -> option of the command line
    "auth= or headers=": "--token-file FILE or --oauth",
    "ca_file=": "--ca FILE",
    "fingerprint=": "--fingerprint SHA256",
}


def _failure(error: Exception) -> tuple[int, str]:
    """Exit status and sentence."""
    from .client import ClientError, HttpStatusError

    if isinstance(error, MCPError):
        data = f" {_encode_text(error.data)}" if error.data is not None else ""
        return 3, f"the server says: {error}{_unasked(str(error) + data) or data}"
    text = str(error) + _unasked(str(error))
    if isinstance(error, (ClientError, ValueError)):
        for theirs, ours in _OURS.items():
            text = text.replace(theirs, ours)
    refused = isinstance(error, HttpStatusError) and error.status in (401, 403)
    if refused or type(error).__name__ == "AuthorizationError":
        return 5, text
    return 4 if isinstance(error, ClientError) else 2, text


def main(argv: list[str]) -> int:
    """Run one client command; returns the exit status."""
    import asyncio

    from .client import ClientError

    command: list[str] = []
    if "--" in argv:
        argv, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    try:
        options = _options(argv)
        client, words = _client(options, command)
        return asyncio.run(_run(client, options, words))
    except (_Usage, ValueError, OSError, MCPError, ClientError) as error:
        if isinstance(error, BrokenPipeError) and not isinstance(error, ClientError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as in `| head`
            return 0
        status, text = _failure(error)
        print(f"tinymcp: {_clean(text)}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        return 130
