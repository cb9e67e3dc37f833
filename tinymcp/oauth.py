# SPDX-License-Identifier: MIT
"""OAuth 2.1 for the client: loaded by whoever needs it, never by the runtime.

    from tinymcp.client import Client
    from tinymcp.oauth import FileStorage, OAuth

    auth = OAuth(storage=FileStorage("~/.config/tinymcp/tokens.json"))
    async with Client("https://example.com/mcp", auth=auth) as client:
        ...

A person signs in with a browser of this machine, or `authorize` takes the URL to where
there is one. Programs of their own use grant="client_credentials", or an `assertion`.

 1 Storage   2 Small rules   3 Discovery   4 The authorization response   5 OAuth

The order of discovery, the comparisons without normalising, PKCE and the resource
parameter are those of the specification; when a check fails, nothing is sent on. Tokens
belong to one resource, credentials to one issuer. Not here: DPoP, signatures with keys.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
import time
import urllib.parse

from .tinymcp import MCPError, _decode, _encode
from .transports import ClientError, ConnectionLost, _Http, _Redirected, _Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Json = dict[str, Any]

__all__ = ["AuthorizationError", "FileStorage", "MemoryStorage", "OAuth", "id_jag"]

_LEEWAY = 30.0  # seconds before its end that a token is taken for expired
_SIGN_IN = 300.0  # seconds for a person to sign in
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
# What says that a refresh token is of no more use (RFC 6749 5.2); the last is GitHub's.
_SPENT = {"invalid_grant", "invalid_client", "unauthorized_client", "bad_refresh_token"}
_REFUSALS = 3  # in a row, in whatever words: the refresh token is spent
_NOT_NOW = "the token could not be renewed now"
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_JSON = {"Accept": "application/json"}


class AuthorizationError(ClientError):
    """The server wants authorization, and it cannot be had."""

    spent = False  # the token endpoint takes the code or refresh token no more


# ---- 1 Storage ---------------------------------------------------------------------
# load(key) gives a dict or None, save(key, value) keeps it, or drops it for None. Keys
# are "client ISSUER" for credentials and "token RESOURCE" for tokens.


class MemoryStorage:
    """For the life of the process."""

    def __init__(self) -> None:
        self._kept: Json = {}

    def load(self, key: str) -> Optional[Json]:
        value = self._kept.get(key)
        return value if isinstance(value, dict) else None

    def save(self, key: str, value: Optional[Json]) -> None:
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value


class FileStorage(MemoryStorage):
    """In a JSON file that only its owner can read, replaced as a whole (AUC-14)."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = os.path.expanduser(path)

    def load(self, key: str) -> Optional[Json]:
        try:
            with open(self.path, "rb") as file:
                kept = _decode(file.read(1 << 20), 16, 400)
        except (FileNotFoundError, MCPError):
            kept = {}
        self._kept = kept if isinstance(kept, dict) else {}
        return super().load(key)

    def save(self, key: str, value: Optional[Json]) -> None:
        self.load(key)
        super().save(key, value)
        directory = os.path.dirname(os.path.abspath(self.path))
        os.makedirs(directory, mode=0o700, exist_ok=True)
        new = f"{self.path}.{os.getpid()}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(json.dumps(self._kept, indent=1).encode())
                file.flush()
                os.fsync(descriptor)
            os.replace(new, self.path)
        except BaseException:
            os.unlink(new)
            raise


# ---- 2 Small rules -----------------------------------------------------------------

_CHALLENGE = re.compile(
    r'([A-Za-z0-9_-]+)[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^\s",]+)|([A-Za-z0-9_-]+)'
)


def _challenge(header: str) -> dict[str, str]:
    """The parameters of the Bearer challenge in a WWW-Authenticate header."""
    scheme = ""
    found: dict[str, str] = {}
    for name, value, word in _CHALLENGE.findall(header[:8192]):
        if word:
            scheme = word.lower()
        elif scheme == "bearer":
            if value.startswith('"'):
                value = re.sub(r"\\(.)", r"\1", value[1:-1])
            found.setdefault(name.lower(), value)
    return found


def _scopes(text: object) -> list[str]:
    return text.split() if isinstance(text, str) else []


