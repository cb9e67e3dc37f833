# SPDX-License-Identifier: MIT
# tinymcp: an MCP runtime for small machines, one file, standard library only.
# Vendored copies: this file is complete alone; keep these lines.
"""tinymcp: a Model Context Protocol server in one file, for small machines.

    from typing import Annotated
    from tinymcp import Server

    server = Server("greenhouse", version="1.0.0")

    @server.tool(annotations={"destructiveHint": False}, lock="vent")
    def set_vent(percent: Annotated[int, {"minimum": 0, "maximum": 100}]) -> dict:
        \"\"\"Open the roof vent.\"\"\"
        return {"percent": move_vent(percent)}

    if __name__ == "__main__":
        server.run()

Users start at section 11, readers at section 3. A section uses only those above it.

 1 Limits               5 Registry               9 HTTP/1.1
 2 Errors               6 Protocol tables       10 HTTP endpoint
 3 JSON and JSON-RPC    7 Context and dispatch  11 Server, run, main
 4 JSON Schema          8 Byte streams

One message, one way: bytes, framing (8 or 9), envelope (3), era and gates (7 or 10),
table (6), parameters (4), user function (7), result, one encode (3), framing, bytes.

Revisions: 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25 (initialize handshake) and
2026-07-28 (stateless) from the same handlers.

Not here: OAuth flows, HTTP+SSE of 2024-11-05, HTTP/2, WebSocket, compression, the
tasks and apps extensions, JSON Schema formats (annotations) and remote references.
"""

from __future__ import annotations

import binascii
import collections
import contextlib
import errno
import functools
import math
import os
import sys
import threading
import time

if sys.version_info < (3, 9):  # noqa: UP036  (a copy of this file meets any Python)
    _found = ".".join(map(str, sys.version_info[:2]))
    raise ImportError(f"tinymcp needs Python 3.9 or newer, this is {_found}")


class _Lazy:
    """A module that is imported when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(__import__(self._name), attribute)
        setattr(self, attribute, value)
        return value


class _Pattern:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, source: str, flags: int = 0) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, method: str) -> Any:
        bound = getattr(re.compile(self._source, self._flags), method)
        setattr(self, method, bound)
        return bound


TYPE_CHECKING = False  # typing would cost a small board more than all of this file
if TYPE_CHECKING:
    import json
    import re
    from collections.abc import Awaitable, Callable, Generator, Iterable
    from typing import Any, AsyncIterator, Iterator, Optional
else:  # they cost a third of a start, and a plain call over stdio needs neither
    json, re = _Lazy("json"), _Lazy("re")

__version__ = "0.1.0"
__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "Annotations",
    "AssistantMessage",
    "Audio",
    "AudioContent",
    "BlobResourceContents",
    "CallToolResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "Context",
    "DefinitionError",
    "ElicitResult",
    "EmbeddedResource",
    "Icon",
    "Image",
    "ImageContent",
    "InputRequired",
    "Limits",
    "MCPError",
    "Message",
    "Principal",
    "PromptReference",
    "ResourceItem",
    "ResourceLink",
    "ResourceNotFoundError",
    "ResourceTemplateReference",
    "Root",
    "SampleResult",
    "Server",
    "TextContent",
    "TextResourceContents",
    "ToolAnnotations",
    "ToolError",
    "UserMessage",
    "main",
]

# ---- 1 Limits ----------------------------------------------------------------------
# Every number that bounds something, once, with its unit and its reason. A Server takes
# its own: Server(limits=Limits(body=65536)). Over a limit there is a clear refusal, and
# nobody else notices.


class Limits:
    """Bounds of one Server. Keyword arguments replace the defaults below."""

    line = 1 << 20  # bytes in one message on stdio or a socket
    body = 1 << 20  # bytes in one HTTP request body
    head = 16384  # bytes of one HTTP request head (nginx: 4 x 8 KiB)
    headers = 100  # header lines in one request (Apache: 100)
    target = 8192  # bytes of a request target
    depth = 64  # nesting of arrays and objects, far below Python's own limit
    digits = 400  # digits in a row: int() is quadratic, a float needs 309
    pattern_text = 4096  # characters that a JSON Schema pattern is tried on
    schema_depth = 64  # nesting of a registered JSON Schema
    schema_work = 100_000  # subschemas tried in one check, against anyOf bombs
    connections = 1024  # open HTTP or socket connections, 8 kB each
    connections_per_address = 512  # of these over HTTP, from one peer (a proxy is one)
    streams = 1024  # open listen and GET streams
    sessions = 1024  # legacy HTTP sessions, the idlest leaves first
    session_idle = 1800.0  # seconds without a request until a session is dropped
    head_timeout = 10.0  # seconds for a request head to arrive in full
    body_timeout = 30.0  # seconds for a body
    idle_timeout = 120.0  # seconds a kept connection may stay silent (closed by 1.5 x)
    write_timeout = 30.0  # seconds a peer may take no bytes before it is dropped
    queue = 32 << 20  # bytes waiting to be written: 200 echoes of 50 KB, twice each
    stream_queue = 1 << 20  # bytes waiting on one SSE stream; above it flags wait
    replay_session = 64 << 10  # bytes kept for Last-Event-ID, one legacy session
    replay = 4 << 20  # bytes kept for Last-Event-ID, all sessions
    workers = 8  # threads for def handlers
    waiting = 256  # calls waiting for a worker or a lane
    waiting_bytes = 16 << 20  # bytes of those calls; of async calls that run, as much
    bodies = 16 << 20  # bytes of HTTP request bodies that are still arriving
    in_flight = 1024  # unfinished requests of one peer
    batch = 100  # messages in one batch of 2025-03-26
    client = 8192  # bytes of clientInfo and capabilities that a session keeps
    call_timeout = 300.0  # seconds a handler may take unless it says timeout=
    answer_timeout = 300.0  # seconds a person may take to answer
    rounds = 16  # questions in a row within one call
    state_age = 300.0  # seconds that a sealed requestState is good for
    tool_rate = (100_000, 1.0)  # (calls, seconds) over all tools of a server
    completion_rate = (1000, 1.0)  # (calls, seconds)
    log_rate = (1000, 1.0)  # (log messages and progress reports, seconds) to peers
    json_or_sse = 10.0  # seconds of silence until a JSON reply becomes a stream
    keep_alive = 15.0  # seconds between comments on a quiet stream
    retry = 1000  # milliseconds a polling legacy client waits (SSE retry field)
    grace = 10.0  # seconds for accepted calls once the server is told to end
    exit_grace = 2.0  # seconds after run() has ended until threads are left behind

    _may_be_0 = (
        "sessions streams replay replay_session waiting_bytes batch rounds retry"
        " schema_work state_age json_or_sse grace exit_grace"
    ).split()

    def __init__(self, **changes: Any) -> None:
        for name, value in changes.items():
            if name.startswith("_") or not hasattr(Limits, name):
                raise TypeError(f"Limits has no {name!r}; see the table in the README")
            kind, zero = type(getattr(Limits, name)), name in self._may_be_0
            kinds = (int,) if kind is int else (int, float)
            numbers = value if kind is tuple is type(value) else (value,)
            endless = kind is float and "grace" not in name  # no thread waits for it
            if len(numbers) != 1 + (kind is tuple) or not all(
                type(n) in kinds
                and 0 <= n
                and (n or zero)
                and (endless or n < math.inf)
                for n in numbers
            ):
                what = "a whole number" if kind is int else "seconds"
                what = "two numbers" if kind is tuple else what
                what += ", 0 or more" if zero else " above 0"
                what += "" if endless or kind is int else " and finite"
                raise ValueError(f"Limits: {name} is {what}, not {value!r:.80}")
            setattr(self, name, value)


# ---- 2 Errors ----------------------------------------------------------------------
# An error carries what the wire needs: code, message, data. What a handler raises by
# accident never reaches the wire (ERR-08); section 7 turns exceptions into replies.

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002  # 2025-11-25 and before; -32602 since 2026-07-28
HEADER_MISMATCH = -32020
MISSING_CLIENT_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
TOO_MANY_REQUESTS = 429  # ours: outside the range that JSON-RPC and MCP reserve
FORBIDDEN = 403  # ours: a scope is missing


class _NoId:
    """The id of a message whose id could not be read: the reply omits it."""

    __slots__ = ()


_NO_ID = _NoId()


class DefinitionError(TypeError):
    """A tool, resource or prompt that cannot be offered; raised at registration."""


class MCPError(Exception):
    """An error for the peer: a JSON-RPC code, a message and optional data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        if type(code) is not int:
            raise TypeError(f"MCPError takes an integer code first, not {code!r:.80}")
        self.code = code
        self.message = message if type(message) is str else str(message)
        self.data = data
        self.id: Any = _NO_ID

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class ResourceNotFoundError(MCPError):
    """No resource at this URI. The code follows the revision (RES-01, RES-04)."""

    def __init__(self, uri: str) -> None:
        super().__init__(INVALID_PARAMS, "Resource not found", {"uri": uri})


class ToolError(Exception):
    """What went wrong, for the model to read: a result with isError (TOL-04)."""


# ---- 3 JSON and JSON-RPC -----------------------------------------------------------
# Bytes in, checked messages out; pure. Whatever could hurt is bounded before the parser
# sees it: nesting (recursion) by a bracket count, digit runs (int() is quadratic) by a
# search. Only RFC 8259 passes: no NaN, no byte that is not UTF-8, no number that turns
# into infinity. What goes out is one line of valid UTF-8, always.

_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_RUN = b"0" * 19  # the longest run of digits that is sure to fit 64 bits has 18
_NO_BRACKETS = bytes(range(256)).translate(None, b"[{]}")


class _NotFinite(MCPError):
    """1e999 is good JSON, but no double: the request is refused, under its id."""

    def __init__(self) -> None:
        super().__init__(INVALID_PARAMS, "A number is beyond the range of a double")


def _finite(text: str) -> float:
    value = float(text)
    if value - value == 0.0:
        return value
    raise _NotFinite


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _Strict:
    """What the C scanner reads off its decoder: RFC 8259, and finite numbers."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int = int
    parse_float: Any = staticmethod(_finite)
    parse_constant = staticmethod(_no_constant)


class _AnySize(_Strict):
    parse_float = float


def _no_json(value: Any) -> Any:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _python_json() -> tuple[Any, Any, Any]:
    """The scanners and the encoder where Python has no C half of json."""
    decoder: Any = json.JSONDecoder
    scans = [
        decoder(parse_float=number, parse_constant=_no_constant).scan_once
        for number in (_finite, float)
    ]
    encoder = json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
    )
    return scans[0], scans[1], encoder.iterencode


def _c_json() -> tuple[Any, Any, Any]:
    """The C scanner and the C encoder themselves: json.loads and json.dumps find out
    about their arguments on every call, and json itself imports re. Without markers
    the encoder is reentrant, and finds a value that contains itself by RecursionError.
    """
    c: Any = __import__("_json")
    flat = (None, ":", ",", False, False, False)  # indent, separators, switches
    write = c.make_encoder(None, _no_json, c.encode_basestring, *flat)
    return c.make_scanner(_Strict), c.make_scanner(_AnySize), write


try:
    _scan, _scan_any, _write = _c_json()
except (ImportError, AttributeError, TypeError):  # another Python, or a later one
    _scan, _scan_any, _write = _python_json()


def _check_bounds(data: bytes | bytearray, depth: int, digits: int) -> None:
    """The quick tests of _decode made exact: what is in strings does not count."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = b"".join(bare.split(b'"')[::2])
    level = 0
    for byte in bare.translate(None, _NO_BRACKETS):
        level += 1 if byte in b"[{" else -1
        if level > depth:
            raise MCPError(PARSE_ERROR, f"Parse error: over {depth} levels of nesting")
    run = rb"(?<![0-9])[0-9]{%d}" % (digits + 1)
    if _RUN in bare.translate(_ZEROS) and re.search(run, bare):
        raise MCPError(PARSE_ERROR, f"Parse error: over {digits} digits in a row")


def _decode(data: bytes | bytearray, depth: int, digits: int) -> Any:
    """Strict JSON of RFC 8259 in UTF-8; MCPError(PARSE_ERROR) for anything else."""
    if data.count(b"{") + data.count(b"[") > depth or (
        len(data) > digits and _RUN in data.translate(_ZEROS)
    ):
        _check_bounds(data, depth, digits)
    try:
        text = data.decode().strip(" \t\r\n")
        try:
            value, end = _scan(text, 0)
        except _NotFinite as error:
            value, end = _scan_any(text, 0)
            if end == len(text):
                error.id = _readable_id(value)
                raise
        if end == len(text):
            return value
        reason = f"extra data at character {end}"
    except StopIteration as stop:
        reason = f"no value at character {stop.value}"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = str(error)
    except SystemError:  # in Python 3.10 and 3.11 an error needs json.decoder loaded
        if "json.decoder" in sys.modules:
            raise
        __import__("json.decoder")
        return _decode(data, depth, digits)
    raise MCPError(PARSE_ERROR, "Parse error: " + reason)


def _encode(value: Any) -> bytes:
    """One line of UTF-8. ValueError: NaN, infinity, depth; TypeError: no JSON type."""
    try:
        text: str = "".join(_write(value, 0))
    except (RecursionError, ValueError) as error:
        raise ValueError(_unwritable(value, error)) from None
    # A lone surrogate has no UTF-8 form; its backslash form is the JSON escape.
    return text.encode("utf-8", "backslashreplace")


def _unwritable(value: Any, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply, or contains itself"
    with contextlib.suppress(RecursionError, ValueError):
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", json.dumps(value, ensure_ascii=False))
        match = re.search("-?Infinity|NaN", bare)
        return f"{match[0]} is not JSON" if match else str(error)
    return str(error)


_json_decode, _json_encode = _decode, _encode


def _encode_text(value: Any) -> str:
    return _encode(value).decode()


def _use_orjson() -> None:
    """Put orjson behind _decode and _encode; where it would differ, json answers."""
    try:
        orjson: Any = __import__("orjson")
    except ImportError:
        text = "json='orjson' needs the package orjson: python3 -m pip install orjson"
        raise ImportError(text) from None
    loads, dumps = orjson.loads, orjson.dumps
    options = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME
    options |= orjson.OPT_PASSTHROUGH_DATACLASS

    def decode(data: bytes | bytearray, depth: int, digits: int) -> Any:
        if _RUN not in data.translate(_ZEROS):  # of 65 bits orjson makes a float
            if data.count(b"{") + data.count(b"[") > depth:
                _check_bounds(data, depth, digits)
            try:
                return loads(data)
            except ValueError:
                pass
        return _json_decode(data, depth, digits)

    def encode(value: Any) -> bytes:
        try:
            data: bytes = dumps(value, None, options)
        except TypeError:
            return _json_encode(value)
        # orjson writes null for NaN.
        return _json_encode(value) if b"null" in data else data

    globals().update(_decode=decode, _encode=encode)


def _readable_id(message: Any) -> Any:
    """The id that an error about this message goes under; _NO_ID if none is usable."""
    if isinstance(message, dict) and not message.keys() & {"result", "error"}:
        value = message.get("id")
        if type(value) is int or type(value) is str:
            return value
    return _NO_ID  # also for a response: its id was ours, not the peer's


def _classify(message: Any) -> str:
    """One of "request", "notification", "response", or MCPError(INVALID_REQUEST)."""
    if type(message) is not dict:
        reason = "a message is an object"
    elif message.get("jsonrpc") != "2.0":
        reason = 'jsonrpc must be "2.0"'
    elif "result" in message or "error" in message:
        if _is_response(message):
            return "response"
        reason = "a response has an id and either a result or an error object"
    elif type(message.get("method")) is not str:
        reason = "method must be a string"
    elif "id" not in message:
        return "notification"  # whatever its params are: it gets no answer (RPC-04)
    elif type(message.get("params", message)) is not dict:
        reason = "params must be an object"
    elif type(message["id"]) is str or type(message["id"]) is int:
        return "request"
    else:
        reason = "id must be a string or an integer"
    failure = MCPError(INVALID_REQUEST, "Invalid request: " + reason)
    failure.id = _readable_id(message)
    raise failure


def _is_response(message: dict[str, Any]) -> bool:
    if "method" in message or ("result" in message and "error" in message):
        return False
    known = type(message.get("id")) in (str, int)
    if "result" in message:
        return known and type(message["result"]) is dict
    error = message["error"]  # without an id: the peer could not read ours
    return (
        (known or message.get("id") is None)
        and type(error) is dict
        and type(error.get("code")) is int
        and type(error.get("message")) is str
    )


def _error_bytes(id: Any, code: int, message: str, data: Any = None) -> bytes:
    """An error reply. An id that could not be read is left out, never null."""
    error: dict[str, Any] = {"code": code, "message": message}
    reply = {"jsonrpc": "2.0", "error": error}
    if id is not _NO_ID:
        reply["id"] = id
    if data is not None:
        # A handler's data must not cost the reply.
        with contextlib.suppress(TypeError, ValueError):
            return _encode({**reply, "error": {**error, "data": data}})
    return _encode(reply)


# ---- 4 JSON Schema -----------------------------------------------------------------
# Pure, and what can be done once is done at registration: one walk over a type hint
# gives its schema and its converter; a schema (2020-12) becomes closures. A rule, and a
# node (all rules of one schema), takes (value, work, seen) and gives None or a fault
# (path, wish, value); only the fault that is reported is put into words. `seen` takes
# evaluated names and indexes where an unevaluated* above asks for them, or is None.
# A schema's author is trusted with its patterns; values are bounded in every way.

_NO_VALUE: Any = _NoId()  # where None would be a value
_NULL = type(None)
_TYPES = (str, int, float, bool, _NULL, list, dict)
_NUMBER = (int, float)
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS: dict[str, tuple[Any, ...]] = {
    "string": ("a string", str),
    "number": ("a number", int, float),
    "integer": ("an integer", float, int),
    "boolean": ("true or false", bool),
    "null": ("null", _NULL),
    "array": ("an array", list),
    "object": ("an object", dict),
}
_SHAPES = {  # JSON types of a keyword's value; where it is schemas they are scanned
    "object boolean schema": "additionalProperties contains else if items not then"
    " propertyNames unevaluatedItems unevaluatedProperties",
    "array schemas": "allOf anyOf oneOf prefixItems",
    "object schemas": "$defs definitions dependentSchemas patternProperties properties",
    "object": "dependentRequired",
    "array": "enum required",
    "number": "exclusiveMaximum exclusiveMinimum maxContains maxItems maxLength"
    " maxProperties maximum minContains minItems minLength minProperties minimum"
    " multipleOf",
    "string": "$anchor $dynamicAnchor $dynamicRef $id $ref $schema pattern",
    "string array": "type",
    "boolean": "uniqueItems",
    " ".join(_WORDS): "$comment $vocabulary const contentEncoding contentMediaType"
    " contentSchema default deprecated description discriminator enumNames example"
    " examples externalDocs format readOnly title writeOnly xml",
}
_KEYWORDS = {word: shape for shape, words in _SHAPES.items() for word in words.split()}
# Keywords and forms of other drafts: passed over, they would change what is valid.
_INSTEAD = {
    "$recursiveRef": "$dynamicRef",
    "additionalItems": "items, beside prefixItems",
    "dependencies": "dependentRequired or dependentSchemas",
    "exclusiveMaximum": "the limit itself, without maximum",
    "exclusiveMinimum": "the limit itself, without minimum",
    "id": "$id",
    "items": "prefixItems for a list of schemas",
    "required": "a list of names, beside properties",
}
_TESTS: dict[str, tuple[Any, ...]] = {  # assertion: types, test, wish
    "minimum": (_NUMBER, lambda a, v: v >= a, "{} >= {}"),
    "maximum": (_NUMBER, lambda a, v: v <= a, "{} <= {}"),
    "exclusiveMinimum": (_NUMBER, lambda a, v: v > a, "{} > {}"),
    "exclusiveMaximum": (_NUMBER, lambda a, v: v < a, "{} < {}"),
    "multipleOf": (_NUMBER, lambda a, v: _divides(a, v), "{} that is a multiple of {}"),
    "minLength": ((str,), lambda a, v: len(v) >= a, "{} of at least {} characters"),
    "maxLength": ((str,), lambda a, v: len(v) <= a, "{} of at most {} characters"),
    "minItems": ((list,), lambda a, v: len(v) >= a, "{} of at least {} items"),
    "maxItems": ((list,), lambda a, v: len(v) <= a, "{} of at most {} items"),
    "minProperties": ((dict,), lambda a, v: len(v) >= a, "{} of {} properties or more"),
    "maxProperties": ((dict,), lambda a, v: len(v) <= a, "{} of at most {} properties"),
}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _show(value: Any) -> str:
    """What came, with its type, in 100 characters at most."""
    words: dict[Any, str] = {str: "string ", list: "array ", dict: "object "}
    word = words.get(type(value), "")
    try:
        short = value[:100] if type(value) is str else value
        text = _cut(json.dumps(short, ensure_ascii=False), 80)
    except (TypeError, ValueError, RecursionError):
        text = word or type(value).__name__  # also an int of over 4,300 digits
    return f"the {word}{text}" if word else text


def _say(fault: Any) -> str:
    path, wish, value = fault
    text = wish if value is _NO_VALUE else f"expected {wish}, got {_show(value)}"
    path = _cut(path[1:] if path.startswith(".") else path, 200)
    return f"{path}: {text}" if path else text


def _members(triples: Any, work: Any) -> Any:
    """The first fault in (key, value, node) of an object or array, with its path."""
    for key, item, node in triples:
        fault = node(item, work, None)
        if fault is not None:
            name = type(key) is str and _cut(key, 60)
            step = f".{name}" if name and name.isidentifier() else f"[{name or key!r}]"
            return (step + fault[0], *fault[1:])
    return None


def _key(value: Any) -> Any:
    """Hashable, and equal where JSON Schema says equal: 1 and 1.0, not 1 and true."""
    kind = type(value)
    if kind is int or kind is float:
        # As text, whose hash is salted: crafted numbers could all share one.
        return (hex(int(value)) if value % 1 == 0 else repr(value),)
    if kind is list:
        return ("[", *map(_key, value))
    if kind is dict:
        return ("{", frozenset((name, _key(item)) for name, item in value.items()))
    return value


def _divides(divisor: Any, value: Any) -> bool:
    """Exact, in decimal as people read it: 0.0075 is a multiple of 0.0001."""
    parts = []
    for number in (value, divisor):
        digits, _, power = repr(number).partition("e")
        whole, _, fraction = digits.partition(".")
        parts.append((int(whole + fraction), int(power or 0) - len(fraction)))
    (top, x), (bottom, y) = parts
    return not top * 10 ** max(x - y, 0) % (bottom * 10 ** max(y - x, 0))


# ECMA-262 in unicode mode, which JSON Schema has, in the terms of `re`.
_ESCAPE = (
    r"\\u\{[0-9A-Fa-f]+\}|\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"
    r"|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\c[A-Za-z]|\\k<\w+>|\\[1-9][0-9]*|\\."
)
_TOKEN = (
    _ESCAPE + r"|\[(?:\\.|[^\]\\])*\]|\(\?(?:[:=!]|<[=!]|<(?=\w)|)"
    r"|(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[+?]?|."
)
_DOT = r"[^\n\r\u2028\u2029]"
# They begin and end with a class of `re`, which it refuses as the end of a range.
_SPACE = r"\s\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff\s"
_NOT_SPACE = (
    r"\w\0-\x08\x0e-\x1f!-\x9f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e"
    r"\u2030-\u205e\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff\w"
)


def _escape(token: str, inside: bool) -> str:
    """One escape, inside or outside of a character class."""
    kind, rest = token[1:2], token[2:]
    if token[0] != "\\":  # [ & ~ | have a meaning of their own in a class of Python
        return "\\" + token
    if kind in "dDwWfnrtv" or (kind in "bB123456789" and not inside):
        return token
    if kind in "sS":
        text = _SPACE if kind == "s" else _NOT_SPACE
        return text if inside else f"[{text}]"
    if kind == "k" and rest and not inside:
        return f"(?P={rest[1:-1]})"
    units = [int(unit, 16) for unit in re.findall("[0-9A-Fa-f]+", rest)]
    if kind in "ux" and units:
        pair = 0x10000 + ((units[0] & 0x3FF) << 10) + (units[-1] & 0x3FF)
        code = units[0] if len(units) == 1 else pair
    elif kind == "c" and rest:
        code = ord(rest) % 32
    elif kind.isalnum() and kind not in "0b":
        raise ValueError(f"{token} is not in ECMA-262, or not supported")
    else:
        code = {"0": 0, "b": 8}.get(kind, ord(kind))
    return re.escape(chr(code))


def _search(source: str, most: int) -> Any:
    """The test of a pattern; ValueError or re.error if it cannot be translated."""
    out = ""
    for token in re.findall(_TOKEN, source, re.S):
        if token[0] == "\\":
            token = _escape(token, False)
        elif token in ("(?", "[") or (token[-1] == "+" and token != "+"):
            raise ValueError(f"{token} is not ECMA-262 here")  # a++ is for Python 3.11
        elif token[0] == "[":
            if "--" in token:
                raise ValueError("-- in a class: escape a hyphen")
            special = _ESCAPE + r"|[\[&~|]"
            token = re.sub(special, lambda m: _escape(m[0], True), token[1:-1])
            token = {"": "(?!)", "^": "(?s:.)"}.get(token, f"[{token}]")
        else:
            token = {"$": r"\Z", ".": _DOT, "(?<": "(?P<", "{": r"\{"}.get(token, token)
        out += token
    search = re.compile(out, re.ASCII).search
    return lambda text: len(text) <= most and search(text)


# Most parameters are of a few kinds, like {"type": "string"}: all tools share these.
_shared: dict[str, Any] = {}  # what _alone gives -> node and its table
_ALONE = frozenset(["type", "enum", "const", "pattern", "uniqueItems", *_TESTS])
_INNER = _KEYWORDS.keys() - _ALONE - {*_SHAPES[" ".join(_WORDS)].split()}


def _alone(schema: Any, pattern_text: int) -> str:
    """The text of the assertions, if these look at one value alone, and are short."""
    if not _INNER.isdisjoint(schema):
        return ""
    asserted = {word: schema[word] for word in schema if word in _ALONE}
    try:
        text = f"{pattern_text} {_encode_text(asserted)}"
    except (TypeError, ValueError):  # a value in Python alone: the schema is refused
        return ""
    return text if len(text) < 200 else ""


class _Work:
    """What one check may still do, and the base URIs of the schemas that it is in."""

    __slots__ = ("left", "scope", "value")

    def __init__(self, left: int, base: str, value: Any) -> None:
        self.left, self.scope, self.value = left, [base], value

    def more(self) -> None:
        """Once, by the size of the value: long input is fine, a bomb is not."""
        if self.value is _NO_VALUE:
            raise RecursionError
        self.left += len(json.dumps(self.value, default=str)) // 2
        self.value = _NO_VALUE


class _Compiler:
    """A schema on its way to closures: `scan` finds what it holds, `node` compiles."""

    def __init__(self, root: Any, where: str, warn: Any, limits: Any, noun: str):
        self.root, self.where, self.warn, self.noun = root, where, warn, noun
        self.limits = limits
        self.bases: dict[int, str] = {}  # id(schema) -> base URI
        self.places: dict[str, Any] = {}  # URI -> schema
        self.dynamic: dict[str, dict[str, Any]] = {}  # anchor -> base URI -> schema
        self.nodes: dict[int, Any] = {}  # id(schema) -> node
        self.targets: list[Any] = []
        self.tables: dict[Any, Any] = {}  # node -> type -> rules, where that is all
        self.leaves: set[Any] = set()  # nodes of which no rule needs `work`
        self.members: Any = None  # the root's rule for its members

    def fail(self, at: str, text: str) -> Any:
        raise DefinitionError(f"{self.where}: schema at {at}: {text}")

    def join(self, base: str, uri: str) -> str:
        if not uri:
            return base
        from urllib.parse import urljoin

        return urljoin(base, uri).rstrip("#")

    def scan(self, schema: Any, base: str, at: str, depth: int) -> None:
        if isinstance(schema, bool) or id(schema) in self.bases:
            return
        if not isinstance(schema, dict) or depth < 0:
            self.fail(at, "must be an object or a boolean, and not nested too deeply")
        if "$id" in schema or not self.places:
            base = self.join(base, str(schema.get("$id", "")))
            self.places[base] = schema
        self.bases[id(schema)] = base
        for word, value in schema.items():
            shape = self.shape(word, value, at)
            if word in ("$anchor", "$dynamicAnchor"):
                self.places[f"{base}#{value}"] = schema
            if word == "$dynamicAnchor":
                self.dynamic.setdefault(value, {})[base] = schema
                self.targets.append(schema)
            if shape == "object boolean schema":
                self.scan(value, base, f"{at}/{word}", depth - 1)
            elif shape.endswith("schemas"):
                pairs = value.items() if isinstance(value, dict) else enumerate(value)
                for key, part in pairs:
                    self.scan(part, base, f"{at}/{word}/{key}", depth - 1)

    def shape(self, word: str, value: Any, at: str) -> str:
        """The shape of a known keyword, as it must be; a warning for an unknown one."""
        shape = _KEYWORDS.get(word, "")
        hint = f"; 2020-12 has {_INSTEAD[word]}" if word in _INSTEAD else ""
        names = [name for name in shape.split() if name in _WORDS]
        if not shape and hint:
            self.fail(at, f"{word} is of another draft{hint}")
        if not shape and self.warn and not word.startswith("x-"):
            self.warn(f"{self.where}: schema at {at}: unknown keyword {word!r}")
        wrong = shape and not any(type(value) in _WORDS[name][1:] for name in names)
        if word == "type" and not wrong:
            kinds = [value] if isinstance(value, str) else value
            wrong = not kinds or any(kind not in [*_WORDS] for kind in kinds)
            if wrong:
                self.fail(
                    f"{at}/type", f"{_show(value)}; there are {', '.join(_WORDS)}"
                )
        wrong = wrong or ("array schemas" == shape and not value)
        wrong = wrong or (word == "required" and not {*map(type, value)} <= {str})
        if wrong or (word == "multipleOf" and value <= 0):
            wish = " or ".join(_WORDS[name][0] for name in names)
            self.fail(f"{at}/{word}", f"{_show(value)} is not {wish} as expected{hint}")
        if word == "$schema" and value.rstrip("#") != _DIALECT:
            self.fail(at, f"$schema {value!r} is not supported, only {_DIALECT} is")
        return shape

    def resolve(self, ref: str, base: str) -> Any:
        uri, _, fragment = ref.partition("#")
        base = self.join(base, uri)
        if "%" in fragment:
            from urllib.parse import unquote

            fragment = unquote(fragment)
        plain = fragment and not fragment.startswith("/")
        schema = self.places.get(f"{base}#{fragment}" if plain else base)
        for step in [] if plain else fragment.split("/")[1:]:
            base = self.bases.get(id(schema), base)
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list):
                schema = {str(index): part for index, part in enumerate(schema)}
            schema = schema.get(step) if isinstance(schema, dict) else None
        if schema is None:
            self.fail(ref, "is not in this schema, and no other one is fetched")
        self.scan(schema, base, ref, self.limits.schema_depth)
        return schema

    def node(self, schema: Any) -> Any:
        """The closure of one schema: the rules of the value's type, one by one."""
        key, lasting = id(schema), isinstance(schema, bool) or id(schema) in self.bases
        if key in self.nodes:
            return self.nodes[key]
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        text = _alone(schema, self.limits.pattern_text)
        if text not in _shared:
            node = self.closure(schema)
            if text and len(_shared) < 256:
                _shared[text] = node, self.tables[node]
        else:
            node, self.tables[node] = _shared[text]
            self.leaves.add(node)
        if lasting:  # what _Compiler makes up itself is not kept, its id may come again
            self.nodes[key] = node
        return node

    def closure(self, schema: Any) -> Any:
        """The node itself; `tables` and `leaves` take what `_compile` wants to know."""
        rules: dict[Any, list[Any]] = {kind: [] for kind in _TYPES}
        types, wish = self.assertions(schema, rules)
        count = sum(map(len, rules.values()))
        self.arrays(schema, rules[list])
        self.objects(schema, rules[dict])
        self.logic(schema, rules)
        deny = (lambda value, work, seen: ("", wish, value),)
        table = {kind: tuple(rules[kind]) for kind in _TYPES if kind in types}
        own = "unevaluatedItems" in schema or "unevaluatedProperties" in schema
        base = self.bases[id(schema)] if "$id" in schema else None

        def node(value: Any, work: Any, seen: Any) -> Any:
            work.left -= 1
            if work.left < 0:
                work.more()
            if base is not None:
                work.scope.append(base)
            # What a schema evaluates counts for others only once all of it is valid.
            mine: Any = set() if own or seen is not None else None
            fault = None
            for rule in table.get(type(value), deny):
                fault = rule(value, work, mine)
                if fault is not None:
                    break
            if base is not None:
                work.scope.pop()
            if fault is None and seen is not None:
                seen |= mine
            return fault

        if not own and base is None:
            self.tables[node] = table
        if count == sum(map(len, rules.values())):
            self.leaves.add(node)
        return node

    def assertions(self, schema: Any, rules: dict[Any, list[Any]]) -> Any:
        """What looks at one value alone; returns the valid types, and their names."""

        def add(kinds: Any, test: Any, wish: str) -> None:
            def rule(value: Any, work: Any, seen: Any) -> Any:
                return None if test(value) else ("", wish, value)

            for kind in kinds:
                rules[kind].append(rule)

        names = schema.get("type", list(_WORDS))
        names = [names] if isinstance(names, str) else names
        types = {kind for name in names for kind in _WORDS[name][1:]}
        wish = " or ".join(_WORDS[name][0] for name in names)
        add([float], math.isfinite if "number" in names else float.is_integer, wish)
        for word in _TESTS.keys() & schema.keys():
            kinds, test, text = _TESTS[word]
            nouns = [_WORDS[n][0] for n in (*names, *_WORDS) if kinds[0] in _WORDS[n]]
            test = functools.partial(test, schema[word])
            add(kinds, test, text.format(nouns[0], schema[word]))
        if schema.get("uniqueItems"):
            unique = "an array without repeated items"
            add([list], lambda v: len({*map(_key, v)}) == len(v), unique)
        if "pattern" in schema:
            source, most = schema["pattern"], self.limits.pattern_text
            text = f"a string of at most {most} characters that matches {source}"
            add([str], self.pattern(source), _cut(text, 300))
        for word in [word for word in ("enum", "const") if word in schema]:
            values = schema["enum"] if word == "enum" else [schema["const"]]
            shown = [
                _encode_text(v)
                if type(v) in _TYPES[:5]
                else json.dumps(v, ensure_ascii=False, default=str)
                for v in values
            ]
            wish = _cut(", ".join(_cut(v, 80) for v in shown), 300) or "nothing"
            wish = f"one of {wish}" if len(values) > 1 else wish
            keys = frozenset(map(_key, values))
            found = {*map(type, values)}
            types &= found | (set(_NUMBER) if found & set(_NUMBER) else set())
            add([str], keys.__contains__, wish)
            others = [kind for kind in _TYPES if kind is not str]
            add(others, lambda value, keys=keys: _key(value) in keys, wish)
        return types, wish

    def pattern(self, source: str) -> Any:
        try:
            return _search(source, self.limits.pattern_text)
        except (ValueError, OverflowError, RecursionError, re.error) as error:
            return self.fail(f"pattern {source!r}", str(error))

    def arrays(self, schema: Any, rules: list[Any]) -> None:
        first = [self.node(part) for part in schema.get("prefixItems", ())]
        rest = [self.node(schema["items"])] if "items" in schema else []

        def each(value: Any, work: Any, seen: Any) -> Any:
            nodes = first + rest * len(value)
            if seen is not None:
                seen.update(range(min(len(value), len(nodes))))
            return _members(zip(range(len(value)), value, nodes), work)

        def contains(value: Any, work: Any, seen: Any) -> Any:
            found = [i for i, v in enumerate(value) if part(v, work, None) is None]
            if seen is not None:
                seen.update(found)
            return None if low <= len(found) <= high else ("", wish, value)

        if first or rest:
            rules.append(each)
        if "contains" in schema:
            part = self.node(schema["contains"])
            low = schema.get("minContains", 1)
            high = schema.get("maxContains", math.inf)
            wish = f"an array with {low} to {high} items as `contains` describes them"
            rules.append(contains)

    def objects(self, schema: Any, rules: list[Any]) -> None:
        parts = schema.get("properties", {}).items()
        properties = {name: self.node(part) for name, part in parts}
        parts = schema.get("patternProperties", {}).items()
        patterns = [(self.pattern(source), self.node(part)) for source, part in parts]
        extra = schema.get("additionalProperties")
        rest = [] if extra in (None, False) else [self.node(extra)]
        required = schema.get("required", ())
        root = schema is self.root
        noun = self.noun if root else "property"
        known = "this tool takes" if noun == "argument" else "known"
        known = f"{known}: {_cut(', '.join(properties), 200) or 'nothing'}"

        def members(value: Any, work: Any, seen: Any) -> Any:
            triples = []
            for key, item in value.items():
                nodes = [properties[key]] if key in properties else []
                nodes += [node for search, node in patterns if search(key)]
                if not nodes and extra is False:
                    text = f"unexpected {noun} {_cut(key, 60)!r}; {known}"
                    return "", text, _NO_VALUE
                triples += [(key, item, node) for node in nodes or rest]
            missing = ", ".join(repr(name) for name in required if name not in value)
            if missing:
                return "", f"missing {noun} {_cut(missing, 200)}", _NO_VALUE
            if seen is not None:
                seen.update(key for key, _, _ in triples)
            return _members(triples, work)

        if properties or patterns or extra is not None or required:
            rules.append(members)
            if root and not patterns:
                self.members = members
        if "propertyNames" in schema:
            name_node = self.node(schema["propertyNames"])
            rules.append(lambda v, w, s: _members(((k, k, name_node) for k in v), w))
        for name, names in schema.get("dependentRequired", {}).items():
            self.shape("required", names, f"dependentRequired/{name}")
            rules.append(self.either({"required": [name]}, {"required": names}, True))
        for name, part in schema.get("dependentSchemas", {}).items():
            rules.append(self.either({"required": [name]}, part, True))

    def either(self, *schemas: Any) -> Any:
        test, then, other = map(self.node, schemas)
        return lambda v, w, s: (then if test(v, w, s) is None else other)(v, w, s)

    def logic(self, schema: Any, rules: dict[Any, list[Any]]) -> None:
        """What holds for all types; unevaluated* comes last, it sees all the rest."""
        every = [self.node(part) for part in schema.get("allOf", ())]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                nodes = [self.node(part) for part in schema[word]]
                every.append(self.some(nodes, word == "oneOf"))
        if "not" in schema:
            never = self.node(schema["not"])
            text = "anything but what `not` describes"
            every.append(lambda v, w, s: None if never(v, w, None) else ("", text, v))
        if "if" in schema:
            words = ("if", "then", "else")
            every.append(self.either(*(schema.get(word, True) for word in words)))
        for word in ("$ref", "$dynamicRef"):
            every += [self.follow(word, schema)] if word in schema else []
        for some in rules.values():
            some += every
        for kind, word in ((list, "unevaluatedItems"), (dict, "unevaluatedProperties")):
            if word in schema:
                rules[kind].append(self.left_over(self.node(schema[word])))

    def left_over(self, node: Any) -> Any:
        def unevaluated(value: Any, work: Any, seen: Any) -> Any:
            pairs = value.items() if type(value) is dict else enumerate(value)
            rest = [(key, item, node) for key, item in pairs if key not in seen]
            seen.update(key for key, _, _ in rest)
            return _members(rest, work)

        return unevaluated

    def some(self, nodes: list[Any], exactly: bool) -> Any:
        def alternatives(value: Any, work: Any, seen: Any) -> Any:
            faults = []
            for node in nodes:
                faults.append(node(value, work, seen))
                if faults[-1] is None and seen is None and not exactly:
                    return None
            hits = faults.count(None)
            if hits == 1 or (hits and not exactly):
                return None
            if hits:
                return "", f"a match for one of {len(nodes)} schemas, not {hits}", value
            # The one that got inside the value, else what all of them wanted.
            best = max(faults, key=lambda f: (f[0] != "", f[2] is _NO_VALUE))
            if best[0] or best[2] is _NO_VALUE:
                return best
            wishes = dict.fromkeys(fault[1] for fault in faults)
            return "", _cut(" or ".join(wishes), 300), value

        return alternatives

    def follow(self, word: str, schema: Any) -> Any:
        """A reference to a schema, or to the outermost one with its dynamic anchor."""
        target = self.resolve(schema[word], self.bases[id(schema)])
        self.targets.append(target)
        others: dict[str, Any] = {}
        if word == "$dynamicRef" and isinstance(target, dict):
            anchor = schema[word].partition("#")[2]
            if target.get("$dynamicAnchor") == anchor:
                others = self.dynamic[anchor]
        nodes, bases, most = self.nodes, self.bases, 4 * self.limits.schema_depth

        def reference(value: Any, work: Any, seen: Any) -> Any:
            bound = [others[base] for base in work.scope if base in others]
            found = id(bound[0] if bound else target)
            if len(work.scope) > most:
                raise RecursionError
            work.scope.append(bases.get(found, ""))
            fault = nodes[found](value, work, seen)
            work.scope.pop()
            return fault

        return reference


