# SPDX-License-Identifier: MIT
"""How a client reaches a server: child process, Unix socket, this process, HTTP.

 1 Limits and errors            4 HTTP/1.1
 2 URLs, headers and schemas    5 Byte streams
 3 Calls                        6 Streamable HTTP

A transport is open, request, notify, cancel and close. Everything that the server says,
answers included, passes one door: _Calls.receive. client.py decides what is said.

Not here: HTTP+SSE of 2024-11-05, proxies, HTTP/2, compression, Windows pipes.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import sys
import threading
import time

from . import tinymcp as _rt
from .tinymcp import MCPError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import re
    import signal
    import socket
    import ssl
    import subprocess
    import weakref
    from typing import Any, Callable, Iterable, Iterator, Optional

    Json = dict[str, Any]
    Log = Callable[[str], None]
    _Path = tuple[str, ...]  # names of properties
    Auth = Any  # tinymcp.oauth.OAuth, or whatever has headers() and challenged()
else:  # asyncio alone costs more than this file
    asyncio, re, signal = _rt._Lazy("asyncio"), _rt._Lazy("re"), _rt._Lazy("signal")
    socket, ssl = _rt._Lazy("socket"), _rt._Lazy("ssl")
    subprocess, weakref = _rt._Lazy("subprocess"), _rt._Lazy("weakref")

# ---- 1 Limits and errors -----------------------------------------------------------
# An MCPError was sent by the server; a ClientError arose on this side (ERR-07).

MODERN = ("2026-07-28",)
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


class ClientLimits:
    """Bounds of one Client. Keyword arguments replace the defaults below."""

    timeout = 60.0  # seconds until an answer, or between two reports of progress
    max_timeout = 600.0  # seconds a call may take in all, whatever it reports
    probe = (
        5.0  # seconds that server/discover may take until the server counts as legacy
    )
    connect = 10.0  # seconds for a connection, TLS included
    message = 16 << 20  # bytes of one message or event from the server
    head = 65536  # bytes of an HTTP response head
    depth = 128  # nesting of arrays and objects in a message
    digits = 4000  # digits in a row in a message
    in_flight = 1024  # unanswered calls
    connections = 64  # HTTP connections to one server
    idle = 4  # HTTP connections kept open for the next call
    idle_timeout = 30.0  # seconds they are kept
    pages = 1000  # pages of one list
    rounds = 16  # input_required answers in a row to one call
    asking = 16  # questions of a legacy server answered at a time
    stderr = 8192  # bytes kept of what a child wrote to stderr
    grace = 2.0  # seconds for a child at each step: stdin closed, SIGTERM, SIGKILL
    changes = 1024  # changes that wait in one subscription
    cache = 256  # cached results
    retries = 5  # attempts in a row to get a broken stream or process back

    def __init__(self, **changes: float) -> None:
        for name, value in changes.items():
            if name.startswith("_") or not hasattr(ClientLimits, name):
                raise TypeError(f"ClientLimits has no {name!r}")
            setattr(self, name, value)


class ClientError(Exception):
    """Something went wrong on this side of the wire."""


class ConnectionLost(ClientError, ConnectionError):
    """The server cannot be reached, or went away while a call was open."""


class HttpStatusError(ConnectionLost):
    """An HTTP status that carries no JSON-RPC answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Redirected(ConnectionLost):
    """A redirect that is not followed."""


class RequestTimeout(ClientError, TimeoutError):
    """No answer in time; the server was told to stop."""


class InvalidReply(ClientError):
    """An answer that the protocol, or the tool's outputSchema, does not allow."""


class VersionError(ClientError):
    """No revision of the protocol that both sides speak."""


class _SessionLost(ClientError):
    """404 for a legacy session: begin a new one and ask again (HTL-04)."""


# ---- 2 URLs, headers and schemas ---------------------------------------------------
# Pure functions.

_TOKEN = _rt._Pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_PLAIN = _rt._Pattern(r"(?:[!-~](?:[ !-~]*[!-~])?)?\Z")
_CONTROL = _rt._Pattern(
    r"[\x00-\x08\x0a-\x1f\x7f]"
)  # in no header value (RFC 9110 5.5)
_VISIBLE = _rt._Pattern(r"[!-~]+\Z")
_URL = _rt._Pattern(
    r"(https?)://(\[[0-9A-Fa-f:.%]+\]|[^][/?#@:\s]+)(?::(\d{1,5}))?([/?][^\s#]*)?(?:#\S*)?\Z",
    2,  # re.IGNORECASE
)
_LOOPBACK = _rt._Pattern(r"127(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}\Z")


_DATA_KEYWORDS = ("default", "const", "enum", "examples")  # hold values, not schemas
_MAPS = ("patternProperties", "$defs", "definitions", "dependentSchemas")


class _Url:
    """An http or https URL, taken apart."""

    __slots__ = ("authority", "host", "origin", "port", "scheme", "target", "text")

    def __init__(self, text: str) -> None:
        match = _URL.match(text)
        if not match or not text.isascii():
            raise ValueError(f"not a URL that this client can use: {text!r}")
        scheme, host, port, target = match.groups()
        self.scheme = scheme.lower()
        self.host = host.strip("[]").lower()
        self.port = int(port or (443 if self.scheme == "https" else 80))
        if not 0 < self.port < 65536:
            raise ValueError(f"no port is {self.port}: {text!r}")
        self.authority = host.lower() + (f":{port}" if port else "")
        self.origin = f"{self.scheme}://{host.lower()}:{self.port}"
        target = target or "/"
        self.target = target if target.startswith("/") else "/" + target
        self.text = text

    @property
    def local(self) -> bool:
        """True for this machine, where plain http is no risk."""
        named = self.host in ("localhost", "::1")
        return named or _LOOPBACK.match(self.host) is not None  # 127.x.example is none

    def join(self, location: str) -> _Url:
        """The URL of a Location header."""
        if location.startswith("/") and not location.startswith("//"):
            return _Url(f"{self.scheme}://{self.authority}{location}")
        return _Url(location)


