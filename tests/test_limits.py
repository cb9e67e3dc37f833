"""Every bound of class Limits: over it a clear refusal, and nobody else notices."""

import asyncio
import contextlib
import pathlib
import re
import socket
import sys
import threading
import time
import unittest
from unittest import mock

try:
    import resource
except ImportError:  # not POSIX
    resource = None

import tinymcp
from tests.test_endpoint import Live, initialize, legacy, modern, request, soon
from tests.test_field import PATIENCE, Wire, call, code_of, fixture, hello, ping, talk
from tests.test_field import text_of as text
from tests.test_streams import line
from tinymcp import Context, DefinitionError, InputRequired, Limits, Server

rt = sys.modules[tinymcp.Server.__module__]
WORK = {"name": "block", "arguments": {}}
LISTEN = {"notifications": {"toolsListChanged": True}}


class All(unittest.TestCase):
    def test_every_limit_is_set_by_some_test(self):
        folder = pathlib.Path(__file__).parent
        source = "".join(p.read_text("utf-8") for p in folder.glob("test_*.py"))
        pattern = r"\b(\w+)=(?=[\d(_])|[\"'](\w+)[\"']:? ?(?=[\d,(])"
        found = {name for pair in re.findall(pattern, source) for name in pair}
        names = [name for name in vars(Limits) if not name.startswith("_")]
        self.assertEqual([name for name in names if name not in found], [])

    def test_unknown_limits_are_refused(self):
        with self.assertRaisesRegex(TypeError, "no 'bodys'"):
            Limits(bodys=1)
        with self.assertRaises(TypeError):
            Limits(__init__=1)

    def test_values_that_bound_nothing_are_refused(self):
        inf = float("inf")
        for name, value, wanted in [
            ("body", -1, "body is a whole number above 0, not -1"),
            ("workers", "x", "workers is a whole number above 0, not 'x'"),
            ("workers", 0, "above 0, not 0"),
            ("line", True, "not True"),
            ("queue", 1e6, "a whole number"),
            ("retry", -1, "retry is a whole number, 0 or more"),
            ("call_timeout", None, "seconds above 0, not None"),
            ("state_age", float("nan"), "0 or more, not nan"),
            ("keep_alive", 0, "above 0"),
            ("grace", inf, "seconds, 0 or more and finite, not inf"),
            ("tool_rate", 5, "tool_rate is two numbers above 0 and finite, not 5"),
            ("tool_rate", (1, 2, 3), r"not \(1, 2, 3\)"),
            ("log_rate", (0, 1.0), "above 0 and finite"),
            ("log_rate", (1, inf), "above 0 and finite"),
        ]:
            with self.subTest(name, value=value):
                with self.assertRaisesRegex(ValueError, wanted):
                    Limits(**{name: value})
        kept = Limits(call_timeout=inf, grace=0, rounds=0, tool_rate=(0.5, 1))
        self.assertEqual((kept.call_timeout, kept.grace, kept.rounds), (inf, 0, 0))
        for name, value in vars(Limits).items():
            if not name.startswith("_"):
                Limits(**{name: value})


