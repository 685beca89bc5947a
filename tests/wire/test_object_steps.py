"""Long objects are packed and unpacked in steps, each of bounded work."""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, deque
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.tensors import TensorExtension
from aiodist.wire import object_encoder
from aiodist.wire.object_codec import ObjectCodec, Packed, finished, read_envelope
from aiodist.wire.object_encoder import STEP, Encoder

CODEC = ObjectCodec([TensorExtension()])


def count(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """Take all steps; return how many there were, and what they made."""
    number = 1
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return number, stop.value
        number += 1


def received(packed: Packed) -> list[memoryview]:
    """Return the parts as a receiver has them, in memory of their own."""
    return [memoryview(bytearray(part)) for part in packed.parts]


def there_and_back(obj: Any) -> Any:
    packed = finished(CODEC.dump_steps(obj))
    envelope = read_envelope(memoryview(packed.envelope))
    back = finished(CODEC.load_steps(envelope, received(packed)))
    whole = CODEC.loads(CODEC.dumps(obj))
    assert repr(back) == repr(whole)
    return back


def tree(width: int, depth: int) -> Any:
    """Return a tree without any long container."""
    return [tree(width, depth - 1) for _ in range(width)] if depth else 7


LONG: dict[str, Any] = {
    "numbers": list(range(100_000)),
    "rows": [{"id": n, "name": f"row {n}", "value": n / 2} for n in range(20_000)],
    "lists": [[n, str(n)] for n in range(20_000)],
    "nested rows": [{"id": n, "tags": ["a", (n,)], "more": {"x": None}} for n in range(20_000)],
    "dict": {n: str(n) for n in range(50_000)},
    "dict of lists": {str(n): [n] * 5 for n in range(20_000)},
    "dict of tuples": {(n, str(n)): n for n in range(20_000)},
    "tuple": tuple(range(50_000)),
    "set": set(range(50_000)),
    "deque": deque(range(50_000), maxlen=60_000),
    "ordered": OrderedDict((n, n) for n in range(50_000)),
    "counter": Counter(range(50_000)),
    "bushy": tree(9, 5),
    "long in long": [list(range(20_000)), "x", {1: list(range(20_000))}] * 3,
    "text": "aä\N{SNOWMAN}" * 200_000,
    "lone surrogates": "\ud800\udc00" * 100_000,
    "texts": ["y" * 50_000] * 50,
    "bytes": bytes(range(256)) * 10_000,
    "bytearray": bytearray(3_000_000),
    "long keys": {"k" * 100_000: 1, ("t" * 70_000,): 2},
}


@pytest.mark.parametrize("name", LONG)
def test_long_objects_come_back_unchanged(name: str) -> None:
    obj = LONG[name]
    back = there_and_back({"one": obj, "two": [obj]})
    assert back == {"one": obj, "two": [obj]}
    assert type(back["one"]) is type(obj)
    if isinstance(obj, deque):
        assert back["one"].maxlen == obj.maxlen


def test_arrays_between_long_containers() -> None:
    obj = [[n, np.full(3, n)] for n in range(3000)] + [torch.arange(50_000.0), np.zeros(0)]
    back = there_and_back(obj)
    assert len(back) == len(obj)
    assert all(
        (one[1] == other[1]).all() for one, other in zip(back[:3000], obj[:3000], strict=True)
    )
    assert torch.equal(back[3000], obj[3000])


def test_many_short_arrays_take_many_steps_and_few_parts() -> None:
    obj = [np.full(10, n) for n in range(20_000)]
    n_steps, packed = count(CODEC.dump_steps(obj))
    envelope = read_envelope(memoryview(packed.envelope))
    n_back, back = count(CODEC.load_steps(envelope, received(packed)))
    assert min(n_steps, n_back) >= 20
    assert len(packed.parts) < 20
    assert all((one == other).all() for one, other in zip(back, obj, strict=True))


def test_a_long_container_is_not_looked_at_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0

    def types_of(value: Any) -> type:
        nonlocal seen
        seen += 1
        return type(value)

    monkeypatch.setattr(object_encoder, "type", types_of, raising=False)
    next(CODEC.dump_steps([{"id": n} for n in range(100_000)]))
    assert seen < 4 * STEP


@pytest.mark.parametrize("name", ["rows", "nested rows", "dict", "bushy", "texts", "text", "bytes"])
def test_long_objects_take_many_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step does more work than its bound, and no call of msgpack packs more than a block."""
    longest = 0
    pack = Encoder._pack

    def watched(self: Encoder, tree: Any) -> bytes:
        nonlocal longest
        packed = pack(self, tree)
        longest = max(longest, len(packed))
        return packed

    monkeypatch.setattr(Encoder, "_pack", watched)
    n_steps, packed = count(CODEC.dump_steps(LONG[name]))
    assert longest < 1 << 20
    envelope = read_envelope(memoryview(packed.envelope))
    assert len(packed.envelope) < 1 << 20
    n_back, _ = count(CODEC.load_steps(envelope, received(packed)))
    assert min(n_steps, n_back) >= (3 if name in ("text", "bytes") else 8) or name == "bytes"


def test_short_objects_take_one_step() -> None:
    for obj in (None, [1] * 1000, {"a": [{"b": (1, 2)}] * 100}, "x" * 60_000, np.zeros(1 << 20)):
        n_steps, packed = count(CODEC.dump_steps(obj))
        assert n_steps == 1
        envelope = read_envelope(memoryview(packed.envelope))
        assert count(CODEC.load_steps(envelope, received(packed)))[0] == 1


def test_the_memory_of_parts_is_not_copied() -> None:
    array, text = np.zeros(1 << 20), bytes(1 << 20)
    packed = finished(CODEC.dump_steps([array, text]))
    assert [np.shares_memory(np.frombuffer(part, np.uint8), array) for part in packed.parts] == [
        True,
        False,
    ]
    assert packed.parts[1].obj is text
    parts = received(packed)
    back = finished(CODEC.load_steps(read_envelope(memoryview(packed.envelope)), parts))
    assert np.shares_memory(back[0], np.frombuffer(parts[0], np.uint8))
    assert back[0].flags.writeable


def test_a_decoded_object_leaves_nothing_for_the_garbage_collector() -> None:
    packed = finished(CODEC.dump_steps([np.zeros(1 << 20), LONG["lists"], (1, "x")]))
    envelope, parts = read_envelope(memoryview(packed.envelope)), received(packed)
    gc.collect()
    gc.disable()
    try:
        finished(CODEC.load_steps(envelope, parts))
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_where_a_long_object_cannot_travel() -> None:
    rows: list[Any] = [{"id": n, "more": [n]} for n in range(10_000)]
    rows[7000]["more"].append(object())
    with pytest.raises(TypeError, match=r"^obj\['rows'\]\[7000\]\['more'\]\[1\] is a object"):
        CODEC.dumps({"rows": rows})
    items: dict[Any, Any] = {n: [n] * 20 for n in range(3000)}
    items[2000] = {object()}
    with pytest.raises(TypeError, match=r"^obj\[2000\]\{...\} is a object"):
        CODEC.dumps(items)
    cycle: list[Any] = [[0] * 10 for _ in range(3000)]
    cycle[2999].append(cycle)
    with pytest.raises(ValueError, match=r"^obj\[2999\]\[10\] contains itself"):
        CODEC.dumps(cycle)


def test_a_dict_that_changes_between_steps_is_refused() -> None:
    items = {n: n for n in range(50_000)}
    steps = CODEC.dump_steps(items)
    next(steps)
    items[-1] = 0
    with pytest.raises(InvalidUsageError, match="must not change before it has been sent"):
        finished(steps)


class Huge(bytes):
    """Bytes that say that they are more than msgpack takes."""

    def __len__(self) -> int:
        return 1 << 32


def test_a_part_that_is_too_long_is_not_called_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pickle.dumps", lambda obj: Huge())
    with pytest.raises(InvalidUsageError, match=r"^the object does not fit into a message: EXT"):
        CODEC.dumps([Huge], allow_pickle=True)


leaves = st.none() | st.integers() | st.text(max_size=20) | st.binary(max_size=20)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.frozensets(leaves)
    ),
    max_leaves=60,
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_small_steps_give_the_same_object(obj: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_encoder, "STEP", 3)
        patch.setattr(object_encoder, "_SLICE", 2)
        patch.setattr(object_encoder, "_BLOCK_BYTES", 8)
        patch.setattr(object_encoder, "LONG_BYTES", 4)
        assert there_and_back(obj) == obj


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_long_messages(data: st.DataObject) -> None:
    message = bytearray(MESSAGE)
    at = data.draw(st.integers(0, min(len(message), 400) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    try:
        CODEC.loads(message)
    except (ProtocolError, TypeError) as exc:
        assert isinstance(exc, ProtocolError) or "allow_pickle" in str(exc)  # noqa: PT017


MESSAGE = CODEC.dumps([list(range(STEP * 2)), {n: [n] for n in range(STEP)}, "z" * 200_000])
