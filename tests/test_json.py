"""Section 3: JSON and JSON-RPC."""

import collections
import contextlib
import datetime
import enum
import importlib.util
import json
import os
import random
import subprocess
import sys
import threading
import time
import types
import unittest
from unittest import mock

import tinymcp

rt = sys.modules[tinymcp.Server.__module__]

DEPTH, DIGITS = 64, 400
ENVELOPE = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"x":%b}}'

GOOD = [
    (b"{}", {}),
    (b" \t\r\n[1]\r\n", [1]),
    (b'{"a":[1,-2,3.5,true,false,null]}', {"a": [1, -2, 3.5, True, False, None]}),
    (b"-0", 0),
    (b"-0.0", -0.0),
    (b"1E5", 1e5),
    (b"0e999", 0.0),
    (b"1e-999", 0.0),
    (b"1.7976931348623157e308", sys.float_info.max),
    (b"18446744073709551616", 1 << 64),
    (b"-9223372036854775809", -(1 << 63) - 1),
    (b"123456789012345678901234567890", 123456789012345678901234567890),
    (b"9" * DIGITS, 10**DIGITS - 1),
    (b'"' + b"9" * 5000 + b'"', "9" * 5000),
    (b'["' + b"9" * 500 + b'",1]', ["9" * 500, 1]),
    (b'"' + b"[{" * 500 + b'"', "[{" * 500),
    (b'"\\"' + b"[" * 500 + b'\\\\"', '"' + "[" * 500 + "\\"),
    (b"[" * DEPTH + b"]" * DEPTH, None),
    (b"[" + b"{}," * 500 + b"[]]", [{}] * 500 + [[]]),
    (b'{"k":' * DEPTH + b"1" + b"}" * DEPTH, None),
    (b'"\\u00e9\\ud834\\udd1e\\/\\b\\f\\n\\r\\t"', "\xe9\U0001d11e/\b\f\n\r\t"),
    ('"\xe9\U0001d11e\u2028\x7f"'.encode(), "\xe9\U0001d11e\u2028\x7f"),
    (b'"\\ud800"', "\ud800"),
    (b'{"a":1,"a":2}', {"a": 2}),
]

BAD = [
    b"",
    b" ",
    b"{",
    b"[",
    b"not json",
    b'{"jsonrpc":"2.0","id":7,"method":"ping"',
    b"\xff\xfe",
    b'"\x92"',
    b'"\xed\xa0\x80"',  # a surrogate in UTF-8
    b'"\xc0\xaf"',  # an overlong form
    b"\xef\xbb\xbf{}",
    '"x"'.encode("utf-16"),
    b"\x00",
    b"\x0b1",
    b"1\x0c",
    b"[1\xc2\xa0]",
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"-",
    b"--1",
    b"1e",
    b"0x10",
    b"1 2",
    b"{}{}",
    b"[1]]",
    b"[1,]",
    b'{"a":1,}',
    b'{"a" "b"}',
    b"{'a':1}",
    b"{1:2}",
    b'"a',
    b'"\x01"',
    b'"\n"',
    b'"\\x"',
    b'"\\u12"',
    b"nul",
    b"True",
    b"NaN",
    b"Infinity",
    b"[-Infinity]",
    b'{"id":NaN}',
    b"/* */1",
    b"9" * (DIGITS + 1),
    b"0." + b"3" * (DIGITS + 1),
    b'["x",' + b"9" * (DIGITS + 1) + b"]",
    b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1),
    b"[" * 100000,
    b"]" * 100000,
    b'{"a":' * 1000 + b"1" + b"}" * 1000,
    b"[" * 40 + b"{" * 40,
    b"[]" * 100,
]


def decode(data):
    return rt._decode(data, DEPTH, DIGITS)


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


