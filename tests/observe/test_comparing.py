"""Parts compared: which ranks are behind, and where the ranks begin to differ."""

from __future__ import annotations

from aiodist.observe.comparing import group_reports
from tests.observe.made import NOW, SECOND, op, part


def test_the_rank_that_is_behind_and_the_first_operation_that_differs() -> None:
    parts = {
        0: part(0, op(0, "done"), op(1, "done"), op(2, waiting_for=[2])),
        1: part(1, op(0, "done"), op(1, "done"), op(2, waiting_for=[2])),
        2: part(2, op(0, "done")),
    }
    (story,) = group_reports(parts)
    assert story.behind == (2,)
    assert story.first_difference == 1
    assert story.calls == {
        "all_reduce(2 x float32): done": (0, 1),
        "has not entered it": (2,),
    }
    assert story.disagreement == ""
    assert "  rank 2: 1 collectives started  <- behind" in str(story).splitlines()


def test_ranks_that_called_different_things() -> None:
    parts = {
        0: part(0, op(0, "failed", error="one text"), size=2),
        1: part(1, op(0, "failed", name="broadcast", error="another"), size=2),
    }
    (story,) = group_reports(parts)
    assert story.disagreement == (
        "The ranks disagree about operation 0 of group 'g': rank 0 called all_reduce(2 x float32); "
        "rank 1 called broadcast(2 x float32)."
    )
    assert story.behind == ()


def test_other_texts_for_the_same_failure_are_no_difference() -> None:
    parts = {rank: part(rank, op(0, "failed", error=f"on {rank}"), size=2) for rank in (0, 1)}
    (story,) = group_reports(parts)
    assert story.first_difference is None


def test_forgotten_operations_are_no_difference() -> None:
    parts = {
        0: part(0, op(0, "done"), op(1, "done"), size=2, started=2),
        1: part(1, op(1, "done"), size=2, started=2),
    }
    (story,) = group_reports(parts)
    assert story.first_difference is None
    assert "do not differ" in str(story)


def test_a_difference_that_the_program_has_handled_is_past() -> None:
    before, after = NOW - 9 * SECOND, NOW - 7 * SECOND
    differ = [
        op(0, "failed", error="a text", created=before),
        op(0, "failed", name="broadcast", error="a text", created=before),
    ]
    parts = {
        rank: part(rank, differ[rank], op(1, "done", created=after), size=2, started=2)
        for rank in (0, 1)
    }
    (story,) = group_reports(parts)
    assert (story.first_difference, story.disagreement) == (None, "")
    parts[0] = part(0, differ[0], op(1, "done", created=after), op(2, waiting_for=[1]), size=2)
    (story,) = group_reports(parts)
    assert (story.first_difference, story.behind) == (2, (1,))


def test_an_operation_that_was_called_before_the_difference_ended_makes_it_no_past() -> None:
    parts = {
        rank: part(rank, op(0, "failed", name=name), op(1, "done"), size=2)
        for rank, name in enumerate(("all_reduce", "broadcast"))
    }
    (story,) = group_reports(parts)
    assert story.first_difference == 0
    assert "The ranks disagree about operation 0" in story.disagreement


def test_a_difference_that_no_rank_has_noticed_is_no_past() -> None:
    before, after = NOW - 9 * SECOND, NOW - 7 * SECOND
    parts = {
        rank: part(
            rank,
            op(0, "done", name=name, created=before),
            op(1, "done", created=after),
            size=2,
            started=2,
        )
        for rank, name in enumerate(("all_reduce", "broadcast"))
    }
    (story,) = group_reports(parts)
    assert story.first_difference == 0


def test_an_operation_in_progress_is_no_past() -> None:
    parts = {
        0: part(0, op(0, waiting_for=[1], created=NOW - 9 * SECOND), op(1, "done"), size=2),
        1: part(1, op(0, "done", created=NOW - 9 * SECOND), op(1, "done"), size=2),
    }
    (story,) = group_reports(parts)
    assert story.first_difference == 0
