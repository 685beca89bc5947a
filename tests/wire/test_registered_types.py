"""Instances of registered classes inside objects."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, NamedTuple

import pytest

from aiodist.errors import DistError, InvalidUsageError
from aiodist.wire.object_codec import SHORT_HEAD, ObjectCodec
from aiodist.wire.registered_types import TypeRegistry


@dataclass
class Point:
    x: int
    y: Any = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    values: tuple[int, ...]
    made: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.made.append("by post_init")


class Subpoint(Point):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


Plain = namedtuple("Plain", "a b")


class Color(enum.Enum):
    RED = object()
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Word(enum.StrEnum):
    YES = "yes"


class Octets(bytes, enum.Enum):
    ONE = b"1"


class Side(Pair, enum.Enum):
    LEFT = 1, 0


@dataclass(frozen=True)
class Size:
    width: int
    height: int


class Paper(Size, enum.Enum):
    A4 = 210, 297


@dataclass
class Failure(Exception):
    code: int


@dataclass
class Titled(dict[str, int]):
    title: str


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


def codec_of(*classes: type) -> ObjectCodec:
    types = TypeRegistry()
    for cls in classes:
        types.register(cls)
    return ObjectCodec(types=types)


CODEC = codec_of(Point, Frozen, Pair, Plain, Color, Level, Mode)


@pytest.mark.parametrize(
    "obj",
    [
        Point(1, [Point(2), None]),
        Frozen((1, 2)),
        Pair(Color.RED, {Color.BLUE: Level.HIGH}),
        Plain((1,), Pair(1, 2)),
        Mode.READ | Mode.WRITE,
        {Pair(1, 2): {Level.LOW}},
        [Point(n, str(n)) for n in range(20_000)],
        Point(1, list(range(20_000))),
        Pair(*[[Point(n, [n])] * 3000 for n in range(2)]),
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_instances_come_back_unchanged(obj: Any) -> None:
    back = CODEC.loads(CODEC.dumps(obj))
    assert back == obj
    assert type(back) is type(obj)


def test_members_of_enums_are_the_receivers_own() -> None:
    assert CODEC.loads(CODEC.dumps(Color.RED)) is Color.RED
    assert type(CODEC.loads(CODEC.dumps(Level.LOW))) is Level


@pytest.mark.parametrize("member", [Word.YES, Octets.ONE, Side.LEFT, Paper.A4], ids=str)
def test_members_of_enums_of_another_class_are_the_receivers_own(member: enum.Enum) -> None:
    """Strings, bytes and tuples have a way of their own to take an item, and dataclasses have fields."""
    codec = codec_of(type(member))
    assert codec.loads(codec.dumps(member)) is member


def test_no_initialiser_runs_at_the_receiver() -> None:
    frozen = Frozen((1,))
    back = CODEC.loads(CODEC.dumps(frozen))
    assert back.made == ["by post_init"]
    with pytest.raises(FrozenInstanceError):
        back.values = ()


def test_own_functions() -> None:
    types = TypeRegistry()
    types.register(Celsius, lambda c: {"degrees": c.degrees}, lambda d: Celsius(d["degrees"]))
    codec = ObjectCodec(types=types)
    back = codec.loads(codec.dumps([Celsius(36.6)]))
    assert back[0].degrees == 36.6
    types.register(Celsius, lambda _: 1 / 0, lambda _: None)
    with pytest.raises(
        TypeError, match=r"obj\[0\] cannot travel: the encode function of .*ZeroDiv"
    ):
        codec.dumps([Celsius(1)])
    types.register(Celsius, lambda c: c.degrees, lambda _: 1 / 0)
    with pytest.raises(DistError, match=r"Celsius that arrived cannot be decoded: ZeroDivision"):
        codec.loads(codec.dumps(Celsius(1)))


def test_a_decode_function_may_make_another_object_meanwhile() -> None:
    types = TypeRegistry()
    codec = ObjectCodec(types=types)
    inner = codec.dumps((1, {2}))[SHORT_HEAD:]

    def decode(degrees: float) -> Celsius:
        assert codec.load_short(inner) == (1, {2})
        return Celsius(degrees)

    types.register(Celsius, lambda it: it.degrees, decode)
    packed = codec.dumps((Celsius(20.5), "behind"))[SHORT_HEAD:]
    got, behind = codec.load_short(packed)
    assert (got.degrees, behind) == (20.5, "behind")


def test_an_interrupt_in_one_object_does_not_spoil_the_next() -> None:
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    types = TypeRegistry()
    codec = ObjectCodec(types=types)
    types.register(Celsius, lambda c: c.degrees, interrupted)
    sent = codec.dump_at_once((1, [Celsius(1)]))
    assert isinstance(sent, bytes)
    with pytest.raises(KeyboardInterrupt):
        codec.load_short(sent[SHORT_HEAD:])
    types.register(Celsius, interrupted, Celsius)
    with pytest.raises(KeyboardInterrupt):
        codec.dump_at_once((1, [Celsius(1)]))
    sent = codec.dump_at_once((1, [2]))
    assert isinstance(sent, bytes)
    assert codec.load_short(sent[SHORT_HEAD:]) == (1, [2])


@pytest.mark.parametrize("obj", [Point(1), Color.BLUE, Pair(1, 2), Mode.READ, Level.LOW])
def test_a_class_that_the_receiver_has_not_registered_is_not_made(obj: Any) -> None:
    """Its class is imported in this very process; its name in the message is not enough."""
    data = CODEC.dumps({"obj": obj})
    with pytest.raises(TypeError, match=r"register its class here too, with aiodist.register_type"):
        ObjectCodec().loads(data)
    with pytest.raises(TypeError, match="does not know"):
        ObjectCodec().loads(data, allow_pickle=True)


def test_a_class_that_the_sender_has_not_registered_is_refused() -> None:
    for obj in (Point(1), Color.BLUE, Pair(1, 2), Celsius(1)):
        with pytest.raises(TypeError, match=r"obj\[0\] is a .*register its class on all ranks"):
            ObjectCodec().dumps([obj])
    with pytest.raises(TypeError, match=r"Subpoint.*register its class"):
        CODEC.dumps(Subpoint(1))


def test_a_registered_class_is_not_pickled() -> None:
    data = CODEC.dumps(Point(1), allow_pickle=True)
    assert CODEC.loads(data) == Point(1)


@pytest.mark.parametrize("fields", [[1], [1, 2, 3], {"x": 1}, None, "ab", (1, 2)])
@pytest.mark.parametrize("cls", [Point, Pair])
def test_other_fields_than_the_receivers_are_refused(cls: type, fields: Any) -> None:
    other = TypeRegistry()
    name = f"{cls.__module__}.{cls.__qualname__}"
    other.register(Celsius, lambda _: fields, lambda _: None, name)
    data = ObjectCodec(types=other).dumps(Celsius(1))
    with pytest.raises(DistError, match="cannot be decoded: ValueError"):
        CODEC.loads(data)


def test_misuse() -> None:
    types = TypeRegistry()
    with pytest.raises(InvalidUsageError, match="no dataclass, enum or namedtuple: pass encode"):
        types.register(Celsius)
    with pytest.raises(InvalidUsageError, match="together"):
        types.register(Celsius, lambda c: c.degrees)
    with pytest.raises(TypeError, match="must be a class"):
        types.register(Point(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="encode must be a function of one argument, not 1"):
        types.register(Celsius, 1, lambda degrees: degrees)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decode must be a function of one argument, not 2"):
        types.register(Celsius, lambda c: c.degrees, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name must be a str, the same on all ranks, not 5"):
        types.register(Point, name=5)  # type: ignore[arg-type]
    types.register(Point, name="p")
    with pytest.raises(InvalidUsageError, match="'p' is registered for Point; pass another name"):
        types.register(Pair, name="p")


@pytest.mark.parametrize("cls", [int, str, type(None), list, dict, tuple, bytearray])
def test_a_class_that_travels_as_it_is_cannot_be_registered(cls: type) -> None:
    """Of a tuple, for example, the functions would be called for some instances and not for others."""
    with pytest.raises(InvalidUsageError, match=f"^{cls.__name__} travels as it is"):
        TypeRegistry().register(cls, repr, cls)


@pytest.mark.parametrize("cls", [Failure, Titled])
def test_a_dataclass_with_more_than_its_fields_needs_functions_of_its_own(cls: type) -> None:
    with pytest.raises(
        InvalidUsageError, match=f"{cls.__name__} has more than its fields .*: pass encode"
    ):
        TypeRegistry().register(cls)


def test_a_class_statement_that_runs_again_replaces_its_class() -> None:
    types = TypeRegistry()
    codec = ObjectCodec(types=types)

    def define() -> Any:
        @dataclass
        class Local:
            x: int

        types.register(Local)
        return Local

    first, second = define(), define()
    assert type(codec.loads(codec.dumps(second(1)))) is second
    with pytest.raises(TypeError, match="register its class"):
        codec.dumps(first(1))


def test_a_class_may_get_another_name() -> None:
    types = TypeRegistry()
    codec = ObjectCodec(types=types)
    types.register(Point)
    data = codec.dumps(Point(1))
    types.register(Point, name="p")
    with pytest.raises(TypeError, match="does not know"):
        codec.loads(data)
    assert codec.loads(codec.dumps(Point(1))) == Point(1)


def test_the_script_has_one_name_in_spawned_processes() -> None:
    types = TypeRegistry()
    spawned = type("Job", (Point,), {"__module__": "__mp_main__"})
    types.register(spawned)
    assert types.of_name("__main__.Job") is not None