def _random() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _jwt(claims: Json, secret: str) -> str:
    """A JSON Web Token signed with HS256, for servers that accept a shared secret."""
    signed = ".".join(
        _b64(_encode(p)) for p in ({"alg": "HS256", "typ": "JWT"}, claims)
    )
    mac = hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_b64(mac)}"


def _secure(url: object, what: str, server: _Url) -> str:
    """A URL that may be used: https, or http on this machine for a server here.

    Else a server out there could send the client to what listens on localhost (AUC-12).
    """
    try:
        parts = _Url(str(url))
    except ValueError:
        raise AuthorizationError(f"{what} is not an http URL: {url!r}") from None
    if parts.scheme != "https" and not (parts.local and server.local):
        raise AuthorizationError(f"{what} is not https: {url}")
    return parts.text


def _with_query(url: str, values: dict[str, str]) -> str:
    return url + ("&" if "?" in url else "?") + urllib.parse.urlencode(values)


def _json(data: bytes) -> Json:
    try:
        value = _decode(data, 32, 400)
    except MCPError:
        value = None
    return value if isinstance(value, dict) else {}


def _problem(what: str, status: int, answer: Json) -> str:
    words = [
        str(answer[k])[:200] for k in ("error", "error_description") if k in answer
    ]
    return f"{what} was refused: {': '.join(words) or f'HTTP {status}'}"


def _covers(resource: str, url: str) -> bool:
    """True if `resource` is the URL of the server, or a parent on the same origin."""
    try:
        outer, inner = _Url(resource), _Url(url)
    except ValueError:
        return False
    if outer.origin != inner.origin or "?" in outer.target:
        return False
    path = outer.target.rstrip("/")
    return inner.target.split("?")[0].rstrip("/") == path or inner.target.startswith(
        path + "/"
    )


def _canonical(url: str) -> str:
    """The resource identifier of a server without metadata."""
    return url.split("#")[0].rstrip("/")


# ---- 3 Discovery -------------------------------------------------------------------
# Who guards the resource, and where its endpoints are (AUC-01, AUC-02, AUC-03, AUC-15).


async def _document(http: _Http, url: str) -> Optional[Json]:
    """A metadata document; None if there is none."""
    try:
        status, _, body = await http.fetch("GET", url, _JSON)
        value = _decode(body, 32, 400) if status == 200 else None
    except (_Redirected, MCPError, ValueError):
        return None
    if status >= 500:
        raise ConnectionLost(f"{url}: HTTP {status}")
    return value if isinstance(value, dict) else None


async def _documents(http: _Http, urls: list[str]) -> tuple[str, Optional[Json]]:
    """The first of these that is there, and where.

    A server that is down for a moment has one all the same: taken for one without, it
    would seem to have changed its issuer, and its tokens would be given up.
    """
    trouble: Optional[ConnectionLost] = None
    for url in urls:
        try:
            document = await _document(http, url)
        except ConnectionLost as error:  # some answer 500 to every path but their own
            trouble = error
            continue
        if document is not None:
            return url, document
    if trouble is not None:
        raise trouble
    return "", None


async def _resource_metadata(http: _Http, hint: Optional[str]) -> Optional[Json]:
    """Where the challenge says, else below the path of the server, else at the root."""
    well_known = "/.well-known/oauth-protected-resource"
    base = f"{http.url.scheme}://{http.url.authority}"
    path = http.url.target.split("?")[0].rstrip("/")
    urls = (
        [base + well_known + path, base + well_known] if path else [base + well_known]
    )
    if hint is not None:
        urls = [_secure(hint, "resource_metadata", http.url)]
    return (await _documents(http, urls))[1]


async def _server_metadata(http: _Http, issuer: str) -> Optional[Json]:
    """RFC 8414, then OpenID Connect; only what names exactly this issuer is used."""
    parts = _Url(_secure(issuer, "the issuer", http.url))
    base = f"{parts.scheme}://{parts.authority}"
    path = parts.target.rstrip("/")
    urls = [
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}/.well-known/openid-configuration{path}",
    ]
    if path:
        urls.append(f"{base}{path}/.well-known/openid-configuration")
    url, document = await _documents(http, urls)
    if document is not None and document.get("issuer") != issuer:
        theirs = document.get("issuer")
        raise AuthorizationError(f"{url} is of issuer {theirs!r}, not {issuer!r}")
    return document