def _header_value(value: object) -> str:
    """A JSON scalar as a header value: plain, or in the Base64 sentinel (HTM-09)."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if _PLAIN.match(text) and not (
        text.startswith("=?base64?") and text.endswith("?=")
    ):
        return text
    coded = binascii.b2a_base64(text.encode(), newline=False).decode()
    return f"=?base64?{coded}?="


def _header_name(node: Json, path: Optional[_Path]) -> str:
    name = node["x-mcp-header"]
    if not path:
        raise ValueError("x-mcp-header where no chain of properties leads")
    if not isinstance(name, str) or not _TOKEN.match(name):
        raise ValueError(f"x-mcp-header {name!r} is no header name")
    if node.get("type") not in ("string", "integer", "boolean"):
        raise ValueError(f"x-mcp-header {name} on type {node.get('type')!r}")
    return f"Mcp-Param-{name}"


def _subschemas(
    node: Json, path: Optional[_Path]
) -> Iterator[tuple[object, Optional[_Path]]]:
    """What a schema contains, and the path there if properties alone lead to it."""
    for key, value in node.items():
        if key == "properties" and isinstance(value, dict):
            for name, child in value.items():
                yield child, None if path is None else (*path, name)
        elif key in _MAPS and isinstance(value, dict):
            yield from ((child, None) for child in value.values())
        elif key not in _DATA_KEYWORDS:
            yield value, None


def _header_paths(schema: object) -> list[tuple[str, _Path]]:
    """[(header, path of properties)] of an inputSchema, or ValueError (HTM-15)."""
    found: list[tuple[str, _Path]] = []
    todo: list[tuple[object, Optional[_Path]]] = [(schema, ())]
    while todo:
        node, path = todo.pop()
        if isinstance(node, list):
            todo += [(item, None) for item in node]
        elif isinstance(node, dict):
            if "x-mcp-header" in node:
                found.append((_header_name(node, path), path or ()))
            todo += _subschemas(node, path)
    names = [header.lower() for header, _ in found]
    if len(set(names)) != len(names):
        raise ValueError("two parameters have the same x-mcp-header")
    return found


def _header_params(
    paths: Iterable[tuple[str, _Path]], arguments: object
) -> list[tuple[str, str]]:
    """The Mcp-Param headers of one call; absent and null values have none."""
    headers = []
    for header, path in paths:
        value: Any = arguments
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, (str, bool, int)):
            headers.append((header, _header_value(value)))
        elif isinstance(value, float) and value.is_integer():
            headers.append((header, str(int(value))))
    return headers


_TURNED = {"not", "if", "oneOf", "maxContains"}  # less inside may be more outside


def _unpatterned(schema: Json) -> Optional[Json]:
    """A schema without `pattern`; None if that could refuse what the whole one takes.

    What remains is for any dictionary in it, because a $ref may lead to each.
    """
    words: set[str] = set()

    def copy(value: Any, constant: bool) -> Any:
        if isinstance(value, list):
            return [copy(item, constant) for item in value]
        if not isinstance(value, dict):
            return value
        kept = value
        if isinstance(value.get("pattern"), str):
            words.update(["pattern", "constant"] if constant else ["pattern"])
            kept = {key: part for key, part in value.items() if key != "pattern"}
        words.update(kept)
        return {k: copy(v, constant or k in ("const", "enum")) for k, v in kept.items()}

    plain: Json = copy(schema, False)
    turned = "pattern" in words and not words.isdisjoint(_TURNED | {"constant"})
    return None if turned or "patternProperties" in words else plain


_UNDECIDED = "nested too deeply, or too many alternatives to check"  # says _rt._compile


def _checker(schema: Json, where: str, log: Log) -> Callable[[object], Optional[str]]:
    """A check of values by a schema of the server; InvalidReply if it is unusable.

    A regular expression can take for ever, and a server is not trusted to choose one.
    """
    dialect = str(schema.get("$schema", ""))
    if "draft-0" in dialect or "2019-09" in dialect:
        # What generators write under these names means the same in 2020-12.
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    plain = _unpatterned(schema)
    if plain is None:
        log(f"{where} is not used: it depends on patterns, which a client does not try")
        plain = {}
    try:
        noun = where.rpartition(" ")[2]
        check: Callable[[object], Optional[str]] = _rt._compile(plain, noun)
    except (TypeError, ValueError) as error:  # also of another dialect (SCH-02)
        raise InvalidReply(f"{where} is unusable: {error}") from None

    def decided(value: object) -> Optional[str]:
        problem = check(value)
        if problem != _UNDECIDED:
            return problem
        log(f"{where} is not used: it is {problem}")
        return None

    return decided


# ---- 3 Calls -----------------------------------------------------------------------
# One table of unanswered calls for every transport. Time limits run on a clock that
# stands still while a person answers a question of the server.


class _Call:
    """One request on its way."""

    __slots__ = (
        "abort",
        "began",
        "calls",
        "future",
        "headers",
        "id",
        "maximum",
        "message",
        "progress",
        "refused",
        "reset",
        "started",
        "timeout",
        "timer",
        "touched",
        "tried",
    )

    def __init__(self, calls: _Calls, method: str, params: Json) -> None:
        self.calls = calls
        calls.last += 1
        self.id = calls.last
        self.message: Json = {
            "jsonrpc": "2.0",
            "id": self.id,
            "method": method,
            "params": params,
        }
        self.future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.abort: Optional[Callable[[], object]] = None  # frees who waits on a socket
        self.headers: list[tuple[str, str]] = []
        self.progress: Optional[Callable[..., Any]] = None
        self.timer: Optional[asyncio.TimerHandle] = None
        self.timeout = self.maximum = 0.0
        self.reset = False
        self.refused = False  # answered with an HTTP status of 400 or more
        self.tried: set[str] = set()  # what was done to be authorized

    @property
    def method(self) -> str:
        return str(self.message["method"])

    def limit(
        self, timeout: float, maximum: float, reset: bool, began: Optional[float] = None
    ) -> None:
        """Start the clock; `reset` starts it again at each report of progress.

        The maximum counts from `began`, if this is not the first request for a result.
        """
        self.timeout, self.maximum, self.reset = timeout, maximum, reset
        self.started = self.touched = self.calls.clock()
        self.began = self.started if began is None else began
        self._watch()

    def _watch(self) -> None:
        now = self.calls.clock()
        last = self.touched if self.reset else self.started
        left = min(self.began + self.maximum, last + self.timeout) - now
        if left > 0:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(left, self._watch)
            return
        over = now >= self.began + self.maximum
        spent = now - (self.began if over else self.started)
        text = f"{self.method}: no answer within {spent:.3g} s"
        came, unclaimed = self.calls.unclaimed
        if unclaimed and came >= self.began:  # perhaps because of this message
            text += f"; meanwhile the server could not read a message: {unclaimed}"
        self.fail(RequestTimeout(text))

    def endless(self) -> None:
        """It may take for ever from now on."""
        if self.timer is not None:
            self.timer.cancel()

    def answer(self, result: Json) -> None:
        """The server's result."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Any other end; whoever waits on a socket for this call is woken."""
        if not self.future.done():
            self.future.set_exception(error)
            if self.abort is not None:
                self.abort()

    def close(self) -> None:
        """Forget it; a late answer will find nothing (CAN-03)."""
        self.calls.pending.pop(self.id, None)
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():
            self.future.cancelled() or self.future.exception()  # asyncio: retrieved
        else:
            self.future.cancel()


