from __future__ import annotations

import enum
import math
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.errors import DistError, InvalidUsageError, ProtocolError
from aiodist.wire.object_codec import MAX_DEPTH, ObjectCodec
from aiodist.wire.object_encoder import EXT_ROW, LIST_ROW, SHORT_BYTES, STR_ROW
from aiodist.wire.object_types import BY_CODE, BY_TYPE, DICT_CODE

CODEC = ObjectCodec()


def same(a: Any, b: Any) -> bool:
    """Equal with exactly the same types all the way down, the bits of floats included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
            return False
        return len(a) == len(b) and all(
            same(k, m) and same(a[k], b[m]) for k, m in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple | deque):
        if isinstance(a, deque) and a.maxlen != b.maxlen:
            return False
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, datetime | time):
        return a == b and a.fold == b.fold and repr(a) == repr(b)
    return bool(a == b)


def there_and_back(obj: Any) -> Any:
    return CODEC.loads(CODEC.dumps(obj))


text = st.text(st.characters(), max_size=8)  # surrogates too
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-3)), timezone(timedelta(0), "Z")])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.complex_numbers(allow_nan=True)
    | text
    | st.binary(max_size=8)
    | st.just(...)
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
    | st.dates()
    | st.times(timezones=zones)
    | st.datetimes(timezones=zones)
    | st.timedeltas()
    | st.decimals(allow_nan=True).filter(lambda d: not d.is_snan())
    | st.fractions()
    | st.uuids()
    | st.sampled_from([PurePosixPath("a/b"), PureWindowsPath("c:/x"), Path("/tmp"), Path()])
)
hashable = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
objects = st.recursive(
    scalars | st.binary(max_size=8).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4).map(OrderedDict)
        | st.dictionaries(hashable, inner, max_size=4).map(lambda d: defaultdict(list, d))
        | st.builds(deque, st.lists(inner, max_size=4), st.none() | st.integers(0, 5))
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(objects)
def test_round_trip(obj):
    assert same(there_and_back(obj), obj)


@pytest.mark.parametrize(
    "obj",
    [
        2**63,
        2**64,
        -(2**63) - 1,
        10**5000,
        -1,
        0,
        math.nan,
        -0.0,
        complex(math.nan, -0.0),
        "",
        "\ud800 alone",
        b"",
        bytearray(),
        [],
        (),
        set(),
        frozenset(),
        {},
        ((),),
        [[]],
        ...,
        NotImplemented,
        {(1, (2, 3)): {"a": (1,)}, None: 1, 1.5: 2, b"k": 3, frozenset({1}): 4, "s": [{5}]},
        {"z": 1, "a": 2, "m": 3},
        {1: [None], 2: (True,), "x": False},
        range(2**70),
        slice(None),
        slice([1], (2,), {3}),
        deque([1, [2]], maxlen=3),
        OrderedDict([("b", 1), ("a", [2])]),
        Counter("hello"),
        defaultdict(None, {1: 2}),
        defaultdict(int, {(1,): 2}),
        defaultdict(set, {"a": {1}}),
        date(1, 1, 1),
        datetime(2024, 2, 29, 23, 59, 59, 999999, UTC, fold=1),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45), "NPT")),
        time(1, 2, 3, 4, fold=1),
        timedelta(-1, 1, 1),
        UTC,
        timezone(timedelta(seconds=-1)),
        Decimal("-0.00"),
        Decimal("sNaN123"),
        Fraction(-(2**80), 3),
        UUID(int=1),
        Path("/a/b"),
        PurePosixPath(),
        PureWindowsPath("c:\\x"),
        [1] * 100000,
        [{"n": n, "of": (n, [str(n)] * (n % 3)), "x": 2**70} for n in range(20)],
        [(n, [n]) if n % 2 else {"a": ()} for n in range(20)],
    ],
    ids=lambda o: type(o).__name__,
)
def test_examples(obj):
    assert same(there_and_back(obj), obj)


def test_every_record_has_its_own_code_and_a_test_value():
    assert len({record.code for record in BY_TYPE.values()}) == len(BY_TYPE)
    assert BY_CODE.keys() - {record.code for record in BY_TYPE.values()} == {DICT_CODE}


Point = namedtuple("Point", "x y")


class Color(enum.IntEnum):
    RED = 1


class MyDict(dict):
    pass


class Custom:
    def __eq__(self, other):
        return type(other) is Custom

    __hash__ = None


class Unloadable:
    def __reduce__(self):
        return int, ("not a number",)


@pytest.mark.parametrize(
    ("obj", "where", "what"),
    [
        (Custom(), "obj ", "Custom"),
        ({"model": [0, 1, 2, Custom()]}, "obj['model'][3] ", "Custom"),
        ((1, {"a": Point(1, 2)}), "obj[1]['a'] ", "Point"),
        ([*[{"a": (1, [2])}] * 20, {"a": (1, [Custom()])}], "obj[20]['a'][1][0] ", "Custom"),
        ([*[{"a": 1}] * 20, {Color.RED: 1}], "obj[20].keys()", "Color"),
        ([Color.RED], "obj[0] ", "Color"),
        ({"a": MyDict()}, "obj['a'] ", "MyDict"),
        ([len], "obj[0] ", "builtin_function_or_method"),
        ({1: lambda: 0}, "obj[1] ", "function"),
        ({Color.RED: 1}, "obj.keys()", "Color"),
        ({(1, Point(1, 2)): 1}, "obj.keys()", "Point"),
        ({Point(1, 2)}, "obj{...} ", "Point"),
        (OrderedDict(a=[Custom()]), "obj['a'][0] ", "Custom"),
        (deque([1, Custom()]), "obj[1] ", "Custom"),
        (defaultdict(Custom), "obj ", "default_factory"),
        (ValueError("x"), "obj ", "ValueError"),
        (memoryview(b"x"), "obj ", "memoryview"),
        (msgpack.ExtType(1, b""), "obj ", "ExtType"),
        (datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), "obj ", "ZoneInfo"),
        (int, "obj ", "type"),
    ],
)
def test_other_types_are_refused_with_their_place(obj, where, what):
    with pytest.raises(TypeError) as caught:
        CODEC.dumps(obj)
    message = str(caught.value)
    assert message.startswith(where)
    assert what in message
    assert "allow_pickle=True" in message


def test_the_place_behind_a_key_that_cannot_be_printed_has_its_type():
    with pytest.raises(TypeError, match=r"obj\[<int>\] is a object"):
        CODEC.dumps({10**5000: object()})


def test_the_arguments_name_is_in_the_message():
    with pytest.raises(TypeError, match=r"object_list\[2\] is a "):
        CODEC.dumps([1, 2, Custom()], name="object_list")


@pytest.mark.parametrize(
    "obj",
    [
        Custom(),
        [1, Point(1, 2), {"c": Color.RED}],
        {"a": MyDict(b=Point(3, 4))},
        {Point(1, 2): 1},
        defaultdict(OrderedDict, {1: MyDict()}),
        defaultdict(MyDict, {1: 2}),
        [len, int],
    ],
)
def test_pickle_where_both_sides_ask_for_it(obj):
    data = CODEC.dumps(obj, allow_pickle=True)
    back = CODEC.loads(data, allow_pickle=True)
    assert back == obj
    assert type(back) is type(obj)
    with pytest.raises(TypeError, match="pass allow_pickle=True here, or to init_process_group"):
        CODEC.loads(data)


def test_only_the_leaf_is_pickled():
    data = CODEC.dumps({"name": "plain", "leaf": Point(1, 2)}, allow_pickle=True)
    assert data.count(pickle.dumps(Point(1, 2))) == 1
    assert pickle.dumps("plain") not in data
    assert CODEC.dumps({"a": (1,)}, allow_pickle=True) == CODEC.dumps({"a": (1,)})


def test_nothing_is_unpickled_without_leave():
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    data = CODEC.dumps([Bomb()], allow_pickle=True)
    with pytest.raises(TypeError, match="pickled parts"):
        CODEC.loads(data)


def test_objects_that_pickle_refuses_are_refused():
    with pytest.raises(TypeError, match=r"obj\['f'\] is a function that cannot be pickled"):
        CODEC.dumps({"f": lambda: 0}, allow_pickle=True)
    data = CODEC.dumps(Unloadable(), allow_pickle=True)
    with pytest.raises(DistError, match="cannot be unpickled here"):
        CODEC.loads(data, allow_pickle=True)


def test_cycles():
    plain: list[Any] = [1]
    plain.append({"again": plain})
    with pytest.raises(InvalidUsageError, match=r"obj\[1\]\['again'\] contains itself"):
        CODEC.dumps(plain)
    mapping: dict[Any, Any] = {}
    mapping["k"] = (mapping,)
    with pytest.raises(InvalidUsageError, match=r"obj\['k'\]\[0\] contains itself"):
        CODEC.dumps(mapping)
    shared = [[]]
    assert there_and_back([shared, shared]) == [[[]], [[[]]][0]]


def nested(levels: int, wrap: Any) -> Any:
    obj: Any = 0
    for _ in range(levels):
        obj = wrap(obj)
    return obj


@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: {(1,): x}],
    ids=["list", "tuple", "dict", "pairs"],
)  # fmt: skip
def test_depth_is_bounded(wrap):
    deepest = nested(MAX_DEPTH, wrap)
    assert there_and_back(deepest) == deepest
    told = r"^obj[^.]{15,60}\.\.\.[^.]{15,60} is nested deeper than 200 levels"
    with pytest.raises(InvalidUsageError, match=told):
        CODEC.dumps(nested(MAX_DEPTH + 2, wrap))
    with pytest.raises(InvalidUsageError, match=told):
        CODEC.dumps(nested(100000, wrap))


def head_only(head: bytes) -> bytes:
    return struct.pack("<BIIQ", 3, 0, 0, len(head)) + head


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_garbage_heads(head):
    try:
        CODEC.loads(head_only(head))
    except (ProtocolError, TypeError) as exc:
        assert isinstance(exc, ProtocolError) or "allow_pickle" in str(exc)  # noqa: PT017


@settings(max_examples=200)
@given(objects, st.data())
def test_damaged_messages(obj, data):
    message = bytearray(CODEC.dumps(obj))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    try:
        CODEC.loads(message)
    except (ProtocolError, TypeError) as exc:
        assert isinstance(exc, ProtocolError) or "allow_pickle" in str(exc)  # noqa: PT017
    with pytest.raises(ProtocolError):
        CODEC.loads(bytes(message[:at]))


def ext(code: int, data: bytes) -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


def record(code: int, *fields: Any) -> list[Any]:
    return [ext(0, bytes((code,))), *fields]


@pytest.mark.parametrize(
    "tree",
    [
        ext(0, b"\x01"),
        ext(0, b""),
        ext(0, b"\xff"),
        [1, ext(0, b"\x01")],
        record(1, ext(0, b"\x02")),
        record(2, [1]),
        record(4, 10**9),
        record(5, "1", 2.0),
        record(6, 1, 2),
        record(6, 1, 2, 0),
        record(10, [], -1),
        record(11, []),
        record(12, "abc"),
        record(13, {}, "eval"),
        record(13, {}, []),
        record(20, 10**12, 0, 0),
        record(22, 0, 0, 0),
        record(25, "one"),
        record(25, "1e99999999999999999999"),
        record(26, 1, 0),
        record(26, "1e9999999", 1),
        record(27, b"short"),
        record(40, 1),
        record(40, [], 1),
        ext(64, b"\xff\xff\xff\xff"),
        ext(64, b""),
        ext(64, b"\x00\x00\x00\x00"),
        ext(99, b"\xff\xff\xff\xffabc"),
    ],
)
def test_wrong_records(tree):
    head = msgpack.packb(tree)
    with pytest.raises(ProtocolError):
        CODEC.loads(head_only(head))
    with pytest.raises(ProtocolError):
        CODEC.load_short(head)
    assert CODEC.load_short(msgpack.packb(record(1, 2))) == (2,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        head_only(b""),
        head_only(b"\xc1"),
        head_only(b"\x01\x02"),
        head_only(b"\x81\x90\x01"),
        head_only(b"\xdd\xff\xff\xff\xff" * 20),
        head_only(b"\xdf\xff\xff\xff\xff" * 20),
        head_only(b"\xc6\xff\xff\xff\xff"),
        head_only(b"\xc9\xff\xff\xff\xff\x02"),
        head_only(b"\x91" * 100000 + b"\x01"),
        head_only(b"\xa1\xff"),
        b"\x01" + head_only(b"\x01")[1:],
        struct.pack("<BIIQ", 3, 0xFFFFFFFF, 0, 1) + b"\x01",
        struct.pack("<BIIQ", 3, 0, 0xFFFFFFFF, 1) + b"\x01",
        struct.pack("<BIIQQ", 3, 1, 0, 1, 1) + b"\x01\x00",
        struct.pack("<BIIQ", 3, 0, 0, 2**63) + b"\x01",
        struct.pack("<BIIQQ", 3, 1, 0, 1, 2**63 | 5) + b"\x01",
        head_only(b"\x01") + b"\x00",
    ],
)
def test_wrong_messages(data):
    with pytest.raises(ProtocolError):
        CODEC.loads(data)


class Celsius:
    def __init__(self, degrees: bytes) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and other.degrees == self.degrees

    __hash__ = None


class CelsiusExtension:
    """Puts the degrees into a segment."""

    def encode(self, obj: Any) -> tuple[int, bytes, memoryview | None] | None:
        if type(obj) is not Celsius:
            return None
        if obj.degrees == b"melted":
            raise ValueError("it has melted")
        return 77, b"C", memoryview(obj.degrees)

    def decode(self, code: int, data: bytes, memory: memoryview | None, owned: bool) -> Any:
        if code != 77:
            return NotImplemented
        if data != b"C" or memory is None:
            raise ValueError("no temperature")
        return Celsius(bytes(memory))


def test_extensions_and_their_segments():
    codec = ObjectCodec([CelsiusExtension()])
    long = b"3" * (SHORT_BYTES + 1)
    obj = {"a": [Celsius(b"12"), (Celsius(b""), Celsius(long)), Celsius(long[1:])]}
    data = codec.dumps(obj)
    assert data.endswith(long)
    assert data.count(b"3") == 2 * SHORT_BYTES + 1  # the other one stands in the head
    assert codec.loads(data) == obj
    assert codec.loads(memoryview(bytearray(data))) == obj
    with pytest.raises(
        TypeError, match=r"obj\[0\] cannot travel: it has melted; pass allow_pickle"
    ):
        codec.dumps([Celsius(b"melted")])
    assert codec.loads(codec.dumps(Celsius(b"melted"), allow_pickle=True), allow_pickle=True)
    with pytest.raises(ProtocolError, match="code 77"):
        CODEC.loads(data)


def test_segments_are_used_once_each():
    codec = ObjectCodec([CelsiusExtension()])
    leaf = ext(77, b"\x00\x00\x00\x00C")
    for tree in ([leaf, leaf], []):
        head = msgpack.packb(tree)
        data = struct.pack("<BIIQQ", 3, 1, 0, len(head), 2) + head + b"12"
        with pytest.raises(ProtocolError):
            codec.loads(data)


ROW = ext(EXT_ROW, b"\x00\x00\x00\x00")


@pytest.mark.parametrize(
    ("tree", "row", "segment", "wrong"),
    [
        ([ROW, ROW], (STR_ROW, 0, 1), b"12", "row 0 is used twice"),
        ([], (STR_ROW, 0, 1), b"12", "parts are left over"),
        (ROW, (STR_ROW, 0, 2), b"12", "not an object of this version"),
        (ROW, (STR_ROW, 2**32 - 1, 2**32 - 1), b"12", "not an object of this version"),
        (ROW, (LIST_ROW, 0, 1), b"\x91\x01\x92\x01", "ends inside a piece"),
        (ROW, (LIST_ROW, 0, 1), b"\x80", "of another type"),
        (ROW, (LIST_ROW, 0, 1), msgpack.packb([1, ext(0, b"\x01")]), "parts are left over"),
    ],
)
def test_wrong_rows(tree, row, segment, wrong):
    head = msgpack.packb(tree)
    data = struct.pack("<BIIQQBII", 3, 1, 1, len(head), len(segment), *row) + head + segment
    with pytest.raises(ProtocolError, match=wrong):
        CODEC.loads(data)


def test_paths_of_either_kind_are_paths():
    assert type(there_and_back(Path("x"))) is type(Path("x"))
    assert isinstance(there_and_back(PureWindowsPath("x")), PurePath)


def test_import_brings_no_torch():
    code = "import sys, aiodist.wire.object_codec\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_codec_takes_little_memory() -> None:
    """Each group has one."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        codec = ObjectCodec()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 15
    assert codec.loads(codec.dumps("x" * 100_000)) == "x" * 100_000
