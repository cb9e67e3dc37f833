# SPDX-License-Identifier: MIT
"""Ready token verifiers for servers: run("http", auth=Introspection(...)).

A verifier is any function(token) -> Principal or None, sync or async; one that raises
has said nothing of the token. These two are for token introspection (RFC 7662) and for
JSON Web Tokens signed with HS256 (RFC 7519).
Signatures with public keys need a cryptography library: verify with one and return a
Principal.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import hmac
import io
import json
import time

from .tinymcp import Principal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Optional

__all__ = ["HS256", "Introspection"]

_LONGEST = 16384  # bytes of a token, and of an answer about one
_LATE = "the introspection endpoint did not answer in time"


def _moment(value: Any) -> bool:
    """Whether a claim is a time: a number of seconds that 64 bits hold. NaN compares
    as false with any clock and Infinity never comes: neither may pass for a time."""
    return type(value) in (int, float) and abs(value) <= 2**63


def _texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _principal(claims: dict[str, Any]) -> Optional[Principal]:
    """The principal of verified claims; None without a subject, or where a claim is
    not of its type. A member that is null counts as left out, but for the scope."""
    names = map(claims.get, ("sub", "username", "client_id"))
    subject = next((name for name in names if name not in (None, "")), None)
    audience, expires, begins = map(claims.get, ("aud", "exp", "nbf"))
    scope = claims.get("scope", "")
    scopes = scope.split() if isinstance(scope, str) else scope
    timed = all(when is None or _moment(when) for when in (expires, begins))
    meant = audience is None or isinstance(audience, str) or _texts(audience)
    if not (isinstance(subject, str) and timed and meant and _texts(scopes)):
        return None
    return Principal(subject, scopes, audience, expires, claims)


def _base64url(text: str) -> bytes:
    """Unpadded base64url, strictly."""
    raw = binascii.a2b_base64(
        (text + "=" * (-len(text) % 4)).translate(str.maketrans("-_", "+/"))
    )
    back = binascii.b2a_base64(raw, newline=False).decode("ascii").rstrip("=")
    if back.translate(str.maketrans("+/", "-_")) != text:
        raise ValueError("not base64url")
    return raw


class HS256:
    """Verifies JSON Web Tokens signed with a shared secret.

    secret: 32 bytes or more. issuer: the only `iss` accepted, if given. leeway: seconds
    that clocks may differ. A token needs `exp` and a subject; `aud` is checked by the
    server against its resource=.
    """

    def __init__(
        self, secret: bytes, issuer: Optional[str] = None, leeway: float = 30.0
    ) -> None:
        if len(secret) < 32:
            raise ValueError("HS256 takes a secret of 32 bytes or more (RFC 7518 3.2)")
        self.secret, self.issuer, self.leeway = bytes(secret), issuer, leeway

    def __call__(self, token: str) -> Optional[Principal]:
        try:
            claims = self.claims(token)
        except (ValueError, RecursionError):
            return None
        return None if claims is None else _principal(claims)

    def claims(self, token: str) -> Optional[dict[str, Any]]:
        """The claims of a good token; None or ValueError for any other."""
        if len(token) > _LONGEST or token.count(".") != 2 or not token.isascii():
            return None
        signed, _, signature = token.rpartition(".")
        head, payload = (json.loads(_base64url(part)) for part in signed.split("."))
        # The algorithm is ours to say: never "none", never what the token asks for.
        if type(head) is not dict or head.get("alg") != "HS256" or "crit" in head:
            return None
        mac = hmac.new(self.secret, signed.encode("ascii"), hashlib.sha256).digest()
        if not hmac.compare_digest(mac, _base64url(signature)):
            return None
        if type(payload) is not dict or not _moment(payload.get("exp")):
            return None
        now = time.time()
        if payload["exp"] + self.leeway <= now:
            return None
        payload["exp"] += self.leeway
        if self.issuer is not None and payload.get("iss") != self.issuer:
            return None
        begins = payload.get("nbf", 0)
        if not _moment(begins) or begins - self.leeway > now:
            return None
        return payload


class _Timed(io.RawIOBase):
    """A socket as http.client uses one, whose steps share the time that is left: bytes
    that drip in one by one do not begin it anew, as they would a socket's time-out."""

    def __init__(self, sock: Any, left: Callable[[], float]) -> None:
        self.sock, self.left = sock, left

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self.sock.settimeout(self.left())
            view = view[self.sock.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.sock.settimeout(self.left())
        count: int = self.sock.recv_into(buffer)
        return count

    def close(self) -> None:
        """Nothing: http.client closes before it reads. The opener ends the socket."""


class Introspection:
    """Asks the authorization server about a token, and keeps its answer briefly.

    url: the introspection endpoint (https, or http on loopback). client_id, secret: how
    we authenticate there (Basic). keep: seconds that an answer is kept, never beyond
    `exp`; 0 asks each time. timeout: seconds for one question, from the look-up of the
    name to the last byte. Without an answer it raises, which the server makes a 503: a
    client that was told "not valid" would throw a good token away.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        secret: str,
        *,
        keep: float = 30.0,
        timeout: float = 5.0,
        context: Any = None,
    ) -> None:
        from urllib.parse import quote_plus, urlsplit

        parts = urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self.tls = parts.scheme == "https"
        if not parts.hostname or not (self.tls or (parts.scheme == "http" and local)):
            raise ValueError("an introspection endpoint is https, or on loopback")
        self.place = parts.hostname, parts.port or (443 if self.tls else 80)
        self.path = (parts.path or "/") + (parts.query and "?" + parts.query)
        pair = f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()
        self.url, self.keep, self.timeout, self.context = url, keep, timeout, context
        self.basic = binascii.b2a_base64(pair, newline=False).decode("ascii")
        self.kept: dict[bytes, tuple[float, Optional[Principal]]] = {}

    async def __call__(self, token: str) -> Optional[Principal]:
        if len(token) > _LONGEST:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        due, principal = self.kept.get(digest, (0.0, None))
        now = time.monotonic()
        if due > now:
            return principal
        asked = asyncio.get_running_loop().run_in_executor(None, self.ask, token)
        try:  # a look-up of a name has no time-out of its own
            principal = await asyncio.wait_for(asked, self.timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(_LATE) from None
        if self.keep:
            if len(self.kept) >= 1024:  # the oldest half goes
                for key in list(self.kept)[:512]:
                    del self.kept[key]
            self.kept.pop(digest, None)
            self.kept[digest] = (now + self.keep, principal)
        return principal

    def ask(self, token: str) -> Optional[Principal]:
        """One question (RFC 7662 section 2). None: the answer is no. ValueError or
        OSError: there is none, which says nothing of the token."""
        from http.client import HTTPException
        from urllib.parse import urlencode

        form = {"token": token, "token_type_hint": "access_token"}
        try:
            status, body = self.post(urlencode(form).encode("ascii"))
            claims = json.loads(body) if status == 200 else None
        except (HTTPException, RecursionError, ValueError) as error:
            text = f"from the introspection endpoint: {type(error).__name__}: {error}"
            raise ValueError(text) from error
        if status != 200:  # 401 and 403 too: our own credentials are refused
            raise ValueError(f"the introspection endpoint answered {status}")
        if type(claims) is not dict or type(claims.get("active")) is not bool:
            raise ValueError('no boolean "active" from the introspection endpoint')
        return _principal(claims) if claims["active"] else None

    def post(self, form: bytes) -> tuple[int, bytes]:
        """Status and body of the reply. No proxy, and no redirect: a token never
        follows one."""
        from http.client import HTTPConnection, HTTPSConnection

        end = time.monotonic() + self.timeout

        def left() -> float:
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise TimeoutError(_LATE)
            return seconds

        headers = {"Authorization": f"Basic {self.basic}", "Connection": "close"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        headers["Accept"] = "application/json"
        kind = HTTPSConnection if self.tls else HTTPConnection  # for the Host header
        context: Any = {"context": self.secured()} if self.tls else {}
        talk: Any = kind(*self.place, **context)
        with self.connected(left, **context) as sock:
            talk.sock = _Timed(sock, left)
            talk.request("POST", self.path, form, headers)
            with talk.getresponse() as reply:
                body = reply.read(_LONGEST + 1)
        if len(body) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} bytes about a token")
        return reply.status, body

    def secured(self) -> Any:
        import ssl

        return self.context or ssl.create_default_context()

    def connected(self, left: Callable[[], float], context: Any = None) -> Any:
        """A socket to the first address that takes us in the time that is left."""
        import socket

        fault = OSError("the introspection endpoint has no address")
        found: Any = socket.getaddrinfo(*self.place, type=socket.SOCK_STREAM)
        for *_, address in found:
            try:
                sock = socket.create_connection(address[:2], left())
                break
            except OSError as error:
                fault = error
        else:
            raise fault
        if context is None:
            return sock
        try:
            sock.settimeout(left())
            return context.wrap_socket(sock, server_hostname=self.place[0])
        except BaseException:
            sock.close()
            raise