def _compile(
    schema: Any, where: str, warn: Any = None, limits: Any = Limits, noun: str = ""
) -> Callable[[Any], Optional[str]]:
    """A check: None, or the sentence that says what is wrong with the value."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    compiler = _Compiler(schema, where, warn, limits, noun or "argument")
    compiler.scan(schema, "", "#", limits.schema_depth)
    root = compiler.node(schema)
    while compiler.targets:
        compiler.node(compiler.targets.pop())
    steps, base = limits.schema_work, compiler.bases[id(schema)]
    table: Any = compiler.tables.get(root, {})
    free = {kind for kind, rules in table.items() if not rules}  # all of that type fit

    def full(value: Any) -> Optional[str]:
        if type(value) in free:
            return None
        try:
            fault = root(value, _Work(steps, base, value), None)
        except RecursionError:
            return "nested too deeply, or too many alternatives to check"
        return None if fault is None else _say(fault)

    nodes = {k: compiler.node(v) for k, v in schema.get("properties", {}).items()}
    tables: Any = {name: compiler.tables.get(node) for name, node in nodes.items()}
    if table.get(dict) != (compiler.members,) or None in tables.values():
        return full
    required = schema.get("required", ())
    leaves = compiler.leaves.issuperset(nodes.values())

    def fits(value: Any) -> bool:
        # The usual flat object, if it is valid; what is wrong is for `full` to say.
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        work = None if leaves else _Work(steps, base, value)
        for name, item in value.items():
            for rule in tables[name][type(item)]:
                if rule(item, work, None) is not None:
                    return False
        return True

    def check(value: Any) -> Optional[str]:
        try:
            return None if fits(value) else full(value)
        except (KeyError, RecursionError):  # a name or a type that is not in the tables
            return full(value)

    return check


_FUNCTION = type(_cut)
_LEAVES = frozenset(_TYPES[:5])
_SIMPLE = {kinds[-1]: name for name, kinds in _WORDS.items()}
_GROUPS: dict[str, Any] = {
    **dict.fromkeys(("list", "Sequence", "Collection", "Iterable"), list),
    **dict.fromkeys(("dict", "Mapping", "MutableMapping"), dict),
    **dict.fromkeys(("set", "Set", "MutableSet"), set),
    "frozenset": frozenset,
    "tuple": tuple,
}
_TEXTS = {  # by name, as nothing is imported for them: format, class method
    "datetime.datetime": ("date-time", "fromisoformat"),
    "datetime.date": ("date", "fromisoformat"),
    "datetime.time": ("time", "fromisoformat"),
    "uuid.UUID": ("uuid", ""),
    "pathlib.Path": ("path", ""),
    "pathlib._local.Path": ("path", ""),
}
_CONSTRAINTS = (  # pydantic's Field and annotated-types: their word and ours, in turn
    "ge minimum gt exclusiveMinimum le maximum lt exclusiveMaximum pattern pattern"
    " multiple_of multipleOf min_length min~ max_length max~ description description"
).split()
_OFFER = (
    "use str, int, float, bool, None, bytes, list, dict, tuple, set, Literal, Enum,"
    " Optional, Union, Annotated, dataclass, TypedDict, NamedTuple, datetime, UUID,"
    " a class with model_json_schema() and model_validate(), or a schema of your own"
)


def _fields(kind: Any) -> list[Any]:
    """The fields of a dataclass without its ClassVar and InitVar ones."""
    fields = kind.__dataclass_fields__.values()
    return [field for field in fields if field._field_type.name == "_FIELD"]


def _plain(value: Any, depth: int = 200) -> Any:
    """A handler's result in plain JSON types; TypeError names what has none."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if depth == 0:
        raise ValueError("nested too deeply, or contains itself")
    depth -= 1
    if kind is dict or (hasattr(value, "keys") and hasattr(kind, "__getitem__")):
        return {
            key if type(key) is str else _name(key): (
                item if type(item := value[key]) in _LEAVES else _plain(item, depth)
            )
            for key in value.keys()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [v if type(v) in _LEAVES else _plain(v, depth) for v in value]
        ordered = kind is set and {*map(type, items)} in ({str}, {int})
        return sorted(items) if ordered else items
    if hasattr(kind, "__members__"):
        return _plain(value.value, depth)
    if hasattr(kind, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(kind, "__dataclass_fields__"):
        return _plain({f.name: getattr(value, f.name) for f in _fields(kind)}, depth)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    if hasattr(kind, "isoformat"):
        return value.isoformat()
    if hasattr(kind, "__fspath__") or f"{kind.__module__}.{kind.__name__}" in _TEXTS:
        return str(value)
    for base, method in (str, "__str__"), (int, "__int__"), (float, "__float__"):
        if isinstance(value, base):
            return getattr(base, method)(value)
    if hasattr(kind, "__index__") or hasattr(kind, "as_integer_ratio"):
        return int(value) if hasattr(kind, "__index__") else float(value)
    raise TypeError(f"a {kind.__name__} has no JSON form")


def _name(key: Any) -> str:
    """The name of a member, as json.dumps makes one of a number, a boolean or None."""
    key = _plain(key)
    if isinstance(key, (list, dict)):
        raise TypeError(f"a {type(key).__name__} cannot name a member of an object")
    return key if type(key) is str else json.dumps(key)


def _same(value: Any) -> Any:
    return value


def _binder(plan: list[Any], failure: Any) -> Any:
    """Converts some members of an object, in a copy; None if there are none."""

    def bind(values: dict[str, Any]) -> dict[str, Any]:
        result = values
        for name, exact, convert in plan:
            value = values.get(name, _NO_VALUE)
            if type(value) is exact or value is _NO_VALUE:
                continue
            if result is values:
                result = values.copy()
            try:
                result[name] = convert(value)
            except (ValueError, TypeError, ArithmeticError) as error:
                raise failure(f"{name}: {_cut(str(error), 400)}") from None
        return result

    return bind if plan else None


class _Hints:
    """One walk over type hints: `of` gives the schema of each and its converter."""

    def __init__(self, where: str, scope: Any = None, output: bool = False) -> None:
        self.where, self.scope, self.output = where, scope or {}, output
        self.defs: dict[str, Any] = {}
        self.names: dict[Any, str] = {}  # types that are being built, or recursive
        self.made: dict[Any, Any] = {}  # recursive type -> its converter
        self.loops: set[Any] = set()

    def fail(self, text: str) -> Any:
        raise DefinitionError(f"{self.where}: {text}")

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """With $defs for recursive types; as the root such a type stands in full."""
        full = self.defs.get(schema.get("$ref", "")[8:], schema)
        return {**full, "$defs": self.defs} if self.defs else schema

    def resolve(self, hint: Any) -> Any:
        """What an annotation in quotes, or under the future import, stands for."""
        text = getattr(hint, "__forward_arg__", hint)
        if not isinstance(text, str):
            return hint
        module = sys.modules.get(getattr(hint, "__forward_module__", None) or "")
        scope = collections.ChainMap(vars(module), self.scope) if module else self.scope
        try:
            return eval(text, {}, scope)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            tip = "; write Optional[X] for X | None" if "|" in text else ""
            return self.fail(f"the annotation {text!r} fails here: {error}{tip}")

    def of(self, hint: Any) -> Any:
        hint = self.resolve(hint)
        if isinstance(hint, str):
            return self.of(hint)
        origin = getattr(hint, "__origin__", None) or hint
        args: Any = getattr(hint, "__args__", None) or ()
        form = _form(origin)
        if hasattr(hint, "__metadata__"):
            return self.annotated(origin, hint.__metadata__)
        if hasattr(hint, "__supertype__"):
            return self.of(hint.__supertype__)
        if form in ("Union", "UnionType"):
            return self.union(args)
        if form == "Literal":
            return self.literal(args)
        if form in ("Required", "NotRequired", "ReadOnly", "Final"):
            return self.of(args[0])
        if form == "TypeVar":
            return self.union(hint.__constraints__ or [hint.__bound__ or object])
        if form == "Any" or origin is object:
            return {}, None
        if hasattr(origin, "__value__"):
            build = functools.partial(self.of, origin.__value__)
            return self.named(origin, origin.__name__, build)
        kind = _NULL if origin is None else origin
        found = self.kind(kind, args) if isinstance(kind, type) else None
        return found or self.fail(f"no JSON Schema for {hint!r}; {_OFFER}")

    def annotated(self, hint: Any, metadata: Any) -> Any:
        schema, convert = self.of(hint)
        schema = dict(schema)
        units = {"array": "Items", "object": "Properties"}
        unit = units.get(schema.get("type", ""), "Length")
        for item in metadata:
            if isinstance(item, str):
                item = {"description": item}
            elif not isinstance(item, dict):
                item = {
                    word.replace("~", unit): getattr(part, name)
                    for part in (item, *(getattr(item, "metadata", None) or ()))
                    for name, word in zip(_CONSTRAINTS[::2], _CONSTRAINTS[1::2])
                    if isinstance(getattr(part, name, None), (str, int, float))
                }
            schema.update(item)
        return schema, convert

    def union(self, hints: Any) -> Any:
        pairs = [self.of(hint) for hint in hints]
        parts = [part for part, _ in pairs]
        parts = [part for i, part in enumerate(parts) if part not in parts[:i]]
        makers = [make for part, make in pairs if part != {"type": "null"}]
        if {} in parts:
            return {}, None
        schema = parts[0] if len(parts) == 1 else {"anyOf": parts}
        if not any(makers):
            return schema, None
        if len(makers) == 1:
            return schema, lambda value: None if value is None else makers[0](value)
        return schema, self.first(pairs)

    def first(self, pairs: list[Any]) -> Any:
        """The first alternative whose schema fits and that can be built."""
        checks: list[Any] = []
        where, defs = self.where, self.defs

        def choose(value: Any) -> Any:
            if not checks:  # not before: until now a recursive type was incomplete
                checks[:] = [_compile({**s, "$defs": defs}, where) for s, _ in pairs]
            failure = ValueError("no alternative fits")
            for check, (_, make) in zip(checks, pairs):
                try:
                    if check(value) is None:
                        return (make or _same)(value)
                except ValueError as error:
                    failure = error
            raise failure

        return choose

    def literal(self, values: Any) -> Any:
        """Literal and Enum: the JSON values, and the way back from them."""
        try:
            plain = [_plain(value) for value in values]
        except TypeError as error:
            self.fail(f"{values!r}: {error}")
        kinds = {*map(type, plain)}
        if kinds & {list, dict}:
            self.fail(f"{values!r}: only strings, numbers, booleans and None will do")
        schema: dict[str, Any] = {"enum": plain}
        if len(kinds) == 1:
            schema = {"type": _SIMPLE[kinds.pop()], "enum": plain}
        back = dict(zip(map(_key, plain), values))
        same = all(type(value) in (str, bool, _NULL) for value in values)
        return schema, None if same else lambda value: back[_key(value)]

    def named(self, kind: Any, name: str, build: Callable[[], Any]) -> Any:
        """A type with a name: inlined, or in $defs if it contains itself."""
        if kind in self.names:
            self.loops.add(kind)
        else:
            while name in self.names.values():
                name += "_"
            self.names[kind] = name
            pair = build()
            if kind not in self.loops:
                del self.names[kind]
                return pair
            self.defs[name], self.made[kind] = pair
        made = self.made
        ref = {"$ref": f"#/$defs/{self.names[kind]}"}
        return ref, lambda value: (made[kind] or _same)(value)

    def record(self, kind: Any, build: Callable[[Any], Any]) -> Any:
        """A class with annotations, read in the module that it was written in."""

        def inside() -> Any:
            outer = self.scope
            modules = (sys.modules.get(base.__module__) for base in kind.__mro__)
            maps = [vars(module) for module in modules if module]
            self.scope = collections.ChainMap({kind.__name__: kind}, *maps, outer)
            pair = build(kind)
            self.scope = outer
            return pair

        return self.named(kind, kind.__name__, inside)

    def kind(self, kind: Any, args: Any) -> Any:
        """A class; None for one that has no schema."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        if hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate"):
            return self.model(kind.model_json_schema()), kind.model_validate
        if hasattr(kind, "__members__"):
            return self.literal(list(kind))
        if hasattr(kind, "__dataclass_fields__"):
            return self.record(kind, self.dataclass)
        if hasattr(kind, "__required_keys__"):
            return self.record(kind, self.typed_dict)
        if hasattr(kind, "_fields") and issubclass(kind, tuple):
            return self.record(kind, self.named_tuple)
        if kind in _SIMPLE and not args:
            return {"type": _SIMPLE[kind]}, kind if kind in _NUMBER else None
        if kind in (bytes, bytearray):
            schema = {"type": "string", "contentEncoding": "base64"}
            return schema, lambda text: kind(_from_base64(text))
        if name in _TEXTS:
            return self.text(kind, *_TEXTS[name])
        if name == "decimal.Decimal":
            return {"type": "number"}, lambda value: kind(repr(value))
        builtin = kind.__module__ in ("builtins", "collections.abc")
        return self.container(_GROUPS.get(kind.__name__), args) if builtin else None

    def container(self, group: Any, args: Any) -> Any:
        if group is dict:
            return self.mapping(*(args or (str, object)))
        if group is tuple and args and args[-1] is not Ellipsis:
            pairs = [self.of(hint) for hint in args]
            return self.row(pairs, len(pairs), tuple)
        if group is None:
            return None
        item, make = self.of(args[0]) if args else ({}, None)
        schema: dict[str, Any] = {"type": "array", **({"items": item} if item else {})}
        if group in (set, frozenset):
            schema["uniqueItems"] = True
        if group is list and not make:
            return schema, None
        return schema, lambda value: group(map(make or _same, value))

    def mapping(self, key: Any, item: Any) -> Any:
        (names, name_of), (part, make) = self.of(key), self.of(item)
        if names.get("type") != "string":
            self.fail(f"the names in a JSON object are strings, not {key!r}")
        schema: dict[str, Any] = {"type": "object"}
        if names != {"type": "string"}:
            schema["propertyNames"] = names
        if part:
            schema["additionalProperties"] = part
        if not name_of and not make:
            return schema, None
        a, b = name_of or _same, make or _same
        return schema, lambda value: {a(k): b(v) for k, v in value.items()}

    def row(self, pairs: list[Any], least: int, build: Any) -> Any:
        schema: Any = {"type": "array", "minItems": least, "maxItems": len(pairs)}
        if pairs:
            schema["prefixItems"] = [part for part, _ in pairs]
        makers = [make or _same for _, make in pairs]
        return schema, lambda value: build(make(v) for make, v in zip(makers, value))

    def named_tuple(self, kind: Any) -> Any:
        hints = getattr(kind, "__annotations__", {})
        pairs = [self.of(hints.get(name, object)) for name in kind._fields]
        least = len(pairs) - len(kind._field_defaults)
        return self.row(pairs, least, lambda items: kind(*items))

    def typed_dict(self, kind: Any) -> Any:
        rows = []
        for name, hint in kind.__annotations__.items():
            hint = self.resolve(hint)
            form = _form(getattr(hint, "__origin__", None))
            needed = form == "Required" or name in kind.__required_keys__
            rows.append((name, hint, _NO_VALUE, needed and form != "NotRequired", ""))
        schema, plan = self.fields(rows, f"{kind.__name__} key")
        return schema, _binder(plan, ValueError)

    def dataclass(self, kind: Any) -> Any:
        from dataclasses import MISSING

        rows = []
        for field in _fields(kind):
            needed = field.default is MISSING and field.default_factory is MISSING
            text = field.metadata.get("description", "")
            if field.init or self.output:
                rows.append((field.name, field.type, field.default, needed, text))
        schema, plan = self.fields(rows, f"{kind.__name__} field")
        if not self.output:
            schema["additionalProperties"] = False
        bind = _binder(plan, ValueError) or _same
        return schema, lambda value: kind(**bind(value))

    def fields(self, rows: list[Any], noun: str) -> Any:
        """The schema of an object, and for _binder the plan of its members."""
        where = self.where
        properties, required, plan = {}, [], []
        for name, hint, default, needed, text in rows:
            self.where = f"{where}, {noun} {name!r}"
            schema, convert = self.of(hint)
            schema = dict(schema)
            if text:
                schema.setdefault("description", text)
            if needed:
                required.append(name)
            elif default is not None or "type" not in schema:  # `x: int = None`
                try:
                    default = _plain(default)
                    _encode(default)
                    schema.setdefault("default", default)
                except (TypeError, ValueError):
                    pass
            properties[name] = schema
            if convert:
                plan.append((name, convert if convert in _NUMBER else None, convert))
        self.where = where
        schema = {"type": "object", "properties": properties}
        return {**schema, **({"required": required} if required else {})}, plan

    def text(self, kind: Any, form: str, method: str) -> Any:
        parse = getattr(kind, method) if method else kind

        def convert(text: str) -> Any:
            plain = text
            if method:  # Python 3.9 and 3.10 know neither Z nor .5 seconds
                plain = re.sub(r"\.(\d+)", lambda m: f".{m[1]:0<6.6}", plain)
                plain = re.sub("[zZ]$", "+00:00", plain)
            try:
                return parse(plain)
            except ValueError:
                raise ValueError(f"expected a {form}, got {_show(text)}") from None

        return {"type": "string", "format": form}, convert

    def model(self, schema: Any) -> Any:
        """A pydantic schema without its $defs: many clients follow no references."""
        local = schema.get("$defs", {})

        def inline(part: Any) -> Any:
            if isinstance(part, list):
                return [inline(item) for item in part]
            if not isinstance(part, dict):
                return part
            rest = {k: inline(v) for k, v in part.items() if k not in ("$ref", "$defs")}
            name = str(part.get("$ref"))[8:]
            if name not in local:
                return rest
            pair = self.named((id(local), name), name, lambda: (inline(local[name]), 0))
            return {**pair[0], **rest}

        return inline(schema)


def _from_base64(text: str) -> bytes:
    try:
        data = binascii.a2b_base64(text)
    except ValueError:
        data = b""
    if binascii.b2a_base64(data, newline=False).decode("ascii") != text:
        raise ValueError(f"expected base64, got {_show(text)}")  # a2b skips garbage
    return data


def _form(origin: Any) -> str:
    """The name of a special form of typing, typing_extensions or types."""
    for thing in (origin, type(origin)):
        if getattr(thing, "__module__", "") in ("typing", "typing_extensions", "types"):
            name = getattr(thing, "_name", None) or getattr(thing, "__name__", None)
            if name:
                return str(name)
    return ""


def _has(annotation: Any, mark: str) -> bool:
    """Whether a class with this mark is the annotation, or is inside it."""
    inner = [getattr(annotation, "__origin__", None)]
    inner += getattr(annotation, "__args__", None) or ()
    found = bool(getattr(annotation, mark, False))
    return found or any(_has(part, mark) for part in inner if part is not None)


def _schema(annotation: Any, where: str) -> dict[str, Any]:
    hints = _Hints(where)
    return hints.root(hints.of(annotation)[0])


def _converter(annotation: Any) -> Any:
    """From a checked JSON value to the annotated type; None if it stays as it is."""
    return _Hints("converter").of(annotation)[1]


def _output(annotation: Any, where: str, scope: Any = None) -> Any:
    """The outputSchema of a return annotation, and whether legacy revisions wrap it.

    No schema: None, Any, content blocks, what may hold such (`list`) and whatever has
    none. A root that is no object is wrapped as {"result": ...} where a revision wants
    an object (TOL-07).
    """
    hints = _Hints(where, scope, output=True)
    if annotation in (_NO_VALUE, None, _NULL) or _has(annotation, "_mcp_content"):
        return None, False
    try:
        schema = hints.root(hints.of(annotation)[0])
    except DefinitionError:
        return None, False
    kind = schema.get("type")
    if not schema or (kind == "array" and not schema.keys() & {"items", "prefixItems"}):
        return None, False
    return schema, kind != "object"


class _Parameter:
    __slots__ = ("annotation", "default", "description", "name", "required")

    def __init__(self, name: str, annotation: Any, default: Any, text: str) -> None:
        self.name, self.annotation, self.description = name, annotation, text
        self.default, self.required = default, default is _NO_VALUE


class _Signature:
    """What a handler takes, read without `inspect` from plain functions and methods."""

    __slots__ = (
        *("context", "description", "is_async", "name", "parameters", "returns"),
        "scope",
    )

    def __init__(self, function: Any, where: str, free: bool = False) -> None:
        # free: an explicit schema says what comes, and **arguments may take it.
        layers, skip, decided = self.layers(function, where)
        plain = layers[-1]
        flags = [each.__code__.co_flags for each in layers if hasattr(each, "__code__")]
        if flags[-1] & 0x220:
            raise DefinitionError(f"{where}: a generator; return one value instead")
        names = [getattr(each, "__name__", "__call__") for each in layers]
        self.name = next((n for n in names if n != "__call__"), type(function).__name__)
        self.is_async = any(flag & 0x80 for flag in flags)
        docs = [e.__doc__ for e in layers if not isinstance(e, functools.partial)]
        self.description, texts = _docstring(next(filter(None, docs[::-1]), ""))
        cells = zip(plain.__code__.co_freevars, plain.__closure__ or ())
        filled = {name: c.cell_contents for name, c in cells if c != type(c)()}
        self.scope = collections.ChainMap(filled, plain.__globals__)
        self.parameters: list[_Parameter] = []
        self.context: Optional[str] = None
        returns = plain.__annotations__.get("return", _NO_VALUE)
        self.returns = _Hints(f"{where}, return value", self.scope).resolve(returns)
        owner = plain.__qualname__.rpartition(".")[0].replace("<locals>", "")
        method = owner[-1:] not in ("", ".") and not (free or skip)  # it is in a class
        for star, name, hint, default in self.rows(plain)[skip:]:
            if name in ("self", "cls") and hint is object and method:
                text = f"register the bound method, object.{self.name}"
                raise DefinitionError(f"{where}: {name} is no argument: {text}")
            hints = _Hints(f"{where}, parameter {star + name!r}", self.scope)
            if name in decided or (free and star == "**"):
                continue
            if star:
                hints.fail("arguments come by name: declare each one, without * or /")
            if type(default).__name__ == "FieldInfo":
                hints.fail("write Annotated[type, Field(...)] = default")
            hint = hints.resolve(hint)
            if not _has(hint, "_mcp_context"):
                text = texts.get(name, "")
                self.parameters.append(_Parameter(name, hint, default, text))
            elif self.context:
                hints.fail(f"{self.context!r} is the Context already")
            else:
                self.context = name

    @staticmethod
    def layers(function: Any, where: str) -> Any:
        """The callable and what it wraps, down to a function; what that is given."""
        layers, skip, decided = [function], 0, set()
        while hasattr(layers[-1], "__wrapped__") or type(layers[-1]) is not _FUNCTION:
            last = layers[-1]
            if isinstance(last, functools.partial):
                skip, inner = skip + len(last.args), last.func
                decided |= set(last.keywords)
            elif hasattr(last, "__func__"):
                skip, inner = skip + 1, last.__func__
            elif hasattr(last, "__wrapped__"):
                inner = last.__wrapped__
            else:
                skip, inner = skip + 1, type(last).__call__
                if type(inner) is not _FUNCTION:
                    raise DefinitionError(
                        f"{where}: {function!r} is no Python function"
                    )
            layers.append(inner)
        return layers, skip, decided

    @staticmethod
    def rows(plain: Any) -> list[Any]:
        """(star or slash, name, annotation, default) of each parameter."""
        code, hints = plain.__code__, plain.__annotations__
        count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames
        defaults = dict(zip(names[:count][::-1], (plain.__defaults__ or ())[::-1]))
        defaults.update(plain.__kwdefaults__ or {})
        stars = ["/"] * code.co_posonlyargcount
        stars += [""] * (total - len(stars))
        stars += [star for star, flag in (("*", 4), ("**", 8)) if code.co_flags & flag]
        return [
            (star, name, hints.get(name, object), defaults.get(name, _NO_VALUE))
            for star, name in zip(stars, names)
        ]


def _entry(line: str) -> tuple[str, str]:
    """Name and text of `name (type): text` in an "Args:" part; no name in others."""
    line = line[2:] if line.startswith("**") else line[line.startswith("*") :]
    letters = (i for i, c in enumerate(line) if not (c.isalnum() or c == "_"))
    size = next(letters, 0)
    rest = line[size:].lstrip()
    if rest[:1] == "(":
        tails = (rest[at + 1 :].lstrip() for at, c in enumerate(rest) if c == ")")
        rest = next((tail for tail in tails if tail[:1] == ":"), "")
    return line[:size] if rest[:1] == ":" else "", rest[1:].lstrip()


def _docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text before "Args:", and what that says about each parameter."""
    first, *lines = (doc.expandtabs() + "\n").splitlines()
    margin = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
    lines = [first.strip(), *(line[margin:].rstrip() for line in lines)]
    heads = ("Args:", "Arguments:", "Parameters:")
    start = next((i for i, line in enumerate(lines) if line in heads), len(lines))
    texts: dict[str, str] = {}
    name, column = "", 0
    for line in filter(None, lines[start + 1 :]):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        entry = _entry(text)
        if not indent:
            break
        if entry[0] and (not name or indent <= column):
            name, column, texts[entry[0]] = entry[0], indent, entry[1]
        elif name:
            texts[name] = f"{texts[name]} {text}".strip()
    return "\n".join(lines[:start]).strip(), texts


def _arguments(signature: _Signature, where: str) -> tuple[dict[str, Any], Any]:
    """The inputSchema of a handler, and what gives its arguments their types."""
    hints = _Hints(where, signature.scope)
    rows = [
        (each.name, each.annotation, each.default, each.required, each.description)
        for each in signature.parameters
    ]
    schema, plan = hints.fields(rows, "parameter")
    schema["additionalProperties"] = False
    return hints.root(schema), _binder(plan, ToolError)


# ---- 5 Registry --------------------------------------------------------------------
# What a server offers. Tables are copied on write and swapped under one lock; readers
# take none. A table carries its own cache of encoded lists, so a swap drops both.


def _camel(name: str) -> str:
    return name[0] + name.title().replace("_", "")[1:]


class _Wire:
    """A protocol object with snake_case keywords; `wire()` is its JSON form."""

    _type: Optional[str] = None
    _fields: tuple[str, ...] = ()
    _mcp_content = True  # a return annotation with it has no outputSchema
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, *values: Any, meta: Any = None, **named: Any) -> None:
        named.update(zip(self._fields, values))
        self.meta = named.pop("_meta", meta)
        fits = named.pop("type", self._type) == self._type
        if not fits or len(values) > len(self._fields) or named.keys() - self._fields:
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._fields)}")
        for field in self._fields:
            setattr(self, field, named.get(field))

    def __repr__(self) -> str:
        fields = (f"{f}={getattr(self, f)!r}" for f in self._fields)
        return f"{type(self).__name__}({', '.join(fields)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def wire(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": self._type, "_meta": self.meta}
        found.update((_camel(f), _wire(getattr(self, f))) for f in self._fields)
        return {key: value for key, value in found.items() if value is not None}