class Connected(unittest.TestCase):
    @unittest.skipUnless(resource, "POSIX limits")
    def test_no_more_connections_than_descriptors(self):
        """Beyond them nobody would even be refused."""
        endless = resource.RLIM_INFINITY
        for limit, most in (
            (endless, 1024),
            (4096, 1024),
            (1024, 960),
            (40, 30),
            (1, 1),
        ):
            with mock.patch.object(resource, "getrlimit", return_value=(limit, limit)):
                self.assertEqual(rt._descriptors(1024), most, limit)

    def test_connections_per_address(self):
        limits = Limits(connections=50, connections_per_address=2)
        with Live(fixture(limits=limits), host="0.0.0.0", insecure=True) as live:
            with contextlib.ExitStack() as stack:
                kept = [stack.enter_context(live.client()) for _ in range(2)]
                for client in kept:
                    client.send(modern("tools/list"))
                    self.assertEqual(client.reply().status, 200)
                for _ in range(3):
                    with live.client() as third:
                        reply = third.reply()
                        self.assertEqual(reply.status, 503)
                        self.assertEqual(reply.headers["retry-after"], "5")
                        self.assertTrue(third.closed())
                for client in kept:
                    client.send(modern("tools/list"))
                    self.assertEqual(client.reply().status, 200)
                with socket.socket() as other:  # another address of this machine
                    other.settimeout(PATIENCE)
                    other.bind(("127.0.0.2", 0))
                    other.connect(("127.0.0.1", live.port))
                    other.sendall(modern("tools/list"))
                    self.assertIn(b" 200 ", other.recv(100))
            soon(lambda: not live.endpoint.connections, "nobody is connected")
            self.assertEqual(live.endpoint.addresses, {})
            self.assertEqual(live.ask(modern("tools/list")).status, 200)

    def test_small_writes_are_sent_at_once(self):
        """Nagle would hold back the second of two replies or events for 40 ms."""
        with Live(fixture()) as live, live.client() as client:
            client.send(modern("tools/list") * 2)
            for _ in range(2):
                self.assertEqual(client.reply().status, 200)
            (connection,) = live.endpoint.connections
            found = connection.transport.get_extra_info("socket")
            self.assertTrue(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def test_five_hundred_idle_connections(self):
        """As many as this process may open: both ends are here."""
        count = 500
        if resource is not None:
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            count = min(count, (soft - 100) // 2)
        with Live(fixture()) as live, contextlib.ExitStack() as stack:
            for number in range(1, count + 1):
                stack.enter_context(live.client())
                if number % 50 == 0:  # beyond its backlog the kernel waits for 1 s
                    soon(lambda n=number: len(live.endpoint.connections) == n, "in")
            soon(lambda: len(live.endpoint.connections) == count, "all are in")
            began = time.monotonic()
            self.assertEqual(live.ask(modern("tools/list")).status, 200)
            self.assertLess(time.monotonic() - began, 5)

    def test_many_connections_at_once_wait_for_no_second_attempt(self):
        free = threading.Event()
        with Live() as live, contextlib.ExitStack() as stack:
            stack.callback(free.set)
            live.loop.call_soon_threadsafe(free.wait, PATIENCE)  # nobody accepts
            address = ("127.0.0.1", live.port)
            for _ in range(200):
                stack.enter_context(socket.create_connection(address, timeout=0.9))
            free.set()
            soon(lambda: len(live.endpoint.connections) == 200, "all are accepted")

    def test_sessions_in_use_are_not_thrown_out(self):
        with Live(fixture(limits=Limits(sessions=2))) as live:
            with live.client() as one, live.client() as two:
                for client in (one, two):
                    headers = [("Mcp-Session-Id", live.open())]
                    client.send(request("GET", headers=headers))
                    self.assertEqual(client.head().status, 200)
                reply = live.ask(initialize())
                self.assertEqual(reply.status, 503)
                self.assertNotIn("mcp-session-id", reply.headers)
                self.assertIn("retry-after", reply.headers)
                self.assertEqual(live.ask(modern("tools/list")).status, 200)

    def test_streams(self):
        with Live(fixture(limits=Limits(streams=2))) as live:
            with live.client() as one, live.client() as two:
                for client in (one, two):
                    client.send(modern("subscriptions/listen", LISTEN))
                    self.assertEqual(client.head().status, 200)
                reply = live.ask(modern("subscriptions/listen", LISTEN))
                self.assertEqual(reply.status, 503)
                self.assertIn("retry-after", reply.headers)
                headers = [("Mcp-Session-Id", live.open())]
                self.assertEqual(live.ask(request("GET", headers=headers)).status, 503)
                self.assertEqual(live.ask(modern("tools/list")).status, 200)
                live.server.notify_tools_changed()
                for client in (one, two):
                    changes = (b"list_changed" in data for _, data in client.events())
                    self.assertTrue(any(changes))

    def test_subscriptions_of_one_stream(self):
        server = fixture(False, limits=Limits(streams=2))
        server.add_resource("t://{name}", lambda name: name, name="t")
        asked = [line("resources/subscribe", {"uri": f"t://{n}"}, n) for n in range(4)]
        found = {m["id"]: code_of(m) for m in talk(*asked, server=server)}
        self.assertEqual(found, {0: None, 1: None, 2: -32602, 3: -32602})


class Calls(unittest.TestCase):
    def test_in_flight(self):
        """Only what waits counts; a refused id is free at once."""
        for loop in (False, True):
            server = fixture(loop, limits=Limits(in_flight=2))
            with Wire(server, loop) as wire:
                wire.send(hello(), call("block", {}, 1), call("block", {}, 2))
                wire.send(call("block", {}, 3), call("echo", {"text": "x"}, 4))
                self.assertIsNotNone(code_of(wire.wait(3)))
                self.assertEqual(text(wire.wait(4)), "x")
                server.proceed.set()
                for id in (1, 2):
                    self.assertEqual(text(wire.wait(id)), "blocked")

    def test_listen_streams_of_one_peer_count_too(self):
        server = fixture(False, limits=Limits(in_flight=3))
        with Wire(server) as wire:
            key = "io.modelcontextprotocol/"
            meta = {key + "protocolVersion": "2026-07-28"}
            meta[key + "clientCapabilities"] = {}
            for id in range(6):
                params = {**LISTEN, "_meta": meta}
                wire.send(line("subscriptions/listen", params, id))
            wire.send(line("tools/list", {"_meta": meta}, "last"))
            wire.wait("last")
            refused = [m for m in wire.found if "error" in m]
            self.assertEqual([m["id"] for m in refused], [3, 4, 5])

    def test_workers_and_waiting(self):
        """One runs, two wait, the rest is told to come again; inline calls go on."""
        for loop in (False, True):
            server = fixture(False, limits=Limits(workers=1, waiting=2))
            with Wire(server, loop) as wire:
                wire.send(hello(), call("block", {}, 0))
                server.entered.wait(PATIENCE)
                wire.send(*(call("block", {}, n) for n in range(1, 5)))
                for id in (3, 4):
                    reply = wire.wait(id)
                    self.assertTrue(reply["result"]["isError"])
                    self.assertIn("retry in 1 second", text(reply))
                wire.send(call("echo", {"text": "x"}, "e"), ping(b'"p"'))
                wire.wait("e")
                wire.wait("p")
                self.assertEqual(server._threads, 1)
                server.proceed.set()
                for id in range(3):
                    self.assertEqual(text(wire.wait(id)), "blocked")
            self.assertEqual((server._waiting, server._waiting_bytes), (0, 0))

    def test_waiting_bytes(self):
        server = fixture(False, limits=Limits(workers=1, waiting_bytes=5000))
        with Wire(server) as wire:
            wire.send(hello(), call("block", {}, 0))
            server.entered.wait(PATIENCE)
            wire.send(call("block", {"seconds": 1}, 1, x="y" * 3000))
            wire.send(call("block", {"seconds": 1}, 2, x="y" * 3000))
            self.assertIn("busy", text(wire.wait(2)))
            server.proceed.set()
            self.assertEqual(text(wire.wait(1)), "blocked")
        self.assertEqual((server._waiting, server._waiting_bytes), (0, 0))

    def test_async_calls_that_run_hold_so_many_bytes_and_no_more(self):
        server = fixture(False, limits=Limits(waiting_bytes=50_000))
        free = threading.Event()

        @server.tool
        async def hold(text: str) -> str:
            while not free.is_set():
                await asyncio.sleep(0.001)
            return "held"

        @server.tool
        async def release() -> str:
            free.set()
            return "released"

        long = "y" * 30_000
        with Wire(server, loop=True) as wire:
            wire.send(hello(), call("hold", {"text": long}, 0))
            wire.send(call("hold", {"text": long}, 1), call("hold", {"text": "x"}, 2))
            self.assertIn("busy", text(wire.wait(1)))
            wire.send(call("release", {}, 3))
            for id, reply in ((3, "released"), (0, "held"), (2, "held")):
                self.assertEqual(text(wire.wait(id)), reply)
            soon(lambda: not server._held, "what was held is free")
            wire.send(call("hold", {"text": long}, 4))
            self.assertEqual(text(wire.wait(4)), "held")

    def test_bodies_that_are_arriving(self):
        """Over the budget the next body is refused; small requests go on."""
        limits = Limits(bodies=100_000)
        whole = modern(
            "tools/call", {"name": "echo", "arguments": {"text": "y" * 70_000}}
        )
        with Live(fixture(limits=limits)) as live:
            with live.client() as one, live.client() as two:
                one.send(whole[:-1])
                soon(lambda: live.endpoint.held > 69_000, "one body")
                two.send(whole[:-1])
                reply = two.reply()
                self.assertEqual(
                    (reply.status, reply.headers["retry-after"]), (503, "5")
                )
                self.assertTrue(two.closed())
                soon(lambda: live.endpoint.held < 100_000, "what was refused is gone")
                self.assertEqual(live.ask(modern("tools/list")).status, 200)
                one.send(whole[-1:])
                self.assertEqual(one.reply().status, 200)
                self.assertEqual(live.endpoint.held, 0)
                one.send(whole[:-1])
                soon(lambda: live.endpoint.held > 69_000, "one body again")
            soon(lambda: not live.endpoint.connections, "one has left")
            self.assertEqual(live.endpoint.held, 0)

    def test_the_rate_of_tools_and_of_one_tool(self):
        server = fixture(False, limits=Limits(tool_rate=(3, 1000.0)))
        for id in range(3):
            self.assertFalse(server.call("add", {"a": id, "b": 1}).get("isError"))
        result = server.call("add", {"a": 1, "b": 1})
        self.assertTrue(result["isError"])
        self.assertRegex(result["content"][0]["text"], r"retry in \d+\.\d seconds")
        server = fixture(False)
        server.add_tool(lambda: "x", name="slow", rate=(1, 1000.0))
        self.assertFalse(server.call("slow").get("isError"))
        self.assertTrue(server.call("slow")["isError"])
        self.assertFalse(server.call("add", {"a": 1, "b": 1}).get("isError"))

    def test_the_rate_of_completions(self):
        server = fixture(False, limits=Limits(completion_rate=(2, 1000.0)))
        server.completion(lambda ref, argument: ["x"])
        server.add_prompt(lambda a: "p", name="q")
        params = {"ref": {"type": "ref/prompt", "name": "q"}}
        params["argument"] = {"name": "a", "value": ""}
        asked = (line("completion/complete", params, n) for n in range(3))
        found = [code_of(m) for m in talk(*asked, server=server)]
        self.assertEqual(sum(code is None for code in found), 2)

    def test_the_rate_of_logs(self):
        server = fixture(False, limits=Limits(log_rate=(5, 1000.0)))

        @server.tool
        def chatty(ctx: Context) -> str:
            for n in range(100):
                ctx.info(n)
            return "done"

        found = talk(call("chatty"), server=server)
        self.assertEqual(len([m for m in found if "method" in m]), 5)

    def test_time(self):
        limits = Limits(call_timeout=0.05)
        for loop in (False, True):
            with Wire(fixture(loop, limits=limits), loop) as wire:
                wire.send(hello(), call("block", {}, 1))
                self.assertIn("within 0.05 s", text(wire.wait(1)))
                wire.server.proceed.set()

    def test_questions(self):
        server = fixture(False, limits=Limits(rounds=3))

        @server.tool(inline=True)
        def again(ctx: Context) -> InputRequired:
            return InputRequired({}, state="s")

        found = talk(call("again"), server=server)
        self.assertTrue(found[-1]["result"]["isError"])
        self.assertIn("More than 3", text(found[-1]))

    def test_an_answer_that_never_comes(self):
        server = fixture(False, limits=Limits(answer_timeout=0.05))
        server.add_tool(sure)
        with Wire(server) as wire:
            wire.send(hello(elicitation={}), call("sure", {}, 1))
            self.assertIn("Nobody answered", text(wire.wait(1)))

    def test_old_request_states(self):
        server = fixture(False, limits=Limits(state_age=0.0))
        server.add_tool(sure, inline=True)
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        meta["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {}}
        with Wire(server) as wire:
            wire.send(call("sure", {}, 1, _meta=meta))
            state = wire.wait(1)["result"]["requestState"]
            began = time.time()
            soon(lambda: time.time() > began + 0.01, "time has passed")
            wire.send(call("sure", {}, 2, _meta=meta, requestState=state))
            reply = wire.wait(2)
            self.assertEqual(code_of(reply), -32602, reply)


def sure(ctx: Context) -> bool:
    return ctx.confirm("Sure?")


class Input(unittest.TestCase):
    def test_depth_and_digits(self):
        server = fixture(False, limits=Limits(depth=8, digits=25))
        deep = {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}
        for arguments in ({"text": deep}, {"text": int("9" * 26)}):
            reply, last = talk(call("echo", arguments), ping(b"2"), server=server)
            self.assertEqual(code_of(reply), -32700)
            self.assertEqual(last["id"], 2)

    def test_head_headers_and_target(self):
        limits = Limits(head=500, headers=10, target=50)
        with Live(fixture(limits=limits)) as live:
            for data, status in (
                (request("GET", headers=[("X", "y" * 500)]), 431),
                (request("GET", headers=[(f"X{n}", "y") for n in range(10)]), 431),
                (request("GET", target="/" + "x" * 50), 414),
            ):
                with live.client() as client:
                    client.send(data)
                    self.assertEqual(client.reply().status, status)
                    self.assertTrue(client.closed())
            self.assertEqual(live.ask(modern("tools/list")).status, 200)

    def test_patterns_and_schemas(self):
        server = Server(limits=Limits(pattern_text=5, schema_depth=5, schema_work=50))
        schema = {"type": "object", "properties": {"t": {"pattern": "^a*$"}}}
        server.add_tool(lambda t: "x", name="f", input_schema=schema)
        self.assertFalse(server.call("f", {"t": "aaaaa"}).get("isError"))
        self.assertTrue(server.call("f", {"t": "aaaaaa"})["isError"])
        deep = {"type": "string"}
        for _ in range(6):
            deep = {"type": "object", "properties": {"t": deep}}
        with self.assertRaises(DefinitionError):
            server.add_tool(lambda t: "x", name="g", input_schema=deep)
        bomb = {"type": "string"}
        for _ in range(3):
            bomb = {"anyOf": [bomb, bomb, bomb, bomb]}
        schema = {"type": "object", "properties": {"t": bomb}}
        wide = Server(limits=Limits(schema_work=50))
        wide.add_tool(lambda t: "x", name="h", input_schema=schema)
        result = wide.call("h", {"t": 5})
        self.assertTrue(result["isError"])
        self.assertIn("too many alternatives", result["content"][0]["text"])


class Output(unittest.TestCase):
    def test_queue_of_a_pipe(self):
        """A client that reads nothing is waited for, and gets all of it later."""
        for loop in (False, True):
            server = fixture(loop, limits=Limits(queue=200_000))
            with Wire(server, loop) as wire:
                wire.send(hello())
                wire.wait("i")
                wire.reading.clear()

                def feed(wire=wire):
                    for n in range(40):
                        wire.send(call("echo", {"text": "y" * 20_000}, n))

                sender = threading.Thread(target=feed)
                sender.start()
                soon(lambda w=wire: queued(w) > 150_000, "the queue is full")
                self.assertLessEqual(queued(wire), 200_000 + 65536)
                wire.reading.set()
                sender.join(PATIENCE)
                found = wire.end()
            self.assertEqual({m["id"] for m in found}, {"i", *range(40)})

    def test_queue_of_a_stream(self):
        """A stuck reader of changes costs flags; once it reads it gets the last one."""
        server = fixture(limits=Limits(stream_queue=1000))
        uris = {"notifications": {"resourceSubscriptions": ["x://a"]}}
        with Live(server) as live, live.client() as stuck:
            stuck.send(modern("subscriptions/listen", uris, 1))
            stuck.head()
            for n in range(5000):
                server.notify_updated("x://a")
                if n % 500 == 0:
                    self.assertEqual(live.ask(modern("tools/list")).status, 200)
            (connection,) = [
                c for c in live.endpoint.connections if c.exchange is not None
            ]
            size = connection.transport.get_write_buffer_size()
            self.assertLess(size, 4 * 1000)

    def test_replay(self):
        limits = Limits(replay_session=2000, replay=3000)
        with Live(fixture(limits=limits)) as live:
            accept = [("Accept", "text/event-stream")]
            echo = {"name": "echo", "arguments": {"text": "x" * 500}}
            for _ in range(3):
                session = live.open()
                for n in range(8):
                    data = legacy(session, "tools/call", echo, n, headers=accept)
                    with live.client() as client:
                        client.send(data)
                        client.head()
                        list(client.events())
                self.assertLessEqual(live.endpoint.sessions[session].kept, 2000)
            self.assertLessEqual(live.endpoint.kept_bytes, 3000)

    def test_retry_is_told_to_polling_clients(self):
        with Live(fixture(limits=Limits(retry=7))) as live, live.client() as client:
            session = live.open()
            accept = [("Accept", "text/event-stream")]
            echo = {"name": "echo", "arguments": {"text": "x"}}
            client.send(legacy(session, "tools/call", echo, headers=accept))
            client.head()
            self.assertIn(b"retry: 7\n", client.chunk())


def queued(wire):
    """Bytes that wait for the client in the outlet of a Wire."""
    import gc

    found = [o for o in gc.get_objects() if type(o) is rt._Outlet]
    return max((o.queued for o in found if o.fd == wire.out_fd), default=0)


class Many(unittest.TestCase):
    def test_connections_to_a_socket(self):
        """Newline framing over a Unix socket has the same bound."""

        async def main(path):
            server = fixture(limits=Limits(connections=2))
            stop = asyncio.Event()
            async with server._entered():
                task = asyncio.ensure_future(server._unix(path, stop))
                while not pathlib.Path(path).exists():
                    await asyncio.sleep(0.01)
                kept = [await asyncio.open_unix_connection(path) for _ in range(2)]
                for reader, writer in kept:
                    writer.write(ping(b"1"))
                    self.assertTrue(await reader.readline())
                reader, writer = await asyncio.open_unix_connection(path)
                self.assertIn(b"Too many connections", await reader.read())
                writer.close()
                kept[0][1].write(ping(b"2"))
                self.assertTrue(await kept[0][0].readline())
                for _, writer in kept:
                    writer.close()
                stop.set()
                await asyncio.wait_for(task, PATIENCE)

        if not hasattr(socket, "AF_UNIX"):
            self.skipTest("no Unix sockets")
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(folder + "/s"))


if __name__ == "__main__":
    unittest.main()
