"""Section 10: who may come in. Tokens, verifiers, scopes, metadata, TLS (AUR rows)."""

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import socket
import ssl
import sys
import tempfile
import threading
import time
import unittest
import warnings
from unittest import mock

import tinymcp
from tests.test_endpoint import (
    PATIENCE,
    Client,
    Live,
    initialize,
    legacy,
    modern,
    request,
    soon,
)
from tinymcp import Context, Limits, Principal, Server

rt = sys.modules[tinymcp.Server.__module__]

TOKEN, OTHER = "correct-horse-battery", "another-horse-battery"
URI = "https://mcp.example/mcp"
AS = "https://as.example"


def server(**options):
    found = Server("guarded", "1", log=lambda level, text: None, **options)
    found.proceed = threading.Event()

    @found.tool(inline=True)
    def who(ctx: Context) -> str:
        """Tell the caller who it is."""
        return ctx.principal.subject if ctx.principal else "nobody"

    @found.tool
    def slow() -> str:
        """Work."""
        return "done"

    @found.tool(scopes=("write",), inline=True)
    def write(ctx: Context) -> bool:
        """Ask, then write."""
        return ctx.confirm("Write?")

    @found.resource("x://open", inline=True)
    def open_one() -> str:
        return "open"

    @found.resource("x://secret", scopes=("read",), inline=True)
    def secret() -> str:
        return "secret"

    @found.resource("x://secret/{n}", scopes=("read",), inline=True)
    def secrets(n: str) -> str:
        return n

    @found.prompt(scopes=("read",), inline=True)
    def ask() -> str:
        return "ask"

    return found


def bearer(data, token):
    field = b"Authorization: Bearer " + token.encode() + b"\r\nHost:"
    return data.replace(b"Host:", field, 1)


def call(name, **more):
    return modern("tools/call", {"name": name}, elicitation={}, **more)