class _Calls:
    """The table of unanswered calls and the door for every message of the server."""

    def __init__(self, inbound: Callable[[Json], None], log: Log, limit: int) -> None:
        self.pending: dict[int, _Call] = {}
        self.last = 0
        self.orphan: Optional[_Call] = None  # takes an error that names no id
        self.unclaimed = (0.0, "")  # when another such error came, and its text
        self._inbound = inbound
        self._log = log
        self._limit = limit
        self._asked = 0
        self._frozen = self._stood = 0.0

    def clock(self) -> float:
        now = self._frozen if self._asked else time.monotonic()
        return now - self._stood

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No call runs out of time while this side keeps the server waiting."""
        if not self._asked:
            self._frozen = time.monotonic()
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self._stood += time.monotonic() - self._frozen

    def new(self, method: str, params: Json) -> _Call:
        if len(self.pending) >= self._limit:
            raise ClientError(f"{self._limit} calls are waiting for answers already")
        call = _Call(self, method, params)
        self.pending[call.id] = call
        return call

    def fail_all(self, error: Exception) -> None:
        for call in list(self.pending.values()):
            call.fail(error)

    def receive(self, message: object) -> None:
        """One message from the server. What is none is logged and skipped (A13)."""
        if isinstance(message, list):  # a batch of 2025-03-26 (RPC-07)
            for item in message[: self._limit]:
                if isinstance(item, dict):
                    self.receive(item)
            return
        try:
            kind = _rt._classify(message)
        except MCPError as error:
            self._log(f"skipped a message that is none: {error.message}")
            return
        assert isinstance(message, dict)
        if kind != "response":
            try:
                self._inbound(message)
            except Exception as error:  # whatever a server says, its answers are read
                self._log(f"could not handle {message['method']}: {error!r}")
        elif "result" in message:
            self._settle(message["id"], message["result"])
        else:
            body = message["error"]
            failure = MCPError(body["code"], body["message"], body.get("data"))
            self._settle(message.get("id"), failure)

    def _settle(self, id: object, outcome: Any) -> None:
        # dict look-up takes True and 1.0 for 1; a reply has the same id (B02).
        call = self.pending.get(id) if type(id) is int else None
        if call is None and id is None and isinstance(outcome, MCPError):
            call = self.orphan
        if call is None:
            if id is None and isinstance(outcome, MCPError):
                self.unclaimed = self.clock(), outcome.message
            self._log(f"skipped an answer to id {id!r}, which waits for none")
        elif isinstance(outcome, MCPError):
            call.fail(outcome)
        else:
            call.answer(outcome)


# ---- 4 HTTP/1.1 --------------------------------------------------------------------
# Bytes to and from an origin. A request that may have reached the server is not sent a
# second time unless it changes nothing there. Redirects stay within the origin.


class _Connection:
    """One HTTP connection: a request, then the head and the pieces of its response."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self.writer = writer
        self._mode = (
            "none"  # how the body ends: "length" "chunked" "close", "none": did
        )
        self._left = 0  # bytes left of the body or the chunk; -1: a line end follows
        self._keep = False
        self.pooled = False  # it leads to the origin of the pool
        self.used = False  # before the request that is on its way
        self.idle_since = 0.0
        self.mute = False  # it ended with no answer, or with a TLS alert
        self.status = 0
        self.headers: dict[str, str] = {}

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").split(";")[0].strip().lower()

    def reusable(self) -> bool:
        """True if another request can go this way."""
        # What nobody asked for belongs to no request: the next reply would follow it.
        reader: Any = self._reader  # at_eof() is False as long as bytes wait before it
        fresh = not (reader._buffer or reader.at_eof())
        closed = self.writer.transport.is_closing()
        return fresh and self._keep and self._mode == "none" and not closed

    def abort(self) -> None:
        self.writer.transport.abort()

    async def _until(self, mark: bytes) -> bytes:
        try:
            return await self._reader.readuntil(mark)
        except asyncio.LimitOverrunError:
            raise ConnectionLost("a line or head of the response is too long") from None
        except (asyncio.IncompleteReadError, OSError) as error:
            self.mute = getattr(error, "partial", b"")[:1] in (b"", b"\x15")
            raise ConnectionLost("the server closed the connection") from None

    async def head(self) -> None:
        """Read a status line and headers; 1xx responses are passed over."""
        self.status, version = 0, ""
        while self.status < 200:
            data = await self._until(b"\r\n\r\n")
            lines = data[:-4].decode("latin-1").split("\r\n")
            match = re.match(r"HTTP/1\.([01]) ([1-5]\d\d)(?: |\Z)", lines[0])
            if not match:
                raise ConnectionLost(f"not an HTTP/1.1 response: {lines[0][:60]!r}")
            version, self.status = match[1], int(match[2])
            headers: dict[str, str] = {}
            for line in lines[1:]:
                name, colon, value = line.partition(":")
                if not colon or not _TOKEN.match(name) or _CONTROL.search(value):
                    raise ConnectionLost(f"a bad header line: {line[:60]!r}")
                name, value = name.lower(), value.strip(" \t")
                headers[name] = (
                    f"{headers[name]}, {value}" if name in headers else value
                )
        self.headers = headers
        wish = headers.get("connection", "").lower()
        self._keep = "close" not in wish and (version == "1" or "keep-alive" in wish)
        self._frame()

    def _frame(self) -> None:
        coding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        self._mode, self._left = "none", 0
        if self.status in (204, 304):
            return
        if coding == "chunked":
            self._mode = "chunked"
        elif coding or (length and not re.match(r"\d{1,15}\Z", length)):
            raise ConnectionLost(
                f"a body that cannot be read: {coding or length[:40]!r}"
            )
        elif length != "0":
            self._mode = "length" if length else "close"
            self._left = int(length or 1 << 62)

    async def read(self) -> bytes:
        """The next piece of the body; b"" at its end."""
        if self._mode == "chunked" and self._left <= 0:
            await self._next_chunk()
        if self._mode == "none":
            return b""
        try:
            piece = await self._reader.read(min(self._left, 65536))
        except OSError:  # a reset is an end
            piece = b""
        self._left -= len(piece)
        if not piece:
            self._keep, ended = False, self._mode == "close"
            self._mode = "none"
            if not ended:
                raise ConnectionLost("the server closed the connection within a reply")
        elif not self._left:
            self._left, self._mode = (
                -1,
                "chunked" if self._mode == "chunked" else "none",
            )
        return piece

    async def _next_chunk(self) -> None:
        if self._left and await self._until(b"\n") != b"\r\n":
            raise ConnectionLost("a chunk that does not end where it should")
        line = (await self._until(b"\r\n")).split(b";")[0].strip()
        if not re.match(rb"[0-9A-Fa-f]{1,15}\Z", line):
            raise ConnectionLost("a bad chunk size")
        self._left = int(line, 16)
        if not self._left:
            while await self._until(b"\r\n") != b"\r\n":
                pass  # trailers
            self._mode = "none"

    async def body(self, limit: float) -> bytes:
        """The whole body."""
        data = bytearray()
        piece = await self.read()
        while piece:
            data += piece
            if len(data) > limit:
                raise ConnectionLost(f"the reply is longer than {limit} bytes")
            piece = await self.read()
        return bytes(data)


