"""tinymcp/auth.py: HS256 tokens and introspection, the good ones and every bad one."""

import asyncio
import base64
import hashlib
import hmac
import json
import pathlib
import socket
import ssl
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock
from urllib.parse import parse_qs

from tinymcp.auth import HS256, Introspection

TLS = pathlib.Path(__file__).resolve().parent / "tls"
SECRET = b"s" * 32
HUGE = 10**400  # an int for JSON, and too large to become a float
INFINITE = float("inf")
# Members that are not of their type, or are no time at all.
WRONG = (
    *({name: when} for name in ("exp", "nbf") for when in (HUGE, -HUGE, True, "0", [])),
    *({name: float(when)} for name in ("exp", "nbf") for when in ("nan", "inf")),
    *({"aud": audience} for audience in (7, True, {}, ["x", 7], [["x"]])),
    *({"sub": subject} for subject in (5, 0, False, [], {}, ["anna"])),
    *({"scope": scope} for scope in (5, True, {}, ["a", 1], [["a"]])),
)


def part(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(claims=None, head=None, secret=SECRET):
    claims = {"sub": "anna", "exp": time.time() + 60, **(claims or {})}
    signed = f"{part(head or {'alg': 'HS256'})}.{part(claims)}"
    mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{part(mac)}"


class Signed(unittest.TestCase):
    def test_a_good_token(self):
        verify = HS256(SECRET, issuer="me")
        claims = {"iss": "me", "aud": "x", "scope": "read write", "nbf": 0}
        who = verify(token(claims))
        self.assertEqual((who.subject, who.audience), ("anna", "x"))
        self.assertEqual(who.scopes, {"read", "write"})
        self.assertGreater(who.expires, time.time())

    def test_bad_tokens(self):
        verify, now = HS256(SECRET, issuer="me", leeway=1), time.time()
        good = {"iss": "me"}
        head, payload, mac = token(good).split(".")
        for bad in (
            "",
            "a.b",
            "a.b.c",
            "ü.b.c",
            f"{head}.{payload}.",
            f"{head}.{payload}.{mac}=",
            f"{head}.{payload}.{mac[:-1]}{'A' if mac[-1] != 'A' else 'B'}",
            f"{part({'alg': 'none'})}.{payload}.",
            f"{part([])}.{payload}.{mac}",
            "x" * 20000 + ".y.z",
            token(good, {"alg": "none"}),
            token(good, {"alg": "HS512"}),
            token(good, {"alg": "HS256", "crit": ["b64"]}),
            token(good, secret=b"t" * 32),
            token({"iss": "you"}),
            token({}),
            token({**good, "exp": now - 5}),
            token({**good, "exp": "9999999999"}),
            token({**good, "exp": True}),
            token({**good, "nbf": now + 60}),
            token({**good, "nbf": "0"}),
            token({**good, "sub": 5}),
            token({**good, "scope": 5}),
        ):
            with self.subTest(bad[:60]):
                self.assertIsNone(verify(bad))
        self.assertIsNone(verify(f"{head}.{part(b'[1]')}.{mac}"))

    def test_claims_that_are_not_of_their_type(self):
        verify = HS256(SECRET)
        for wrong in (*WRONG, {"exp": None}, {"nbf": -INFINITE}):
            with self.subTest(str(wrong)[:40]):
                # A fallback of the subject does not stand in for one that is wrong.
                self.assertIsNone(verify(token({"username": "eve", **wrong})))

    def test_claims_of_other_good_types(self):
        verify, far = HS256(SECRET), 2**63 - 1
        for claims, subject, scopes in (
            ({"aud": ["x", "y"], "scope": ["a", "b c"]}, "anna", {"a", "b c"}),
            ({"aud": None, "exp": far, "nbf": -1.5}, "anna", set()),
            ({"sub": "", "username": "u"}, "u", set()),
            ({"sub": None, "client_id": "c"}, "c", set()),
        ):
            with self.subTest(claims):
                who = verify(token(claims))
                self.assertEqual((who.subject, who.scopes), (subject, scopes))
                self.assertEqual(who.audience, claims.get("aud"))
        for missing in ({"sub": None}, {"sub": ""}, {"sub": None, "client_id": 5}):
            self.assertIsNone(verify(token(missing)))

    def test_a_short_secret_is_refused(self):
        with self.assertRaisesRegex(ValueError, "32 bytes"):
            HS256(b"short")


def reply(body, status=200, head=b""):
    """The bytes of an HTTP reply that ends with the connection."""
    return b"HTTP/1.0 %d Status\r\n%s\r\n%s" % (status, head, body)


GOOD = b'{"active":true,"sub":"anna","scope":"a b","aud":"x"}'
REPLIES = {
    "good": reply(GOOD),
    "off": reply(b'{"active":false}'),
    "chunks": reply(
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD),
        head=b"Transfer-Encoding: chunked\r\n",
    ).replace(b"1.0", b"1.1"),
}
# Whatever these are, they are no word about the token.
NO_ANSWERS = {
    "odd": reply(b'{"active":"true","sub":"a"}'),
    "one": reply(b'{"active":1,"sub":"a"}'),
    "bare": reply(b'{"sub":"a"}'),
    "list": reply(b"[]"),
    "html": reply(b"<html>"),
    "deep": reply(b"[" * 16000),
    "long": reply(GOOD + b" " * 20000),
    "bytes": reply(b"\xff" + GOOD),
    "fail": reply(GOOD, 500),
    "busy": reply(b"", 503),
    "401": reply(b'{"active":false}', 401),
    "403": reply(b'{"active":false}', 403),
    "made": reply(GOOD, 201),
    "away": reply(b"", 302, b"Location: /elsewhere\r\n"),
    "cut": reply(GOOD[:-9], head=b"Content-Length: %d\r\n" % len(GOOD)),
    "half": REPLIES["chunks"][:-20],
    "line": b"xx\r\n",
    "head": b"HTTP/1.0 200",
    "none": b"",
}