class Tokens(unittest.TestCase):
    def live(self, **options):
        return Live(server(), **options)

    def test_every_request_needs_the_token_AUR_05_AUR_10_AUR_11(self):
        with self.live(token=TOKEN) as live:
            self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 200)
            for data in (
                call("who"),
                bearer(call("who"), OTHER),
                initialize(),
                request("GET"),
                request("DELETE"),
                modern("subscriptions/listen", {"notifications": {}}),
            ):
                reply = live.ask(data)
                self.assertEqual(reply.status, 401)
                self.assertTrue(reply.headers["www-authenticate"].startswith("Bearer"))
            self.assertEqual(live.state()[0], 0)

    def test_health_and_preflight_need_none(self):
        with self.live(token=TOKEN, allow_origins=("http://a.example",)) as live:
            self.assertEqual(live.ask(request("GET", target="/healthz")).status, 200)
            fields = [("Origin", "http://a.example")]
            fields.append(("Access-Control-Request-Method", "POST"))
            self.assertEqual(live.ask(request("OPTIONS", headers=fields)).status, 204)

    def test_a_foreign_host_is_refused_before_the_token_is_looked_at(self):
        with self.live(token=TOKEN) as live:
            data = bearer(call("who"), OTHER).replace(b": localhost", b": evil.example")
            self.assertEqual(live.ask(data).status, 421)

    def test_malformed_authorization_AUR_07_AUR_12(self):
        with self.live(token=TOKEN) as live:
            for field, status in (
                ("Bearer", 400),
                ("Foo", 400),
                ("Bearer a b", 400),
                ("Basic abcd", 401),
                (f"bearer {TOKEN}", 200),
                (f"BEARER  {TOKEN} ", 200),
            ):
                data = call("who", headers={"Authorization": field})
                self.assertEqual(live.ask(data).status, status, field)
            twice = bearer(bearer(call("who"), TOKEN), TOKEN)
            self.assertEqual(live.ask(twice).status, 400)
            query = bearer(call("who"), TOKEN).replace(
                b"/mcp ", b"/mcp?access_token=" + TOKEN.encode() + b" "
            )
            self.assertEqual(live.ask(query).status, 400)

    def test_forms_of_token(self):
        for given in (
            TOKEN,
            [OTHER, TOKEN],
            {TOKEN: "me"},
            {TOKEN: Principal("me", ("read",))},
        ):
            with self.live(token=given) as live:
                self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 200)
        for bad in ("short", "has a space in the token", "ünïcode-token-xxxxx"):
            with self.assertRaisesRegex(ValueError, "16 ASCII"):
                rt._token_table(bad)

    def test_a_principal_shows_no_claims(self):
        shown = repr(Principal("me", ("write", "read"), claims={"jti": "secret"}))
        self.assertEqual(shown, "Principal('me', scopes=['read', 'write'])")
        self.assertEqual(repr(Principal("me", None)), "Principal('me', scopes=None)")
        self.assertEqual(repr(Principal("me")), "Principal('me', scopes=[])")

    def test_the_environment_gives_a_token(self):
        with mock.patch.dict(os.environ, TINYMCP_TOKEN=TOKEN), self.live() as live:
            self.assertEqual(live.ask(call("who")).status, 401)
            self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 200)

    def test_the_token_file_is_read_again_when_it_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tokens")
            path.write_text(f"# people\nanna {TOKEN} read write\n\ncarl {OTHER}\n")
            with self.live(token_file=str(path)) as live:
                reply = live.ask(bearer(call("who"), TOKEN)).json
                self.assertEqual(reply["result"]["structuredContent"], "anna")
                reply = live.ask(bearer(call("who"), OTHER)).json
                self.assertEqual(reply["result"]["structuredContent"], "carl")
                path.write_text(f"bert {OTHER}\n")
                self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 401)
                reply = live.ask(bearer(call("who"), OTHER)).json
                self.assertEqual(reply["result"]["structuredContent"], "bert")

    def test_a_line_that_is_none_is_named(self):
        """A name without its token would be a token that everybody guesses."""
        lines = [
            ("kitchen-laptop-of-bob", "line 2: NAME TOKEN .* wanted, not one word"),
            ("bob short", "line 2: a token has 16"),
            (f"bob {TOKEN}", "line 2: bob has the token of anna"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tokens")
            for line, wanted in lines:
                path.write_text(f"anna {TOKEN}\n{line}\n")
                with self.assertRaisesRegex(ValueError, wanted):
                    rt._Auth({**rt._HTTP, "token_file": str(path)}, "/mcp")
            path.write_text(f"\ufeffanna {TOKEN} #read\n# {OTHER}\n#\n", "utf-8")
            auth = rt._Auth({**rt._HTTP, "token_file": str(path)}, "/mcp")
            self.assertEqual([who.subject for _, who in auth.tokens], ["anna"])
            for cut, wanted in (
                (f"anna {TOKEN} re", "anna"),  # a scope of that name is none
                (f"anna {TOKEN} read\nbob {OTHER}", "on a line that has no end"),
            ):
                path.write_text(cut)
                try:
                    auth = rt._Auth({**rt._HTTP, "token_file": str(path)}, "/mcp")
                except ValueError as error:
                    self.assertIn(wanted, str(error))
                else:
                    self.assertEqual([who.subject for _, who in auth.tokens], [wanted])
            path.write_text("anna token#with#a#sign#in#it\n")
            auth = rt._Auth({**rt._HTTP, "token_file": str(path)}, "/mcp")
            digest = hashlib.sha256(b"token#with#a#sign#in#it").digest()
            self.assertEqual([each for each, _ in auth.tokens], [digest])
        for none in ([], (), {}, ""):
            with mock.patch.dict(os.environ, TINYMCP_TOKEN=TOKEN):
                with self.assertRaisesRegex(ValueError, "holds no token"):
                    rt._Auth({**rt._HTTP, "token": none}, "/mcp")
        for token in ("", "short"):
            with mock.patch.dict(os.environ, TINYMCP_TOKEN=token):
                with self.assertRaisesRegex(ValueError, "TINYMCP_TOKEN: a token has"):
                    rt._Auth(dict(rt._HTTP), "/mcp")

    @unittest.skipUnless(os.name == "posix", "modes of files")
    def test_a_token_file_that_everybody_can_read_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tokens")
            path.write_text(f"anna {TOKEN}\n")
            for mode, told in ((0o600, False), (0o640, False), (0o644, True)):
                path.chmod(mode)
                watched = server()
                watched._log = mock.Mock()
                with Live(watched, token_file=str(path)):
                    pass
                texts = [text for (_, text), _ in watched._log.call_args_list]
                warned = [text for text in texts if "chmod 600" in text]
                self.assertEqual(bool(warned), told, oct(mode))

    def test_a_token_file_that_cannot_be_read_lets_nobody_in(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tokens")
            path.write_text(f"anna {TOKEN}\n")
            with self.live(token_file=str(path)) as live:
                self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 200)
                path.write_text("bert short\n")
                for _ in range(2):
                    self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 503)
                path.unlink()
                self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 503)
                path.write_text(f"bert {OTHER}\n")
                self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 401)
                self.assertEqual(live.ask(bearer(call("who"), OTHER)).status, 200)

    def test_a_path_that_is_open_elsewhere_is_guarded(self):
        with self.live(token=TOKEN, path="/healthz") as live:
            data = call("who").replace(b"/mcp ", b"/healthz ")
            self.assertEqual(live.ask(data).status, 401)
            self.assertEqual(live.ask(bearer(data, TOKEN)).status, 200)

    def test_refused_requests_in_a_pipeline_are_answered_in_order(self):
        with self.live(token=TOKEN) as live, live.client() as client:
            sent = [call("who", id=1), bearer(call("slow", id=2), TOKEN)]
            client.send(b"".join(sent) + call("who", id=3))
            found = [client.reply().status for _ in range(3)]
            self.assertEqual(found, [401, 200, 401])

    def test_who_is_refused_and_does_not_read_costs_no_memory(self):
        with self.live(token=TOKEN) as live, live.client() as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.send(call("who"))
            soon(lambda: live.endpoint.connections, "connected")
            connection = next(iter(live.endpoint.connections))
            # A kernel buffer of megabytes takes all replies; a receiver with less room
            # than a few segments drops acknowledgements, and both sides wait for it.
            server_side = connection.transport.get_extra_info("socket")
            server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            client.socket.setblocking(False)
            unsent = memoryview(call("who") * 40_000)

            def refused():
                nonlocal unsent
                with contextlib.suppress(BlockingIOError):
                    while unsent:
                        unsent = unsent[client.socket.send(unsent) :]
                return connection.state == "write"

            soon(refused, "the server waits for its reader")
            refused()  # as much as it takes
            self.assertLess(connection.transport.get_write_buffer_size(), 1 << 17)

    def test_a_guarded_server_may_bind_the_network_SEC_05(self):
        options = {**rt._HTTP, "host": "0.0.0.0"}
        with mock.patch.dict(os.environ):
            os.environ.pop("TINYMCP_TOKEN", None)
            with self.assertRaisesRegex(ValueError, "--token-file"):
                rt._check_bind(options)
        rt._check_bind({**options, "token": TOKEN})
        rt._check_bind({**options, "insecure": True})