def _wire(value: Any) -> Any:
    if isinstance(value, _Wire):
        return value.wire()
    if isinstance(value, dict):
        return {key: _wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wire(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    return value


class Icon(_Wire):
    _fields = ("src", "mime_type", "sizes", "theme")


class ToolAnnotations(_Wire):
    _fields = (
        *("title", "read_only_hint", "destructive_hint", "idempotent_hint"),
        "open_world_hint",
    )


def _hints(given: Any, where: str) -> Optional[dict[str, Any]]:
    """annotations= of a tool as the protocol names them: a hint that nobody reads is
    worse than none."""
    found = {} if given is None else _wire(given)
    names = [_camel(field) for field in ToolAnnotations._fields]
    for key, value in found.items():
        if key not in names and "/" not in key:
            text = f"{where}: annotations= takes {', '.join(names)}, not {key!r}"
            raise DefinitionError(text)
        if key.endswith("Hint") and key in names and type(value) is not bool:
            raise DefinitionError(f"{where}: {key} is True or False, not {value!r:.80}")
    return found or None


class Annotations(_Wire):
    _fields = ("audience", "priority", "last_modified")


class TextContent(_Wire):
    _type, _fields = "text", ("text", "annotations")


class ImageContent(_Wire):
    _type, _fields = "image", ("data", "mime_type", "annotations")


class AudioContent(_Wire):
    _type, _fields = "audio", ("data", "mime_type", "annotations")


class TextResourceContents(_Wire):
    _fields = ("uri", "text", "mime_type")


class BlobResourceContents(_Wire):
    _fields = ("uri", "blob", "mime_type")


class EmbeddedResource(_Wire):
    _type, _fields = "resource", ("resource", "annotations")


class ResourceLink(_Wire):
    _type = "resource_link"
    _fields = (
        *("uri", "name", "title", "description", "mime_type", "size", "annotations"),
        "icons",
    )


class CallToolResult(_Wire):
    """A whole result of a tool: content blocks, structured content, isError."""

    _fields = ("content", "structured_content", "is_error")


class Image(_Wire):
    """An image from a file or from bytes: Image(path="a.png"), Image(data=b"...")."""

    _type, _fields, _default = "image", ("path", "data", "format"), "png"
    _kinds = {"jpg": "jpeg", "svg": "svg+xml", "mp3": "mpeg"}

    def wire(self) -> dict[str, Any]:
        data, kind = self.data, self.format
        if (data is None) == (self.path is None):
            raise ToolError(f"{type(self).__name__} takes either path= or data=")
        if data is None:
            kind = kind or os.path.splitext(str(self.path))[1][1:].lower()
            with open(self.path, "rb") as file:
                data = file.read()
        kind = self._kinds.get(kind, kind or self._default)
        kind = kind if "/" in kind else f"{self._type}/{kind}"
        return {"type": self._type, "data": _wire(data), "mimeType": kind}


class Audio(Image):
    """Sound from a file or from bytes: Audio(path="a.wav")."""

    _type, _default = "audio", "wav"


class Message(_Wire):
    """One message of a prompt: Message("text", role="user")."""

    _fields, _role = ("content", "role"), "user"

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.role: str = vars(self)["role"] or self._role

    def wire(self) -> dict[str, Any]:
        return {"role": self.role, "content": _block(self.content)}


UserMessage = Message


class AssistantMessage(Message):
    _role = "assistant"


class Completion(_Wire):
    _fields = ("values", "total", "has_more")


class PromptReference(_Wire):
    _type, _fields = "ref/prompt", ("name", "title")


class ResourceTemplateReference(_Wire):
    _type, _fields = "ref/resource", ("uri",)


class CompletionArgument(_Wire):
    _fields = ("name", "value")


class CompletionContext(_Wire):
    _fields = ("arguments",)


class Root(_Wire):
    _fields = ("uri", "name")


_BLOCKS = ("text", "image", "audio", "resource", "resource_link")


def _block(value: Any) -> dict[str, Any]:
    """One content block from whatever a handler gave."""
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if isinstance(value, _Wire) or (isinstance(value, dict) and "type" in value):
        block: dict[str, Any] = _wire(value)
        if block.get("type") in _BLOCKS:
            return block
        if "uri" in block and ("text" in block or "blob" in block):
            return {"type": "resource", "resource": block}
        value = block
    return {"type": "text", "text": _encode_text(_plain(value))}


class _Handler:
    """A user function and how it wants to be called."""

    scopes: frozenset[str] = frozenset()  # what a caller needs
    context: Optional[str] = None  # the parameter that takes the Context
    check: Any = None  # arguments -> None or what is wrong
    bind: Any = None  # arguments -> annotated types
    properties: Any = ()  # argument name -> schema
    is_async = False
    inline = False
    lane: Optional[str] = None
    timeout: Optional[float] = None
    output: Any = None  # tool: checks structured results
    wrap = False  # tool: its result is {"result": ...} before 2026-07-28
    headers: Any = ()  # tool: what Mcp-Param headers mirror
    rate: Any = None  # tool: a _Bucket
    interval = 0.0  # resource: seconds between two announcements
    hints: Any = None  # resource: (ttlMs, cacheScope)
    match: Any = None  # template: URI -> arguments

    def __init__(
        self, kind: str, name: str, fields: dict[str, Any], function: Any, **how: Any
    ) -> None:
        self.kind, self.name, self.function = kind, name, function
        self.fields = {key: _wire(v) for key, v in fields.items() if v is not None}
        self.lane = how.pop("lock", None)
        if "scopes" in how:
            how["scopes"] = frozenset(how["scopes"])
        for option, value in how.items():
            setattr(self, option, value)
        self.order = 0
        self.encoded: dict[str, bytes] = {}  # revision -> list entry
        odd = {"lock=": self.lane, "timeout=": self.timeout, "async def": self.is_async}
        what = next((word for word, there in odd.items() if there), None)
        if self.inline and what:
            raise DefinitionError(
                f"{kind} {name!r}: inline=True does not go with {what}: inline "
                "handlers run on the thread of run() and must never wait"
            )

    def take(self, given: dict[str, Any]) -> dict[str, Any]:
        """Checked arguments in their annotated types; ToolError tells what is off."""
        wrong = self.check(given) if self.check else None
        if wrong:
            raise ToolError(wrong)
        try:
            return self.bind(given) if self.bind else given
        except ToolError:
            raise
        except (Exception, SystemExit) as error:  # of a __post_init__ or model_validate
            text = f"an argument cannot be made: {type(error).__name__}"
            raise ToolError(text) from error

    def take_text(self, given: dict[str, Any]) -> dict[str, Any]:
        """As take; a string may stand for a number or a boolean (URIs, prompts)."""
        found = dict(given)
        for name, text in given.items():
            schema = self.properties.get(name, {})
            kinds = {c.get("type") for c in (schema, *schema.get("anyOf", ()))}
            if "string" not in kinds and kinds & {"integer", "number", "boolean"}:
                with contextlib.suppress(MCPError, AttributeError, UnicodeError):
                    found[name] = _decode(text.encode("utf-8"), 1, 40)
        return self.take(found)


_Tool = _Resource = _Handler


class _Table:
    """What is offered of one kind, in order of registration, and encoded pages."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items = items
        self.pages: dict[Any, bytes] = {}


class _Registry:
    """The tables of one server."""

    kinds = ("tool", "resource", "template", "prompt")
    tool: _Table
    resource: _Table
    template: _Table
    prompt: _Table

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.ever: set[Optional[str]] = {None}  # kinds that were ever offered
        self.scopes: frozenset[str] = frozenset()  # all that any record asks for
        for kind in self.kinds:
            setattr(self, kind, _Table({}))

    def put(self, record: Any) -> None:
        kind, name = record.kind, record.name
        with self.lock:
            items = dict(getattr(self, kind).items)
            if name in items:
                raise DefinitionError(
                    f"{kind} {name!r} exists already; remove it first"
                )
            self.count = record.order = self.count + 1
            items[name] = record
            self.ever.add("resource" if kind == "template" else kind)
            self.scopes |= record.scopes
            setattr(self, kind, _Table(items))

    def drop(self, kind: str, name: str) -> None:
        with self.lock:
            items = dict(getattr(self, kind).items)
            if items.pop(name, None) is None:
                raise KeyError(f"no {kind} {name!r}")
            setattr(self, kind, _Table(items))

    def find_resource(self, uri: str) -> tuple[Any, dict[str, Any]]:
        """The resource or template of a URI, and the template's arguments."""
        record = self.resource.items.get(uri)
        if record is None and len(uri) <= _URI:
            for record in self.template.items.values():
                arguments = record.match(uri)
                if arguments is not None:
                    return record, arguments
            record = None
        return record, {}


# What of RFC 6570 can be matched back to arguments: {x} {+x} {/x} {/x*} {?x,y}.
_URI = 2048  # characters of a URI that templates are tried on
_N = "([A-Za-z_][A-Za-z0-9_]*)"
_EXPRESSION = _Pattern(rf"\{{(?:([+/]?){_N}|/{_N}\*|\?({_N[1:-1]}(?:,{_N[1:-1]})*))\}}")


def _template(uri: str, where: str) -> tuple[list[str], Callable[[str], Any]]:
    """Variable names of a URI template, and a function URI -> strings by name."""
    pieces = _EXPRESSION.split(uri)  # a literal, then four groups and a literal each
    *_, rest = literals = pieces[::5]
    names: list[str] = []
    queries: list[str] = []
    pattern, shared = "", 0
    before = "/"
    for literal, operator, name, many, query in zip(*(pieces[i::5] for i in range(5))):
        pattern += re.escape(literal)
        bar = "?#" if operator == "+" else "/?#"
        if queries:
            rest = "}"  # nothing can follow a query
        elif query:
            queries = query.split(",")
            pattern += r"(?:\?(?P<query>[^#]*))?"
            continue
        elif many:
            pattern += "((?:/[^/?#]+)*)"
        else:
            if names and operator != "/" and (before == "+" or "/" not in literal):
                # The first takes what it can of the text that both could have. With
                # more than two to share, that would take polynomial time.
                shared += 1
                bar += literal[-1:] if shared > 1 else ""
                rest = rest if literal else "}"
            pattern += f"{operator.strip('+')}([^{re.escape(bar)}]+)"
        names.append(name or many)
        before = operator
    if re.search("[{}]", "".join(literals) + rest) or (queries and rest):
        raise DefinitionError(f"{where}: {uri!r} cannot be matched back to arguments")
    matcher = re.compile(pattern + re.escape(rest))
    lists = set(pieces[3::5])
    confined = uri.lower().startswith("file:")

    def match(text: str) -> Optional[dict[str, Any]]:
        found = matcher.fullmatch(text)
        if found is None:
            return None
        pairs = list(zip(names, found.groups()))
        parts = (
            [part.partition("=") for part in (found["query"] or "").split("&")]
            if queries
            else ()
        )
        pairs += [(name, value) for name, _, value in parts if name in queries]
        given: dict[str, Any] = {}
        for name, raw in pairs:
            steps = _steps(raw, confined and name not in lists, confined)
            if steps is None:
                return None
            given[name] = steps[1:] if name in lists else "/".join(steps)
        return given

    return names + queries, match


def _steps(raw: str, relative: bool, confined: bool) -> Optional[list[str]]:
    """The decoded path steps of a value; None if they lead elsewhere (RES-08)."""
    steps = raw.split("/")
    if "%" in raw:
        from urllib.parse import unquote

        try:
            steps = [unquote(step, errors="strict") for step in steps]
        except UnicodeDecodeError:
            return None
    inner = "/".join(steps).replace("\\", "/").split("/")
    climbs = ".." in inner or (relative and raw[:1] == "/")
    if climbs or "\0" in "".join(steps) or (confined and len(inner) != len(steps)):
        return None
    return steps


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME = frozenset(_LETTERS + "0123456789-._")
_SCHEME = frozenset(_LETTERS + "0123456789-.+")
_HEADER_TOKEN = _Pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _x_headers(schema: Any, where: str) -> list[tuple[str, tuple[str, ...]]]:
    """(Mcp-Param header, property path) of each x-mcp-header (HTM-13)."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(node: Any, path: tuple[str, ...]) -> None:
        inner = node.get("properties") if isinstance(node, dict) else None
        for name, child in (inner or {}).items():
            walk(child, (*path, name))
            if isinstance(child, dict) and "x-mcp-header" in child:
                header = child["x-mcp-header"]
                token = isinstance(header, str) and _HEADER_TOKEN.fullmatch(header)
                if token and child.get("type") in ("string", "integer", "boolean"):
                    found[f"mcp-param-{header.lower()}"] = (*path, name)

    walk(schema, ())
    text = _encode(schema)
    key = b'"x-mcp-header":'  # with an object behind it, it is a property's name
    if text.count(key) - text.count(key + b"{") != len(found):
        raise DefinitionError(
            f"{where}: each x-mcp-header must be a unique HTTP token on a string, "
            "integer or boolean reached by properties alone"
        )
    return list(found.items())


# ---- 6 Protocol tables -------------------------------------------------------------
# Facts of the protocol as literals. Code walks them; there is no other `if method ==`.

A, B, C, D, E = "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"
_LEGACY = (A, B, C, D)
_MODERN = (E,)
_META = "io.modelcontextprotocol/"
_VERSION_KEY = _META + "protocolVersion"
_CAPABILITIES_KEY = _META + "clientCapabilities"
_CLIENT_KEY = _META + "clientInfo"
_LEVEL_KEY = _META + "logLevel"
_SERVER_KEY = _META + "serverInfo"
_SUBSCRIPTION_KEY = _META + "subscriptionId"

# method -> (function of section 7, eras it belongs to, kind it needs)
_METHODS = {
    "initialize": ("_initialize", "legacy", None),
    "ping": ("_ping", "legacy", None),
    "logging/setLevel": ("_set_level", "legacy", None),
    "resources/subscribe": ("_subscribe", "legacy", "resource"),
    "resources/unsubscribe": ("_subscribe", "legacy", "resource"),
    "server/discover": ("_discover", "modern", None),
    "subscriptions/listen": ("_listen", "modern", None),
    "tools/list": ("_list", "both", "tool"),
    "tools/call": ("_call_tool", "both", "tool"),
    "resources/list": ("_list", "both", "resource"),
    "resources/templates/list": ("_list", "both", "resource"),
    "resources/read": ("_read_resource", "both", "resource"),
    "prompts/list": ("_list", "both", "prompt"),
    "prompts/get": ("_get_prompt", "both", "prompt"),
    "completion/complete": ("_complete", "both", "completion"),
}

_LISTS = {  # method -> kind of entry; the result holds them under the third
    "tools/list": ("tool", "tools"),
    "resources/list": ("resource", "resources"),
    "resources/templates/list": ("template", "resourceTemplates"),
    "prompts/list": ("prompt", "prompts"),
}

# HTTP header Mcp-Name mirrors this member of params (HTM-10). These methods, and no
# others, may ask the client something (MRT-01).
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

# error code -> HTTP status in the modern era; a legacy reply to a request is 200.
_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    FORBIDDEN: 403,
    TOO_MANY_REQUESTS: 429,
    INTERNAL_ERROR: 500,
}

# Codes of earlier revisions, and what says the same since 2026-07-28 (ERR-05).
_SUCCESSORS = {RESOURCE_NOT_FOUND: INVALID_PARAMS}

# object.field -> first revision that knows it; older ones do not see it (E08).
_SINCE = {
    name: revision
    for revision, names in (
        (B, "tool.annotations progress.message capabilities.completions audio.type"),
        (C, "server.title annotations.lastModified tool.title tool.outputSchema"),
        (C, "tool._meta resource.title resource._meta template.title template._meta"),
        (C, "prompt.title prompt._meta text._meta image._meta audio._meta"),
        (C, "resource_link.type"),
        (D, "server.description server.icons server.websiteUrl tool.icons"),
        (D, "resource.icons template.icons prompt.icons resource_link.icons"),
    )
    for name in names.split()
}

# what a client must have declared: method -> (capability, first revision)
_CLIENT_METHODS = {
    "sampling/createMessage": ("sampling", A),
    "roots/list": ("roots", A),
    "elicitation/create": ("elicitation", C),
}

_LEVELS = dict(
    zip("debug info notice warning error critical alert emergency".split(), range(8))
)

# kind of change -> (notification, member of a listen filter)
_KINDS = ("tool", "prompt", "resource")
_CHANGES = {
    "tool": ("notifications/tools/list_changed", "toolsListChanged"),
    "prompt": ("notifications/prompts/list_changed", "promptsListChanged"),
    "resource": ("notifications/resources/list_changed", "resourcesListChanged"),
    "updated": ("notifications/resources/updated", "resourceSubscriptions"),
}


def _prune(kind: str, fields: dict[str, Any], revision: str) -> dict[str, Any]:
    """The fields that a revision knows."""
    if revision >= D:
        return fields
    known = {
        n: v for n, v in fields.items() if _SINCE.get(f"{kind}.{n}", A) <= revision
    }
    if "annotations" in known:
        known["annotations"] = _prune("annotations", known["annotations"], revision)
    return known


def _fit(block: dict[str, Any], revision: str) -> dict[str, Any]:
    """A content block as a revision can carry it: else a resource or a text."""
    found = _prune(block.get("type", ""), block, revision)
    if "type" in found:
        return found
    if "data" in block:
        mime, data = block.get("mimeType", ""), block["data"]
        blob = {"uri": f"data:{mime}", "mimeType": mime, "blob": data}
        return {"type": "resource", "resource": blob}
    return {"type": "text", "text": f"{block.get('name', '')}: {block.get('uri', '')}"}


# ---- 7 Context and dispatch --------------------------------------------------------
# Messages in, replies out, no IO. User code is called in `_call` and `_acall` and
# nowhere else. Asking never waits: a question leaves the handler, and with the answer
# the handler runs again from its start, in both eras alike.

_Reply = tuple[bytes, int]  # (body, JSON-RPC error code or 0)
_NONE: dict[str, Any] = {}  # shared, and never written to
_LARGE = 16384  # bytes; above it a message counts against what all of them may hold
_INT_RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{%b%b}}'
_TEXT_RESULT = _INT_RESULT.replace(b"%d", b"%b")


class _Deadlines:
    """Time-outs of few lengths: for each a dict key -> due time, oldest first.

    Starting and stopping are one dictionary operation each, whatever the number.
    Popping an entry is atomic, so whoever gets it owns the end of the thing it stands
    for. (So are min() and list() of a dictionary: no other thread comes between.)
    """

    def __init__(self) -> None:
        self.by_length: dict[float, dict[Any, float]] = {}

    def start(self, key: Any, seconds: float) -> dict[Any, float]:
        line = self.by_length.get(seconds)
        if line is None:
            line = self.by_length.setdefault(seconds, {})
        line[key] = time.monotonic() + seconds
        return line

    def lines(self) -> list[dict[Any, float]]:
        return [line for line in list(self.by_length.values()) if line]

    def next_due(self) -> Optional[float]:
        dues = (min(line.values(), default=math.inf) for line in self.lines())
        return min(dues, default=None)

    def due(self, now: float) -> list[Any]:
        """Keys whose time has come; they stay until their owner pops them."""
        every = [entry for line in self.lines() for entry in list(line.items())]
        return [key for key, when in every if when <= now]


class _Bucket:
    """A token bucket: so many in so many seconds."""

    def __init__(self, limit: tuple[float, float]) -> None:
        calls, self.span = limit
        self.step = self.span / calls
        self.spent = -math.inf  # the time by which all that was taken is refilled

    def take(self) -> float:
        """0 if a token was there, else the seconds until one is."""
        now, after = time.monotonic(), self.spent
        after = (after if after > now else now) + self.step
        if after - now - self.span > 1e-6:
            return after - now - self.span
        self.spent = after
        return 0.0


def _rate(rate: Any, where: str) -> tuple[float, float]:
    try:
        calls, seconds = rate
        if calls > 0 and seconds > 0:
            return calls, seconds
    except (TypeError, ValueError):
        pass
    raise DefinitionError(f"{where}: rate= takes (calls, seconds), like (1, 2.0)")


class Principal:
    """Who makes a request: a subject, its scopes (None: all), audience, expiry (s)."""

    __slots__ = "subject scopes audience expires claims".split()

    def __init__(
        self,
        subject: str,
        scopes: Optional[Iterable[str]] = (),
        audience: Any = None,
        expires: Optional[float] = None,
        claims: Any = None,
    ) -> None:
        self.subject = subject
        self.scopes = None if scopes is None else frozenset(scopes)
        self.audience = audience
        self.expires = expires
        self.claims = claims

    def __repr__(self) -> str:  # claims may hold secrets
        scopes = None if self.scopes is None else sorted(self.scopes)
        return f"Principal({self.subject!r}, scopes={scopes})"

    def may(self, scopes: frozenset[str]) -> bool:
        return self.scopes is None or scopes <= self.scopes


class _Session:
    """What an initialize handshake has fixed (2024-11-05 to 2025-11-25)."""

    __slots__ = (
        "revision capabilities client_info ready level peer pending asked held listener"
    ).split()

    def __init__(self, revision: str, capabilities: Any, client_info: Any) -> None:
        self.revision: str = revision
        self.capabilities: dict[str, Any] = capabilities
        self.client_info: dict[str, Any] = client_info
        self.ready = False  # until then nothing is sent unasked (LIF-06)
        self.level = _LEVELS["info"]
        self.peer: Any = None  # where unasked messages go
        self.pending: dict[Any, tuple[_Call, str]] = {}  # our request id -> call, key
        self.asked = 0
        self.held: list[tuple[_Call, bytes]] = []  # our requests while not ready
        self.listener: Any = None


class _Peer:
    """Where a message came from and where its answer goes; one subclass a transport."""

    __slots__ = "server session calls principal era denied".split()
    can_ask = True  # false where a legacy request from us could not be delivered
    inline = True  # whether this is the thread that inline handlers belong to
    loop: Any = None  # the _Loop on whose thread its messages are dispatched

    def __init__(self, server: Any, session: Optional[_Session] = None) -> None:
        self.server = server
        self.session = session
        self.calls: dict[Any, _Call] = {}
        self.principal: Any = None
        self.era: Optional[str] = None  # None: each message tells (stdio)
        self.denied: Any = ()  # the scopes that a refused request lacked

    def send(self, data: bytes) -> None:
        """One JSON-RPC message that is no reply; from any thread. Here: to nobody."""

    def reply(self, body: bytes, code: int) -> None:
        """The reply to the request; from any thread, once."""
        self.send(body)

    def run(self, call: _Call) -> None:
        """Run an inline handler, or have it run where it belongs."""
        call.settle(_call(call))

    def ready(self) -> bool:
        """Whether a change notification would go out now."""
        return True

    def open_session(self, session: _Session) -> Optional[_Session]:
        """Keep the session; None if this transport keeps none."""
        self.session = session
        session.peer = self
        return session

    def dropped(self) -> None:
        """No reply will come: the call was cancelled."""


class InputRequired(BaseException):
    """Returned (or raised) by a handler that needs answers: requests by key, a state.

    `requests` maps a key to {"method": "elicitation/create" | "sampling/createMessage"
    | "roots/list", "params": {...}}. The next round finds the answers in
    `ctx.input_responses` and the state in `ctx.request_state` (2026-07-28 MRTR).
    The questions of a Context leave its handler as one; no `except Exception` stops it.
    """

    def __init__(self, requests: Any = None, state: Any = None, **own: Any) -> None:
        super().__init__("a question to the client is on its way; let this pass")
        if not requests and state is None:
            raise ToolError("InputRequired needs requests or a state (MRT-01)")
        self.requests: dict[str, Any] = dict(requests or {})
        self.state = state
        # A Context tells by the digest whether an answer is to its question; "*" is
        # none of its: the handler looks at ctx.input_responses.
        self.digests = own.get("digests") or dict.fromkeys(self.requests, "*")


class _Call:
    """One request on its way to one reply. What few requests need is set on few."""

    modern = False
    revision = D
    capabilities = client_info = _NONE
    level: Optional[int] = None
    name: Any = None
    handler: Any = None
    arguments = _NONE
    line: Any = None  # the deadline line that it stands in, once it is launched
    began = 0.0  # for the audit
    failed = False
    asked = False  # the reply is a question (2026-07-28)
    done = False  # replied, or will never be
    cancelled = False
    event: Any = None
    task: Any = None  # once it waits
    loop: Any = None  # the _Loop of the task
    rendered: Optional[_Reply] = None  # of an async handler
    held = 0  # bytes that an async call holds while it runs
    here = 0  # the thread that has read it and may run it; -1: it will
    progress = -math.inf
    position = 0
    rounds = 0
    answers = _NONE  # key -> (digest of the question, answer)
    asking: Optional[InputRequired] = None  # for a legacy client, not sent yet
    waiting: dict[Any, str] = _NONE  # id of our request -> digest of the question
    sealed: Any = None  # the round that this one answers
    responses = _NONE
    state: Any = None
    listener: Any = None

    def __init__(self, server: Any, peer: Any, message: Any, size: int) -> None:
        self.server = server
        self.peer = peer
        self.id = message["id"]
        self.method: str = message["method"]
        self.params: dict[str, Any] = message.get("params", _NONE)
        self.meta: dict[str, Any] = self.params.get("_meta", _NONE)
        self.size = size

    def claim(self) -> bool:
        """True for exactly one of done, cancelled, timed out and disconnected."""
        with self.server._lock:
            if self.done:
                return False
            self.done = True
        self.peer.calls.pop(self.id, None)
        return True

    def launch(self) -> None:
        if self.task is None:  # else it runs already
            self.server._launch(self)

    def settle(self, reply: Optional[_Reply]) -> None:
        """The only way to the reply of a call that was launched; works once."""
        if reply is None:
            if self.asking is not None:
                self.server._ask_legacy(self)
        elif self.claim():
            try:
                self.peer.reply(*reply)
            finally:
                self.server._ended(self, self.outcome(reply[1]))

    def outcome(self, code: int) -> str:
        return "asked" if self.asked else "error" if self.failed or code else "ok"

    def cancel(self) -> None:
        """No reply; the handler is told; worker and lane stay busy until it ends."""
        if self.claim():
            self.stop()
            self.peer.dropped()
            self.server._ended(self, "cancelled")

    def stop(self) -> None:
        """Tell the handler that nobody waits any more; it is claimed already."""
        self.cancelled = True
        self.server._withdraw(self)
        if self.event is not None:
            self.event.set()
        task = self.task
        if task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        if not self.done and self.peer.ready():
            self.peer.send(_notification(method, params))

    def keywords(self) -> dict[str, Any]:
        """The arguments of a handler that takes a Context."""
        if self.sealed is not None:
            self.server._seal.use(self.sealed)
        self.position = 0
        return {**self.arguments, self.handler.context: Context(self)}


def _too_many() -> MCPError:
    return MCPError(TOO_MANY_REQUESTS, "Too many requests in progress")


def _notification(method: str, params: dict[str, Any]) -> bytes:
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_interrupt(error: BaseException) -> bool:
    """Somebody pressed Ctrl-C in a program that embeds us. run() has SIGINT to itself:
    there it is an error of a handler, which ends no other call."""
    if type(error) is not KeyboardInterrupt or not _on_main_thread():
        return False
    signal = __import__("_signal")
    handler = signal.getsignal(signal.SIGINT)
    return getattr(handler, "__module__", "") != __name__


def _call(call: _Call) -> Optional[_Reply]:
    """Run a def handler: its reply, or None if it has to ask a legacy client."""
    server, handler = call.server, call.handler
    try:
        given = call.arguments if handler.context is None else call.keywords()
        reply: Optional[_Reply] = server._render(call, handler.function(**given))
        return reply
    except BaseException as error:  # InputRequired, SystemExit: replies like others
        if _is_interrupt(error):
            raise
        # `server` is Any: _Core is defined further down.
        return server._failure(call, error)  # type: ignore[no-any-return]


async def _acall(call: _Call) -> None:
    """Run an async handler; what `_call` would return is in call.rendered then. If
    it has waited, nobody looks there: it settles its call."""
    server, handler = call.server, call.handler
    try:
        given = call.arguments if handler.context is None else call.keywords()
        value = handler.function(**given)
        if hasattr(value, "__await__"):  # a wrapper may have awaited it already
            value = await value
        call.rendered = server._render(call, value)
    except BaseException as error:  # CancelledError too
        if call.done:  # cancelled or timed out: nobody waits, nothing went wrong
            return
        call.rendered = server._failure(call, error)
        closing = isinstance(error, GeneratorExit) and call.task is not None
        if closing or _is_interrupt(error):  # the loop is closing, or the program
            call.settle(call.rendered)
            raise
    finally:
        if call.task is not None:
            call.loop.over(call)


class _Batch:
    """A 2025-03-26 batch, the peer of its requests: counts down to one array."""

    def __init__(self, parent: _Peer, count: int) -> None:
        self.parent = parent
        self.parts: list[bytes] = []
        self.left = count
        self.lock = threading.Lock()
        self.found: list[_Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parent, name)  # all else is as with the real peer

    def add(self, body: Optional[bytes]) -> bool:
        with self.lock:
            if body is not None:
                self.parts.append(body)
            self.left -= 1
            return self.left == 0

    def body(self) -> bytes:
        return b"[" + b",".join(self.parts) + b"]"

    def reply(self, body: Optional[bytes], code: int) -> None:
        if self.add(body):
            if self.parts:
                self.parent.reply(self.body(), 0)
            else:
                self.parent.dropped()

    def dropped(self) -> None:
        self.reply(None, 0)

    def launch(self) -> None:
        for call in self.found:
            call.launch()


class _Listener:
    """One stream of change notifications, and what it wants: (kind, URI or "")."""

    __slots__ = "peer meta keys pending session".split()

    def __init__(self, peer: Any, keys: Iterable[tuple[str, str]]) -> None:
        self.peer = peer
        self.session: Optional[_Session] = None  # a legacy one
        self.meta: dict[str, Any] = {}  # _meta with the id of the stream, 2026-07-28
        self.keys = set(keys)
        self.pending: dict[tuple[str, str], None] = {}  # what it is still to hear

    def ready(self) -> bool:
        initialized = self.session is None or self.session.ready
        return initialized and bool(self.peer.ready())

    def message(self, key: tuple[str, str]) -> tuple[Any, bytes]:
        kind, uri = key
        params = {**self.meta, "uri": uri} if kind == "updated" else self.meta
        return self.peer, _notification(_CHANGES[kind][0], params)


class _Hub:
    """Changes, announced once: mark() from any thread, collect() by the engine.

    A change is one pending flag for each stream that wants it, so a fast resource or a
    stuck reader costs one flag and nothing else; the last value wins. Whoever collects
    holds the lock until all is sent: nothing comes on a stream after its end.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: dict[_Listener, None] = {}
        self.wanted: dict[tuple[str, str], dict[_Listener, None]] = {}
        self.changed: dict[tuple[str, str], float] = {}  # -> earliest time to tell
        self.told: dict[tuple[str, str], float] = {}  # -> when it was last told
        self.stuck: dict[_Listener, None] = {}  # those with something pending

    def add(self, listener: _Listener, first: Optional[bytes] = None) -> None:
        """Join. `first` is sent before anything else, and no change is missed."""
        with self.lock:
            self.listeners[listener] = None
            for key in listener.keys:
                self.wanted.setdefault(key, {})[listener] = None
            if first is not None:
                listener.peer.send(first)

    def remove(self, listener: Optional[_Listener]) -> None:
        with self.lock:
            if listener is not None and listener in self.listeners:
                del self.listeners[listener]
                for key in list(listener.keys):
                    self.watch(listener, key, False)

    def watch(self, listener: Any, key: tuple[str, str], wanted: bool = True) -> None:
        with self.lock:
            if wanted:
                listener.keys.add(key)
                self.wanted.setdefault(key, {})[listener] = None
                return
            listener.keys.discard(key)
            listener.pending.pop(key, None)
            if not listener.pending:
                self.stuck.pop(listener, None)
            streams = self.wanted.get(key, {})
            streams.pop(listener, None)
            for table in (self.wanted, self.changed, self.told) if not streams else ():
                table.pop(key, None)

    def mark(self, key: tuple[str, str], interval: float = 0.0) -> bool:
        """Note a change; True if somebody wants to hear of it."""
        with self.lock:
            if key in self.wanted:
                due = self.told.get(key, -math.inf) + interval
                self.changed.setdefault(key, due if interval else -math.inf)
            return key in self.wanted

    def collect(self, now: float) -> tuple[list[tuple[Any, bytes]], Optional[float]]:
        """What to send now, and when to come again."""
        out: list[tuple[Any, bytes]] = []
        with self.lock:
            for key in [key for key, due in self.changed.items() if due <= now]:
                del self.changed[key]
                self.told[key] = now
                for listener in self.wanted[key]:
                    listener.pending[key] = self.stuck[listener] = None
            for listener in [each for each in self.stuck if each.ready()]:
                del self.stuck[listener]
                out += map(listener.message, listener.pending)
                listener.pending = {}
            return out, min(self.changed.values(), default=None)


class _Seal:
    """requestState: an HMAC over what a round has settled (MRT-03 to MRT-06).

    It holds expiry, nonce, principal, method, name, a digest of the arguments, earlier
    answers, the pending questions and the handler's own state. It is signed, not
    encrypted: the client may read it, and can change nothing.
    """

    def __init__(self, keys: Any, age: float) -> None:
        # A fleet shares keys and wall-clock; one process needs neither.
        self.clock = time.time if keys else time.monotonic
        self.keys: list[Any] = [keys] if isinstance(keys, (str, bytes)) else [*keys]
        self.keys = self.keys or [os.urandom(32)]
        if any(type(key) is not bytes or len(key) < 16 for key in self.keys):
            raise ValueError("state_keys= takes a list of keys, each 16 bytes or more")
        self.age = age
        self.used: dict[str, float] = {}  # nonce -> when it would have expired
        self.lock = threading.Lock()

    @staticmethod
    def digest(value: Any) -> str:
        import hashlib

        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]

    def sign(self, key: bytes, payload: bytes) -> str:
        import hmac

        raw = hmac.new(key, payload, "sha256").digest() + payload
        return binascii.b2a_base64(raw, newline=False).decode("ascii")

    def bound(self, call: _Call) -> list[Any]:
        principal = getattr(call.peer.principal, "subject", call.peer.principal)
        arguments = call.params.get("arguments") or {}
        return [principal, call.method, call.name, self.digest(arguments)]

    def seal(self, call: _Call, ask: InputRequired) -> str:
        state = {"e": self.clock() + self.age, "n": os.urandom(12).hex()}
        state.update(b=self.bound(call), a=call.answers, q=ask.digests)
        state.update(r=call.rounds + 1, s=ask.state)
        return self.sign(self.keys[0], _encode(state))

    def open(self, call: _Call, text: Any) -> dict[str, Any]:
        """The payload, or -32602 without detail. What is not ours is not parsed."""
        import hmac

        with contextlib.suppress(AttributeError, ValueError):
            given = text.encode("ascii")
            payload = binascii.a2b_base64(given)[32:]
            signed = [self.sign(key, payload).encode("ascii") for key in self.keys]
            if True in [hmac.compare_digest(each, given) for each in signed]:
                state: dict[str, Any] = json.loads(payload)
                fresh = state["e"] >= self.clock() and state["n"] not in self.used
                if fresh and state["b"] == self.bound(call):
                    return state
        raise MCPError(INVALID_PARAMS, "Invalid requestState")

    def use(self, state: dict[str, Any]) -> None:
        """Single use within a process: the answered state is spent."""
        with self.lock:
            if state["n"] in self.used:
                raise MCPError(INVALID_PARAMS, "Invalid requestState")
            now = self.clock()
            while self.used:
                oldest = next(iter(self.used))  # all live equally long
                if self.used[oldest] >= now:
                    break
                del self.used[oldest]
            if len(self.used) >= 16384:  # to forget one would let it be used again
                raise MCPError(TOO_MANY_REQUESTS, "Too many answers, retry later")
            self.used[state["n"]] = state["e"]


def _masked(text: str) -> str:
    """A text without paths: no peer needs to know where things lie here (ERR-08)."""

    def mask(found: re.Match[str]) -> str:
        piece = found[0].strip("'\"(),.;:")
        hidden = ("/" in piece or "\\" in piece) and not _NO_PATH.fullmatch(piece)
        return "<path>" if hidden else found[0]

    masked: str = _PIECES.sub(mask, text)
    return masked


class _Awaitable:
    """`await x` is x: one way to write a call in def and async handlers."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self


class _Ready:
    """A value for an async handler; without await it is as true as its value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)


_Ready.__name__ = "ctx call without await"  # what _plain says has no JSON form


class ElicitResult(_Awaitable):
    """What a person answered: `action` is accept, decline or cancel."""

    def __init__(self, action: str, content: Any = None, data: Any = None) -> None:
        self.action = action
        self.content: dict[str, Any] = content or {}
        self.data = data


