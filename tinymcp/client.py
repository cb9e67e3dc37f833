# SPDX-License-Identifier: MIT
"""The client: one object that talks to any MCP server. Optional beside the runtime.

    from tinymcp.client import Client

    async with Client("http://greenhouse.local:8000/mcp") as client:
        for tool in await client.list_tools():
            print(tool["name"])
        result = await client.call_tool("set_vent", {"percent": 40})
        print(result.text, result.structured_content)

A target is a URL, a command (a list, or a string that is split as a shell would), a
Unix socket ("unix:/run/greenhouse.sock", or the path of one that exists) or a Server of
this process. `with SyncClient(target) as client:` is the same without async.

 1 Results                3 Cache             5 Client
 2 Answers and checks     4 Subscriptions     6 SyncClient

transports.py carries the messages. Here the era is found out once, what the server asks
is answered (one function for both eras), and results are checked and cached.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import threading
import time

from . import tinymcp as _rt
from .tinymcp import MCPError
from .transports import (
    LEGACY,
    MODERN,
    ClientError,
    ClientLimits,
    ConnectionLost,
    HttpStatusError,
    InvalidReply,
    RequestTimeout,
    VersionError,
    _Call,
    _Calls,
    _checker,
    _Child,
    _fingerprint,
    _header_params,
    _header_paths,
    _HttpTransport,
    _SessionLost,
    _Stream,
    _Url,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Callable, Iterator, Optional, Union

    Json = dict[str, Any]
    Transport = Union[_Stream, _HttpTransport]
else:
    from .transports import asyncio

__all__ = [
    "Change",
    "Client",
    "ClientError",
    "ClientLimits",
    "ConnectionLost",
    "HttpStatusError",
    "InvalidReply",
    "MCPError",
    "RequestTimeout",
    "Result",
    "Subscription",
    "SyncClient",
    "VersionError",
]

# ---- 1 Results ---------------------------------------------------------------------


def _dict(value: object) -> Json:
    """What should be an object; {} if it is none."""
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    """What should be an array; [] if it is none."""
    return value if isinstance(value, list) else []


# 3.9 would build dict[str, Any] at each start, for the type checker alone.
class Result(dict):  # type: ignore[type-arg]
    """A result object as the server sent it, with short names for its members."""

    def _blocks(self, key: str) -> list[Json]:
        value = self.get(key)
        items = value if isinstance(value, list) else [value]
        return [item for item in items if isinstance(item, dict)]

    @property
    def content(self) -> list[Json]:
        """Content blocks of a tool result."""
        return self._blocks("content")

    @property
    def structured_content(self) -> Any:
        """The typed result of a tool, None if there is none."""
        return self.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """True if the tool says that it failed."""
        return self.get("isError") is True

    @property
    def contents(self) -> list[Json]:
        """What resources/read gave."""
        return self._blocks("contents")

    @property
    def messages(self) -> list[Json]:
        """What prompts/get gave."""
        return self._blocks("messages")

    @property
    def completions(self) -> list[str]:
        """What completion/complete gave."""
        values = _dict(self.get("completion")).get("values")
        return values if isinstance(values, list) else []

    @property
    def text(self) -> str:
        """All text in it, one block after the other."""
        blocks = [*self.content, *self.contents]
        for message in self.messages:
            blocks += Result(message).content
        texts = (b.get("text", _dict(b.get("resource")).get("text")) for b in blocks)
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def data(self) -> bytes:
        """Bytes of the first resource content."""
        first = self.contents[0] if self.contents else {}
        if "blob" in first:
            try:
                return binascii.a2b_base64(first["blob"])
            except (TypeError, ValueError) as error:
                raise InvalidReply(f"the blob is not Base64: {error}") from None
        return str(first.get("text", "")).encode()


# ---- 2 Answers and checks ----------------------------------------------------------
# What callbacks give as results for the server; what results have to be like.


def _defaults(schema: object) -> Json:
    """What a form holds before a person touches it (ELI-01)."""
    return {
        name: field["default"]
        for name, field in _dict(_dict(schema).get("properties")).items()
        if isinstance(field, dict) and "default" in field
    }


def _yes(schema: object) -> Json:
    """What a bare True says to a form: yes to the one thing that it must know."""
    fields = _dict(_dict(schema).get("properties"))
    needed = _list(_dict(schema).get("required"))
    asked = [
        name
        for name, field in fields.items()
        if _dict(field).get("type") == "boolean"
        and (len(fields) == 1 or (name in needed and "default" not in field))
    ]
    return {asked[0]: True} if len(asked) == 1 else {}


def _constant(roots: Any) -> Optional[Callable[..., Any]]:
    return roots if roots is None or callable(roots) else lambda params: roots


def _capabilities(
    answers: Json, sampling: Optional[Json], extensions: Optional[Json]
) -> Json:
    """What the callbacks amount to."""
    declared: Json = {}
    modes = {"form": "elicitation/create", "url": "elicitation/create url"}
    offered: Json = {
        mode: {} for mode, key in modes.items() if answers[key] is not None
    }
    if offered:
        declared["elicitation"] = offered
    if answers["sampling/createMessage"] is not None:
        declared["sampling"] = sampling or {}
    if answers["roots/list"] is not None:
        declared["roots"] = {}
    if extensions:
        declared["extensions"] = extensions
    return declared


def _common(error: MCPError, ours: tuple[str, ...]) -> str:
    """The first of our revisions that the data of a -32022 names."""
    offered = error.data.get("supported") if isinstance(error.data, dict) else None
    return next((v for v in ours if isinstance(offered, list) and v in offered), "")


def _elicited(value: Any, params: Json) -> Json:
    """An ElicitResult from what a callback gave: it, an action or content (ELI-02)."""
    agreed = value is True
    if value is None or isinstance(value, (str, bool)):
        actions = {True: "accept", False: "decline", None: "cancel"}
        value = {"action": value if isinstance(value, str) else actions[value]}
    if "action" not in value:
        value = {"action": "accept", "content": value}
    if value["action"] == "accept" and params.get("mode") != "url":
        schema = params.get("requestedSchema")
        filled = {**_defaults(schema), **(value.get("content") or {})}
        if agreed:
            filled.update(_yes(schema))
        return {**value, "content": filled}
    return dict(value)


def _hashable(id: object) -> object:
    return id if isinstance(id, (str, int)) else None


async def _swallow(work: Any, log: Callable[[str], None]) -> None:
    try:
        await work
    except Exception as error:
        log(f"a callback failed: {error!r}")


async def _run(callback: Callable[..., Any], params: Json) -> Any:
    """An async callback here, a plain one on a thread of its own, where it may wait."""
    import inspect

    if inspect.iscoroutinefunction(callback):
        return await callback(params)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Optional[BaseException]) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(value)

    def work() -> None:
        value, problem = None, None
        try:
            value = callback(params)
        except BaseException as error:
            problem = error
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                # A future takes no StopIteration, and SystemExit would end the loop.
                problem = ClientError(f"a callback raised {error!r}")
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, daemon=True, name="tinymcp-callback").start()
    value = await future
    return await value if hasattr(value, "__await__") else value


class _Teller:
    """Does one job after the other, on a thread that begins with the first."""

    def __init__(self, limits: ClientLimits, log: Callable[[str], None]) -> None:
        self._limits, self._log = limits, log
        self._news = threading.Condition()
        self._jobs: list[Callable[[], None]] = []
        self._given = self._done = 0  # jobs
        self._full = self._ended = False
        self._thread: Optional[threading.Thread] = None

    def tell(self, job: Callable[[], None]) -> None:
        """Have it done soon; where too many wait already, not at all."""
        full = len(self._jobs) >= self._limits.changes
        if full and not self._full:
            self._log("a callback is too slow: it is not told everything")
        self._full = full
        if full:
            return
        with self._news:
            self._jobs.append(job)
            self._given += 1
            self._news.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, daemon=True, name="tinymcp-notifications"
            )
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._jobs or self._ended)
                if self._ended:
                    return
                job = self._jobs.pop(0)
            try:
                job()
            except BaseException as error:  # SystemExit would end it for all that wait
                self._log(f"a callback raised {error!r}")
            with self._news:
                self._done += 1
                self._news.notify_all()

    def catch_up(self) -> None:
        """Wait until what was given is done; a slow callback holds nobody for long."""
        given = self._given
        if self._done >= given or self._thread is threading.current_thread():
            return
        with self._news:
            over = self._news.wait_for
            over(lambda: self._done >= given or self._ended, self._limits.grace)

    def end(self) -> None:
        """Begin no other job."""
        with self._news:
            self._ended = True
            self._news.notify_all()
        if self._thread is not None and self._done == self._given:
            self._thread.join()


# ---- 3 Cache -----------------------------------------------------------------------
# Results stay as the bytes they are: a caller who changes one changes nothing here.


_DAY = 86400.0  # seconds; a result that is fresh for longer is asked for again


class _Cache:
    """Results by method, parameters and principal, while they are fresh (CCH-03)."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._kept: dict[tuple[str, bytes, str], tuple[float, bytes]] = {}
        self._bytes = 0
        self.dropped: dict[str, int] = {}  # method -> how often it was invalidated

    def get(self, method: str, params: Json, principal: str) -> Optional[Json]:
        wanted = _rt._encode(params)
        for key in ((method, wanted, ""), (method, wanted, "private:" + principal)):
            until, data = self._kept.get(key, (0.0, b""))
            if until > time.monotonic():
                result: Json = _rt._decode(data, 1 << 20, 1 << 20)
                return result
        return None

    def put(self, method: str, params: Json, principal: str, result: Json) -> None:
        ttl: Any = result.get("ttlMs")
        if type(ttl) not in (int, float) or ttl <= 0:
            return
        if result.get("resultType") != "complete":  # a question is asked but once
            return
        owner = "" if result.get("cacheScope") == "public" else "private:" + principal
        key = (method, _rt._encode(params), owner)
        self._pop(key)
        seconds = min(ttl, _DAY * 1000) / 1000
        self._kept[key] = (time.monotonic() + seconds, _rt._encode(result))
        self._bytes += len(self._kept[key][1])
        while (
            len(self._kept) > self._limits.cache or self._bytes > self._limits.message
        ):
            self._pop(next(iter(self._kept)))

    def _pop(self, key: tuple[str, bytes, str]) -> None:
        self._bytes -= len(self._kept.pop(key, (0, b""))[1])

    def drop(self, method: str, params: Optional[Json] = None) -> None:
        """The server said that it has changed."""
        self.dropped[method] = self.dropped.get(method, 0) + 1
        wanted = None if params is None else _rt._encode(params)
        for key in [k for k in self._kept if k[0] == method]:
            if wanted is None or key[1] == wanted:
                self._pop(key)