class Scopes(unittest.TestCase):
    TOKENS = {
        TOKEN: Principal("all", None),
        OTHER: Principal("reader", ("read",)),
        "token-without-any-scope": Principal("none", ()),
    }

    def live(self, **options):
        return Live(server(), token=self.TOKENS, **options)

    def names(self, live, method, key, token):
        result = live.ask(bearer(modern(method), token)).json["result"]
        return [item.get("name") for item in result[key]]

    def test_what_one_may_not_use_is_not_listed_TOL_14(self):
        with self.live() as live:
            for _ in range(2):  # the second time from what is kept
                for token, tools, resources, prompts in (
                    (TOKEN, ["who", "slow", "write"], ["open_one", "secret"], ["ask"]),
                    (OTHER, ["who", "slow"], ["open_one", "secret"], ["ask"]),
                    ("token-without-any-scope", ["who", "slow"], ["open_one"], []),
                ):
                    self.assertEqual(
                        self.names(live, "tools/list", "tools", token), tools
                    )
                    found = self.names(live, "resources/list", "resources", token)
                    self.assertEqual(found, resources)
                    found = self.names(live, "prompts/list", "prompts", token)
                    self.assertEqual(found, prompts)

    def test_a_call_without_the_scope_is_403_AUR_06(self):
        with self.live() as live:
            for data, scope in (
                (call("write"), "write"),
                (modern("resources/read", {"uri": "x://secret"}), "read"),
                (modern("resources/read", {"uri": "x://secret/1"}), "read"),
                (modern("prompts/get", {"name": "ask"}), "read"),
                (call("write", headers={"Accept": "text/event-stream"}), "write"),
            ):
                reply = live.ask(bearer(data, "token-without-any-scope"))
                self.assertEqual(reply.status, 403)
                challenge = reply.headers["www-authenticate"]
                self.assertIn('error="insufficient_scope"', challenge)
                self.assertIn(f'scope="{scope}"', challenge)
                self.assertNotIn("offline_access", challenge)
                self.assertEqual(reply.json["id"], 1)
            self.assertEqual(live.ask(bearer(call("write"), TOKEN)).status, 200)

    def test_watching_is_checked_before_the_acknowledgement_SUB_06(self):
        with self.live() as live:
            wanted = {"notifications": {"resourceSubscriptions": ["x://secret"]}}
            data = modern("subscriptions/listen", wanted)
            self.assertEqual(
                live.ask(bearer(data, "token-without-any-scope")).status, 403
            )
            reply = live.ask(bearer(initialize(), "token-without-any-scope"))
            session = reply.headers["mcp-session-id"]
            data = legacy(session, "resources/subscribe", {"uri": "x://secret"})
            self.assertEqual(
                live.ask(bearer(data, "token-without-any-scope")).status, 403
            )
            with live.client() as client:
                client.send(bearer(modern("subscriptions/listen", wanted), OTHER))
                self.assertEqual(client.head().status, 200)

    def test_a_scope_may_include_others_AUR_09(self):
        tokens = {TOKEN: Principal("boss", ("admin",))}
        includes = {"admin": ("write",), "write": ("read", "admin")}
        with Live(server(), token=tokens, scope_includes=includes) as live:
            self.assertEqual(live.ask(bearer(call("write"), TOKEN)).status, 200)
            data = modern("resources/read", {"uri": "x://secret"})
            self.assertEqual(live.ask(bearer(data, TOKEN)).status, 200)

    def test_sessions_belong_to_who_opened_them_VER_10(self):
        with self.live() as live:
            reply = live.ask(bearer(initialize(), TOKEN))
            session = reply.headers["mcp-session-id"]
            self.assertEqual(
                live.ask(bearer(legacy(session, "ping"), TOKEN)).status, 200
            )
            self.assertEqual(
                live.ask(bearer(legacy(session, "ping"), OTHER)).status, 404
            )

    def test_request_state_belongs_to_who_got_it_MRT_06(self):
        tokens = {TOKEN: Principal("a", None), OTHER: Principal("b", None)}
        with Live(server(), token=tokens) as live:
            result = live.ask(bearer(call("write"), TOKEN)).json["result"]
            answer = {"action": "accept", "content": {"confirm": True}}
            params = {
                "name": "write",
                "requestState": result["requestState"],
                "inputResponses": dict.fromkeys(result["inputRequests"], answer),
            }
            data = modern("tools/call", params, elicitation={})
            self.assertEqual(
                live.ask(bearer(data, OTHER)).json["error"]["code"], -32602
            )
            reply = live.ask(bearer(data, TOKEN)).json
            self.assertIs(reply["result"]["structuredContent"], True)