class SampleResult(_Awaitable):
    """What the client's model wrote: role, content, model, stop_reason, text."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.role: str = answer.get("role", "")
        self.content: Any = answer.get("content")
        self.model: str = answer.get("model", "")
        self.stop_reason: Optional[str] = answer.get("stopReason")

    @property
    def blocks(self) -> list[Any]:
        return self.content if isinstance(self.content, list) else [self.content]

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.blocks)


def _is_block(value: Any) -> bool:
    """An object with a type; text is text."""
    if type(value) is not dict or type(value.get("type")) is not str:
        return False
    return type(value.get("text", "")) is str


class _Items(_Awaitable, list):  # type: ignore[type-arg]  # of Root or of ResourceItem
    pass


class ResourceItem:
    """One content of a resource that a handler read: content and mime_type."""

    def __init__(self, content: Any, mime_type: Optional[str]) -> None:
        self.content = content
        self.mime_type = mime_type


_FLAT = ("string", "number", "integer", "boolean")
_CONFIRM = {
    "type": "object",
    "properties": {"confirm": {"type": "boolean", "title": "Confirm"}},
    "required": ["confirm"],
}


def _old_form(form: dict[str, Any]) -> dict[str, Any]:
    """The form for 2025-06-18: only booleans had a default then."""
    fields = form.get("properties", {}) if type(form) is dict else None
    if type(fields) is not dict or {*map(type, fields.values())} - {dict}:
        raise ToolError("requestedSchema is an object, and so are its properties")
    fields = {name: dict(field) for name, field in fields.items()}
    for field in fields.values():
        if field.get("type") != "boolean":
            field.pop("default", None)
    return {**form, "properties": fields}


_SAMPLING = (
    *("system_prompt", "temperature", "stop_sequences", "model_preferences"),
    *("metadata", "tools", "tool_choice"),
)
_DONE = _Ready(None)


class Context:
    """What a handler may ask of its request; the same in both eras.

    Found by its annotation under any parameter name. Works plainly in def handlers and
    with await in async ones.
    """

    __slots__ = ("_call",)
    _mcp_context = True

    def __init__(self, call: _Call) -> None:
        self._call = call

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    # What the request says

    @property
    def request_id(self) -> Any:
        return self._call.id

    @property
    def protocol_version(self) -> str:
        return self._call.revision

    @property
    def client_info(self) -> dict[str, Any]:
        """Name and version as the client claims them; never a reason to trust it."""
        return dict(self._call.client_info)

    @property
    def client_capabilities(self) -> dict[str, Any]:
        return dict(self._call.capabilities)

    @property
    def meta(self) -> dict[str, Any]:
        """The request's _meta, with traceparent, tracestate and baggage (OTL-01)."""
        return dict(self._call.meta)

    @property
    def principal(self) -> Any:
        return self._call.peer.principal

    @property
    def server(self) -> Any:
        return self._call.server

    @property
    def lifespan(self) -> Any:
        """The value of Server(lifespan=...)."""
        return self._call.server._lifespan_value

    lifespan_context = lifespan

    @property
    def request_context(self) -> Context:
        return self

    session = request_context

    @property
    def input_responses(self) -> dict[str, Any]:
        """Answers to a returned InputRequired, by key."""
        call = self._call
        known = {key: known[1] for key, known in call.answers.items() if known[0]}
        return {**known, **call.responses}

    @property
    def request_state(self) -> Any:
        """The state of a returned InputRequired, verified."""
        return self._call.state

    @property
    def cancelled(self) -> bool:
        """True once nobody waits for this call: cancelled, timed out, disconnected."""
        return self._call.cancelled

    def wait(self, seconds: float) -> bool:
        """Sleep in a def handler; returns True at once when the call is cancelled."""
        call = self._call
        loaded: Any = sys.modules.get("asyncio") if call.handler.is_async else None
        if loaded and loaded._get_running_loop():  # none on a thread of the handler's
            text = "would stop every async handler: use await asyncio.sleep()"
            raise RuntimeError(f"ctx.wait() {text}")
        if call.event is None:
            call.event = threading.Event()
        return call.cancelled or bool(call.event.wait(seconds))

    # What goes to the client while the handler runs

    def report_progress(
        self, progress: float, total: Any = None, message: Any = None
    ) -> Any:
        """Progress, if the client gave a token; must rise (PRG-01)."""
        call = self._call
        token = call.meta.get("progressToken")
        wanted = type(token) in (int, str) and math.isfinite(progress)
        if wanted and progress > call.progress and not call.server._log_bucket.take():
            call.progress = progress
            params = {"progressToken": token, "progress": progress, "total": total}
            params = _prune("progress", {**params, "message": message}, call.revision)
            shown = {k: v for k, v in params.items() if v is not None}
            call.notify("notifications/progress", shown)
        return _DONE

    def log(self, level: str, data: Any, logger: Optional[str] = None) -> Any:
        """A log message for the client, if it asked for this level."""
        call, rank = self._call, _LEVELS.get(level)
        if rank is None:
            raise ValueError(f"no log level {level!r}; use one of {', '.join(_LEVELS)}")
        wanted = call.level is not None and rank >= call.level
        if wanted and not call.server._log_bucket.take():
            params = {"level": level, "data": data}
            if logger is not None:
                params["logger"] = logger
            try:
                call.notify("notifications/message", _plain(params))
            except (TypeError, ValueError):  # what is logged must not fail the call
                params["data"] = f"{data!r:.500}"
                call.notify("notifications/message", params)
        return _DONE

    debug = functools.partialmethod(log, "debug")
    info = functools.partialmethod(log, "info")
    notice = functools.partialmethod(log, "notice")
    warning = functools.partialmethod(log, "warning")
    error = functools.partialmethod(log, "error")
    critical = functools.partialmethod(log, "critical")

    def close_sse_stream(self) -> Any:
        """End the open stream of a polling client; it comes back for the rest (D)."""
        close = getattr(self._call.peer, "close_stream", None)
        if close is not None:
            close()
        return _DONE

    # Changes, all by way of the server's one hub

    def notify_updated(self, uri: str) -> Any:
        self._call.server.notify_updated(str(uri))
        return _DONE

    def _changed(self, kind: str) -> Any:
        self._call.server._changed(kind)
        return _DONE

    notify_tools_changed = functools.partialmethod(_changed, "tool")
    notify_resources_changed = functools.partialmethod(_changed, "resource")
    notify_prompts_changed = functools.partialmethod(_changed, "prompt")
    notify_resource_updated = send_resource_updated = notify_updated
    send_tool_list_changed = notify_tools_changed
    send_resource_list_changed = notify_resources_changed
    send_prompt_list_changed = notify_prompts_changed

    # Questions

    def _ask(self, key: Optional[str], method: str, params: dict[str, Any]) -> Any:
        call = self._call
        call.position += 1
        key = key or str(call.position)
        digest = _Seal.digest([method, params])
        known, answer = call.answers.get(key, (None, None))
        if known != digest:
            raise InputRequired(
                {key: {"method": method, "params": params}}, digests={key: digest}
            )
        if isinstance(answer, MCPError):
            raise ToolError(f"The client could not answer: {answer.message}")
        return answer

    def _give(self, value: Any) -> Any:
        return _Ready(value) if self._call.handler.is_async else value

    def confirm(self, message: str, key: Optional[str] = None) -> Any:
        """Ask a person for consent: True only for an accept with a yes."""
        answer = self.elicit(message, _CONFIRM, key)
        yes = answer.action == "accept" and answer.content.get("confirm") is True
        return self._give(yes)

    def elicit(
        self, message: str, schema: Any = None, key: Optional[str] = None
    ) -> ElicitResult:
        """Ask a person for a flat form: a dict schema, a dataclass or a TypedDict."""
        form, convert = self._flat_form(schema)
        params = {"mode": "form", "message": message, "requestedSchema": form}
        answer = self._elicited(key, params)
        if answer.action == "accept":
            wrong = _compile(form, "ctx.elicit", noun="property")(answer.content)
            if wrong:
                text = f"The elicitation answer is off: {wrong}"
                raise MCPError(INVALID_PARAMS, text)
            known = form["properties"] or answer.content  # none: any form will do
            given = answer.content.items()
            content = {key: value for key, value in given if key in known}
            answer.content = content  # without what was not asked for (MRT-07)
            answer.data = convert(content) if convert else content
        return answer

    def elicit_url(
        self, message: str, url: str, key: Optional[str] = None
    ) -> ElicitResult:
        """Send a person to a page: for secrets, which no form may ask for (ELI-03)."""
        params = {"mode": "url", "message": message, "url": url}
        return self._elicited(key, params)

    def _elicited(self, key: Optional[str], params: dict[str, Any]) -> ElicitResult:
        answer = self._ask(key, "elicitation/create", params)
        action, content = answer.get("action"), answer.get("content")
        if action not in ("accept", "decline", "cancel"):
            raise MCPError(INVALID_PARAMS, "An elicitation answer needs an action")
        return ElicitResult(action, content if action == "accept" else None)

    @staticmethod
    def _flat_form(schema: Any) -> tuple[dict[str, Any], Any]:
        """The flat form of an elicitation (ELI-01) and a converter of its answer."""
        form, convert = schema, None
        if schema is None:
            form = {"type": "object"}
        elif not isinstance(schema, dict):
            form, convert = _schema(schema, "ctx.elicit"), _converter(schema)
        if form.get("type") != "object":
            raise ToolError("ctx.elicit takes an object schema, dataclass or TypedDict")
        fields = {}
        for name, field in form.get("properties", {}).items():
            field = dict(field)
            for choice in field.get("anyOf", ()):
                if choice.get("type") in _FLAT:  # Optional[X]: X that may be left out
                    field.pop("anyOf", None)
                    field = {**field, **choice}
            if field.get("default", 0) is None:
                del field["default"]
            several = field.get("items", {}) if field.get("type") == "array" else {}
            if (
                field.get("type") not in _FLAT
                and not {"enum", "anyOf"} & several.keys()
            ):
                raise ToolError(f"ctx.elicit: {name!r} must be text, number or boolean")
            fields[name] = field
        form = {**form, "properties": fields}
        form.pop("additionalProperties", None)
        return form, convert

    def sample(
        self,
        messages: Any,
        max_tokens: int = 1000,
        *,
        key: Optional[str] = None,
        **options: Any,
    ) -> SampleResult:
        """Ask the client's model. Options in snake_case: system_prompt, temperature,
        stop_sequences, model_preferences, metadata, tools, tool_choice."""
        if options.keys() - _SAMPLING:
            raise TypeError(f"ctx.sample takes {', '.join(_SAMPLING)}")
        params = {"messages": self._talk(messages), "maxTokens": max_tokens}
        given = {_camel(k): _wire(v) for k, v in options.items() if v is not None}
        answer = self._ask(key, "sampling/createMessage", {**params, **given})
        result = SampleResult(answer)
        if type(result.role) is not str or not all(map(_is_block, result.blocks)):
            raise MCPError(INVALID_PARAMS, "A sampling answer needs role and content")
        return result

    create_message = sample

    @staticmethod
    def _talk(messages: Any) -> list[dict[str, Any]]:
        """Sampling messages; each tool use is followed by its result alone (SMP-03)."""
        found: list[dict[str, Any]] = []
        owed: set[Any] = set()
        single = isinstance(messages, (str, dict, _Wire))
        for item in [messages] if single else messages:
            message = _wire(Message(item) if isinstance(item, str) else item)
            if isinstance(message["content"], str):
                message["content"] = _block(message["content"])
            content = message["content"]
            blocks = content if isinstance(content, list) else [content]
            results = [b["toolUseId"] for b in blocks if b["type"] == "tool_result"]
            if set(results) != owed or (results and len(blocks) != len(owed)):
                break
            owed = {b["id"] for b in blocks if b["type"] == "tool_use"}
            found.append(message)
        else:
            if not owed:
                return found
        raise ToolError("ctx.sample: after tool uses comes a message of their results")

    def list_roots(self, key: Optional[str] = None) -> Any:
        """The folders that the client works in, as Root(uri, name)."""
        roots = self._ask(key, "roots/list", {}).get("roots")
        roots = roots if isinstance(roots, list) else [roots]
        found = [(r.get("uri"), r.get("name")) for r in roots if isinstance(r, dict)]
        fine = all(type(u) is str and type(n) in (str, _NULL) for u, n in found)
        if not fine or len(found) < len(roots):
            raise MCPError(INVALID_PARAMS, "A roots answer needs a list of roots")
        return _Items(Root(uri, name) for uri, name in found)

    def once(self, key: str, function: Callable[[], Any]) -> Any:
        """Run a side effect once: a replay gets its kept JSON result instead."""
        kept = self._call.answers.get("once:" + key)
        if kept is not None:
            return self._give(kept[1])
        value = function()
        if hasattr(value, "__await__"):
            return self._once_later(key, value)
        return self._give(self._keep(key, value))

    async def _once_later(self, key: str, value: Awaitable[Any]) -> Any:
        return self._keep(key, await value)

    def _keep(self, key: str, value: Any) -> Any:
        call, value = self._call, _plain(value)
        call.answers = {**call.answers, "once:" + key: ("", value)}
        return value

    def read_resource(self, uri: str) -> Any:
        """Read a resource of this server: a list of items with content, mime_type."""
        record, arguments = self._call.server._find(str(uri))
        if record.context is not None:
            arguments = {**arguments, record.context: self}
        value = record.function(**arguments)
        if not hasattr(value, "__await__"):
            return self._items(record, value)
        if not self._call.handler.is_async:
            value.close()
            raise ToolError(f"{uri} is async: read it from an async handler")
        return self._items_later(record, value)

    def _items(self, record: Any, value: Any) -> Any:
        if not isinstance(value, (str, bytes)):
            value = _encode_text(_plain(value))
        return _Items([ResourceItem(value, record.fields.get("mimeType"))])

    async def _items_later(self, record: Any, value: Awaitable[Any]) -> Any:
        return self._items(record, await value)


class _Core:
    """State of one server and its dispatch; section 11 adds what users type."""

    _info: dict[str, Any]
    _loop: Any = None  # the _Loop of section 8 while one runs
    _completer: Any = None
    _lifespan_value: Any = None
    _alarm = math.inf  # when the engine will call _tick by itself
    _spawn: Any = None  # the engine's: run an async call on its loop
    _drained: Any = None  # an Event that someone waits on at the end
    _eras = (True, True)  # legacy, modern
    _instructions: Optional[str] = None
    _experimental: Any = None
    _cache_hints = (0, "private")
    _page_size = 100
    _waiting = _waiting_bytes = 0  # calls in front of workers and lanes
    _held = 0  # bytes of large async calls that run
    _threads = 0  # workers, made when they are needed
    _free = 0  # of those, less the calls queued for them

    def __init__(self, limits: Limits, state_keys: Any) -> None:
        from _queue import SimpleQueue  # the C part of queue, without its module

        self._registry = _Registry()
        if not isinstance(limits, Limits):
            raise TypeError("limits= takes Limits(...), like Limits(workers=2)")
        self._limits = limits
        self._lock = threading.RLock()
        self._hub = _Hub()
        self._open = _Deadlines()  # calls that owe a reply
        self._seal = _Seal(state_keys, limits.state_age)
        self._queue: Any = SimpleQueue()  # calls for the workers, and the turn to read
        self._turns: Any = None  # who reads, without a loop
        self._lanes: dict[str, collections.deque[_Call]] = {}
        self._tool_bucket = _Bucket(limits.tool_rate)
        self._completion_bucket = _Bucket(limits.completion_rate)
        self._log_bucket = _Bucket(limits.log_rate)
        self._idle: list[list[Any]] = []  # [seconds, function, fired]
        self._heard = time.monotonic()
        self._wake: Callable[[], Any] = lambda: None  # the engine's: call _tick soon
        self._tails: dict[Any, bytes] = {}  # cache hints -> end of a modern result
        self._audit: Optional[bool] = None  # True: with argument values
        self._write_audit: Callable[[bytes], Any] = lambda line: None

    def _log(self, level: str, text: str) -> None:
        raise NotImplementedError

    # Messages

    def _dispatch(self, message: Any, peer: Any, size: int = 0) -> Any:
        """A reply (body, code), a _Call or _Batch to launch, or None."""
        if self._idle:
            self._hear()
        if type(message) is list:
            return self._batch(message, peer, size)
        call = None
        try:
            kind = _classify(message)
            if kind == "request":
                call = _Call(self, peer, message, size)
                if self._audit is None:
                    return self._request(call)
                call.began = time.monotonic()
                found = self._request(call)
                if type(found) is tuple:
                    self._record(call, call.outcome(found[1]))
                return found
            if kind == "notification":
                params = message.get("params")
                params = params if type(params) is dict else _NONE
                self._notified(message["method"], params, peer)
            else:
                self._answered(message, peer)
        except MCPError as error:
            if call is not None:
                self._record(call, f"refused {error.code}")
            elif self._misanswered(message, peer):
                return None
            return self._error(error, call)
        return None

    def _record(self, call: _Call, outcome: str) -> None:
        """Who called what, and how it ended; argument values only if asked for."""
        if call.method not in _NAMED or self._audit is None:
            return
        line: dict[str, Any] = {"time": round(time.time(), 3)}
        line["principal"] = getattr(call.peer.principal, "subject", None)
        name = f"{call.params.get(_NAMED[call.method])!s:.80}"
        line.update(method=call.method, name=name, outcome=outcome)
        line["ms"] = round((time.monotonic() - call.began) * 1000, 3)
        trace = str(call.meta.get("traceparent", "")).split("-")
        if len(trace) == 4:
            line["trace"] = trace[1]
        if self._audit:
            line["arguments"] = call.params.get("arguments")
        try:
            text = _encode(line)
        except (TypeError, ValueError):  # a handler has put its own things in there
            text = _encode(
                {**line, "principal": str(line["principal"]), "arguments": None}
            )
        self._write_audit(text + b"\n")

    def _error(self, error: MCPError, call: Optional[_Call] = None) -> _Reply:
        code, request_id = error.code, error.id
        if call is not None:
            request_id = call.id
            if call.modern:
                code = _SUCCESSORS.get(code, code)
            elif isinstance(error, ResourceNotFoundError):
                code = RESOURCE_NOT_FOUND
        return _error_bytes(request_id, code, error.message, error.data), code

    def _batch(self, messages: list[Any], peer: _Peer, size: int) -> Any:
        if peer.session is None or peer.session.revision != B or not messages:
            text = "Batches exist in 2025-03-26 only, and are never empty"
            return self._error(MCPError(INVALID_REQUEST, text))
        if len(messages) > self._limits.batch:
            text = f"More than {self._limits.batch} messages in a batch"
            return self._error(MCPError(INVALID_REQUEST, text))
        batch = _Batch(peer, len(messages) + 1)
        for message in messages:
            message = None if type(message) is list else message  # no message either
            found = self._dispatch(message, batch, size // len(messages))
            if type(found) is _Call:
                batch.found.append(found)
            else:
                batch.add(None if found is None else found[0])
        if batch.add(None):
            return (batch.body(), 0) if batch.parts else None
        return batch

    def _request(self, call: _Call) -> Any:
        peer, meta = call.peer, call.meta
        if type(meta) is not dict:
            raise MCPError(INVALID_PARAMS, "_meta must be an object")
        legacy, modern = self._eras
        told = _VERSION_KEY in meta if peer.era is None else peer.era == "modern"
        if told or not legacy:
            call.modern = modern and (legacy or call.method != "initialize")
        if call.modern:
            self._declared(call, meta)
        elif peer.session is not None:
            session = peer.session
            call.revision, call.capabilities = session.revision, session.capabilities
            call.client_info, call.level = session.client_info, session.level
        elif call.method not in ("initialize", "ping"):
            raise self._uninitialized(call)
        if call.id in peer.calls:
            raise MCPError(INVALID_REQUEST, "This id belongs to a request in progress")
        entry = _METHODS.get(call.method)
        if entry is None or entry[1] == ("legacy" if call.modern else "modern"):
            raise MCPError(METHOD_NOT_FOUND, f"Method not found: {call.method:.80}")
        name, _, kind = entry
        if kind not in self._registry.ever and not self._offers(kind):
            # Legacy clients list whatever there is: they get empty lists.
            if call.modern or kind == "completion":
                raise MCPError(METHOD_NOT_FOUND, f"This server offers no {kind}s")
        return getattr(self, name)(call)

    def _declared(self, call: _Call, meta: dict[str, Any]) -> None:
        """What a modern request says about itself, in its _meta (MET-01)."""
        version: Any = meta.get(_VERSION_KEY)
        capabilities: Any = meta.get(_CAPABILITIES_KEY)
        info, level = meta.get(_CLIENT_KEY, _NONE), meta.get(_LEVEL_KEY)
        if type(version) is str and version not in _MODERN:
            data = {"supported": list(_MODERN), "requested": version}
            raise MCPError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if (type(version), type(capabilities), type(info)) != (str, dict, dict):
            keys = f"{_VERSION_KEY}, a string, and {_CAPABILITIES_KEY}, an object"
            raise MCPError(INVALID_PARAMS, f"_meta needs {keys}")
        if level is not None:
            call.level = _LEVELS.get(level) if type(level) is str else None
            if call.level is None:
                raise MCPError(INVALID_PARAMS, f"Unknown log level in {_LEVEL_KEY}")
        call.revision, call.capabilities, call.client_info = version, capabilities, info

    def _uninitialized(self, call: _Call) -> MCPError:
        if call.method == "server/discover" and self._eras[1]:
            return MCPError(INVALID_PARAMS, f"_meta needs {_VERSION_KEY}, a string")
        text = "Not initialized: send initialize first"
        if self._eras[1]:
            text += f", or a {E} request with {_VERSION_KEY} in its _meta"
        return MCPError(INVALID_REQUEST, text)

    def _offers(self, kind: Optional[str]) -> bool:
        if kind == "completion":
            return self._completer is not None
        return kind in self._registry.ever

    def _notified(self, method: str, params: dict[str, Any], peer: _Peer) -> None:
        session = peer.session
        if method == "notifications/cancelled":
            request_id = params.get("requestId")
            known = type(request_id) in (int, str)
            call = peer.calls.get(request_id) if known else None
            if call is not None:
                reason = f"{params.get('reason')!r:.80}"
                self._log("debug", f"{call.method} cancelled: {reason}")
                call.cancel()
        elif method == "notifications/initialized" and session and not session.ready:
            with self._lock:
                session.ready = True
                held, session.held = session.held, []
            for call, data in held:
                if not call.done:
                    call.peer.send(data)
            self._wake()

    def _misanswered(self, message: Any, peer: _Peer) -> bool:
        """Whether this is meant as the answer to a question of ours: its call then ends
        with an error, since nobody will send another one."""
        session = peer.session
        if type(message) is not dict or session is None:
            return False
        if "method" in message and not message.keys() & {"result", "error"}:
            return False
        key = message.get("id")
        if type(key) not in (int, str) or key not in session.pending:
            return False
        self._answered({"id": key, "error": {"message": "a malformed answer"}}, peer)
        return True

    def _answered(self, message: dict[str, Any], peer: _Peer) -> None:
        """A response to a request of ours; anything unexpected is ignored (B10)."""
        session, request_id = peer.session, message.get("id")
        with self._lock:
            found = session.pending.pop(request_id, None) if session else None
            if found is None or found[0].done:
                return
            call, key = found
            answer = message.get("result")
            if answer is None:
                answer = MCPError(INTERNAL_ERROR, message["error"]["message"][:80])
            call.answers = {**call.answers, key: (call.waiting.pop(request_id), answer)}
            if call.waiting:
                return
        self._launch(call)

    # Results

    def _result(
        self, call: _Call, members: bytes, hints: Any = None, tail: Any = None
    ) -> _Reply:
        """A reply from the encoded members of its result and what the era adds."""
        if tail is None:
            tail = b""
            if call.modern:
                tail = self._tails.get(hints) or self._tail(hints)
        if type(call.id) is int:
            return _INT_RESULT % (call.id, members, tail), 0
        return _TEXT_RESULT % (_encode(call.id), members, tail), 0

    def _tail(self, hints: Any, meta: Any = None) -> bytes:
        """The members that every modern result ends with."""
        members: dict[str, Any] = {"resultType": "complete"}
        if hints is not None:
            members["ttlMs"], members["cacheScope"] = hints
        members["_meta"] = {_SERVER_KEY: self._info, **(meta or {})}
        tail = b"," + _encode(members)[1:-1]
        if meta is None:
            self._tails[hints] = tail
        return tail

    def _reply(self, call: _Call, result: dict[str, Any], hints: Any = None) -> _Reply:
        """A reply from a result that may have a _meta of its own."""
        meta, tail = result.pop("_meta", None), None
        if meta:
            tail = b',"_meta":' + _encode(meta)
            tail = self._tail(hints, meta) if call.modern else tail
        return self._result(call, _encode(result)[1:-1], hints, tail)

    def _capabilities(self, revision: str) -> dict[str, Any]:
        found: dict[str, Any] = {"logging": {}}
        for kind in ("tool", "resource", "prompt"):
            if self._offers(kind):
                found[kind + "s"] = {"listChanged": True}
        if "resources" in found:
            found["resources"]["subscribe"] = True
        if self._completer is not None:
            found["completions"] = {}
        if self._experimental:
            found["experimental"] = self._experimental
        return _prune("capabilities", found, revision)

    # Legacy lifecycle

    def _initialize(self, call: _Call) -> _Reply:
        if not self._eras[0]:
            text = f"This server speaks {', '.join(_MODERN)} only"
            raise MCPError(METHOD_NOT_FOUND, text)
        if type(call.peer) is _Batch:
            raise MCPError(INVALID_REQUEST, "initialize cannot be in a batch")
        version, old = call.params.get("protocolVersion"), call.peer.session
        capabilities = call.params.get("capabilities", _NONE)
        info = call.params.get("clientInfo", _NONE)
        if type(version) is not str:
            raise MCPError(INVALID_PARAMS, "protocolVersion must be a string")
        if type(capabilities) is not dict or type(info) is not dict:
            text = "capabilities and clientInfo must be objects"
            raise MCPError(INVALID_PARAMS, text)
        if len(_encode([capabilities, info])) > self._limits.client:
            text = f"capabilities and clientInfo over {self._limits.client} bytes"
            raise MCPError(INVALID_PARAMS, text)
        revision = version if version in _LEGACY else D
        session = call.peer.open_session(_Session(revision, capabilities, info))
        if session is not None:
            session.listener = _Listener(session.peer, [(kind, "") for kind in _KINDS])
            session.listener.session = session
            self._hub.add(session.listener)
            if old is not None:  # the same process again: its questions stay
                self._hub.remove(old.listener)
                session.pending, session.asked = old.pending, old.asked
        result: dict[str, Any] = {"protocolVersion": revision}
        result["capabilities"] = self._capabilities(revision)
        result["serverInfo"] = _prune("server", self._info, revision)
        if self._instructions:
            result["instructions"] = self._instructions
        return self._reply(call, result)

    def _ping(self, call: _Call) -> _Reply:
        return self._result(call, b"")

    def _set_level(self, call: _Call) -> _Reply:
        level = call.params.get("level")
        if type(level) is not str or level not in _LEVELS:
            text = f"level must be one of {', '.join(_LEVELS)}"
            raise MCPError(INVALID_PARAMS, text)
        call.peer.session.level = _LEVELS[level]
        return self._result(call, b"")

    def _subscribe(self, call: _Call) -> _Reply:
        uri: Any = call.params.get("uri")
        listener = call.peer.session.listener
        wanted = call.method == "resources/subscribe"
        if wanted or type(uri) is not str:
            self._authorize(call.peer, self._find(uri)[0])
        if listener is not None:
            if wanted and len(listener.keys) >= self._limits.streams + len(_KINDS):
                raise MCPError(INVALID_PARAMS, "Too many subscriptions")
            self._hub.watch(listener, ("updated", uri), wanted)
        return self._result(call, b"")

    # Modern discovery and subscriptions

    def _discover(self, call: _Call) -> _Reply:
        result: dict[str, Any] = {"supportedVersions": list(_MODERN)}
        result["capabilities"] = self._capabilities(call.revision)
        if self._instructions:
            result["instructions"] = self._instructions
        return self._reply(call, result, self._cache_hints)

    def _listen(self, call: _Call) -> Any:
        wanted: Any = call.params.get("notifications")
        uris = wanted.get("resourceSubscriptions", []) if type(wanted) is dict else None
        if type(uris) is not list or not all(type(uri) is str for uri in uris):
            text = "notifications must be an object, resourceSubscriptions a list"
            raise MCPError(INVALID_PARAMS, text)
        kinds = [kind for kind in _KINDS if wanted.get(_CHANGES[kind][1]) is True]
        keys = [(kind, "") for kind in kinds if self._offers(kind)]
        honoured: dict[str, Any] = {_CHANGES[kind][1]: True for kind, _ in keys}
        found = {uri: self._registry.find_resource(uri)[0] for uri in uris}
        known = [uri for uri, record in found.items() if record is not None]
        for uri in known:
            self._authorize(call.peer, found[uri])
        if len(known) > self._limits.streams:
            raise MCPError(INVALID_PARAMS, "Too many subscriptions")
        if known:
            honoured["resourceSubscriptions"] = known
        keys += [("updated", uri) for uri in known]
        call.listener = _Listener(call.peer, keys)
        call.listener.meta = {"_meta": {_SUBSCRIPTION_KEY: call.id}}
        call.state = {**call.listener.meta, "notifications": honoured}
        return self._accept(call)

    def _end_listen(self, call: _Call) -> None:
        """A listen stream ends with its result and nothing after it (SUB-04)."""
        if call.claim():
            self._hub.remove(call.listener)
            meta = {_SERVER_KEY: self._info, _SUBSCRIPTION_KEY: call.id}
            result = {"resultType": "complete", "_meta": meta}
            call.peer.reply(*self._result(call, _encode(result)[1:-1], tail=b""))
            self._ended(call, "ok")

    # Lists

    def _list(self, call: _Call) -> _Reply:
        """One page; whole pages are kept encoded until the table changes.

        A cursor is the place of the last entry seen: stable under changes.
        """
        kind, member = _LISTS[call.method]
        table: _Table = getattr(self._registry, kind)
        who, cursor, skip = call.peer.principal, call.params.get("cursor"), 0
        scopes = None if who is None else who.scopes
        if scopes is not None:
            scopes &= self._registry.scopes
        if cursor is not None:
            fits = type(cursor) is str and re.fullmatch("p[0-9a-f]{1,12}", cursor)
            seen = int(cursor[1:], 16) if fits else math.inf
            if seen > self._registry.count:
                text = "Invalid cursor: start again without one"
                raise MCPError(INVALID_PARAMS, text)
            skip = sum(item.order <= seen for item in table.items.values())
        key = (call.revision, skip, scopes)
        page = table.pages.get(key)
        if page is None:
            items = list(table.items.values())[skip:]
            if scopes is not None:
                items = [item for item in items if item.scopes <= scopes]
            page = self._page(call.revision, member, items)
            if skip % self._page_size == 0:  # not for cursors that a client made up
                table.pages[key] = page
        return self._result(call, page, self._cache_hints)

    def _page(self, revision: str, member: str, items: list[Any]) -> bytes:
        shown = items[: self._page_size]
        entries = b",".join([self._entry(item, revision) for item in shown])
        page = b'"%b":[%b]' % (member.encode("ascii"), entries)
        if len(items) > len(shown):
            page += b',"nextCursor":"p%x"' % shown[-1].order
        return page

    def _entry(self, item: Any, revision: str) -> bytes:
        encoded: Optional[bytes] = item.encoded.get(revision)
        if encoded is None:
            fields = _prune(item.kind, item.fields, revision)
            if item.wrap and "outputSchema" in fields and revision < E:
                fields = dict(fields)
                inner = dict(fields.pop("outputSchema"))
                root = {"type": "object", "properties": {"result": inner}}
                root["required"] = ["result"]
                if "$defs" in inner:
                    root["$defs"] = inner.pop("$defs")
                # References to a root that moved: better no schema than a wrong one.
                text = _encode(inner)
                if text.count(b'"#') == text.count(b'"#/$defs/'):
                    fields["outputSchema"] = root
            encoded = item.encoded[revision] = _encode(fields)
        return encoded

    # User work

    def _call_tool(self, call: _Call) -> Any:
        params = call.params
        name, given = params.get("name"), params.get("arguments")
        tool = self._registry.tool.items.get(name) if type(name) is str else None
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name!r:.80}")
        if given is None:
            given = _NONE
        elif type(given) is not dict:
            raise MCPError(INVALID_PARAMS, "arguments must be an object")
        call.name, call.handler = name, tool
        if tool.scopes:
            self._authorize(call.peer, tool)
        again = "requestState" in params or "inputResponses" in params
        if not (again and self._resume(call)):
            wait = self._tool_bucket.take() or (tool.rate.take() if tool.rate else 0.0)
            if wait:
                text = f"Rate limit: retry in {wait:.1f} seconds"
                return self._tool_error(call, text)
        try:
            return self._start(call, tool.take(given))
        except ToolError as error:
            return self._tool_error(call, str(error))

    def _authorize(self, peer: _Peer, record: _Handler) -> None:
        who = peer.principal
        if record.scopes and who is not None and not who.may(record.scopes):
            peer.denied = sorted(record.scopes)
            raise MCPError(FORBIDDEN, f"Scope needed: {' '.join(peer.denied)}")

    def _find(self, uri: Any) -> tuple[Any, dict[str, Any]]:
        if type(uri) is not str:
            raise MCPError(INVALID_PARAMS, "uri must be a string")
        record, given = self._registry.find_resource(uri)
        if record is not None:
            with contextlib.suppress(ToolError):
                return record, record.take_text(given)
        raise ResourceNotFoundError(uri[:_URI])

    def _read_resource(self, call: _Call) -> Any:
        call.name = call.params.get("uri")
        call.handler, arguments = self._find(call.name)
        self._authorize(call.peer, call.handler)
        self._resume(call)
        return self._start(call, arguments)

    def _get_prompt(self, call: _Call) -> Any:
        name, given = call.params.get("name"), call.params.get("arguments")
        prompt = self._registry.prompt.items.get(name) if type(name) is str else None
        if prompt is None:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name!r:.80}")
        given = _NONE if given is None else given
        if type(given) is not dict or not all(type(v) is str for v in given.values()):
            raise MCPError(INVALID_PARAMS, "Prompt arguments must be strings")
        self._authorize(call.peer, prompt)
        try:
            arguments = prompt.take_text(given)
        except ToolError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        call.name, call.handler = name, prompt
        self._resume(call)
        return self._start(call, arguments)

    def _complete(self, call: _Call) -> Any:
        if self._completion_bucket.take():
            raise MCPError(TOO_MANY_REQUESTS, "Too many completions, retry in 1 s")
        parts = [call.params.get(key, _NONE) for key in ("ref", "argument", "context")]
        if not all(type(part) is dict for part in parts):
            raise MCPError(INVALID_PARAMS, "ref, argument, context must be objects")
        ref, argument, context = parts
        kind, registry = ref.get("type"), self._registry
        record: Any = None
        name = ref.get("name" if kind == "ref/prompt" else "uri")
        if kind == "ref/prompt" and type(name) is str:
            record = registry.prompt.items.get(name)
        elif kind == "ref/resource" and type(name) is str:
            known = {**registry.resource.items, **registry.template.items}
            record = known.get(name)
        if record is None:
            raise MCPError(INVALID_PARAMS, "ref names no prompt or template here")
        self._authorize(call.peer, record)
        wanted = CompletionArgument(argument.get("name"), argument.get("value"))
        told = CompletionContext(context.get("arguments", _NONE))
        if wanted.name not in list(record.properties) or type(wanted.value) is not str:
            text = f"argument needs a value, a string, and a name of {name!r:.80}"
            raise MCPError(INVALID_PARAMS, text)
        if type(told.arguments) is not dict:
            raise MCPError(INVALID_PARAMS, "context.arguments must be an object")
        call.handler = self._completer
        prompt = kind == "ref/prompt"
        reference = PromptReference(name) if prompt else ResourceTemplateReference(name)
        given = (reference, wanted, told)
        return self._start(call, dict(zip(self._completer.properties, given)))

    def _start(self, call: _Call, arguments: dict[str, Any]) -> Any:
        """Run an inline handler now; a _Call to launch for everything else."""
        call.arguments = arguments
        handler, reply = call.handler, None
        if handler.inline and call.peer.inline:
            reply = _call(call)
        elif handler.is_async and call.peer.loop is not None:
            # What is in order, or large, is counted first: `_enqueue`.
            if not handler.lane and call.size <= _LARGE:
                if len(call.peer.calls) >= self._limits.in_flight:
                    raise _too_many()
                reply = call.peer.loop.step(call)
        if reply is not None:
            call.done = True
            return reply
        if call.task is None:
            return self._accept(call)
        call.peer.calls[call.id] = call  # it has begun, and waits for something
        self._owe(call, handler.timeout or self._limits.call_timeout)
        return call

    def _accept(self, call: _Call) -> _Call:
        if len(call.peer.calls) >= self._limits.in_flight:
            raise _too_many()
        call.peer.calls[call.id] = call
        return call

    def _owe(self, call: _Call, seconds: float) -> bool:
        """The call owes a reply within so many seconds; False if it has ended."""
        with self._lock:
            if call.done:
                return False
            if call.line is not None:
                call.line.pop(call, None)
            call.line = self._open.start(call, seconds)
            due = call.line[call]
        self._come(due)
        return True

    def _come(self, due: float) -> None:
        """The engine is to tick by then, even if what waits for it ends before: a tick
        for each call would cost more than the one that finds nothing to do."""
        if due < self._alarm:
            self._alarm = due
            self._wake()

    def _launch(self, call: _Call) -> None:
        """Run an accepted call, or run it again with the answers that it asked for."""
        handler = call.handler
        if call.listener is not None:
            if self._owe(call, math.inf):
                method = "notifications/subscriptions/acknowledged"  # first (SUB-01)
                self._hub.add(call.listener, _notification(method, call.state))
        elif not self._owe(call, handler.timeout or self._limits.call_timeout):
            pass
        elif call.asking is not None:
            self._ask_legacy(call)
        elif handler.inline:
            call.peer.run(call)
        elif not self._enqueue(call):
            busy = ToolError("The server is busy: retry in 1 second")
            call.settle(self._failure(call, busy))

    def _enqueue(self, call: _Call) -> bool:
        """In front of its lane or of the workers; False if too many wait there."""
        limits, lane = self._limits, call.handler.lane
        most, large = limits.waiting_bytes, call.size > _LARGE
        with self._lock:
            size = self._waiting_bytes + call.size
            if self._waiting >= limits.waiting or (self._waiting and size > most):
                return False
            if large and self._held and self._held + call.size > most:
                return False
            self._waiting += 1
            self._waiting_bytes = size
            if lane in self._lanes:
                self._lanes[lane].append(call)
                return True
            if lane:
                self._lanes[lane] = collections.deque()
        self._go(call)
        return True

    def _go(self, call: _Call) -> None:
        if call.handler.is_async:
            self._spawn(call)
        elif call.here and call.here == threading.get_ident():
            call.here = -1
        elif not self._hand_over(call):
            try:
                if self._begin(call):
                    none = ToolError("The server can start no thread: retry later")
                    call.settle(self._failure(call, none))
            finally:
                self._leave(call)

    def _hand_over(self, job: Any) -> bool:
        """To a free worker, a fresh one, or the first that will be free. False if there
        is no worker at all; or if the turn to read would have to wait for one."""
        turn, limits = job is self._turns, self._limits
        with self._lock:
            fresh = self._free <= 0 and self._threads < limits.workers
            if turn and self._free <= 0 and not fresh:
                return False
            self._free -= not fresh
            self._threads += fresh
        if fresh and not self._add_worker():
            with self._lock:
                self._threads -= 1
                if turn or not self._threads:
                    return False
                self._free -= 1  # those that are there do it
        self._queue.put(job)
        return True

    def _add_worker(self) -> bool:
        name = f"tinymcp-{self._threads}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError as error:
            self._log("critical", f"no worker thread: {error}")
            return False
        return True

    def _serve(self) -> None:
        """One worker thread, which no fault ends: there are few."""
        while True:
            try:
                job = None  # it holds nothing while it waits
                job = self._queue.get()
                if type(job) is _Call:
                    self._work(job)
                else:
                    job.lead()
            except BaseException as error:  # of a transport, or of our own
                self._log("critical", f"{type(error).__name__} in a worker: {error}")
            with self._lock:
                self._free += 1

    def _work(self, call: _Call) -> None:
        try:
            if self._begin(call):
                call.settle(_call(call))
        finally:  # whatever happens, the next one gets its turn
            self._leave(call)

    def _begin(self, call: _Call) -> bool:
        """The call leaves the queue; False if nobody waits for it any more."""
        with self._lock:
            self._waiting -= 1
            self._waiting_bytes -= call.size
            # Workers are few, but nothing else bounds what async calls hold.
            if call.size > _LARGE and call.handler.is_async and not call.done:
                call.held = call.size
                self._held += call.size
        return not call.done

    def _leave(self, call: _Call) -> None:
        """The function has really ended: only now may the lane move on."""
        lane, following = call.handler.lane, None
        if call.held:
            with self._lock:
                self._held -= call.held
                call.held = 0
        if lane:
            with self._lock:
                if self._lanes[lane]:
                    following = self._lanes[lane].popleft()
                else:
                    del self._lanes[lane]
        if following is not None:
            self._go(following)

    def _withdraw(self, call: _Call) -> None:
        """Undo what others would still do for a call that has ended."""
        if call.listener is not None:
            self._hub.remove(call.listener)
            return
        with self._lock:
            queue = self._lanes.get(call.handler.lane)
            if queue and call in queue:
                queue.remove(call)
                self._waiting -= 1
                self._waiting_bytes -= call.size
            session, asked = call.peer.session, list(call.waiting)
            for request_id in asked:
                session.pending.pop(request_id, None)
            call.waiting = _NONE
        for request_id in asked if asked and session.ready else ():
            params = {"requestId": request_id, "reason": "no longer needed"}
            call.peer.send(_notification("notifications/cancelled", params))

    def _ended(self, call: _Call, outcome: str) -> None:
        """The reply is written, or there is none: only now is the call open no more."""
        self._record(call, outcome)
        if call.line is not None:
            call.line.pop(call, None)
        if self._drained is not None and not self._owes():
            self._drained.set()

    def _owes(self) -> bool:
        """A call is open, or a thread is about to write its reply."""
        return bool(self._open.lines())

    # Rounds

    def _resume(self, call: _Call) -> bool:
        """Take up a 2026-07-28 retry; True if it continues an earlier round."""
        sealed = call.params.get("requestState")
        responses = call.params.get("inputResponses", _NONE)
        if not call.modern or (sealed is None and responses is _NONE):
            return False
        if type(responses) is not dict or {*map(type, responses.values())} - {dict}:
            raise MCPError(INVALID_PARAMS, "inputResponses must hold objects")
        if sealed is None:
            call.responses = responses
            return False
        state = self._seal.open(call, sealed)
        call.answers, call.rounds, call.state = state["a"], state["r"], state["s"]
        asked = state["q"]
        given = asked.keys() & responses.keys()
        for key in given:
            call.answers[key] = (asked[key], responses[key])
        if given or not asked:
            call.sealed = state  # spent once the handler runs
        return call.sealed is not None  # else it is a call like any other

    def _question(self, call: _Call, ask: InputRequired) -> Optional[_Reply]:
        """input_required, or None: requests of our own to a legacy client."""
        if call.method not in _NAMED:
            raise ToolError(f"{call.method} cannot ask the client")
        if call.rounds >= self._limits.rounds:
            raise ToolError(f"More than {self._limits.rounds} questions in one call")
        for key, request in ask.requests.items():
            params = request.get("params") or {} if isinstance(request, dict) else None
            if not isinstance(params, dict) or not isinstance(key, str):
                raise ToolError("InputRequired: requests are objects by key")
            self._may_ask(call, request.get("method"), params)
        result: dict[str, Any] = {"resultType": "input_required"}
        if ask.requests:
            result["inputRequests"] = ask.requests
        if not call.modern:
            # What has no JSON form, or is no form, fails here, in sight of the handler.
            _encode(result)
            for request in ask.requests.values() if call.revision < D else ():
                _old_form((request.get("params") or {}).get("requestedSchema", {}))
            call.asking = ask
            return None
        call.asked = True
        result["requestState"] = self._seal.seal(call, ask)
        result["_meta"] = {_SERVER_KEY: self._info}
        return self._result(call, _encode(result)[1:-1], tail=b"")

    def _may_ask(self, call: _Call, method: Any, params: dict[str, Any]) -> None:
        if not isinstance(method, str) or method not in _CLIENT_METHODS:
            raise ToolError(f"A client cannot be asked for {method!r:.80}")
        capability, since = _CLIENT_METHODS[method]
        declared: Any = call.capabilities.get(capability)
        part = ""
        if params.get("mode") == "url" or params.keys() & {"tools", "toolChoice"}:
            part, since = "url" if "mode" in params else "tools", D
        elif capability == "elicitation" and declared and call.revision >= D:
            part = "form"  # {} means form (ELI-05)
        able = type(declared) is dict and call.revision >= since
        if able and (not part or part in declared):
            if call.modern or call.peer.can_ask:
                return
            raise ToolError("This connection carries no requests to the client")
        text = f"This needs the client capability {capability} {part}".strip()
        if not call.modern:
            raise ToolError(f"{text}, which this client did not declare")
        needed: Any = {capability: {part: {}} if part else {}}
        data = {"requiredCapabilities": needed}
        raise MCPError(MISSING_CLIENT_CAPABILITY, text, data)

    def _ask_legacy(self, call: _Call) -> None:
        """Worker and lane are free while a person thinks; the call stays open."""
        ask, session, messages = call.asking, call.peer.session, []
        with self._lock:
            kept = sum(each.size for each, _ in session.pending.values())
        if kept and kept + call.size > self._limits.body:
            refused = ToolError("Too many questions are open: answer those first")
            return call.settle(self._failure(call, refused))
        with self._lock:
            if ask is None or not self._owe(call, self._limits.answer_timeout):
                return
            call.asking, call.state, call.waiting = None, ask.state, {}
            call.rounds += 1
            for key, request in ask.requests.items():
                session.asked += 1
                request_id = f"s{session.asked}"
                params = dict(request.get("params") or {})
                if params.get("mode") == "url":
                    params["elicitationId"] = os.urandom(12).hex()
                elif session.revision < D and "requestedSchema" in params:
                    params.pop("mode", None)
                    params["requestedSchema"] = _old_form(params["requestedSchema"])
                session.pending[request_id] = (call, key)
                call.waiting[request_id] = ask.digests[key]
                message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id}
                message.update(method=request["method"], params=params)
                messages.append(_encode(message))
            ready = session.ready
            if not ready:
                session.held += [(call, data) for data in messages]
        for data in messages if ready else ():
            call.peer.send(data)
        if not messages:  # a state alone: the next round comes at once
            self._launch(call)

    # Outcomes

    def _render(self, call: _Call, value: Any) -> _Reply:
        """The reply for what a handler returned."""
        if type(value) is InputRequired:
            raise value
        return _RENDER[call.method](self, call, value)

    def _failure(self, call: _Call, error: Any) -> Optional[_Reply]:
        """The reply for what a handler raised; None if it asked a legacy client."""
        try:
            return self._told(call, error)
        except Exception as fault:  # an error without a text, data that is no JSON
            self._log("critical", f"{type(fault).__name__} for {type(error).__name__}")
            call.failed = True
            text = "Internal error"
            return _error_bytes(call.id, INTERNAL_ERROR, text), INTERNAL_ERROR

    def _told(self, call: _Call, error: Any) -> Optional[_Reply]:
        if isinstance(error, InputRequired):
            try:
                return self._question(call, error)
            except (MCPError, ToolError, TypeError, ValueError) as refused:
                error = refused
        if isinstance(error, MCPError):
            return self._error(error, call)
        text = str(error) if isinstance(error, ToolError) else self._trace(call, error)
        if call.method == "tools/call":
            return self._tool_error(call, text)
        return _error_bytes(call.id, INTERNAL_ERROR, text), INTERNAL_ERROR

    def _trace(self, call: _Call, error: BaseException) -> str:
        """Log what nobody foresaw; what a peer may read of it (ERR-08)."""
        import traceback

        parent = call.meta.get("traceparent")
        known = type(parent) is str and _TRACEPARENT.fullmatch(parent)
        where = f"{call.method} {call.name!r:.200}" + (f" {parent}" if known else "")
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        if not call.cancelled:
            self._log("error", f"{where}: " + "".join(lines)[-4000:])
        if call.method != "tools/call":
            return "Internal error"
        text = traceback.format_exception_only(type(error), error)[0]
        text = text.partition(": ")[2].strip()
        if isinstance(error, OSError):
            text = str(error.strerror or "")
        text = _masked(text)[:500]
        return f"{type(error).__name__}: {text}" if text else type(error).__name__

    def _tool_error(self, call: _Call, text: str) -> _Reply:
        call.failed = True
        block = b'"content":[{"type":"text","text":%b}],"isError":true'
        return self._result(call, block % _encode(text))

    def _off(self, call: _Call, wrong: str) -> _Reply:
        """A result that breaks the tool's own promise (TOL-06)."""
        text = f"The result breaks the output schema: {wrong}"
        self._log("error", f"tool {call.name}: {text}")
        return self._tool_error(call, text)

    def _render_tool(self, call: _Call, value: Any) -> _Reply:
        tool = call.handler
        if type(value) is CallToolResult:
            return self._render_whole(call, value)
        if tool.output is None:
            content = _encode(self._blocks(call, value))
            return self._result(call, b'"content":%b,"isError":false' % content)
        plain = value if type(value) is str or value is None else _plain(value)
        wrong = tool.output(plain)
        if wrong:
            return self._off(call, wrong)
        structured = _encode(plain)
        text = structured if type(plain) is str else _encode(structured.decode())
        members = b'"content":[{"type":"text","text":%b}]' % text
        if call.revision >= C:
            if tool.wrap and not call.modern:
                structured = b'{"result":%b}' % structured
            members += b',"structuredContent":' + structured
        return self._result(call, members + b',"isError":false')

    def _render_whole(self, call: _Call, value: CallToolResult) -> _Reply:
        """A CallToolResult as the handler built it; its structure is checked too."""
        failed, plain = bool(value.is_error), _plain(value.structured_content)
        output = None if failed else call.handler.output
        wrong = output(plain) if output else None
        if wrong:
            return self._off(call, wrong)
        content = value.content
        if plain is not None and not content:
            content = _encode_text(plain)
        result = {"content": self._blocks(call, content), "_meta": value.meta}
        if plain is not None and call.revision >= C:
            fits = call.modern or isinstance(plain, dict)
            result["structuredContent"] = plain if fits else {"result": plain}
        return self._reply(call, {**result, "isError": failed})

    def _blocks(self, call: _Call, value: Any) -> list[dict[str, Any]]:
        """Content blocks: None is none, a list is one an item."""
        if value is None:
            return []
        many = isinstance(value, (list, tuple)) and not hasattr(value, "_asdict")
        items = value if many else [value]
        return [_fit(_block(item), call.revision) for item in items]

    def _render_resource(self, call: _Call, value: Any) -> _Reply:
        record, uri = call.handler, call.name
        many = isinstance(value, (list, tuple)) and value
        parts = value if many and all(isinstance(p, _Wire) for p in value) else [value]
        contents = []
        for part in parts:
            part = part.resource if isinstance(part, EmbeddedResource) else part
            if isinstance(part, (TextResourceContents, BlobResourceContents)):
                contents.append({"uri": uri, **part.wire()})
                continue
            key, kind, value = "text", "text/plain", part
            if isinstance(part, (bytes, bytearray)):
                key, kind, value = "blob", "application/octet-stream", _wire(part)
            elif not isinstance(part, str):
                kind, value = "application/json", _encode_text(_plain(part))
            kind = record.fields.get("mimeType") or kind
            contents.append({"uri": uri, "mimeType": kind, key: value})
        return self._result(call, b'"contents":' + _encode(contents), record.hints)

    def _render_prompt(self, call: _Call, value: Any) -> _Reply:
        messages = []
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, dict) and "role" in item:
                item = Message(item.get("content"), item["role"])
            message = (item if isinstance(item, Message) else Message(item)).wire()
            message["content"] = _fit(message["content"], call.revision)
            messages.append(message)
        result: dict[str, Any] = {"messages": messages}
        if "description" in call.handler.fields:
            result["description"] = call.handler.fields["description"]
        return self._reply(call, result)

    def _render_completion(self, call: _Call, value: Any) -> _Reply:
        if not isinstance(value, Completion):
            value = Completion([value] if isinstance(value, str) else value)
        values = [str(item) for item in value.values or ()]
        total = len(values) if value.total is None else value.total
        more = bool(value.has_more) or len(values) > 100
        found = {"values": values[:100], "total": total, "hasMore": more}
        return self._reply(call, {"completion": found})

    # Time

    def _tick(self, now: float, kept: float = math.inf) -> Optional[float]:
        """Everything that time brings; returns when to come again, None for never.

        `kept` is when the engine would have come: it does, if that is still ahead.
        """
        with self._hub.lock:
            out, due = self._hub.collect(now)
            for peer, data in out:
                peer.send(data)
        for call in self._open.due(now):
            self._expire(call)
        still = kept if kept > now else None
        dues = due, self._open.next_due(), self._idle_due(now), still
        return min((d for d in dues if d is not None and d < math.inf), default=None)

    def _expire(self, call: _Call) -> None:
        what, limits = "No result", self._limits
        seconds = call.handler.timeout or limits.call_timeout
        if call.waiting:
            what, seconds = "Nobody answered", limits.answer_timeout
        error = ToolError(f"{what} within {seconds:g} s: the call was given up")
        reply = self._failure(call, error)
        if call.claim() and reply is not None:
            call.stop()
            call.peer.reply(*reply)
            self._ended(call, "timeout")

    def _hear(self) -> None:
        """A message came: idle watches start anew."""
        self._heard = time.monotonic()
        for watch in self._idle:
            if watch[2]:
                watch[2] = False
                self._wake()

    def _watch_idle(self) -> None:
        """An engine starts, or there is a new watch."""
        if self._idle:
            self._hear()
            self._wake()

    def _idle_due(self, now: float) -> Optional[float]:
        dues = []
        for watch in self._idle:
            seconds, function, fired = watch
            if not fired and self._heard + seconds <= now:
                watch[2] = True
                self._aside(function)
            elif not fired:
                dues.append(self._heard + seconds)
        return min(dues, default=None)

    def _aside(self, function: Callable[[], Any]) -> None:
        """A user function that is no request, on a worker or as a task."""
        call = _Call(self, _Peer(self), {"id": 0, "method": "on_idle"}, 0)
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        is_async = bool(flags & 0x80) and self._spawn is not None
        call.handler = _Handler("idle", "on_idle", {}, function, is_async=is_async)
        self._enqueue(call)

    def _changed(self, kind: str, uri: str = "", interval: float = 0.0) -> None:
        if self._hub.mark((kind, uri), interval):
            self._wake()


