"""What a hostile client or an odd handler once opened, and must not again."""

import asyncio
import sys
import threading
import time
import unittest
from dataclasses import dataclass

import tinymcp
from tests.test_protocol import PATIENCE, B, D, E, Peer, quiet
from tests.test_streams import Piped, call, initialize, line, soon
from tinymcp import Context, InputRequired, Limits, MCPError, Server, ToolError

rt = sys.modules[tinymcp.Server.__module__]


class EvilText(Exception):
    def __str__(self):
        raise ValueError("no text")


class Stray(BaseException):
    pass


class Handlers(unittest.TestCase):
    ODD = {
        "interrupt": KeyboardInterrupt,
        "exit": lambda: SystemExit(3),
        "cancel": asyncio.CancelledError,
        "generator": GeneratorExit,
        "stray": Stray,
        "evil": EvilText,
        "message": lambda: MCPError(-31000, ValueError("x")),
        "data": lambda: MCPError(-31000, "x", object()),
        "memory": MemoryError,
        "deep": lambda: RecursionError("deep"),
    }

    def test_whatever_is_raised_costs_one_reply_and_frees_the_lane(self):
        server = quiet(limits=Limits(workers=2))

        @server.tool(lock="bus")
        def odd(kind: str) -> str:
            raise self.ODD[kind]()

        server.tool(
            lambda: InputRequired({"a": {"method": "roots/list", "params": 5}}),
            name="asks",
            lock="bus",
        )
        server.tool(lambda: "fine", name="good", lock="bus")
        for peer in (Peer(server, roots={}), Peer(server, D, roots={})):
            for kind in self.ODD:
                with self.subTest(kind):
                    reply = peer.ask(
                        "tools/call", {"name": "odd", "arguments": {"kind": kind}}
                    )
                    self.assertTrue("error" in reply or reply["result"]["isError"])
                    self.assertFalse(peer.call("good")["isError"])
            self.assertTrue(peer.call("asks")["isError"])
            self.assertFalse(peer.call("good")["isError"])
        self.assertEqual(server._lanes, {})

    def test_a_log_function_that_raises_loses_no_reply(self):
        server = Server("x", log=lambda level, text: 1 / 0)
        server.tool(lambda: {}["x"], name="t")
        self.assertTrue(Peer(server).call("t")["isError"])

    def test_an_error_code_is_a_number(self):
        with self.assertRaisesRegex(TypeError, "integer code"):
            MCPError("message", -1)

    def test_types_that_refuse_a_value(self):
        raised = {
            1: KeyError("/opt/secret"),
            2: OSError("no /opt/secret"),
            3: SystemExit(1),
        }

        @dataclass
        class Picky:
            a: int

            def __post_init__(self):
                if self.a in raised:
                    raise raised[self.a]

        server = quiet()

        def tool(x):
            return "fine"

        tool.__annotations__ = {"x": Picky}
        server.tool(tool, name="t")
        peer = Peer(server)
        self.assertFalse(peer.call("t", x={"a": 0})["isError"])
        for value in raised:
            wrong = peer.call("t", x={"a": value})
            self.assertTrue(wrong["isError"])
            self.assertNotIn("secret", wrong["content"][0]["text"])

    def test_paths_are_masked_ERR_08(self):
        for text, shown in (
            ("bad file:///opt/app/key", "bad <path>"),
            ("config:/opt/app.ini is bad", "<path> is bad"),
            ("../../opt/x", "<path>"),
            ("~/.ssh/id", "<path>"),
            ("C:/Users/bob", "<path>"),
            ("\\\\srv\\share", "<path>"),
            ("a=/opt/x", "<path>"),
            ("'/opt/my app/x'", "<path>"),
            ("see https://a.example/b", "see https://a.example/b"),
            ("https://user:pw@a.example/", "<path>"),
            ("5 m/s and a / b", "5 m/s and a / b"),
        ):
            self.assertEqual(rt._masked(text), shown)