class Verifiers(unittest.TestCase):
    def options(self, verify, **more):
        found = {"auth": verify, "auth_servers": [AS], "resource": URI}
        return {**found, "scopes_supported": ["read"], **more}

    def test_challenge_and_metadata_AUR_01_AUR_02_AUR_03(self):
        with Live(server(), **self.options(lambda token: None)) as live:
            reply = live.ask(call("who"))
            self.assertEqual(reply.status, 401)
            self.assertEqual(
                reply.headers["www-authenticate"],
                'Bearer resource_metadata="https://mcp.example/.well-known/'
                'oauth-protected-resource/mcp", scope="read"',
            )
            for path in ("", "/mcp"):
                target = "/.well-known/oauth-protected-resource" + path
                reply = live.ask(request("GET", target=target))
                self.assertEqual(
                    reply.json,
                    {
                        "resource": URI,
                        "authorization_servers": [AS],
                        "scopes_supported": ["read"],
                        "bearer_methods_supported": ["header"],
                    },
                )
            reply = live.ask(bearer(call("who"), "unknown"))
            self.assertEqual(reply.status, 401)
            self.assertIn('error="invalid_token"', reply.headers["www-authenticate"])

    def test_audience_and_expiry_AUR_04_AUR_05(self):
        soon, past = time.time() + 60, time.time() - 1
        principals = {
            "good": Principal("g", ("read",), URI, soon),
            "listed": Principal("g", ("read",), ["x", URI], soon),
            "late": Principal("g", ("read",), URI, past),
            "foreign": Principal("g", ("read",), "https://other.example", soon),
            "bare": Principal("g", ("read",), None, soon),
        }
        with Live(server(), **self.options(principals.get)) as live:
            for token, status in {
                "good": 200,
                "listed": 200,
                "late": 401,
                "foreign": 401,
                "bare": 401,
            }.items():
                self.assertEqual(
                    live.ask(bearer(call("who"), token)).status, status, token
                )

    def test_an_async_verifier(self):
        async def verify(token):
            await asyncio.sleep(0)
            return Principal(token, None, URI) if token == TOKEN else None

        with Live(server(), **self.options(verify)) as live:
            self.assertEqual(live.ask(bearer(call("who"), TOKEN)).status, 200)
            self.assertEqual(live.ask(bearer(call("who"), OTHER)).status, 401)

    def test_a_client_that_leaves_while_it_is_verified_HTM_17(self):
        for reset in (False, True):
            asked, found = threading.Event(), []

            # Each round ends before the next binds its names anew.
            async def verify(token):
                found.extend(live.endpoint.connections)  # noqa: B023
                asked.set()  # noqa: B023
                while not found[0].eof:  # noqa: B023
                    await asyncio.sleep(0.001)
                return Principal(token, None)

            with Live(auth=verify) as live, live.client() as client:
                if reset:
                    client.reset_at_close()
                client.send(bearer(modern("tools/call", {"name": "nap"}), TOKEN))
                asked.wait(PATIENCE)
                if reset:
                    client.close()
                else:
                    client.socket.shutdown(socket.SHUT_WR)
                soon(lambda: not live.endpoint.connections, "it is closed")
                self.assertFalse(live.server._open.lines())

    def test_a_verifier_that_cannot_ask_is_503(self):
        """Whatever it does, the caller gets a status and the server goes on."""

        def fail(error):
            raise error

        found = {
            "offline": lambda: fail(OSError("no route to the authorization server")),
            "key": lambda: fail(KeyError("route")),
            "exit": lambda: fail(SystemExit("route")),
            "slow": lambda: fail(asyncio.TimeoutError("route")),
            "true": lambda: True,
            "name": lambda: "route",
            "date": lambda: Principal("route", None, None, "2030"),
            "nobody": lambda: Principal(None, None),
            "audience": lambda: Principal("route", None, 5),
        }
        with Live(server(), auth=lambda token: found[token]()) as live:
            for token in found:
                with self.subTest(token):
                    reply = live.ask(bearer(call("who"), token))
                    self.assertEqual(reply.status, 503)
                    self.assertNotIn("route", reply.body.decode())

    def test_a_verifier_that_never_answers_holds_no_connection(self):
        """Without a limit, clients without a token could take them all."""

        async def verify(token):
            await asyncio.Event().wait()

        app = server(limits=Limits(head_timeout=0.05))
        with Live(app, auth=verify) as live:
            reply = live.ask(bearer(call("who"), TOKEN))
            self.assertEqual(reply.status, 503)

    def test_certificates_without_a_common_name_are_not_one_principal(self):
        class Writer:
            def get_extra_info(self, name):
                return self.certificate

        writer, found = Writer(), []
        for subject in (
            [("organizationName", "Alice")],
            [("organizationName", "Bob")],
            [("commonName", "Carol"), ("organizationName", "Bob")],
            [],
        ):
            parts = tuple(((key, value),) for key, value in subject)
            writer.certificate = {"subject": parts, "serialNumber": "0A"}
            found.append(rt._certificate_principal(writer).subject)
        names = ["organizationName=Alice", "organizationName=Bob", "Carol", "0A"]
        self.assertEqual(found, [f"cert:{name}" for name in names])

    def test_expiry_in_the_distant_past_and_metadata_without_scopes(self):
        principals = {"zero": Principal("z", None, URI, 0.0)}
        principals["never"] = Principal("n", None, URI, float("nan"))
        options = self.options(principals.get, scopes_supported=())
        with Live(server(), **options) as live:
            self.assertEqual(live.ask(bearer(call("who"), "zero")).status, 401)
            self.assertEqual(live.ask(bearer(call("who"), "never")).status, 401)
            target = "/.well-known/oauth-protected-resource"
            reply = live.ask(request("GET", target=target)).json
            self.assertNotIn("scopes_supported", reply)

    def test_authorization_servers_need_a_verifier_and_a_resource(self):
        for options in (
            {"auth_servers": [AS]},
            {"auth_servers": [AS], "resource": URI},
            {"auth_servers": [AS], "auth": lambda token: None},
        ):
            with self.assertRaisesRegex(ValueError, "resource="):
                rt._Auth({**rt._HTTP, **options}, "/mcp")