_TRACEPARENT = _Pattern("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C
# What a traceback's text may hold: paths never reach the wire.
_PIECES = _Pattern(r"(['\"])[^'\"]*\1|[^\s'\"]+")
_NO_PATH = _Pattern(r"https?://[^@\s]*|\w+/\w+|[/\\]")
_RENDER: dict[str, Callable[[Any, _Call, Any], _Reply]] = {
    "tools/call": _Core._render_tool,
    "resources/read": _Core._render_resource,
    "prompts/get": _Core._render_prompt,
    "completion/complete": _Core._render_completion,
    "on_idle": lambda server, call, value: (b"", 0),
}

# ---- 8 Byte streams ----------------------------------------------------------------
# One message a line; only 0x0A ends a line. Reading never waits for writing: a client
# that sends two hundred calls before it reads must not stop us. Two engines share all
# of it: a blocking reader (asyncio is never imported) and an asyncio loop.


class _Lines:
    """Newline framing with a bound: feed(data) gives whole lines; None is a line that
    was over the limit and thrown away unseen (STD-10)."""

    __slots__ = "limit rest skipping".split()

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rest = bytearray()
        self.skipping = False

    def feed(self, data: bytes) -> list[Optional[bytes]]:
        if b"\n" not in data:
            self._keep(data)
            return []
        parts: list[bytes] = data.split(b"\n")
        tail = parts.pop()
        first = parts[0]
        if self.rest:
            parts[0] = bytes(self.rest) + first
            self.rest = bytearray()
        found: list[Optional[bytes]] = [
            line if len(line) <= self.limit else None for line in parts
        ]
        if self.skipping:
            found[0] = None
            self.skipping = False
        self._keep(tail)
        return found

    def _keep(self, data: bytes) -> None:
        if not self.skipping:
            self.rest += data
            if len(self.rest) > self.limit:
                self.rest = bytearray()
                self.skipping = True

    def end(self) -> list[Optional[bytes]]:
        """A last line that lacks its newline."""
        return self.feed(b"\n") if self.rest or self.skipping else []


class _Outlet:
    """The only writer of a file descriptor, from any thread, whole messages only.

    A message goes out at once if the pipe is sure to take it: a small one if poll says
    so, one up to the pipe's size if the pipe is empty. All else waits in a bounded
    queue for one lazy daemon thread. O_NONBLOCK is never set: the file description may
    belong to others too.
    """

    def __init__(self, fd: int, limit: int, drop: bool = False) -> None:
        import select
        import stat

        self.fd, self.limit = fd, limit
        self.drop = drop  # over the limit: drop (log) or wait (protocol)
        self.changed = threading.Condition(threading.Lock())
        self.queue: collections.deque[bytes] = collections.deque()
        self.queued = 0  # bytes in the queue and in the thread's os.write
        self.broken = False
        self.ending = False  # a signal came: wait for nobody
        self.started = False
        self.low = limit // 16  # below it a stuck stream counts as ready again
        self.on_drain: Callable[[], None] = lambda: None
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self.atomic = math.inf if regular else getattr(select, "PIPE_BUF", 512)
        self.poll: Any = None
        if hasattr(select, "poll"):
            self.poll = select.poll()
            self.poll.register(fd, select.POLLOUT)
        self.pipe = 0  # bytes that an empty pipe takes, where the kernel tells (Linux)
        if stat.S_ISFIFO(os.fstat(fd).st_mode) and sys.platform == "linux":
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                self.pipe = fcntl.fcntl(fd, 1032)  # F_GETPIPE_SZ
                self.ioctl = fcntl.ioctl

    def _fits(self, size: int) -> bool:
        """Whether a write of so many bytes cannot block once poll has agreed."""
        if size <= self.atomic:
            return True
        if size > self.pipe:
            return False
        unread = self.ioctl(self.fd, 0x541B, b"\0\0\0\0")  # FIONREAD
        return not any(unread)

    def write(self, data: bytes) -> bool:
        """False if the message was dropped or nobody reads any more."""
        with self.changed:
            if not self.queued and not self.broken and self.poll is not None:
                if self._fits(len(data)) and self.poll.poll(0):
                    data = self._put(data)
            while self.queued and self.queued + len(data) > self.limit:
                if self.drop or self.ending:
                    return False
                self.changed.wait(1.0)
            if data and not self.broken:
                self.queue.append(data)
                self.queued += len(data)
                if not self.started:
                    self.started = True
                    threading.Thread(target=self._run, daemon=True).start()
                self.changed.notify_all()
            return not self.broken

    def _put(self, data: bytes) -> bytes:
        """Writes what the descriptor takes now; returns the rest."""
        try:
            return data[os.write(self.fd, data) :]
        except BlockingIOError:
            return data
        except OSError:
            self.broken = True
            return b""

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self.queue:
                    self.changed.wait()
                data = self._join()
            rest = self._put(data)
            if rest == data and self.poll is not None:
                self.poll.poll(1000)  # somebody else made the pipe non-blocking
            with self.changed:
                was = self.queued
                self.queued -= len(data) - len(rest)
                if rest:
                    self.queue.appendleft(rest)
                if self.broken:
                    self.queue.clear()
                    self.queued = 0
                drained = was > self.low >= self.queued
                self.changed.notify_all()
            if drained:
                self.on_drain()

    def _join(self) -> bytes:
        """The next messages in one piece of at most 64 KiB."""
        parts = [self.queue.popleft()]
        size = len(parts[0])
        while self.queue and size + len(self.queue[0]) <= 65536:
            parts.append(self.queue.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def flush(self, seconds: float) -> None:
        """Wait until everything is out, for so long at the most."""
        with self.changed:
            self.changed.wait_for(lambda: not self.queued, seconds)


_kept_fds: list[int] = []


def _guard_stdio() -> tuple[int, int]:
    """Keep fds 0 and 1 for the protocol; user code prints to stderr, reads nothing.

    The order matters: after dup2, what print() had buffered goes to stderr as well.
    """
    if not _kept_fds:
        try:
            os.fstat(0), os.fstat(1)
        except OSError:
            raise OSError("stdin or stdout is closed: nobody to talk to") from None
        null = os.open(os.devnull, os.O_RDWR)  # which becomes 2 if that is closed
        _kept_fds[:] = os.dup(0), os.dup(1)
        os.dup2(2, 1)
        os.dup2(null, 0)
        if null != 2:
            os.close(null)
        if sys.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
    return _kept_fds[0], _kept_fds[1]


def _receive(server: _Core, line: Optional[bytes], peer: _Peer) -> Any:
    """One line in; the reply if there is one at once, or a call to launch.

    The outermost guard of the engines on byte streams.
    """
    try:
        if line is None:
            text = f"Message over the limit of {server._limits.line} bytes"
            return _error_bytes(_NO_ID, INVALID_REQUEST, text)
        if not line or line.isspace():
            return None
        message = _decode(line, server._limits.depth, server._limits.digits)
        found = server._dispatch(message, peer, len(line))
        return found[0] if type(found) is tuple else found
    except MCPError as error:
        return _error_bytes(error.id, error.code, error.message)
    except Exception as error:  # a fault of ours must not end the appliance
        server._log("critical", f"{type(error).__name__} in dispatch: {error}")
        return _error_bytes(_NO_ID, INTERNAL_ERROR, "Internal error")


def _next_call(server: _Core, lines: Iterator[Optional[bytes]], peer: _Peer) -> Any:
    """Answers lines until one is a call to launch, which it returns; None at the end.

    Replies of one chunk go out together, in pieces that a pipe takes whole, and before
    a call's own, which may come at once.
    """
    out: list[bytes] = []
    size = 0
    for line in lines:
        body = _receive(server, line, peer)
        if body is None:
            continue
        call = None if type(body) is bytes else body
        if out and (call is not None or size + len(body) >= 4096):
            peer.send(b"\n".join(out))
            out, size = [], 0
        if call is not None:
            return call
        out.append(body)
        size += len(body) + 1
    if out:
        peer.send(b"\n".join(out))
    return None


def _receive_all(server: _Core, lines: list[Optional[bytes]], peer: _Peer) -> None:
    left = iter(lines)
    call = _next_call(server, left, peer)
    while call is not None:
        call.launch()
        call = _next_call(server, left, peer)


class _FdPeer(_Peer):
    """The other end of stdin and stdout."""

    __slots__ = "outlet inline loop elsewhere".split()

    def __init__(self, server: _Core, outlet: _Outlet) -> None:
        super().__init__(server)
        self.outlet = outlet
        self.inline = True
        self.loop = server._loop
        self.elsewhere: collections.deque[_Call] = collections.deque()

    def run(self, call: _Call) -> None:
        if self.inline:
            super().run(call)
        else:
            self.elsewhere.append(call)

    def send(self, data: bytes) -> None:
        self.outlet.write(data + b"\n")

    def ready(self) -> bool:
        return self.outlet.queued <= self.outlet.low and not self.outlet.broken


def _reader(fd: int) -> Callable[[], bytes]:
    """A function that gives some bytes, b"" at the end; it waits in any case.

    It reads into one buffer: 64 KiB for each read, cut to what came, left holes in the
    heap that the next 64 KiB did not fit in, 10 bytes for each call.
    """
    buffer = bytearray(65536)
    view, buffers = memoryview(buffer), [buffer]

    def take() -> bytes:
        return bytes(view[: os.readv(fd, buffers)])

    if not hasattr(os, "readv"):  # Windows
        take = functools.partial(os.read, fd, 65536)

    def read() -> bytes:
        while True:
            try:
                return take()
            except BlockingIOError:  # somebody else made it non-blocking
                import select

                select.select([fd], [], [])
            except OSError:
                return b""

    return read


class _Ticker:
    """Calls server._tick from one lazy thread: only where no loop runs."""

    def __init__(self, server: _Core) -> None:
        self.server = server
        self.changed = threading.Condition(threading.Lock())
        self.woken = self.started = False
        server._wake, server._alarm = self.wake, math.inf
        server._watch_idle()

    def wake(self) -> None:
        with self.changed:
            self.woken = True
            if not self.started:
                self.started = True
                threading.Thread(target=self._run, daemon=True).start()
            self.changed.notify()

    def _run(self) -> None:
        left: Optional[float] = None
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.woken, left)
                self.woken = False
            kept, self.server._alarm = self.server._alarm, math.inf
            now = time.monotonic()
            due = self.server._tick(now, kept)
            left = None if due is None else due - now
            self.server._alarm = math.inf if due is None else due


def _open_calls(server: _Core) -> list[_Call]:
    return [call for line in server._open.lines() for call in list(line)]


def _finish(server: _Core) -> None:
    """No more input: streams end with their result, accepted calls get their grace."""
    for call in _open_calls(server):
        if call.listener is not None:
            server._end_listen(call)
        elif call.waiting:  # nobody is left who could answer
            call.cancel()


def _close_input(fd: int, outlet: _Outlet) -> None:
    """The interrupted read goes on and finds the end of input: one way to stop."""
    outlet.ending = True
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, fd)
    os.close(null)


class _Turns:
    """The engine without a loop: who reads, and who runs what was read.

    The first thread, on which run() was called, reads, and runs the inline handlers,
    which belong to it. Where one call for a worker follows the other, a worker reads
    and runs them itself: to wake another thread for a call takes longer than all the
    rest, most of all where processors idle. While it runs one, the turn to read is on
    offer: input that comes by then wakes the first thread.
    """

    PATIENCE = 8  # calls for workers until one of them reads
    ONCE, INPUT = 1 << 30, 1  # EPOLLONESHOT, EPOLLIN

    def __init__(self, server: _Core, in_fd: int, outlet: _Outlet) -> None:
        self.server, self.in_fd, self.outlet = server, in_fd, outlet
        self.peer = _FdPeer(server, outlet)
        self.lines, self.read = _Lines(server._limits.line), _reader(in_fd)
        self.rest: Any = None  # the lines of a chunk that are not taken yet
        self.patience: float = self.PATIENCE
        self.mine = True  # the turn is the first thread's
        self.offer: collections.deque[None] = collections.deque()  # whoever pops has it
        self.helped = False  # a worker reads
        self.taking = False  # somebody launches what was read
        self.ended = False
        self.epoll: Any = None  # what the first thread waits for while it does not read
        # A pipe that is always ready, once it is asked for, and one for signals.
        self.bell: Any = ()
        server._turns = self
        outlet.on_drain = _Ticker(server).wake

    def run(self) -> None:
        """Until the end of input; then accepted calls get their grace."""
        server, limits = self.server, self.server._limits
        while not self.ended:
            if self.peer.elsewhere:
                self.run_inline()
            if not self.mine:
                self.claim()
                continue
            self.take(0)
            if self.patience <= 0:
                self.call_help()
        end = time.monotonic() + limits.grace
        while self.taking and time.monotonic() < end:
            time.sleep(0.001)  # a worker is about to launch its last call
        self.run_inline()
        self.peer.inline = True
        _receive_all(server, [*(self.rest or ()), *self.lines.end()], self.peer)
        _finish(server)
        server._drained = threading.Event()
        if server._owes():
            server._drained.wait(limits.grace)
        for call in _open_calls(server):
            call.cancel()
        self.outlet.flush(limits.exit_grace)
        self.close()

    def run_inline(self) -> None:
        """What a worker has read for this thread."""
        while self.peer.elsewhere:
            call = self.peer.elsewhere.popleft()
            try:
                if not call.done:
                    call.settle(_call(call))
            except Exception as error:  # of the transport; the others go on
                self.tell(error)

    def take(self, me: int) -> Optional[_Call]:
        """Read and launch. The last call is returned if the thread `me`, a worker, is
        to run it; the first thread is 0 and runs none."""
        server, peer = self.server, self.peer
        if self.rest is None:
            data = b"" if self.outlet.broken else self.read()
            self.taking = True
            if not data or self.ended:
                self.ended, self.taking = True, False
                return None
            self.rest = iter(self.lines.feed(data))
        peer.inline = not me
        try:
            while True:
                call = _next_call(server, self.rest, peer)
                if call is None:
                    self.rest = None
                    return None
                if not me:
                    self.patience -= 1
                    call.launch()
                elif self.keeps(call, me):
                    self.rest = None
                    # `call` is Any: a batch may be one, but is never kept.
                    return call  # type: ignore[no-any-return]
                elif peer.elsewhere:
                    return None  # and the rest is for the first thread
        finally:
            self.taking = False

    def keeps(self, call: Any, me: int) -> bool:
        """Launch a call; True if it is for the worker that has read it: the last one,
        while no older one waits for a worker or for the first thread."""
        busy = self.server._waiting or self.peer.elsewhere
        last = type(call) is _Call and not self.rest.__length_hint__()
        call.here = me if last and not busy else 0
        call.launch()
        if call.here < 0:
            return True
        call.here = 0
        return False

    def call_help(self) -> None:
        """Give the turn to a worker if one is free and there is much to do for it."""
        if self.ended or self.wanted():
            return
        self.patience = self.PATIENCE
        if self.watch():
            self.mine, self.helped = False, True
            if not self.server._hand_over(self):
                self.mine, self.helped = True, False

    def wanted(self) -> bool:
        """Whether a worker that reads is wanted elsewhere: calls wait for one, or what
        is due after silence may."""
        return self.server._free < 0 or bool(self.server._idle)

    def lead(self) -> None:
        """A worker reads, until an inline call comes or calls wait for a worker."""
        me, mine = threading.get_ident(), True
        try:
            while mine and not (self.ended or self.peer.elsewhere or self.wanted()):
                call = self.take(me)
                if call is not None:  # also at the end: it is accepted
                    self.offer.append(None)
                    self.arm(self.in_fd, self.INPUT)
                    mine = self.run_call(call)
        finally:
            self.helped = False
            if mine:
                self.mine = True
                self.arm(self.bell[0], self.INPUT)

    def run_call(self, call: _Call) -> bool:
        """As a worker does; True if nobody else has taken the turn meanwhile."""
        server, mine = self.server, False
        try:
            begun = server._begin(call)
            reply = _call(call) if begun else None
            # Before the reply: to that, the client may send the next call at once.
            mine = self.back()
            if begun:
                call.settle(reply)
        except BaseException as error:  # of the transport; the turn must not go with it
            self.tell(error)
            mine = mine or self.back()
        finally:
            server._leave(call)
        return mine

    def back(self) -> bool:
        """Take the turn that is on offer, unless another thread has it."""
        try:
            self.offer.pop()
        except IndexError:
            return False
        self.arm(self.in_fd, 0)
        return True

    def tell(self, error: BaseException) -> None:
        self.server._log("critical", f"{type(error).__name__} in a call: {error}")

    # How the first thread waits

    def watch(self) -> bool:
        """Whether input can be waited for: on Linux, and if it is no file."""
        import select

        try:
            if self.epoll is None:
                epoll = select.epoll()
                epoll.register(self.in_fd, self.ONCE)
                self.bell = *os.pipe(), *os.pipe()
                os.write(self.bell[1], b"!")
                epoll.register(self.bell[0], self.ONCE)
                epoll.register(self.bell[2], self.INPUT)
                self.hear_signals(self.bell[3])
                self.epoll = epoll
        except (AttributeError, OSError):
            self.patience = math.inf
        return self.epoll is not None

    def hear_signals(self, fd: int) -> None:
        """One that comes just before this thread waits, that another thread got, or
        that a handler raised, ends no wait: a byte has to. Input does not come here."""
        if _on_main_thread():
            os.set_blocking(fd, False)
            signal = __import__("_signal")
            before = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
            if before >= 0:  # the program has its own
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def claim(self) -> None:
        """Wait until there is input while the turn is on offer, for the bell, or for a
        signal."""
        if self.epoll.poll(-1, 1)[0][0] == self.bell[2]:
            os.read(self.bell[2], 64)
        with contextlib.suppress(IndexError):
            self.offer.pop()
            self.mine = True

    def arm(self, fd: int, events: int) -> bool:
        """False at the end: the descriptor is closed, or another one by now."""
        try:
            self.epoll.modify(fd, self.ONCE | events)
        except (OSError, ValueError):
            return False
        return True

    def stop(self) -> None:
        """For a signal handler, on the first thread. Its read() goes on and finds the
        end of input; what a worker reads by now is not taken."""
        _close_input(self.in_fd, self.outlet)
        self.ended = True
        if self.epoll is not None:
            self.arm(self.bell[0], self.INPUT)

    def close(self) -> None:
        if self.helped:  # a worker still runs a handler, or is stuck in read()
            return
        self.server._turns = None  # and its buffer
        if self.epoll is not None:
            if _on_main_thread():
                signal = __import__("_signal")
                before = signal.set_wakeup_fd(-1)
                if before != self.bell[3]:
                    signal.set_wakeup_fd(before, warn_on_full_buffer=False)
            self.epoll.close()
            for fd in self.bell:
                os.close(fd)


def _eager(loop: Any) -> Any:
    """What makes a task and takes its first step at once, if the loop allows it: most
    async calls end in it, and need no turn of the loop. asyncio can since 3.12; before,
    the step that Task() schedules is taken back."""
    import asyncio

    task: Any = asyncio.Task
    if sys.version_info >= (3, 12):
        return functools.partial(task, loop=loop, eager_start=True)
    tasks: Any = asyncio.tasks
    ready: Any = getattr(loop, "_ready", None)
    current, taken = tasks._current_tasks, []

    def keep(step: Any, *rest: Any, context: Any = None) -> Any:
        if isinstance(getattr(step, "__self__", None), task):
            return taken.append((step, context))
        return type(loop).call_soon(loop, step, *rest, context=context)  # a finalizer's

    def made_by_asyncio(coroutine: Any, name: Any = None) -> Any:
        made = task(coroutine, loop=loop, name=name)
        last = ready.pop()
        if getattr(last._callback, "__self__", None) is made:
            begin(last._callback, last._context)
        else:
            ready.append(last)  # a thread has just scheduled something
        return made

    def made_by_another(coroutine: Any, name: Any = None) -> Any:
        loop.call_soon = keep  # as above it would cost more: all calls of it are slower
        try:
            made = task(coroutine, loop=loop, name=name)
        finally:
            del loop.call_soon
        begin(*taken.pop())
        return made

    def begin(step: Any, context: Any) -> None:
        around = current.pop(loop, None)
        try:
            context.run(step)
        finally:
            if around is not None:
                current[loop] = around

    if type(ready) is collections.deque:
        return made_by_asyncio
    return made_by_another if hasattr(loop, "__dict__") else loop.create_task  # uvloop


class _Bell:
    """What one task awaits. When it rings, the task takes its next step at once, if no
    other one is taking a step: a Future would cost a turn of the loop and a system
    call, more than the rest of a short request. On the loop's thread only.
    """

    __slots__ = "engine wakeup home value get_loop _asyncio_future_blocking".split()

    def __init__(self, engine: _Loop) -> None:
        self.engine = engine
        self.get_loop = engine.get_loop
        self.wakeup: Any = None  # the task's next step, while it waits
        self.home: Any = None  # the context of its steps
        self.value: Any = None

    def ring(self, value: Any = None) -> None:
        """Wake the task with a value. It is lost if the task does not wait."""
        wakeup, self.wakeup = self.wakeup, None
        if wakeup is None:
            return
        self.value = value
        if self.engine.current() is None:
            self.home.run(wakeup, self)
        else:
            self.engine.loop.call_soon(wakeup, self, context=self.home)

    def __await__(self) -> Any:
        self._asyncio_future_blocking = True
        yield self
        value, self.value = self.value, None
        return value

    # As a future, to the task

    result = type(None)  # it returns None: the value goes another way

    def add_done_callback(self, function: Any, *, context: Any = None) -> None:
        self.wakeup, self.home = function, context

    def cancel(self, msg: Any = None) -> bool:
        """False: the task throws by itself at its next step, which is soon."""
        wakeup, self.wakeup = self.wakeup, None
        if wakeup is not None:
            self.engine.loop.call_soon(wakeup, self, context=self.home)
        return False


class _Loop:
    """What a server needs of a running asyncio loop: time, wake-ups and tasks."""

    def __init__(self, server: _Core) -> None:
        import asyncio
        import contextvars
        import weakref

        self.server = server
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        self.thread = threading.get_ident()
        self.entering = asyncio.Lock()  # of the lifespan
        self.timer: Any = None
        self.woken = False
        self.tasks: set[Any] = set()
        # More functions that are called with the time and tell when to come again.
        self.extra: list[Callable[[float], Optional[float]]] = []
        self.make = _eager(self.loop)
        self.get_loop = weakref.ref(self.loop)  # no call can be cheaper
        current: Any = asyncio.current_task
        if sys.version_info < (3, 12):  # it is no C function yet
            tasks: Any = asyncio.tasks
            current = tasks._current_tasks.get
        self.current = functools.partial(current, self.loop)
        server._wake, server._spawn = self.wake, self.spawn
        server._alarm = math.inf  # that of another loop is gone with it
        server._watch_idle()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """On the loop's thread: at once if this is it, else soon."""
        if threading.get_ident() == self.thread:
            function(*arguments)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(function, *arguments)

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self.call(self.loop.call_soon, self._tick)

    def _tick(self) -> None:
        self.woken = False
        kept, self.server._alarm = self.server._alarm, math.inf
        now = time.monotonic()
        dues = [self.server._tick(now, kept), *(tick(now) for tick in self.extra)]
        due = min((d for d in dues if d is not None), default=None)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if due is not None:
            self.timer = self.loop.call_later(max(0.0, due - now), self._tick)
            self.server._alarm = due

    def spawn(self, call: _Call) -> None:
        if threading.get_ident() == self.thread:  # `call` would do; this is every call
            self._start(call)
        else:
            self.call(self._start, call)

    def _start(self, call: _Call) -> None:
        if not self.server._begin(call):
            return self.server._leave(call)
        reply = self.step(call)
        if call.task is None:
            try:
                call.settle(reply)
            finally:
                self._left(call)
        return None

    def step(self, call: _Call) -> Optional[_Reply]:
        """The first step of an async call: its reply, or None. Then it has a task if it
        waits, and none if it asks."""
        task = self.make(_acall(call), name=call.name)
        if not task.done():
            call.task, call.loop = task, self
            self.tasks.add(task)
        return call.rendered

    def over(self, call: _Call) -> None:
        """The call has ended in another step than its first."""
        self.tasks.discard(call.task)
        call.task = None
        try:
            call.settle(call.rendered)
        finally:
            self._left(call)

    def _left(self, call: _Call) -> None:
        if (call.handler.lane or call.held) and not self.loop.is_closed():
            # Not from here: a long lane would be as deep a stack.
            leave = self.server._leave
            self.loop.call_soon(leave, call, context=self.context)

    async def drain(self, seconds: float) -> None:
        """Wait until no call is open, for so long at the most; then give them up."""
        import asyncio
        from types import SimpleNamespace

        event = asyncio.Event()
        # A worker thread may be the one that sets it.
        drained = SimpleNamespace(set=functools.partial(self.call, event.set))
        self.server._drained = drained
        end = time.monotonic() + seconds
        while self.server._owes() and time.monotonic() < end:
            event.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), end - time.monotonic())
        for call in _open_calls(self.server):
            call.cancel()
        if self.tasks:  # cancelled handlers get a moment for their finally
            await asyncio.wait(list(self.tasks), timeout=1.0)


