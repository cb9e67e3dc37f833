"""tinymcp/auth.py: HS256 tokens and introspection, the good ones and every bad one."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

from tinymcp.auth import HS256, Introspection

SECRET = b"s" * 32


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
            token({**good, "exp": float("nan")}),
            token({**good, "exp": float("inf")}),
            token({**good, "exp": 10**400}),
            token({**good, "nbf": float("nan")}),
            token({**good, "aud": 5}),
            token({**good, "aud": ["x", 5]}),
            token({**good, "scope": ["x", 5]}),
            token({**good, "nbf": now + 60}),
            token({**good, "nbf": "0"}),
            token({**good, "sub": 5}),
            token({**good, "scope": 5}),
        ):
            with self.subTest(bad[:60]):
                self.assertIsNone(verify(bad))
        self.assertIsNone(verify(f"{head}.{part(b'[1]')}.{mac}"))

    def test_a_short_secret_is_refused(self):
        with self.assertRaisesRegex(ValueError, "32 bytes"):
            HS256(b"short")


class Introspected(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.asked, cls.proceed = [], threading.Event()
        asked = cls.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                size = int(self.headers["Content-Length"])
                form = parse_qs(self.rfile.read(size).decode())
                asked.append((self.headers["Authorization"], form["token"][0]))
                answers = {
                    "good": (
                        200,
                        b'{"active":true,"sub":"anna","scope":"a b","aud":"x"}',
                    ),
                    "off": (200, b'{"active":false}'),
                    "odd": (200, b'{"active":"true","sub":"a"}'),
                    "list": (200, b"[]"),
                    "html": (200, b"<html>"),
                    "fail": (500, b""),
                    "away": (302, b""),
                    "nan": (200, b'{"active":true,"sub":"a","exp":NaN}'),
                    "audience": (200, b'{"active":true,"sub":"a","aud":5}'),
                    "scopes": (200, b'{"active":true,"sub":"a","scope":[5]}'),
                    "slow": (200, b'{"active":true,"sub":"a"}'),
                    "odd status": (200, b""),
                }
                status, body = answers[form["token"][0]]
                if form["token"][0] == "odd status":
                    self.wfile.write(b"nonsense\r\n\r\n")
                    return
                if form["token"][0] == "slow":
                    cls.proceed.wait(10)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # it waited no longer
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        cls.server = HTTPServer(("127.0.0.1", 0), Handler)
        cls.thread = threading.Thread(target=cls.server.serve_forever, daemon=True)
        cls.thread.start()
        cls.url = f"http://127.0.0.1:{cls.server.server_port}/introspect"

    @classmethod
    def tearDownClass(cls):
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
            for bad in ("off", "x" * 20000, "nan", "audience", "scopes"):
                self.assertIsNone(await verify(bad), bad)

        asyncio.run(main())
        basic = "Basic " + base64.b64encode(b"me:a%3Ab").decode()
        self.assertEqual(self.asked[0], (basic, "good"))

    def test_no_answer_says_nothing_of_a_token(self):
        """It raises, which is 503 for a client; None made it throw its token away."""
        kinds = ("odd", "list", "html", "fail", "away", "odd status", "slow")
        verify = Introspection(self.url, "me", "s", timeout=0.2)

        async def main():
            for kind in kinds:
                error = (OSError, ValueError, asyncio.TimeoutError)
                with self.subTest(kind), self.assertRaises(error):
                    await verify(kind)
            self.assertEqual(verify.kept, {})
            self.proceed.set()
            self.assertEqual((await verify("slow")).subject, "a")

        asyncio.run(main())

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

    def test_nobody_there_says_nothing_of_a_token(self):
        verify = Introspection("http://127.0.0.1:9/x", "me", "s", timeout=1)
        with self.assertRaises(OSError):
            verify.ask("good")

    def test_the_endpoint_is_https_or_local(self):
        for url in ("http://as.example/x", "ftp://localhost/x"):
            with self.assertRaisesRegex(ValueError, "https"):
                Introspection(url, "me", "s")


if __name__ == "__main__":
    unittest.main()
