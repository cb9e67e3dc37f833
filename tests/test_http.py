"""Section 9: HTTP/1.1, as bytes; no socket is opened."""

import random
import sys
import time
import tracemalloc
import unittest
from unittest import mock

import tinymcp

rt = sys.modules[tinymcp.Server.__module__]

HEAD, HEADERS, TARGET, BODY = 2048, 20, 512, 8192
HOST = b"Host: a\r\n"


def reader(body=BODY):
    return rt._HttpReader(HEAD, HEADERS, TARGET, body)


def requests(parser):
    """(head, body) for each request that is complete."""
    while True:
        head = parser.head()
        if head is None:
            return
        body = parser.body()
        if body is None:
            return
        yield head, bytes(body)


def run(pieces, body=BODY):
    """What comes of pieces of input: requests, and the status that ended them."""
    parser, found = reader(body), []
    try:
        for piece in pieces:
            parser.feed(piece)
            found.extend(requests(parser))
    except rt._HttpError as error:
        return found, error.status
    return found, None


def bytewise(data):
    return [data[at : at + 1] for at in range(len(data))]


def plain(found):
    """Heads as tuples, so that they can be compared."""
    names = rt._Head._fields
    return [([getattr(head, name) for name in names], body) for head, body in found]


def post(body, *lines, line=b"POST /mcp HTTP/1.1"):
    lines = (line, b"Host: a", *lines, b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(data, line=b"POST /mcp HTTP/1.1"):
    head = line + b"\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + data


# name: (bytes, attributes of the head, body)
GOOD = {
    "plain": (
        post(b"{}", b"Content-Type: application/json"),
        {
            "method": "POST",
            "target": "/mcp",
            "path": "/mcp",
            "query": "",
            "version": "1.1",
            "headers": {
                "host": "a",
                "content-type": "application/json",
                "content-length": "2",
            },
            "repeated": frozenset(),
            "keep_alive": True,
            "length": 2,
            "chunked": False,
            "expects_continue": False,
        },
        b"{}",
    ),
    "no body": (b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", {"length": None}, b""),
    "post without a length": (
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\n",
        {"length": None},
        b"",
    ),
    "empty body": (post(b""), {"length": 0}, b""),
    "query": (
        post(b"", line=b"POST /mcp/?x=1&y=/?a HTTP/1.1"),
        {"target": "/mcp/?x=1&y=/?a", "path": "/mcp/", "query": "x=1&y=/?a"},
        b"",
    ),
    "escapes stay": (post(b"", line=b"POST /%6dcp HTTP/1.1"), {"path": "/%6dcp"}, b""),
    "names in any case, HTM-20": (
        post(b"", b"MCP-METHOD: tools/Call", b"mcp-name:\t x \t"),
        {"headers": {"mcp-method": "tools/Call", "mcp-name": "x"}},
        b"",
    ),
    "odd token characters": (post(b"", b"X!#$%&'*+-.^_`|~: 1"), {}, b""),
    "value with colons": (post(b"", b"A::b: c"), {"headers": {"a": ":b: c"}}, b""),
    "empty value": (post(b"", b"A:", b"B: \t"), {"headers": {"a": "", "b": ""}}, b""),
    "obs-text is kept": (
        post(b"", "Mcp-Name: \xe9".encode("latin-1"), b"B: \xf0\x9d\x84\x9e"),
        {"headers": {"mcp-name": "\xe9", "b": "\xf0\x9d\x84\x9e"}},
        b"",
    ),
    "tab in a value": (post(b"", b"A: b\tc"), {"headers": {"a": "b\tc"}}, b""),
    "repeated": (
        post(b"", b"Accept: a", b"X: 1", b"accept: b", b"ACCEPT: c"),
        {
            "headers": {"accept": "a, b, c", "x": "1"},
            "repeated": frozenset({"accept"}),
        },
        b"",
    ),
    "absolute form": (
        post(b"", line=b"POST http://h:1/mcp?x=1 HTTP/1.1"),
        {
            "target": "http://h:1/mcp?x=1",
            "path": "/mcp",
            "query": "x=1",
            "headers": {"host": "h:1"},
        },
        b"",
    ),
    "absolute form without a path": (
        post(b"", line=b"POST HTTPS://h?x HTTP/1.1"),
        {"path": "/", "query": "x", "headers": {"host": "h"}},
        b"",
    ),
    "asterisk form": (
        post(b"", line=b"OPTIONS * HTTP/1.1"),
        {"target": "*", "path": "*"},
        b"",
    ),
    "close": (post(b"", b"Connection: x, Close"), {"keep_alive": False}, b""),
    "close and keep-alive": (
        post(b"", b"Connection: keep-alive, close"),
        {"keep_alive": False},
        b"",
    ),
    "closed": (post(b"", b"Connection: closed"), {"keep_alive": True}, b""),
    "1.0": (
        b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
        {"version": "1.0", "keep_alive": False, "length": 1},
        b"x",
    ),
    "1.0 keep-alive": (
        post(b"x", b"Connection: Keep-Alive", line=b"POST / HTTP/1.0"),
        {"version": "1.0", "keep_alive": True},
        b"x",
    ),
    "1.0 ignores expectations": (
        post(b"x", b"Expect: teapot", line=b"POST / HTTP/1.0"),
        {"expects_continue": False},
        b"x",
    ),
    "1.9 is like 1.1": (
        post(b"x", line=b"POST / HTTP/1.9"),
        {"version": "1.1", "keep_alive": True},
        b"x",
    ),
    "expect": (post(b"x", b"Expect: 100-Continue"), {"expects_continue": True}, b"x"),
    "expect without a body": (
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        {"expects_continue": False},
        b"",
    ),
    "expect, chunked": (
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        {"expects_continue": True, "chunked": True, "length": None},
        b"x",
    ),
    "an empty line before": (b"\r\n" + post(b"x"), {}, b"x"),
    "leading zeros": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0002\r\n\r\nab",
        {"length": 2},
        b"ab",
    ),
    "length without a space": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:2\r\nX-Length: 9\r\n\r\nab",
        {"length": 2},
        b"ab",
    ),
    "another length first": (
        post(b"ab", b"X-Length: 9", b"X-Content-Length: 7"),
        {"length": 2},
        b"ab",
    ),
    "chunks": (chunked(b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"), {"chunked": True}, b"abc"),
    "chunk forms, C03": (
        chunked(
            b'1;ext=1\r\n{\r\nA ; a="b;c"\r\n0123456789\r\n0b\r\n0123456789a\r\n'
            b"001\r\n}\r\n000;x\r\nX: y\r\nZ:\r\n\r\n"
        ),
        {},
        b"{01234567890123456789a}",
    ),
    "chunk data that looks like framing": (
        chunked(b"c\r\n0\r\n\r\nGET / H\r\n0\r\n\r\n"),
        {},
        b"0\r\n\r\nGET / H",
    ),
    "no chunks": (chunked(b"0\r\n\r\n"), {}, b""),
    "coding in capitals": (
        chunked(b"1\r\na\r\n0\r\n\r\n").replace(b"chunked", b"CHUNKED"),
        {},
        b"a",
    ),
}

# name: (bytes, status). Nothing in them is a request.
BAD = {
    "no version": (b"GET /\r\n\r\n", 400),
    "empty request line": (b"\r\n\r\n\r\n\r\n", 400),
    "two empty lines before": (b"\r\n\r\n" + post(b""), 400),
    "space before the method": (b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "tab": (b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "space behind the version": (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
    "empty method": (b" / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "method no token": (b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "lower-case version": (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
    "long version": (b"GET / HTTP/1.11\r\nHost: a\r\n\r\n", 400),
    "short version": (b"GET / HTTP/1\r\nHost: a\r\n\r\n", 400),
    "superscript version": (b"GET / HTTP/1.\xb9\r\nHost: a\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "relative target": (b"GET mcp HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "empty target": (b"GET  HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "fragment": (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target not in ASCII": (b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "tab in the target": (b"GET /\t HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "asterisk for GET": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "authority form": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 400),
    "other scheme": (b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "absolute form without a host": (b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "no Host, other headers": (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
    "two Host": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "two Host in 1.0": (b"GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare LF after a header": (b"GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n", 400),
    "bare CR": (b"GET / HTTP/1.1\r\nHost: a\rA: b\r\n\r\n", 400),
    "bare CR in the request line": (b"GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "CR CR LF": (b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", 400),
    "LF CR": (b"GET / HTTP/1.1\n\rHost: a\r\n\r\n", 400),
    "NUL": (b"GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", 400),
    "escape": (b"GET / HTTP/1.1\r\nHost: a\r\nA: \x1b[31m\r\n\r\n", 400),
    "DEL": (b"GET / HTTP/1.1\r\nHost: a\r\nA: \x7f\r\n\r\n", 400),
    "vertical tab": (b"GET / HTTP/1.1\r\nHost: a\r\nA: \x0bb\r\n\r\n", 400),
    "folded": (b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c: d\r\n\r\n", 400),
    "folded with a tab": (b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\tc\r\n\r\n", 400),
    "space before the first header": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n", 400),
    "no name": (b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400),
    "name no token": (b"GET / HTTP/1.1\r\nHost: a\r\nA(b): c\r\n\r\n", 400),
    "name not in ASCII": (b"GET / HTTP/1.1\r\nHost: a\r\n\xe9: c\r\n\r\n", 400),
    "expectation": (post(b"x", b"Expect: teapot"), 417),
    "two expectations": (post(b"x", b"Expect: 100-continue, teapot"), 417),
}

# Two parsers might read these in two ways.
SMUGGLING = {
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 6\r\n", 400),
    "the same length twice": (b"Content-Length: 5\r\nContent-Length: 5\r\n", 400),
    "two lengths in a list": (b"Content-Length: 5, 5\r\n", 400),
    "length and coding": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
    "coding and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
    "two codings": (b"Transfer-Encoding: gzip, chunked\r\n", 501),
    "two coding lines": (
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        501,
    ),
    "chunked twice": (
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        400,
    ),
    "chunked is not last": (b"Transfer-Encoding: chunked, gzip\r\n", 400),
    "identity": (b"Transfer-Encoding: identity\r\n", 501),
    "chunked in quotes": (b'Transfer-Encoding: "chunked"\r\n', 501),
    "chunked with a parameter": (b"Transfer-Encoding: chunked;q=1\r\n", 501),
    "xchunked": (b"Transfer-Encoding: xchunked\r\n", 501),
    "empty coding": (b"Transfer-Encoding:\r\n", 400),
    "empty list member": (b"Transfer-Encoding: ,chunked\r\n", 400),
    "vertical tab": (b"Transfer-Encoding: \x0bchunked\r\n", 400),
    "folded coding": (b"Transfer-Encoding:\r\n chunked\r\n", 400),
    "space before the colon": (b"Transfer-Encoding : chunked\r\n", 400),
    "NUL in the name": (b"Transfer-Encoding\0: chunked\r\n", 400),
    "signed length": (b"Content-Length: +5\r\n", 400),
    "negative length": (b"Content-Length: -5\r\n", 400),
    "hexadecimal length": (b"Content-Length: 0x5\r\n", 400),
    "length with a point": (b"Content-Length: 5.0\r\n", 400),
    "length in two words": (b"Content-Length: 5 5\r\n", 400),
    "length with an underscore": (b"Content-Length: 1_0\r\n", 400),
    "superscript length": (b"Content-Length: \xb2\r\n", 400),
    "empty length": (b"Content-Length:\r\n", 400),
    "length and another": (b"Content-Length: 5\r\nContent-Length:\r\n", 400),
    "length over the limit": (b"Content-Length: %d\r\n" % (BODY + 1), 413),
    "ten gigabytes": (b"Content-Length: 10000000000\r\n", 413),
    "forty digits": (b"Content-Length: " + b"9" * 40 + b"\r\n", 413),
    "a thousand digits": (b"Content-Length: " + b"9" * 1000 + b"\r\n", 413),
}

# What follows a head with Transfer-Encoding: chunked.
CHUNKS = {
    "no size": (b"\r\nabc\r\n0\r\n\r\n", 400),
    "not hexadecimal": (b"g\r\na\r\n0\r\n\r\n", 400),
    "0x": (b"0x1\r\na\r\n0\r\n\r\n", 400),
    "signed": (b"+1\r\na\r\n0\r\n\r\n", 400),
    "negative": (b"-1\r\na\r\n0\r\n\r\n", 400),
    "underscore": (b"1_0\r\na\r\n0\r\n\r\n", 400),
    "space before": (b" 1\r\na\r\n0\r\n\r\n", 400),
    "space behind": (b"1 \r\na\r\n0\r\n\r\n", 400),
    "only an extension": (b";a=b\r\na\r\n0\r\n\r\n", 400),
    "many digits": (b"0" * 16 + b"1\r\na\r\n0\r\n\r\n", 400),
    "bare LF behind the size": (b"1\na\r\n0\r\n\r\n", 400),
    "bare LF in an extension": (b"1;a\nb\r\na\r\n0\r\n\r\n", 400),
    "bare CR in an extension": (b"1;a\rb\r\na\r\n0\r\n\r\n", 400),
    "NUL in an extension": (b"1;\0\r\na\r\n0\r\n\r\n", 400),
    "long extension": (b"1;" + b"a" * 300 + b"\r\na\r\n0\r\n\r\n", 400),
    "endless extension": (b"1;" + b"a" * 300, 400),
    "data too long": (b"1\r\nab\r\n0\r\n\r\n", 400),
    "data too short": (b"3\r\nab\r\n0\r\n\r\n", 400),
    "LF behind the data": (b"1\r\na\n0\r\n\r\n", 400),
    "CR behind the data": (b"1\r\na\r0\r\n\r\n", 400),
    "XX behind the data": (b"1\r\naXX0\r\n\r\n", 400),
    "trailer without a colon": (b"0\r\nfoo\r\n\r\n", 400),
    "trailer with a bare LF": (b"0\r\na: b\nc: d\r\n\r\n", 400),
    "folded trailer": (b"0\r\na: b\r\n c\r\n\r\n", 400),
    "many trailers": (b"0\r\n" + b"a: b\r\n" * (HEADERS + 1) + b"\r\n", 431),
    "endless trailer": (b"0\r\na: " + b"b" * HEAD, 431),
    "long trailer": (b"0\r\na: " + b"b" * HEAD + b"\r\n\r\n", 431),
    "over the limit": (b"%x\r\n" % (BODY + 1), 413),
    "far over the limit": (b"FFFFFFFFFFFFFFF\r\n", 413),
    "over the limit in two": (b"1\r\na\r\n%x\r\n" % BODY, 413),
}

LIMITS = {
    "long target": (b"GET /" + b"a" * TARGET + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "endless target": (b"GET /" + b"a" * 100000, 414),
    "longer than a head": (b"GET /" + b"a" * HEAD + b" HTTP/1.1\r\n\r\n", 414),
    "endless method": (b"G" * 100000, 414),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n", 431),
    "too many headers": (
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * HEADERS + b"\r\n",
        431,
    ),
    "long header": (b"GET / HTTP/1.1\r\nA: " + b"b" * HEAD + b"\r\n\r\n", 431),
    "endless header": (b"GET / HTTP/1.1\r\nA: " + b"b" * (1 << 20), 431),
}


class Requests(unittest.TestCase):
    def setUp(self):
        rt._HEADS.clear()

    def check(self, found, attributes, body):
        (head, data), *rest = found
        self.assertEqual(rest, [])
        self.assertEqual(data, body)
        for name, expected in attributes.items():
            value = getattr(head, name)
            if name == "headers":
                value = {key: value.get(key) for key in expected}
            self.assertEqual(value, expected, name)
        self.assertIs(type(head.keep_alive), bool)
        self.assertIs(type(head.expects_continue), bool)

    def test_good_whole_bytewise_and_again(self):
        for name, (data, attributes, body) in GOOD.items():
            with self.subTest(name):
                found, status = run([data])
                self.assertIsNone(status)
                self.check(found, attributes, body)
                for pieces in ([data], bytewise(data), [data[:9], data[9:]]):
                    again, status = run(pieces)  # some by way of the kept heads
                    self.assertIsNone(status)
                    self.assertEqual(plain(again), plain(found))
                rt._HEADS.clear()
                again, status = run(bytewise(data))
                self.assertIsNone(status)
                self.assertEqual(plain(again), plain(found))

    def test_pipelined(self):
        data = b"".join(data for data, _, _ in GOOD.values())
        bodies = [body for _, _, body in GOOD.values()]
        for pieces in (
            [data],
            [data],
            bytewise(data),
            [data[at : at + 7] for at in range(0, len(data), 7)],
            [data[at : at + 1000] for at in range(0, len(data), 1000)],
        ):
            found, status = run(pieces)
            self.assertIsNone(status)
            self.assertEqual([body for _, body in found], bodies)

    def test_truncations_wait(self):
        for name, (data, _, _) in GOOD.items():
            for size in range(len(data)):
                for pieces in ([data[:size]], bytewise(data[:size])[-50:]):
                    parser = reader()
                    parser.feed(data[: size - sum(map(len, pieces))])
                    for piece in pieces:
                        parser.feed(piece)
                        self.assertEqual(list(requests(parser)), [], (name, size))
                    waits = data[:size] not in (b"", b"\r\n")
                    self.assertEqual(parser.pending, waits, (name, size))
                    parser.feed(data[size:])
                    self.assertEqual(len(list(requests(parser))), 1, (name, size))
                    self.assertFalse(parser.pending)

    def refused(self, name, data, status):
        for pieces in ([data], [data], bytewise(data[: HEAD * 2 + 200])):
            with self.subTest(name):
                found, got = run(pieces)
                self.assertEqual((found, got), ([], status))

    def test_bad(self):
        for name, (data, status) in {**BAD, **LIMITS}.items():
            self.refused(name, data, status)

    def test_smuggling_c17(self):
        for name, (lines, status) in SMUGGLING.items():
            for line in (b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b\r\n"):
                data = line + HOST + lines + b"\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n"
                self.refused(name, data, status)
        for coding in (b"chunked", b"identity", b"gzip"):
            data = b"POST / HTTP/1.0\r\nTransfer-Encoding: %b\r\n\r\n" % coding
            self.refused(coding, data, 400)

    def test_chunks(self):
        for name, (data, status) in CHUNKS.items():
            self.refused(name, chunked(data), status)

    def test_head_is_refused_before_its_body_comes(self):
        parser = reader()
        parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8193\r\n\r\n")
        with self.assertRaises(rt._HttpError) as caught:
            parser.head()
        self.assertEqual(caught.exception.status, 413)
        self.assertIn("8192", caught.exception.message)

    def test_limits_are_exact_c16(self):
        found, status = run([post(b"x" * BODY)])
        self.assertEqual((len(found[0][1]), status), (BODY, None))
        found, status = run([chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (BODY, b"x" * BODY))])
        self.assertEqual((len(found[0][1]), status), (BODY, None))
        base = b"GET /%b HTTP/1.1\r\nHost: a\r\n%b\r\n"
        for target, extra, status in (
            (TARGET - 1, b"", None),
            (TARGET, b"", 414),
            (0, b"a: b\r\n" * (HEADERS - 1), None),
            (0, b"a: b\r\n" * HEADERS, 431),
        ):
            data = base % (b"a" * target, extra)
            self.assertEqual(run([data])[1], status)
            self.assertEqual(run(bytewise(data))[1], status)
        room = HEAD - len(base % (b"", b"A: \r\n"))
        for size, status in ((room, None), (room + 1, 431)):
            data = base % (b"", b"A: %b\r\n" % (b"b" * size))
            self.assertEqual(run([data])[1], status)
            self.assertEqual(run(bytewise(data))[1], status)

    def test_small_chunks_pass_and_framing_is_bounded(self):
        data = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"
        found, status = run([chunked(data)])
        self.assertEqual((found[0][1], status), (b"x" * 5000, None))
        chunk = b"1;" + b"a" * 200 + b"\r\nx\r\n"
        found, status = run([chunked(chunk * 60 + b"0\r\n\r\n")] * 3)
        self.assertEqual((len(found), status), (3, None))
        self.assertEqual(run([chunked(chunk * 100)]), ([], 400))


class Reader(unittest.TestCase):
    def setUp(self):
        rt._HEADS.clear()

    def test_order_of_calls(self):
        parser = reader()
        self.assertIsNone(parser.head())
        self.assertIsNone(parser.body())
        self.assertFalse(parser.pending)
        parser.feed(post(b"abc")[:-1])
        head = parser.head()
        self.assertIs(parser.head(), head)
        self.assertIsNone(parser.body())
        self.assertIs(parser.head(), head)
        self.assertTrue(parser.pending)
        parser.feed(b"c" + post(b"d"))
        self.assertEqual(parser.body(), b"abc")
        self.assertTrue(parser.pending)
        self.assertIsNone(parser.body())
        self.assertIsNot(parser.head(), head)
        self.assertEqual(parser.body(), b"d")
        self.assertFalse(parser.pending)

    def test_kept_heads_differ_in_length_only(self):
        first, second = run([post(b"a" * 5), post(b"b" * 123)])[0]
        self.assertEqual((first[1], second[1]), (b"a" * 5, b"b" * 123))
        self.assertEqual((first[0].length, second[0].length), (5, 123))
        self.assertIs(first[0].headers, second[0].headers)
        same, other = run([post(b"b" * 123), post(b"c" * 123, b"A: b")])[0]
        self.assertIs(same[0], second[0])
        self.assertEqual(other[0].headers["a"], "b")
        for length, status in (
            (b"8193", 413),
            (b"999999999999999", 413),
            (b"9999999999999999", 413),
            (b"9" * 400, 413),
            (b"", 400),
            (b"x", 400),
            (b"+5", 400),
            (b"5 5", 400),
            (b"5, 5", 400),
            (b"5\r\nContent-Length: 6", 400),
            (b"5\r\nTransfer-Encoding: chunked", 400),
            (b"5\n", 400),
        ):
            head = post(b"").replace(b"Length: 0", b"Length: " + length)
            with self.subTest(length):
                self.assertEqual(run([head + b"hello"]), ([], status))

    def test_kept_heads_do_not_cross_limits(self):
        data = post(b"x", *[b"A%d: b" % n for n in range(10)])
        self.assertIsNone(run([data, data])[1])
        parser = rt._HttpReader(HEAD, 5, TARGET, BODY)
        parser.feed(data)
        with self.assertRaises(rt._HttpError) as caught:
            parser.head()
        self.assertEqual(caught.exception.status, 431)

    def test_kept_heads_are_few_and_short(self):
        for n in range(100):
            run([post(b"x", b"A: %d" % n)])
        run([post(b"x", b"A: " + b"b" * 1024)])
        (kept,) = rt._HEADS.values()
        self.assertEqual(len(kept), 16)
        size = sum(sum(map(len, entry[:4])) for entry in kept)
        self.assertLess(size, 16384)
        run([post(b"x", b"A: 90")])
        self.assertEqual(kept[0][4].headers["a"], "90")
        self.assertEqual(len({entry[4].headers["a"] for entry in kept}), 16)

    def test_a_small_head_limit_holds_for_kept_heads(self):
        parser = rt._HttpReader(60, 5, 10, BODY)
        parser.feed(post(b"x"))
        self.assertEqual(next(requests(parser))[1], b"x")
        self.assertEqual(rt._HEADS[60, 5, 10, BODY], [])

    def test_memory_follows_the_body_once(self):
        size = 4 << 20
        for framing in ("length", "chunked"):
            parser = reader(size)
            if framing == "length":
                head = (
                    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
                )
                pieces = (bytes(65536) for _ in range(size // 65536))
            else:
                head = chunked(b"")
                chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
                pieces = (bytes(bytearray(chunk)) for _ in range(size // 65536))
            tracemalloc.start()
            try:
                parser.feed(head)
                parser.head()
                self.assertLess(tracemalloc.get_traced_memory()[1], 65536)
                for piece in pieces:
                    self.assertIsNone(parser.body())
                    parser.feed(piece)
                del piece
                if framing == "chunked":
                    self.assertIsNone(parser.body())
                    parser.feed(b"0\r\n\r\n")
                body = parser.body()
                self.assertEqual(len(body), size)
                # realloc may hold the old block for a moment, so not 1.0 times.
                self.assertLess(tracemalloc.get_traced_memory()[1], 2.3 * size)
                del body
                self.assertLess(tracemalloc.get_traced_memory()[0], 65536)
            finally:
                tracemalloc.stop()

    def test_mutations_keep_the_invariant(self):
        """Any bytes, in any pieces, give the same requests, then silence or a status.

        Every status is one that the table of reasons knows.
        """
        rng = random.Random(9)
        seeds = [data for data, _, _ in GOOD.values()]
        seeds += [data[:400] for data, _ in [*BAD.values(), *LIMITS.values()]]
        seeds += [chunked(data[:200]) for data, _ in CHUNKS.values()]
        for lines, _ in SMUGGLING.values():
            seeds.append(b"POST / HTTP/1.1\r\n" + HOST + lines + b"\r\nhello")
        spice = [
            b"\r",
            b"\n",
            b"\r\n",
            b"\r\n\r\n",
            b" ",
            b":",
            b";",
            b"\0",
            b"0",
            b"\xff",
        ]
        for _ in range(4000):
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.randint(1, 4)):
                at = rng.randint(0, len(data))
                data[at : at + rng.randint(0, 3)] = rng.choice(
                    [rng.choice(spice), rng.choice(seeds)[: rng.randint(0, 60)]]
                )
            data = bytes(data)
            cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, 5)))
            cuts = [0, *cuts, len(data)]
            pieces = [data[a:b] for a, b in zip(cuts, cuts[1:])]
            whole, status = run([data])
            found, other = run(pieces)
            self.assertEqual(plain(found), plain(whole), data)
            # With two faults the one that is seen first wins.
            self.assertEqual(other is None, status is None, data)
            self.assertTrue({status, other} <= {None, *rt._REASONS}, data)

    def test_hostile_input_costs_no_time(self):
        head = b"GET / HTTP/1.1\r\nHost: a\r\n"
        for data, piece in (
            (b"GET / HTTP/1.1\r\nA:" + b" " * 16360, 1),
            (head + b"a: b\r\n" * 2700, 1),
            (head + b"a: b\r\n" * 2700 + b"\r\n", 20000),
            (head + b"Connection: " + b"," * 16000 + b"\r\n\r\n", 20000),
            (b"GET /" + b"?" * 8100, 1),
            (chunked(b"1\r\nx\r\n" * 25000), 65536),
            (chunked(b"1\r\nx\r\n" * 2000), 1),
            (chunked(b"0\r\n" + b"a: b\r\n" * 2700), 1),
            (post(b"x" * (1 << 18)), 64),
        ):
            parser = rt._HttpReader(16384, 3000, 8192, 1 << 20)
            start = time.thread_time()
            for at in range(0, len(data), piece):
                parser.feed(data[at : at + piece])
                list(requests(parser))
            # Fractions of a second, with most of it in this loop.
            self.assertLess(time.thread_time() - start, 10.0, data[:40])


class Replies(unittest.TestCase):
    def parts(self, data):
        head, _, body = data.partition(b"\r\n\r\n")
        line, *lines = head.decode("ascii").split("\r\n")
        return line, dict(line.split(": ") for line in lines), body

    def test_response(self):
        for arguments, line, headers, body in (
            (
                (200, b"Content-Type: application/json\r\n", b"{}", True),
                "HTTP/1.1 200 OK",
                {
                    "Content-Type": "application/json",
                    "Content-Length": "2",
                    "Connection": "keep-alive",
                },
                b"{}",
            ),
            (
                (202, b"", b"", False),
                "HTTP/1.1 202 Accepted",
                {"Content-Length": "0", "Connection": "close"},
                b"",
            ),
            ((204, b"", b"", True), "HTTP/1.1 204 No Content", {}, b""),
            (
                (405, b"Allow: POST\r\n", b"no", True, True),
                "HTTP/1.1 405 Method Not Allowed",
                {"Allow": "POST", "Content-Length": "2"},
                b"",
            ),
        ):
            got = self.parts(rt._response_bytes(*arguments))
            self.assertEqual((got[0], got[2]), (line, body))
            for name, value in headers.items():
                self.assertEqual(got[1][name], value)
            self.assertEqual("Content-Length" in got[1], arguments[0] != 204)
        self.assertEqual(rt._CONTINUE, b"HTTP/1.1 100 Continue\r\n\r\n")

    def test_date(self):
        day = b"Date: Tue, 28 Jul 2026 00:00:00 GMT\r\n"
        self.assertEqual(rt._date_line(1785196800), day)
        day = b"Date: Sun, 31 Dec 2028 23:59:59 GMT\r\n"
        self.assertEqual(rt._date_line(1861919999), day)
        self.assertEqual(rt._date_line(0), b"")  # a board whose clock was never set
        with mock.patch.object(rt.time, "time", return_value=1785196800.9):
            self.assertIn(
                b"\r\nDate: Tue, 28 Jul", rt._response_bytes(200, b"", b"", True)
            )

    def test_stream_heads_c14_htm_02(self):
        line, headers, rest = self.parts(rt._stream_head(b"A: b\r\n", True, True))
        self.assertEqual((line, rest), ("HTTP/1.1 200 OK", b""))
        headers.pop("Date", None)
        self.assertEqual(
            headers,
            {
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                "A": "b",
                "Transfer-Encoding": "chunked",
                "Connection": "keep-alive",
            },
        )
        headers = self.parts(rt._stream_head(b"", True, False))[1]
        self.assertNotIn("Transfer-Encoding", headers)
        self.assertEqual(headers["Connection"], "close")
        headers = self.parts(rt._stream_head(b"", False, True))[1]
        self.assertEqual(headers["Connection"], "close")

    def test_events(self):
        self.assertEqual(rt._sse_event(b"{}"), b"data: {}\n\n")
        self.assertEqual(rt._sse_event(b"{}", b"1-2"), b"id: 1-2\ndata: {}\n\n")
        self.assertEqual(
            rt._sse_event(b"", b"1-0", 1000), b"id: 1-0\nretry: 1000\ndata: \n\n"
        )
        self.assertEqual(rt._sse_event(b"", None, 5), b"retry: 5\ndata: \n\n")
        self.assertEqual(rt._SSE_COMMENT, b":\n\n")

    def test_our_chunks_are_chunks(self):
        data = rt._chunk(b"a" * 300) + rt._chunk(b"b") + rt._LAST_CHUNK
        self.assertEqual(run([chunked(data)])[0][0][1], b"a" * 300 + b"b")


class Fields(unittest.TestCase):
    def test_accept_is_read_liberally_c01_htm_21(self):
        for header, expected in (
            (None, (True, True)),
            ("", (True, True)),
            ("*/*", (True, True)),
            ("*", (True, True)),
            ("application/json", (True, False)),
            ("text/event-stream", (False, True)),
            ("text/event-stream, application/json", (True, True)),
            ("application/json,text/event-stream", (True, True)),
            ("APPLICATION/JSON; charset=utf-8", (True, False)),
            ("application/*, text/*;q=0.5", (True, True)),
            ("text/*", (False, True)),
            ("text/html", (False, False)),
            ("text/html, */*;q=0.1", (True, True)),
            ("text/html, *; q=.2", (True, True)),
            ("*/*;q=0", (False, False)),
            ("*/*, application/json;q=0", (False, True)),
            ("application/json;q=0.000, text/event-stream ; Q=0.001", (False, True)),
            ("application/json;a=b;q=0", (False, False)),
            ("application/json;q=0.01", (True, False)),
            ("application/json;q=", (True, False)),
            ("application/json;q=x", (True, False)),
            ("application/jsonx, xtext/event-stream", (False, False)),
            (",,", (False, False)),
        ):
            with self.subTest(header):
                self.assertEqual(rt._accepts(header), expected)

    def test_mcp_values_htm_09(self):
        for value, expected in (
            ("us-west1", "us-west1"),
            ("", ""),
            ("a b\tc", "a b\tc"),
            ("=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, \u4e16\u754c"),
            ("=?base64?IHBhZGRlZCA=?=", " padded "),
            ("=?base64?bGluZTEKbGluZTI=?=", "line1\nline2"),
            ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
            ("=?base64??=", ""),
            ("=?base64?=", "=?base64?="),
            ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
            ("=?base64?YQ==", "=?base64?YQ=="),
            ("x=?base64?YQ==?=", "x=?base64?YQ==?="),
            ("\xe9", None),
            ("=?base64?YQ?=", None),
            ("=?base64?YQ=?=", None),
            ("=?base64?YR==?=", None),  # bits that nobody needs
            ("=?base64?YQ==YQ==?=", None),
            ("=?base64?Y Q==?=", None),
            ("=?base64?Y-_=?=", None),
            ("=?base64?=YQ=?=", None),
            ("=?base64?/w==?=", None),  # 0xff
            ("=?base64?7aCA?=", None),  # a surrogate
            ("=?base64?\xe9?=", None),
        ):
            with self.subTest(value):
                self.assertEqual(rt._decode_mcp_value(value), expected)

    def test_host_names(self):
        for host, expected in (
            ("localhost", ("localhost", None)),
            ("LocalHost:8000", ("localhost", 8000)),
            ("localhost.", ("localhost", None)),
            ("pi.LAN.:80", ("pi.lan", 80)),
            ("127.0.0.1:8000", ("127.0.0.1", 8000)),
            ("[::1]:8000", ("::1", 8000)),
            ("[::1]", ("::1", None)),
            ("[2001:DB8::A]", ("2001:db8::a", None)),
            ("[::ffff:127.0.0.1]:1", ("::ffff:127.0.0.1", 1)),
            ("my_host-1", ("my_host-1", None)),
            ("a:", ("a", None)),
            ("a:65535", ("a", 65535)),
            ("a:00080", ("a", 80)),
            ("", None),
            (".", None),
            (":80", None),
            ("a:0", None),
            ("a:65536", None),
            ("a:100000", None),
            ("a:-1", None),
            ("a:+1", None),
            ("a:b", None),
            ("a:1:2", None),
            ("::1", None),
            ("[::1", None),
            ("[]", None),
            ("[fe80::1%25eth0]", None),
            ("[::1]x", None),
            ("user@a", None),
            ("user:pass@a:1", None),
            ("a, a", None),
            ("a b", None),
            (" a", None),
            ("a/", None),
            ("a%2e", None),
            ("\xe9", None),
            ("a:\xb2", None),
            ("a\n", None),
        ):
            with self.subTest(host):
                self.assertEqual(rt._host_name(host), expected)
                self.assertEqual(rt._origin_host("http://" + host), expected)
        for origin, expected in (
            ("https://Evil.Example", ("evil.example", None)),
            ("HTTPS://a:443", ("a", 443)),
            ("null", None),
            ("", None),
            ("a", None),
            ("//a", None),
            ("file://", None),
            ("file://a", None),
            ("chrome-extension://abc", None),
            ("http://a/", None),
            ("http://a#b", None),
            ("http:a", None),
            ("http://http://a", None),
        ):
            with self.subTest(origin):
                self.assertEqual(rt._origin_host(origin), expected)


if __name__ == "__main__":
    unittest.main()