class Introspected(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.asked = asked = []
        cls.over = over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                size = int(self.headers["Content-Length"])
                form = parse_qs(self.rfile.read(size).decode())
                name = form["token"][0]
                asked.append((self.headers["Authorization"], name))
                if name in ("hang", "drip", "slow"):
                    return self.linger(name)
                self.wfile.write({**REPLIES, **NO_ANSWERS}[name])

            def linger(self, name):
                """Nothing at all, or a byte now and then: of the body or the head."""
                self.wfile.write(reply(b"")[: {"hang": 0, "slow": 9}.get(name)])
                while not over.wait(0.03):
                    self.wfile.write(b"" if name == "hang" else b" ")

            def log_message(self, *args):
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *args):
                """A client that has left, or does not trust us."""

        cls.server = Quiet(("127.0.0.1", 0), Handler)
        cls.thread = threading.Thread(
            target=cls.server.serve_forever, args=(0.01,), daemon=True
        )
        cls.thread.start()
        cls.url = f"http://127.0.0.1:{cls.server.server_port}/introspect"

    @classmethod
    def tearDownClass(cls):
        cls.over.set()
        cls.server.shutdown()
        cls.server.server_close()
        cls.thread.join()

    def setUp(self):
        self.asked.clear()

    def test_only_a_clear_yes_is_one(self):
        verify = Introspection(self.url, "me", "a:b", keep=0)

        async def main():
            who = await verify("good")
            self.assertEqual((who.subject, who.audience), ("anna", "x"))
            self.assertEqual(who.scopes, {"a", "b"})
            self.assertEqual((await verify("chunks")).scopes, {"a", "b"})
            for bad in ("off", "x" * 20000):
                self.assertIsNone(await verify(bad), bad)

        asyncio.run(main())
        basic = "Basic " + base64.b64encode(b"me:a%3Ab").decode()
        self.assertEqual(self.asked[0], (basic, "good"))

    def test_answers_are_kept_for_a_while(self):
        verify = Introspection(self.url, "me", "s")

        async def main():
            for _ in range(3):
                self.assertIsNotNone(await verify("good"))
                self.assertIsNone(await verify("off"))
            verify.kept.update(
                (bytes([n % 256, n // 256]), (0.0, None)) for n in range(2000)
            )
            verify.kept.pop(hashlib.sha256(b"good").digest(), None)
            await verify("good")
            self.assertLess(len(verify.kept), 2000)

        asyncio.run(main())
        self.assertEqual([name for _, name in self.asked], ["good", "off", "good"])

    def test_what_is_no_answer_raises_and_is_not_kept(self):
        verify = Introspection(self.url, "me", "s")

        async def main():
            for name in NO_ANSWERS:
                with self.subTest(name):
                    with self.assertRaises((ValueError, OSError)):
                        await verify(name)
                    with mock.patch.dict(NO_ANSWERS, {name: REPLIES["good"]}):
                        self.assertEqual((await verify(name)).subject, "anna")

        asyncio.run(main())
        names = [name for name in NO_ANSWERS for _ in range(2)]
        self.assertEqual([name for _, name in self.asked], names)

    def test_nobody_there_is_no_answer(self):
        verify = Introspection("http://127.0.0.1:9/x", "me", "s", timeout=1)
        with self.assertRaises(OSError):
            verify.ask("good")

    def test_the_timeout_bounds_the_whole_question(self):
        for name in ("hang", "drip", "slow"):
            verify = Introspection(self.url, "me", "s", timeout=0.05)
            for ask in (verify.ask, lambda text, ask=verify: asyncio.run(ask(text))):
                begun = time.monotonic()
                with self.subTest(name), self.assertRaises(OSError):
                    ask(name)
                self.assertLess(time.monotonic() - begun, 10)
            self.assertEqual(verify.kept, {})

    def test_the_timeout_bounds_writing(self):
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
            verify, begun = Introspection(url, "me", "s", timeout=0.1), time.monotonic()
            with self.assertRaises(OSError):
                verify.ask("x" * (8 << 20))  # more than the buffers of both ends
        self.assertLess(time.monotonic() - begun, 10)

    def test_a_name_that_is_looked_up_for_long(self):
        verify = Introspection(self.url, "me", "s", timeout=0.05)
        over = threading.Event()
        self.addCleanup(over.set)

        async def main():
            with self.assertRaisesRegex(TimeoutError, "in time"):
                await verify("good")
            over.set()

        def look_up(*args, **options):
            over.wait(20)
            raise OSError("no such name")

        begun = time.monotonic()
        with mock.patch("socket.getaddrinfo", look_up):
            asyncio.run(main())
        self.assertLess(time.monotonic() - begun, 10)

    def test_an_answer_whose_members_are_not_of_their_type(self):
        verify = Introspection(self.url, "me", "s", keep=0)
        answer = {"active": True, "sub": "anna", "username": "eve"}

        def ask(**members):
            body = json.dumps({**answer, **members}).encode()
            with mock.patch.dict(REPLIES, {"good": reply(body)}):
                return verify.ask("good")

        for wrong in WRONG:
            with self.subTest(str(wrong)[:40]):
                self.assertIsNone(ask(**wrong))
        who = ask(sub=None, exp=None, nbf=None, aud=["x"])
        self.assertEqual((who.subject, who.expires), ("eve", None))
        self.assertIsNone(ask(sub=None, username=None))

    def test_over_tls(self):
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        theirs.load_cert_chain(TLS / "server.pem")
        ours = ssl.create_default_context(cafile=TLS / "ca.pem")
        ours.check_hostname = False
        url = self.url.replace("http:", "https:")
        plain = self.server.socket
        with mock.patch.object(
            self.server,
            "get_request",
            lambda: (theirs.wrap_socket(plain.accept()[0], server_side=True), ("", 0)),
        ):
            verify = Introspection(url, "me", "s", timeout=0.2, context=ours)
            self.assertEqual(verify.ask("good").subject, "anna")
            with self.assertRaises(OSError):
                verify.ask("drip")
            with self.assertRaisesRegex(ValueError, "certificate"):
                Introspection(url, "me", "s").ask("good")

    def test_the_endpoint_is_https_or_local(self):
        for url in ("http://as.example/x", "ftp://localhost/x", "https:///x"):
            with self.assertRaisesRegex(ValueError, "https"):
                Introspection(url, "me", "s")


if __name__ == "__main__":
    unittest.main()