async def _run_fds(server: _Core, in_fd: int, outlet: _Outlet, stop: Any) -> None:
    """The loop engine on file descriptors, until EOF or `stop` is set."""
    loop: _Loop = server._loop
    peer = _FdPeer(server, outlet)
    outlet.on_drain = server._wake
    lines = _Lines(server._limits.line)

    def feed(data: bytes) -> None:
        if stop.is_set():
            return  # a thread has read it, too late
        _receive_all(server, lines.feed(data), peer)
        if not data or outlet.broken:
            stop.set()

    polled = True
    try:
        read = _reader(in_fd)
        loop.loop.add_reader(in_fd, lambda: feed(read()))
    except (OSError, NotImplementedError, ValueError):
        polled = False  # a regular file, /dev/null, Windows: a thread reads
        pump = functools.partial(_pump, in_fd, loop, feed)
        threading.Thread(target=pump, daemon=True).start()
    await stop.wait()
    if polled:
        loop.loop.remove_reader(in_fd)
    _receive_all(server, lines.end(), peer)
    _finish(server)
    await loop.drain(server._limits.grace)
    outlet.flush(server._limits.exit_grace)


def _pump(fd: int, loop: _Loop, feed: Callable[[bytes], None]) -> None:
    """Reads a descriptor that cannot be polled; waits until each chunk was taken."""
    taken, read = threading.Event(), _reader(fd)
    data = b"-"

    def give() -> None:
        feed(data)
        taken.set()

    while data:
        data = read()
        taken.clear()
        loop.call(give)
        taken.wait()


class _WriterPeer(_Peer):
    """The other end of an asyncio reader and writer: socket, UART, pipe."""

    __slots__ = "writer transport loop sent mark draining".split()

    def __init__(self, server: _Core, writer: Any, loop: _Loop) -> None:
        super().__init__(server)
        self.writer, self.transport, self.loop = writer, writer.transport, loop
        self.sent = 0
        self.draining: Any = None
        self.mark = min(server._limits.stream_queue, server._limits.queue // 2)
        self.transport.set_write_buffer_limits(high=self.mark)

    def send(self, data: bytes) -> None:
        self.loop.call(self._write, data + b"\n")

    def _write(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.writer.write(data)
        self.sent += len(data)
        waiting = self.transport.get_write_buffer_size()
        if waiting > self.server._limits.queue:
            self.transport.abort()  # it takes nothing and is owed everything
        elif waiting > self.mark:
            self.drain()

    def drain(self) -> Any:
        """The task that waits until the transport is below its mark."""
        if self.draining is None:
            self.draining = self.loop.loop.create_task(self._drain())
        return self.draining

    async def _drain(self) -> None:
        """A peer that takes nothing for write_timeout is dropped."""
        import asyncio

        taken = -1
        try:
            while True:
                before = taken
                waiting = self.transport.get_write_buffer_size()
                taken = self.sent - waiting - _in_kernel(self.transport)
                if before == taken:
                    self.transport.abort()
                    break
                with contextlib.suppress(asyncio.TimeoutError):
                    seconds = self.server._limits.write_timeout
                    await asyncio.wait_for(self.writer.drain(), seconds)
                    break
        except OSError:  # it is gone: the reader hears of it too
            pass
        finally:
            self.draining = None
            self.server._wake()

    def ready(self) -> bool:
        return self.draining is None and not self.transport.is_closing()

    async def last_replies(self) -> None:
        """It sends no more: what it asked for is still answered, within the grace."""
        import asyncio

        end = time.monotonic() + self.server._limits.grace
        for call in list(self.calls.values()):
            if call.listener is not None or call.waiting:
                call.cancel()
        while self.calls and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.transport.set_write_buffer_limits(high=0)
        await self.drain()


def _in_kernel(transport: Any) -> int:
    """Bytes that the kernel still holds for a peer, where it tells (POSIX): up to some
    MB, which a slow reader may take minutes for."""
    try:
        import fcntl
        import termios

        end, ask = transport.get_extra_info("socket"), termios.TIOCOUTQ
        return int.from_bytes(fcntl.ioctl(end, ask, bytes(4)), sys.byteorder)
    except (ImportError, OSError, TypeError, ValueError):  # or it is closed
        return 0


def _peer_credentials(writer: Any) -> Optional[Principal]:
    """The user at the other end of a Unix socket, where the kernel tells (Linux)."""
    import socket

    end = writer.get_extra_info("socket")
    if end is None or end.family != getattr(socket, "AF_UNIX", None):
        return None
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    import struct

    _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, option, 12))
    return Principal(f"uid:{user}", None)


async def _serve_stream(
    server: _Core, reader: Any, writer: Any, loop: _Loop, stop: Any = None
) -> None:
    """One connection with newline framing, until its end (STD-09). What comes after
    `stop` is set is not taken."""
    peer = _WriterPeer(server, writer, loop)
    peer.principal = _peer_credentials(writer)
    lines = _Lines(server._limits.line)
    try:
        data = b"-"
        while data:
            data = await reader.read(65536)
            if stop is not None and stop.is_set():
                break
            _receive_all(server, lines.feed(data) if data else lines.end(), peer)
            # Reading goes on while the peer writes more than it reads, up to here.
            if peer.transport.get_write_buffer_size() > server._limits.queue // 2:
                await peer.drain()
        await peer.last_replies()
    except OSError:
        pass
    finally:
        if peer.session is not None and peer.session.listener is not None:
            server._hub.remove(peer.session.listener)
        for call in list(peer.calls.values()):
            call.cancel()
        writer.close()


# ---- 9 HTTP/1.1 --------------------------------------------------------------------
# Bytes to request heads and bodies, replies to bytes; no IO, and "need more" is None.
# RFC 9112 without its leniencies: whatever two parsers could read in two ways (a bare
# CR or LF, a folded line, two lengths, a space before a colon) is refused, and the
# connection ends there. Clients repeat their heads, so parsed ones are kept.

_REASONS = {
    int(line[:3]): line[4:]
    for line in (
        "100 Continue|200 OK|202 Accepted|204 No Content|400 Bad Request|"
        "401 Unauthorized|403 Forbidden|404 Not Found|405 Method Not Allowed|"
        "406 Not Acceptable|408 Request Timeout|409 Conflict|411 Length Required|"
        "413 Content Too Large|414 URI Too Long|415 Unsupported Media Type|"
        "417 Expectation Failed|421 Misdirected Request|429 Too Many Requests|"
        "431 Request Header Fields Too Large|500 Internal Server Error|"
        "501 Not Implemented|503 Service Unavailable|505 HTTP Version Not Supported"
    ).split("|")
}
_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {reason}\r\n".encode("ascii")
    for status, reason in _REASONS.items()
}
_CONTINUE = _STATUS_LINES[100] + b"\r\n"
_KEEP = b"Connection: keep-alive\r\n\r\n"  # HTTP/1.0 has to be told
_CLOSE = b"Connection: close\r\n\r\n"
_SSE_HEAD = (
    b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\n"
)
_SSE_COMMENT = b":\n\n"
_LAST_CHUNK = b"0\r\n\r\n"
_CHUNK_LINE = 256  # bytes of a chunk size line: nobody sends extensions
_CHUNK_EXCESS = 16384  # bytes of chunk framing beyond what small chunks need (as Go)
_KEPT_HEAD = 1024  # bytes of a head that is worth keeping
_KEPT_HEADS = 16  # heads kept for one set of limits, 2 kB each

# Sets of bytes and patterns that re compiles at first use: stdio pays for neither.
_TCHARS = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"  # in lower case
_TEXT_BYTES = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
_CHUNK_SIZE = rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?"
_HOST = r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+?)\.?)(?::([0-9]{0,5}))?"


class _HttpError(Exception):
    """A request that cannot be served: answer with the status, then close."""

    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.headers = headers


# A request head. Requests share it: headers must not be changed. version: "1.1" or
# "1.0"; headers: {lower-case name: value}, those in `repeated` joined with ", ".
_Head = collections.namedtuple(
    "_Head",
    "method target path query version headers repeated keep_alive chunked "
    "expects_continue length",
)


def _header_fields(lines: list[str]) -> tuple[dict[str, str], frozenset[str]]:
    """The fields, and the names that come more than once. Names are not checked."""
    headers: dict[str, str] = {}
    repeated = []
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon:
            raise _HttpError(400, "Header line without a colon")
        if name in headers:
            repeated.append(name)
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers, frozenset(repeated)


def _listed(value: str) -> list[str]:
    return [part.strip(" \t") for part in value.lower().split(",")]


def _parse_head(block: bytes, most: int, target_bytes: int) -> _Head:
    """A head without its last two line ends (RFC 9112 sections 2 to 6)."""
    line, *lines = block.decode("latin-1").split("\r\n")
    # Without its text a head is the line ends that split() found, and nothing else.
    if block.translate(None, _TEXT_BYTES) != b"\r\n" * len(lines):
        raise _HttpError(400, "Control character in a head")
    if len(lines) > most:
        raise _HttpError(431, f"More than {most} header lines")
    method, _, rest = line.partition(" ")
    target, _, version = rest.partition(" ")
    visible = target.isascii() and target.isprintable() and "#" not in target
    known = version == "HTTP/1.1" or re.fullmatch("HTTP/[0-9][.][0-9]", version)
    if not visible or not known:
        raise _HttpError(400, "Malformed request line")
    if version[5] != "1":
        raise _HttpError(505, "HTTP/1.1 is spoken here")
    if len(target) > target_bytes:
        raise _HttpError(414, f"Request target over {target_bytes} bytes")
    headers, repeated = _header_fields(lines)
    # All names in one go; a folded line or a space before the colon shows up here.
    names = "".join((method.lower(), *headers)).encode("latin-1")
    if names.translate(None, _TCHARS) or not method or "" in headers:
        raise _HttpError(400, "Malformed method or header name")
    old = version == "HTTP/1.0"
    if "host" in repeated or ("host" not in headers and not old):
        raise _HttpError(400, "Exactly one Host is needed")
    place = target
    if not target.startswith("/") and (target, method) != ("*", "OPTIONS"):
        absolute = re.fullmatch(r"(?i:https?)://([^/?]+)(.*)", target)
        if not absolute:
            raise _HttpError(400, "Malformed request target")
        headers["host"], place = absolute.groups()  # RFC 9112 3.2.2: Host is ignored
        place = place if place.startswith("/") else "/" + place
    path, _, query = place.partition("?")
    options = _listed(headers["connection"]) if "connection" in headers else []
    keep_alive = "close" not in options and (not old or "keep-alive" in options)
    length, chunked = _framing(headers, old)
    expects = False
    # RFC 9110 10.1.1: expectations of 1.0 are ignored; without a body nobody waits.
    if "expect" in headers and not old:
        if headers["expect"].lower() != "100-continue":
            raise _HttpError(417, "Only 100-continue can be expected")
        expects = chunked or length is not None
    version = "1.0" if old else "1.1"
    return _Head(
        *(method, target, path, query, version, headers, repeated),
        *(keep_alive, chunked, expects, length),
    )


def _framing(headers: dict[str, str], old: bool) -> tuple[int | None, bool]:
    """(length, chunked). Whatever a proxy might read otherwise is refused."""
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or old:
            raise _HttpError(400, "Transfer-Encoding with Content-Length or HTTP/1.0")
        codings = _listed(coding)
        if "" in codings or "chunked" in codings[:-1]:
            raise _HttpError(400, "Malformed Transfer-Encoding")
        if codings != ["chunked"]:
            raise _HttpError(501, "No transfer coding but chunked")
        return None, True
    if length is None:
        return None, False
    if not length.isdecimal():  # two lengths have been joined with a comma
        raise _HttpError(400, "Malformed Content-Length")
    # int() of a thousand digits is slow, and an error from Python 3.11 on.
    return int(length) if len(length) < 19 else 1 << 62, False


# [(bytes up to the length, the length, bytes after it, all three, head)] for each set
# of limits
_HEADS: dict[tuple[int, ...], list[tuple[bytes, bytes, bytes, bytes, _Head]]] = {}


class _HttpReader:
    """Requests out of bytes: feed(), head(), body(), and again (pipelining).

    None asks for more bytes. After an _HttpError the rest of the input means nothing.
    """

    __slots__ = "_limits _kept _buffer _at _seen _skip _head _body _left _extra".split()

    def __init__(
        self, head_bytes: int, header_count: int, target_bytes: int, body_bytes: int
    ) -> None:
        self._limits = head_bytes, header_count, target_bytes, body_bytes
        self._kept = _HEADS.setdefault(self._limits, [])
        self._buffer: bytes | bytearray = b""
        self._at = 0  # what is before it has been used
        self._seen = 0  # bytes behind it that hold no end of a head
        self._skip = False  # an empty line was skipped
        self._head: _Head | None = None
        self._body = bytearray()  # chunks so far
        self._left = 0  # bytes to come of this chunk and its line end
        self._extra = 0  # bytes of its framing that small chunks do not explain

    @property
    def held(self) -> int:
        """Bytes of requests that are not complete."""
        return len(self._buffer) - self._at + len(self._body)

    @property
    def pending(self) -> bool:
        """Whether a request has begun and is not complete."""
        return self._head is not None or self._at < len(self._buffer)

    def drop(self) -> None:
        """Forget the input so far, which has no meaning after an error."""
        self._buffer, self._at, self._body = b"", 0, bytearray()

    def feed(self, data: bytes) -> None:
        buffer = self._buffer
        if self._at == len(buffer):
            self._buffer, self._at = data, 0
            return
        if self._at or isinstance(buffer, bytes):
            self._buffer = buffer = bytearray(memoryview(buffer)[self._at :])
            self._at = 0
        buffer += data

    def head(self) -> _Head | None:
        """The head of the next request; the same one until body() has returned."""
        buffer = self._buffer
        if self._head is not None or self._at == len(buffer):
            return self._head
        if buffer[self._at] == 0x0D and not self._skip:
            if not buffer.startswith(b"\r\n", self._at):
                return self._new_head()
            self._skip = True  # RFC 9112 2.2: old clients send one after a body
            self._at += 2
            self._seen = 0
        return self._known_head() or self._new_head()

    def _known_head(self) -> _Head | None:
        """A head as it came before, but for the digits of its length."""
        buffer, at, kept = self._buffer, self._at, self._kept
        for index, entry in enumerate(kept):
            before, digits, after, whole, head = entry
            if not index and buffer.startswith(whole, at):
                return self._begin(head, at + len(whole))
            if not buffer.startswith(before, at):
                continue
            stop = at + len(before)
            if digits:
                start, stop = stop, buffer.find(b"\r", stop, stop + 16)
                given = bytes(buffer[start:stop])
                same = given == digits
                if not (same or given.isdigit()) or not buffer.startswith(after, stop):
                    continue
                if not same:
                    head = tuple.__new__(_Head, (*head[:-1], int(given)))  # in C
                    entry = before, given, after, before + given + after, head
            kept[index] = kept[0]  # a list that only grows: threads may share it
            kept[0] = entry
            return self._begin(head, stop + len(after))
        return None

    def _new_head(self) -> _Head | None:
        head_bytes, most, target_bytes, _ = self._limits
        buffer, at = self._buffer, self._at
        end = buffer.find(b"\r\n\r\n", at + self._seen)
        stop = len(buffer) if end < 0 else end + 4
        # With room for a method: is there a line end, or only more of the target?
        longest = at + target_bytes + 64
        if stop > longest and buffer.find(b"\r\n", at, longest + 2) < 0:
            raise _HttpError(414, f"Request target over {target_bytes} bytes")
        if stop - at > head_bytes:
            raise _HttpError(431, f"Request head over {head_bytes} bytes")
        if end < 0:
            # TLS on the plain port, or a client with bare LF, would wait for ever.
            part = buffer[at:stop].rstrip(b"\r")
            if part.translate(None, _TEXT_BYTES) != b"\r\n" * part.count(b"\r\n"):
                raise _HttpError(400, "Control character in a head")
            self._seen = max(0, stop - at - 3)
            return None
        block = bytes(buffer[at:stop])
        head = _parse_head(block[:-4], most, target_bytes)
        cut, digits = len(block), b""
        if head.length is not None:
            digits = b"%d" % head.length
            cut = block.lower().find(b"\r\ncontent-length: %b\r\n" % digits) + 18
        if cut >= 18 and len(block) <= min(_KEPT_HEAD, head_bytes - 16):
            entry = block[:cut], digits, block[cut + len(digits) :], block, head
            self._kept[:] = [entry, *self._kept[: _KEPT_HEADS - 1]]
        return self._begin(head, stop)

    def _begin(self, head: _Head, at: int) -> _Head:
        self._at, self._seen, self._skip = at, 0, False
        if (head.length or 0) > self._limits[3]:
            raise self._too_large()
        self._head = head
        return head

    def _too_large(self) -> _HttpError:
        return _HttpError(413, f"Request body over {self._limits[3]} bytes")

    def body(self) -> bytes | bytearray | None:
        """The body that belongs to head(), then ready for the next head."""
        head = self._head
        if head is None:
            return None
        if head.chunked:
            return self._chunks()
        buffer, at = self._buffer, self._at
        stop = at + (head.length or 0)
        if stop > len(buffer):
            return None
        self._head = None
        body = buffer
        if at or isinstance(buffer, bytes):
            body = buffer[at:stop]
            self._at = stop
            if stop == len(buffer):
                self._buffer, self._at = b"", 0  # an idle connection holds nothing
        else:  # it came in pieces: handed over, not copied
            self._buffer = bytes(memoryview(buffer)[stop:])
            del buffer[stop:]
        return body

    def _advance(self, at: int) -> None:
        self._at = at
        if at == len(self._buffer):
            self._buffer, self._at = b"", 0  # an idle connection holds nothing

    def _chunks(self) -> bytearray | None:
        """RFC 9112 section 7.1, with chunk data moved out of the buffer as it comes."""
        buffer, at, body = self._buffer, self._at, self._body
        while True:
            if self._left:
                piece = memoryview(buffer)[at : at + self._left]
                body += piece
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                if body[-2:] != b"\r\n":
                    raise _HttpError(400, "Malformed chunk")
                del body[-2:]
            end = buffer.find(b"\r\n", at, at + _CHUNK_LINE + 2)
            if end < 0:
                if len(buffer) - at > _CHUNK_LINE:
                    raise _HttpError(400, "Chunk size line too long")
                break
            match = re.fullmatch(_CHUNK_SIZE, buffer[at:end])
            if not match:
                raise _HttpError(400, "Malformed chunk size")
            size = int(match[1], 16)
            if not size:
                stop = self._trailer(end + 2)
                if not stop:
                    break
                self._advance(stop)
                self._head, self._body, self._extra = None, bytearray(), 0
                return body
            if len(body) + size > self._limits[3]:
                raise self._too_large()
            self._extra = max(0, self._extra + end - at - 16 - size)
            if self._extra > _CHUNK_EXCESS:
                raise _HttpError(400, "Chunked body with too much framing")
            at = end + 2
            self._left = size + 2
        self._advance(at)
        return None

    def _trailer(self, at: int) -> int:
        """Where the trailer section at `at` ends, 0 if it is not complete."""
        buffer, head_bytes = self._buffer, self._limits[0]
        if buffer.startswith(b"\r\n", at):
            return at + 2
        end = buffer.find(b"\r\n\r\n", at)
        if (len(buffer) if end < 0 else end) - at > head_bytes:
            raise _HttpError(431, f"Trailer section over {head_bytes} bytes")
        if end < 0:
            return 0
        # Checked as if it were a head, then ignored.
        _parse_head(b"A / HTTP/1.0\r\n" + buffer[at:end], self._limits[1], 1)
        return end + 4


@functools.lru_cache(maxsize=1)
def _date_line(now: int) -> bytes:
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(now)
    if year < 2024:  # a board without a clock must not send one (RFC 9110 6.6.1)
        return b""
    name = "MonTueWedThuFriSatSun"[3 * weekday :][:3]  # strftime asks the locale
    month_name = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * month - 3 :][:3]
    text = f"{name}, {day:02} {month_name} {year} {hour:02}:{minute:02}:{second:02}"
    return f"Date: {text} GMT\r\n".encode("ascii")


@functools.lru_cache(maxsize=8)
def _head_start(now: int, status: int, headers: bytes, keep_alive: bool) -> bytes:
    """A head up to its length: of many replies in one second it is the same."""
    options = (_KEEP if keep_alive else _CLOSE)[:-2]
    length = b"" if status == 204 else b"Content-Length: "
    return b"".join((_STATUS_LINES[status], _date_line(now), headers, options, length))


def _response_bytes(
    status: int, headers: bytes, body: bytes, keep_alive: bool, head_only: bool = False
) -> bytes:
    """A whole reply. headers: lines, each with its line end."""
    start = _head_start(int(time.time()), status, headers, keep_alive)
    if status == 204:
        return start + b"\r\n"
    shown = b"" if head_only else body
    return b"%b%d\r\n\r\n%b" % (start, len(body), shown)


def _stream_head(headers: bytes, keep_alive: bool, chunked: bool) -> bytes:
    """The head of an SSE reply: in chunks (_chunk), or for HTTP/1.0 until the close."""
    start = _STATUS_LINES[200] + _date_line(int(time.time()))
    coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    end = _KEEP if keep_alive and chunked else _CLOSE
    return b"".join((start, _SSE_HEAD, headers, coding, end))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _sse_event(data: bytes, id: bytes | None = None, retry: int | None = None) -> bytes:
    """One event. data is one line: JSON, or nothing (a priming event)."""
    event = b"data: %b\n\n" % data
    if retry is not None:
        event = b"retry: %d\n%b" % (retry, event)
    return event if id is None else b"id: %b\n%b" % (id, event)


@functools.lru_cache(maxsize=16)
def _accepts(header: str | None) -> tuple[bool, bool]:
    """Whether an Accept field takes (JSON, an event stream); all by default."""
    if not header:
        return True, True
    taken: dict[str, bool] = {}
    for part in _listed(header):
        media, *parameters = [item.strip() for item in part.split(";")]
        refused = [q for q in parameters if q[:3] == "q=0" and not q[3:].strip(".0")]
        taken[media] = not refused
    every = taken.get("*/*", taken.get("*", False))
    json_taken = taken.get("application/json", taken.get("application/*", every))
    return json_taken, taken.get("text/event-stream", taken.get("text/*", every))


def _decode_mcp_value(value: str) -> str | None:
    """A Mcp-Name or Mcp-Param field, decoded if it is =?base64?...?=; None if bad."""
    if not value.isascii():
        return None
    if not (value.startswith("=?base64?") and value.endswith("?=") and len(value) > 10):
        return value
    with contextlib.suppress(ValueError):
        raw = binascii.a2b_base64(value[9:-2])
        # a2b_base64 skips what it does not know: only the same text back is strict.
        if binascii.b2a_base64(raw, newline=False) == value[9:-2].encode("ascii"):
            return raw.decode()
    return None


@functools.lru_cache(maxsize=16)
def _host_name(host: str) -> tuple[str, int | None] | None:
    """(name in lower case, port) of a Host field; None if it is malformed.

    An IPv6 address comes without its brackets, a name without its last dot.
    """
    match = re.fullmatch(_HOST, host)
    if not match or match[2] == "." or not 0 < int(match[3] or 1) < 65536:
        return None
    return (match[1] or match[2]).lower(), int(match[3]) if match[3] else None


def _origin_host(origin: str) -> tuple[str, int | None] | None:
    """The same for an Origin; None also for "null" and schemes other than http(s)."""
    scheme, _, host = origin.partition("://")
    return _host_name(host) if scheme.lower() in ("http", "https") else None


# ---- 10 HTTP endpoint --------------------------------------------------------------
# Streamable HTTP on asyncio streams: gates first, era by request, then dispatch.
# Nothing is kept for a request that is refused (C10). One connection is one task; it
# waits only when a call waits.

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_JSON = b"Content-Type: application/json\r\n"
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_JSON_TYPE = _Pattern(
    r'application/json[ \t]*(?:;(?![ \t]*charset=(?!"?utf-?8"?[ \t]*(?:;|$))).*)?',
    2,  # re.IGNORECASE
)
_IP = _Pattern(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*")
_ALLOW = b"Allow: POST, GET, DELETE\r\n"
_RETRY = b"Retry-After: 5\r\n"  # seconds
_CORS = (
    b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n"
    b"Access-Control-Expose-Headers: Mcp-Session-Id, MCP-Protocol-Version\r\n"
)
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: POST, GET, DELETE\r\n"
    b"Access-Control-Allow-Headers: %b\r\nAccess-Control-Max-Age: 86400\r\n"
)
_SSE = "text/event-stream"
_EVENT_ID = _Pattern(r"([0-9]{1,9})-([0-9]{1,9})")


class _Stream:
    """One legacy SSE stream of a session: its number, its events, who reads it now.

    Events are kept in a bounded ring so that a client that was cut off can come back
    with Last-Event-ID for what it has not seen (HTL-11), and for nothing else.
    """

    __slots__ = "session number sequence kept exchange ended dropped".split()

    def __init__(self, session: _HttpSession, number: int) -> None:
        self.session = session
        self.number = number
        self.sequence = 0
        self.kept: collections.deque[tuple[int, bytes]] = collections.deque()
        self.exchange: Optional[_Exchange] = None
        self.ended = False
        self.dropped = 0  # the newest event that is kept no more

    def event(self, data: bytes, retry: Optional[int] = None) -> None:
        self.sequence += 1
        event_id = b"%d-%d" % (self.number, self.sequence)
        event = _sse_event(data, event_id, retry)
        if data:
            self.kept.append((self.sequence, event))
            self.session.keep(len(event))
        if self.exchange is not None:
            self.exchange.write_event(event)

    def drop_oldest(self) -> None:
        self.dropped, event = self.kept.popleft()
        self.session.keep(-len(event))

    def close(self) -> None:
        """It was read to its end, is too old to be asked for, or its session ends."""
        self.ended = True
        if self.exchange is not None:
            self.exchange.end_stream()
        while self.kept:
            self.drop_oldest()
        self.session.streams.pop(self.number, None)


class _HttpSession(_Session):
    """A legacy session over HTTP, found by its Mcp-Session-Id."""

    __slots__ = "id endpoint calls streams numbers kept line principal".split()

    def __init__(self, endpoint: _Endpoint, session: _Session, principal: Any) -> None:
        super().__init__(session.revision, session.capabilities, session.client_info)
        self.id = os.urandom(16).hex()
        self.endpoint = endpoint
        self.principal = principal
        self.calls: dict[Any, _Call] = {}
        self.streams: dict[int, _Stream] = {}  # 0 is the GET stream
        self.numbers = 0
        self.kept = 0
        self.line: Any = None
        self.peer = _SessionPeer(endpoint.server, self)

    def open_stream(self) -> _Stream:
        self.numbers += 1
        ended = [s for s in self.streams.values() if s.ended]
        for old in ended[: max(0, len(ended) - 15)]:  # nobody came back for these
            old.close()
        stream = self.streams[self.numbers] = _Stream(self, self.numbers)
        return stream

    def keep(self, size: int) -> None:
        """Bounds what is kept for replay: a session's own oldest events go first."""
        endpoint, limits = self.endpoint, self.endpoint.server._limits
        self.kept += size
        endpoint.kept_bytes += size
        while size > 0 and (
            self.kept > limits.replay_session or endpoint.kept_bytes > limits.replay
        ):
            full = [stream for stream in self.streams.values() if stream.kept]
            min(full, key=lambda stream: stream.number or 1 << 60).drop_oldest()

    def reader(self) -> Optional[_Exchange]:
        """Who reads the GET stream now."""
        stream = self.streams.get(0)
        return None if stream is None else stream.exchange

    def busy(self) -> bool:
        return bool(self.calls) or self.reader() is not None

    def due(self) -> None:
        if self.busy():
            self.endpoint.start(self, self.endpoint.server._limits.session_idle)
        else:
            self.end()

    def end(self) -> None:
        self.endpoint.sessions.pop(self.id, None)
        self.endpoint.stop(self)
        if self.listener is not None:
            self.endpoint.server._hub.remove(self.listener)
        for call in list(self.calls.values()):
            call.cancel()
        for stream in list(self.streams.values()):
            stream.close()


class _SessionPeer(_Peer):
    """Where unasked messages of a legacy session go: its GET stream."""

    __slots__ = ()

    def send(self, data: bytes) -> None:
        session: Any = self.session
        session.endpoint.loop.call(self._event, data)

    def _event(self, data: bytes) -> None:
        session: Any = self.session
        stream = session.streams.get(0)
        if stream is not None:
            stream.event(data)

    def ready(self) -> bool:
        session: Any = self.session
        reader = session.reader()
        return reader is not None and reader.ready()


class _Exchange(_Peer):
    """One HTTP request and its reply: a JSON body, or an SSE stream if needed."""

    __slots__ = (
        "connection endpoint head json sse headers open line stream call loop"
    ).split()

    def __init__(self, connection: _Connection, head: _Head) -> None:
        self.endpoint = connection.endpoint
        self.server, self.loop = self.endpoint.server, self.endpoint.loop
        self.session = self.era = None  # as in the base, whose call would cost
        self.calls = {}
        self.denied = ()
        self.connection: Optional[_Connection] = connection  # None once it has ended
        self.head = head
        self.json = self.sse = True  # what the client takes
        self.headers = b""  # of the reply, beyond those of its kind
        self.open = False  # the SSE head is out
        self.line: Any = None
        self.stream: Optional[_Stream] = None
        self.call: Any = None
        self.principal = connection.principal

    # An attribute of the base, worked out here: a stream may begin after the call.
    @property
    def can_ask(self) -> bool:  # type: ignore[override]
        """A request to a legacy client rides the stream of the call it belongs to."""
        return self.sse and type(self.session) is _HttpSession

    # From any thread

    def send(self, data: bytes) -> None:
        self.endpoint.loop.call(self._event, data)

    def reply(self, body: bytes, code: int) -> None:
        self.endpoint.loop.call(self.finish, body, code)

    def dropped(self) -> None:
        self.endpoint.loop.call(self._no_reply)

    def close_stream(self) -> None:
        self.endpoint.loop.call(self._detach)

    def ready(self) -> bool:
        connection = self.connection
        if connection is None:
            return self.stream is not None
        return bool(connection.owed() < self.server._limits.stream_queue)

    # On the loop's thread

    def open_session(self, session: _Session) -> Optional[_Session]:
        """initialize went well: only now does the session exist."""
        if not self.endpoint.sessions_on:
            return None
        self.session = found = self.endpoint.add_session(session, self.principal)
        self.headers += b"Mcp-Session-Id: %b\r\n" % found.id.encode("ascii")
        return found

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """A whole reply; ends the exchange."""
        connection = self.connection
        if connection is not None:
            headers, head_only = headers + self.headers, self.head.method == "HEAD"
            connection.transport.write(
                _response_bytes(status, headers, body, connection.keep, head_only)
            )
            self.end()

    def refuse(self, error: _HttpError) -> None:
        headers = _ALLOW if error.status == 405 else error.headers
        body = _error_bytes(_NO_ID, INVALID_REQUEST, error.message)
        self.respond(error.status, _JSON + headers, body)

    def finish(self, body: bytes, code: int) -> None:
        """The JSON-RPC reply: as the body, or as the last event of the stream."""
        if self.open or not (self.json or code == FORBIDDEN):
            return self._event(body, last=True)
        status, headers = _STATUS.get(code, 200), _JSON
        if code == FORBIDDEN:
            headers += self.endpoint.auth.challenge("insufficient_scope", self.denied)
        elif self.era == "legacy":
            status = 400 if code in (PARSE_ERROR, INVALID_REQUEST) else 200
        return self.respond(status, headers, body)

    def open_sse(self) -> None:
        """Send the head of the stream; legacy streams can be taken up again."""
        self.open = True
        connection: Any = self.connection
        session, chunked = self.session, self.head.version == "1.1"
        connection.keep = connection.keep and chunked
        head = _stream_head(self.headers, connection.keep, chunked)
        connection.transport.write(head)
        if type(session) is _HttpSession and self.stream is None:
            self.stream = session.open_stream()
            self.stream.exchange = self
            if session.revision >= D:
                self.stream.event(b"", self.server._limits.retry)
        self.endpoint.start(self, self.server._limits.keep_alive)

    def write_event(self, event: bytes) -> None:
        connection = self.connection
        if connection is None:
            return
        transport, limits = connection.transport, self.server._limits
        if connection.owed() > limits.stream_queue * 4:
            transport.abort()  # it reads nothing and is owed replies
            self.gone()
        else:
            transport.write(_chunk(event) if self.head.version == "1.1" else event)

    def _event(self, data: bytes, last: bool = False) -> None:
        if self.stream is None:
            if self.connection is None or not (self.sse or last):
                return
            if not self.open:
                self.open_sse()
        stream = self.stream
        if stream is None:
            self.write_event(_sse_event(data))
        elif not stream.ended:  # else its session is gone, or this comes too late
            stream.event(data)
        if last:
            self._over()

    def _over(self) -> None:
        """No more events will come, whoever reads them now."""
        stream = self.stream
        if stream is not None:
            stream.ended = True
            if stream.exchange is not None:  # this one, or one that came back for it
                stream.exchange.end_stream()
        self.end_stream()

    def _no_reply(self) -> None:
        """The call was cancelled: an empty stream, or the end of the connection."""
        connection = self.connection
        if connection is not None and self.sse and not self.open:
            self.open_sse()
        if self.open:
            self._over()
        elif connection is not None:
            connection.keep = False
            connection.transport.close()
            self.end()

    def _detach(self) -> None:
        """Ends the response while the call goes on; the client polls for the rest."""
        if self.era == "modern" or not self.can_ask:
            return
        if self.connection is not None and not self.open:
            self.open_sse()
        if self.stream is not None and self.stream.exchange is not None:
            self.stream.exchange.end_stream()

    def end_stream(self) -> None:
        """Written is not read: a legacy stream stays for Last-Event-ID, bounded."""
        connection = self.connection
        if connection is not None:
            if self.open and self.head.version == "1.1":
                connection.transport.write(_LAST_CHUNK)
            self.end()

    def end(self) -> None:
        connection, self.connection = self.connection, None
        if self.stream is not None and self.stream.exchange is self:
            self.stream.exchange = None
        if self.line is not None:
            self.endpoint.stop(self)
        if connection is not None and connection.exchange is self:
            connection.bell.ring()

    def gone(self) -> None:
        """The client closed. Modern: that cancels (HTM-17). Legacy: it does not."""
        self.end()
        if self.era == "modern" and self.call is not None:
            self.call.cancel()

    def due(self) -> None:
        """Time passed without a reply: open the stream, then keep it alive."""
        if self.open:
            self.endpoint.start(self, self.server._limits.keep_alive)
        else:
            self.open_sse()
        self.write_event(_SSE_COMMENT)


