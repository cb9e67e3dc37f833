"""OAuth of the client against a fake authorization server and resource."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import pathlib
import stat
import tempfile
import time
import unittest
import urllib.parse
from unittest import mock

from tinymcp import client as module
from tinymcp import oauth
from tinymcp.client import Client, ClientLimits, HttpStatusError
from tinymcp.oauth import AuthorizationError, FileStorage, MemoryStorage, OAuth, id_jag

from .fakes import FakeHttp, Script, over_http, response

METADATA_URL = "https://board.example/client.json"
PATH = "/.well-known/oauth-protected-resource"
SERVER_PATH = "/.well-known/oauth-authorization-server"


class World:
    """One origin that is resource and authorization server, with ways to differ."""

    def __init__(self, **twists):
        self.twists = twists
        self.script = Script(twists.pop("era", "modern"), tools__call={"content": []})
        self.plain = over_http(self.script)
        self.valid = set()  # access tokens
        self.codes = {}
        self.count = 0
        self.scope = twists.get("scope")  # what the resource asks for
        self.tokens = []  # forms of token requests
        self.authorizations = []  # queries of authorization requests
        self.registrations = []
        self.basic = []

    async def __aenter__(self):
        self.http = FakeHttp(self.answer)
        await self.http.__aenter__()
        self.url = self.http.url
        self.base = self.url[: -len("/mcp")]
        self.issuer = self.base + self.twists.get("issuer_path", "")
        return self

    async def __aexit__(self, *error):
        await self.http.__aexit__(*error)

    def resource_document(self):
        return {
            "resource": self.twists.get("resource", self.url),
            "authorization_servers": self.twists.get("servers", [self.issuer]),
            **self.twists.get("document", {}),
        }

    def server_document(self):
        return {
            "issuer": self.issuer,
            "authorization_endpoint": self.base + "/authorize?tenant=1",
            "token_endpoint": self.base + "/token",
            "registration_endpoint": self.base + "/register",
            "code_challenge_methods_supported": ["S256"],
            **self.twists.get("metadata", {}),
        }

    async def answer(self, request, writer):
        path = request.path.split("?")[0]
        if path == "/mcp":
            return await self.resource(request, writer)
        if path == self.twists.get("metadata_path", PATH + "/mcp"):
            return response(200, self.resource_document())
        if path == self.twists.get("server_path", SERVER_PATH):
            return response(200, self.server_document())
        steps = {"/token": self.token, "/register": self.register, "/idp": self.idp}
        if path in steps:
            return steps[path](request)
        return response(404, b"")

    async def resource(self, request, writer):
        sent = request.headers.get("authorization", "")
        if sent[len("Bearer ") :] not in self.valid:
            challenge = self.twists.get("challenge", "Bearer")
            if self.scope is not None:
                challenge += f' scope="{self.scope}"'
            return response(
                401, b"", www_authenticate=challenge.replace("BASE", self.base)
            )
        wanted = self.twists.get("step_up")
        if wanted and b"tools/call" in request.body and wanted not in self.granted:
            challenge = f'Bearer error="insufficient_scope", scope="{wanted}"'
            return response(403, b"", www_authenticate=challenge)
        return await self.plain(request, writer)

    def register(self, request):
        self.registrations.append(request.json)
        if "refuse_registration" in self.twists:
            return response(400, {"error": "invalid_redirect_uri"})
        answer = {"client_id": f"client-{len(self.registrations)}"}
        method = request.json["token_endpoint_auth_method"]
        if method != "none":
            answer.update(client_secret="s e:cret", token_endpoint_auth_method=method)
        return response(201, answer)

    def browser(self, url):
        """What the person's browser comes back with."""
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
        self.authorizations.append(query)
        code = f"code-{len(self.authorizations)}"
        self.codes[code] = query
        back = {"code": code, "state": query["state"], **self.twists.get("back", {})}
        back = {k: v for k, v in back.items() if v is not None}
        return query["redirect_uri"] + "?" + urllib.parse.urlencode(back)

    def token(self, request):
        form = dict(urllib.parse.parse_qsl(request.body.decode()))
        self.tokens.append(form)
        self.basic.append(request.headers.get("authorization"))
        if "refuse_token" in self.twists:
            return response(400, {"error": self.twists["refuse_token"]})
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] != f"refresh-{self.count}":
                return response(400, {"error": "invalid_grant"})
            query = {}
        elif form["grant_type"] == "authorization_code":
            query = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            assert query["code_challenge"] == challenge
            assert query["redirect_uri"] == form["redirect_uri"]
            assert query["resource"] == form["resource"]
        else:
            query = form
        self.granted = query.get("scope", "").split()
        self.count += 1
        token = f"token-{self.count}"
        self.valid = {token}
        answer = {"access_token": token, "token_type": "Bearer"}
        if self.twists.get("refresh"):
            answer["refresh_token"] = f"refresh-{self.count}"
        return response(200, {**answer, **self.twists.get("token", {})})

    def idp(self, request):
        form = dict(urllib.parse.parse_qsl(request.body.decode()))
        self.exchange = form
        if form["subject_token"] == "bad":
            return response(
                400, {"error": "invalid_request", "error_description": "no"}
            )
        return response(200, {"access_token": "the-jag", "token_type": "N_A"})


class OAuthTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        module._eras.clear()

    def auth(self, world, **options):
        options.setdefault("authorize", world.browser)
        return OAuth(**options)

    async def call(self, world, auth=None, **options):
        limits = ClientLimits(timeout=10.0)
        auth = auth or self.auth(world, **options)
        async with Client(world.url, auth=auth, limits=limits) as client:
            await client.list_tools()
            await client.call_tool("x")
        return auth

    async def refused(self, world, text, **options):
        with self.assertRaisesRegex(AuthorizationError, text):
            await self.call(world, **options)

    async def test_whole_flow(self):
        """AUC-04, AUC-05, AUC-09, AUC-10: from a 401 to a result."""
        async with World() as world:
            await self.call(world)
            (query,), (form,) = world.authorizations, world.tokens
            self.assertEqual(query["tenant"], "1")
            self.assertEqual(query["code_challenge_method"], "S256")
            self.assertEqual(query["resource"], world.url)
            self.assertEqual(form["resource"], world.url)
            self.assertEqual(form["client_id"], "client-1")
            self.assertNotIn("scope", query)
            (registration,) = world.registrations
            self.assertEqual(registration["application_type"], "native")
            self.assertIn("refresh_token", registration["grant_types"])
            sent = {r.headers.get("authorization") for r in world.http.seen[-2:]}
            self.assertEqual(sent, {"Bearer token-1"})
            self.assertFalse(
                [r for r in world.http.seen if "token-1" in r.path]
            )  # AUR-07

    async def test_legacy_server(self):
        async with World(era="legacy") as world:
            await self.call(world)
            self.assertEqual(
                world.http.sent("GET")[-1].headers["authorization"], "Bearer token-1"
            )

    async def test_resource_metadata(self):
        """AUC-01: where the challenge says, else below the path, else at the root."""
        hinted = 'Basic realm="a, b", Bearer resource_metadata="BASE/there\\?"'
        cases = [
            ({}, [PATH + "/mcp"]),
            ({"metadata_path": PATH}, [PATH + "/mcp", PATH]),
            ({"metadata_path": "/there", "challenge": hinted}, ["/there?"]),
        ]
        for twists, wanted in cases:
            async with World(**twists) as world:
                await self.call(world)
                paths = [r.path for r in world.http.sent("GET")]
                self.assertEqual(paths[: len(wanted)], wanted)

    async def test_resource_mismatch(self):
        """AUC-05: nothing is asked of anybody for another resource."""
        for resource in (
            "https://evil.example/mcp",
            "BASE/mc",
            "BASE/mcp?x=1",
            None,
            "x:",
        ):
            async with World() as world:
                base = world.base
                resource = resource and resource.replace("BASE", base)
                world.twists["resource"] = resource
                await self.refused(world, "which is not")
                self.assertFalse(world.registrations or world.authorizations)
        for resource in ("BASE/mcp/", "BASE", "BASE/"):
            async with World() as world:
                world.twists["resource"] = resource.replace("BASE", world.base)
                await self.call(world)
                self.assertEqual(world.tokens[0]["resource"], world.twists["resource"])

    async def test_server_metadata(self):
        """AUC-02: RFC 8414 first, then OpenID; with a path: inserted, then appended."""
        openid = "/.well-known/openid-configuration"
        cases = [
            ("", SERVER_PATH, [SERVER_PATH]),
            ("", openid, [SERVER_PATH, openid]),
            ("/t", SERVER_PATH + "/t", [SERVER_PATH + "/t"]),
            ("/t", openid + "/t", [SERVER_PATH + "/t", openid + "/t"]),
            ("/t", "/t" + openid, [SERVER_PATH + "/t", openid + "/t", "/t" + openid]),
        ]
        for issuer, path, wanted in cases:
            async with World(issuer_path=issuer, server_path=path) as world:
                await self.call(world)
                paths = [r.path for r in world.http.sent("GET")]
                self.assertEqual(paths[1:], wanted)
        async with World(server_path="/nowhere") as world:
            await self.refused(world, "no metadata of the authorization server")

    async def test_issuer_mismatch(self):
        """AUC-03: the document names the issuer that led to it, letter by letter."""
        for issuer in ("https://attacker.example", "BASE/", None):
            async with World() as world:
                issuer = issuer and issuer.replace("BASE", world.base)
                world.twists["metadata"] = {"issuer": issuer}
                await self.refused(world, "is of issuer")
                self.assertFalse(world.registrations or world.authorizations)

    async def test_servers_of_the_resource(self):
        for servers in ([], None, "x", [3]):
            async with World(servers=servers) as world:
                await self.refused(world, "no authorization server")
        for servers, text in (
            (["ftp://x"], "not an http URL"),
            (["http://x.example"], "https"),
        ):
            async with World(servers=servers) as world:
                await self.refused(world, text)

    async def test_server_of_2025_03_26(self):
        """AUC-15: no resource metadata; the origin is the authorization server."""
        async with World(metadata_path="/none") as world:
            await self.call(world)
            self.assertEqual(world.tokens[0]["resource"], world.url)
        async with World(metadata_path="/none", server_path="/none") as world:
            await self.call(world)
            self.assertEqual(len(world.authorizations), 1)
        async with World(metadata_path="/none") as world:
            world.twists["metadata"] = {"issuer": "https://other.example"}
            await self.refused(world, "metadata of issuer")

    async def test_pkce_is_required(self):
        """AUC-04: refused without S256."""
        for methods in (None, [], ["plain"], 5, "S256"):
            metadata = {"code_challenge_methods_supported": methods}
            async with World(metadata=metadata) as world:
                await self.refused(world, "PKCE")
                self.assertFalse(world.registrations or world.authorizations)

    async def test_metadata_of_wrong_types(self):
        """What is no array or no URL is none, and nothing raises what is not ours."""
        for url in ("http://localhost:99999/", "https://a..b/"):
            async with World(metadata={"token_endpoint": url}) as world:
                with self.assertRaises(module.ClientError):
                    await self.call(world)
        metadata = {"token_endpoint_auth_methods_supported": 5}
        async with World(metadata=metadata) as world:
            await self.call(world)

    async def test_a_silent_authorization_server(self):
        """Each request to it has the time-out of an answer; only a person has none."""
        async with World() as world:
            answer = world.answer

            async def silent(request, writer):
                if request.path.startswith(("/.well-known", "/token")):
                    await asyncio.sleep(30)
                return await answer(request, writer)

            world.http._answer = silent
            started = time.monotonic()
            with self.assertRaises(module.ClientError):
                limits = ClientLimits(timeout=0.1)
                client = Client(world.url, auth=self.auth(world), limits=limits)
                await client.__aenter__()
            self.assertLess(time.monotonic() - started, 10)

    async def test_iss(self):
        """AUC-06: compared as it stands, before anything else is believed."""
        promised = {"authorization_response_iss_parameter_supported": True}
        async with World() as world:
            good, slash = world.issuer, world.issuer + "/"
            upper = good.replace("http", "HTTP")
            cases = [
                ({}, None, True),
                ({}, good, True),
                ({}, slash, False),
                ({}, "https://evil.example", False),
                (promised, good, True),
                (promised, None, False),
                (promised, upper, False),
            ]
            for metadata, iss, fine in cases:
                world.twists.update(metadata=metadata, back={"iss": iss})
                before = len(world.tokens)
                world.valid = set()
                if fine:
                    await self.call(world)
                    self.assertEqual(len(world.tokens), before + 1)
                    continue
                world.twists["back"]["error"] = "shown to nobody"
                await self.refused(world, "of another issuer$")
                self.assertEqual(len(world.tokens), before)

    async def test_authorization_response(self):
        """AUC-12: state, errors, no code."""
        cases = {
            "another state": {"state": "x"},
            "has another state": {"state": None},
            "access_denied: not today": {
                "error": "access_denied",
                "error_description": "not today",
            },
            "no code": {"code": None},
        }
        for text, back in cases.items():
            async with World(back=back) as world:
                await self.refused(world, text)
                self.assertFalse(world.tokens)

    async def test_endpoints_must_be_secure(self):
        """AUC-12: https, or this machine; nothing else is opened or posted to."""
        bad = {
            "authorization_endpoint": "javascript:alert(1)",
            "token_endpoint": "http://as.example/token",
            "registration_endpoint": "file:///etc/passwd",
        }
        for name, url in bad.items():
            async with World(metadata={name: url}) as world:
                await self.refused(world, name)
                self.assertFalse(world.tokens)
        far = module._Url("https://server.example/mcp")
        with self.assertRaisesRegex(AuthorizationError, "not https"):
            oauth._secure("http://localhost:631/", "x", far)

    async def test_scopes(self):
        """AUC-07: the challenge, else what is supported, else none."""
        supported = {"scopes_supported": ["a", "b"]}
        cases = [
            ({"scope": "c d", "document": supported}, {}, "c d"),
            ({"document": supported}, {}, "a b"),
            ({}, {}, None),
            ({"document": supported}, {"scope": "mine"}, "mine"),
            ({"document": {"scopes_supported": 3}}, {}, None),
        ]
        for twists, options, wanted in cases:
            async with World(**twists) as world:
                await self.call(world, **options)
                self.assertEqual(world.authorizations[0].get("scope"), wanted)

    async def test_offline_access(self):
        """AUC-14: asked for only where it is offered."""
        offered = {"scopes_supported": ["offline_access"]}
        for metadata, wanted in ((offered, "a offline_access"), ({}, "a")):
            async with World(scope="a", metadata=metadata) as world:
                await self.call(world)
                self.assertEqual(world.authorizations[0]["scope"], wanted)

    async def test_step_up(self):
        """AUC-08: the union of what was asked for, once."""
        async with World(scope="read", step_up="write") as world:
            await self.call(world)
            scopes = [query["scope"] for query in world.authorizations]
            self.assertEqual(scopes, ["read", "read write"])
        async with World(scope="read", step_up="write") as world:
            world.granted = []
            browser = world.browser

            def stingy(url):
                answer = browser(url)
                for query in world.codes.values():
                    query["scope"] = "read"
                return answer

            await self.refused(world, "new token .* insufficient", authorize=stingy)
            self.assertEqual(len(world.authorizations), 2)

    async def test_scopes_that_were_asked_for_before(self):
        """Another call that lacks them still does not ask again."""
        async with World(scope="read", step_up="read") as world:
            browser = world.browser

            def stingy(url):
                answer = browser(url)
                for query in world.codes.values():
                    query["scope"] = ""
                return answer

            with self.assertRaises(HttpStatusError) as raised:
                await self.call(world, authorize=stingy)
            self.assertEqual(raised.exception.status, 403)
            self.assertEqual(len(world.authorizations), 1)

    async def test_plain_403(self):
        async with World() as world:
            plain = world.plain

            async def answer(request, writer):
                if b"tools/call" in request.body:
                    return response(403, b"not you")
                return await plain(request, writer)

            world.plain = answer
            with self.assertRaisesRegex(HttpStatusError, "not you"):
                await self.call(world)
            self.assertEqual(len(world.authorizations), 1)

    async def test_attempts_are_limited(self):
        """AUC-08: a server that takes no token is not asked for ever."""
        async with World() as world:
            world.twists["token"] = {"access_token": "never-valid"}
            await self.refused(world, "the new token was refused: HTTP 401")
            self.assertEqual(len(world.authorizations), 1)

    async def test_attempts_are_those_of_a_call(self):
        """One that is always refused signs in once, whatever other calls do."""
        async with World(refresh=True) as world:
            judge, refused = world.resource, []

            async def resource(request, writer):
                if b"prompts/get" not in request.body:
                    return await judge(request, writer)
                refused.append(request.headers["authorization"])
                await client.ping()  # with success, between any two refusals
                return response(401, b"", www_authenticate='Bearer error="not_you"')

            world.resource = resource
            async with Client(world.url, auth=self.auth(world)) as client:
                for number in (1, 2):
                    with self.assertRaisesRegex(AuthorizationError, "refused: not_you"):
                        await asyncio.wait_for(client.get_prompt("x"), 10)
                    self.assertEqual(len(world.authorizations), 1 + number)
                    # With the token that it has, with a renewed one, with a new one.
                    self.assertEqual(len(refused), 3 * number)

    async def test_token_endpoint_auth(self):
        """AUC-13: basic, post, none."""
        cases = [
            (["client_secret_basic"], "client_secret_basic"),
            (["client_secret_post"], "client_secret_post"),
            (["none", "client_secret_basic"], "none"),
            (None, "none"),
        ]
        for methods, wanted in cases:
            metadata = {"token_endpoint_auth_methods_supported": methods}
            async with World(metadata=metadata) as world:
                await self.call(world)
                form, basic = world.tokens[0], world.basic[0]
                registration = world.registrations[0]
                self.assertEqual(registration["token_endpoint_auth_method"], wanted)
                self.assertEqual(basic is not None, wanted == "client_secret_basic")
                self.assertEqual(
                    "client_secret" in form, wanted == "client_secret_post"
                )
                self.assertEqual("client_id" in form, basic is None)
                if basic:
                    pair = base64.b64decode(basic[len("Basic ") :]).decode()
                    self.assertEqual(pair, "client-1:s%20e%3Acret")

    async def test_pre_registered(self):
        """AUC-09, AUC-11: for their issuer only."""
        async with World(metadata={"registration_endpoint": None}) as world:
            given = {"client_id": "me", "client_secret": "s", "issuer": world.issuer}
            await self.call(world, **given)
            self.assertEqual(base64.b64decode(world.basic[0][6:]), b"me:s")
            self.assertFalse(world.registrations)
            given["issuer"] = "https://other.example"
            await self.refused(world, "the credentials are for", **given)
            world.valid = set()
            given.update(issuer=world.issuer, auth_method="client_secret_post")
            await self.call(world, **given)
            self.assertEqual(world.tokens[-1]["client_secret"], "s")
            world.valid = set()
            await self.refused(
                world,
                "cannot authenticate",
                **{**given, "auth_method": "private_key_jwt"},
            )

    async def test_pre_registered_without_metadata_of_the_resource(self):
        """AUC-11: a server that tells nothing about its issuer gets no secret."""

        async def answer(request, writer):
            seen.append(request)
            if request.path == "/token":
                return response(200, {"access_token": "x"})
            return response(401 if request.path == "/mcp" else 404, b"")

        seen = []
        for grant in ("client_credentials", "authorization_code"):
            auth = OAuth(
                client_id="me",
                client_secret="s",
                issuer="https://good.example",
                grant=grant,
                authorize=lambda url: self.fail(url),
            )
            async with FakeHttp(answer) as server:
                with self.assertRaisesRegex(AuthorizationError, "credentials are for"):
                    async with Client(server.url, auth=auth):
                        pass
        self.assertNotIn("/token", [request.path for request in seen])

    async def test_client_id_document(self):
        """AUC-09: before dynamic registration, where the server takes it."""
        supported = {"client_id_metadata_document_supported": True}
        for metadata, wanted in ((supported, METADATA_URL), ({}, "client-1")):
            async with World(metadata=metadata) as world:
                await self.call(world, client_metadata_url=METADATA_URL)
                self.assertEqual(world.tokens[0]["client_id"], wanted)
        for url in ("http://board.example/c.json", "https://board.example/"):
            with self.assertRaises(ValueError):
                OAuth(client_metadata_url=url)
        with self.assertRaises(ValueError):
            OAuth(grant="password")

    async def test_registration(self):
        """AUC-10: a web client; refusals; no registration at all."""
        async with World() as world:
            await self.call(world, redirect_uri="https://app.example/back")
            self.assertEqual(world.registrations[0]["application_type"], "web")
        async with World(refuse_registration=True) as world:
            await self.refused(world, "invalid_redirect_uri")
        async with World() as world:
            document = world.server_document

            def without():
                made = document()
                del made["registration_endpoint"]
                return made

            world.server_document = without
            await self.refused(world, "does not register clients")

    async def test_authorization_server_changes(self):
        """AUC-11: a new issuer means new credentials; it never sees the old ones."""
        async with World() as old, World() as world:
            world.twists["servers"] = [old.issuer]
            auth = self.auth(world)
            auth._authorize = old.browser
            old.url = world.url

            async def both():
                limits = ClientLimits(timeout=10.0)
                async with Client(world.url, auth=auth, limits=limits) as client:
                    world.valid = old.valid
                    await client.list_tools()
                    world.valid = set()
                    world.twists["servers"] = [world.issuer]
                    auth._authorize = world.browser
                    await client.call_tool("x")

            token = old.token

            def issue(request):
                answer = token(request)
                world.valid = old.valid
                return answer

            old.token = issue
            await both()
            self.assertEqual((len(old.registrations), len(world.registrations)), (1, 1))
            self.assertEqual(len(old.tokens), 1)

    async def test_bad_token_answers(self):
        cases = {
            "was refused: invalid_grant": {"refuse_token": "invalid_grant"},
            "was refused": {"token": {"access_token": "two words"}},
            "was refused: HTTP 200": {"token": {"access_token": None}},
            "type 'MAC'": {"token": {"token_type": "MAC"}},
        }
        for text, twists in cases.items():
            async with World(**twists) as world:
                await self.refused(world, text)

    async def test_server_forgot_the_client(self):
        storage = MemoryStorage()
        async with World(refuse_token="invalid_client") as world:
            await self.refused(world, "invalid_client", storage=storage)
            self.assertIsNone(storage.load("client " + world.issuer))
            del world.twists["refuse_token"]
            await self.call(world, storage=storage)
            self.assertEqual(len(world.registrations), 2)

    async def test_kept_credentials(self):
        """Tokens and registration are used again by the next client."""
        storage = MemoryStorage()
        async with World() as world:
            await self.call(world, storage=storage)
            await self.call(world, storage=storage)
            self.assertEqual(len(world.authorizations), 1)
            world.valid = set()
            await self.call(world, storage=storage)
            self.assertEqual(
                (len(world.authorizations), len(world.registrations)), (2, 1)
            )
            world.valid = set()
            other = "http://localhost:3999/callback"
            await self.call(world, storage=storage, redirect_uri=other)
            self.assertEqual(len(world.registrations), 2)

    async def test_refresh(self):
        """AUC-14: an expired or refused token is renewed without a person."""
        storage = MemoryStorage()
        async with World(refresh=True, token={"expires_in": 3600}) as world:
            await self.call(world, storage=storage)
            key = "token " + world.url
            kept = storage.load(key)
            self.assertAlmostEqual(kept["expires_at"], time.time() + 3600, delta=60)
            storage.save(key, {**kept, "expires_at": time.time() + 5})
            await self.call(world, storage=storage)
            self.assertEqual(world.tokens[-1]["grant_type"], "refresh_token")
            self.assertEqual(world.tokens[-1]["resource"], world.url)
            world.valid = set()  # refused before its time
            await self.call(world, storage=storage)
            self.assertEqual(len(world.authorizations), 1)
            self.assertEqual(storage.load(key)["refresh_token"], "refresh-3")
            storage.save(key, {**storage.load(key), "refresh_token": "spent"})
            world.valid = set()
            await self.call(world, storage=storage)
            self.assertEqual(len(world.authorizations), 2)

    async def test_a_renewal_that_fails_for_now(self):
        """The refresh token stays, nobody signs in, and the next call renews."""
        busy = {"error": "temporarily_unavailable"}
        half = response(200, b"{}", content_length=9, connection="close")
        cut = {"/token": None}, {PATH + "/mcp": half}
        down = {"/token": response(503, busy)}, {"/token": response(429, b"")}
        strange = {"/token": response(400, {"error": "invalid_request"})}
        there = {SERVER_PATH: response(502, b"")}, {PATH + "/mcp": response(500, b"")}
        for early in (True, False):
            for failing in (*cut, *down, strange, *there):
                with self.subTest(failing, early=early):
                    await self.renewed(dict(failing), early)

    async def renewed(self, failing, early):
        """Renew a token that has expired, or that is refused before its time."""
        async with World(refresh=True) as world:
            auth, answer = self.auth(world), world.answer

            async def fail(request, writer):
                if request.path in failing:
                    return failing.pop(request.path)
                return await answer(request, writer)

            async with Client(world.url, auth=auth) as client:
                world.http._answer = fail
                world.valid = set()
                auth._token["expires_at"] = 0 if early else 1e12
                error = (AuthorizationError, module.ConnectionLost)
                told = early or "/token" in failing
                text = "could not be renewed now: " if told else ""
                with self.assertRaisesRegex(error, text):
                    await client.ping()
                await client.ping()
            self.assertEqual(len(world.authorizations), 1)
            self.assertEqual(world.tokens[-1]["refresh_token"], "refresh-1")

    async def test_a_place_that_is_broken_is_one_of_several(self):
        """Some servers answer 500 to every path that they do not know."""
        async with World() as world:
            answer = world.answer

            async def moved(request, writer):
                if request.path == PATH + "/mcp":
                    return response(500, b"")
                if request.path == PATH:
                    request.path = PATH + "/mcp"
                return await answer(request, writer)

            world.http._answer = moved
            await self.call(world)
            self.assertEqual(len(world.authorizations), 1)

    async def test_a_server_of_2025_03_26_that_answers_500(self):
        """Its own metadata counts; without any it may be down, which is told."""
        for there in (True, False):
            async with World() as world:
                answer = world.answer

                async def broken(request, writer, there=there, answer=answer):
                    path = request.path
                    if path.startswith(PATH) or (path == SERVER_PATH and not there):
                        return response(500, b"")
                    return await answer(request, writer)

                world.http._answer = broken
                if there:
                    await self.call(world)
                else:
                    with self.assertRaisesRegex(module.ConnectionLost, "HTTP 500"):
                        await self.call(world)
                self.assertEqual(len(world.authorizations), int(there))

    async def test_a_refresh_token_that_is_refused_in_any_words(self):
        """Not for ever: after three times in a row a person signs in again."""
        async with World(refresh=True) as world:
            auth, answer = self.auth(world), world.answer

            async def refuse(request, writer):
                if request.path == "/token" and b"=refresh_token" in request.body:
                    return response(400, {"error": "invalid_request"})
                return await answer(request, writer)

            async with Client(world.url, auth=auth) as client:
                world.http._answer = refuse
                world.valid = set()
                for _ in range(2):
                    with self.assertRaisesRegex(AuthorizationError, "renewed now"):
                        await client.ping()
                await client.ping()
            self.assertEqual(len(world.authorizations), 2)

    async def test_a_storage_that_fails_ends_a_subscription(self):
        class Full(MemoryStorage):
            full = False

            def save(self, key, value):
                if self.full:
                    raise OSError("no space")
                super().save(key, value)

        async with World(refresh=True) as world:
            storage = Full()
            auth = self.auth(world, storage=storage)
            async with Client(world.url, auth=auth) as client:
                world.valid, storage.full = set(), True
                opening = client.subscribe("x://1").__aenter__()
                with self.assertRaisesRegex(OSError, "no space"):
                    await asyncio.wait_for(opening, 5)

    async def test_a_refresh_token_that_is_spent(self):
        """Refused for good: a person signs in again."""
        for status, error in (
            (400, "invalid_grant"),
            (401, "invalid_client"),
            (400, "unauthorized_client"),
            (200, "bad_refresh_token"),
        ):
            async with World(refresh=True) as world:
                auth, token = self.auth(world), world.token

                def refuse(request, token=token, status=status, error=error):
                    if b"grant_type=refresh_token" in request.body:
                        return response(status, {"error": error})
                    return token(request)

                async with Client(world.url, auth=auth) as client:
                    world.token, world.valid = refuse, set()
                    await client.ping()
                self.assertEqual(len(world.authorizations), 2, error)

    async def test_a_document_that_redirects_elsewhere(self):
        """It is none, as one that is not found: the next place is asked."""
        async with World(server_path="/.well-known/openid-configuration") as world:
            answer = world.answer

            async def sign_in_first(request, writer):
                if request.path == SERVER_PATH:
                    return response(307, b"", location="https://login.example/")
                return await answer(request, writer)

            world.http._answer = sign_in_first
            await self.call(world)

    async def test_refresh_keeps_the_old_refresh_token(self):
        storage = MemoryStorage()
        async with World(refresh=True) as world:
            await self.call(world, storage=storage)
            world.twists["refresh"] = False
            world.valid = set()
            await self.call(world, storage=storage)
            self.assertEqual(
                storage.load("token " + world.url)["refresh_token"], "refresh-1"
            )

    async def test_no_refresh_at_another_issuer(self):
        storage = MemoryStorage()
        async with World(refresh=True) as world:
            await self.call(world, storage=storage)
            key = "token " + world.url
            kept = {
                **storage.load(key),
                "issuer": "https://other.example",
                "expires_at": 0,
            }
            storage.save(key, kept)
            await self.call(world, storage=storage)
            self.assertEqual(len(world.authorizations), 2)
            self.assertNotIn("refresh_token", [f["grant_type"] for f in world.tokens])

    async def test_token_requests_are_sent_once(self):
        """A code or a rotating refresh token is spent, also if the answer is lost."""
        storage = MemoryStorage()
        async with World(refresh=True) as world:
            await self.call(world, storage=storage)
            key = "token " + world.url
            storage.save(key, {**storage.load(key), "expires_at": 0})
            answer, fates = world.answer, {"/token": None}

            async def cut(request, writer):
                done = await answer(request, writer)
                return fates.pop(request.path, done)

            world.http._answer = cut
            with self.assertRaises(module.ConnectionLost):
                await self.call(world, storage=storage)
            grants = [form["grant_type"] for form in world.tokens]
            self.assertEqual(grants, ["authorization_code", "refresh_token"])

    async def test_token_requests_use_no_kept_connection(self):
        """The server may close one just then, and they cannot be sent again."""
        async with World() as world:
            answer, ports = world.answer, []

            async def noted(request, writer):
                ports.append((request.method, writer.get_extra_info("peername")[1]))
                return await answer(request, writer)

            world.http._answer = noted
            await self.call(world)
            before = [port for _, port in ports[:4]]  # a refusal, two documents, POST
            self.assertEqual(ports[3][0], "POST")
            self.assertNotIn(before.pop(), before)

    async def test_calls_at_a_time(self):
        """One flow, however many calls are refused at once."""
        async with World() as world:
            auth = self.auth(world)
            async with Client(world.url, auth=auth) as client:
                world.valid = set()
                calls = (client.list_tools(refresh=True) for _ in range(5))
                await asyncio.gather(*calls)
            self.assertEqual(len(world.authorizations), 2)

    async def test_a_refusal_of_an_old_token_that_comes_late(self):
        """It is not taken for one of the token that another call got meanwhile."""
        async with World() as world:
            auth, refusals, newer = self.auth(world), [], asyncio.Event()
            judge = world.resource

            async def resource(request, writer):
                sent = request.headers.get("authorization", "")
                if sent == "Bearer token-2":
                    newer.set()
                elif not world.valid or sent == "Bearer token-1":
                    refusals.append(sent)
                    if len(refusals) == 2:
                        await newer.wait()
                return await judge(request, writer)

            async with Client(world.url, auth=auth) as client:
                world.valid, world.resource = set(), resource
                calls = (client.call_tool("echo", {"text": "a"}) for _ in range(2))
                await asyncio.gather(*calls)
            self.assertEqual(refusals, ["Bearer token-1"] * 2)
            self.assertEqual(len(world.authorizations), 2)

    async def test_client_credentials(self):
        """EXT-09: with a secret, and with a JWT of HS256."""
        async with World(scope="a") as world:
            given = {
                "client_id": "me",
                "client_secret": "s",
                "grant": "client_credentials",
            }
            await self.call(world, **given)
            self.assertEqual(world.tokens[0]["grant_type"], "client_credentials")
            self.assertEqual(world.tokens[0]["scope"], "a")
            self.assertFalse(world.authorizations)
            world.valid = set()
            await self.call(world, auth_method="client_secret_jwt", **given)
            form = world.tokens[1]
            self.assertNotIn("client_secret", form)
            head, claims, mac = form["client_assertion"].split(".")
            digest = hmac.new(
                b"s", f"{head}.{claims}".encode(), hashlib.sha256
            ).digest()
            self.assertEqual(base64.urlsafe_b64decode(mac + "=="), digest)
            claims = json.loads(base64.urlsafe_b64decode(claims + "=="))
            self.assertEqual((claims["iss"], claims["aud"]), ("me", world.issuer))

    async def test_enterprise(self):
        """EXT-10: an identity assertion is exchanged for a token."""
        async with World(issuer_path="") as world:
            assertion = id_jag(
                world.base + "/idp", "id-token", "idp-client", "idp-secret"
            )
            given = {"client_id": "me", "client_secret": "s", "grant": "jwt-bearer"}
            await self.call(world, assertion=assertion, **given)
            self.assertEqual(world.exchange["audience"], world.issuer)
            self.assertEqual(world.exchange["resource"], world.url)
            self.assertEqual(world.exchange["client_secret"], "idp-secret")
            self.assertEqual(world.tokens[0]["assertion"], "the-jag")
            world.valid = set()
            bad = id_jag(world.base + "/idp", "bad", "idp-client")
            await self.refused(world, "exchange was refused", assertion=bad, **given)

    async def test_token_is_not_sent_elsewhere(self):
        """Metadata and token requests carry no access token (AUR-08)."""
        async with World() as world:
            await self.call(world)
            world.valid = set()
            await self.call(world)
            for request in world.http.seen:
                if request.path != "/mcp":
                    self.assertNotIn("Bearer", request.headers.get("authorization", ""))


