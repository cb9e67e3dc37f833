"""Section 4: type hints to JSON Schema, the checker, converters, signatures."""

import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import operator
import os
import pathlib
import subprocess
import sys
import typing
import unittest
import unittest.mock
import uuid
import warnings
from typing import (
    Annotated,
    Any,
    Dict,
    List,
    Literal,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

import tinymcp

rt = sys.modules[tinymcp.Server.__module__]

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
NULL = {"type": "null"}
FUTURE = "from __future__ import annotations\n"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    NONE = None


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5
    tags: List[str] = dataclasses.field(default_factory=list)
    kind: typing.ClassVar[str] = "point"
    size: int = dataclasses.field(init=False, default=1)


@dataclasses.dataclass
class Even:
    n: int = dataclasses.field(metadata={"description": "An even number."})

    def __post_init__(self):
        if self.n % 2:
            raise ValueError(f"{self.n} is odd")


@dataclasses.dataclass
class Tree:
    name: str
    children: "List[Tree]" = dataclasses.field(default_factory=list)
    color: Optional[Color] = None


@dataclasses.dataclass
class Ping:
    pong: "Optional[Pong]" = None


@dataclasses.dataclass
class Pong:
    ping: "Optional[Ping]" = None


class Pair(NamedTuple):
    left: int
    right: Color = Color.RED


class Movie(typing.TypedDict, total=False):
    title: str
    year: int


class Sequel(Movie):
    of: "Movie"


class Folder(typing.TypedDict):
    name: str
    inner: "List[Folder]"


class Model:
    """What the checker knows of a pydantic model."""

    def __init__(self, **values):
        self.values = values

    @classmethod
    def model_json_schema(cls):
        return {
            "type": "object",
            "properties": {
                "item": {"$ref": "#/$defs/Item", "description": "One item"},
                "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            },
            "required": ["item"],
            "$defs": {"Item": {"type": "object", "properties": {"n": INTEGER}}},
        }

    @classmethod
    def model_validate(cls, value):
        if value["item"].get("n") == 13:
            raise ValueError("13 is taken")
        return cls(**value)

    def model_dump(self, mode, by_alias):
        return {"mode": mode, "by_alias": by_alias, **self.values}


class LoopModel(Model):
    @classmethod
    def model_json_schema(cls):
        node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
        return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}


class Constraint:
    """An object of annotated-types, or pydantic's FieldInfo."""

    def __init__(self, **values):
        vars(self).update(values)


class FieldInfo:
    metadata = ()
    description = "d"


class Plain:
    pass


class Content:
    _mcp_content = True


class Context:
    _mcp_context = True

    def __class_getitem__(cls, item):
        return cls


UserId = typing.NewType("UserId", int)
Number = typing.TypeVar("Number", int, float)
Bound = typing.TypeVar("Bound", bound=str)
Free = typing.TypeVar("Free")

POINT = {
    "type": "object",
    "properties": {
        "x": INTEGER,
        "y": {"type": "number", "default": 0.5},
        "tags": {"type": "array", "items": STRING},
    },
    "required": ["x"],
    "additionalProperties": False,
}


def arguments(function):
    schema, _ = rt._arguments(rt._Signature(function, "tool 't'"), "tool 't'")
    return schema


def call(function, values):
    """Check and convert, as a tools/call does."""
    schema, bind = rt._arguments(rt._Signature(function, "tool 't'"), "tool 't'")
    wrong = rt._compile(schema, "tool 't'")(values)
    if wrong:
        raise AssertionError(wrong)
    return function(**(bind(values) if bind else values))


def one(hint):
    """A function with one parameter of this type that gives back what it gets."""

    def function(value):
        return value

    function.__annotations__["value"] = hint
    return function


def module(source, **names):
    space = {"__name__": "scratch", **names}
    exec(compile(source, "scratch", "exec", dont_inherit=True), space)
    return space


class HintsToSchema(unittest.TestCase):
    """SCH-01, D08: the schema of each kind of annotation."""

    TABLE = [
        (str, STRING),
        (int, INTEGER),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, NULL),
        (type(None), NULL),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (dict, {"type": "object"}),
        (list, {"type": "array"}),
        (Any, {}),
        (object, {}),
        (List, {"type": "array"}),
        (List[int], {"type": "array", "items": INTEGER}),
        (list, {"type": "array"}),
        (List[Any], {"type": "array"}),
        (collections.abc.Sequence, {"type": "array"}),
        (typing.Sequence[int], {"type": "array", "items": INTEGER}),
        (typing.Iterable[str], {"type": "array", "items": STRING}),
        (typing.Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Dict[str, Any], {"type": "object"}),
        (typing.Dict, {"type": "object"}),
        (
            Dict[Color, int],
            {
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["red", "blue"]},
                "additionalProperties": INTEGER,
            },
        ),
        (set, {"type": "array", "uniqueItems": True}),
        (
            typing.FrozenSet[int],
            {"type": "array", "items": INTEGER, "uniqueItems": True},
        ),
        (
            typing.AbstractSet[int],
            {"type": "array", "items": INTEGER, "uniqueItems": True},
        ),
        (tuple, {"type": "array"}),
        (Tuple[int, ...], {"type": "array", "items": INTEGER}),
        (
            Tuple[int, str],
            {
                "type": "array",
                "prefixItems": [INTEGER, STRING],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (Optional[int], {"anyOf": [INTEGER, NULL]}),
        (Union[int, str, None], {"anyOf": [INTEGER, STRING, NULL]}),
        (Union[List[int], typing.Sequence[int]], {"type": "array", "items": INTEGER}),
        (Optional[Any], {}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Literal[Color.RED], {"type": "string", "enum": ["red"]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (Mixed, {"enum": [1, "two", None]}),
        (Point, POINT),
        (List[Optional[Point]], {"type": "array", "items": {"anyOf": [POINT, NULL]}}),
        (
            Even,
            {
                "type": "object",
                "properties": {
                    "n": {"type": "integer", "description": "An even number."}
                },
                "required": ["n"],
                "additionalProperties": False,
            },
        ),
        (
            Movie,
            {"type": "object", "properties": {"title": STRING, "year": INTEGER}},
        ),
        (
            Pair,
            {
                "type": "array",
                "prefixItems": [INTEGER, {"type": "string", "enum": ["red", "blue"]}],
                "minItems": 1,
                "maxItems": 2,
            },
        ),
        (
            collections.namedtuple("Bare", "a"),
            {"type": "array", "prefixItems": [{}], "minItems": 1, "maxItems": 1},
        ),
        (
            collections.namedtuple("Empty", ""),
            {"type": "array", "minItems": 0, "maxItems": 0},
        ),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (pathlib.Path, {"type": "string", "format": "path"}),
        (decimal.Decimal, {"type": "number"}),
        (UserId, INTEGER),
        (Number, {"anyOf": [INTEGER, {"type": "number"}]}),
        (Bound, STRING),
        (Free, {}),
        (List["Color"], {"type": "array", "items": {"type": "string"}}),
        (Annotated[int, {"minimum": 0}], {"type": "integer", "minimum": 0}),
        (Annotated[int, "metres"], {"type": "integer", "description": "metres"}),
        (
            Annotated[Optional[int], "a", {"description": "b"}],
            {"anyOf": [INTEGER, NULL], "description": "b"},
        ),
        (
            Annotated[int, Constraint(ge=1, lt=9, multiple_of=2)],
            {
                "type": "integer",
                "minimum": 1,
                "exclusiveMaximum": 9,
                "multipleOf": 2,
            },
        ),
        (
            Annotated[str, Constraint(min_length=1, max_length=3, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a"},
        ),
        (
            Annotated[List[int], Constraint(min_length=1)],
            {"type": "array", "items": INTEGER, "minItems": 1},
        ),
        (
            Annotated[dict, Constraint(max_length=2)],
            {"type": "object", "maxProperties": 2},
        ),
        (
            Annotated[
                float,
                Constraint(
                    description="Volts", metadata=[Constraint(gt=0), Constraint(le=5)]
                ),
            ],
            {
                "type": "number",
                "description": "Volts",
                "exclusiveMinimum": 0,
                "maximum": 5,
            },
        ),
    ]

    def test_each_kind_of_hint(self):
        scope = {"Color": str}  # for the quoted one
        for hint, expected in self.TABLE:
            with self.subTest(hint=hint):
                hints = rt._Hints("t", scope)
                self.assertEqual(hints.root(hints.of(hint)[0]), expected)
                rt._compile(expected, "t", warn=self.fail)

    def test_generic_builtins(self):
        for hint, expected in [
            (list[int], {"type": "array", "items": INTEGER}),
            (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
            (tuple[int, ...], {"type": "array", "items": INTEGER}),
            (set[str], {"type": "array", "items": STRING, "uniqueItems": True}),
            (
                list["Point"],
                {"type": "array", "items": POINT},
            ),
        ]:
            with self.subTest(hint=hint):
                hints = rt._Hints("t", globals())
                self.assertEqual(hints.of(hint)[0], expected)

    @unittest.skipIf(sys.version_info < (3, 10), "X | Y needs Python 3.10")
    def test_pep_604_union(self):
        self.assertEqual(
            rt._schema(int | str | None, "t"), {"anyOf": [INTEGER, STRING, NULL]}
        )

    def test_pep_604_in_quotes_on_an_old_python_names_the_parameter(self):
        space = module(FUTURE + "def f(a: int | None = None): ...\n")
        if sys.version_info >= (3, 10):
            expected = {"anyOf": [INTEGER, NULL], "default": None}
            self.assertEqual(arguments(space["f"])["properties"]["a"], expected)
        else:
            with self.assertRaisesRegex(rt.DefinitionError, r"'a'.*Optional\[X\]"):
                rt._Signature(space["f"], "tool 'f'")

    @unittest.skipIf(sys.version_info < (3, 12), "type statements need Python 3.12")
    def test_type_aliases_may_be_recursive(self):
        space = module(
            "type Id = int\ntype Json = str | list[Json]\n"
            "def f(a: Id, b: Json): return a, b\n"
        )
        schema = arguments(space["f"])
        self.assertEqual(schema["properties"]["a"], INTEGER)
        self.assertEqual(schema["properties"]["b"], {"$ref": "#/$defs/Json"})
        self.assertEqual(call(space["f"], {"a": 1.0, "b": ["x", ["y"]]})[0], 1)

    def test_required_and_not_required(self):
        try:
            from typing import NotRequired, Required
        except ImportError:
            self.skipTest("Required needs Python 3.11")
        for future in ("", FUTURE):
            space = module(
                future + "from typing import *\n"
                "class A(TypedDict, total=False):\n"
                "    a: Required[int]\n"
                "    b: int\n"
                "class B(TypedDict):\n"
                "    c: NotRequired[int]\n"
                "    d: 'int'\n"
            )
            with unittest.mock.patch.dict(sys.modules, scratch=Constraint(**space)):
                self.assertEqual(rt._schema(space["A"], "t")["required"], ["a"])
                self.assertEqual(rt._schema(space["B"], "t")["required"], ["d"])
        self.assertIsNot(Required, NotRequired)

    def test_an_inherited_typed_dict_and_quotes(self):
        schema = rt._schema(Sequel, "t")
        self.assertEqual(list(schema["properties"]), ["title", "year", "of"])
        self.assertEqual(schema["properties"]["of"], rt._schema(Movie, "t"))
        self.assertEqual(schema["required"], ["of"])

    def test_d08_recursive_types_alone_get_defs(self):
        tree = rt._schema(Tree, "t")
        self.assertEqual(tree["type"], "object")
        children = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
        self.assertEqual(tree["properties"]["children"], children)
        self.assertEqual(set(tree["$defs"]), {"Tree"})
        check = rt._compile(tree, "t")
        good = {"name": "a", "children": [{"name": "b", "color": "red"}]}
        self.assertIsNone(check(good))
        self.assertIn(
            "children[0].children[0].name: expected a string",
            check(
                {"name": "a", "children": [{"name": "b", "children": [{"name": 1}]}]}
            ),
        )
        made = rt._converter(Tree)(good)
        self.assertEqual(made, Tree("a", [Tree("b", [], Color.RED)]))
        self.assertEqual(
            rt._converter(Ping)({"pong": {"ping": {}}}), Ping(Pong(Ping()))
        )
        folder = {"name": "a", "inner": [{"name": "b", "inner": []}]}
        self.assertEqual(rt._converter(Folder)(folder), folder)

    def test_two_recursive_types_of_one_name(self):
        other = dataclasses.make_dataclass("Tree", [("next", Optional["Tree"], None)])
        schema = arguments(one(Tuple[Tree, other]))
        self.assertEqual(set(schema["$defs"]), {"Tree", "Tree_"})
        rt._compile(schema, "t")

    def test_pydantic_models_are_inlined(self):
        item = {"type": "object", "properties": {"n": INTEGER}}
        self.assertEqual(
            rt._schema(Model, "t"),
            {
                "type": "object",
                "properties": {
                    "item": {**item, "description": "One item"},
                    "items": {"type": "array", "items": item},
                },
                "required": ["item"],
            },
        )
        loop = rt._schema(LoopModel, "t")
        self.assertEqual(loop["properties"]["next"], {"$ref": "#/$defs/Node"})
        self.assertEqual(set(loop["$defs"]), {"Node"})
        self.assertIsNotNone(rt._compile(loop, "t")({"next": {"next": 1}}))

    def test_refused_hints_name_the_place(self):
        Holder = dataclasses.make_dataclass("Holder", [("inner", Plain)])
        for hint, words in [
            (Plain, ["tool 't', parameter 'value'", "Plain", "use str, int"]),
            (complex, ["complex"]),
            (typing.Callable[[int], str], ["Callable"]),
            (collections.abc.Hashable, ["Hashable"]),
            (Dict[int, str], ["strings", "int"]),
            (Holder, ["parameter 'value', Holder field 'inner'", "Plain"]),
            (List[Plain], ["Plain"]),
            (7, ["7"]),
            (enum.Enum("Odd", {"A": object()}), ["Odd", "object"]),
            (enum.Enum("Row", {"A": (1, 2)}), ["Row", "only strings"]),
            ("Missing", ["'Missing'", "not defined"]),
            ("1 +", ["1 +"]),
            ("typing.Nothing", ["typing.Nothing"]),
        ]:
            with self.subTest(hint=hint):
                with self.assertRaises(rt.DefinitionError) as caught:
                    arguments(one(hint))
                for word in words:
                    self.assertIn(word, str(caught.exception))


class Signatures(unittest.TestCase):
    """What is read from a handler: parameters, context, docstring, return type."""

    def test_d03_future_import_gives_the_same_schema(self):
        source = (
            "from typing import *\n"
            "def f(a: int, b: Optional[List[int]] = None, c: Literal['x', 'y'] = 'x',\n"
            "      d: Annotated[float, 'metres'] = 0.5, ctx: Context = None)"
            " -> Dict[str, int]: ...\n"
        )
        plain, future = (
            rt._Signature(module(head + source, Context=Context)["f"], "t")
            for head in ("", FUTURE)
        )
        for signature in (plain, future):
            self.assertEqual(signature.context, "ctx")
            self.assertEqual(signature.returns, Dict[str, int])
        schema, _ = rt._arguments(plain, "t")
        self.assertEqual(schema, rt._arguments(future, "t")[0])
        self.assertEqual(list(schema["properties"]), ["a", "b", "c", "d"])
        self.assertEqual(schema["required"], ["a"])
        self.assertEqual(
            schema["properties"]["d"],
            {"type": "number", "description": "metres", "default": 0.5},
        )

    def test_d04_optional_is_not_the_same_as_a_default(self):
        def f(
            a: Optional[int],
            b: Optional[int] = None,
            c: int = 3,
            d: Optional[str] = "x",
        ):
            return a, b, c, d

        schema = arguments(f)
        self.assertEqual(schema["required"], ["a"])
        self.assertEqual(schema["properties"]["c"], {"type": "integer", "default": 3})
        self.assertEqual(schema["properties"]["b"]["default"], None)
        self.assertEqual(call(f, {"a": None}), (None, None, 3, "x"))
        self.assertEqual(call(f, {"a": 1, "b": None}), (1, None, 3, "x"))
        check = rt._compile(schema, "t")
        self.assertEqual(check({"a": 1, "c": None}), "c: expected an integer, got null")
        self.assertEqual(check({}), "missing argument 'a'")

    def test_defaults_are_in_the_schema_only_if_they_fit_into_json(self):
        def f(
            a=object(), b=math.inf, c: int = None, d=Color.RED, e: Any = None, g=(1,)
        ): ...

        properties = arguments(f)["properties"]
        self.assertEqual(
            properties,
            {
                "a": {},
                "b": {},
                "c": INTEGER,
                "d": {"default": "red"},
                "e": {"default": None},
                "g": {"default": [1]},
            },
        )

    def test_tol_15_d07_root_is_a_closed_object(self):
        closed = {"type": "object", "properties": {}, "additionalProperties": False}
        self.assertEqual(arguments(lambda: 1), closed)
        self.assertNotIn("anyOf", arguments(one(Union[Point, Even])))

    def test_d06_callables_of_all_kinds(self):
        class Object:
            """Adds."""

            def __call__(self, x: int) -> int:
                return x + 1

            def method(self, x: int) -> int:
                """Of an object."""
                return x + 1

            def late(self, y, x: int) -> int:
                return x + y

            @classmethod
            def klass(cls, x: int) -> int:
                return x + 1

            @staticmethod
            def static(x: int) -> int:
                return x + 1

        def two(x: int, secret: str = "k") -> int:
            """Adds one."""
            return x + 1

        def keyword(*, x: int) -> int:
            return x + 1

        @functools.wraps(two)
        def wrapper(*args, **kwargs):
            return two(*args, **kwargs)

        thing = Object()
        only_x = {"x": INTEGER}
        for function, name, text in [
            (keyword, "keyword", ""),
            (thing, "Object", "Adds."),
            (thing.method, "method", "Of an object."),
            (Object.klass, "klass", ""),
            (Object.static, "static", ""),
            (functools.partial(two, secret="hidden"), "two", "Adds one."),
            (functools.partial(thing.late, 1), "late", ""),
            (functools.lru_cache(keyword), "keyword", ""),
        ]:
            with self.subTest(function=function):
                signature = rt._Signature(function, "t")
                self.assertEqual((signature.name, signature.description), (name, text))
                self.assertEqual(signature.returns, int)
                self.assertFalse(signature.is_async)
                self.assertEqual(arguments(function)["properties"], only_x)
                self.assertEqual(call(function, {"x": 1}), 2)
        self.assertEqual(list(arguments(wrapper)["properties"]), ["x", "secret"])
        lone = rt._Signature(lambda x: x, "t")
        self.assertEqual((lone.name, lone.returns), ("<lambda>", rt._NO_VALUE))

    def test_reserved_looking_names_are_plain_arguments(self):
        space = module("def f(self, _meta, class_, name, arguments): return class_\n")
        values = dict.fromkeys(("self", "_meta", "class_", "name", "arguments"), 1)
        self.assertEqual(call(space["f"], values), 1)

    def test_d06_refused_parameters_are_named(self):
        def stars(*rest): ...
        def double(a, **others): ...
        def slash(x, /): ...
        def both(a: Context, b: Context): ...
        def field(a: int = FieldInfo()): ...

        def generator():
            yield 1

        async def many():
            yield 1

        for function, words in [
            (stars, r"'\*rest'"),
            (double, r"'\*\*others'"),
            (slash, "'/x'"),
            (functools.partial(stars), r"'\*rest'"),
            (operator.add, "built-in function add.* is no Python function"),
            (dict.fromkeys, "is no Python function"),
            (Plain, "is no Python function"),
            (both, "'b'.*'a' is the Context"),
            (field, r"'a'.*Annotated\[type, Field"),
            (generator, "generator"),
            (many, "generator"),
            (type, "is no Python function"),
        ]:
            with self.subTest(function=function):
                with self.assertRaisesRegex(rt.DefinitionError, "tool 'f'.*" + words):
                    rt._Signature(function, "tool 'f'")

    def test_the_context_is_found_by_its_annotation(self):
        for hint in (
            Context,
            "Context",
            Optional[Context],
            Context[int],
            "Context[int]",
        ):
            with self.subTest(hint=hint):
                function = one(hint)
                signature = rt._Signature(function, "t")
                self.assertEqual(signature.context, "value")
                self.assertEqual(signature.parameters, [])

    def test_a_handler_with_a_schema_of_its_own_may_take_what_comes(self):
        signature = rt._Signature(lambda a, **rest: rest, "t", free=True)
        self.assertEqual([each.name for each in signature.parameters], ["a"])
        with self.assertRaises(rt.DefinitionError):
            rt._Signature(lambda *rest: rest, "t", free=True)

    def test_is_async_is_seen_through_decorators_and_objects(self):
        async def f(): ...

        class Object:
            async def __call__(self): ...

        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return f(*args, **kwargs)

        for function in (f, wrapper, functools.partial(f), Object(), Object().__call__):
            self.assertTrue(rt._Signature(function, "t").is_async)

    def test_local_classes_and_empty_cells(self):
        @dataclasses.dataclass
        class Local:
            n: int

        def outer():
            def f(a: "Local"):
                return later, Local, a  # `later` is not assigned yet

            signature = rt._Signature(f, "t")
            later = 1
            return signature, later

        signature, _ = outer()
        self.assertIs(signature.parameters[0].annotation, Local)

    def test_quotes_are_read_in_the_module_of_the_class(self):
        scratch = Constraint(Here=int)
        with unittest.mock.patch.dict(sys.modules, scratch=scratch):
            base = module(
                FUTURE + "import dataclasses\n"
                "@dataclasses.dataclass\nclass Base:\n    a: Here\n"
            )
            Child = dataclasses.make_dataclass(
                "Child", [("next", Optional["Child"], None)], bases=(base["Base"],)
            )
            schema = rt._schema(Child, "t")
        self.assertEqual(schema["properties"]["a"], INTEGER)
        self.assertIn("anyOf", schema["properties"]["next"])

    def test_docstrings(self):
        def f(a: int, b: Annotated[str, "wins"], c: float = 1.0):
            """Set the valve.

              Indented more.

            Args:
                a (int, optional): Opening: in percent,
                    over two lines.

                    and a third
                b: ignored
                *c : with a star
                no colon here

            Returns:
                d: nothing
            """

        signature = rt._Signature(f, "t")
        self.assertEqual(signature.description, "Set the valve.\n\n  Indented more.")
        texts = {p.name: p.description for p in signature.parameters}
        self.assertEqual(texts["a"], "Opening: in percent, over two lines. and a third")
        self.assertEqual(texts["c"], "with a star no colon here")
        properties = arguments(f)["properties"]
        self.assertEqual(properties["b"], {"type": "string", "description": "wins"})
        for doc, expected in [
            ("", ("", {})),
            ("One line.", ("One line.", {})),
            (
                "\n    Starts late.\n\n    Arguments:\n        x: y\n",
                ("Starts late.", {"x": "y"}),
            ),
            ("\n  Args:\n    lost words\n    x:\n        y", ("", {"x": "y"})),
            ("Text\n\nParameters:\n  x: y\nOther\n  z: no", ("Text", {"x": "y"})),
        ]:
            with self.subTest(doc=doc):
                self.assertEqual(rt._docstring(doc), expected)


class Checker(unittest.TestCase):
    """TOL-05: what the model reads when an argument is wrong."""

    FORM = {
        "type": "object",
        "properties": {
            "text": STRING,
            "percent": {"type": "integer", "minimum": 0, "maximum": 100},
            "volts": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5},
            "on": {"type": "boolean"},
            "mode": {"enum": ["a", "b", 3]},
            "only": {"const": {"a": 1}},
            "name": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"},
            "points": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "uniqueItems": True,
                "items": {
                    "type": "object",
                    "properties": {"x": INTEGER},
                    "required": ["x"],
                    "additionalProperties": False,
                },
            },
            "step": {"multipleOf": 0.5},
            "maybe": {"anyOf": [INTEGER, NULL]},
            "odd name": {"type": ["string", "null"]},
            "bag": {"type": "object", "minProperties": 1, "maxProperties": 1},
        },
        "required": ["text"],
        "additionalProperties": False,
    }

    def test_sentences(self):
        check = rt._compile(self.FORM, "t")
        names = ", ".join(self.FORM["properties"])
        for values, sentence in [
            ({}, None),
            ({"percent": 5.0, "volts": 4.9, "maybe": None, "odd name": None}, None),
            ({"percent": 250}, "percent: expected an integer <= 100, got 250"),
            ({"percent": -1}, "percent: expected an integer >= 0, got -1"),
            ({"percent": 1.5}, "percent: expected an integer, got 1.5"),
            ({"percent": "5"}, 'percent: expected an integer, got the string "5"'),
            ({"percent": True}, "percent: expected an integer, got true"),
            ({"percent": None}, "percent: expected an integer, got null"),
            ({"volts": 0}, "volts: expected a number > 0, got 0"),
            ({"volts": 5}, "volts: expected a number < 5, got 5"),
            ({"volts": math.nan}, "volts: expected a number, got NaN"),
            ({"volts": math.inf}, "volts: expected a number, got Infinity"),
            ({"on": "yes"}, 'on: expected true or false, got the string "yes"'),
            ({"on": 1}, "on: expected true or false, got 1"),
            ({"mode": "c"}, 'mode: expected one of "a", "b", 3, got the string "c"'),
            ({"mode": []}, 'mode: expected one of "a", "b", 3, got the array []'),
            ({"only": {"a": 2}}, 'only: expected {"a": 1}, got the object {"a": 2}'),
            (
                {"name": "a"},
                'name: expected a string of at least 2 characters, got the string "a"',
            ),
            (
                {"name": "abcd"},
                "name: expected a string of at most 3 characters, got the string"
                ' "abcd"',
            ),
            (
                {"name": "ba"},
                "name: expected a string of at most 4096 characters that matches ^a,"
                ' got the string "ba"',
            ),
            (
                {"points": []},
                "points: expected an array of at least 1 items, got the array []",
            ),
            ({"points": {}}, "points: expected an array, got the object {}"),
            (
                {"points": [{"x": 1}, {"x": 1.0}]},
                "points: expected an array without repeated items, got the array"
                ' [{"x": 1}, {"x": 1.0}]',
            ),
            (
                {"points": [{"x": 1}, {"x": 2}, {"x": "3"}]},
                'points[2].x: expected an integer, got the string "3"',
            ),
            ({"points": [{}]}, "points[0]: missing property 'x'"),
            (
                {"points": [{"x": 1, "y": 2}]},
                "points[0]: unexpected property 'y'; known: x",
            ),
            (
                {"step": 0.7},
                "step: expected a number that is a multiple of 0.5, got 0.7",
            ),
            ({"maybe": "x"}, 'maybe: expected an integer or null, got the string "x"'),
            ({"odd name": 1}, "['odd name']: expected a string or null, got 1"),
            (
                {"bag": {}},
                "bag: expected an object of 1 properties or more, got the object {}",
            ),
            (
                {"bag": {"a": 1, "b": 2}},
                "bag: expected an object of at most 1 properties, got the object"
                ' {"a": 1, "b": 2}',
            ),
            (
                {"metadata": {"x": 1}},
                f"unexpected argument 'metadata'; this tool takes: {names}",
            ),
        ]:
            with self.subTest(values=values):
                self.assertEqual(check({"text": "t", **values}), sentence)
        self.assertEqual(check({"on": True}), "missing argument 'text'")
        self.assertEqual(check([]), "expected an object, got the array []")
        self.assertEqual(check("x"), 'expected an object, got the string "x"')

    def test_d10_unexpected_arguments(self):
        def echo(text: str, ctx: Context): ...

        check = rt._compile(arguments(echo), "t")
        for name in ("metadata", "ctx", "self"):
            self.assertEqual(
                check({"text": "a", name: 1}),
                f"unexpected argument {name!r}; this tool takes: text",
            )
        self.assertEqual(
            rt._compile(arguments(lambda: 1), "t")({"a": 1}),
            "unexpected argument 'a'; this tool takes: nothing",
        )
        result = rt._compile(POINT, "t", noun="property")
        self.assertEqual(result({"z": 1}), "unexpected property 'z'; known: x, y, tags")

    def test_d01_strings_stay_what_they_are(self):
        for text in ("12345", "007", "null", "true", "[1]", "1e3", "{}", " ", ""):
            for hint in (str, Optional[str], Union[str, int], Union[int, str]):
                self.assertEqual(call(one(hint), {"value": text}), text)

    def test_d02_strings_are_not_made_into_other_types(self):
        def f(xs: List[int], n: int, d: dict, on: bool): ...

        good = {"xs": [1], "n": 1, "d": {}, "on": True}
        check = rt._compile(arguments(f), "t")
        self.assertIsNone(check(good))
        for name, text in [
            *(("xs", "[1271, 2106]"), ("n", "2000"), ("d", '{"a":1}'), ("on", "true")),
            *(("n", "20x"), ("n", " 5 "), ("n", "0x10"), ("on", "yes")),
        ]:
            wrong = check({**good, name: text})
            self.assertRegex(wrong, f"^{name}: expected .*, got the string ")

    def test_sentences_stay_short(self):
        long = "x" * 1_000_000
        for schema, value in [
            (INTEGER, long),
            (INTEGER, [long]),
            (INTEGER, {long: 1}),
            ({"additionalProperties": INTEGER}, {long: "a"}),
            ({"additionalProperties": False}, {long: "a"}),
            ({"required": ["a" * 200] * 100}, {}),
            ({"enum": [long, long + "y"]}, 1),
            ({"enum": [*range(1000)]}, "a"),
            ({"not": {"enum": [long, 1]}}, 1),
            ({"contains": {"enum": [long, 1]}}, []),
            ({"properties": {str(i) * 99: {} for i in range(99)},
              "additionalProperties": False}, {"a": 1}),
            ({"anyOf": [{"const": i} for i in range(1000)]}, "a"),
            ({"pattern": "a" * 5000}, "b"),
        ]:  # fmt: skip
            wrong = rt._compile(schema, "t")(value)
            self.assertLess(len(wrong), 700, wrong[:100])
        nested = {}
        schema = {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"abcdefgh": {}}}}}
        schema["$defs"]["a"]["properties"]["abcdefgh"] = {"$ref": "#/$defs/a"}
        schema["$defs"]["a"]["maxProperties"] = 1
        value = nested
        for _ in range(40):
            value["abcdefgh"] = value = {}
        value.update(a=1, b=2)
        self.assertLess(len(rt._compile(schema, "t")(nested)), 400)

    def test_values_that_are_not_json_are_faults_not_crashes(self):
        check = rt._compile({"properties": {"a": {}, "b": INTEGER}}, "t")
        for value, words in [
            ({"a": object()}, "a: .* got object"),
            ({"b": Plain()}, "b: expected an integer.*, got Plain"),
            ({"b": [object()]}, "b: expected an integer, got the array array"),
            ({"b": (1,)}, "b: "),
            ({"a": math.nan}, "a: .* got NaN"),
        ]:
            self.assertRegex(check(value), words)
        self.assertIsNotNone(rt._compile(STRING, "t")(10**5000))
        check = rt._compile({"type": "object", "properties": {"a": {}}}, "t")
        self.assertIsNone(check({"a": 1, "b": object()}))
        self.assertRegex(check({"a": object()}), "^a: .* got object$")

    def test_b12_only_finite_numbers_are_numbers(self):
        for value in (math.nan, math.inf, -math.inf):
            for schema in (
                {"type": "number"},
                INTEGER,
                {"minimum": 0},
                {"multipleOf": 1},
            ):
                self.assertIsNotNone(rt._compile(schema, "t")(value))

    def test_numbers(self):
        for schema, value, valid in [
            (INTEGER, 1.0, True),
            (INTEGER, 1e300, True),
            (INTEGER, 10**400, True),
            (INTEGER, 1.5, False),
            ({"type": "number"}, True, False),
            ({"maximum": 300}, 300.0, True),
            ({"maximum": 9007199254740992}, 9007199254740993, False),
            ({"multipleOf": 0.01}, 4.35, True),
            ({"multipleOf": 0.0001}, 0.0075, True),
            ({"multipleOf": 0.0001}, 0.00751, False),
            ({"multipleOf": 0.123456789}, 1e308, False),
            ({"multipleOf": 1e-8}, 12391239123, True),
            ({"multipleOf": 3}, 10**400 - 1, True),
            ({"multipleOf": 1e300}, 5e-324, False),
            ({"multipleOf": 2.0}, -4, True),
        ]:
            with self.subTest(schema=schema, value=value):
                self.assertEqual(rt._compile(schema, "t")(value) is None, valid)

    def test_equality_is_that_of_json(self):
        values = [
            *(0, 1, True, False, None, "", "1", 1.5, -0.5, [], {}, [0], [False], [[]]),
            *({"a": 1}, {"a": True}, {"a": [1]}, {"a": None}, {"b": 1}, [1, 2], [2, 1]),
            *(2**70, 1e-300, ["["], "[", "{", ["{"], [{}], "0x1", ["0x1"]),
        ]
        same = {(0, 0.0), (1, 1.0), (2**70, float(2**70))}
        for i, left in enumerate(values):
            check = rt._compile({"const": left}, "t")
            for j, right in enumerate(values):
                self.assertEqual(check(right) is None, i == j, (left, right))
                unique = rt._compile({"uniqueItems": True}, "t")([left, right])
                self.assertEqual(unique is None, i != j, (left, right))
        for left, right in same:
            self.assertIsNone(rt._compile({"enum": [[left]]}, "t")([right]))

    def test_annotations_pass(self):
        schema = {
            **{
                "title": "t",
                "description": 1,
                "default": "x",
                "examples": [],
                "format": "ipv4",
            },
            **{
                "contentEncoding": "base64",
                "contentMediaType": "a/b",
                "contentSchema": 0,
            },
            **{"x-mcp-header": "Region", "enumNames": ["a"], "discriminator": {}},
            **{"deprecated": True, "readOnly": True, "$comment": "c"},
            "$schema": "https://json-schema.org/draft/2020-12/schema#",
        }
        self.assertIsNone(rt._compile(schema, "t", warn=self.fail)("not an address"))

    def test_unknown_keywords_are_warnings(self):
        found = []
        check = rt._compile(
            {"properties": {"a": {"minimun": 3, "nullable": True}}},
            "tool 'f'",
            found.append,
        )
        self.assertIsNone(check({"a": 1}))
        self.assertEqual(
            found,
            [
                "tool 'f': schema at #/properties/a: unknown keyword 'minimun'",
                "tool 'f': schema at #/properties/a: unknown keyword 'nullable'",
            ],
        )

    def test_sch_06_what_is_refused_at_registration(self):
        deep = {}
        for _ in range(80):
            deep = {"items": deep}
        for schema, words in [
            ({"type": "strng"}, "#/type.*strng"),
            ({"type": ["string", 5]}, "#/type"),
            ({"type": [{}]}, "#/type"),
            ({"type": []}, "#/type"),
            ({"type": 7}, "#/type.*7 is not a string or an array"),
            (
                {"properties": {"a": {"minimum": "3"}}},
                "#/properties/a/minimum.*a number",
            ),
            ({"properties": {"a": {"minimum": True}}}, "a number"),
            ({"properties": {"a": 5}}, "#/properties/a"),
            ({"properties": []}, "#/properties.*an object"),
            ({"minLength": "1"}, "#/minLength"),
            ({"multipleOf": 0}, "#/multipleOf"),
            ({"required": True}, "#/required.*a list of names"),
            ({"enum": "ab"}, "#/enum"),
            ({"anyOf": []}, "#/anyOf"),
            ({"anyOf": {}}, "#/anyOf"),
            ({"anyOf": ["a"]}, "#/anyOf/0"),
            ({"dependentRequired": {"a": "bc"}}, "dependentRequired/a"),
            ({"items": [{}]}, "prefixItems"),
            ({"additionalItems": False}, "additionalItems.*prefixItems"),
            ({"dependencies": {}}, "dependentRequired"),
            ({"exclusiveMinimum": True}, "exclusiveMinimum.*limit itself"),
            ({"id": "a"}, r"\$id"),
            ({"$recursiveRef": "#"}, r"\$dynamicRef"),
            ({"$ref": 5}, r"#/\$ref"),
            ({"$id": 5}, r"#/\$id"),
            ({"pattern": "("}, "pattern"),
            ({"patternProperties": {"[": {}}}, "pattern"),
            ("string", "must be an object"),
            (deep, "nested too deeply"),
        ]:
            with self.subTest(schema=schema):
                with self.assertRaisesRegex(
                    rt.DefinitionError, "^tool 'f': .*" + words
                ):
                    rt._compile(schema, "tool 'f'")

    def test_sch_02_other_dialects_are_refused(self):
        for dialect in ("x:y", "http://json-schema.org/draft-07/schema#"):
            for schema in ({"$schema": dialect}, {"items": {"$schema": dialect}}):
                with self.assertRaisesRegex(
                    rt.DefinitionError, "only https://.*2020-12"
                ):
                    rt._compile(schema, "t")

    def test_sch_03_nothing_is_fetched(self):
        for ref in (
            *("https://example.com/a.json", "other.json", "#/$defs/none", "#none"),
            *("#/allOf/1", "#/allOf/x", "#/title/0", "http://[", "#/$defs/a/b"),
        ):
            schema = {"allOf": [{"$ref": ref}], "title": "t", "$defs": {"a": {}}}
            with self.subTest(ref=ref):
                with self.assertRaisesRegex(rt.DefinitionError, "^t: .*"):
                    rt._compile(schema, "t")

    def test_required_names_are_strings(self):
        """Found when the schema is read, not when a value is held against it."""
        for names in ([{}], ["a", []], [None]):
            for schema in ({"required": names}, {"dependentRequired": {"a": names}}):
                with self.assertRaisesRegex(rt.DefinitionError, "^t: .*required"):
                    rt._compile(schema, "t")


class Bounds(unittest.TestCase):
    """SCH-04, B06: no schema and no value costs more than a bounded amount of work."""

    def test_nested_any_of_bomb(self):
        schema = {"type": "integer"}
        for _ in range(25):
            schema = {"anyOf": [{"allOf": [schema]}, {"not": {"not": schema}}]}
        wrong = rt._compile(schema, "t")("x")
        self.assertIn("too many alternatives", wrong)

    def test_bomb_through_references(self):
        twice = {
            "anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "minItems": 9}]
        }
        value = 1
        for _ in range(40):
            value = [value]
        self.assertIsNotNone(
            rt._compile({"type": "array", "minItems": 1, **twice}, "t")(value)
        )

    def test_large_values_are_fine(self):
        check = rt._compile({"items": {"properties": {"a": {"items": INTEGER}}}}, "t")
        self.assertIsNone(check([{"a": [1, 2, 3]}] * 30_000))
        self.assertIsNone(check([{}] * 150_000))
        self.assertIsNone(rt._compile({"uniqueItems": True}, "t")([*range(100_000)]))

    def test_numbers_made_to_collide_do_not_slow_unique_items(self):
        # Multiples of the modulus of hash(): as plain keys this takes minutes.
        modulus = sys.hash_info.modulus
        values = [modulus * n for n in range(50_000)]
        self.assertEqual(len({*map(hash, values)}), 1)
        self.assertIsNone(rt._compile({"uniqueItems": True}, "t")(values))

    def test_endless_references(self):
        for schema in (
            {"$ref": "#"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        ):
            self.assertIn("nested too deeply", rt._compile(schema, "t")({"a": 1}))
        schema = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}
        self.assertIn("nested too deeply", rt._compile(schema, "t")({"a": 1}))

    def test_deep_values(self):
        tree = {"properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#"}}}}
        check = rt._compile(tree, "t")
        for levels, valid in ((60, True), (5000, False)):
            value = {}
            for _ in range(levels):
                value = {"a": value}
            self.assertEqual(check(value) is None, valid)
        value = []
        for _ in range(100_000):
            value = [value]
        self.assertIn("array", rt._compile(INTEGER, "t")(value))
        self.assertIsNotNone(rt._compile({"const": 1}, "t")(value))
        while value:  # taken apart by hand: freeing it at once is deep as well
            value = value.pop()

    def test_own_limits(self):
        limits = rt.Limits(schema_work=3, pattern_text=2, schema_depth=1)
        with self.assertRaises(rt.DefinitionError):
            rt._compile({"items": {"items": {}}}, "t", None, limits)
        check = rt._compile({"items": {"pattern": "a"}}, "t", None, limits)
        self.assertIn("at most 2 characters", check(["aaa"]))
        check = rt._compile({"allOf": [{"minimum": 0}] * 50}, "t", None, limits)
        self.assertIn("too many", check(1))

    def test_pattern_text_is_capped(self):
        check = rt._compile({"pattern": "^(a+)+$"}, "t")
        self.assertIn("at most 4096 characters", check("a" * 4097))
        check = rt._compile({"patternProperties": {"^a": False}}, "t")
        self.assertIsNone(check({"a" * 5000: 1}))
        self.assertIsNotNone(check({"a" * 50: 1}))