class _Place:
    """A resource and the authorization server in charge of it."""

    def __init__(
        self, server: _Url, resource: str, metadata: Json, scopes: Optional[list[str]]
    ) -> None:
        self.server = server
        self.resource = resource
        self.metadata = metadata
        self.issuer = str(metadata["issuer"])
        self.scopes = scopes  # scopes_supported of the resource

    def endpoint(self, name: str) -> str:
        return _secure(self.metadata.get(name), name, self.server)

    def listed(self, name: str) -> list[Any]:
        """What should be an array; [] if it is none."""
        value = self.metadata.get(name)
        return value if isinstance(value, list) else []


async def _discover_2025_03_26(
    http: _Http, url: str, trouble: Optional[ConnectionLost] = None
) -> _Place:
    """Before there was such metadata, the origin was the authorization server. Where
    it may be down for a moment, only what it says counts, and no guess."""
    base = f"{http.url.scheme}://{http.url.authority}"
    metadata = await _document(http, base + "/.well-known/oauth-authorization-server")
    if metadata is None and trouble is not None:
        raise trouble
    if metadata is None:
        names = {"authorization": "authorize", "token": "token"}
        metadata = {
            f"{name}_endpoint": f"{base}/{path}" for name, path in names.items()
        }
        metadata["registration_endpoint"] = base + "/register"
        metadata["code_challenge_methods_supported"] = ["S256"]
        metadata["issuer"] = base
    elif str(metadata.get("issuer")).rstrip("/") != base:
        raise AuthorizationError(
            f"metadata of issuer {metadata.get('issuer')!r} at {base}"
        )
    return _Place(http.url, _canonical(url), metadata, None)


async def _discover(
    http: _Http, hint: Optional[str], wanted: Optional[str], known: bool
) -> _Place:
    """Everything about authorization at the server behind http.url; known: there is a
    token that another place would give up."""
    url, document, trouble = http.url.text, None, None
    try:
        document = await _resource_metadata(http, hint)
    except ConnectionLost as error:  # some answer 500 to what they do not know
        if known:
            raise
        trouble = error
    if document is None:
        place = await _discover_2025_03_26(http, url, trouble)
        if wanted is not None and wanted != place.issuer:
            text = f"{place.issuer} is in charge, the credentials are for {wanted}"
            raise AuthorizationError(text)
        return place
    resource, servers = document.get("resource"), document.get("authorization_servers")
    if not isinstance(resource, str) or not _covers(resource, url):
        raise AuthorizationError(f"metadata of {resource!r}, which is not {url}")
    if not isinstance(servers, list) or not all(isinstance(s, str) for s in servers):
        servers = []
    if not servers or (wanted is not None and wanted not in servers):
        text = f"the resource names {servers}, the credentials are for {wanted}"
        raise AuthorizationError(
            text if servers else "no authorization server is named"
        )
    issuer = wanted or servers[0]
    metadata = await _server_metadata(http, issuer)
    if metadata is None:
        raise AuthorizationError(f"no metadata of the authorization server {issuer}")
    supported = document.get("scopes_supported")
    scopes = [str(s) for s in supported] if isinstance(supported, list) else None
    return _Place(http.url, resource, metadata, scopes)


# ---- 4 The authorization response --------------------------------------------------


def _code(answer: str, state: str, place: _Place) -> str:
    """The code of an authorization response, once it is known to be the right one.

    The issuer is compared as it stands, before anything else is looked at (AUC-06).
    """
    query = urllib.parse.urlsplit(answer).query
    values = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    issuer = values.get("iss")
    promised = (
        place.metadata.get("authorization_response_iss_parameter_supported") is True
    )
    if issuer != place.issuer and (issuer is not None or promised):
        raise AuthorizationError("the authorization response is of another issuer")
    if not hmac.compare_digest(values.get("state", "").encode(), state.encode()):
        raise AuthorizationError("the authorization response has another state")
    if "error" in values:
        raise AuthorizationError(_problem("the authorization", 0, values))
    if not values.get("code"):
        raise AuthorizationError("the authorization response has no code")
    return values["code"]