class ListenerTest(unittest.IsolatedAsyncioTestCase):
    """The default way: a browser, and a listener on localhost."""

    def setUp(self):
        module._eras.clear()

    async def get(self, url, raw=None):
        parts = urllib.parse.urlsplit(url)
        reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
        target = f"{parts.path}?{parts.query}"
        writer.write(
            raw or f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        try:
            return (await reader.read()).split(b"\r\n")[0]
        finally:
            writer.close()

    async def test_browser_comes_back(self):
        async with World() as world:

            async def person(url):
                back = world.browser(url)
                plain = back.split("?")[0]
                self.assertIn(b"404", await self.get(plain + "?code=forged&state=x"))
                self.assertIn(b"404", await self.get(plain, b"POST / HTTP/1.1\r\n\r\n"))
                await self.get(plain, b"x" * 20_000 + b"\r\n\r\n")
                self.assertIn(b"200", await self.get(back))
                self.assertIn(b"200", await self.get(back))  # a reload

            storage = MemoryStorage()
            for _ in range(2):  # the port that was registered is used again
                auth = OAuth(open_url=person, storage=storage)
                async with Client(world.url, auth=auth):
                    pass
                world.valid = set()
            self.assertEqual(len(world.registrations), 1)

    async def test_default_browser(self):
        async with World() as world:
            loop = asyncio.get_running_loop()

            def browse(url):
                back = world.browser(url)
                asyncio.run_coroutine_threadsafe(self.get(back), loop)
                return True

            with mock.patch("webbrowser.open", browse):
                async with Client(world.url, auth=OAuth()):
                    pass
            world.valid = set()
            with mock.patch("webbrowser.open", lambda url: False):
                with self.assertRaisesRegex(AuthorizationError, "no browser"):
                    async with Client(world.url, auth=OAuth()):
                        self.fail("has no token")

    async def test_nobody_comes(self):
        async with World() as world:
            with mock.patch.object(oauth, "_SIGN_IN", 0.05):
                with self.assertRaisesRegex(AuthorizationError, "nobody signed in"):
                    async with Client(world.url, auth=OAuth(open_url=lambda url: None)):
                        self.fail("has no token")

    async def test_port_taken(self):
        first = await oauth._listen(None)
        try:
            second = await oauth._listen(first.redirect)
            self.assertNotEqual(second.redirect, first.redirect)
            second.close()
        finally:
            first.close()


class StorageTest(unittest.TestCase):
    def test_file(self):
        """AUC-14: 0600, replaced as a whole, and no trouble with a broken file."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "deep", "tokens.json")
            storage = FileStorage(str(path))
            self.assertIsNone(storage.load("a"))
            storage.save("a", {"x": 1})
            storage.save("b", {"y": 2})
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            self.assertEqual(stat.S_IMODE(path.parent.stat().st_mode), 0o700)
            self.assertEqual(FileStorage(str(path)).load("a"), {"x": 1})
            storage.save("a", None)
            self.assertIsNone(FileStorage(str(path)).load("a"))
            self.assertEqual(os.listdir(path.parent), ["tokens.json"])
            path.write_text("not JSON")
            self.assertIsNone(storage.load("b"))
            path.write_text('["b"]')
            self.assertIsNone(storage.load("b"))
            with mock.patch("os.replace", side_effect=OSError("full")):
                with self.assertRaises(OSError):
                    storage.save("b", {})
            self.assertEqual(os.listdir(path.parent), ["tokens.json"])

    def test_challenges(self):
        cases = {
            "Bearer": {},
            "": {},
            'Bearer realm="x", scope="a b"': {"realm": "x", "scope": "a b"},
            'Basic realm="Bearer x=1", bearer Scope=a': {"scope": "a"},
            'Bearer a="q\\"q", a="2", DPoP algs="ES256"': {"a": 'q"q'},
        }
        for header, wanted in cases.items():
            self.assertEqual(oauth._challenge(header), wanted, header)


if __name__ == "__main__":
    unittest.main()