class Patterns(unittest.TestCase):
    """ECMA-262 with the u flag, in Python's terms."""

    TABLE = [
        # pattern, texts that match, texts that do not
        ("a", ["xay"], ["b"]),
        ("^a$", ["a"], ["a\n", "b"]),
        (r"^\d\D\w\W$", ["1aé-"[0:2] + "a-"], ["٣aa-", "11a-", "1aé-"]),
        (r"^[\d\w-]+$", ["a1_-"], ["é", "٣"]),
        (r"^\s$", [" ", "\u00a0", "\ufeff", "\u2029", "\t"], ["\x1c", "\x85", "a"]),
        (r"^\S$", ["a", "\x1c", "\x85", "\U0001f600"], [" ", "\ufeff", "\u3000"]),
        (r"^[\s\S]$", ["a", " ", "\ufeff", "\n", "\U0001f600"], [""]),
        (r"^[^\s]$", ["a"], ["\ufeff"]),
        (r"^[^\S]$", ["\ufeff"], ["a"]),
        (r"^[\sa]+$", ["a \u00a0"], ["b"]),
        ("^.$", ["a", "\x85"], ["\n", "\r", "\u2028"]),
        (r"^\/\-\.\$$", ["/-.$"], ["a"]),
        (r"^\cJ\cj$", ["\n\n"], ["cJ"]),
        (r"^\x41\u0042\u{43}\u{1F600}$", ["ABC\U0001f600"], ["a"]),
        (r"^\uD83D\uDE00$", ["\U0001f600"], [""]),
        (r"^[\uD83D\uDE00-\u{1F610}]$", ["\U0001f605"], ["\ud83d"]),
        (r"^\0[\0]$", ["\0\0"], ["0"]),
        (r"^[\b]\bx", ["\bx"], ["b"]),
        (r"\Bx", ["ax"], ["x"]),
        (r"^(?<year>\d{4})-\k<year>$", ["2000-2000"], ["2000-2001"]),
        (r"^(a)(b)\2\1$", ["abba"], ["abab"]),
        (r"(?<=a)b(?!c)(?:d)(?=e)", ["abde"], ["abd", "bde"]),
        (r"(?<!a)b", ["cb"], ["ab"]),
        ("^a{2}b{1,}c{0,1}?$", ["aab", "aabbc"], ["ab"]),
        ("^{a}]$", ["{a}]"], ["a"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^[[&&||~~^]+$", ["[&|~^"], ["a"]),
        ("^[^]$", ["a", "\n"], [""]),
        ("[]", [], ["", "a"]),
        ("^[]a]", [], ["]", "a]"]),
        ("^[a-c-]+$", ["ab-"], ["d"]),
        (r"^[\]\\]+$", ["]\\"], ["a"]),
        (r"^[\u0041-\x43]$", ["B"], ["D"]),
        (r"^\w+@\w+\.\w{2,}$", ["a@b.cd"], ["a@b.c"]),
        ("^#&%~ -$", ["#&%~ -"], [""]),
        ("é|ü", ["ü"], ["u"]),
    ]

    def test_translated(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for pattern, matching, others in self.TABLE:
                check = rt._compile({"pattern": pattern}, "t")
                for text in matching:
                    self.assertIsNone(check(text), (pattern, text))
                for text in others:
                    self.assertIsNotNone(check(text), (pattern, text))

    def test_refused(self):
        for pattern in (
            *(
                "(",
                "[",
                "[a",
                "a**",
                "a++",
                "a*+",
                "a?+",
                "a{2}+",
                "*",
                "(?P<a>b)",
                "(?i)a",
            ),
            *(
                "(?#c)",
                "(?>a)",
                r"\A",
                r"\Z",
                r"\z",
                r"\a",
                r"\p{L}",
                r"\e",
                r"\k",
                r"\x1",
            ),
            *(r"\u12", r"\c1", r"[\w-a]", r"[a-\d]", r"[\s-a]", r"[a-\s]", r"[\S-a]"),
            *(
                r"[a-\S]",
                "[z-a]",
                "[+--]",
                r"\u{110000}",
                r"[\1]",
                r"[\B]",
                "(?<n>a)(?<n>b)",
            ),
            *("(?<=a+)b", r"\2(a)", "\\", r"[\k<a>]"),
        ):
            with self.subTest(pattern=pattern):
                with self.assertRaisesRegex(
                    rt.DefinitionError, "^t: schema at pattern "
                ):
                    rt._compile({"pattern": pattern}, "t")


class Keywords(unittest.TestCase):
    """SCH-05: the corners of 2020-12; `make schema-suite` has all of them."""

    NODE = {"$dynamicAnchor": "node", "type": "object"}
    TABLE = [
        # schema, valid, invalid
        (True, [1, None], []),
        (False, [], [1, {}]),
        ({}, [1, {}, None], []),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, "x"], [0, 3]),
        ({"oneOf": [{"minimum": 2}, INTEGER]}, [1, 2.5], [3, 1.5]),
        ({"not": {"type": "string"}}, [1], ["a"]),
        (
            {"if": {"minimum": 5}, "then": {"multipleOf": 2}, "else": {"const": 1}},
            [6, 1],
            [7, 2],
        ),
        ({"if": {"minimum": 5}}, [1, 9], []),
        (
            {"prefixItems": [INTEGER], "items": STRING},
            [[], [1], [1, "a"]],
            [["a"], [1, 2]],
        ),
        ({"prefixItems": [INTEGER]}, [[1, "x"], {}], [["x", 1]]),
        ({"contains": INTEGER}, [[1, "a"], "x"], [[], ["a"]]),
        (
            {"contains": INTEGER, "minContains": 2, "maxContains": 3},
            [[1, 2]],
            [[1], [1] * 4],
        ),
        ({"contains": INTEGER, "minContains": 0}, [[]], []),
        ({"minContains": 5}, [[]], []),
        ({"patternProperties": {"^a": INTEGER}}, [{"b": "x", "ab": 1}], [{"ab": "x"}]),
        (
            {
                "properties": {"a": {}},
                "patternProperties": {"^b": {}},
                "additionalProperties": INTEGER,
            },
            [{"a": "x", "bb": "x", "c": 1}],
            [{"c": "x"}],
        ),
        ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}, 5], [{"abc": 1}]),
        (
            {"dependentRequired": {"a": ["b"]}},
            [{"b": 1}, {"a": 1, "b": 1}, 3],
            [{"a": 1}],
        ),
        (
            {"dependentSchemas": {"a": {"maxProperties": 1}}},
            [{"a": 1}, 3],
            [{"a": 1, "b": 1}],
        ),
        ({"enum": []}, [], [1, None]),
        ({"enum": ["a"], "const": "a", "type": "string"}, ["a"], ["b", 1]),
        ({"$ref": "#/$defs/a%20~1~0", "$defs": {"a /~": INTEGER}}, [1], ["a"]),
        ({"$ref": "#/unknown/0", "unknown": [{"minimum": 3}]}, [3], [2]),
        ({"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": INTEGER}}, [5], ["a", 6]),
        ({"$ref": "#/$defs/a", "$defs": {"a": False}}, [], [1]),
        ({"$ref": "#a", "$defs": {"x": {"$anchor": "a", "minimum": 2}}}, [2], [1]),
        (
            {
                "$id": "http://x/a/",
                "$ref": "b.json",
                "$defs": {"b": {"$id": "b.json#", **INTEGER}},
            },
            [1],
            ["a"],
        ),
        (
            {
                "$id": "urn:x:root",
                "properties": {
                    "a": {"$ref": "urn:x:b#/$defs/c"},
                    "d": {"$ref": "#/$defs/c"},
                },
                "$defs": {
                    "b": {"$id": "urn:x:b", "$defs": {"c": INTEGER}},
                    "c": STRING,
                },
            },
            [{"a": 1, "d": "x"}],
            [{"a": "x"}, {"d": 1}],
        ),
        (
            {
                "$id": "http://x/strict",
                "$dynamicAnchor": "node",
                "$ref": "tree",
                "unevaluatedProperties": False,
                "$defs": {
                    "tree": {
                        "$id": "tree",
                        "$dynamicAnchor": "node",
                        "properties": {
                            "data": True,
                            "children": {"items": {"$dynamicRef": "#node"}},
                        },
                    }
                },
            },
            [{"children": [{"data": 1}]}],
            [{"children": [{"daat": 1}]}],
        ),
        (
            {"$dynamicRef": "#a", "$defs": {"x": {"$anchor": "a", **INTEGER}}},
            [1],
            ["a"],
        ),
        ({"$dynamicRef": "#/$defs/x", "$defs": {"x": False}}, [], ["a"]),
        (
            {
                "properties": {"a": {}},
                "patternProperties": {"^p": {}},
                "anyOf": [
                    {"properties": {"b": {}}, "required": ["b"]},
                    {"properties": {"c": {}}, "required": ["c"]},
                    {"properties": {"d": {}, "e": INTEGER}, "required": ["e"]},
                ],
                "dependentSchemas": {"a": {"properties": {"f": {}}}},
                "not": {"properties": {"z": {}}, "required": ["z"]},
                "unevaluatedProperties": INTEGER,
            },
            [{"a": "x", "b": "x", "p": "x", "f": "x", "u": 1}, {"b": "", "c": ""}],
            [
                {"b": 1, "c": "x", "d": "x"},
                {"c": "x", "f": "x"},
                {"c": 1, "d": "x", "e": ""},
            ],
        ),
        (
            {
                "prefixItems": [True],
                "if": {"prefixItems": [True, INTEGER]},
                "contains": {"const": "c"},
                "unevaluatedItems": False,
            },
            [["c"], ["c", 1], ["x", 1, "c", "c"]],
            [["c", "x"], ["x", 1, "c", "d"]],
        ),
        (
            {"allOf": [{"unevaluatedItems": STRING}], "unevaluatedItems": False},
            [[], ["a"]],
            [[1]],
        ),
        (
            {"additionalProperties": True, "unevaluatedProperties": False},
            [{"a": 1}],
            [],
        ),
        (
            {
                "allOf": [{"items": INTEGER}],
                "oneOf": [{"minItems": 2}, {"maxItems": 1}],
                "unevaluatedItems": False,
            },
            [[1], [1, 2]],
            [["a"]],
        ),
        ({"type": ["integer", "string"], "minimum": 3}, [3, "a"], [2, None, 3.5]),
    ]

    def test_table(self):
        for schema, valid, invalid in self.TABLE:
            check = rt._compile(schema, "t")
            for value in valid:
                self.assertIsNone(check(value), (schema, value))
            for value in invalid:
                self.assertIsNotNone(check(value), (schema, value))

    def test_which_alternative_is_reported(self):
        wide = {"anyOf": [NULL, POINT, {"type": "string"}]}
        for value, sentence in [
            (5, "expected null or an object or a string, got 5"),
            ({}, "missing property 'x'"),
            ({"x": "a"}, 'x: expected an integer, got the string "a"'),
        ]:
            self.assertEqual(rt._compile(wide, "t")(value), sentence)
        several = rt._compile({"oneOf": [INTEGER, {"minimum": 0}, STRING]}, "t")
        self.assertIn("one of 3 schemas, not 2", several(3))

    def test_a_root_that_is_no_object_never_takes_the_short_way(self):
        for schema in (
            {"type": "string", "properties": {"a": {}}},
            {"type": "object", "properties": {"a": {}}, "const": 1},
            {"type": "object", "properties": {}, "maxProperties": 0},
            {"type": "object", "properties": {"a": {}}, "minProperties": 2},
            {
                "type": "object",
                "properties": {"a": {}},
                "patternProperties": {"a": False},
            },
            {"type": "object", "properties": {"a": {}}, "not": {"required": ["a"]}},
        ):
            self.assertIsNotNone(rt._compile(schema, "t")({"a": 1}), schema)

    def test_sch_05_the_schema_of_the_conformance_suite(self):
        check = rt._compile(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "$defs": {
                    "address": {
                        "$anchor": "addressDef",
                        "type": "object",
                        "properties": {"street": STRING},
                    }
                },
                "properties": {
                    "address": {"$ref": "#/$defs/address"},
                    "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                    "phone": STRING,
                    "email": STRING,
                },
                "allOf": [
                    {"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}
                ],
                "if": {"properties": {"contactMethod": {"const": "phone"}}},
                "then": {"required": ["phone"]},
                "else": {"required": ["email"]},
                "additionalProperties": False,
            },
            "t",
        )
        self.assertIsNone(check({"contactMethod": "phone", "phone": "1"}))
        self.assertEqual(
            check({"contactMethod": "phone", "email": "1"}), "missing property 'phone'"
        )