TLS = pathlib.Path(__file__).resolve().parent / "tls"
CA, SERVER_PEM, CLIENT_PEM = (
    str(TLS / name) for name in ("ca.pem", "server.pem", "client.pem")
)


class Encrypted(unittest.TestCase):
    def context(self, certificate=None):
        context = ssl.create_default_context(cafile=CA)
        context.check_hostname = False
        if certificate:
            context.load_cert_chain(certificate)
        return context

    def connect(self, live, context):
        client = Client(live.port)
        client.file.close()
        client.socket = context.wrap_socket(client.socket)
        client.file = client.socket.makefile("rb")
        return client

    def test_calls_streams_and_disconnects_over_tls(self):
        with Live(cert=SERVER_PEM) as live:
            with self.connect(live, self.context()) as client:
                for _ in range(2):
                    data = {"name": "echo", "arguments": {"text": "x" * 100_000}}
                    client.send(modern("tools/call", data))
                    self.assertEqual(client.reply().status, 200)
                client.send(modern("tools/call", {"name": "nap"}))
                live.server.entered.wait(PATIENCE)
            soon(lambda: live.server.ended == ["cancelled"], "the disconnect is seen")

    def test_who_agrees_to_no_end_is_dropped(self):
        """TLS waits at its end for a word of the client, asyncio 30 s and longer."""
        limits = Limits(idle_timeout=0.2, write_timeout=0.2, head_timeout=0.5)
        with Live(server(limits=limits), cert=SERVER_PEM) as live:
            with self.connect(live, self.context()) as idle:
                with self.connect(live, self.context()) as stuck:
                    soon(lambda: len(live.endpoint.connections) == 2, "both are there")
                    big = {"name": "echo", "arguments": {"text": "x" * 3_000_000}}
                    with contextlib.suppress(OSError):  # dropped before all is sent
                        for _ in range(3):
                            stuck.send(modern("tools/call", big))
                    # Neither reads anything any more, nor closes.
                    soon(lambda: not live.endpoint.connections, "both are dropped")
                    self.assertEqual(live.endpoint.deadlines.lines(), [])
                    self.assertIsNotNone(idle)
            with self.connect(live, self.context()) as client:
                client.send(b"POST /mcp HT")  # time goes on for others
                self.assertEqual(client.reply().status, 408)

    def test_a_handshake_counts_as_a_connection(self):
        """Who says no word needs no token for it, and takes no more than others."""
        limits = Limits(connections_per_address=3, head_timeout=0.3)
        with Live(server(limits=limits), cert=SERVER_PEM) as live:
            with contextlib.ExitStack() as stack:
                silent = [stack.enter_context(live.client()) for _ in range(8)]
                gone = [client.closed() for client in silent[3:]]
                self.assertEqual(gone, [True] * 5)
                self.assertLessEqual(len(live.endpoint.greeted), 3)
                self.assertTrue(all(client.closed() for client in silent))
            soon(lambda: not live.endpoint.addresses, "nothing is counted any more")
            self.assertEqual(len(live.endpoint.greeted), 0)
            with self.connect(live, self.context()) as client:
                client.send(call("who"))
                self.assertEqual(client.reply().status, 200)
                self.assertEqual([*live.endpoint.addresses.values()], [1])

    def test_the_end_waits_for_no_handshake(self):
        with Live(server(), cert=SERVER_PEM) as live, live.client() as client:
            soon(lambda: live.endpoint.greeted, "a silent client")
            began = time.monotonic()
            live.end()
            self.assertLess(time.monotonic() - began, 5.0)
            self.assertTrue(client.closed())

    def test_tls_1_1_and_plain_text_are_refused(self):
        with Live(cert=SERVER_PEM) as live:
            old = self.context()
            old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # saying so is deprecated
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises((ssl.SSLError, OSError)):
                self.connect(live, old)
            with live.client() as client:
                client.send(modern("tools/list"))
                self.assertTrue(client.closed())

    def test_a_client_certificate_is_the_principal(self):
        with Live(server(), cert=SERVER_PEM, client_ca=CA) as live:
            with self.connect(live, self.context(CLIENT_PEM)) as client:
                client.send(call("who"))
                name = client.reply().json["result"]["structuredContent"]
                self.assertRegex(name, "^cert:.")
            with self.assertRaises((ssl.SSLError, OSError, EOFError)):
                with self.connect(live, self.context()) as client:
                    client.send(call("who"))
                    client.reply()

    def test_options_that_go_together(self):
        with self.assertRaisesRegex(ValueError, "--cert"):
            rt._tls({**rt._HTTP, "key": "x"})

    def test_files_that_do_not_fit_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            bare, junk = os.path.join(folder, "bare.pem"), os.path.join(folder, "junk")
            pem = pathlib.Path(SERVER_PEM).read_text()
            start = pem.index("-----BEGIN CERTIFICATE")
            end = pem.index("-----END CERTIFICATE-----\n") + 26
            pathlib.Path(bare).write_text(pem[start:end])
            pathlib.Path(junk).write_text("junk")
            absent = os.path.join(folder, "absent.pem")
            for options, error, text in [
                ({"cert": bare}, ValueError, f"--cert {bare}, --key not given: no"),
                ({"cert": junk}, ValueError, f"--cert {junk}, --key not given: no"),
                ({"cert": bare, "key": junk}, ValueError, f"{bare}, --key {junk}: no"),
                ({"cert": absent}, ValueError, f"{absent}.*No such file"),
                ({"cert": bare, "key": absent}, ValueError, f"{absent}.*No such file"),
                (
                    {"cert": SERVER_PEM, "client_ca": junk},
                    ValueError,
                    f"--client-ca {junk} holds no certificates",
                ),
                (
                    {"cert": SERVER_PEM, "client_ca": absent},
                    ValueError,
                    f"{absent}.*No such file",
                ),
            ]:
                with self.subTest(options), self.assertRaisesRegex(error, text):
                    rt._tls({**rt._HTTP, **options})