class _Connection:
    """One TCP connection: reads, parses, hands over, waits where a call waits."""

    __slots__ = (
        "endpoint reader writer transport parser exchange keep line task principal "
        "state armed quiet held continued unsent full eof gone bell reading more raw"
    ).split()

    def __init__(self, endpoint: _Endpoint, reader: Any, writer: Any) -> None:
        limits = endpoint.server._limits
        self.endpoint, self.reader, self.writer = endpoint, reader, writer
        self.transport = writer.transport
        self.raw: Any = None  # the transport below TLS
        bounds = limits.head, limits.headers, limits.target, limits.body
        self.parser = _HttpReader(*bounds)
        self.exchange: Optional[_Exchange] = None  # the one that waits for its reply
        self.keep = True
        self.line: Any = None
        self.task: Any = None
        self.principal = _certificate_principal(writer)
        self.state = ""
        self.armed = ""  # the state that the time-out was armed for
        self.quiet = 0  # idle time-outs since the last request
        self.held = 0  # bytes of a body that is arriving
        self.continued = False
        self.unsent = 0  # bytes, when the write time-out was armed
        self.full = False  # more of them than a reply should add to
        self.eof = self.gone = False  # of input, and of the transport
        self.bell = _Bell(endpoint.loop)  # input, or the end of an exchange
        self.reading = False  # it waits for input
        self.more = False  # the reader has some, which came when it did not

    def expect(self, state: str, seconds: float) -> None:
        """Arms the time-out of a state once: bytes that trickle do not restart it."""
        if self.state != state:
            self.state = self.armed = state
            self.endpoint.start(self, seconds)

    def idle(self) -> None:
        """Arming for each request would cost more than reading it: an armed time-out
        stays, in half lengths, and the third in a row without a request is the end."""
        self.quiet = 0
        if self.armed == "idle" and self.line is not None:
            self.state = "idle"
        else:
            self.expect("idle", self.endpoint.server._limits.idle_timeout / 2)

    def due(self) -> None:
        if self.state == "idle" and self.quiet < 2:
            self.quiet += 1
            seconds = self.endpoint.server._limits.idle_timeout / 2
            return self.endpoint.start(self, seconds)
        if self.state == "write":
            before, self.unsent = self.unsent, self.untaken()
            if self.unsent < before:  # slow is not stuck
                limits = self.endpoint.server._limits
                return self.endpoint.start(self, limits.write_timeout)
            self.transport.abort()
            return None
        if self.state in ("head", "body"):
            self.transport.write(_response_bytes(408, b"", b"", False))
        if self.state:  # else it is at work, and what was armed before means nothing
            self.close()

    def owed(self) -> int:
        """Bytes that wait, over TLS in both layers; a lost transport is not asked."""
        if self.gone:
            return 0
        below: int = 0 if self.raw is None else self.raw.get_write_buffer_size()
        return below + int(self.transport.get_write_buffer_size())

    def untaken(self) -> int:
        return 0 if self.gone else self.owed() + _in_kernel(self.transport)

    def close(self) -> None:
        """When all is written, and over TLS the client has agreed: in write_timeout."""
        if self.gone:
            return self.endpoint.stop(self)
        if not self.transport.is_closing():  # asyncio's TLS breaks at a second close
            self.transport.close()
        if self.owed() or self.raw is not None:
            self.unsent = self.untaken()
            self.expect("write", self.endpoint.server._limits.write_timeout)
        else:
            self.endpoint.stop(self)
        return None

    async def run(self) -> None:
        try:
            await self.serve()
        except OSError:  # reset, timed out, unreachable, not TLS
            pass
        except Exception as error:  # a fault of ours ends this connection only
            text = f"{type(error).__name__} in a connection: {error}"
            self.endpoint.server._log("critical", text)
        finally:
            self.hold(0)
            self.close()

    async def serve(self) -> None:
        """Request after request, until input or connection end."""
        endpoint, fresh = self.endpoint, False
        while self.keep:
            try:
                found = self.next()
            except _HttpError as error:
                return await self._give_up(error)
            if found is None:
                data = b"" if endpoint.closing else await self.input()
                if not data:
                    return None
                self.parser.feed(data)
                data, fresh = None, True  # an idle connection holds nothing
                continue
            if not fresh and self.transport.is_closing():
                return None  # it was written to in vain: no more is done for it
            exchange: Any = _Exchange(self, found[0])
            try:
                if endpoint.auth is not None:
                    await endpoint.admit(exchange)
                if self.gone:  # meanwhile
                    return None
                endpoint.handle(exchange, found[1])
            except _HttpError as error:
                exchange.refuse(error)
            except MCPError as error:
                exchange.json = True
                exchange.finish(*endpoint.server._error(error))
            if exchange.connection is not None:
                self.exchange = exchange
                if self.eof:
                    self.lost(self.transport.is_closing())
                while exchange.connection is not None:
                    await self.bell
                self.exchange = None
            if self.full:
                await self.written()
            found = exchange = None
            fresh = False
        return None

    def next(self) -> Any:
        """(head, body) of the next request, or None as long as it is not complete."""
        parser, limits = self.parser, self.endpoint.server._limits
        head = parser.head()
        if head is None:
            if parser.pending:
                self.expect("head", limits.head_timeout)
            else:
                self.idle()
            return None
        body = parser.body()
        if body is None:
            self.expect("body", limits.body_timeout)
            self.hold(parser.held)
            self._continue(head)
            return None
        if self.held:
            self.hold(0)
        self.state = ""
        self.continued = False
        self.keep = head.keep_alive and not self.endpoint.closing
        return head, body

    def input(self) -> Any:
        """What to await for more input, b"" at its end."""
        if self.more or self.eof:
            return self._read()
        self.reading = True
        return self.bell

    async def _read(self) -> bytes:
        data: bytes = await self.reader.read(65536)
        self.more = len(data) == 65536
        return data

    async def written(self) -> None:
        """Wait until the client has taken most of what it is owed."""
        self.unsent = self.untaken()
        self.expect("write", self.endpoint.server._limits.write_timeout)
        await self.writer.drain()
        self.state = ""

    def hold(self, size: int) -> None:
        """All bodies that arrive share a budget: slow ones could take all memory."""
        endpoint = self.endpoint
        endpoint.held += size - self.held
        self.held = size
        if endpoint.held > endpoint.server._limits.bodies and size > _LARGE:
            raise _HttpError(503, "Too many request bodies at once", _RETRY)

    def _continue(self, head: _Head) -> None:
        """100 Continue, unless the request is refused by its head alone."""
        if head.expects_continue and not self.continued:
            self.continued = True
            self.endpoint.gate(head)
            self.transport.write(_CONTINUE)

    async def _give_up(self, error: _HttpError) -> None:
        """What follows has no meaning, but a close with bytes unread is a reset, and
        the client might lose the reply by it (RFC 9112 section 9.6)."""
        self.keep = False
        self.parser.drop()
        self.hold(0)
        body = error.message.encode("utf-8") + b"\n"
        head = _TEXT + error.headers
        self.transport.write(_response_bytes(error.status, head, body, False))
        self.expect("end", 2.0)
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
            while await self.reader.read(65536):
                pass

    def lost(self, final: bool) -> None:
        """The end of input, or of the connection.

        An end of input alone may be a client that still reads (legacy); a modern one
        says by it that it wants no reply.
        """
        self.eof = True
        self.keep = self.keep and not final
        if self.reading:
            self.reading = False
            self.bell.ring(b"")
        exchange = self.exchange
        if exchange is not None and (
            final or exchange.era == "modern" or exchange.head.method == "GET"
        ):
            self.keep = False  # the next reply would be taken for this one's
            exchange.gone()


