"""What buffers must hold: found out here by plain numpy, and every kind of mistake noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aiodist.bench.cases import OPERATIONS, Case
from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import (
    CHUNK,
    Array,
    Segment,
    WrongResultError,
    check,
    fill,
    in_usual_pages,
)

DATA = [name for name in OPERATIONS if name != "barrier"]


def empty(count: int) -> tuple[Array, Array]:
    array = np.empty(count, np.float32)
    return array, array


def calls(operation: str, ranks: int, count: int, turn: int = 5) -> list[Call]:
    made = [Call(Case(operation, ranks, 4 * count), rank, empty) for rank in range(ranks)]
    for call in made:
        call.write(turn)
    return made


def perform(calls: list[Call]) -> None:
    """The operation by its definition, all ranks at once."""
    operation, ranks = calls[0].operation, len(calls)
    sources = [call.source.copy() for call in calls]
    parts = [np.split(source, ranks) for source in sources] if operation in SPLITS else []
    for rank, call in enumerate(calls):
        call.target[:] = {
            "all_reduce": lambda rank: sum(sources),
            "broadcast": lambda rank: sources[0],
            "all_gather": lambda rank: np.concatenate(sources),
            "reduce_scatter": lambda rank: sum(part[rank] for part in parts),
            "all_to_all": lambda rank: np.concatenate([part[rank] for part in parts]),
            "send_recv": lambda rank: sources[0],
        }[operation](rank)


SPLITS = {"reduce_scatter", "all_to_all"}


@pytest.mark.parametrize("operation", DATA)
@pytest.mark.parametrize(
    ("ranks", "count"), [(2, 2), (2, 256), (4, 64), (8, 1024), (2, 3 * CHUNK), (128, 256)]
)
def test_the_expected_result_equals_the_operations(operation: str, ranks: int, count: int) -> None:
    made = calls(operation, ranks, count)
    perform(made)

    for call in made:
        call.check(5, "numpy")


@pytest.mark.parametrize("operation", DATA)
def test_an_operation_that_does_nothing_is_noticed(operation: str) -> None:
    receiver = calls(operation, 2, 64)[1]

    with pytest.raises(
        WrongResultError, match=rf"lazy, {operation}, 2 ranks, 256 B, rank 1, turn 5"
    ):
        receiver.check(5, "lazy")


@pytest.mark.parametrize("operation", DATA)
def test_the_result_of_another_turn_is_noticed(operation: str) -> None:
    made = calls(operation, 2, 64, turn=4)
    perform(made)

    with pytest.raises(WrongResultError):
        made[1].check(5, "late")


@pytest.mark.parametrize("place", [0, 63, 2 * CHUNK - 1])
def test_one_wrong_element_is_noticed_and_named(place: int) -> None:
    made = calls("all_reduce", 2, 2 * CHUNK)
    perform(made)
    made[0].target[place] += 1

    with pytest.raises(WrongResultError, match=rf"element {place} is "):
        made[0].check(5, "careless")


def test_not_a_number_is_noticed() -> None:
    made = calls("all_reduce", 2, 64)
    perform(made)
    made[0].target[7] = np.nan

    with pytest.raises(WrongResultError, match="element 7 is nan"):
        made[0].check(5, "careless")


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all"])
def test_parts_in_wrong_places_are_noticed(operation: str) -> None:
    made = calls(operation, 2, 1024)
    perform(made)
    made[0].target[:] = np.roll(made[0].target, 512)

    with pytest.raises(WrongResultError):
        made[0].check(5, "confused")


def test_chunks_in_wrong_places_are_noticed() -> None:
    segments = (Segment(0, 2 * CHUNK, 1, 3),)
    array = np.empty(2 * CHUNK, np.float32)
    fill(array, segments)
    check(array, segments, "right")

    with pytest.raises(WrongResultError):
        check(np.roll(array, CHUNK), segments, "wrong")


def test_all_peers_are_measured_on_equal_pages() -> None:
    """numpy's own large arrays have: "hg" among the flags of their memory, for huge pages."""
    usual, numpys = in_usual_pages(1 << 21), np.empty(1 << 21, np.float32)
    assert len(usual) == len(numpys)
    assert "hg" not in flags_of(usual)
    if "hg" not in flags_of(numpys):
        pytest.skip("numpy asks for no huge pages here either")


def flags_of(array: Array) -> list[str]:
    """What the system says of the memory in the middle of ``array``."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("this system does not tell of a process's memory")
    address = array[len(array) // 2 :].ctypes.data
    inside = False
    for line in smaps.read_text().splitlines():
        words = line.split()
        first, dash, last = words[0].partition("-")
        if dash:
            inside = int(first, 16) <= address < int(last, 16)
        elif inside and words[0] == "VmFlags:":
            return words[1:]
    raise AssertionError("the array is in no mapping of this process")