class Decode(unittest.TestCase):
    def test_good(self):
        for data, expected in GOOD:
            with self.subTest(data[:60]):
                value = decode(data)
                if expected is None:
                    expected = json.loads(data)
                self.assertEqual(value, expected)
                self.assertIs(type(value), type(expected))
                self.assertEqual(decode(bytearray(data)), expected)

    def test_bad_is_a_parse_error_without_id_rpc_01(self):
        for data in BAD:
            with self.subTest(data[:60]), self.assertRaises(rt.MCPError) as caught:
                decode(data)
            self.assertEqual(caught.exception.code, rt.PARSE_ERROR)
            self.assertIs(caught.exception.id, rt._NO_ID)
            self.assertLess(len(caught.exception.message), 200)

    def test_truncations_are_parse_errors(self):
        data = '[1,-2.5e3,"\xe9\\u00e9\U0001d11e",true,null,{"a":{}}]'.encode()
        data = ENVELOPE % data
        decode(data)
        for size in range(len(data)):
            with self.subTest(size), self.assertRaises(rt.MCPError) as caught:
                decode(data[:size])
            self.assertEqual(caught.exception.code, rt.PARSE_ERROR)

    def test_a_number_beyond_a_double_is_invalid_params_under_its_id(self):
        for data, expected in (
            (b"1e999", rt._NO_ID),
            (b"[1e999]", rt._NO_ID),
            (ENVELOPE % b"1e999", 7),
            (ENVELOPE % b"[{},-1e400]", 7),
            (ENVELOPE.replace(b"7", b'"7"') % b"1.8e308", "7"),
            (ENVELOPE.replace(b"7", b"1e999") % b"1", rt._NO_ID),
            (b'{"jsonrpc":"2.0","id":7,"result":{"x":1e999}}', rt._NO_ID),
        ):
            with self.subTest(data), self.assertRaises(rt._NotFinite) as caught:
                decode(data)
            self.assertEqual(caught.exception.code, rt.INVALID_PARAMS)
            self.assertEqual(caught.exception.id, expected)
        for data in (ENVELOPE[:-1] % b"1e999", b"1e999 x", b"[1e999,NaN]"):
            with self.subTest(data), self.assertRaises(rt.MCPError) as caught:
                decode(data)
            self.assertEqual(caught.exception.code, rt.PARSE_ERROR)

    def test_depth_is_bounded_before_the_parser(self):
        for levels in (DEPTH + 1, 150, 1000, 100000):
            data = b"[" * levels + b"]" * levels
            with self.subTest(levels), self.assertRaises(rt.MCPError) as caught:
                decode(data)
            self.assertIn("over 64 levels", caught.exception.message)
        with self.assertRaises(rt.MCPError):  # a limit that is set too high
            rt._decode(b"[" * 200000 + b"]" * 200000, 1 << 20, DIGITS)

    def test_bounds_cost_linear_time(self):
        size = 1 << 19
        block = b"[" * 32 + b"]" * 32
        for data in (
            b"[" + (block + b",") * (size // 65) + b"1]",
            b"[" * (size // 2) + b"]" * (size // 2),
            (b"1" * DIGITS + b"x") * (size // (DIGITS + 1)),
            b"[" + (b"1" * DIGITS + b",") * (size // (DIGITS + 1)) + b"1]",
            b'"' * size,
            b'"' + b"\\" * size,
            b"{" + b'"' * size,
            b'["' + b"[1" * (size // 2) + b'"]',
            b"9" * size,
            b"1e" + b"9" * 300 + b" " * size,
            b" " * size,
        ):
            start = time.thread_time()
            try:
                decode(data)
            except rt.MCPError:
                pass
            # Milliseconds; what is quadratic would take minutes.
            self.assertLess(time.thread_time() - start, 10.0, data[:60])

    def test_mutations_keep_the_invariant(self):
        """Any bytes give a value that json gives too, or one of two MCPErrors."""
        rng = random.Random(39)
        seeds = [data[:200] for data, _ in GOOD] + [data[:200] for data in BAD]
        seeds.append(ENVELOPE % b'{"text":"\xc3\xa9","n":[1,2.5,{"a":null}]}')
        spice = [b'"', b"\\", b"[", b"{", b"}]", b"1e999", b"NaN", b"\xff", b"9" * 30]
        for _ in range(8000):
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.randint(1, 4)):
                at = rng.randint(0, len(data))
                data[at : at + rng.randint(0, 3)] = rng.choice(
                    [rng.choice(spice), rng.choice(seeds)[: rng.randint(0, 20)]]
                )
            data = bytes(data)
            try:
                value = decode(data)
            except rt.MCPError as error:
                self.assertIn(error.code, (rt.PARSE_ERROR, rt.INVALID_PARAMS), data)
            else:
                self.assertEqual(value, json.loads(data), data)
                self.assertEqual(decode(rt._encode(value)), value, data)


class Encode(unittest.TestCase):
    def test_round_trip(self):
        for value, expected in (
            (None, b"null"),
            (True, b"true"),
            ("", b'""'),
            ({"a": [1, 2.5, "x"], "b": {}}, b'{"a":[1,2.5,"x"],"b":{}}'),
            ((1, (2,)), b"[1,[2]]"),
            (1 << 70, b"1180591620717411303424"),
            ('\xe9\U0001d11e\u2028"\\', '"\xe9\U0001d11e\u2028\\"\\\\"'.encode()),
            ("\x00\n\x1f", b'"\\u0000\\n\\u001f"'),
            ({1: 2, None: 3}, b'{"1":2,"null":3}'),
            (enum.IntEnum("E", "a").a, b"1"),
            (type("S", (str,), {})("x"), b'"x"'),
            ([1] * 3, b"[1,1,1]"),
        ):
            with self.subTest(expected):
                self.assertEqual(rt._encode(value), expected)
                self.assertEqual(rt._encode_text(value), expected.decode())

    def test_utf8_on_one_line_rpc_10(self):
        for text in ("\xe9\U0001d11e\u2028\u2029\x85", "a\r\nb", "x\udfff\ud800y"):
            data = rt._encode({"text": text})
            self.assertNotIn(b"\n", data)
            self.assertNotIn(b"\r", data)
            self.assertEqual(json.loads(data.decode("utf-8")), {"text": text})
            self.assertEqual(json.loads(rt._encode_text(text)), text)

    def test_what_is_not_json_is_named(self):
        ring = []
        ring.append(ring)
        for value, kind, text in (
            (float("nan"), ValueError, "^NaN is not JSON"),
            ({"Infinity": [float("inf")]}, ValueError, "^Infinity is not JSON"),
            (["\\", -float("inf")], ValueError, "^-Infinity is not JSON"),
            (ring, ValueError, "contains itself"),
            ([float("nan"), ring], ValueError, "^Out of range float"),
            (nested(200000), ValueError, "nested too deeply"),
            ({"a": object()}, TypeError, "object"),
            ({1, 2}, TypeError, "set"),
            ({(1, 2): 3}, TypeError, "tuple"),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                rt._encode(value)
        if hasattr(sys, "set_int_max_str_digits"):
            with self.assertRaisesRegex(ValueError, "4300"):
                rt._encode(10**5000)

    def test_one_encoder_serves_all_threads(self):
        shared = {"a": [{"b": list(range(200))} for _ in range(50)]}
        expected = json.dumps(shared, separators=(",", ":")).encode()
        results = []

        def work():
            results.extend(rt._encode(shared) == expected for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [True] * 200)


class Envelope(unittest.TestCase):
    def test_kinds(self):
        v = {"jsonrpc": "2.0"}
        error = {"code": -1, "message": "x"}
        for message, kind in (
            ({**v, "id": 1, "method": "ping"}, "request"),
            ({**v, "id": 0, "method": "ping"}, "request"),
            ({**v, "id": "", "method": "ping", "params": {}}, "request"),
            ({**v, "id": -3, "method": "", "extra": 1}, "request"),
            ({**v, "id": 10**30, "method": "ping"}, "request"),
            ({**v, "method": "x"}, "notification"),
            ({**v, "method": "x", "params": {"a": 1}}, "notification"),
            ({**v, "id": 1, "result": {}}, "response"),
            ({**v, "id": "a", "error": error}, "response"),
            ({**v, "id": None, "error": {**error, "data": 1}}, "response"),
            ({**v, "error": error}, "response"),
        ):
            with self.subTest(message):
                self.assertEqual(rt._classify(message), kind)

    def test_invalid_requests_rpc_02(self):
        """RPC-02: an id is a string or an integer; the error goes under a good one."""
        v = {"jsonrpc": "2.0"}
        error = {"code": -1, "message": "x"}
        none = rt._NO_ID
        for message, id in (
            (42, none),
            ("x", none),
            (None, none),
            (True, none),
            ([], none),
            ([{**v, "id": 1, "method": "ping"}], none),
            ({}, none),
            ({"hello": "world"}, none),
            (v, none),
            ({"id": 3, "method": "ping"}, 3),
            ({"jsonrpc": "1.0", "id": 3, "method": "ping"}, 3),
            ({"jsonrpc": 2.0, "id": "3", "method": "ping"}, "3"),
            ({**v, "id": 1, "method": 5}, 1),
            ({**v, "id": 1, "method": None}, 1),
            ({**v, "id": 1, "method_": "tools/list"}, 1),
            ({**v, "id": 2, "method": "x", "params": ["echo"]}, 2),
            ({**v, "id": 2, "method": "x", "params": "x"}, 2),
            ({**v, "id": 2, "method": "x", "params": None}, 2),
            ({**v, "id": None, "method": "ping"}, none),
            ({**v, "id": True, "method": "ping"}, none),
            ({**v, "id": 1.0, "method": "ping"}, none),
            ({**v, "id": [1], "method": "ping"}, none),
            ({**v, "id": {}, "method": "ping"}, none),
            # The id of a response is one of ours: an error under it would be taken for
            # the reply to a request of the peer.
            ({**v, "id": 1, "result": {}, "error": error}, none),
            ({**v, "id": 1, "method": "x", "result": {}}, none),
            ({**v, "id": 1, "method": "x", "error": error}, none),
            ({**v, "id": 1, "result": None}, none),
            ({**v, "id": 1, "result": [1]}, none),
            ({**v, "id": None, "result": {}}, none),
            ({**v, "result": {}}, none),
            ({**v, "id": 1.5, "error": error}, none),
            ({**v, "id": 1, "error": "x"}, none),
            ({**v, "id": 1, "error": {"code": "1", "message": "x"}}, none),
            ({**v, "id": 1, "error": {"code": True, "message": "x"}}, none),
            ({**v, "id": 1, "error": {"code": 1}}, none),
            ({"id": 1, "result": {}}, none),
        ):
            with self.subTest(message), self.assertRaises(rt.MCPError) as caught:
                rt._classify(message)
            self.assertEqual(caught.exception.code, rt.INVALID_REQUEST)
            self.assertEqual(caught.exception.id, id)
            self.assertIs(type(caught.exception.id), type(id))

    def test_error_replies_rpc_03_rpc_11(self):
        """RPC-03, RPC-11: the id keeps its type; code and message; data is free."""
        for args, error, id in (
            ((1, -32601, "Method not found"), {"code": -32601}, 1),
            ((0, -32602, "x", {"a": [1]}), {"code": -32602, "data": {"a": [1]}}, 0),
            (("1", -32602, "x", []), {"code": -32602, "data": []}, "1"),
            (("", -32603, "\xe9\ud800"), {"code": -32603}, ""),
            ((rt._NO_ID, -32700, "x"), {"code": -32700}, rt._NO_ID),
            ((1, -32603, "x", float("nan")), {"code": -32603}, 1),
            ((1, -32603, "x", object()), {"code": -32603}, 1),
        ):
            with self.subTest(args):
                reply = json.loads(rt._error_bytes(*args))
                self.assertEqual(reply.pop("jsonrpc"), "2.0")
                found = reply.pop("id", rt._NO_ID)
                self.assertEqual((found, type(found)), (id, type(id)))
                self.assertEqual(reply, {"error": {"message": args[2], **error}})


def fake_orjson():
    """As much of orjson as matters: refuses quickly, floats for long integers, null."""

    def integer(text):
        value = int(text)
        return value if -(1 << 63) <= value < 1 << 64 else float(text)

    def number(text):
        if abs(float(text)) > sys.float_info.max:
            raise ValueError(text)
        return float(text)

    def loads(data):
        refuse = {}.__getitem__  # KeyError for NaN and infinity
        try:
            value = json.loads(
                data.decode(),
                parse_int=integer,
                parse_float=number,
                parse_constant=refuse,
            )
            json.dumps(value, ensure_ascii=False).encode()
        except (KeyError, RecursionError) as error:
            raise ValueError(str(error)) from None
        return value

    def plain(item):
        if type(item) is dict and all(type(key) is str for key in item):
            return {key: plain(part) for key, part in item.items()}
        if type(item) in (list, tuple):
            return [plain(part) for part in item]
        if type(item) is float:
            return None if item - item else item
        if item is None or type(item) in (str, bool):
            return item
        if type(item) is int and -(1 << 63) <= item < 1 << 64:
            return item
        raise TypeError("Type is not JSON serializable")

    def dumps(value, default, option):
        try:
            return json.dumps(plain(value), ensure_ascii=False).encode()
        except (UnicodeError, RecursionError) as error:
            raise TypeError(str(error)) from None

    module = types.ModuleType("orjson")
    module.loads, module.dumps = loads, dumps
    for bit, name in enumerate(("SUBCLASS", "DATACLASS", "DATETIME")):
        setattr(module, f"OPT_PASSTHROUGH_{name}", 1 << bit)
    return module


def outcome(function, *arguments):
    """What a call gives, in a form that can be compared."""
    try:
        value = function(*arguments)
        return type(value), repr(value)
    except (rt.MCPError, TypeError, ValueError) as error:
        return type(error), str(error), getattr(error, "id", None)


class FakeOrjson(unittest.TestCase):
    """Whatever json answers, orjson behind the same two functions answers too."""

    def module(self):
        return fake_orjson()

    def setUp(self):
        plain = {"_decode": rt._decode, "_encode": rt._encode}
        self.addCleanup(vars(rt).update, plain)
        with mock.patch.dict(sys.modules, orjson=self.module()):
            rt._use_orjson()
            rt._use_orjson()  # again, for a second server
        self.assertIsNot(rt._decode, plain["_decode"])
        self.assertIsNot(rt._encode, plain["_encode"])

    def test_decode(self):
        cases = [data for data, _ in GOOD] + BAD
        cases += [ENVELOPE % b"1e999", ENVELOPE % b"12345678901234567890123"]
        cases += [b"[9007199254740993]", b"12345678901234567e-10", b"[0.1,1e16,5e-324]"]
        for data in cases:
            with self.subTest(data[:60]):
                expected = outcome(rt._json_decode, data, DEPTH, DIGITS)
                self.assertEqual(outcome(decode, data), expected)

    def test_encode(self):
        ring = []
        ring.append(ring)
        for value in (
            {"a": [1, 2.5, "x", True, {}], "b": ()},
            None,
            "null",
            ["null", None, 1.5],
            float("nan"),
            {"m": float("inf")},
            [1, -float("inf"), None],
            [0.1, 1e16, -0.0, 5e-324, sys.float_info.max],
            "\ud800",
            {"\udfff": 1},
            1 << 70,
            -(1 << 63),
            (1 << 64) - 1,
            {1: 2},
            {None: 1},
            enum.IntEnum("E", "a").a,
            type("S", (str,), {})("x"),
            type("D", (dict,), {})(a=1),
            type("L", (list,), {})([1]),
            collections.namedtuple("P", "x y")(1, 2),
            object(),
            {1, 2},
            b"x",
            datetime.date(2026, 7, 28),
            ring,
            nested(500),
            '\xe9\U0001d11e\u2028\x7f\x00"\\/',
        ):
            with self.subTest(repr(value)[:60]):
                expected = outcome(rt._json_encode, value)
                found = outcome(rt._encode, value)
                if expected[0] is bytes:  # white space and 1e16 may differ
                    self.assertEqual(
                        json.loads(rt._encode_text(value)),
                        json.loads(rt._json_encode(value)),
                    )
                else:
                    self.assertEqual(found, expected)


@unittest.skipUnless(importlib.util.find_spec("orjson"), "orjson is not installed")
class RealOrjson(FakeOrjson):
    def module(self):
        return importlib.import_module("orjson")


class NoOrjson(unittest.TestCase):
    def test_missing(self):
        plain = rt._decode, rt._encode
        with mock.patch.dict(sys.modules, orjson=None):
            with self.assertRaisesRegex(ImportError, "pip install orjson"):
                rt._use_orjson()
        self.assertEqual((rt._decode, rt._encode), plain)


class Alone(unittest.TestCase):
    """A process in which nobody else has imported json, as a plain server is."""

    BAD = [
        b"{",
        b'"abc',
        b'{"a":1,}',
        b"[1e999,",
        b"nul",
        b"",
        b"[NaN]",
        b'"\\x"',
        b"1 2",
    ]

    def test_what_is_not_json_is_a_parse_error_there_too(self):
        code = (
            "import sys; import %s as rt\n"
            "assert 'json' not in sys.modules\n"
            "try: rt._decode(%r, 64, 400)\n"
            "except rt.MCPError as error: print(error.code, 'json' in sys.modules)\n"
        )
        command = [sys.executable, "-S", "-c"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        path = os.pathsep.join(sys.path)
        with contextlib.ExitStack() as stack:
            running = [
                stack.enter_context(
                    subprocess.Popen(
                        [*command, code % (rt.__name__, data)],
                        env={**os.environ, "PYTHONPATH": path},
                        **pipes,
                    )
                )
                for data in self.BAD
            ]
            for data, process in zip(self.BAD, running):
                with self.subTest(data):
                    out, err = process.communicate(timeout=60)
                    self.assertEqual((out[:6], err), ("-32700", ""))


class WithoutC(unittest.TestCase):
    def test_json_in_python_gives_the_same_answers(self):
        scan, scan_any, write = rt._python_json()
        with mock.patch.multiple(rt, _scan=scan, _scan_any=scan_any, _write=write):
            self.assertEqual(
                rt._encode({"a": [1, "x\xe9"]}), '{"a":[1,"x\xe9"]}'.encode()
            )
            for bad in (float("nan"), float("-inf")):
                with (
                    self.subTest(bad),
                    self.assertRaisesRegex(ValueError, "is not JSON"),
                ):
                    rt._encode(bad)
            with self.assertRaisesRegex(TypeError, "type object is not JSON"):
                rt._encode(object())
            self.assertEqual(rt._decode(b'{"a":[1.5,"x"]}', 64, 400), {"a": [1.5, "x"]})
            for bad in (b"NaN", b"[1,]", b"", b'{"a":1e999}'):
                with self.subTest(bad), self.assertRaises(rt.MCPError):
                    rt._decode(bad, 64, 400)

    def test_a_python_without_the_c_half_starts(self):
        code = (
            "import sys; sys.modules['_json'] = None; import %s as rt;"
            "print(rt._encode(rt._decode(b'[1, 2.5]', 64, 400)).decode())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code % rt.__name__],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((done.stdout, done.stderr), ("[1,2.5]\n", ""))


if __name__ == "__main__":
    unittest.main()
