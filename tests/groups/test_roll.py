"""Who is missing: those that say so, those that cannot be asked, and those that stay silent."""

from __future__ import annotations

import asyncio

import pytest

from aiodist.groups import roll
from aiodist.groups.roll import Roll


@pytest.fixture
def results() -> list[dict[int, str]]:
    return []


async def test_done_as_soon_as_all_have_answered(results: list[dict[int, str]]) -> None:
    call = Roll(asyncio.get_running_loop(), [1, 2, 3], [4], results.append)
    call.answered(2, False, "barrier(), operation 3")
    call.answered(1, True)
    call.answered(1, False)  # said once
    assert results == []
    call.answered(3, True)
    assert results == [{2: "barrier(), operation 3", 4: ""}]
    call.answered(3, True)
    assert len(results) == 1


async def test_silence_counts_as_missing(
    results: list[dict[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll, "ANSWER_SECONDS", 0.01)
    done = asyncio.Event()

    def finish(missing: dict[int, str]) -> None:
        results.append(missing)
        done.set()

    call = Roll(asyncio.get_running_loop(), [1, 2], [], finish)
    call.answered(2, True)
    await done.wait()
    assert results == [{1: ""}]


async def test_nobody_to_ask(results: list[dict[int, str]]) -> None:
    Roll(asyncio.get_running_loop(), [], [7], results.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert results == [{7: ""}]


async def test_a_dropped_roll_says_nothing(
    results: list[dict[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll, "ANSWER_SECONDS", 0.0)
    Roll(asyncio.get_running_loop(), [1], [], results.append).drop()
    await asyncio.sleep(0.01)
    assert results == []