def _fingerprint(text: str) -> str:
    """SHA-256 of a certificate as openssl prints it, as hexdigest() does."""
    digits = text.rpartition("=")[2].strip().lower()
    digits = digits.replace("sha256:", "").replace(":", "").replace(" ", "")
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        wanted = "the 64 hex digits of a SHA-256"
        raise ValueError(f"fingerprint= takes {wanted}, not {text!r:.120}")
    return digits


class _Http:
    """Connections: a pool for the origin of one URL, and single requests elsewhere."""

    def __init__(self, url: _Url, limits: ClientLimits, tls: Json) -> None:
        self.url = url
        self.limits = limits
        self._tls = tls
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._free = asyncio.Semaphore(int(limits.connections))
        self._heard = False  # any response at all

    def _context(self, url: _Url) -> Optional[ssl.SSLContext]:
        if url.scheme == "http":
            return None
        given: Optional[ssl.SSLContext] = self._tls.get("ssl_context")
        ca, own = self._tls.get("ca_file"), self._tls.get("client_cert") or ()
        own = own if isinstance(own, (tuple, list)) else (own,)
        for path in filter(None, (ca, *own)):
            open(path).close()  # an error of ssl does not name the file
        try:
            wrong = f"{ca} holds no certificates"
            context = given or ssl.create_default_context(cafile=ca)
            if given is None and own and url.origin == self.url.origin:
                wrong = " and ".join(map(str, own))
                wrong += ": no certificate chain with its private key"
                context.load_cert_chain(*own)
        except ssl.SSLError:
            raise ValueError(wrong) from None
        if given is None and url.origin == self.url.origin:
            if self._tls.get("fingerprint"):  # instead of a chain and a name
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
        return context

    async def _connect(self, url: _Url) -> _Connection:
        limit, wait = int(self.limits.head), self.limits.connect
        opening = asyncio.open_connection(
            url.host, url.port, ssl=self._context(url), limit=limit
        )
        try:
            reader, writer = await asyncio.wait_for(opening, wait)
        except asyncio.TimeoutError:
            raise ConnectionLost(
                f"{url.origin}: no connection within {wait} s"
            ) from None
        except (OSError, UnicodeError) as error:  # DNS, refused, TLS; no host name
            text = self._tls_fault(url, error) or str(error)
            raise ConnectionLost(f"{url.origin}: {text}") from error
        pinned = self._tls.get("fingerprint")
        if pinned and url.scheme == "https" and url.origin == self.url.origin:
            import hashlib

            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            if hashlib.sha256(certificate).hexdigest() != pinned:
                writer.transport.abort()
                raise ConnectionLost(
                    f"{url.origin}: not the certificate that was pinned"
                )
        return _Connection(reader, writer)

    def _tls_fault(self, url: _Url, error: Exception) -> str:
        """What is wrong with its TLS, and which option would do; "" of other errors."""
        if url.scheme == "http" or not isinstance(error, ssl.SSLError):
            return ""
        if error.reason == "WRONG_VERSION_NUMBER":
            return "no TLS there (perhaps the server speaks http:// alone)"
        if not isinstance(error, ssl.SSLCertVerificationError):
            return ""
        text = f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
        ways = []
        misnamed = error.verify_code in (62, 64)  # X509_V_ERR_ HOSTNAME_, IP_ADDRESS_
        if not self._tls.get("ca_file") and not misnamed:
            ways.append("ca_file=")
        if url.origin == self.url.origin:
            ways.append("fingerprint=")
        if self._tls.get("ssl_context") or not ways:
            return text
        return f"{text} (trust it with {' or '.join(ways)})"

    async def _take(self, url: _Url, again: bool, fresh: bool) -> _Connection:
        await self._free.acquire()
        try:
            while self._idle and url.origin == self.url.origin and not fresh:
                connection = self._idle.pop()
                if not again:
                    await asyncio.sleep(0)  # sees whether the server has closed it
                age = time.monotonic() - connection.idle_since
                if connection.reusable() and age < self.limits.idle_timeout:
                    connection.used = True
                    break
                connection.abort()
            else:
                connection = await self._connect(url)
        except BaseException:
            self._free.release()
            raise
        connection.pooled = url.origin == self.url.origin
        self._open.add(connection)
        return connection

    def give(self, connection: _Connection, call: Optional[_Call] = None) -> None:
        """Done with it: keep it for the next request, or close it."""
        if call is not None:
            call.abort = None
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._free.release()
        connection.idle_since = time.monotonic()
        room = connection.pooled and len(self._idle) < self.limits.idle
        if room and connection.reusable():
            self._idle.append(connection)
        else:
            connection.abort()

    async def exchange(
        self,
        method: str,
        url: _Url,
        headers: Iterable[tuple[str, str]],
        body: bytes = b"",
        call: Optional[_Call] = None,
        again: bool = True,
        fresh: bool = False,
    ) -> _Connection:
        """Send a request, read the head of its response.

        again: it changes nothing. fresh: over a connection of its own.
        """
        for _ in range(4):
            lines = [f"{method} {url.target} HTTP/1.1", f"Host: {url.authority}"]
            lines += [f"{name}: {value}" for name, value in headers]
            if body or method == "POST":
                lines.append(f"Content-Length: {len(body)}")
            if any("\r" in line or "\n" in line for line in lines):
                raise ValueError("a header value with a line end in it")
            data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
            connection = await self._send(url, data, call, again, fresh)
            if connection.status not in (307, 308):
                return connection
            location = connection.headers.get("location", "")
            self.give(connection, call)
            try:
                target = url.join(location)
            except ValueError:
                raise _Redirected(f"a redirect to {location!r}") from None
            if target.origin != url.origin:
                raise _Redirected(f"refused a redirect to {target.origin}")
            url = target
        raise _Redirected("too many redirects")

    async def _send(
        self,
        url: _Url,
        data: bytes,
        call: Optional[_Call],
        again: bool,
        fresh: bool = False,
    ) -> _Connection:
        while True:
            taking = self._take(url, again, fresh)
            if call is None:
                connection = await taking
            else:
                connection = await self._in_time(taking, call)
                call.abort = connection.abort
            try:
                if call is None or not call.future.done():  # its time may be over
                    connection.writer.write(data)
                    await connection.head()
                    self._heard = True
                return connection
            except ConnectionLost as error:
                self._drop(connection)
                # The server may close an idle connection just when it is used again.
                if again and connection.used:
                    continue
                if url.scheme == "http" and connection.mute and not self._heard:
                    why = "without an answer (perhaps it speaks https:// alone)"
                    raise ConnectionLost(f"{url.origin}: {error} {why}") from None
                raise
            except BaseException:
                self._drop(connection)
                raise

    async def _in_time(self, taking: Any, call: _Call) -> _Connection:
        """A connection, unless the time of the call is over before there is one."""
        task: asyncio.Task[_Connection] = asyncio.ensure_future(taking)
        call.abort = task.cancel
        if call.future.done():
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and not task.exception():
                self._drop(task.result())
            if call.future.done():
                raise ConnectionLost("no connection in time") from None
            raise
        finally:
            call.abort = None

    def _drop(self, connection: _Connection) -> None:
        connection.abort()
        self.give(connection)

    async def whole(
        self, connection: _Connection, limit: float, call: Optional[_Call] = None
    ) -> bytes:
        """The body of a response, after which the connection is given back."""
        try:
            return await connection.body(limit)
        finally:
            self.give(connection, call)

    async def fetch(
        self, method: str, url: str, headers: Json, body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """A whole request for oauth.py: (status, headers, body)."""

        async def whole() -> tuple[int, dict[str, str], bytes]:
            # A code, or a refresh token that rotates, is good for one request: it may
            # neither be sent twice nor meet a kept connection that is closed just then.
            once = method != "GET"
            connection = await self.exchange(
                method, target, headers.items(), body, again=not once, fresh=once
            )
            data = await self.whole(connection, 1 << 20)
            return connection.status, connection.headers, data

        try:
            target = _Url(url)
            return await asyncio.wait_for(whole(), self.limits.timeout)
        except ValueError as error:
            raise ConnectionLost(str(error)) from None
        except asyncio.TimeoutError:
            text = f"{url}: no answer within {self.limits.timeout:.3g} s"
            raise ConnectionLost(text) from None

    def close(self) -> None:
        for connection in (*self._idle, *self._open):
            connection.abort()
        self._idle.clear()


_RETRY = 0.5  # seconds at least until a stream is opened again, whatever it asks for
_LONGEST = 30.0  # seconds at most, unless it asks for more
_BRIEF = 5.0  # seconds that a stream has to stand, if it brings nothing


class _Sse:
    """An event stream in pieces -> the data of its events."""

    def __init__(self, limit: float) -> None:
        self.last_id = ""
        self.count = 0  # events so far
        self.retry = 1.0  # seconds
        self._limit = limit
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the message events that are complete by now."""
        self._rest += piece
        self._size += len(piece)
        if self._size > self._limit:
            raise ConnectionLost(f"an event is longer than {self._limit} bytes")
        if b"\n" not in piece and b"\r" not in piece:
            return []
        held = b"\r" if self._rest.endswith(b"\r") else b""  # half of a CR LF, perhaps
        lines = re.split(
            rb"\r\n|\n|\r", bytes(self._rest[: len(self._rest) - len(held)])
        )
        self._rest = bytearray(lines.pop() + held)
        events = []
        for line in lines:
            if line:
                self._field(line)
                continue
            if any(self._data):
                events.append(b"\n".join(self._data))
                self.count += 1
            self._data = []
            self._size = len(self._rest)
        return events

    def pause(self, useless: int = 0) -> float:
        """Seconds until it is opened again, after so many attempts that were no use."""
        pause = max(self.retry, _RETRY)
        return max(pause, min(pause * 2.0 ** min(useless, 9), _LONGEST))

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data" or name == b"\xef\xbb\xbfdata":
            self._data.append(value)
        elif name == b"id" and b"\0" not in value:
            self.last_id = value.decode("latin-1")
        elif name == b"retry" and re.match(rb"\d{1,7}\Z", value):
            self.retry = int(value) / 1000


# ---- 5 Byte streams ----------------------------------------------------------------
# One line, one message. A reader of its own, so that neither side can block the other;
# what waits to be written is bounded.


class _Stream:
    """A server at the other end of a byte stream: a Unix socket, a Server here."""

    http = False

    def __init__(
        self, target: Any, calls: _Calls, limits: ClientLimits, log: Log
    ) -> None:
        self.target = target
        self.lost: Optional[ConnectionLost] = None
        self.on_lost: Callable[[ConnectionLost], None] = lambda error: None
        self._calls, self._limits, self._log = calls, limits, log
        self._out: Any = None  # the transport that is written to
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect; also after close()."""
        self.lost, self._heard = None, False
        try:
            reader = await self._connect()
        except OSError as error:
            raise ConnectionLost(f"{self.target}: {error}") from error
        self._start(self._read(reader))

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _connect(self) -> asyncio.StreamReader:
        if isinstance(self.target, str):
            reader, writer = await asyncio.open_unix_connection(self.target)
        else:
            ours, theirs = socket.socketpair()
            self._start(self.target.serve(*await asyncio.open_connection(sock=theirs)))
            reader, writer = await asyncio.open_connection(sock=ours)
        self._out = writer.transport
        self._writer = writer  # a StreamWriter closes what nobody holds
        return reader

    async def request(self, call: _Call) -> Json:
        """Send a request and wait for its answer."""
        self._write(call.message)
        return await call.future

    async def notify(self, message: Json) -> None:
        """Send what has no answer."""
        self._write(message)

    def cancel(self, call: _Call, reason: str) -> bool:
        """True: a notification has to tell the server."""
        return self.lost is None

    def _write(self, message: Json) -> None:
        if self.lost is not None or self._out is None or self._out.is_closing():
            raise self.lost or ConnectionLost("not connected")
        if self._out.get_write_buffer_size() > self._limits.message:
            raise ConnectionLost("the server does not read what it is sent")
        self._out.write(_rt._encode(message) + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        buffer, skip = bytearray(), False
        while True:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            if not data:
                break
            buffer += data
            if b"\n" in data:
                *lines, buffer = buffer.split(b"\n")
                for line in lines[1:] if skip else lines:
                    self._line(bytes(line))
                skip = False
            if len(buffer) > self._limits.message:
                self._log(f"skipped a message over {self._limits.message} bytes")
                skip = True
            if skip:
                buffer.clear()
        self.lost = ConnectionLost(await self._reason())
        self._calls.fail_all(self.lost)
        self.on_lost(self.lost)

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        limits = self._limits
        try:
            message = _rt._decode(line, int(limits.depth), int(limits.digits))
        except MCPError as error:
            self._log(
                f"skipped a line that is no message: {line[:80]!r} ({error.message})"
            )
            return
        self._heard = True
        self._calls.receive(message)

    async def _reason(self) -> str:
        return "the server closed the connection"

    async def close(self) -> None:
        """End the connection."""
        out, self._out = self._out, None
        if out is not None:
            out.close()
        self.lost = self.lost or ConnectionLost("the client is closed")
        if len(self._tasks) > 1:  # a Server of this process ends by itself at EOF
            await asyncio.wait(self._tasks, timeout=self._limits.grace)
        await self._end_tasks()
        if out is not None and out.get_write_buffer_size():
            out.abort()  # a server that does not read would keep it open for ever

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _end_process(process: subprocess.Popen[bytes], grace: float) -> None:
    """Reap a child that was told to end; kill its group if it does not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_DRAIN = 0.5  # seconds for the rest of what a child said that hears nothing any more


class _Input:
    """The protocol of a child's stdin: tells when nobody reads that any more."""

    def __init__(self, broken: Callable[[], None]) -> None:
        self._broken = broken

    def connection_made(self, transport: object) -> None:
        pass

    pause_writing = resume_writing = lambda self: None

    def connection_lost(self, error: object) -> None:
        self._broken()


class _Exit:
    """Tells when a process has exited, if the system tells us (Linux)."""

    def __init__(self, process: int, exited: Callable[[], None]) -> None:
        self._exited = exited
        self._loop = asyncio.get_running_loop()
        self._file: Any = None
        with contextlib.suppress(AttributeError, OSError):
            file = open(os.pidfd_open(process), "rb", 0)
            self._loop.add_reader(file, self._ready)
            self._file = file

    @property
    def untold(self) -> bool:
        """True if the process has to be asked."""
        return self._file is None

    def _ready(self) -> None:
        self.close()
        self._exited()

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            self._loop.remove_reader(self._file)
            self._file.close()


class _Child(_Stream):
    """A server as a child process, leader of a process group of its own. POSIX only."""

    process: Optional[subprocess.Popen[bytes]] = None

    def __init__(
        self,
        argv: list[str],
        calls: _Calls,
        limits: ClientLimits,
        log: Log,
        options: Json,
    ) -> None:
        super().__init__(" ".join(argv), calls, limits, log)
        self._argv = argv
        self._options = options
        self._pipes: list[Any] = []
        self._tail = b""

    def __del__(self) -> None:
        """Nobody closed it and nobody can any more: the child ends all the same."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        if sys.is_finalizing():  # no thread begins any more, nothing is imported
            self._signal(9)  # SIGKILL
            return
        self._signal(signal.SIGTERM)
        ending = threading.Thread(
            target=_end_process, args=(process, self._limits.grace), daemon=True
        )
        try:
            ending.start()
        except RuntimeError:  # the interpreter ends
            self._signal(signal.SIGKILL)
        import warnings

        text = f"unclosed client of {self.target}"  # last: it raises with -W error
        warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    async def open(self) -> None:
        try:
            await super().open()
        except BaseException:
            self._kill()
            raise

    async def _connect(self) -> asyncio.StreamReader:
        mode = self._options["stderr"]
        modes: Json = {"tail": subprocess.PIPE, "inherit": None}
        modes["ignore"] = subprocess.DEVNULL
        self._tail = b""
        self.process = process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=modes[mode] if isinstance(mode, str) else mode,
            env=self._options["env"],
            cwd=self._options["cwd"],
            start_new_session=True,
        )
        loop = asyncio.get_running_loop()
        if process.stderr is not None:
            self._start(self._drain(await self._reader(process.stderr)))
        reader = await self._reader(process.stdout)
        child = weakref.ref(self)  # what waits in the loop keeps no forgotten client

        def deaf() -> None:
            transport = child()
            if transport is not None and transport.lost is None:
                transport._give_up()

        self._output = self._pipes[-1]
        made: Any = _Input(deaf)
        self._out, _ = await loop.connect_write_pipe(lambda: made, process.stdin)
        self._exit = _Exit(process.pid, deaf)
        self._pipes.append(self._exit)
        return reader

    def _give_up(self) -> None:
        """It hears nothing any more. Its output may stay open for ever, as that of a
        process that it has left behind, so that the end is made here."""
        asyncio.get_running_loop().call_later(_DRAIN, self._output.close)

    def _write(self, message: Json) -> None:
        if self.lost is None and self._out is not None:
            if self._out.is_closing():
                return  # the end of `_read` is near: it fails this call, too, and why
            if self._exit.untold and self._gone():
                self._give_up()
        super()._write(message)

    async def _reader(self, pipe: Any) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._pipes.append(transport)
        return reader

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        """Read stderr, so that the child never blocks on it; keep the end (A14)."""
        data = await reader.read(65536)
        while data:
            self._tail = (self._tail + data)[-int(self._limits.stderr) :]
            data = await reader.read(65536)

    async def _reason(self) -> str:
        deaf = self._out is not None and self._out.is_closing()
        text = f"the server closed its {'input' if deaf else 'output'}"
        if await self._wait(0.5):
            code = self._reap()
            text = f"the server exited with code {code}"
            if code == 0 and not self._heard:
                text += " before it answered: does it call server.run()?"
            if code < 0:
                text = f"the server was ended by signal {-code}"
        words = self._tail.decode("utf-8", "replace").strip()[-500:]
        return f"{text}; its last words: {words}" if words else text

    def _gone(self) -> bool:
        """True once the child has exited; it stays a zombie and its group id ours."""
        process = self.process
        if process is None or process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return process.poll() is not None
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, process.pid, flags) is not None
        except ChildProcessError:  # somebody else has waited for it
            return process.poll() is not None

    async def _wait(self, seconds: float) -> bool:
        end, pause = time.monotonic() + seconds, 0.001
        while not self._gone():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def _reap(self) -> int:
        """The exit code; what is left of the group ends with its leader."""
        self._signal(signal.SIGKILL)
        process = self.process
        if process is None:
            return 0
        try:
            return process.wait(self._limits.grace)
        except subprocess.TimeoutExpired:  # killed, but slow: no zombie may stay
            threading.Thread(target=process.wait, daemon=True).start()
            return 0

    def _kill(self) -> None:
        """End it at once, without waiting for the loop."""
        self._reap()
        for pipe in self._pipes:
            pipe.close()
        process = self.process
        out = self._out
        # One that closes with nothing left to write has its end scheduled; to abort it
        # too would call connection_lost twice.
        if out is not None and not (
            out.is_closing() and not out.get_write_buffer_size()
        ):
            out.abort()
        for stream in (
            (process.stdin, process.stdout, process.stderr) if process else ()
        ):
            if stream is not None:  # the transports that have them let go first
                stream.close()
        self._pipes, self._out = [], None

    async def close(self) -> None:
        """Close stdin, wait, SIGTERM, wait, SIGKILL (STD-05)."""
        self.lost = self.lost or ConnectionLost("the client is closed")
        try:
            if self._out is not None:
                self._out.close()
            if not await self._wait(self._limits.grace):
                self._signal(signal.SIGTERM)
                await self._wait(self._limits.grace)
        finally:
            self._kill()
        await self._end_tasks()


# ---- 6 Streamable HTTP -------------------------------------------------------------
# Both eras: the headers of a request follow from its own _meta, so that header and body
# always agree. A reply is read here, an SSE reply by a task that may outlive the call.


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _HttpTransport:
    """A server behind a URL."""

    http = True
    lost: Optional[ConnectionLost] = None
    on_lost: Callable[[ConnectionLost], None]

    def __init__(
        self, url: _Url, calls: _Calls, limits: ClientLimits, log: Log, options: Json
    ) -> None:
        self.target = url.text
        self.version = ""  # what a legacy initialize agreed on
        self.session = ""
        self.principal = ""  # the Authorization that was sent last
        self._url, self._calls, self._limits, self._log = url, calls, limits, log
        self._auth: Auth = options["auth"]
        self._fixed = list((options["headers"] or {}).items())
        self._tls = options
        self.on_lost = lambda error: None
        self.on_session_lost: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing: Optional[asyncio.Task[None]] = None
        self._http: Any = None  # an _Http, once it is open

    async def open(self) -> None:
        self._http = _Http(self._url, self._limits, self._tls)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sending

    async def request(self, call: _Call) -> Json:
        """Send a request and wait for its answer."""
        session = self.session
        try:
            connection = await self._post(call.message, call)
            if call.method == "initialize" and connection.status == 200:
                self.session = self._new_session(connection)
            if (
                connection.status == 200
                and connection.media_type == "text/event-stream"
            ):
                self._spawn(self._pump(connection, call))
            else:
                await self._reply(connection, call, session)
        except ConnectionLost as error:
            call.fail(error)
        return await call.future

    def _new_session(self, connection: _Connection) -> str:
        session = connection.headers.get("mcp-session-id", "")
        if session and not _VISIBLE.match(session):
            self._http.give(connection)
            raise ConnectionLost(f"a session id that is not ASCII: {session[:40]!r}")
        return session

    async def notify(self, message: Json) -> None:
        """Send what has no answer; a refusal is logged, nobody waits for it."""
        try:
            status = await asyncio.wait_for(self._told(message), self._limits.timeout)
        except (ConnectionLost, asyncio.TimeoutError) as error:
            why = str(error) or "the server does not answer"
            self._log(f"could not send {message.get('method', 'an answer')}: {why}")
        else:
            if status >= 300:
                self._log(f"{message.get('method', 'an answer')}: {status}")

    async def _told(self, message: Json) -> int:
        connection = await self._post(message)
        await self._http.whole(connection, 65536)
        return connection.status

    def cancel(self, call: _Call, reason: str) -> bool:
        """Closing the stream says it, but not to a legacy server (HTM-17, HTL-13)."""
        if call.abort is not None:
            call.abort()
        return bool(self.version)

    async def _post(self, message: Json, call: Optional[_Call] = None) -> _Connection:
        body = _rt._encode(message)
        accept = ("Accept", "application/json, text/event-stream")
        headers = [
            accept,
            ("Content-Type", "application/json"),
            *self._standard(message),
        ]
        headers += call.headers if call is not None else []
        again = message.get("method") != "tools/call"
        return await self._authorized("POST", headers, body, call, again)

    def _standard(self, message: Json) -> list[tuple[str, str]]:
        method, params = message.get("method"), message.get("params") or {}
        version = (params.get("_meta") or {}).get(_rt._VERSION_KEY)
        if version is not None:
            headers = [("MCP-Protocol-Version", version), ("Mcp-Method", str(method))]
            if method in _rt._NAMED:
                name = params.get(_rt._NAMED[method], "")
                headers.append(("Mcp-Name", _header_value(name)))
            return headers
        return [] if method == "initialize" else self._of_session()

    def _of_session(self) -> list[tuple[str, str]]:
        headers = []
        if self.version >= "2025-06-18":
            headers.append(("MCP-Protocol-Version", self.version))
        if self.session:
            headers.append(("Mcp-Session-Id", self.session))
        return headers

    async def _authorized(
        self,
        method: str,
        headers: list[tuple[str, str]],
        body: bytes = b"",
        call: Optional[_Call] = None,
        again: bool = True,
        ask: bool = True,
        tried: Optional[set[str]] = None,
    ) -> _Connection:
        """One exchange, and more of them when the server asks for authorization."""
        if tried is None:
            tried = set() if call is None else call.tried
        while True:
            all_headers = [*self._fixed, *headers]
            if self._auth is not None:
                with self._calls.paused():
                    granted = await self._auth.headers(self._http)
                all_headers += granted.items()
            sent = {name.lower(): value for name, value in all_headers}
            authorization = sent.get("authorization", "")
            self.principal = authorization
            connection: _Connection = await self._http.exchange(
                method, self._url, all_headers, body, call, again
            )
            if connection.status not in (401, 403) or not ask:
                return connection
            # Not self.principal: another call may have sent a newer token meanwhile.
            await self._challenged(connection, call, authorization, tried)

    async def _challenged(
        self,
        connection: _Connection,
        call: Optional[_Call],
        sent: str,
        tried: set[str],
    ) -> None:
        """Return when it is worth asking again, else raise."""
        status, text = connection.status, await self._text(connection, call)
        if self._auth is not None:
            with self._calls.paused():
                if await self._auth.challenged(
                    self._http, status, connection.headers, sent, tried
                ):
                    return
        elif status == 401:
            credential = "token" if sent.lower().startswith("bearer ") else "header"
            why = f"the server does not take this {credential}"
            if not sent:
                why = "it asks for authorization: give auth= or headers="
            text += f" ({why})"
        raise HttpStatusError(status, text)

    async def _text(self, connection: _Connection, call: Optional[_Call] = None) -> str:
        """A status as a sentence, from a response whose body is of no other use."""
        body = await self._http.whole(connection, self._limits.message, call)
        return self._sentence(connection, body)

    def _sentence(self, connection: _Connection, body: bytes) -> str:
        text = f"{self.target}: HTTP {connection.status}"
        if 300 <= connection.status < 400:
            return f"{text}, a redirect to {connection.headers.get('location', '?')}"
        said = self._said(body) or re.sub(
            r"<[^>]*>", " ", body.decode("utf-8", "replace")
        )
        words = " ".join(said.split())
        return f"{text}: {words[:200]}" if words else text

    def _said(self, body: bytes) -> str:
        """The message of an error of JSON-RPC or OAuth; "" of anything else."""
        message: Any = None
        with contextlib.suppress(MCPError):
            message = self._decode(body)
        error = message.get("error") if isinstance(message, dict) else None
        if isinstance(error, dict):
            found = error.get("message")
        else:
            found = error and (message.get("error_description") or error)
        return found if isinstance(found, str) else ""

    # Replies

    def _decode(self, data: bytes) -> Any:
        limits = self._limits
        return _rt._decode(data, int(limits.depth), int(limits.digits))

    async def _reply(self, connection: _Connection, call: _Call, session: str) -> None:
        data = await self._http.whole(connection, self._limits.message, call)
        message: Any = None
        with contextlib.suppress(MCPError):
            message = self._decode(data)
        id = message.get("id") if isinstance(message, dict) else None
        named = type(id) is int and id == call.id
        unnamed = isinstance(message, dict) and id is None and "error" in message
        status = connection.status
        call.refused = status >= 400
        if status == 404 and session and not named:
            call.fail(_SessionLost("the server ended the session"))
        elif named or unnamed:
            self._calls.receive({**message, "id": call.id})
        elif isinstance(message, list) and status == 200:
            self._calls.receive(message)
        elif id is not None:  # of another request: what follows on it is one behind
            connection.abort()
        call.fail(HttpStatusError(status, self._sentence(connection, data)))

    async def _pump(self, connection: _Connection, call: _Call) -> None:
        """Hand over an SSE reply, over several connections if need be (HTL-12)."""
        sse = _Sse(self._limits.message)
        try:
            while True:
                await self._events(connection, sse, call)
                if call.future.done():
                    return
                if not self.version or not sse.last_id:
                    raise ConnectionLost("the stream ended before the answer")
                await asyncio.wait([call.future], timeout=sse.pause())
                if call.future.done():
                    return
                connection = await self._get(sse.last_id, call)
        except (ClientError, ValueError) as error:  # of OAuth, too
            call.fail(error)

    async def _events(
        self, connection: _Connection, sse: _Sse, call: Optional[_Call] = None
    ) -> None:
        """Receive what one connection brings, to its end."""
        try:
            piece = await connection.read()
            while piece:
                for data in sse.feed(piece):
                    self._message(data)
                if call is not None and call.future.done():
                    await asyncio.wait_for(connection.body(65536), 1.0)  # to keep it
                piece = await connection.read()
        except (ConnectionLost, asyncio.TimeoutError):
            connection.abort()
        finally:
            self._http.give(connection, call)

    def _message(self, data: bytes) -> None:
        try:
            self._calls.receive(self._decode(data))
        except MCPError as error:
            self._log(f"skipped an event that is no message: {error.message}")

    # The GET stream and the end of a legacy session

    async def _get(
        self,
        last_id: str,
        call: Optional[_Call] = None,
        tried: Optional[set[str]] = None,
    ) -> _Connection:
        headers = [("Accept", "text/event-stream"), *self._of_session()]
        if last_id:
            headers.append(("Last-Event-ID", last_id))
        connection = await self._authorized("GET", headers, b"", call, tried=tried)
        if connection.status != 200 or connection.media_type != "text/event-stream":
            self._http.give(connection, call)
            raise HttpStatusError(connection.status, f"no stream: {connection.status}")
        return connection

    async def listen(self) -> None:
        """Open the GET stream; back when it stands, or the server has none."""
        if self._standing is not None:
            self._standing.cancel()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._standing = self._spawn(self._stand(ready))
        await asyncio.wait([ready], timeout=1.0)  # a proxy may hold the head back

    async def _stand(self, ready: asyncio.Future[None]) -> None:
        sse, failures, brief = _Sse(self._limits.message), 0, 0
        lost, stood = ConnectionLost("no stream"), False
        tried: set[str] = set()  # nobody signs in again for one that does not stand
        while failures <= self._limits.retries:
            try:
                connection = await self._get(sse.last_id, tried=tried)
                _finish(ready)
                failures, stood = 0, True
                count, began = sse.count, time.monotonic()
                await self._events(connection, sse)
                useful = sse.count > count or time.monotonic() - began > _BRIEF
                brief = 0 if useful else brief + 1
                if time.monotonic() - began > _BRIEF:
                    tried.clear()
            except HttpStatusError as error:
                # 404: the session is over; at first, as 405: it offers no such stream.
                if error.status == 404 and stood and self.session:
                    self.on_session_lost()
                break
            except ConnectionLost as error:
                failures += 1
                lost = error
            except (ClientError, ValueError) as error:  # of OAuth
                self._log(f"no stream for what the server says by itself: {error}")
                break
            # One that ends at once may want to be polled, a row of them is broken.
            await asyncio.sleep(sse.pause(failures + max(brief - 1, 0)))
        else:
            self.on_lost(lost)
        _finish(ready)

    async def close(self) -> None:
        """End the session and every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.session:
            with contextlib.suppress(ClientError, asyncio.TimeoutError):
                ending = self._authorized("DELETE", self._of_session(), ask=False)
                await asyncio.wait_for(ending, self._limits.grace)
        self.session = self.version = ""
        if self._http is not None:
            self._http.close()