@functools.lru_cache(maxsize=1)
def _protocol_class() -> Any:
    """A StreamReaderProtocol that tells of the end, and reads into one buffer: a fresh
    one of 256 KiB for each message costs more than the message (see _reader)."""
    import asyncio

    class Protocol(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
        connection: Any = None
        early, raw = False, None  # input came before it; the transport below TLS

        def __init__(self, endpoint: _Endpoint) -> None:
            self.endpoint, loop = endpoint, endpoint.loop.loop
            self.reader = asyncio.StreamReader(limit=1 << 16, loop=loop)
            super().__init__(self.reader, loop=loop)  # which keeps a weak one only

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            reader, endpoint = self.reader, self.endpoint
            writer = asyncio.StreamWriter(transport, self, reader, endpoint.loop.loop)
            self.connection = _Connection(endpoint, reader, writer)
            self.connection.more, self.connection.raw = self.early, self.raw
            if endpoint.tls is not None:
                transport.set_write_buffer_limits(high=1 << 16)  # as without TLS
            endpoint.connected(self.connection)

        def get_buffer(self, sizehint: int) -> Any:  # asyncio's TLS slices it
            return self.endpoint.view

        def buffer_updated(self, nbytes: int) -> None:
            self.data_received(bytes(self.endpoint.view[:nbytes]))

        def data_received(self, data: bytes) -> None:  # uvloop's TLS calls it itself
            connection = self.connection
            if connection is None:  # TLS may have some before it tells of one
                self.early = True
            elif connection.reading:
                connection.reading = False
                connection.bell.ring(data)
                return
            else:
                connection.more = True
            self.reader.feed_data(data)  # which stops reading when it has too much

        def pause_writing(self) -> None:
            super().pause_writing()
            self.connection.full = True

        def resume_writing(self) -> None:
            super().resume_writing()
            self.connection.full = False

        def eof_received(self) -> bool:
            super().eof_received()
            if self.connection is not None:
                self.connection.lost(final=self.endpoint.tls is not None)
            return self.endpoint.tls is None  # TLS has no half-close

        def connection_lost(self, exc: Any) -> None:
            super().connection_lost(exc)
            if self.connection is not None:
                self.endpoint.disconnected(self.connection)
                self.connection.lost(final=True)

    return Protocol


@functools.lru_cache(maxsize=1)
def _greeter_class() -> Any:
    """A TCP connection before its TLS handshake, which counts as one already."""
    import asyncio

    class Greeter(asyncio.Protocol):
        def __init__(self, endpoint: _Endpoint) -> None:
            self.endpoint, self.loop = endpoint, endpoint.loop.loop
            self.task: Any = None

        def connection_made(self, transport: Any) -> None:
            if self.endpoint.enter(self, transport):
                # Not at once: a transport reads from its next turn on (Python 3.9).
                self.loop.call_soon(self.begin, transport)
            else:
                transport.abort()

        def begin(self, transport: Any) -> None:
            if self.endpoint.closing:
                transport.abort()
            elif not transport.is_closing():
                transport.pause_reading()
                self.task = self.loop.create_task(self.shake(transport))

        async def shake(self, transport: Any) -> None:
            endpoint = self.endpoint
            protocol = _protocol_class()(endpoint)
            protocol.raw = transport
            seconds = endpoint.server._limits.head_timeout
            options: Any = {"server_side": True, "ssl_handshake_timeout": seconds}
            made = None
            try:
                made = await self.loop.start_tls(
                    transport, protocol, endpoint.tls, **options
                )
            except (OSError, asyncio.TimeoutError):  # no TLS, an old one, or silence
                transport.abort()
            finally:
                endpoint.disconnected(self)
            if made is not None and not endpoint.closing:
                protocol.connection_made(made)
            elif made is not None:
                made.abort()

        def connection_lost(self, exc: Any) -> None:
            self.endpoint.disconnected(self)

    return Greeter


_WELL_KNOWN = "/.well-known/oauth-protected-resource"


class _Auth:
    """Who may come in: tokens of our own, or a verifier of access tokens (AUR)."""

    def __init__(self, options: dict[str, Any], path: str) -> None:
        self.file = options["token_file"]
        self.stamp: Any = None
        self.exposed = False  # every user of this machine can read the file
        given = options["token"]
        if given is not None and not given:
            raise ValueError("token= holds no token")
        if given is None and not self.file:
            given = os.environ.get("TINYMCP_TOKEN")
            wrong = "" if given is None else _token_fault(given)
            if wrong:
                raise ValueError(f"TINYMCP_TOKEN: {wrong}")
        self.tokens = _token_table(given)
        self.patience = 10.0  # seconds for a verifier
        self.verifier = options["auth"]
        if self.verifier is not None and not callable(self.verifier):
            raise TypeError("auth= takes a function: token -> Principal or None")
        self.includes = options["scope_includes"]
        self.servers = list(options["auth_servers"])
        self.resource: str = options["resource"] or ""
        self.supported = list(options["scopes_supported"])
        self.documents: tuple[str, ...] = ()
        if self.servers:
            if not self.resource or not self.verifier:
                raise ValueError("auth_servers= needs auth= and resource=, our own URI")
            self.documents = (_WELL_KNOWN, _WELL_KNOWN + path)
        self.reread()

    def reread(self) -> None:
        """The token file, again when it changes: NAME TOKEN [SCOPE ...] a line."""
        if not self.file:
            return
        state = os.stat(self.file)
        self.exposed = os.name == "posix" and bool(state.st_mode & 0o004)
        stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
        if stamp == self.stamp:
            return
        found: dict[str, Principal] = {}
        with open(self.file, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                words = line.split()
                comment = [n for n, word in enumerate(words) if word[0] == "#"]
                words = words[: comment[0]] if comment else words
                wrong = _line_fault(words, found)
                if len(words) == 2 and not line.endswith("\n"):
                    # Half written, or on a full disk: its scopes may be missing.
                    wrong = "a token of all rights on a line that has no end"
                if wrong:
                    raise ValueError(f"{self.file}, line {number}: {wrong}")
                if words:
                    found[words[1]] = Principal(words[0], words[2:] or None)
        self.tokens = _token_table(found)
        self.stamp = stamp

    def document(self) -> bytes:
        """Protected resource metadata (AUR-02, AUR-03)."""
        found: dict[str, Any] = {"resource": self.resource}
        found["authorization_servers"] = self.servers
        if self.supported:
            found["scopes_supported"] = self.supported
        return _encode({**found, "bearer_methods_supported": ["header"]})

    def challenge(self, error: str, scopes: Any) -> bytes:
        """What a client needs to do better (RFC 6750, RFC 9728)."""
        parts = [f'error="{error}"'] if error else []
        if self.servers:
            scheme, _, rest = self.resource.partition("://")
            host, slash, path = rest.partition("/")
            url = f"{scheme}://{host}{_WELL_KNOWN}{slash}{path}"
            parts.append(f'resource_metadata="{url}"')
        if scopes:
            parts.append(f'scope="{" ".join(scopes)}"')
        line = "WWW-Authenticate: Bearer " + ", ".join(parts)
        return line.rstrip().encode("latin-1", "replace") + b"\r\n"

    def deny(self, message: str, error: str = "") -> _HttpError:
        return _HttpError(401, message, self.challenge(error, self.supported))

    async def admit(self, head: _Head) -> Any:
        """The principal of a request, or an _HttpError."""
        if "access_token=" in head.query:
            raise _HttpError(400, "A token belongs in the Authorization header")
        given = head.headers.get("authorization")
        if given is None:
            raise self.deny("A bearer token is needed")
        scheme, _, token = given.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" and token:
            raise self.deny("Authorization must be Bearer")
        if not token or " " in token or "authorization" in head.repeated:
            raise _HttpError(400, "Malformed Authorization")
        self.reread()
        principal = self.known(token)
        if principal is None and self.verifier is not None:
            principal = await self.verified(token)
            if principal is not None and self.resource:
                meant = principal.audience or ()
                meant = [meant] if isinstance(meant, str) else meant
                if self.resource not in meant:  # RFC 8707: for somebody else
                    principal = None
        expires = None if principal is None else principal.expires
        # NaN is later than nothing.
        if principal is None or not (expires is None or expires > time.time()):
            raise self.deny("The token is not valid", "invalid_token")
        return self.expanded(principal)

    async def verified(self, token: str) -> Optional[Principal]:
        """What auth= says of a token. ValueError: it failed, which says nothing."""
        import asyncio

        try:
            found = self.verifier(token)
            if hasattr(found, "__await__"):
                # Else clients without a token could take all connections.
                found = await asyncio.wait_for(found, self.patience)
        except (Exception, SystemExit) as error:
            text = f"auth= raised {type(error).__name__}: {error}"
            raise ValueError(text) from error
        if found is not None and not isinstance(found, Principal):
            raise ValueError(f"auth= returns a Principal or None, not {found!r:.80}")
        if found is None:
            return None
        if type(found.subject) is not str:
            raise ValueError(f"auth=: subject is a str, not {found.subject!r:.80}")
        if type(found.expires) not in (_NULL, *_NUMBER):
            raise ValueError(f"auth=: expires is in seconds, not {found.expires!r:.80}")
        if not isinstance(found.audience or "", (str, list, tuple, set, frozenset)):
            raise ValueError(f"auth=: audience has names, not {found.audience!r:.80}")
        return found

    def known(self, token: str) -> Any:
        """Digests are compared, all of them, in constant time (AUR-11)."""
        import hashlib
        import hmac

        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        same = hmac.compare_digest
        found = [who for kept, who in self.tokens if same(kept, digest)]
        return found[0] if found else None

    def expanded(self, principal: Any) -> Any:
        """Scopes that include others (AUR-09)."""
        if principal.scopes is None or not self.includes:
            return principal
        scopes, todo = set(principal.scopes), list(principal.scopes)
        while todo:
            fresh = set(self.includes.get(todo.pop(), ())) - scopes
            scopes |= fresh
            todo += fresh
        twin = Principal(principal.subject, scopes, principal.audience)
        twin.expires, twin.claims = principal.expires, principal.claims
        return twin


def _line_fault(words: list[str], known: Any) -> str:
    """What is wrong with a line of a token file. One word alone may be a name whose
    token was forgotten: who knows the name would have all rights."""
    if len(words) == 1:
        return "NAME TOKEN [SCOPE ...] is wanted, not one word"
    if words and words[1] in known:
        return f"{words[0]} has the token of {known[words[1]].subject}"
    return _token_fault(words[1]) if words else ""


def _token_fault(token: str) -> str:
    visible = token.isascii() and token.isprintable() and " " not in token
    fits = len(token) >= 16 and visible
    return "" if fits else "a token has 16 ASCII characters or more, and no spaces"


def _token_table(given: Any) -> list[tuple[bytes, Principal]]:
    """(digest, principal) of each token: a text, a list, or a dict to principals."""
    import hashlib

    if isinstance(given, str):
        given = {given: Principal("token", None)}
    elif isinstance(given, (list, tuple)):
        given = {token: Principal(f"token{n}", None) for n, token in enumerate(given)}
    found = []
    for token, who in (given or {}).items():
        wrong = _token_fault(token)
        if wrong:
            raise ValueError(f"{wrong}: that of {getattr(who, 'subject', who)!r}")
        who = who if isinstance(who, Principal) else Principal(str(who), None)
        found.append((hashlib.sha256(token.encode("ascii")).digest(), who))
    return found


def _tls(options: dict[str, Any]) -> Any:
    """An SSL context; ssl is imported only here."""
    if not options["cert"]:
        if options["key"] or options["client_ca"]:
            raise ValueError("--key and --client-ca go with --cert")
        return None
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    cert, key, ca = options["cert"], options["key"], options["client_ca"]
    wrong = f"--cert {cert}, --key {key or 'not given'}: no certificate and its key"
    try:
        context.load_cert_chain(cert, key)
        if ca:
            wrong = f"--client-ca {ca} holds no certificates"
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # that does not name the file
        raise ValueError(f"{wrong} ({error.strerror})") from None
    return context


def _certificate_principal(writer: Any) -> Any:
    """The client certificate's common name as the principal, or its whole subject: two
    without a name are two."""
    certificate = writer.get_extra_info("peercert")
    if not certificate:
        return None
    names = {key: value for part in certificate["subject"] for key, value in part}
    name = names.get("commonName") or ",".join(f"{k}={v}" for k, v in names.items())
    return Principal(f"cert:{name or certificate['serialNumber']}", None)


def _descriptors(wanted: int) -> int:
    """Of so many connections those that the process has descriptors for."""
    try:
        import resource
    except ImportError:  # no POSIX
        return wanted
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    endless = limit == resource.RLIM_INFINITY
    return wanted if endless else max(1, min(wanted, limit - min(64, limit // 4)))


class _Endpoint:
    """The MCP endpoint of a server: gates, eras, sessions, streams, time-outs."""

    def __init__(self, server: _Core, loop: _Loop, options: dict[str, Any]) -> None:
        self.server = server
        self.loop = loop
        path = "/" + options["path"].strip("/")
        self.paths = (path, path.rstrip("/") + "/")
        auth = _Auth(options, path)
        guarded = auth.tokens or auth.file or auth.verifier
        auth.patience = server._limits.head_timeout
        self.auth: Any = auth if guarded else None
        if auth.exposed:
            text = f"everybody on this machine can read {auth.file}: chmod 600 it"
            server._log("warning", text)
        self.origins = frozenset(options["allow_origins"])
        hosts = [(_host_name(h) or (h.lower(),))[0] for h in options["allow_hosts"]]
        self.names = {*_LOOPBACK, *hosts}
        self.loopback = _is_loopback(options["host"])
        self.json_only: bool = options["json_response"]
        self.sessions_on: bool = not options["stateless_http"]
        self.sessions: dict[str, _HttpSession] = {}
        self.connections: dict[_Connection, str] = {}  # with the peer's address
        self.greeted: dict[Any, str] = {}  # those that are in their TLS handshake
        self.addresses: dict[str, int] = {}  # how many connections each has
        self.tls = _tls(options)
        self.deadlines = _Deadlines()
        self.most = _descriptors(server._limits.connections)
        self.kept_bytes = 0
        self.held = 0  # bytes of bodies that are arriving
        self.view = memoryview(bytearray(65536))  # each connection reads in its turn
        self.closing = False
        self.forms: dict[int, Any] = {}  # by the id of a head's headers
        self.open_paths = ("/healthz", *auth.documents)
        loop.extra.append(self.tick)

    # Time

    def start(self, key: Any, seconds: float) -> None:
        """key.due() is called then; a key has one time-out at a time."""
        self.stop(key)
        key.line = line = self.deadlines.start(key, seconds)
        self.server._come(line[key])

    def stop(self, key: Any) -> None:
        if key.line is not None:
            key.line.pop(key, None)
            key.line = None

    def tick(self, now: float) -> Optional[float]:
        for key in self.deadlines.due(now):
            if key.line is not None:  # nothing has ended it meanwhile
                self.stop(key)
                self.end(key)
        return self.deadlines.next_due()

    def end(self, key: Any) -> None:
        try:
            key.due()
        except Exception as error:  # a fault of ours: the other time-outs go on
            text = f"{type(error).__name__} at a time-out: {error}"
            self.server._log("critical", text)

    # Connections

    def enter(self, key: Any, transport: Any) -> bool:
        """Count a connection; False if there are too many, in all or of its address."""
        address = (transport.get_extra_info("peername") or [""])[0]
        count = self.addresses.get(address, 0)
        open_now = len(self.connections) + len(self.greeted)
        most = self.server._limits.connections_per_address
        if open_now >= self.most or count >= most or self.closing:
            return False
        table: Any = self.connections if type(key) is _Connection else self.greeted
        table[key] = address
        self.addresses[address] = count + 1
        return True

    def connected(self, connection: _Connection) -> None:
        if self.enter(connection, connection.transport):
            connection.task = self.loop.loop.create_task(connection.run())
        else:
            connection.transport.write(_response_bytes(503, _RETRY, b"", False))
            connection.transport.close()

    def disconnected(self, key: Any) -> None:
        address = self.connections.pop(key, self.greeted.pop(key, None))
        if type(key) is _Connection:
            key.gone = True
            self.stop(key)
        if address is not None:
            self.addresses[address] -= 1
            if not self.addresses[address]:
                del self.addresses[address]

    # Gates

    def gate(self, head: _Head) -> bytes:
        """Host, Origin and path (SEC-01, SEC-02); returns CORS headers."""
        host = head.headers.get("host")
        known = None if host is None else _host_name(host)
        if known is not None:
            name, lan = known[0], not self.loopback
            if not (self.names & {name, "*"} or (lan and _IP.fullmatch(name))):
                raise _HttpError(
                    421,
                    f"Host {name} is not served here; allow it with --allow-host {name}"
                    " (or allow_hosts=)",
                )
        elif host is not None:
            raise _HttpError(400, "Malformed Host")
        cors = self._origin(head.headers.get("origin"), known)
        if head.path not in self.paths:
            raise _HttpError(404, f"Not found; the MCP endpoint is {self.paths[0]}")
        return cors

    def _origin(self, origin: Optional[str], host: Any) -> bytes:
        if origin is None:
            return b""
        if origin in self.origins or "*" in self.origins:
            return _CORS % origin.encode("latin-1")
        came = _origin_host(origin)
        if came is not None:
            same = host and host in (came, (came[0], None))
            if same or (self.loopback and came[0] in _LOOPBACK):
                return b""
        raise _HttpError(403, "Foreign Origin; allow it with --allow-origin ORIGIN")

    # Requests

    async def admit(self, exchange: _Exchange) -> None:
        """Every request is checked (AUR-10), but for what anybody may know."""
        head = exchange.head
        if head.method == "OPTIONS" or self.is_open(head):
            return
        exchange.headers = self.gate(head)
        try:
            exchange.principal = await self.auth.admit(head)
        except (OSError, ValueError) as error:  # of the token file or a verifier
            self.server._log("error", f"Tokens cannot be checked: {error}")
            raise _HttpError(503, "Tokens cannot be checked now") from None

    def is_open(self, head: _Head) -> bool:
        return head.method in ("GET", "HEAD") and head.path in self.open_paths

    def handle(self, exchange: _Exchange, body: Any) -> None:
        head = exchange.head
        if head.method == "POST":
            # Heads come again and again: what they decide by themselves is kept.
            forms = self.forms.get(id(head.headers)) or self._forms(exchange)
            _, exchange.headers, exchange.json, exchange.sse = forms
            return self.post(exchange, body)
        if self.is_open(head):
            health = head.path == "/healthz"
            body = b'{"status":"ok"}' if health else self.auth.document()
            return exchange.respond(200, _JSON, body)
        exchange.headers = self.gate(head)
        if head.method == "OPTIONS":
            return self.options(exchange)
        if head.method not in ("GET", "DELETE"):
            raise _HttpError(405, "Use POST; GET and DELETE are for legacy sessions")
        version = head.headers.get("mcp-protocol-version", "")
        session_id = head.headers.get("mcp-session-id")
        if version >= E or not self.sessions_on:
            raise _HttpError(405, "GET and DELETE are for sessions before 2026-07-28")
        if session_id is None:  # 405 makes a client go on without a GET stream
            status = 405 if head.method == "GET" else 400
            raise _HttpError(status, "No page, MCP: initialize, for an Mcp-Session-Id")
        exchange.era = "legacy"
        session = self.session(session_id, exchange.principal)
        if head.method == "GET":
            return self.get(exchange, session)
        session.end()
        return exchange.respond(204, b"", b"")

    def options(self, exchange: _Exchange) -> None:
        headers = exchange.head.headers
        if not exchange.headers or "access-control-request-method" not in headers:
            raise _HttpError(405, "No cross-origin access; see --allow-origin")
        asked = headers.get("access-control-request-headers", "content-type")
        exchange.respond(204, _PREFLIGHT % asked.encode("latin-1"), b"")

    def _forms(self, exchange: _Exchange) -> Any:
        """(headers, those of the reply, and whether it can be JSON or a stream)."""
        headers = exchange.head.headers
        exchange.headers = self.gate(exchange.head)
        if not _JSON_TYPE.fullmatch(headers.get("content-type", "")):
            raise _HttpError(415, "Content-Type must be application/json, UTF-8")
        json, sse = _accepts(headers.get("accept"))
        if not json and not sse:
            raise _HttpError(406, f"Accept must allow application/json or {_SSE}")
        if len(self.forms) >= 64:
            self.forms.clear()
        # It holds the headers, so nothing else can have their id.
        found = headers, exchange.headers, json, sse and not (json and self.json_only)
        self.forms[id(headers)] = found
        return found

    def post(self, exchange: _Exchange, body: Any) -> None:
        limits = self.server._limits
        message = _decode(body, limits.depth, limits.digits)
        version = exchange.head.headers.get("mcp-protocol-version", "")
        params = message.get("params") if type(message) is dict else None
        meta = params.get("_meta") if type(params) is dict else None
        named = type(meta) is dict and _VERSION_KEY in meta
        try:
            if self.server._eras[1] and (named or version >= E):
                exchange.era = "modern"
                wrong = self.header_fault(exchange.head, message, meta)
                if wrong:
                    raise MCPError(HEADER_MISMATCH, f"Header mismatch: {wrong}")
            else:
                exchange.era = "legacy"
                self.find_session(exchange, message, version)
        except MCPError as error:
            error.id = _readable_id(message)
            raise
        self.dispatch(exchange, message, len(body))

    def dispatch(self, exchange: _Exchange, message: Any, size: int) -> None:
        found = self.server._dispatch(message, exchange, size)
        if type(found) is tuple:
            return exchange.finish(*found)
        if found is not None:
            exchange.call = found
            if getattr(found, "listener", None) is not None:
                self.check_listen(exchange)
            elif exchange.open:  # a first step has told something
                pass
            elif not exchange.json:
                exchange.open_sse()
            elif exchange.sse:
                self.start(exchange, self.server._limits.json_or_sse)
            # `found` is Any: a call, a reply, or nothing.
            return found.launch()  # type: ignore[no-any-return]
        # An inline handler may have asked its client: then the reply comes later.
        request = type(message) is dict and "method" in message
        if not (request and message.get("id") in exchange.calls):
            exchange.respond(202, b"", b"")
        return None

    def check_listen(self, exchange: _Exchange) -> None:
        if not exchange.sse:
            raise _HttpError(406, f"subscriptions/listen needs Accept: {_SSE}")
        waiting = [c.exchange for c in self.connections if c.exchange is not None]
        if sum(one.open for one in waiting) >= self.server._limits.streams:
            raise _HttpError(503, "Too many open streams", _RETRY)

    def header_fault(self, head: _Head, message: Any, meta: Any) -> Optional[str]:
        """Headers mirror the body, or the request is refused (HTM-05 to HTM-13)."""
        if type(message) is not dict or "method" not in message:
            raise MCPError(INVALID_REQUEST, "One request or notification is wanted")
        if "id" not in message or type(meta) is not dict:
            return None  # a notification; or dispatch says what is missing
        headers, method, params = head.headers, message["method"], message["params"]
        version = meta.get(_VERSION_KEY)
        if type(version) is not str:
            return None  # dispatch says what is missing
        if headers.get("mcp-protocol-version") != version:
            return "MCP-Protocol-Version differs from _meta, or is missing"
        if version not in _MODERN or type(meta.get(_CAPABILITIES_KEY)) is not dict:
            return None  # dispatch answers
        if headers.get("mcp-method") != method:
            return "Mcp-Method differs from the body, or is missing"
        member = _NAMED.get(method)
        if member is None:
            return None
        value = headers.get("mcp-name")
        if value is not None and (value[:2] == "=?" or not value.isascii()):
            value = _decode_mcp_value(value)
        if value is None or "mcp-name" in head.repeated or value != params.get(member):
            return f"Mcp-Name differs from params.{member}, or is missing"
        if method == "tools/call":
            tool = self.server._registry.tool.items.get(value)
            arguments = params.get("arguments") or {}
            if tool is not None and tool.headers and type(arguments) is dict:
                return _param_fault(head, tool.headers, arguments)
        return None

    # Legacy sessions

    def find_session(self, exchange: _Exchange, message: Any, version: str) -> None:
        if version and version not in _LEGACY:
            known = ", ".join(_LEGACY + _MODERN)
            text = f"Unsupported MCP-Protocol-Version; use one of {known}"
            raise MCPError(INVALID_REQUEST, text)
        if type(message) is dict and message.get("method") == "initialize":
            return
        if not self.sessions_on:
            session = _Session(version or B, {}, {})
            session.peer = exchange
            exchange.session = session
            return
        session_id = exchange.head.headers.get("mcp-session-id")
        if session_id is None:
            text = "Mcp-Session-Id is missing: send initialize first"
            raise MCPError(INVALID_REQUEST, text)
        exchange.session = found = self.session(session_id, exchange.principal)
        exchange.calls = found.calls

    def session(self, session_id: str, principal: Any) -> _HttpSession:
        session = self.sessions.get(session_id)
        if session is None or session.principal != _subject(principal):
            raise _HttpError(404, "No such session: send initialize again")
        self.sessions[session_id] = self.sessions.pop(session_id)  # by last use
        self.start(session, self.server._limits.session_idle)
        return session

    def add_session(self, session: _Session, principal: Any) -> _HttpSession:
        if len(self.sessions) >= self.server._limits.sessions:
            quiet = (one for one in self.sessions.values() if not one.busy())
            oldest = next(quiet, None)
            if oldest is None:
                raise _HttpError(503, "Too many sessions in use", _RETRY)
            oldest.end()
        found = _HttpSession(self, session, _subject(principal))
        self.sessions[found.id] = found
        self.start(found, self.server._limits.session_idle)
        return found

    def get(self, exchange: _Exchange, session: _HttpSession) -> None:
        """A legacy client listens, or comes back for what it missed."""
        headers = exchange.head.headers
        if not _accepts(headers.get("accept"))[1]:
            raise _HttpError(406, f"Accept must allow {_SSE}")
        last = headers.get("last-event-id")
        stream = session.streams.get(0)
        if last is not None:
            match = _EVENT_ID.fullmatch(last)
            if match is None:
                raise _HttpError(400, "Malformed Last-Event-ID")
            stream, after = session.streams.get(int(match[1])), int(match[2])
            if stream is None or not stream.dropped <= after <= stream.sequence:
                raise _HttpError(404, "These events are gone: send initialize again")
        else:
            if stream is None:
                stream = session.streams[0] = _Stream(session, 0)
            after = stream.sequence
        if stream.ended and after >= stream.sequence:
            # A cancelled call ends without a reply: clients that were told 200 would
            # come back for it once a second, for ever. 405 ends that.
            stream.close()
            raise _HttpError(405, "This stream has ended, and you have all of it")
        if stream.exchange is not None:
            stream.exchange.end_stream()  # the newer one is the one that is alive
        else:
            self.check_listen(exchange)
        exchange.session, exchange.stream, stream.exchange = session, stream, exchange
        exchange.open_sse()
        exchange.write_event(_SSE_COMMENT)
        for sequence, event in list(stream.kept):
            if sequence > after:
                exchange.write_event(event)
        if stream.ended:
            exchange.end_stream()
        self.server._wake()

    # End

    async def close(self) -> None:
        """No new requests; streams end, calls get their grace, then all is closed."""
        import asyncio

        self.closing = True
        _finish(self.server)
        for greeter in list(self.greeted):
            if greeter.task is not None:
                greeter.task.cancel()
        for connection in list(self.connections):
            if connection.state in ("idle", "head"):
                connection.close()
        for session in list(self.sessions.values()):
            reader = session.reader()
            if reader is not None:
                reader.end_stream()
        await self.loop.drain(self.server._limits.grace)
        self.refuse()
        for connection in list(self.connections):
            connection.close()
        end = time.monotonic() + 1.0  # for what is still to be written
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # an abort takes a turn of the loop

    def refuse(self) -> None:
        """No handler begins any more."""

        def handle(exchange: _Exchange, body: Any) -> None:
            raise _HttpError(503, "The server has ended")

        self.handle = handle  # type: ignore[method-assign]  # no check for each request
        for session in list(self.sessions.values()):
            session.end()

    def over(self) -> None:
        """Also where close() was cut short."""
        self.refuse()
        for connection in list(self.connections):
            connection.lost(final=True)
            connection.transport.abort()
        self.loop.extra.remove(self.tick)


def _subject(principal: Any) -> Optional[str]:
    return None if principal is None else principal.subject


async def _stop_listening(servers: list[Any]) -> None:
    """A server that is closed between an accept and the step that makes it a connection
    leaves a transport that fails in its __del__ (Python 3.13)."""
    import asyncio

    loop = asyncio.get_running_loop()
    for sock in [sock for server in servers for sock in server.sockets]:
        with contextlib.suppress(NotImplementedError, OSError, RuntimeError):
            loop.remove_reader(sock.fileno())
    try:
        for _ in range(3):
            await asyncio.sleep(0)
    finally:
        for server in servers:
            server.close()


def _is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")


def _param_fault(head: _Head, wanted: Any, arguments: dict[str, Any]) -> Optional[str]:
    """Compare Mcp-Param-* with the arguments that they mirror (HTM-13)."""
    headers = head.headers
    for name, path in wanted:
        if name in head.repeated:
            return f"{name} is there more than once"
        value: Any = arguments
        for step in path:
            value = value.get(step) if type(value) is dict else None
        given = headers.get(name)
        if value is None or type(value) not in (str, bool, int, float):
            if given is not None and value is None:
                return f"{name} is set, but params.arguments has no such value"
            continue
        text = None if given is None else _decode_mcp_value(given)
        if text is None or not _same_value(text, value):
            return f"{name} differs from params.arguments, or is missing"
    return None


def _same_value(text: str, value: Any) -> bool:
    if type(value) is bool:
        return text == ("true" if value else "false")
    if type(value) is str:
        return text == value
    if not re.fullmatch(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?", text):
        return False
    return bool(int(text) == value if "." not in text else float(text) == value)


# ---- 11 Server, run, main ----------------------------------------------------------
# What users type.

# Options of HTTP, for run() and serve_http(), and their defaults.
_HTTP = {
    "host": "127.0.0.1",
    "port": 8000,
    "path": "/mcp",
    "allow_hosts": (),
    "allow_origins": (),
    "insecure": False,
    "json_response": False,
    "stateless_http": False,
    "token": None,
    "token_file": None,
    "auth": None,
    "auth_servers": (),
    "resource": None,
    "scopes_supported": (),
    "scope_includes": {},
    "cert": None,
    "key": None,
    "client_ca": None,
    "reuse_port": False,
}
_FOR_RUN = '; options of HTTP go to run("http", host=, port=, ...)'
# Options that every kind of handler takes; the list shows the first four.
_HOW = frozenset("title description icons meta inline lock timeout scopes".split())
_INFO = ("title", "description", "website_url", "icons")
_GUARDS = ("insecure", "token", "token_file", "auth", "client_ca")


def _check_info(info: dict[str, Any]) -> None:
    """What Server takes beside its own options goes to the clients as serverInfo."""
    unknown = info.keys() - set(_INFO)
    if unknown:
        known = ", ".join([*(Server.__init__.__kwdefaults__ or ()), *_INFO])
        text = f"Server has no option {', '.join(sorted(unknown))}; there are {known}"
        raise TypeError(text + (_FOR_RUN if unknown & _HTTP.keys() else ""))


class Server(_Core):
    """An MCP server: register functions, then run() it.

    name, version, title, description, instructions, website_url, icons: what clients
    are told. lifespan: function(server) -> sync or async context manager, its value is
    ctx.lifespan. read_only: offer only tools with readOnlyHint. log: function(level,
    text) instead of lines on stderr; log_level bounds both. limits: a Limits.
    page_size: entries a list page. ttl_ms, cache_scope: cache hints of 2026-07-28.
    state_keys: secrets shared by a fleet, the first seals, all verify. legacy, modern:
    which eras to serve. json="orjson": use orjson where it answers the same. audit: a
    JSON line on stderr for each call; audit_arguments: with argument values.
    """

    def __init__(
        self,
        name: str = "tinymcp",
        version: str = "0.0.0",
        *,
        instructions: Optional[str] = None,
        lifespan: Any = None,
        read_only: bool = False,
        log: Optional[Callable[[str, str], None]] = None,
        log_level: str = "info",
        limits: Optional[Limits] = None,
        page_size: int = 100,
        ttl_ms: int = 0,
        cache_scope: str = "private",
        state_keys: Iterable[bytes] = (),
        legacy: bool = True,
        modern: bool = True,
        json: Optional[str] = None,
        experimental: Optional[dict[str, Any]] = None,
        audit: bool = False,
        audit_arguments: bool = False,
        **info: Any,
    ) -> None:
        super().__init__(limits or Limits(), state_keys)
        if json not in (None, "json", "orjson"):
            raise ValueError(f"json= takes 'orjson' or nothing, not {json!r}")
        if json == "orjson":
            _use_orjson()
        if lifespan is not None and not callable(lifespan):
            raise TypeError("lifespan= takes a function: server -> a context manager")
        if cache_scope not in ("private", "public") or ttl_ms < 0 or page_size < 1:
            raise ValueError("cache_scope is private or public, ttl_ms >= 0, pages > 0")
        _check_info(info)
        self.name, self.version = name, version
        info = {"name": name, "version": version, **info}
        self._info = {_camel(k): _wire(v) for k, v in info.items() if v is not None}
        self._instructions = instructions
        self._experimental, self._lifespan = experimental, lifespan
        self._audit = audit_arguments if audit or audit_arguments else None
        self._write_audit = self._to_stderr
        self._cache_hints, self._page_size = (ttl_ms, cache_scope), page_size
        self._eras, self._read_only = (legacy, modern), read_only
        self._mode: Optional[str] = None  # the engine that runs: "blocking" or "loop"
        self._users = 0  # transports that share the lifespan
        self._exit: Any = None
        self.warnings: list[str] = []  # what `check` prints
        self._level = _rank(log_level)
        self._write_log = log or self._log_line
        self._log_outlet: Any = None

    def _log(self, level: str, text: str) -> None:
        if _LEVELS[level] >= self._level:
            with contextlib.suppress(Exception):  # log= is user code: no reply is lost
                self._write_log(level, text)

    def _log_line(self, level: str, text: str) -> None:
        """One line on stderr; dropped rather than waited for (G09)."""
        self._to_stderr(f"tinymcp {level}: {text}\n".encode("utf-8", "replace"))

    def _to_stderr(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # there may be no stderr
            if self._log_outlet is None:
                self._log_outlet = _Outlet(2, 1 << 20, drop=True)
            self._log_outlet.write(line)

    # Registration

    def tool(self, function: Any = None, **options: Any) -> Any:
        """Offer a function as a tool; with or without parentheses.

        name, title, description (the docstring), annotations, icons, meta,
        input_schema (instead of the type hints), output_schema, structured_output
        (None: by the return annotation), inline (on the thread of run(): must never
        wait), lock (a lane: one call at a time), rate (calls, seconds), timeout (s).
        """
        return _decorator(self.add_tool, function, options)

    def resource(self, uri: str, **options: Any) -> Any:
        """Offer a function as the resource `uri`, or as a template if it has {names}.

        name, title, description, mime_type, annotations, icons, meta, size, inline,
        lock, timeout, min_interval (s between two announcements), ttl_ms, cache_scope.
        """
        if not isinstance(uri, str):
            raise DefinitionError("resource() takes a URI first")
        return _decorator(functools.partial(self.add_resource, uri), None, options)

    def prompt(self, function: Any = None, **options: Any) -> Any:
        """Offer a function as a prompt: name, title, description, icons, meta, inline,
        timeout."""
        return _decorator(self.add_prompt, function, options)

    def completion(self, function: Any = None) -> Any:
        """Offer completions: function(ref, argument, context) -> Completion or list."""
        if function is None:
            return self.completion
        signature = _Signature(function, "completion")
        names = [parameter.name for parameter in signature.parameters]
        if not 2 <= len(names) <= 3:
            raise DefinitionError("completion takes (ref, argument, context)")
        self._completer = self._handler(
            _Handler, "completion", signature, function, {}, properties=names
        )
        return function

    def add_tool(
        self,
        function: Any,
        *,
        name: Optional[str] = None,
        annotations: Any = None,
        input_schema: Any = None,
        output_schema: Any = None,
        structured_output: Optional[bool] = None,
        rate: Optional[tuple[float, float]] = None,
        **how: Any,
    ) -> None:
        """As the decorator tool(). DefinitionError says what cannot be offered."""
        name = name or _name_of(function, "tool")
        where = f"tool {name!r}"
        signature = _Signature(function, where, free=input_schema is not None)
        schema, bind = input_schema, None
        if schema is None:
            schema, bind = _arguments(signature, where)
        elif not isinstance(schema, dict) or schema.get("type") != "object":
            raise DefinitionError(f'{where}: input_schema needs "type": "object"')
        notes = _hints(annotations, where)
        if self._read_only and (notes or {}).get("readOnlyHint") is not True:
            self._warn(f"{where}: not offered: read_only=True and no readOnlyHint")
            return
        if not 0 < len(name) <= 128 or set(name) - _NAME:
            self._warn(f"{where}: names are 1-128 of A-Z a-z 0-9 _ - .")
        output, wrap = output_schema, False
        if structured_output is False:
            output = None
        elif output is None:
            output, wrap = _output(signature.returns, where, signature.scope)
        else:
            wrap = output.get("type") != "object"
        if structured_output and output is None:
            raise DefinitionError(f"{where}: structured_output needs a return type")
        fields = self._fields(signature, how, name=name)
        fields.update(inputSchema=schema, outputSchema=output, annotations=notes)
        if not fields["description"]:
            self._warn(f"{where}: no description; models choose by it")
        tool = self._handler(_Tool, "tool", signature, function, fields, bind, **how)
        tool.check = _compile(schema, where, self._warn, self._limits)
        tool.output = output and _compile(
            output, f"{where}, result", self._warn, self._limits, "property"
        )
        tool.wrap, tool.headers = wrap, _x_headers(schema, where)
        tool.rate = _Bucket(_rate(rate, where)) if rate else None
        self._offer(tool, "tool")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)

    def _fields(self, signature: Any, how: dict[str, Any], **fields: Any) -> Any:
        """The members that all list entries have; takes them out of the options."""
        text = how.pop("description", None)
        text = (signature.description if text is None else text) or None
        fields.update(description=text, _meta=how.pop("meta", None))
        fields.update(title=how.pop("title", None), icons=how.pop("icons", None))
        return fields

    def _handler(
        self,
        record: Any,
        kind: str,
        signature: Any,
        function: Any,
        fields: dict[str, Any],
        bind: Any = None,
        **how: Any,
    ) -> Any:
        unknown = how.keys() - _HOW - {"properties", "check"}  # ours
        keys = ("uri", "uriTemplate", "name")
        name = next((fields[key] for key in keys if key in fields), kind)
        if unknown:
            text = self._no_option(kind.replace("template", "resource"), unknown)
            raise DefinitionError(f"{kind} {name!r}: no option {text}")
        scopes, timeout = how.get("scopes", ()), how.get("timeout")
        if isinstance(scopes, str) or {*map(type, scopes)} - {str}:
            raise DefinitionError(f"{kind} {name!r}: scopes= takes names: ('write',)")
        if timeout is not None and (type(timeout) not in _NUMBER or not timeout > 0):
            raise DefinitionError(f"{kind} {name!r}: timeout= takes seconds above 0")
        if signature.is_async and self._mode == "blocking":
            raise DefinitionError(
                f"{kind} {name!r} is async, and the server runs without a loop: start "
                "it with run(loop=True)"
            )
        how.update(context=signature.context, is_async=signature.is_async, bind=bind)
        return record(kind, name, fields, function, **how)

    def _no_option(self, kind: str, unknown: set[str]) -> str:
        given = "".join(unknown).replace("_", "").lower()
        for hint in map(_camel, ToolAnnotations._fields[1:]):
            if kind == "tool" and hint[:-4].lower() in given:
                return f'{", ".join(unknown)}: say annotations={{"{hint}": True}}'
        known = {*_HOW, *getattr(self, f"add_{kind}").__kwdefaults__}
        return f"{', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"

    def _offer(self, record: Any, kind: str) -> None:
        self._registry.put(record)
        self._changed(kind)

    def add_resource(
        self,
        uri: str,
        function: Any,
        *,
        name: Optional[str] = None,
        mime_type: Optional[str] = None,
        annotations: Any = None,
        size: Optional[int] = None,
        min_interval: float = 0.0,
        ttl_ms: Optional[int] = None,
        cache_scope: Optional[str] = None,
        **how: Any,
    ) -> None:
        """As the decorator resource()."""
        where = f"resource {uri!r}"
        scheme, _, rest = uri.partition(":")
        letter = scheme[:1] in _LETTERS and scheme != ""
        if not letter or set(scheme) - _SCHEME or not rest[:1].strip():
            raise DefinitionError(f"{where}: a URI has a scheme, like sensor://name")
        signature = _Signature(function, where)
        name = name or _name_of(function, "resource")
        fields = self._fields(signature, how, name=name, mimeType=mime_type)
        fields["annotations"] = _wire(annotations)
        schema, bind = _arguments(signature, where)
        how["properties"] = schema["properties"]
        kind, match = "resource", None
        if "{" not in uri:
            fields.update(uri=uri, size=size)
            if schema["properties"]:
                raise DefinitionError(f"{where}: parameters need a {{name}} in the URI")
        else:
            kind, fields["uriTemplate"] = "template", uri
            names, match = _template(uri, where)
            if set(names) != schema["properties"].keys():
                text = f"the URI has {names}, the function {[*schema['properties']]}"
                raise DefinitionError(f"{where}: {text}: they must be the same names")
            how["check"] = _compile(schema, where, self._warn, self._limits)
        record = self._handler(
            _Resource, kind, signature, function, fields, bind, **how
        )
        hints = zip((ttl_ms, cache_scope), self._cache_hints)
        record.hints = tuple(own if own is not None else all for own, all in hints)
        record.match, record.interval = match, float(min_interval)
        self._offer(record, "resource")

    def add_prompt(
        self, function: Any, *, name: Optional[str] = None, **how: Any
    ) -> None:
        """As the decorator prompt()."""
        name = name or _name_of(function, "prompt")
        where = f"prompt {name!r}"
        signature = _Signature(function, where)
        schema, bind = _arguments(signature, where)
        how["properties"] = schema["properties"]
        how["check"] = _compile(schema, where, self._warn, self._limits)
        arguments = []
        for key, field in schema["properties"].items():
            argument = {"name": key, "required": key in schema.get("required", ())}
            if "description" in field:
                argument["description"] = field["description"]
            arguments.append(argument)
        fields = self._fields(signature, how, name=name, arguments=arguments or None)
        prompt = self._handler(
            _Handler, "prompt", signature, function, fields, bind, **how
        )
        self._offer(prompt, "prompt")

    def remove_tool(self, name: str) -> None:
        """KeyError if there is none."""
        self._registry.drop("tool", name)
        self._changed("tool")

    def remove_resource(self, uri: str) -> None:
        """A resource or a template, by its URI."""
        self._registry.drop("template" if "{" in uri else "resource", uri)
        self._changed("resource")

    def remove_prompt(self, name: str) -> None:
        self._registry.drop("prompt", name)
        self._changed("prompt")

    def mount(self, other: Server, prefix: str = "") -> None:
        """Offer what `other` offers now; names of tools, prompts and lanes get the
        prefix, URIs stay. Its lifespan is not entered here."""
        import copy

        if not isinstance(other, Server) or other is self:
            raise TypeError("mount takes another Server")
        for kind in _Registry.kinds:
            for record in getattr(other._registry, kind).items.values():
                twin = copy.copy(record)
                twin.encoded = {}
                twin.lane = record.lane and prefix + record.lane
                if kind in ("tool", "prompt"):
                    twin.name = prefix + record.name
                    twin.fields = {**record.fields, "name": twin.name}
                self._offer(twin, "resource" if kind == "template" else kind)

    # Changes

    def notify_updated(self, uri: str) -> None:
        """The content of a resource has changed; from any thread."""
        record = self._registry.find_resource(uri)[0]
        self._changed("updated", uri, record.interval if record else 0.0)

    def notify_tools_changed(self) -> None:
        """Announce the list; adding and removing do it by themselves."""
        self._changed("tool")

    def notify_resources_changed(self) -> None:
        self._changed("resource")

    def notify_prompts_changed(self) -> None:
        self._changed("prompt")

    def on_idle(self, seconds: float, function: Callable[[], Any]) -> None:
        """Call function when no message came for so long (a client that went silent);
        once, until the next message."""
        if not callable(function):
            raise TypeError("on_idle takes seconds and a function")
        self._idle.append([float(seconds), function, False])
        self._watch_idle()

    # Use without a client

    def call(self, name: str, arguments: Any = None, *, answers: Any = None) -> Any:
        """Call a tool in this process and return its result; for tests.

        answers: what to say to its questions, a list, or a dict by key or position
        ("1", "2" ...): True or False for a confirm, a dict for a form, None to decline,
        text for sampling, a list of URIs for roots, or a whole answer. MCPError for an
        RPC error; KeyError names a question without an answer.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        params["_meta"] = {_VERSION_KEY: E, _CAPABILITIES_KEY: _EVERYTHING}
        if isinstance(answers, list):
            answers = dict(enumerate(answers, 1))
        known = {str(key): value for key, value in (answers or {}).items()}
        while True:
            result = self._call_once(params)
            if result["resultType"] != "input_required":
                return result
            params["requestState"] = result["requestState"]
            params["inputResponses"] = {
                key: _answer(key, request, known)
                for key, request in result.get("inputRequests", {}).items()
            }

    def _call_once(self, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params}
        peer = _Here(self)
        found = self._dispatch(message, peer)
        if type(found) is _Call:
            self._owe(found, math.inf)
            if found.handler.is_async:
                _run_apart(_acall(found))
                found.settle(found.rendered)
            else:
                found.settle(_call(found))
        else:
            peer.reply(*found)
        reply = json.loads(peer.body)
        if "error" in reply:
            error = reply["error"]
            raise MCPError(error["code"], error["message"], error.get("data"))
        return reply["result"]

    # Running

    def run(
        self,
        transport: str = "stdio",
        *,
        unix: Optional[str] = None,
        loop: bool = False,
        **http: Any,
    ) -> None:
        """Serve until the end of input or one SIGINT or SIGTERM.

        transport: "stdio", "http" (or "streamable-http") or "unix" with unix=PATH.
        loop: use asyncio on stdio although no handler is async. HTTP takes host, port,
        path, allow_hosts, allow_origins, insecure, json_response, stateless_http.
        ValueError for a bind that is not safe, OSError for one that is not possible.
        """
        options = _http_options(http)
        if http and (unix is not None or transport == "stdio"):
            # A token that guards nothing must not pass in silence.
            names = ", ".join(f"{name}=" for name in sorted(http))
            raise ValueError(f'only HTTP takes {names}: run("http", ...) or --http')
        if unix is not None:
            self._run_loop(functools.partial(self._unix, unix))
        elif transport == "unix":
            raise ValueError("unix needs unix=PATH")
        elif transport in ("http", "streamable-http"):
            _check_bind(options)
            self._run_loop(functools.partial(self._http, options, None))
        elif transport == "stdio":
            self._run_stdio(*_guard_stdio(), loop)
        else:
            raise ValueError(
                f'transport is stdio, http or unix (with unix=PATH), not "{transport}"'
            )

    def _run_stdio(self, in_fd: int, out_fd: int, loop: bool = False) -> None:
        if os.isatty(in_fd):  # a person, who may wait for something to happen
            way = "python3 -m tinymcp run APP --http 8000"
            self._log("info", f"speaking MCP on stdin; for HTTP: {way}")
        outlet = _Outlet(out_fd, self._limits.queue)
        with _blaming_lifespan():
            manager = self._exit = self._lifespan(self) if self._lifespan else None
        if loop or hasattr(manager, "__aenter__") or self._has_async():
            main = functools.partial(_run_fds, self, in_fd, outlet)
            return self._run_loop(main, outlet)

        turns = _Turns(self, in_fd, outlet)

        def run() -> None:
            if manager is None:
                return turns.run()
            with _blaming_lifespan(), manager as self._lifespan_value:
                turns.run()

        self._mode = "blocking"
        try:
            _until_over(run, turns.stop, self._limits.exit_grace)
        finally:
            self._mode = self._exit = None
        return None

    def _has_async(self) -> bool:
        tables = [getattr(self._registry, kind).items for kind in _Registry.kinds]
        handlers = [handler for table in tables for handler in table.values()]
        return any(h.is_async for h in [*handlers, self._completer] if h)

    def _run_loop(
        self, main: Callable[[Any], Any], outlet: Optional[_Outlet] = None
    ) -> None:
        import asyncio

        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        stop = asyncio.Event()  # after set_event_loop: Python 3.9 binds it here

        def end() -> None:
            if outlet is not None:
                outlet.ending = True
            with contextlib.suppress(RuntimeError):  # closed already
                loop.call_soon_threadsafe(stop.set)

        async def serve() -> None:
            async with self._entered():
                await main(stop)

        def run() -> None:
            try:
                with _waking(loop):
                    loop.run_until_complete(serve())
            finally:
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                if tasks:
                    loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
                loop.run_until_complete(loop.shutdown_asyncgens())
                asyncio.set_event_loop(None)
                loop.close()

        _until_over(run, end, self._limits.exit_grace)

    @contextlib.asynccontextmanager
    async def _entered(self) -> AsyncIterator[_Loop]:
        """The lifespan and the loop, shared by all transports."""
        import asyncio

        if self._loop is None or self._loop.loop is not asyncio.get_running_loop():
            self._loop, self._users = _Loop(self), 0
        loop: _Loop = self._loop
        async with loop.entering:
            if not self._users and self._lifespan:
                with _blaming_lifespan():
                    manager, self._exit = self._exit or self._lifespan(self), None
                    self._lifespan_value = await _enter(manager)
                self._exit = manager
            self._users += 1
            self._mode = "loop"
        try:
            yield loop
        finally:
            async with loop.entering:
                await self._left()

    async def _left(self) -> None:
        self._users -= 1
        if self._users:
            return
        self._mode = None
        manager, self._exit = self._exit, None
        with _blaming_lifespan():
            if hasattr(manager, "__aexit__"):
                await manager.__aexit__(None, None, None)
            elif manager is not None:
                manager.__exit__(None, None, None)

    async def serve(self, reader: Any, writer: Any) -> None:
        """Serve one asyncio reader and writer (socket, UART, pipe) until its end."""
        async with self._entered() as loop:
            await _serve_stream(self, reader, writer, loop)

    async def _unix(self, path: str, stop: Any) -> None:
        import asyncio

        _clear_socket(path)
        most = _descriptors(self._limits.connections)
        connections: set[Any] = set()  # their tasks

        async def connected(reader: Any, writer: Any) -> None:
            if len(connections) >= most:
                text = "Too many connections"
                writer.write(_error_bytes(_NO_ID, TOO_MANY_REQUESTS, text) + b"\n")
                writer.close()
                return
            task = asyncio.current_task()
            connections.add(task)
            with contextlib.suppress(asyncio.CancelledError):  # 3.11 would log it
                await _serve_stream(self, reader, writer, self._loop, stop)
            connections.remove(task)

        mask = os.umask(0o077)
        try:
            server = await asyncio.start_unix_server(connected, path, backlog=1)
            _queue(server, most)
            made = os.stat(path)
        except OSError as error:
            text = f"cannot listen on {path}: {error.strerror or error}"
            raise OSError(error.errno, text) from None
        finally:
            os.umask(mask)
        self._log("info", f"serving on {path}")
        await stop.wait()
        await _stop_listening([server])
        with contextlib.suppress(OSError):  # 3.13 has removed it
            if os.path.samestat(os.stat(path), made):  # not that of a successor
                os.unlink(path)
        _finish(self)
        await self._loop.drain(self._limits.grace)
        for task in connections:  # no handler begins after the end of the lifespan
            task.cancel()
        if connections:
            await asyncio.wait(connections, timeout=1.0)

    async def serve_http(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        ready: Optional[Callable[[Any], None]] = None,
        stop: Any = None,
        **http: Any,
    ) -> None:
        """Serve HTTP in a running loop until the asyncio.Event `stop` is set or the
        task is cancelled. ready is called with the list of bound (host, port); the
        other options are those of run()."""
        import asyncio

        options = _http_options({**http, "host": host, "port": port})
        _check_bind(options)
        async with self._entered():
            await self._http(options, ready, stop or asyncio.Event())

    async def _http(self, options: dict[str, Any], ready: Any, stop: Any) -> None:
        loop = self._loop
        endpoint = _Endpoint(self, loop, options)
        import asyncio

        limits, tls = self._limits, endpoint.tls
        # uvloop may have read before it is told to wait: it shakes hands itself.
        own = tls is not None and not isinstance(loop.loop, asyncio.BaseEventLoop)
        protocol = _protocol_class if own or tls is None else _greeter_class
        factory = functools.partial(protocol(), endpoint)
        listen = functools.partial(loop.loop.create_server, factory)
        if own:
            seconds = limits.head_timeout
            listen = functools.partial(listen, ssl=tls, ssl_handshake_timeout=seconds)
        # asyncio accepts so many in a row, and without descriptors it logs and repeats
        # each of them; what the kernel queues is set behind its back.
        listen = functools.partial(listen, backlog=1)
        where = options["host"], options["port"], options["reuse_port"]
        servers = []
        try:
            for listener in _listen(*where):
                servers.append(await listen(sock=listener))
                _queue(servers[-1], limits.connections)
            addresses = [s.sockets[0].getsockname()[:2] for s in servers]
            scheme = "https" if endpoint.tls else "http"
            for host, port in addresses:
                at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                self._log("info", f"serving on {scheme}://{at}{endpoint.paths[0]}")
            if ready:
                ready(addresses)
            await stop.wait()
        finally:
            try:
                await _stop_listening(servers)
                await endpoint.close()
            finally:  # cancelled once more: the end is near, and so is the lifespan's
                endpoint.over()
                for _ in range(3):  # turns until cancelled handlers are through
                    await asyncio.sleep(0)


class _Here(_Peer):
    """The peer of Server.call."""

    __slots__ = ("body",)

    def send(self, data: bytes) -> None:
        pass

    def reply(self, body: bytes, code: int) -> None:
        self.body = body


_EVERYTHING: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}


def _answer(key: str, request: dict[str, Any], known: dict[str, Any]) -> Any:
    """An input response from the short forms that Server.call takes."""
    params = request["params"]
    if key not in known:
        asked = params.get("message", request["method"])
        raise KeyError(f"no answer for question {key!r}: {asked}")
    value = known[key]
    if isinstance(value, dict) and {"action", "role", "roots"} & set(value):
        return value
    if request["method"] == "roots/list":
        return {"roots": [{"uri": uri} for uri in value]}
    if request["method"] == "sampling/createMessage":
        content = {"type": "text", "text": str(value)}
        return {"role": "assistant", "content": content, "model": "test"}
    if value is None:
        return {"action": "decline"}
    if isinstance(value, bool):
        value = dict.fromkeys(params["requestedSchema"]["properties"], value)
    return {"action": "accept", "content": value}


def _run_apart(coroutine: Any) -> None:
    """Run a coroutine to its end, also where a loop runs already."""
    import asyncio

    thread = threading.Thread(target=asyncio.run, args=(coroutine,), daemon=True)
    thread.start()
    thread.join()


def _decorator(add: Any, function: Any, options: dict[str, Any]) -> Any:
    if isinstance(function, str):  # @server.tool("name"), as older code has it
        options["name"], function = function, None

    def decorate(function: Any) -> Any:
        if not callable(function):
            raise DefinitionError(f"a function is decorated, not {function!r}")
        add(function, **options)
        return function

    return decorate if function is None else decorate(function)


def _name_of(function: Any, kind: str) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    if name in ("<lambda>", "partial"):
        raise DefinitionError(f"a {kind} without a name: give name=")
    return str(name)


def _rank(level: str) -> int:
    if level.lower() not in _LEVELS:
        raise ValueError(f"the log level is one of {', '.join(_LEVELS)}")
    return _LEVELS[level.lower()]


def _http_options(given: dict[str, Any]) -> dict[str, Any]:
    unknown = given.keys() - _HTTP.keys()
    if unknown:
        raise TypeError(f"no option {', '.join(sorted(unknown))}; HTTP has {[*_HTTP]}")
    return {**_HTTP, **given}


def _check_bind(options: dict[str, Any]) -> None:
    """Anything but loopback needs protection or an explicit word (SEC-04, SEC-05)."""
    host, port = options["host"], options["port"]
    if type(host) is not str:
        raise ValueError(f"host= takes a name or an address, not {host!r:.80}")
    if type(port) is not int or not 0 <= port <= 65535:
        raise ValueError(f"port= takes a number from 0 to 65535, not {port!r:.80}")
    guarded = any(options[name] for name in _GUARDS) or "TINYMCP_TOKEN" in os.environ
    if not _is_loopback(host) and not guarded:
        raise ValueError(
            f"binding {host} lets everybody on the network call the tools; "
            "give --token-file FILE (token_file= or token=), say --insecure "
            "(insecure=True) if that is meant, or stay on 127.0.0.1"
        )


def _listen(host: str, port: int, share: bool = False) -> list[Any]:
    """Listening sockets; localhost is every loopback family that there is (C20)."""
    import socket

    found: list[Any] = []
    for name in ["127.0.0.1", "::1"] if host == "localhost" else [host]:
        listener = None
        try:
            family = socket.AF_INET6 if ":" in name else socket.AF_INET
            # Named, as asyncio sets TCP_NODELAY only where the protocol is.
            listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                only = 0 if name == "::" else 1
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            listener.bind((name, port))
            listener.listen(128)
        except OSError as error:
            if listener is not None:
                listener.close()
            if found:
                break  # no IPv6 here
            text = f"cannot listen on {name}:{port}: {error.strerror}"
            raise OSError(error.errno, text) from None
        port = listener.getsockname()[1]
        listener.setblocking(False)
        found.append(listener)
    return found


def _queue(server: Any, connections: int) -> None:
    """How many may wait to be accepted: others would try again after a second."""
    import socket

    for listener in server.sockets:
        with socket.socket(fileno=os.dup(listener.fileno())) as same:
            same.listen(min(connections, 65535))


def _clear_socket(path: str) -> None:
    """Remove a socket that nobody serves any more; never a live one."""
    import socket
    import stat

    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, f"{path} exists and is no socket")
    except FileNotFoundError:
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, f"{path} is served already")


@contextlib.contextmanager
def _blaming_lifespan() -> Iterator[None]:
    """main() takes these two for a mistake in the command line, after which nobody need
    try again; a bus that is not there yet is none."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise RuntimeError(f"lifespan= failed: {error}") from error


async def _enter(manager: Any) -> Any:
    if hasattr(manager, "__aenter__"):
        return await manager.__aenter__()
    return manager.__enter__()


@contextlib.contextmanager
def _waking(loop: Any) -> Iterator[None]:
    """A signal wakes the loop. add_signal_handler would do it too, but closing the
    loop sets the default action again, while the program has yet to end in order."""
    import signal
    import socket

    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    with here, there:
        with contextlib.suppress(NotImplementedError, ValueError):
            loop.add_reader(here, here.recv, 64)
            signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            with contextlib.suppress(NotImplementedError, ValueError):
                signal.set_wakeup_fd(-1)
                loop.remove_reader(here)


def _until_over(
    main: Callable[[], None], end: Callable[[], None], seconds: float
) -> None:
    """Call main; SIGINT or SIGTERM asks for its end, a second one leaves at once.

    After it the process is to end, since a client waits for that: a signal that comes
    late (stdin closed and SIGTERM at once) may not cut the exit short.
    """
    import atexit

    signal: Any = __import__("_signal")  # signal itself imports enum

    thread = threading.main_thread()
    if threading.current_thread() is not thread:
        return main()
    numbers = (signal.SIGINT, signal.SIGTERM)
    came: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if came:
            os._exit(128 + number)
        came.append(number)
        end()

    def late(number: int, frame: Any) -> None:
        if thread.is_alive():  # else the interpreter is on its way out
            raise SystemExit(0)

    def handle_by(handler: Any) -> None:
        with contextlib.suppress(ValueError):  # _leave_no_thread runs this
            for number in numbers:
                signal.signal(number, handler)

    handle_by(handle)
    try:
        main()
        _leave_no_thread(seconds, 0)
    finally:
        atexit.register(handle_by, signal.SIG_IGN)  # default actions come back else
        handle_by(late)


def _leave_no_thread(seconds: float, status: int) -> None:
    """Once the main thread is through, no other may hold the process for longer.

    A client waits for our exit; a stuck sensor thread must not make us an orphan.
    """
    import atexit

    exiting = threading.Event()

    def watch() -> None:
        threading.main_thread().join()
        time.sleep(seconds)
        if not exiting.is_set():
            atexit._run_exitfuncs()
        os._exit(status)

    atexit.register(exiting.set)  # the last one registered is the first to run
    with contextlib.suppress(RuntimeError):  # no thread can be made: none is stuck then
        threading.Thread(target=watch, daemon=True, name="tinymcp-exit").start()


def _load(target: str) -> Server:
    """The server of app.py, app.py:name or module:name. ValueError says what is off."""
    path, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if os.path.isfile(path) and not path.endswith(".py"):
        raise ValueError("an app is a file whose name ends in .py, or a module")
    try:
        module = _import(path)
    except Exception as error:  # user code: whatever it raises is one clear line
        at, line = error.__traceback__, 0
        while at is not None:
            line = at.tb_lineno if at.tb_frame.f_code.co_filename == path else line
            at = at.tb_next
        place = f", line {line}" if line else ""
        raise ValueError(f"{type(error).__name__}{place}: {error}") from error
    found = vars(module)
    servers = {key: value for key, value in found.items() if isinstance(value, Server)}
    if name and name not in servers:
        is_one = f": it is a {type(found[name]).__name__}" if name in found else ""
        raise ValueError(f"no Server named {name}{is_one}")
    for known in (name, "server", "app", "mcp"):
        if known in servers:
            return servers[known]
    if not servers:
        raise ValueError("defines no Server at its top level")
    if len({id(server) for server in servers.values()}) > 1:
        raise ValueError(f"holds {len(servers)} servers; say which: {path}:NAME")
    return next(iter(servers.values()))


def _import(path: str) -> Any:
    if not path.endswith(".py") and os.sep not in path:
        from importlib import import_module

        sys.path.insert(0, os.getcwd())
        return import_module(path)
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    if not os.path.isfile(path):
        raise FileNotFoundError("no such file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    stem = os.path.splitext(os.path.basename(path))[0]
    if stem in sys.modules:
        stem += "_app"  # it may be called json.py
    spec: Any = spec_from_loader(stem, SourceFileLoader(stem, path))
    module = module_from_spec(spec)
    sys.modules[stem] = module
    spec.loader.exec_module(module)
    return module


_OPTIONS = (  # of `run`: option, argument, keyword of Server.run(), help
    ("--http", "[HOST:]PORT", "http", "serve Streamable HTTP (default: stdio)"),
    ("--unix", "PATH", "unix", "serve newline framing on a Unix socket"),
    ("--allow-host", "HOST", "allow_hosts", "accept this Host too; may be repeated"),
    ("--allow-origin", "ORIGIN", "allow_origins", "accept this web origin; * for all"),
    ("--token-file", "FILE", "token_file", "bearer tokens, a line: NAME TOKEN [SCOPE]"),
    ("--cert", "FILE", "cert", "TLS certificate chain (PEM)"),
    ("--key", "FILE", "key", "its private key, if that is in a file of its own"),
    ("--client-ca", "FILE", "client_ca", "accept only clients certified by this CA"),
    ("--insecure", "", "insecure", "bind a network address without authentication"),
    ("--reuse-port", "", "reuse_port", "let several processes share the port"),
    ("--audit", "", "audit", "a JSON line on stderr for each call"),
    ("--audit-arguments", "", "audit_arguments", "with the values of its arguments"),
    ("--log-level", "LEVEL", "log_level", "debug, info, warning, error ..."),
)
# Commands of cli.py that are clients, and their help.
_CLIENT_COMMANDS = {
    "info": "show what a server is",
    "list": "list the tools, resources and prompts of a server",
    "call": "call a tool",
    "read": "read a resource",
    "prompt": "get a prompt",
    "watch": "print changes as they come",
    "ping": "measure the round trip",
}
_HELP = """\
usage: tinymcp run APP [OPTION ...]
       tinymcp check APP
       tinymcp COMMAND --help

MCP server for small machines. APP is a file and, if it holds several servers, a name:
app.py:name.

commands:
{}

options of run:
{}

Exit status: 0 after the end of input or a signal, 1 for errors that `check` found, 2 if
the server could not start."""


def _help() -> str:
    commands = {"run": "serve APP on stdio, HTTP or a socket"}
    commands["check"] = "show what APP offers and what is off"
    rows = {**commands, **_CLIENT_COMMANDS}.items()
    options = [(f"{name} {field}", text) for name, field, _, text in _OPTIONS]
    tables = (rows, options)
    return _HELP.format(
        *("\n".join(f"  {a:22}{b}" for a, b in table) for table in tables)
    )


def _parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """APP and keywords of Server.run(). argparse would cost a third of the start."""
    apps: list[str] = []
    options: dict[str, Any] = {}
    known = {option: (field, key) for option, field, key, _ in _OPTIONS}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            apps.append(word)
            continue
        if name not in known:
            raise ValueError(f"no option {name}; see tinymcp --help")
        field, key = known[name]
        value = value if equals or not field else next(rest, "")
        if bool(value) != bool(field):
            raise ValueError(f"{name} takes {field or 'no value'}")
        if type(_HTTP.get(key)) is tuple:
            options.setdefault(key, []).append(value)
        else:
            options[key] = value or True
    if len(apps) != 1:
        raise ValueError("one APP is needed; see tinymcp --help")
    return apps[0], options


def _cli() -> Any:
    try:
        from . import cli
    except ImportError:
        text = "this command needs cli.py and what it imports beside tinymcp.py, or "
        text += "pip install . in a copy of the project, and: tinymcp, not python3 -m"
        raise ValueError(text) from None
    return cli


def main(argv: Optional[list[str]] = None) -> int:
    """The command line. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    app = command = words[0] if words else ""
    try:
        if command in _CLIENT_COMMANDS:
            return int(_cli().main(words))
        if command == "--version":
            print(f"tinymcp {__version__}")
        elif not words or {"-h", "--help"} & set(words):
            print(_help(), file=sys.stdout if words else sys.stderr)
            return 0 if words else 2
        elif command == "check":
            check = _cli().check
            app, _ = _parse(words[1:])
            return int(check(_load(app)))
        elif command == "run":
            app, options = _parse(words[1:])
            if not options.keys() & {"http", "unix"}:
                _guard_stdio()  # before the app is imported: its prints go to stderr
            _run_app(_load(app), options)
        else:
            known = f"meant: run {app}?" if app.endswith(".py") else "see --help"
            raise ValueError(f"no such command; {known}")
    except (ValueError, OSError) as error:
        print(f"tinymcp: {app}: {' '.join(str(error).split())}", file=sys.stderr)
        definition = isinstance(error.__cause__, DefinitionError)
        status = 1 if definition and command == "check" else 2
        if argv is None:
            _leave_no_thread(Limits.exit_grace, status)
        return status
    except KeyboardInterrupt:  # while the app is loaded
        return 130
    return 0


def _run_app(server: Server, options: dict[str, Any]) -> None:
    if "log_level" in options:
        server._level = _rank(options.pop("log_level"))
    audit, values = options.pop("audit", False), options.pop("audit_arguments", False)
    if audit or values:
        server._audit = values
    http = options.pop("http", None)
    if http is not None and "unix" in options:
        raise ValueError("give one of --http and --unix")
    if http is None:
        return server.run(**options)
    host, _, port = http.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--http takes [HOST:]PORT, not {http}")
    host = host.strip("[]") or "127.0.0.1"
    return server.run("http", host=host, port=int(port), **options)


if __name__ == "__main__":
    # As a script this file would exist twice: run the importable one.
    if os.path.exists(os.path.join(os.path.dirname(__file__), "__init__.py")):
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tinymcp import main as _main

    raise SystemExit(_main())