class Converters(unittest.TestCase):
    """Handlers get the annotated types, never dictionaries."""

    def test_values(self):
        when = datetime.datetime(2025, 1, 31, 12, 0, 0, 500000, datetime.timezone.utc)
        some_id = uuid.uuid4()
        for hint, value, expected in [
            (int, 5.0, 5),
            (int, 1e300, int(1e300)),
            (float, 5, 5.0),
            (str, "a", "a"),
            (bool, True, True),
            (None, None, None),
            (Any, {"a": 1}, {"a": 1}),
            (bytes, "aGk=", b"hi"),
            (bytearray, "", bytearray()),
            (Color, "red", Color.RED),
            (Level, 2.0, Level.HIGH),
            (Mixed, None, Mixed.NONE),
            (Literal["a", 1], 1.0, 1),
            (Literal[Color.RED], "red", Color.RED),
            (datetime.datetime, "2025-01-31T12:00:00.5Z", when),
            (datetime.datetime, "2025-01-31T14:00:00.500+02:00", when),
            (datetime.date, "2025-01-31", datetime.date(2025, 1, 31)),
            (datetime.time, "12:30", datetime.time(12, 30)),
            (uuid.UUID, str(some_id), some_id),
            (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
            (pathlib.Path, "a/b", pathlib.Path("a/b")),
            (List[int], [1.0, 2], [1, 2]),
            (List[str], ["a"], ["a"]),
            (list, [1.0], [1.0]),
            (set, [1], {1}),
            (typing.FrozenSet[Color], ["red"], frozenset([Color.RED])),
            (Tuple[int, ...], [1.0], (1,)),
            (Tuple[int, Color], [1, "red"], (1, Color.RED)),
            (tuple, ["a"], ("a",)),
            (Dict[str, Color], {"a": "red"}, {"a": Color.RED}),
            (Dict[Color, int], {"red": 1.0}, {Color.RED: 1}),
            (Dict[str, str], {"a": "b"}, {"a": "b"}),
            (Pair, [1], Pair(1, Color.RED)),
            (Pair, [1, "blue"], Pair(1, Color.BLUE)),
            (Movie, {"year": 1999.0}, {"year": 1999}),
            (Point, {"x": 1.0}, Point(1)),
            (List[Point], [{"x": 1, "tags": ["a"]}], [Point(1, tags=["a"])]),
            (Optional[Point], None, None),
            (Optional[Point], {"x": 1, "y": 2}, Point(1, 2.0)),
            (Optional[int], 0.0, 0),
            (Union[Point, Even], {"n": 2}, Even(2)),
            (Union[Even, Point], {"x": 2}, Point(2)),
            (Union[datetime.date, str], "soon", "soon"),
            (Union[int, str], 5.0, 5),
            (Union[Tree, Color], "red", Color.RED),
            (UserId, 5.0, 5),
            (Annotated[Color, "c"], "red", Color.RED),
        ]:
            with self.subTest(hint=hint, value=value):
                result = call(one(hint), {"value": value})
                self.assertEqual(result, expected)
                self.assertIs(type(result), type(expected))
                if type(result) is list:
                    self.assertEqual([*map(type, result)], [*map(type, expected)])

    def test_the_arguments_of_the_request_stay_as_they_came(self):
        values = {
            "value": {"x": 1.0, "tags": ["a"]},
        }
        bind = rt._arguments(rt._Signature(one(Point), "t"), "t")[1]
        self.assertEqual(bind(values), {"value": Point(1, tags=["a"])})
        self.assertEqual(values, {"value": {"x": 1.0, "tags": ["a"]}})
        self.assertIs(bind({}).__class__, dict)
        same = {"a": 1}
        bind = rt._arguments(rt._Signature(lambda a: a, "t"), "t")[1]
        self.assertIsNone(bind)
        bind = rt._arguments(rt._Signature(one(int), "t"), "t")[1]
        same = {"value": 5}
        self.assertIs(bind(same), same)

    def test_what_only_the_type_itself_refuses_is_a_tool_error(self):
        for hint, value, words in [
            (bytes, "aGk", r"^value: expected base64, got the string \"aGk\"$"),
            (bytes, "aG k=", "base64"),
            (bytes, "é", "base64"),
            (
                datetime.datetime,
                "soon",
                '^value: expected a date-time, got the string "soon"$',
            ),
            (uuid.UUID, "x", "expected a uuid"),
            (float, 10**400, "^value: "),
            (set, [[1]], "^value: .*unhashable"),
            (Even, {"n": 3}, "^value: 3 is odd$"),
            (List[Even], [{"n": 3}], "^value: 3 is odd$"),
            (
                dataclasses.make_dataclass("D", [("at", datetime.date)]),
                {"at": "x"},
                "^value: at: expected a date, ",
            ),
            (Model, {"item": {"n": 13}}, "^value: 13 is taken$"),
            (Union[datetime.date, uuid.UUID], "x", "^value: expected a uuid"),
        ]:
            with self.subTest(hint=hint):
                with self.assertRaisesRegex(rt.ToolError, words):
                    call(one(hint), {"value": value})
        with self.assertRaises(
            ValueError
        ):  # checked first, so this is a mistake of ours
            rt._converter(Union[Color, Level])("green")

    def test_pydantic_models_are_validated_by_themselves(self):
        made = call(one(Model), {"value": {"item": {"n": 1}}})
        self.assertIsInstance(made, Model)
        self.assertEqual(made.values, {"item": {"n": 1}})

    def test_nothing_to_convert(self):
        for hint in (
            str,
            bool,
            list,
            dict,
            Any,
            Optional[str],
            Dict[str, List[str]],
            None,
        ):
            self.assertIsNone(rt._converter(hint))


class Plainness(unittest.TestCase):
    """Handler results in JSON types."""

    def test_values(self):
        class Text(str):
            def __str__(self):
                return "no"

        class Whole(int):
            pass

        class Real(float):
            pass

        class Row:
            def keys(self):
                return ["a"]

            def __getitem__(self, name):
                return Color.RED

        class Index:
            def __index__(self):
                return 7

        for value, expected in [
            (1, 1),
            (None, None),
            (Text("a"), "a"),
            (Whole(1), 1),
            (Real(1.5), 1.5),
            (Color.RED, "red"),
            (Level.HIGH, 2),
            (Point(1, tags=["a"]), {"x": 1, "y": 0.5, "tags": ["a"], "size": 1}),
            (Pair(1), [1, "red"]),
            ((1, (2,)), [1, [2]]),
            ({"b", "a"}, ["a", "b"]),
            (frozenset([1]), [1]),
            ({("a", 1)}, [["a", 1]]),
            (b"hi", "aGk="),
            (bytearray(b"hi"), "aGk="),
            (memoryview(b"hi"), "aGk="),
            (datetime.date(2025, 1, 31), "2025-01-31"),
            (datetime.time(12), "12:00:00"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (pathlib.Path("a"), "a"),
            (decimal.Decimal("1.5"), 1.5),
            (Index(), 7),
            (Model(a=1), {"mode": "json", "by_alias": True, "a": 1}),
            (Row(), {"a": "red"}),
            (collections.OrderedDict(a=1), {"a": 1}),
            (collections.ChainMap({"a": 1}), {"a": 1}),
            (
                {1: 1, True and 2.5: 2, None: 3, Color.RED: 4, Text("t"): 5, False: 6},
                {"1": 1, "2.5": 2, "null": 3, "red": 4, "t": 5, "false": 6},
            ),
        ]:
            with self.subTest(value=value):
                result = rt._plain(value)
                self.assertEqual(result, expected)
                self.assertIs(type(result), type(expected))
        self.assertTrue(math.isnan(rt._plain(math.nan)))  # for the encoder to refuse

    def test_refused(self):
        loop = []
        loop.append(loop)
        for value, error, words in [
            (Plain(), TypeError, "a Plain has no JSON form"),
            ([1j], TypeError, "a complex"),
            ({(1, 2): 1}, TypeError, "a list cannot name"),
            (loop, ValueError, "contains itself"),
            ((item for item in ()), TypeError, "generator"),
            (Plain, TypeError, "a type"),
        ]:
            with self.subTest(value=type(value)):
                with self.assertRaisesRegex(error, words):
                    rt._plain(value)


class Outputs(unittest.TestCase):
    """TOL-06, TOL-07, D09: the outputSchema of a return annotation."""

    def test_schema_and_wrapping(self):
        point = rt._Hints("t", output=True).of(Point)[0]
        tree = rt._output(Tree, "t")[0]
        for hint, expected in [
            (rt._NO_VALUE, (None, False)),
            (None, (None, False)),
            (type(None), (None, False)),
            (Any, (None, False)),
            (Plain, (None, False)),
            (complex, (None, False)),
            (Dict[int, str], (None, False)),
            (Content, (None, False)),
            (List[Content], (None, False)),
            (Union[str, Content], (None, False)),
            (Annotated[Content, "x"], (None, False)),
            (int, (INTEGER, True)),
            (str, (STRING, True)),
            (List[int], ({"type": "array", "items": INTEGER}, True)),
            (list, (None, False)),  # it may hold content blocks
            (Optional[int], ({"anyOf": [INTEGER, NULL]}, True)),
            (Union[Point, Movie], ({"anyOf": [point, rt._schema(Movie, "t")]}, True)),
            (dict, ({"type": "object"}, False)),
            (
                Dict[str, int],
                ({"type": "object", "additionalProperties": INTEGER}, False),
            ),
            (Movie, (rt._schema(Movie, "t"), False)),
            (Point, (point, False)),
            (Model, (rt._schema(Model, "t"), False)),
            (Tree, (tree, False)),
            (Pair, (rt._schema(Pair, "t"), True)),
        ]:
            with self.subTest(hint=hint):
                self.assertEqual(rt._output(hint, "t"), expected)
        self.assertEqual(tree["type"], "object")
        scope = {"Here": int}
        self.assertEqual(
            rt._output(List[typing.ForwardRef("Here")], "t", scope)[0]["items"], INTEGER
        )

    def test_what_handlers_return_fits_their_schema(self):
        class Special(Point):
            pass

        for hint, value in [
            (Point, Point(1)),
            (Point, Special(1)),
            (Tree, Tree("a", [Tree("b")])),
            (Movie, {"title": "t", "director": "d"}),
            (Pair, Pair(1)),
            (typing.Set[str], {"b", "a"}),
            (Dict[str, Color], {"a": Color.RED}),
            (datetime.date, datetime.date(2025, 1, 31)),
            (bytes, b"x"),
        ]:
            check = rt._compile(rt._output(hint, "t")[0], "t", noun="property")
            self.assertIsNone(check(rt._plain(value)))


class Cost(unittest.TestCase):
    def test_a_typed_tool_loads_nothing(self):
        code = (
            "import sys, tinymcp\n"
            "rt = sys.modules[tinymcp.Server.__module__]\n"
            "def f(a: int, b: str = 'x', *, c: 'float' = 1, d: list = None) -> dict:\n"
            "    'Text.'\n"
            "sig = rt._Signature(f, 't')\n"
            "schema, bind = rt._arguments(sig, 't')\n"
            "assert rt._compile(schema, 't')({'a': 1}) is None\n"
            "assert rt._output(sig.returns, 't', sig.scope)[0]\n"
            "bad = {'typing', 'inspect', 'dataclasses', 'urllib', 'urllib.parse',\n"
            "       'datetime', 'uuid', 'pathlib', 'base64', 'decimal'}\n"
            "assert not bad & set(sys.modules), bad & set(sys.modules)\n"
        )
        root = os.path.dirname(os.path.dirname(rt.__file__))
        path = root if rt.__name__.count(".") else os.path.dirname(rt.__file__)
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_usual_call_takes_the_short_way(self):
        """The flat object of primitives: no node is entered, so no work is counted."""
        check = rt._compile(
            {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 0}, "b": STRING},
                "required": ["a"],
                "additionalProperties": False,
            },
            "t",
            None,
            rt.Limits(schema_work=0),
        )
        self.assertIsNone(check({"a": 1, "b": "x"}))
        self.assertEqual(check({"a": -1}), "a: expected an integer >= 0, got -1")


if __name__ == "__main__":
    unittest.main()
