"""Each fuzz target under hypothesis: random bytes, and real messages with some bytes changed."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds

SEEDS = seeds()
EXAMPLES = 100


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """A message that a rank sends, truncated, lengthened, repeated, or with bytes changed."""
    data = bytearray(draw(st.sampled_from(SEEDS[name])))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        way = draw(st.sampled_from(["change", "cut", "insert", "repeat"]))
        if way == "change" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif way == "cut":
            del data[at:]
        elif way == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        else:
            data += data[at:][:4096]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_random_bytes_break_no_promise(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(st.binary(max_size=600))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_messages_break_no_promise(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(damaged(name))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("name", TARGETS)
def test_memory_stays_flat(name: str) -> None:
    target = TARGETS[name]
    inputs = [*SEEDS[name], b"", b"\xff" * 500, bytes(500)]

    def rounds(count: int) -> None:
        for _ in range(count):
            for data in inputs:
                target(data)

    rounds(20)
    gc.collect()
    tracemalloc.start()
    try:
        rounds(1)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        rounds(20)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
