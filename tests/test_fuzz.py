"""Any bytes: JSON-RPC that is valid, a proper HTTP error, or a clean close.

Never a traceback on the wire, a hang, a wrong id, a second reply, or growth. A fixed
seed and number of rounds; tests/fuzz/run.py looks further, with hypothesis.
"""

import contextlib
import gc
import json
import os
import random
import socket
import sys
import time
import unittest

import tinymcp
from tests.test_endpoint import Live, initialize, legacy, modern, request, soon
from tests.test_field import META, PATIENCE, Wire, call, fixture, hello, ping
from tests.test_http import BODY, CHUNKS, HEAD, HEADERS, SMUGGLING, TARGET
from tests.test_streams import line
from tinymcp import Limits

rt = sys.modules[tinymcp.Server.__module__]
ROUNDS = {"stdio": 50, "http": 500}
LIMITS = {
    **{
        "line": 20_000,
        "body": BODY,
        "head": HEAD,
        "headers": HEADERS,
        "target": TARGET,
    },
    **{"head_timeout": 0.5, "body_timeout": 0.5, "json_or_sse": 5.0, "grace": 1.0},
    **{"call_timeout": 1.0, "rounds": 3, "sessions": 20},
}
REPLIES = {"result", "error"}


def messages():
    """Requests of all kinds, good ones, as bytes of one line without its end."""
    wanted = {"notifications": {"toolsListChanged": True}}
    found = [
        call("echo", {"text": "x"}),
        call("add", {"a": 1, "b": 2}, "s"),
        call("scale", {"x": 1.5}),
        call("boom"),
        call("steps", {}, 5, _meta={"progressToken": 0}),
        line("tools/list"),
        line("tools/list", {"cursor": "p1"}),
        line("resources/list"),
        line("resources/templates/list"),
        line("resources/read", {"uri": "x://a"}),
        line("resources/subscribe", {"uri": "x://a"}),
        line("resources/unsubscribe", {"uri": "x://a"}),
        line("prompts/list"),
        line("prompts/get", {"name": "p"}),
        line("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}}),
        line("logging/setLevel", {"level": "debug"}),
        line("notifications/cancelled", {"requestId": 5}, None),
        line("server/discover", {"_meta": META}),
        line("tools/list", {"_meta": META}),
        line("tools/call", {"name": "echo", "arguments": {"text": "é"}, "_meta": META}),
        line("subscriptions/listen", {**wanted, "_meta": META}, "l"),
        b'{"jsonrpc":"2.0","id":"s1","result":{}}',
        b"[" + ping(b"1")[:-1] + b"," + ping(b'"z"')[:-1] + b"]",
        *hello().splitlines(),
        ping(b"0"),
    ]
    return [each.rstrip(b"\n") for each in found]


WORDS = [
    *(
        b"null",
        b"true",
        b"0",
        b"-1",
        b"1e999",
        b"NaN",
        b"9" * 500,
        b"1.0",
        b'""',
        b"[]",
    ),
    *(b"{}", b'"\\ud800"', b'"\\u0000"', b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
    *(b'"id":null', b'"id":1', b'"id":1.5', b'"jsonrpc":"2.0"', b'"params":[]', b","),
    *(
        b"}",
        b"{",
        b"]",
        b"[",
        b'"',
        b"\\",
        b"\0",
        b"\r",
        b":",
        b"[" * 200,
        b'{"a":' * 99,
    ),
    *(b'"_meta":{}', b'"_meta":7', b'"arguments":null', b'"name":[]', b'"uri":{}'),
]


def mutate(chance, data, words, most=4):
    data = bytearray(data)
    for _ in range(chance.randint(1, most)):
        at = chance.randint(0, len(data))
        kind = chance.randrange(5)
        if kind == 0:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 1:
            data[at:at] = chance.choice(words)
        elif kind == 2:
            data[at : at + chance.randint(1, 12)] = chance.choice(words)
        elif kind == 3 and at < len(data):
            data[at] = chance.randrange(256)
        else:
            piece = data[at : at + chance.randint(1, 40)]
            data[at:at] = piece * chance.randint(1, 3)
    return bytes(data)


def requested(data):
    """(may be answered, ids) of one line, as a lenient reader understands it."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {None}
    parts = value if isinstance(value, list) else [value]
    ids = {None}  # the whole may be refused without an id
    for part in parts:
        if isinstance(part, dict) and type(part.get("id")) in (int, str):
            ids.add(part["id"])
    return ids


def no_constant(name):
    raise AssertionError(f"{name} on the wire")


def check_message(test, data):
    """One message of the server, or an array of them."""
    test.assertNotIn(b"Traceback", data)
    test.assertNotIn(b"\n", data)
    found = json.loads(data.decode("utf-8"), parse_constant=no_constant)
    for part in found if isinstance(found, list) else [found]:
        test.assertEqual(part["jsonrpc"], "2.0")
        if "method" in part:
            test.assertIs(type(part["method"]), str)
            continue
        test.assertEqual(len(REPLIES & set(part)), 1, part)
        test.assertIsNotNone(part.get("id", 0))
        if "error" in part:
            test.assertIs(type(part["error"]["code"]), int)
            test.assertIs(type(part["error"]["message"]), str)
            test.assertNotEqual(
                part["error"]["code"], -32603, (part, "a fault of ours")
            )
    return found


def settle_size(server):
    gc.collect()
    return len(server._open.lines()), server._waiting, server._waiting_bytes


class Lines(unittest.TestCase):
    def test_mutated_lines_on_stdio(self):
        for loop in (False, True):
            with self.subTest(loop=loop):
                self.run_lines(loop)

    def run_lines(self, loop):
        chance, seeds = random.Random(20), messages()
        server = fixture(loop, limits=Limits(**LIMITS))
        server.proceed.set()
        for _ in range(ROUNDS["stdio"]):
            with Wire(server, loop) as wire:
                if chance.random() < 0.7:
                    wire.send(hello(chance.choice(("2025-03-26", "2025-11-25"))))
                lines = [
                    mutate(chance, chance.choice(seeds), WORDS).replace(b"\n", b" ")
                    for _ in range(chance.randint(1, 40))
                ]
                data = b"".join(each + b"\n" for each in lines)
                cuts = sorted(chance.randint(0, len(data)) for _ in range(5))
                for a, b in zip([0, *cuts], [*cuts, len(data)]):
                    wire.send(data[a:b])
                wire.send(line("ping", id="the end"))
                found = wire.end()
            self.judge(lines, found)
        self.assertEqual(settle_size(server), (0, 0, 0))
        faults = [text for level, text in server.logged if level == "critical"]
        self.assertEqual(faults, [])

    def judge(self, lines, found):
        flat = []
        for each in found:
            check_message(self, json.dumps(each).encode())
            flat += each if isinstance(each, list) else [each]
        replies = [m.get("id") for m in flat if "method" not in m]
        known = {"i", "the end"}.union(*map(requested, lines))
        self.assertLessEqual(set(replies), known)
        # No more replies than messages: a batch has one for each of its members.
        most = sum(1 + each.count(b'"method') + each.count(b",") for each in lines)
        self.assertLessEqual(len(replies), most + 2)
        self.assertIn("the end", replies)
        for id in set(replies) - {None, "i"}:
            asked = sum(id in requested(each) for each in lines)
            twice = sum(json.dumps(id).encode() in each for each in lines)
            self.assertLessEqual(replies.count(id), max(asked, twice, 1) * 8)

    def test_each_request_has_one_reply(self):
        """Ids that are unique come back once each, whatever else is on the stream."""
        chance, seeds = random.Random(21), messages()[:-4]
        server = fixture(False, limits=Limits(**LIMITS))
        server.proceed.set()
        with Wire(server) as wire:
            wire.send(hello())
            good = []
            for n in range(300):
                id = f"unique {n}"
                if chance.random() < 0.5:
                    wire.send(mutate(chance, chance.choice(seeds), WORDS) + b"\n")
                good.append(id)
                kind = chance.randrange(3)
                wire.send(
                    call("echo", {"text": "x"}, id)
                    if kind == 0
                    else call("block", {}, id)
                    if kind == 1
                    else line("tools/list", None, id)
                )
            found = wire.end()
        replies = [m.get("id") for part in found for m in flatten(part)]
        for id in good:
            self.assertEqual(replies.count(id), 1, id)


def flatten(part):
    return part if isinstance(part, list) else [part]


HTTP_WORDS = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b":",
        b"\0",
        b"\xff",
        b";",
        b",",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Host: x\r\n"),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"0\r\n\r\n", b"5\r\n"),
    *(
        b"HTTP/1.0",
        b"HTTP/1.1",
        b"GET",
        b"POST",
        b"DELETE",
        b"OPTIONS",
        b"/mcp",
        b"%00",
    ),
    *(b"Mcp-Session-Id: x\r\n", b"Last-Event-ID: 1-1\r\n", b"Accept: text/html\r\n"),
    *(
        b"Origin: http://localhost\r\n",
        b"=?base64?QQ==?=",
        b"9" * 30,
        b"-1",
        b"x" * 9000,
    ),
]


class Http(unittest.TestCase):
    def setUp(self):
        self.live = Live(fixture(limits=Limits(**LIMITS)))
        self.live.__enter__()
        self.live.server.proceed.set()
        self.addCleanup(self.live.__exit__)

    def seeds(self):
        session = self.live.open()
        head = request(headers=[("Transfer-Encoding", "chunked")])
        found = [modern("tools/list"), initialize(), request("GET"), request("OPTIONS")]
        found += [request("DELETE", headers=[("Mcp-Session-Id", session)])]
        for each in messages():
            headers = [("Mcp-Session-Id", session)]
            found.append(request(body=each, headers=headers))
        echo = {"name": "echo", "arguments": {"text": "x"}}
        found.append(modern("tools/call", echo))
        found.append(legacy(session, "tools/call", echo))
        found.append(head + b"5\r\nhello\r\n0\r\n\r\n")
        found += [head + data for data, _ in CHUNKS.values() if len(data) < 400]
        return found

    def test_mutated_requests(self):
        chance, seeds = random.Random(22), self.seeds()
        fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else 0
        for number in range(ROUNDS["http"]):
            data = b""
            for _ in range(chance.randint(1, 3)):
                words = HTTP_WORDS if chance.random() < 0.7 else WORDS
                data += mutate(chance, chance.choice(seeds), words)
            self.exchange(data, chance.randint(1, 3))
            if number % 20 == 0:
                self.assertEqual(self.live.ask(modern("tools/list")).status, 200)
        soon(lambda: not self.live.endpoint.connections, "nobody is connected")
        soon(lambda: settle_size(self.live.server) == (0, 0, 0), "no call is open")
        self.assertLessEqual(len(self.live.endpoint.sessions), LIMITS["sessions"])
        self.assertEqual(self.live.endpoint.addresses, {})
        if fds:
            soon(lambda: len(os.listdir("/proc/self/fd")) <= fds, "fds are back")
        faults = [t for level, t in self.live.server.logged if level == "critical"]
        self.assertEqual(faults, [])
        self.assertEqual(self.live.faults, [])

    def exchange(self, data, pieces):
        """Send it, say that no more comes, and read until the server closes."""
        step = max(1, len(data) // pieces)
        with socket.create_connection(
            ("127.0.0.1", self.live.port), PATIENCE
        ) as client:
            answer = b""
            with contextlib.suppress(ConnectionError):
                for at in range(0, len(data), step):
                    client.sendall(data[at : at + step])
                client.shutdown(socket.SHUT_WR)
                while True:  # a hang ends with a time-out, which is an error here
                    got = client.recv(65536)
                    answer += got
                    if not got or b"text/event-stream" in answer:
                        break
        self.judge(data, answer)

    def judge(self, data, answer):
        self.assertNotIn(b"Traceback", answer)
        self.assertNotIn(b".py", answer)
        replies = 0
        while answer:
            head, end, rest = answer.partition(b"\r\n\r\n")
            if not end:
                return  # the connection was reset in between
            first, *fields = head.split(b"\r\n")
            version, status, _ = first.split(b" ", 2)
            self.assertEqual(version, b"HTTP/1.1")
            self.assertIn(int(status), rt._REASONS, data)
            self.assertNotEqual(int(status), 500, data)
            headers = dict(field.lower().split(b": ", 1) for field in fields)
            if status == b"100":
                answer = rest
                continue
            replies += 1
            if b"content-length" not in headers:
                return  # a stream, or a reply without a body
            size = int(headers[b"content-length"])
            body, answer = rest[:size], rest[size:]
            head_only = not body.strip().startswith((b"{", b"[")) and size
            if b"json" in headers.get(b"content-type", b"") and len(body) == size:
                if head_only:
                    return  # the reply to a HEAD
                found = check_message(self, body)
                for part in flatten(found):
                    if part.get("id") is not None:
                        shown = json.dumps(part["id"], ensure_ascii=False).encode()
                        self.assertTrue(self.sent(shown, part["id"], data), part)
        self.assertLessEqual(replies, data.count(b"HTTP/1.") + 1)

    def sent(self, shown, id, data):
        """The id was in the request, as it is or escaped."""
        return shown in data or json.dumps(id).encode() in data or b"\\u" in data

    def test_smuggling_is_refused_and_the_connection_closed_C17(self):
        """What follows a request that two parsers may read in two ways is never run."""
        start = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
        start += b"Content-Type: application/json\r\n"
        echo = {"name": "spy", "arguments": {"text": "smuggled"}}
        ran = []
        self.live.server.add_tool(
            lambda text: ran.append(text), name="spy", inline=True
        )
        hidden = modern("tools/call", echo)
        cases = [
            (start + lines + b"\r\n", status) for lines, status in SMUGGLING.values()
        ]
        chunked = start + b"Transfer-Encoding: chunked\r\n\r\n"
        cases += [(chunked + data, status) for data, status in CHUNKS.values()]
        more = {
            b"X: a\rContent-Length: 5\r\n": 400,
            b"X: a\nContent-Length: 5\r\n": 400,
            b"X: a\r\n Content-Length: 5\r\n": 400,
            b"Content-Length : 5\r\n": 400,
            b" Content-Length: 5\r\n": 400,
            b"Content-Length\0: 5\r\n": 400,
            b"Content-Length: 5\0\r\n": 400,
            b"Content_Length: 5\r\nContent-Length: 5 \x0b\r\n": 400,
            b"Host: localhost\r\n": 400,
        }
        cases += [(start + lines + b"\r\n", status) for lines, status in more.items()]
        for data, status in cases:
            with self.subTest(data[79:140]), self.live.client() as client:
                with contextlib.suppress(ConnectionError):
                    client.send(data + hidden)
                try:
                    reply = client.reply()
                except (ConnectionError, EOFError):
                    continue  # a reset overtook the answer: closed all the same
                self.assertIn(reply.status, (status, 400), data)
                self.assertEqual(reply.headers["connection"], "close")
                self.assertTrue(client.closed())
        self.assertEqual(ran, [])
        self.assertEqual(self.live.ask(hidden).status, 200)
        self.assertEqual(ran, ["smuggled"])

    def test_half_open_peers_and_readers_that_stop(self):
        """A hundred at once in every state of a request, and the rest is served."""
        data = modern("tools/list")
        head, _, _ = data.partition(b"\r\n\r\n")
        with contextlib.ExitStack() as stack:
            for n in range(100):
                client = stack.enter_context(self.live.client())
                part = (b"", b"P", head[:30], head, data[:-1])[n % 5]
                if part:
                    client.send(part)
            began = time.monotonic()
            self.assertEqual(self.live.ask(data).status, 200)
            self.assertLess(time.monotonic() - began, 5)


if __name__ == "__main__":
    unittest.main()
