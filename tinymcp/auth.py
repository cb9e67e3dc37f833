# SPDX-License-Identifier: MIT
"""Ready token verifiers for servers: run("http", auth=Introspection(...)).

A verifier is any function(token) -> Principal or None, sync or async. These two are for
token introspection (RFC 7662) and for JSON Web Tokens signed with HS256 (RFC 7519).
Signatures with public keys need a cryptography library: verify with one and return a
Principal.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import hmac
import json
import time

from .tinymcp import Principal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

__all__ = ["HS256", "Introspection"]

_LONGEST = 16384  # bytes of a token, and of an answer about one
_FOREVER = 1e15  # seconds; what is beyond is no time, as infinity and NaN are none


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and -_FOREVER < value < _FOREVER  # type: ignore[operator]


def _names(value: object) -> Optional[list[str]]:
    """A list of names, or one of them; None if it is neither."""
    value = [value] if isinstance(value, str) else value
    fine = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return value if fine else None  # type: ignore[return-value]


def _principal(claims: dict[str, Any]) -> Optional[Principal]:
    """The principal of verified claims; None if one is not what it has to be."""
    subject = claims.get("sub") or claims.get("username") or claims.get("client_id")
    expires, scope, audience = claims.get("exp"), claims.get("scope"), claims.get("aud")
    scopes = _names(scope.split() if isinstance(scope, str) else scope or [])
    if not isinstance(subject, str) or scopes is None:
        return None
    if not (expires is None or _is_time(expires)):
        return None
    if audience is not None and _names(audience) is None:
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
        if type(payload) is not dict or not _is_time(payload.get("exp")):
            return None
        now = time.time()
        if payload["exp"] + self.leeway <= now:
            return None
        payload["exp"] += self.leeway
        if self.issuer is not None and payload.get("iss") != self.issuer:
            return None
        begins = payload.get("nbf", 0)
        if not _is_time(begins) or begins - self.leeway > now:
            return None
        return payload


class Introspection:
    """Asks the authorization server about a token, and keeps its answer briefly.

    url: the introspection endpoint (https, or http on loopback). client_id, secret: how
    we authenticate there (Basic). keep: seconds that an answer is kept, never beyond
    `exp`; 0 asks each time. timeout: seconds for one question. Without an answer it
    raises, since nothing is known of the token then: the client is told to come again.
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
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise ValueError("an introspection endpoint is https, or on loopback")
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
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(None, self.ask, token)
        principal = await asyncio.wait_for(asking, self.timeout)
        if self.keep:
            if len(self.kept) >= 1024:  # the oldest half goes
                for key in list(self.kept)[:512]:
                    del self.kept[key]
            self.kept.pop(digest, None)
            self.kept[digest] = (now + self.keep, principal)
        return principal

    def ask(self, token: str) -> Optional[Principal]:
        """One question (RFC 7662 section 2): None for a clear no. OSError or ValueError
        if there is no answer, or none about the token."""
        from http.client import HTTPException
        from urllib.parse import urlencode
        from urllib.request import (
            HTTPRedirectHandler,
            HTTPSHandler,
            ProxyHandler,
            Request,
            build_opener,
        )

        class NoRedirect(HTTPRedirectHandler):
            def redirect_request(self, *args: Any) -> None:
                return None  # a token never follows one

        form = {"token": token, "token_type_hint": "access_token"}
        request = Request(self.url, urlencode(form).encode("ascii"))
        request.add_header("Authorization", f"Basic {self.basic}")
        request.add_header("Accept", "application/json")
        handlers: list[Any] = [ProxyHandler({}), NoRedirect()]
        if self.context is not None:
            handlers.append(HTTPSHandler(context=self.context))
        try:
            with build_opener(*handlers).open(request, timeout=self.timeout) as reply:
                claims = json.loads(self.read(reply))
        except HTTPException as error:
            raise OSError(f"no answer about a token: {error!r}") from error
        if type(claims) is not dict or type(claims.get("active")) is not bool:
            raise ValueError("an answer about a token that says nothing of it")
        return _principal(claims) if claims["active"] else None

    def read(self, reply: Any) -> bytes:
        """The body; a byte now and then does not hold the thread for ever."""
        data, end = b"", time.monotonic() + self.timeout
        while len(data) < _LONGEST and time.monotonic() < end:
            piece = reply.read1(_LONGEST)
            if not piece:
                break
            data += piece
        return data