_LOCAL = "http://localhost:{}/callback"
_PAGE = b"<!doctype html><title>Signed in</title><p>You can close this window."


class _Listener:
    """A web server on localhost that waits for the browser to come back."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.redirect = self.state = ""
        self._servers: list[asyncio.AbstractServer] = []

    async def open(self, port: int) -> None:
        for host in ("127.0.0.1", "::1"):
            try:
                server = await asyncio.start_server(
                    self._serve, host, port, limit=16384
                )
            except OSError:
                if host == "127.0.0.1":
                    raise
                continue  # no IPv6 here
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
        self.redirect = _LOCAL.format(port)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        status, body = "404 Not Found", b""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10.0)
            match = re.match(rb"GET (/callback\?[!-~]+) HTTP/1\.[01]\r\n", head)
            if match and b"state=" + self.state.encode() in match[1]:
                status, body = "200 OK", _PAGE
                if not self.answer.done():
                    self.answer.set_result(match[1].decode("latin-1"))
            text = (
                f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\n"
            )
            writer.write(f"{text}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self.answer.cancel()


async def _listen(wanted: Optional[str]) -> _Listener:
    """At the port that was registered, if it is free; else at any."""
    listener = _Listener()
    match = re.match(r"http://localhost:(\d+)/callback\Z", wanted or "")
    try:
        await listener.open(int(match[1]) if match else 0)
    except OSError:
        await listener.open(0)
    return listener


# ---- 5 OAuth -----------------------------------------------------------------------


class OAuth:
    """Authorization for one Client(auth=...)."""

    def __init__(
        self,
        *,
        client_id: Optional[str] = None,
        client_secret: Optional[str] = None,
        issuer: Optional[str] = None,
        client_metadata_url: Optional[str] = None,
        client_name: str = "tinymcp",
        scope: Optional[str] = None,
        grant: str = "authorization_code",
        auth_method: Optional[str] = None,
        assertion: Optional[Callable[..., Any]] = None,
        storage: Any = None,
        redirect_uri: Optional[str] = None,
        authorize: Optional[Callable[[str], Any]] = None,
        open_url: Optional[Callable[[str], Any]] = None,
    ) -> None:
        """Without credentials the client registers itself, if the server lets it.

        client_id and client_secret belong to `issuer`: no other server gets them.
        client_metadata_url: an https URL with this client's metadata, used as its id.
        grant: "authorization_code", "client_credentials" or "jwt-bearer"; for the last,
        assertion(issuer, resource, http) gives the JWT.
        auth_method: "client_secret_basic", "client_secret_post", "client_secret_jwt"
        or "none", if the server's metadata and registration do not tell.
        authorize(url) takes a person to the URL and returns the URL that the browser
        was redirected to; by default open_url (or a browser) and a listener on
        localhost do that.
        """
        if client_metadata_url is not None:
            parts = _Url(client_metadata_url)
            if parts.scheme != "https" or parts.target == "/":
                raise ValueError("client_metadata_url is an https URL with a path")
        if grant not in ("authorization_code", "client_credentials", "jwt-bearer"):
            raise ValueError(f"there is no grant {grant!r}")
        self._given = {"client_id": client_id} if client_id else {}
        if client_id and client_secret:
            self._given["client_secret"] = client_secret
        self._issuer, self._metadata_url = issuer, client_metadata_url
        self._name, self._scope, self._grant = client_name, scope, grant
        self._method, self._assertion = auth_method, assertion
        self._storage = storage if storage is not None else MemoryStorage()
        self._redirect = redirect_uri
        self._authorize, self._open_url = authorize, open_url
        self._lock: Optional[asyncio.Lock] = None
        self._token: Optional[Json] = None
        self._loaded = False
        self._asked: set[str] = set()  # scopes that were asked for so far
        self._refusals = 0  # of the refresh token, in a row

    # What the transport calls

    async def headers(self, http: _Http) -> dict[str, str]:
        """The Authorization header for the next request."""
        if not self._loaded:
            self._loaded = True
            self._token = self._storage.load("token " + _canonical(http.url.text))
            self._asked = {*_scopes((self._token or {}).get("scope"))}
        token = self._token
        if token is not None and time.time() > token.get("expires_at", 1e12) - _LEEWAY:
            async with self._locked():
                if self._token is token:
                    await self._renew(http, token)
        if self._token is None:
            return {}
        return {"Authorization": "Bearer " + self._token["access_token"]}

    async def challenged(
        self,
        http: _Http,
        status: int,
        headers: dict[str, str],
        sent: str,
        tried: set[str],
    ) -> bool:
        """A 401 or 403: True if there is another token to try.

        tried: what was done for this call so far. Nothing is done a second time for it,
        whatever becomes of other calls meanwhile (AUC-08).
        """
        challenge = _challenge(headers.get("www-authenticate", ""))
        async with self._locked():
            token = self._token
            if token is not None and sent != "Bearer " + token["access_token"]:
                return True  # somebody else was faster
            scopes = _scopes(challenge.get("scope"))
            lacking = challenge.get("error") == "insufficient_scope"
            step = "sign in" if status == 401 else "step up"
            if step in tried and (lacking or status == 401):
                raise AuthorizationError(_problem("the new token", status, challenge))
            if status == 403 and (not lacking or self._asked >= {*scopes}):
                return False
            hint = challenge.get("resource_metadata")
            place = await _discover(http, hint, self._issuer, token is not None)
            known = token is not None and token.get("issuer") == place.issuer
            if status == 401 and token is not None and known and "renew" not in tried:
                tried.add("renew")
                await self._renew(http, token, place)
                if self._token is not None:
                    return True
            tried.add(step)
            await self._obtain(http, place, scopes if "scope" in challenge else None)
            return True

    def _locked(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    # Tokens

    async def _renew(
        self, http: _Http, token: Json, place: Optional[_Place] = None
    ) -> None:
        """Use the refresh token; be without a token if it is of no use any more.

        Any other failure may pass. The token stays for the next call then, and nobody
        has to sign in.
        """
        try:
            if "refresh_token" in token:
                place = place or await _discover(http, None, self._issuer, True)
                if await self._refresh(http, place, token):
                    return
        except ConnectionLost as error:
            raise ConnectionLost(f"{_NOT_NOW}: {error}") from error
        except AuthorizationError as error:
            self._refusals += 1
            if not error.spent and self._refusals < _REFUSALS:
                raise AuthorizationError(f"{_NOT_NOW}: {error}") from error
        self._token = None

    async def _refresh(self, http: _Http, place: _Place, token: Json) -> bool:
        """False if the refresh token is not for this place, or it does not know us."""
        client = self._known(place) or self._storage.load("client " + place.issuer)
        if place.issuer != token.get("issuer") or not client:
            return False
        form = {"grant_type": "refresh_token", "refresh_token": token["refresh_token"]}
        fresh = await self._redeem(http, place, client, form)
        self._keep(http, place, {**token, **fresh})
        return True

    async def _obtain(
        self, http: _Http, place: _Place, challenged: Optional[list[str]]
    ) -> None:
        """A new token, with a person's consent if the grant needs it."""
        scopes = self._choose_scopes(place, challenged)
        form: dict[str, str] = {}
        if self._grant == "client_credentials":
            client, form["grant_type"] = self._given, "client_credentials"
        elif self._grant == "jwt-bearer":
            assert self._assertion is not None
            client, form["grant_type"] = self._given, _JWT_BEARER
            form["assertion"] = await self._assertion(
                place.issuer, place.resource, http
            )
        else:
            client, form = await self._sign_in(http, place, scopes)
        if scopes and self._grant != "authorization_code":
            form["scope"] = " ".join(scopes)
        answer = await self._redeem(http, place, client, form)
        self._keep(http, place, {"scope": " ".join(scopes), **answer})

    def _choose_scopes(
        self, place: _Place, challenged: Optional[list[str]]
    ) -> list[str]:
        """The challenge, else what the resource supports; and what was asked before."""
        if challenged is None:
            challenged = _scopes(self._scope) if self._scope else place.scopes or []
        wanted = {*challenged, *self._asked}
        offered = place.metadata.get("scopes_supported")
        if isinstance(offered, list) and "offline_access" in offered and wanted:
            if self._grant == "authorization_code":
                wanted.add("offline_access")
        self._asked = wanted - {"offline_access"}
        return sorted(wanted)

    def _keep(self, http: _Http, place: _Place, answer: Json) -> None:
        token = {
            k: answer[k]
            for k in ("access_token", "refresh_token", "scope")
            if k in answer
        }
        token["issuer"] = place.issuer
        lasts = answer.get("expires_in")
        if isinstance(lasts, (int, float)) and not isinstance(lasts, bool):
            token["expires_at"] = time.time() + min(lasts, 1e9)  # no float beyond
        self._token, self._refusals = token, 0
        self._storage.save("token " + _canonical(http.url.text), token)

    async def _redeem(
        self, http: _Http, place: _Place, client: Json, form: dict[str, str]
    ) -> Json:
        """One token request, with the client's way to authenticate (AUC-05, AUC-13)."""
        form = {**form, "resource": place.resource}
        headers = {**_FORM, **_JSON, **self._authenticate(place, client, form)}
        body = urllib.parse.urlencode(form).encode()
        url = place.endpoint("token_endpoint")
        status, _, data = await http.fetch("POST", url, headers, body)
        answer = _json(data)
        token = answer.get("access_token")
        if (
            status != 200
            or not isinstance(token, str)
            or not re.match(r"[!-~]+\Z", token)
        ):
            raise self._refusal(place, status, answer)
        if str(answer.get("token_type", "bearer")).lower() != "bearer":
            raise AuthorizationError(f"a token of type {answer['token_type']!r}")
        return answer

    def _refusal(self, place: _Place, status: int, answer: Json) -> ClientError:
        """What to raise for an answer of the token endpoint that holds no token."""
        text, error = _problem("the token request", status, answer), answer.get("error")
        if status >= 500 or status == 429:  # it is busy or down, whatever else it says
            return ConnectionLost(text)
        if error == "invalid_client":  # it has forgotten us
            self._storage.save("client " + place.issuer, None)
        refusal = AuthorizationError(text)
        refusal.spent = isinstance(error, str) and error in _SPENT
        return refusal

    def _authenticate(self, place: _Place, client: Json, form: Json) -> dict[str, str]:
        """Put the client's credentials into the form, or into the headers returned."""
        id, secret = client.get("client_id", ""), client.get("client_secret")
        method = self._method or client.get("token_endpoint_auth_method")
        if method is None:
            offered = place.listed("token_endpoint_auth_methods_supported")
            known = ("client_secret_basic", "client_secret_post")
            usable = [m for m in known if not offered or m in offered]
            method = usable[0] if secret and usable else "none"
        if method == "client_secret_basic" and secret:
            pair = ":".join(urllib.parse.quote(part, safe="") for part in (id, secret))
            return {
                "Authorization": "Basic " + base64.b64encode(pair.encode()).decode()
            }
        form["client_id"] = id
        if method == "client_secret_post" and secret:
            form["client_secret"] = secret
        elif method == "client_secret_jwt" and secret:
            now = int(time.time())
            audience = place.issuer
            claims = {"iss": id, "sub": id, "aud": audience, "jti": _random()}
            claims = {**claims, "iat": now, "exp": now + 300}
            kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            form["client_assertion_type"] = kind
            form["client_assertion"] = _jwt(claims, secret)
        elif method != "none":
            raise AuthorizationError(f"cannot authenticate with {method}")
        return {}

    # Registration (AUC-09, AUC-10, AUC-11)

    async def _client(self, http: _Http, place: _Place, redirect: str) -> Json:
        """Who this client is to this authorization server."""
        known = self._known(place) or self._storage.load("client " + place.issuer) or {}
        if known.get("redirect_uri", redirect) == redirect and "client_id" in known:
            return known
        if "registration_endpoint" not in place.metadata:
            text = "does not register clients: give client_id= and issuer="
            raise AuthorizationError(f"{place.issuer} {text}")
        return await self._register(http, place, redirect)

    def _known(self, place: _Place) -> Json:
        """Credentials that need no registration; {} if there are none."""
        if self._given:
            return self._given
        supported = place.metadata.get("client_id_metadata_document_supported")
        if supported is not True or self._metadata_url is None:
            return {}
        return {"client_id": self._metadata_url, "token_endpoint_auth_method": "none"}

    async def _register(self, http: _Http, place: _Place, redirect: str) -> Json:
        offered = place.listed("token_endpoint_auth_methods_supported") or ["none"]
        methods = ("none", "client_secret_basic", "client_secret_post")
        method = next((m for m in methods if m in offered), "none")
        wish = {
            "client_name": self._name,
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": "native" if _Url(redirect).local else "web",
        }
        url = place.endpoint("registration_endpoint")
        headers = {"Content-Type": "application/json", **_JSON}
        status, _, data = await http.fetch("POST", url, headers, _encode(wish))
        answer = _json(data)
        if status not in (200, 201) or not isinstance(answer.get("client_id"), str):
            raise AuthorizationError(_problem("the registration", status, answer))
        names = ("client_id", "client_secret", "token_endpoint_auth_method")
        client = {"token_endpoint_auth_method": method, "redirect_uri": redirect}
        client.update({name: answer[name] for name in names if answer.get(name)})
        self._storage.save("client " + place.issuer, client)
        return client

    # The authorization code flow

    async def _sign_in(
        self, http: _Http, place: _Place, scopes: list[str]
    ) -> tuple[Json, dict[str, str]]:
        """Take a person to the authorization server; (client, form of the code)."""
        if "S256" not in place.listed("code_challenge_methods_supported"):
            raise AuthorizationError(f"{place.issuer} does not offer PKCE with S256")
        listener = None
        if self._authorize is None:
            known = self._storage.load("client " + place.issuer) or {}
            listener = await _listen(self._redirect or known.get("redirect_uri"))
        redirect = (
            listener.redirect if listener else self._redirect or _LOCAL.format(3000)
        )
        try:
            client = await self._client(http, place, redirect)
            verifier, state = _random(), _random()
            query = {
                "response_type": "code",
                "client_id": client["client_id"],
                "redirect_uri": redirect,
                "state": state,
                "code_challenge": _b64(hashlib.sha256(verifier.encode()).digest()),
                "code_challenge_method": "S256",
                "resource": place.resource,
            }
            if scopes:
                query["scope"] = " ".join(scopes)
            url = _with_query(place.endpoint("authorization_endpoint"), query)
            if listener is not None:
                listener.state = state
            answer = await self._consent(url, listener)
        finally:
            if listener is not None:
                listener.close()
        code = _code(answer, state, place)
        form = {"grant_type": "authorization_code", "code": code}
        return client, {**form, "redirect_uri": redirect, "code_verifier": verifier}

    async def _consent(self, url: str, listener: Optional[_Listener]) -> str:
        if self._authorize is not None:
            answer = self._authorize(url)
            return str(await answer if hasattr(answer, "__await__") else answer)
        assert listener is not None
        if self._open_url is not None:
            opened = self._open_url(url)
            if hasattr(opened, "__await__"):
                await opened
        else:
            import webbrowser

            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(None, webbrowser.open, url):
                raise AuthorizationError(
                    "no browser here: give authorize= or open_url="
                )
        try:
            return await asyncio.wait_for(listener.answer, _SIGN_IN)
        except asyncio.TimeoutError:
            raise AuthorizationError("nobody signed in in time") from None


def id_jag(
    token_endpoint: str,
    id_token: str,
    client_id: str,
    client_secret: Optional[str] = None,
) -> Callable[..., Any]:
    """An `assertion` from an enterprise's identity provider (RFC 8693, ID-JAG)."""

    async def assertion(issuer: str, resource: str, http: _Http) -> str:
        kind = "urn:ietf:params:oauth:"
        form = {
            "grant_type": kind + "grant-type:token-exchange",
            "requested_token_type": kind + "token-type:id-jag",
            "audience": issuer,
            "resource": resource,
            "subject_token": id_token,
            "subject_token_type": kind + "token-type:id_token",
            "client_id": client_id,
        }
        if client_secret is not None:
            form["client_secret"] = client_secret
        url = _secure(token_endpoint, "the identity provider", http.url)
        body = urllib.parse.urlencode(form).encode()
        status, _, data = await http.fetch("POST", url, {**_FORM, **_JSON}, body)
        answer = _json(data)
        if status != 200 or not isinstance(answer.get("access_token"), str):
            raise AuthorizationError(_problem("the token exchange", status, answer))
        return str(answer["access_token"])

    return assertion