_STALE = {  # notification -> methods whose results it makes stale
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": (
        "resources/list",
        "resources/templates/list",
    ),
    "notifications/resources/updated": ("resources/read",),
}


# ---- 4 Subscriptions ---------------------------------------------------------------
# One iterator for both eras. After a break it re-listens and reports every watched
# resource once: what happened in between is unknown (SUB-05).


class Change:
    """The server says that something is different now."""

    __slots__ = ("kind", "method", "params", "uri")

    def __init__(self, method: str, params: Json) -> None:
        self.method = method
        self.params = params
        self.uri: Optional[str] = params.get("uri")
        # "updated", "tools", "prompts" or "resources"
        self.kind = "updated" if self.uri is not None else method.split("/")[1]

    def __repr__(self) -> str:
        return f"Change({self.kind!r}, {self.uri!r})"


class Subscription:
    """Changes of one server as an async iterator; the same change waits only once."""

    def __init__(
        self,
        client: Client,
        uris: tuple[str, ...],
        tools: bool,
        prompts: bool,
        resources: bool,
    ) -> None:
        self.uris = uris
        self.honored: Json = {}  # what the server agreed to
        wanted = {"tools": tools, "prompts": prompts, "resources": resources}
        self._wanted = {
            f"notifications/{k}/list_changed" for k, on in wanted.items() if on
        }
        self._filter: Json = {f"{k}ListChanged": True for k, on in wanted.items() if on}
        if uris:
            self._filter["resourceSubscriptions"] = list(uris)
        self._client = client
        self._waiting: dict[tuple[str, Optional[str]], Change] = {}
        self._task: Optional[asyncio.Task[Any]] = None
        self._call: Optional[_Call] = None  # the listen request that is open
        self._taken: Optional[_Call] = None  # the last one that was acknowledged
        self._started = False
        self._ended = False
        self._error: Optional[Exception] = None

    async def __aenter__(self) -> Subscription:
        self._started = True
        self._wake, self._ready = asyncio.Event(), asyncio.Event()
        client = self._client
        await client._ensure()
        if client.modern:
            self._task = client._spawn(self._listen())
            try:
                await self._ready.wait()
            except asyncio.CancelledError:
                self._task.cancel()
                raise
            if self._error is not None:
                raise self._error
        else:
            client._watching.append(self)
            try:
                await self._subscribe()
            except BaseException:
                client._watching.remove(self)
                raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.finish(None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self in self._client._watching:
            self._client._watching.remove(self)
            await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        """Tell a legacy server which resources nobody watches any more."""
        client = self._client
        others = {uri for other in client._watching for uri in other.uris}
        for uri in set(self.uris) - others:
            with contextlib.suppress(ClientError, MCPError):
                await client._send("resources/unsubscribe", {"uri": uri})

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Change:
        if not self._started:
            await self.__aenter__()
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    # What the client tells it

    def received(self, method: str, params: Json) -> None:
        """A notification that may be for this subscription."""
        uri = params.get("uri")
        if method == "notifications/subscriptions/acknowledged":
            self.honored = _dict(params.get("notifications"))
            for name in self._filter.keys() - self.honored.keys():
                self._client._log(f"the server does not report {name}")
            if self._ready.is_set():
                self._missed()
            self._ready.set()
            if self._call is not None:
                self._taken = self._call
                self._call.endless()
        elif method in self._wanted or (isinstance(uri, str) and self._covers(uri)):
            self._put(Change(method, params))

    def _covers(self, uri: str) -> bool:
        return any(u == uri or uri.startswith(u.rstrip("/") + "/") for u in self.uris)

    def _put(self, change: Change) -> None:
        key = change.method, change.uri
        if key not in self._waiting and (
            len(self._waiting) >= self._client.limits.changes
        ):
            self.finish(ClientError("too many changes wait to be read"))
            return
        self._waiting[key] = change
        self._wake.set()

    def finish(self, error: Optional[Exception]) -> None:
        """The last change has come."""
        if self._started and not self._ended:
            self._ended, self._error = True, error
            self._ready.set()
            self._wake.set()

    def broken(self, error: ConnectionLost) -> None:
        """The stream of a legacy server broke; a restart subscribes again."""
        if not self._client._restart:
            self.finish(error)
        else:
            self._client._spawn(self.mend())

    async def mend(self) -> None:
        try:
            await self._client._ensure()
        except Exception as error:  # of OAuth, too
            self.finish(error)

    async def resume(self) -> None:
        """Subscribe again, with whatever server there is after a break; what prevents
        it is told to who reads the changes."""
        client = self._client
        if self._ended:
            return
        if client.modern:  # it was a legacy one before
            client._watching.remove(self)
            self._ready.set()
            self._task = client._spawn(self._listen())
            return
        try:
            await self._subscribe()
        except Exception as error:  # of OAuth, too
            self.finish(error)
        else:
            self._missed()
            self._ready.set()

    async def _subscribe(self) -> None:
        offered = _dict(self._client.capabilities.get("resources"))
        if self.uris and not offered.get("subscribe"):
            raise ClientError("the server does not offer subscriptions to resources")
        for uri in self.uris:
            await self._client._request("resources/subscribe", {"uri": uri})

    def _missed(self) -> None:
        """Anything may have changed while nobody listened."""
        for uri in self.uris:
            self._put(Change("notifications/resources/updated", {"uri": uri}))
        for method in self._wanted:
            self._put(Change(method, {}))

    # subscriptions/listen

    async def _listen(self) -> None:
        client, failures = self._client, 0
        while True:
            self._call = None
            try:
                await client._ensure()
                if not client.modern:  # it was a modern one before
                    client._watching.append(self)
                    return await self.resume()
                await self._stream()
                return self.finish(None)  # the server ended it in good order
            except (ClientError, MCPError) as error:
                refused = self._call is not None and self._call.refused
                if refused and isinstance(error, (HttpStatusError, MCPError)):
                    client._doubt(error)  # a legacy server may be there now
                if isinstance(error, MCPError) and client._agreed:
                    return self.finish(error)
                failures = 1 if self._acknowledged(self._call) else failures + 1
                streamless = client._transport.lost is not None and not client._restart
                early = not self._ready.is_set()
                if streamless or early or failures > client.limits.retries:
                    return self.finish(error)
            except Exception as error:  # of OAuth: its storage, the callbacks
                return self.finish(error)
            pause = 2 ** (failures - 1) * (0.5 + os.urandom(1)[0] / 256)
            await asyncio.sleep(min(pause, 30.0))

    def _acknowledged(self, call: Optional[_Call]) -> bool:
        """True if the server took it: what ends it is the first failure in a row."""
        return call is not None and call is self._taken

    async def _stream(self) -> None:
        """One listen request, from its acknowledgment to its end."""
        client = self._client
        params = {
            "_meta": client._meta(client.protocol_version),
            "notifications": self._filter,
        }
        self._call = call = client._calls.new("subscriptions/listen", params)
        call.limit(client.limits.timeout, client.limits.timeout, False)
        client._streams[call.id] = self
        try:
            await client._transport.request(call)
        except (RequestTimeout, asyncio.CancelledError):
            client._cancel(call, "unsubscribed")
            raise
        finally:
            client._streams.pop(call.id, None)
            call.close()


# ---- 5 Client ----------------------------------------------------------------------
# What users type. A method of the server is a method here; all of them take the options
# of _request: timeout=, max_timeout=, progress_callback=, reset_on_progress=, meta=.


_OPTIONS = ("timeout", "max_timeout", "progress_callback", "reset_on_progress", "meta")
_TAKEN = {*_OPTIONS, "headers", "_began"}  # by _send
_ASKING = ("tools/call", "prompts/get", "resources/read")  # may be input_required
_UNASKED = (  # what a new session is sent for no call
    "initialize",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
)
_NOT_OPEN = "the client is not open: use it in an async with statement"
_TARGET = "a URL, a command (a list or a string), unix:PATH or a Server"
_MODERN_ERRORS = (_rt.HEADER_MISMATCH, _rt.MISSING_CLIENT_CAPABILITY)
# What legacy HTTP servers say to a request without session, or of a revision that they
# do not know: a status without an answer, or these codes.
_UNMODERN = (400, 404, 405, 406, _rt.INVALID_REQUEST, _rt.UNSUPPORTED_VERSION, -32000)
_eras: dict[str, str] = {}  # URL -> "legacy" or "modern", for the life of this process


_KEPT_ENV = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_TRANSPORT_OPTIONS = {
    **dict.fromkeys(("headers", "auth", "ca_file", "client_cert", "fingerprint")),
    **dict.fromkeys(("ssl_context", "env", "cwd")),
    "inherit_env": False,
    "stderr": "tail",
}


def _misplaced(method: str, unknown: list[str]) -> str:
    """What is wrong with options that no method has."""
    name = {"tools/call": "call_tool", "prompts/get": "get_prompt"}.get(method)
    text = f"{name or method} has no option {', '.join(unknown)}"
    if name is None:
        return f"{text}; there are {', '.join(_OPTIONS)}"
    return f'{text}; arguments go into a dict: {name}(name, {{"{unknown[0]}": ...}})'


def _log(text: str) -> None:
    import logging

    logging.getLogger("tinymcp.client").warning("%s", text)


def _transport(
    target: object,
    calls: _Calls,
    limits: ClientLimits,
    log: Callable[..., None],
    given: Json,
) -> Transport:
    """The transport for a target, with the options that go with it."""
    options = {**_TRANSPORT_OPTIONS, **given}
    if options.keys() != _TRANSPORT_OPTIONS.keys():
        unknown = sorted(options.keys() - _TRANSPORT_OPTIONS.keys())
        known = [*(Client.__init__.__kwdefaults__ or ()), *_TRANSPORT_OPTIONS]
        bearer = 'a bearer token goes into headers={"Authorization": "Bearer ..."}'
        raise TypeError(
            f"Client has no option {', '.join(unknown)} ({bearer}); "
            f"there are {', '.join(known)}"
        )
    if options["fingerprint"] is not None:
        options["fingerprint"] = _fingerprint(options["fingerprint"])
    kept = os.environ if options["inherit_env"] else _KEPT_ENV
    inherited = {name: os.environ[name] for name in kept if name in os.environ}
    options["env"] = {**inherited, **(options["env"] or {})}
    if hasattr(target, "serve") and hasattr(target, "run"):
        return _Stream(target, calls, limits, log)
    if isinstance(target, (list, tuple)):
        return _Child([os.fspath(word) for word in target], calls, limits, log, options)
    if not isinstance(target, (str, os.PathLike)):
        raise TypeError(f"a target is {_TARGET}, not {type(target).__name__}")
    text: str = os.fspath(target)
    if text.lower().startswith(("http://", "https://")):
        return _HttpTransport(_Url(text), calls, limits, log, options)
    if text.startswith("unix:"):
        return _Stream(text[5:], calls, limits, log)
    scheme, mark, _ = text.partition("://")
    if mark and scheme.strip().isalnum():  # later in it there may be one: "cat a://b"
        raise ValueError(f"a URL begins with http:// or https://: {text!r:.80}")
    import stat

    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.stat(text).st_mode):
            return _Stream(text, calls, limits, log)
    import shlex

    return _Child(shlex.split(text), calls, limits, log, options)


