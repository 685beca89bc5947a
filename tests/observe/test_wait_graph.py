"""The wait-for graph names the rank that all others wait for, and cycles as cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from aiodist.observe.recorder import Operation
from aiodist.observe.report_text import overview, sentences
from aiodist.observe.text_table import ranks
from aiodist.observe.wait_graph import diagnose
from tests.observe.made import NOW, SECOND, op, part


def test_the_rank_that_has_not_entered_is_to_blame_not_the_neighbour_in_the_ring() -> None:
    parts = {
        0: part(0, op(0, "done"), op(1, waiting_for=[2])),
        1: part(1, op(0, "done"), op(1, waiting_for=[0])),  # misses a message of 0, which waits too
        2: part(2, op(0, "done"), place="train.py:33 in step"),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.roots == (2,)
    assert diagnosis.cycles == ()
    assert [(wait.rank, wait.on, wait.absent) for wait in diagnosis.waits] == [
        (0, (2,), True),
        (1, (2,), True),
    ]
    assert sentences(diagnosis, parts, {}) == [
        "Ranks 0, 1 wait for rank 2, which has not entered all_reduce(2 x float32) (operation 1 of "
        "'g'), has last finished all_reduce(2 x float32) (operation 0 of 'g') and is at "
        "train.py:33 in step."
    ]


def test_blame_follows_messages_to_the_end() -> None:
    parts = {
        0: part(0, op(0, name="recv", peer=1, waiting_for=[1])),
        1: part(1, op(0, name="recv", peer=2, waiting_for=[2])),
        2: part(2),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.roots == (2,)
    assert diagnosis.reach[2] == {0, 1}
    (told,) = sentences(diagnosis, parts, {})
    assert told.startswith("Ranks 0, 1 wait for rank 2, which is waited for in recv(from rank 2")


def test_ranks_that_wait_for_each_other_are_a_cycle() -> None:
    parts = {
        0: part(0, op(0, name="recv", peer=1, waiting_for=[1])),
        1: part(1, op(0, name="recv", peer=0, waiting_for=[0])),
        2: part(2, op(0, name="recv", peer=0, waiting_for=[0])),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.roots == ()
    assert diagnosis.cycles == ((0, 1),)
    (told,) = sentences(diagnosis, parts, {})
    assert told.startswith(
        "Ranks 0, 1 wait for each other (0 -> 1 -> 0): rank 0 in recv(from rank 1"
    )


def test_two_cycles_are_both_told() -> None:
    parts = {
        rank: part(rank, op(0, name="recv", peer=rank ^ 1, waiting_for=[rank ^ 1]), size=4)
        for rank in range(4)
    }
    assert diagnose(parts).cycles == ((0, 1), (2, 3))


def test_groups_entered_in_another_order_are_a_cycle() -> None:
    parts = {
        0: part(0, op(0, group="g", waiting_for=[1]), size=2, started=1),
        1: part(1, op(0, group="h", waiting_for=[0]), size=2, started=0),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.cycles == ((0, 1),)


def test_a_collective_that_all_are_in_is_in_progress_and_blames_no_rank() -> None:
    parts = {
        0: part(0, op(0, waiting_for=[1]), size=2),
        1: part(1, op(0, waiting_for=[0]), size=2),
    }
    (told,) = sentences(diagnose(parts), parts, {})
    assert told.startswith("All its ranks are in all_reduce")


def test_a_rank_whose_loop_is_stuck_is_the_root_whatever_it_waits_for() -> None:
    parts = {
        0: part(0, op(0, waiting_for=[1]), size=2),
        1: part(1, op(0, waiting_for=[0]), size=2, stuck=0.5, place="train.py:9 in compute"),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.roots == (1,)
    (told,) = sentences(diagnosis, parts, {})
    assert "is at train.py:9 in compute, its event loop has not turned for 0.5 s" in told


def test_unawaited_and_any_source_receives_wait_for_no_rank() -> None:
    parts = {
        0: part(0, op(0, name="recv", peer=1, waiting_for=[1], awaited=False)),
        1: part(1, op(0, name="recv", waiting_for=[0, 2])),
        2: part(2),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.waits == ()
    assert sentences(diagnosis, parts, {}) == ["No rank waits for another."]


def test_a_rank_that_does_not_answer_is_named() -> None:
    parts = {
        0: part(0, op(0, waiting_for=[2])),
        1: part(1, op(0, waiting_for=[0])),
    }
    silent = {2: "stopped by a signal"}
    diagnosis = diagnose(parts)
    assert diagnosis.roots == (2,)
    (told,) = sentences(diagnosis, parts, silent)
    assert told.startswith(
        "Ranks 0, 1 wait for rank 2, which does not answer (stopped by a signal)"
    )
    lonely = {0: part(0)}
    assert sentences(diagnose(lonely), lonely, silent) == [
        "Rank 2 does not answer (stopped by a signal)."
    ]


def test_a_failed_operation_still_names_its_peers() -> None:
    parts = {
        0: part(0, op(0, "failed", waiting_for=[1], error="CollectiveTimeoutError: late"), size=2),
        1: part(1, size=2),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.roots == (1,)
    assert "(failed)" in overview(diagnosis, parts, {})


@pytest.mark.parametrize("remembers", [True, False])
def test_a_rank_that_has_left_the_group_is_not_behind_in_it(remembers: bool) -> None:
    reduced = [op(0, "done"), op(1, "done", name="reduce")] if remembers else []
    other = op(2, "done", group="other")
    parts = {
        0: part(0, *reduced, other, groups=()),
        1: part(1, op(0, "done")),
        2: part(2, op(0, "done"), op(1, name="reduce", waiting_for=[1])),
    }
    diagnosis = diagnose(parts)
    assert diagnosis.roots == (1,)
    assert diagnosis.waits[0].absent
    # Another rank without the group is missed: it has never had it.
    parts[2] = part(2, op(0, "done"), op(1, name="reduce", waiting_for=[0]))
    assert diagnose(parts).roots == ((1,) if remembers else (0, 1))


@pytest.mark.parametrize(
    ("later", "waits"),
    [
        (op(1, "done", name="send", peer=2, created=NOW - SECOND // 2), False),
        (op(1, waiting_for=[2], created=NOW - SECOND // 2), False),
        (op(1, "failed", waiting_for=[1], created=NOW - SECOND // 2), True),
        (op(1, waiting_for=[1], created=NOW - SECOND // 2, awaited=False), True),
    ],
    ids=["has sent", "waits in another", "fails again", "is not awaited"],
)
def test_a_rank_that_has_gone_on_after_a_failure_waits_no_longer(
    later: Operation, waits: bool
) -> None:
    failed = op(0, "failed", name="recv", peer=1, waiting_for=[1], created=NOW - 3 * SECOND)
    parts = {0: part(0, failed, later), 1: part(1), 2: part(2)}
    assert any(1 in wait.on and wait.operation is failed for wait in diagnose(parts).waits) is waits
    at_once = op(0, "failed", waiting_for=[1], created=NOW - SECOND - SECOND * 3 // 4)
    assert diagnose({0: part(0, at_once, later), 1: part(1)}).waits[0].operation is at_once


def test_the_table_has_a_line_for_every_rank() -> None:
    parts = {
        0: part(0, op(0, waiting_for=[1])),
        1: part(1, place="train.py:5 in f"),
    }
    head, *lines = overview(diagnose(parts), parts, {2: "gone"}).splitlines()
    assert head.split() == ["rank", "process", "waits", "for", "since", "in", "stands"]
    assert lines[0].startswith("0     100 on here  1 to enter  3.0 s  all_reduce")
    assert " ".join(lines[1].split()) == "1 101 on here no rank no operation yet at train.py:5 in f"
    assert " ".join(lines[2].split()) == "2 ? no answer gone"


def test_numbers_of_ranks_are_runs() -> None:
    assert ranks([3]) == "rank 3"
    assert ranks([0, 1, 2, 5, 6]) == "ranks 0-2, 5, 6"


class CountingReads(tuple[Operation, ...]):
    """Operations that count how often they are read from the start."""

    reads = 0

    def __iter__(self) -> Iterator[Operation]:
        self.reads += 1
        return super().__iter__()


def test_the_operations_of_a_program_that_polls_are_read_once_and_not_once_for_each_failure() -> (
    None
):
    def reads(failures: int) -> int:
        polls = (op(i, "failed", waiting_for=[1], name="recv", peer=1) for i in range(failures))
        operations = CountingReads(polls)
        diagnose({0: replace(part(0), operations=operations), 1: part(1)})
        return operations.reads

    assert reads(50) == reads(1)