class Audit(unittest.TestCase):
    def lines(self, **options):
        found = []
        audited = server(**options)
        audited._write_audit = found.append
        return audited, found

    def test_one_line_for_each_call(self):
        audited, found = self.lines(audit=True)
        with Live(audited, token={TOKEN: Principal("anna", ())}) as live:
            meta = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
            live.ask(bearer(call("who", meta=meta), TOKEN))
            live.ask(bearer(call("write"), TOKEN))
            live.ask(bearer(call("nope"), TOKEN))
            live.ask(
                bearer(
                    modern("tools/call", {"name": "who", "arguments": {"x": 1}}), TOKEN
                )
            )
            live.ask(bearer(modern("tools/list"), TOKEN))
            live.ask(bearer(call("slow"), TOKEN))
        rows = [json.loads(line) for line in found]
        self.assertEqual(
            [(row["name"], row["outcome"]) for row in rows],
            [
                ("who", "ok"),
                ("write", "refused 403"),
                ("nope", "refused -32602"),
                ("who", "error"),
                ("slow", "ok"),
            ],
        )
        self.assertEqual(rows[0]["trace"], "a" * 32)
        self.assertEqual({row["principal"] for row in rows}, {"anna"})
        self.assertTrue(all(row["ms"] >= 0 and "arguments" not in row for row in rows))
        self.assertTrue(all(line.endswith(b"\n") for line in found))

    def test_arguments_only_if_asked_for(self):
        audited, found = self.lines(audit_arguments=True)
        with Live(audited) as live:
            live.ask(call("who"))
            live.ask(modern("tools/call", {"name": "who", "arguments": {"x": 1}}))
        self.assertEqual(json.loads(found[1])["arguments"], {"x": 1})

    def test_off_by_default(self):
        audited, found = self.lines()
        with Live(audited) as live:
            live.ask(call("who"))
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