class Client:
    """A connection to one MCP server: `async with Client(target) as client:`."""

    def __init__(
        self,
        target: object,
        *,
        mode: str = "auto",
        client_info: Optional[Json] = None,
        elicitation_callback: Optional[Callable[..., Any]] = None,
        url_callback: Optional[Callable[..., Any]] = None,
        sampling_callback: Optional[Callable[..., Any]] = None,
        sampling_capabilities: Optional[Json] = None,
        list_roots_callback: Union[Callable[..., Any], list[Any], None] = None,
        logging_callback: Optional[Callable[..., Any]] = None,
        message_handler: Optional[Callable[..., Any]] = None,
        log_level: Optional[str] = None,
        extensions: Optional[Json] = None,
        limits: Optional[ClientLimits] = None,
        cache: bool = True,
        check_results: bool = True,
        restart: bool = False,
        log: Callable[[str], None] = _log,
        **transport: Any,
    ) -> None:
        """Nothing is opened before `async with`.

        mode: "auto" asks the server, "legacy" or "2026-07-28" insists.
        Callbacks may be def (run on a thread) or async def; they get the params of the
        question: elicitation_callback answers forms, url_callback consents to a URL.
        restart: open a broken stream or a dead child again at the next call.

        For HTTP: headers, auth (an OAuth), ca_file, client_cert (file, or file and key
        file), ssl_context, fingerprint (the SHA-256 of the server's certificate,
        instead of the other checks).
        For a command: env (added to the harmless part of the environment), inherit_env
        (to all of it), cwd, stderr: "tail" (kept for error texts), "inherit", "ignore"
        or a file.
        """
        if mode not in ("auto", "legacy", *MODERN):
            raise ValueError(f"mode is auto, legacy or {MODERN[0]}, not {mode!r}")
        self.limits = limits = limits or ClientLimits()
        self._mode, self._level, self._log = mode, log_level, log
        self._info = client_info or {"name": "tinymcp", "version": _rt.__version__}
        self._answers: dict[str, Optional[Callable[..., Any]]] = {
            "elicitation/create": elicitation_callback,
            "elicitation/create url": url_callback,
            "sampling/createMessage": sampling_callback,
            "roots/list": _constant(list_roots_callback),
        }
        self._declared = _capabilities(self._answers, sampling_capabilities, extensions)
        self._logging, self._handler = logging_callback, message_handler
        self._cache = _Cache(limits) if cache else None
        self._check, self._restart = check_results, restart
        self._calls = _Calls(self._inbound, log, int(limits.in_flight))
        self._transport = _transport(target, self._calls, limits, log, transport)
        self._transport.on_lost = self._lost
        if isinstance(self._transport, _HttpTransport):
            self._transport.on_lost = self._unheard
            self._transport.on_session_lost = self._session_over
        self._tools: Optional[dict[str, Json]] = None
        self._paths: dict[str, Any] = {}  # tool -> its header parameters
        self._checks: dict[str, Callable[[object], Optional[str]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: dict[object, asyncio.Task[Any]] = {}
        self._streams: dict[int, Subscription] = {}  # listen id -> who reads it
        self._watching: list[Subscription] = []  # of a legacy server
        self._restarts: list[float] = []
        self._vain: list[float] = []  # when sessions ended since a call succeeded
        self._open = self._fresh = False
        self._agreed = False  # with the server: requests may go to it
        self._agreeing: Optional[asyncio.Task[None]] = None
        self._refusing = 0  # answers to questions that are too many
        self._teller: Optional[_Teller] = None  # None: callbacks run on the loop
        self._forget()

    def _forget(self) -> None:
        self.protocol_version = ""
        self.server_info: Json = {}
        self.capabilities: Json = {}
        self.instructions: Optional[str] = None

    # The connection

    async def __aenter__(self) -> Client:
        if self._open:
            raise ClientError("the client is open already: one with statement for each")
        self._open = self._fresh = True
        try:
            await self._ensure()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __enter__(self) -> None:
        raise TypeError("use async with Client(...), or with SyncClient(...)")

    def __exit__(self, *error: object) -> None:
        """Without it, `with` would not come to the text above."""

    async def close(self) -> None:
        """End subscriptions and session, and the server if it is a child."""
        self._open = self._agreed = False
        for subscription in (*self._watching, *self._streams.values()):
            subscription.finish(None)
        for task in list(self._tasks):
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also when that was given up: a child would live on
            try:
                await self._transport.close()
            finally:
                self._calls.fail_all(ConnectionLost("the client is closed"))

    @property
    def modern(self) -> bool:
        """True if the server speaks 2026-07-28 or later."""
        return self.protocol_version in MODERN

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _unheard(self, error: ConnectionLost) -> None:
        """The GET stream is given up; calls may go on."""
        for subscription in list(self._watching):
            subscription.finish(error)

    def _session_over(self) -> None:
        """The GET stream heard that its session is: who watches needs another one."""
        self._agreed = False
        if any(not subscription._ended for subscription in self._watching):
            self._spawn(self._begin_session())

    async def _begin_session(self) -> None:
        """Another session for who watches, but not for ever: no call asked for it."""
        try:
            text = "the server ends each session before a call succeeds"
            number = self._count(self._vain, text)
            if number > 1:
                pause = 2 ** (number - 2) * (0.5 + os.urandom(1)[0] / 256)
                await asyncio.sleep(min(pause, 30.0))
            await self._ensure()
        except Exception as error:  # of OAuth, too
            for subscription in list(self._watching):
                subscription.finish(error)

    def _lost(self, error: ConnectionLost) -> None:
        self._agreed = False
        for subscription in list(self._watching):
            subscription.broken(error)

    async def _ensure(self) -> None:
        """Return when the server is agreed with: at once, or when the task that agrees
        with it again has ended. Who gives up waiting does not end it for others."""
        if self._agreed:
            return
        if not self._open:
            raise ConnectionLost(_NOT_OPEN)
        if self._agreeing is None:
            self._agreeing = self._spawn(self._agree())
            self._agreeing.add_done_callback(self._has_ended)
        task = self._agreeing
        await asyncio.wait({task})
        if task.cancelled():
            raise ConnectionLost("the client is closed")
        task.result()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._agreeing = None
        if not task.cancelled():
            task.exception()  # asyncio: retrieved, also when everybody has given up

    async def _agree(self) -> None:
        """Open the transport, a lost one if that is wanted (STD-07), and negotiate."""
        lost = self._transport.lost
        if self._fresh:
            self._fresh = False
            await self._transport.open()
        elif lost is not None:
            if not self._restart:
                raise ConnectionLost(str(lost)) from lost
            self._count(self._restarts, f"the server does not stay alive: {lost}")
            await self._reopen()
        await self._negotiate(self.protocol_version)
        for subscription in list(self._watching):
            self._spawn(subscription.resume())

    def _count(self, times: list[float], text: str) -> int:
        """How often it happened within a minute; too often is an error."""
        now = time.monotonic()
        times[:] = [at for at in times if now - at < 60.0]
        if len(times) >= self.limits.retries:
            raise ConnectionLost(text)
        times.append(now)
        return len(times)

    async def _reopen(self) -> None:
        await self._transport.close()
        await self._transport.open()

    async def _renew(self, session: str) -> None:
        """A legacy session has ended: begin another one (HTL-04)."""
        if session and getattr(self._transport, "session", "") == session:
            self._agreed = False
        await self._ensure()

    # The era (VER-04, VER-05, VER-06)

    async def _negotiate(self, known: str = "") -> None:
        self._agreed = False
        url = self._transport.target if self._transport.http else ""
        era = _eras.get(str(url), "legacy" if known in LEGACY else "")
        if self._mode == "legacy":
            await self._initialize()
        elif self._mode == "auto" and era == "legacy":
            try:
                await self._initialize()
            except (MCPError, HttpStatusError):  # what was remembered no longer holds
                await self._probe()
        else:
            await self._probe()
        self._agreed = True
        if url and len(_eras) < 1024:
            _eras[str(url)] = "modern" if self.modern else "legacy"

    async def _probe(self, version: str = MODERN[0], last: bool = False) -> None:
        """server/discover; whatever does not speak for a modern server is legacy."""
        why: Exception
        try:
            self.protocol_version = version
            limit = self.limits.timeout if last else self.limits.probe
            result = await self._discover(version, limit)
            offered = result.get("supportedVersions")
            if isinstance(offered, list) and version in offered:
                return self._adopt(version, result, _dict(result.get("_meta")))
            why = VersionError(f"the server speaks {offered!r}, not {version}")
        except HttpStatusError as error:
            if error.status in (401, 403, 502, 503, 504):
                raise  # no word from the server itself
            why = error
        except (InvalidReply, RequestTimeout) as error:
            why = error
        except ConnectionLost as error:
            if self._transport.http or self._transport.lost is None:
                raise
            why = error
        except MCPError as error:
            why = error
            if error.code in _MODERN_ERRORS:
                raise
            if error.code == _rt.UNSUPPORTED_VERSION:
                again = _common(error, MODERN)
                if again and not last:
                    return await self._probe(again, True)
                if not _common(error, LEGACY):
                    raise VersionError(f"no common revision: {error}") from error
        if self._mode != "auto":
            raise VersionError(f"{self._mode} was asked for, but: {why}") from why
        await self._fall_back(why, last)

    async def _discover(self, version: str, limit: float) -> Json:
        call = self._calls.new("server/discover", {"_meta": self._meta(version)})
        call.limit(limit, limit, False)
        self._calls.orphan = call
        try:
            return await self._transport.request(call)
        finally:
            self._calls.orphan = None
            call.close()

    async def _fall_back(self, why: Exception, last: bool) -> None:
        self._forget()
        silent = isinstance(why, RequestTimeout) and not self._transport.http
        if self._transport.lost is not None:  # it took the probe for a reason to exit
            await self._reopen()
        try:
            await self._initialize(self.limits.probe if silent else None)
        except RequestTimeout:
            if not silent:
                raise
            await self._reopen()  # it sulks: a new process that has not seen the probe
            await self._initialize()
        except MCPError as error:
            if last or error.code not in (*_MODERN_ERRORS, _rt.UNSUPPORTED_VERSION):
                raise
            # Only a modern server says that: it was too slow for the probe.
            await self._probe(_common(error, MODERN) or MODERN[0], True)

    async def _initialize(self, timeout: Optional[float] = None) -> None:
        if isinstance(self._transport, _HttpTransport):
            self._transport.version = self._transport.session = ""
        params = {
            "protocolVersion": LEGACY[0],
            "capabilities": self._declared,
            "clientInfo": self._info,
        }
        result = await self._send("initialize", params, timeout=timeout)
        version = result.get("protocolVersion")
        if version not in LEGACY:
            raise VersionError(f"the server chose revision {version!r}")
        self._adopt(version, result, result)
        if isinstance(self._transport, _HttpTransport):
            self._transport.version = version
        await self._transport.notify(
            {"jsonrpc": "2.0", "method": "notifications/initialized"}
        )
        if isinstance(self._transport, _HttpTransport):
            await self._transport.listen()
        if self._level is not None and "logging" in self.capabilities:
            try:
                await self._send("logging/setLevel", {"level": self._level})
            except MCPError as error:  # the rest works without
                self._log(f"logging/setLevel {self._level}: {error}")

    def _adopt(self, version: str, result: Json, holder: Json) -> None:
        key = _rt._SERVER_KEY if holder is not result else "serverInfo"
        self.protocol_version = version
        self.server_info = _dict(holder.get(key))
        self.capabilities = _dict(result.get("capabilities"))
        text = result.get("instructions")
        self.instructions = text if isinstance(text, str) else None
        self._tools, self._checks, self._paths = None, {}, {}  # it may be another one
        if self._cache is not None:
            for method in {name for names in _STALE.values() for name in names}:
                self._cache.drop(method)

    # Requests

    def _meta(self, version: str) -> Json:
        meta: Json = {
            _rt._VERSION_KEY: version,
            _rt._CLIENT_KEY: self._info,
            _rt._CAPABILITIES_KEY: self._declared,
        }
        if self._level is not None:
            meta[_rt._LEVEL_KEY] = self._level
        return meta

    async def _request(self, method: str, params: Json, **options: Any) -> Result:
        """Send a request, over again if its legacy session had ended.

        timeout: seconds until an answer; reset_on_progress (on with progress_callback)
        starts them again at each report. max_timeout: seconds in all, whatever happens.
        """
        await self._settle(method, options)
        session = getattr(self._transport, "session", "")
        try:
            return await self._send(method, params, **options)
        except _SessionLost:
            await self._in_time(self._renew(session), method, options)
            return await self._send(method, params, **options)

    def _doubt(self, error: Union[HttpStatusError, MCPError]) -> None:
        """A refusal that no modern server gives: another one may have taken its place.

        The next call finds out (VER-06); this one is not sent again, it may be done.
        """
        code = error.status if isinstance(error, HttpStatusError) else error.code
        if self._transport.http and self.modern and code in _UNMODERN:
            self._agreed = False

    async def _settle(self, method: str, options: Json) -> None:
        """What is asked depends on the server: agree with it first."""
        if not options.keys() <= _TAKEN:
            raise TypeError(_misplaced(method, sorted(options.keys() - _TAKEN)))
        options.setdefault("_began", self._calls.clock())
        self._left(method, options)
        if not self._agreed:
            await self._in_time(self._ensure(), method, options)

    def _left(self, method: str, options: Json) -> float:
        """Seconds that remain for a call, all that it takes included (LIF-09)."""
        most = options.get("max_timeout")
        most = self.limits.max_timeout if most is None else most
        left: float = options["_began"] + most - self._calls.clock()
        if left <= 0:
            raise RequestTimeout(f"{method}: no answer within {most:.3g} s")
        return left

    async def _in_time(self, work: Any, method: str, options: Json) -> None:
        task = self._spawn(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._left(method, options))
        finally:
            task.cancel()
        if task.cancelled():
            raise ConnectionLost("the client is closed")
        await task

    async def _send(
        self,
        method: str,
        params: Json,
        *,
        timeout: Optional[float] = None,
        max_timeout: Optional[float] = None,
        progress_callback: Optional[Callable[..., Any]] = None,
        reset_on_progress: Optional[bool] = None,
        meta: Optional[Json] = None,
        headers: Optional[list[tuple[str, str]]] = None,
        _began: Optional[float] = None,  # when the maximum began to count
    ) -> Result:
        call = self._calls.new(method, params)
        all_meta = {
            **(self._meta(self.protocol_version) if self.modern else {}),
            **(meta or {}),
        }
        wanted = progress_callback is not None
        reset = wanted if reset_on_progress is None else reset_on_progress
        if reset or wanted:
            all_meta["progressToken"] = call.id
        if all_meta:
            call.message["params"] = {**params, "_meta": all_meta}
        call.progress = progress_callback
        call.headers = headers or []
        longest = self.limits.max_timeout if max_timeout is None else max_timeout
        timeout = self.limits.timeout if timeout is None else timeout
        call.limit(timeout, longest, reset, _began)
        try:
            result = Result(await self._transport.request(call))
        except (RequestTimeout, asyncio.CancelledError) as error:
            self._cancel(
                call, "timed out" if isinstance(error, RequestTimeout) else "given up"
            )
            raise
        except (HttpStatusError, MCPError) as error:
            if call.refused:  # else an error of the tool itself
                self._doubt(error)
            raise
        finally:
            call.close()
        kind = result.get("resultType", "complete")
        if kind != "complete" and not (kind == "input_required" and method in _ASKING):
            raise InvalidReply(f"{method}: a result of type {kind!r} (RPC-08)")
        if method not in _UNASKED:
            self._vain.clear()
        return result

    def _cancel(self, call: _Call, reason: str) -> None:
        """Tell the server that nobody waits any more; initialize must not be told."""
        if call.method != "initialize" and self._transport.cancel(call, reason):
            params = {"requestId": call.id, "reason": reason}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            self._spawn(self._notify({**message, "params": params}))

    async def _notify(self, message: Json) -> None:
        with contextlib.suppress(ClientError):
            await self._transport.notify(message)

    async def _rounds(
        self,
        method: str,
        params: Json,
        answers: Optional[Json],
        state: object,
        by_hand: bool,
        options: Json,
        result: Optional[Result] = None,
    ) -> Result:
        """A request, again with answers while the server asks (MRT-04, MRT-08)."""
        options.setdefault("_began", self._calls.clock())
        for number in range(int(self.limits.rounds) + 1):
            if result is None:
                given = {} if answers is None else {"inputResponses": answers}
                echoed = {} if state is None else {"requestState": state}
                all_params = {**params, **given, **echoed}
                result = await self._mirrored(method, all_params, options)
            if result.get("resultType") != "input_required" or by_hand:
                return result
            asked, state = result.get("inputRequests"), result.get("requestState")
            result = answers = None
            if isinstance(asked, dict):
                answers = await self._answer_all(asked)
            elif state is None:
                raise InvalidReply(f"{method}: input is required, but which?")
            else:
                pause = min(0.05 * 2**number, 2.0)  # it has a reason
                await asyncio.sleep(min(pause, self._left(method, options)))
        raise InvalidReply(f"{method}: asked more than {self.limits.rounds} times")

    # Answers to the server

    async def _answer_all(self, asked: Json) -> Json:
        answers = {}
        for key, question in asked.items():
            if not isinstance(question, dict) or not isinstance(
                question.get("method"), str
            ):
                raise InvalidReply(f"input request {key!r} is no request")
            params = _dict(question.get("params"))
            try:
                answers[key] = await self._answer(question["method"], params)
            except MCPError as error:
                raise InvalidReply(f"input request {key!r}: {error.message}") from error
        return answers

    async def _answer(self, method: str, params: Json) -> Json:
        """The result for one question of the server, in either era."""
        if method == "ping":
            return {}
        by_url = method == "elicitation/create" and params.get("mode") == "url"
        callback = self._answers.get(method + " url" if by_url else method)
        if callback is None:
            text = f"This client does not offer {method}{' by URL' if by_url else ''}"
            raise MCPError(_rt.METHOD_NOT_FOUND, text)
        with self._calls.paused():
            value = await _run(callback, params)
        if method == "roots/list":
            roots = value.get("roots", []) if isinstance(value, dict) else value
            return {
                "roots": [r if isinstance(r, dict) else {"uri": str(r)} for r in roots]
            }
        if method == "sampling/createMessage":
            if isinstance(value, dict):
                return {"role": "assistant", "model": "unknown", **value}
            block = {"type": "text", "text": str(value)}
            return {"role": "assistant", "model": "unknown", "content": block}
        return _elicited(value, params)

    async def _respond(self, message: Json) -> None:
        """Answer a request of a legacy server."""
        reply: Json = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = await self._answer(
                message["method"], message.get("params") or {}
            )
        except MCPError as error:
            reply["error"] = {"code": error.code, "message": error.message}
        except Exception as error:  # of a callback; the server learns no more than this
            self._log(f"the callback for {message['method']} failed: {error!r}")
            text = "The client could not answer"
            reply["error"] = {"code": _rt.INTERNAL_ERROR, "message": text}
        await self._notify(reply)

    # What the server says by itself

    def _inbound(self, message: Json) -> None:
        method, params = message["method"], message.get("params") or {}
        if "id" in message:
            return self._question(message)
        if method == "notifications/progress":
            self._progress(params)
        elif method == "notifications/message":
            self._tell(self._logging, params)
        elif method == "notifications/cancelled":
            task = self._asked.pop(_hashable(params.get("requestId")), None)
            if task is not None:
                task.cancel()
        else:
            self._changed(method, params)
        self._tell(self._handler, message)

    def _question(self, message: Json) -> None:
        if self.modern:  # STD-04: a modern client writes no responses
            self._log(f"ignored a request of a modern server: {message['method']}")
        elif message["id"] in self._asked:
            self._log(f"ignored a question, its id is in use: {message['id']!r:.80}")
        elif len(self._asked) >= self.limits.asking:
            self._refuse(message["id"])
        else:
            id = message["id"]
            self._asked[id] = task = self._spawn(self._respond(message))
            task.add_done_callback(lambda done: self._asked.pop(id, None))

    def _refuse(self, id: object) -> None:
        if self._refusing >= self.limits.asking:
            return self._log("ignored a question: there are far too many")
        text = "Too many questions at a time"
        error = {"code": _rt.INTERNAL_ERROR, "message": text}
        self._refusing += 1
        task = self._spawn(self._notify({"jsonrpc": "2.0", "id": id, "error": error}))
        task.add_done_callback(self._refused)
        return None

    def _refused(self, task: asyncio.Task[Any]) -> None:
        self._refusing -= 1

    def _progress(self, params: Json) -> None:
        token = params.get("progressToken")
        call = self._calls.pending.get(token) if type(token) is int else None
        if call is not None and not call.future.done():
            call.touched = self._calls.clock()
            values = [params.get(key) for key in ("progress", "total", "message")]
            self._tell(call.progress, *values)

    def _changed(self, method: str, params: Json) -> None:
        uri = params.get("uri")
        if uri is not None and not isinstance(uri, str):
            return
        for stale in _STALE.get(method, ()):
            if self._cache is not None:
                self._cache.drop(stale, None if uri is None else {"uri": uri})
        id = _dict(params.get("_meta")).get(_rt._SUBSCRIPTION_KEY)
        if method == "notifications/subscriptions/acknowledged" or id is not None:
            stream = self._streams.get(id) if type(id) is int else None
            if stream is not None:
                stream.received(method, params)
        elif method in _STALE:
            for subscription in self._watching:
                subscription.received(method, params)

    def _tell(self, callback: Optional[Callable[..., Any]], *values: object) -> None:
        """Call a callback that answers nothing; what it raises stays here."""
        if callback is None:
            return
        called = callback
        if self._teller is None:
            return self._call_back(called, values, self._spawn)
        loop = asyncio.get_running_loop()

        def spawn(work: Any) -> None:
            loop.call_soon_threadsafe(self._spawn, work)

        self._teller.tell(lambda: self._call_back(called, values, spawn))

    def _call_back(
        self,
        callback: Callable[..., Any],
        values: tuple[object, ...],
        spawn: Callable[[Any], object],
    ) -> None:
        try:
            value = callback(*values)
            if hasattr(value, "__await__"):
                spawn(_swallow(value, self._log))
        except Exception as error:
            self._log(f"a callback failed: {error!r}")

    # Lists and reads

    def _kept(
        self, method: str, params: Json, refresh: bool, options: Json
    ) -> Optional[Result]:
        """A result that is fresh yet; not for a call with metadata of its own."""
        if self._cache is None or refresh or "meta" in options:
            return None
        principal = getattr(self._transport, "principal", "")
        kept = self._cache.get(method, params, principal)
        return None if kept is None else Result(kept)

    async def _fetch(self, method: str, params: Json, options: Json) -> Result:
        """A result from the server, for the cache too."""
        cache = None if "meta" in options else self._cache
        before = cache.dropped.get(method) if cache is not None else None
        result = await self._request(method, params, **options)
        if cache is not None and cache.dropped.get(method) == before:
            cache.put(method, params, getattr(self._transport, "principal", ""), result)
        return result

    async def _list(
        self, capability: str, method: str, key: str, refresh: bool, options: Json
    ) -> list[Json]:
        """All pages. A server without the capability has none of these (LIF-07)."""
        await self._settle(method, options)
        if capability not in self.capabilities:
            return []
        return await self._pages(method, key, refresh, options)

    async def _pages(
        self, method: str, key: str, refresh: bool, options: Json
    ) -> list[Json]:
        items: list[Json] = []
        cursor: Optional[str] = None
        seen: set[str] = set()
        from_cache = False  # the cursor: it may live shorter than the page it ends
        for _ in range(int(self.limits.pages)):
            params = {} if cursor is None else {"cursor": cursor}  # "" is one (PAG-03)
            kept = self._kept(method, params, refresh, options)
            try:
                page = kept or await self._fetch(method, params, options)
            except MCPError:
                if not from_cache:
                    raise
                return await self._pages(method, key, True, options)
            from_cache = kept is not None
            part, cursor = page.get(key), page.get("nextCursor")
            if not isinstance(part, list) or not all(isinstance(i, dict) for i in part):
                raise InvalidReply(f"{method}: no list of {key}")
            items += part
            if cursor is None:
                return items
            if not isinstance(cursor, str) or cursor in seen:
                raise InvalidReply(f"{method}: the pages do not end")
            seen.add(cursor)
        raise InvalidReply(f"{method}: more than {self.limits.pages} pages")

    async def list_tools(self, *, refresh: bool = False, **options: Any) -> list[Json]:
        """All tools; over HTTP less those with an unusable x-mcp-header (HTM-15)."""
        tools = await self._list("tools", "tools/list", "tools", refresh, options)
        usable: dict[str, Json] = {}
        self._paths = {}
        for tool in tools:
            name = str(tool.get("name"))
            try:
                if self._transport.http and self.modern:
                    self._paths[name] = _header_paths(tool.get("inputSchema"))
                usable[name] = tool
            except ValueError as error:
                self._log(f"left out tool {name!r}: {error}")
        self._tools, self._checks = usable, {}
        return list(usable.values())

    async def list_resources(
        self, *, refresh: bool = False, **options: Any
    ) -> list[Json]:
        """All resources."""
        return await self._list(
            "resources", "resources/list", "resources", refresh, options
        )

    async def list_resource_templates(
        self, *, refresh: bool = False, **options: Any
    ) -> list[Json]:
        """All resource templates."""
        method, key = "resources/templates/list", "resourceTemplates"
        try:
            return await self._list("resources", method, key, refresh, options)
        except MCPError as error:
            if error.code != _rt.METHOD_NOT_FOUND:
                raise
            return []  # resources alone are common

    async def list_prompts(
        self, *, refresh: bool = False, **options: Any
    ) -> list[Json]:
        """All prompts."""
        return await self._list("prompts", "prompts/list", "prompts", refresh, options)

    async def read_resource(
        self,
        uri: str,
        *,
        refresh: bool = False,
        input_responses: Optional[Json] = None,
        request_state: Optional[str] = None,
        allow_input_required: bool = False,
        **options: Any,
    ) -> Result:
        """Read a resource: .contents, or .text, or .data."""
        result = None
        options["_began"] = self._calls.clock()
        if input_responses is None and request_state is None:
            method, params = "resources/read", {"uri": uri}
            result = self._kept(method, params, refresh, options)
            result = result or await self._fetch(method, params, options)
        return await self._rounds(
            "resources/read",
            {"uri": uri},
            input_responses,
            request_state,
            allow_input_required,
            options,
            result,
        )

    async def get_prompt(
        self,
        name: str,
        arguments: Optional[dict[str, str]] = None,
        *,
        input_responses: Optional[Json] = None,
        request_state: Optional[str] = None,
        allow_input_required: bool = False,
        **options: Any,
    ) -> Result:
        """Get a prompt: .messages, or .text."""
        params: Json = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        by_hand = allow_input_required
        return await self._rounds(
            "prompts/get", params, input_responses, request_state, by_hand, options
        )

    async def complete(
        self,
        ref: Json,
        argument: Json,
        context_arguments: Optional[dict[str, str]] = None,
        **options: Any,
    ) -> Result:
        """Completions of an argument of a prompt or resource template: .completions."""
        params: Json = {"ref": ref, "argument": argument}
        if context_arguments is not None:
            params["context"] = {"arguments": context_arguments}
        return await self._request("completion/complete", params, **options)

    # Tools

    async def call_tool(
        self,
        name: str,
        arguments: Optional[Json] = None,
        *,
        input_responses: Optional[Json] = None,
        request_state: Optional[str] = None,
        allow_input_required: bool = False,
        **options: Any,
    ) -> Result:
        """Call a tool: .text, .structured_content, .content, .is_error.

        Questions go to the callbacks; with allow_input_required they are returned, and
        input_responses and request_state carry on from there.
        """
        params = {"name": name, "arguments": arguments or {}}
        by_hand = allow_input_required
        result = await self._rounds(
            "tools/call", params, input_responses, request_state, by_hand, options
        )
        if self._check and result.get("resultType") != "input_required":
            await self._check_result(name, result, options)
        return result

    async def _mirrored(self, method: str, params: Json, options: Json) -> Result:
        """One round; that of a tool with its header parameters (HTM-14, HTM-16)."""
        await self._settle(method, options)
        mirrored = method == "tools/call" and self._transport.http and self.modern
        if not mirrored:
            return await self._request(method, params, **options)
        if self._tools is None:
            await self._learn(options)
        try:
            options["headers"] = self._headers(params)
            return await self._request(method, params, **options)
        except MCPError as error:
            if error.code != _rt.HEADER_MISMATCH:
                raise
        await self._learn(options)  # it may have other header parameters now
        options["headers"] = self._headers(params)
        return await self._request(method, params, **options)

    def _headers(self, params: Json) -> list[tuple[str, str]]:
        return _header_params(self._paths.get(params["name"], ()), params["arguments"])

    async def _learn(self, options: Json) -> None:
        """The list that a call needs, within the time of the call."""
        limits = ("timeout", "max_timeout", "_began")
        kept = {key: options[key] for key in limits if key in options}
        try:
            await self.list_tools(refresh=True, **kept)
        except MCPError:  # then the tools are called without knowing them
            self._tools = self._tools or {}

    async def _check_result(self, name: str, result: Result, options: Json) -> None:
        """Hold a structured result against the tool's outputSchema (TOL-08)."""
        if result.is_error:
            return
        if self._tools is None and "structuredContent" in result:
            await self._learn(options)
        schema = (self._tools or {}).get(name, {}).get("outputSchema")
        if not isinstance(schema, dict):
            return
        if "structuredContent" not in result:
            raise InvalidReply(f"{name}: no structuredContent, but an outputSchema")
        if name not in self._checks:
            where = f"{name}: its outputSchema"
            self._checks[name] = _checker(schema, where, self._log)
        problem = self._checks[name](result["structuredContent"])
        if problem is not None:
            raise InvalidReply(f"{name}: not what its outputSchema says: {problem}")

    # The rest

    async def ping(self, **options: Any) -> float:
        """Seconds that a round trip takes; a modern server is asked server/discover."""
        await self._settle("ping", options)
        start = time.perf_counter()
        await self._request("server/discover" if self.modern else "ping", {}, **options)
        return time.perf_counter() - start

    async def set_logging_level(self, level: str) -> None:
        """Log messages from this level on go to logging_callback."""
        await self._ensure()
        self._level = level
        if not self.modern:
            if "logging" not in self.capabilities:
                raise ClientError("the server does not offer logging")
            await self._request("logging/setLevel", {"level": level})

    def subscribe(
        self,
        *uris: str,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
    ) -> Subscription:
        """Changes of resources and lists: `async with ... as changes: async for`."""
        if not (uris or tools or prompts or resources):
            raise ValueError("to what: URIs, tools=True, prompts=True, resources=?")
        return Subscription(self, uris, tools, prompts, resources)


# ---- 6 SyncClient ------------------------------------------------------------------


async def _end_tasks() -> None:
    """Other threads wait for these: they hear that it is over."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class SyncClient:
    """The methods of Client without async: `with SyncClient(target) as client:`.

    An event loop runs on a thread of its own. Plain callbacks are called on others, and
    may use the client: those for notifications one after the other.
    """

    def __init__(self, target: object, **options: Any) -> None:
        self._client = Client(target, **options)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._lock = threading.Lock()  # of _loop

    def __enter__(self) -> SyncClient:
        if self._loop is not None:
            raise ClientError("the client is open already: one with statement for each")
        self._loop = asyncio.new_event_loop()
        # On the thread of the loop a callback that uses the client would wait for ever.
        self._teller = _Teller(self._client.limits, self._client._log)
        self._client._teller = self._teller
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="tinymcp-client"
        )
        self._thread.start()
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._wait(self._client.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        with self._lock:  # what was sent to the loop before is in it, nothing follows
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
            self._teller.end()

    def _wait(self, work: Any) -> Any:
        import concurrent.futures

        with self._lock:
            if self._loop is None:
                work.close()
                raise ConnectionLost(_NOT_OPEN.replace("an async", "a"))
            if threading.current_thread() is self._thread:
                work.close()
                raise ClientError("an async callback cannot use a SyncClient: use def")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionLost("the client is closed") from None
        except BaseException:  # Ctrl-C: the server is told, too
            future.cancel()
            raise
        finally:
            if not future.cancelled():
                self._teller.catch_up()

    def subscribe(self, *uris: str, **kinds: bool) -> Iterator[Change]:
        """Changes as they come."""
        subscription = self._client.subscribe(*uris, **kinds)
        self._wait(subscription.__aenter__())
        try:
            while True:
                yield self._wait(subscription.__anext__())
        except StopAsyncIteration:
            return
        finally:
            if self._loop is not None:  # else it has ended with the client
                self._wait(subscription.__aexit__())

    def __getattr__(self, name: str) -> Any:
        """Any other method or property of Client."""
        value = getattr(self._client, name)
        if name.startswith("_") or not callable(value):
            return value
        return lambda *args, **options: self._wait(value(*args, **options))