class Clients(unittest.TestCase):
    def test_text_that_is_no_text(self):
        server = quiet()
        server.add_prompt(lambda n: "x", name="p")

        @server.prompt
        def counted(n: int) -> str:
            return str(n)

        @server.resource("int://{n}")
        def number(n: int) -> str:
            return str(n)

        for peer in (Peer(server), Peer(server, D)):
            params = {"name": "counted", "arguments": {"n": "\ud800"}}
            self.assertEqual(peer.error("prompts/get", params)["code"], -32602)
            self.assertIn("error", peer.ask("resources/read", {"uri": "int://\ud800"}))
            for meta in ([], {}, 5):
                params = {"_meta": {rt._LEVEL_KEY: meta}}
                self.assertIn(
                    "error",
                    peer.ask("tools/list", meta={rt._LEVEL_KEY: meta})
                    if peer.revision == E
                    else peer.ask("logging/setLevel", {"level": meta}),
                )

    def test_what_a_session_keeps_is_bounded(self):
        peer = Peer(quiet(limits=Limits(client=2000)))
        params = {"protocolVersion": D, "capabilities": {}}
        params["clientInfo"] = {"name": "x", "junk": [[]] * 1000}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        peer.give(message)
        self.assertEqual(peer.got(1)["error"]["code"], -32602)

    def test_batches_are_bounded(self):
        server = quiet(limits=Limits(batch=3))
        peer = Peer(server, B)
        batch = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(4)]
        found = server._dispatch(batch, peer)
        self.assertEqual(found[1], -32600)
        found = server._dispatch(batch[:3], peer)
        self.assertEqual(found[1], 0)

    def test_an_id_runs_once_in_a_batch(self):
        server, ran = quiet(), []
        server.tool(lambda: ran.append(1) or "x", name="t")
        peer = Peer(server, B)
        one = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "tools/call",
            "params": {"name": "t"},
        }
        peer.came.clear()
        server._dispatch([one, one, one], peer).launch()
        peer.wait(lambda m: type(m) is list)
        self.assertEqual(ran, [1])

    def test_open_questions_are_bounded(self):
        server = quiet(limits=Limits(body=1000))

        @server.tool(inline=True)
        def ask(ctx: Context) -> str:
            return str(ctx.confirm("?"))

        peer = Peer(server, D, elicitation={})
        for n in range(3):
            message = {"jsonrpc": "2.0", "id": n, "method": "tools/call"}
            found = server._dispatch({**message, "params": {"name": "ask"}}, peer, 600)
            if type(found) is not tuple:
                found.launch()
        refused = [m for m in peer.came if m.get("result", {}).get("isError")]
        self.assertEqual(len(refused), 2)

    def test_state_without_an_answer_is_a_call_like_any_other(self):
        server, ran = quiet(), []

        @server.tool(rate=(1, 3600.0))
        def ask(ctx: Context) -> str:
            ran.append(1)
            return str(ctx.confirm("?"))

        peer = Peer(server, elicitation={})
        state = peer.call("ask")["requestState"]
        for _ in range(5):
            again = peer.result("tools/call", {"name": "ask", "requestState": state})
            self.assertTrue(again["isError"])
        self.assertEqual(ran, [1])

    def test_a_spent_state_is_never_forgotten(self):
        seal = rt._Seal((), 300.0)
        seal.use({"n": "mine", "e": seal.clock() + 300})
        with self.assertRaises(MCPError) as caught:
            for n in range(20000):
                seal.use({"n": str(n), "e": seal.clock() + 300})
        self.assertEqual(caught.exception.code, rt.TOO_MANY_REQUESTS)
        with self.assertRaises(MCPError):
            seal.use({"n": "mine", "e": seal.clock() + 300})

    def test_templates_stay_below_their_root_RES_08(self):
        server = quiet()
        server.add_resource("file:///srv/{+path}", lambda path: path, name="f")
        peer = Peer(server)
        for uri in (
            "file:///srv//etc/passwd",
            "file:///srv/%2Fetc/passwd",
            "file:///srv/a/../../etc",
            "file:///srv/..%5C..%5Cetc",
        ):
            self.assertEqual(peer.error("resources/read", {"uri": uri})["code"], -32602)

    def test_templates_match_in_no_time(self):
        server = quiet()
        server.add_resource(
            "log://{year}-{month}-{day}", lambda year, month, day: day, name="l"
        )
        peer, began = Peer(server), time.process_time()
        for size in (100, 1000, 2000, 100_000):
            uri = "log://" + "-" * size + "/"
            self.assertEqual(peer.error("resources/read", {"uri": uri})["code"], -32602)
        self.assertLess(time.process_time() - began, 2.0)


class Lanes(unittest.TestCase):
    def test_a_lane_outlives_many_waiting_calls_that_go_away(self):
        server = quiet(limits=Limits(waiting=2000))
        gate, began = threading.Event(), threading.Event()
        server.proceed = gate

        @server.tool(lock="bus")
        async def hold(seconds: int = 0) -> str:
            began.set()
            while seconds and not gate.is_set():
                await asyncio.sleep(0.01)
            return "held"

        with Piped(server, True) as piped:
            piped.send(initialize() + call("hold", 0, seconds=1))
            piped.read()
            began.wait(PATIENCE)
            for n in range(1, 400):
                piped.send(call("hold", n))
            for n in range(1, 400):
                piped.send(line("notifications/cancelled", {"requestId": n}, None))
            piped.send(call("hold", "last"))
            lines = server._open.lines
            soon(lambda: sum(map(len, lines())) == 2, "all others are cancelled")
            gate.set()
            ids = [piped.read()["id"], piped.read()["id"]]
            self.assertEqual(ids, [0, "last"])
        self.assertEqual(server._lanes, {})

    def test_many_calls_of_a_lane_that_never_wait(self):
        server = quiet(limits=Limits(waiting=2000))
        server.proceed = threading.Event()

        @server.tool(lock="bus")
        async def quick() -> str:
            return "quick"

        with Piped(server, True) as piped:
            piped.send(initialize())
            piped.read()
            for n in range(600):
                piped.send(call("quick", n))
            self.assertEqual({piped.read()["id"] for _ in range(600)}, set(range(600)))


class Questions(unittest.TestCase):
    def test_a_tool_error_in_a_replay_is_one_reply(self):
        server = quiet()

        @server.tool
        def ask(ctx: Context) -> str:
            if ctx.confirm("?"):
                raise ToolError("stuck")
            return "no"

        peer = Peer(server, D, elicitation={})
        id = peer.start("tools/call", {"name": "ask"})
        question = peer.wait(lambda m: "method" in m)
        yes = {"action": "accept", "content": {"confirm": True}}
        for _ in range(3):  # a doubled answer changes nothing
            peer.answer(question, yes)
        self.assertTrue(peer.got(id)["result"]["isError"])
        self.assertEqual(peer.came, [])


if __name__ == "__main__":
    unittest.main()
