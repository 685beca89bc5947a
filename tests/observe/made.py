"""Parts as ranks would make them, without ranks."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.observe.code_location import CodeLocation
from aiodist.observe.rank_report import ClockSample, GroupState, Identity, RankReport
from aiodist.observe.recorder import Operation

SECOND = 1_000_000_000
NOW = 100 * SECOND


def op(
    number: int,
    state: str = "running",
    *,
    waiting_for: Sequence[int] = (),
    name: str = "all_reduce",
    peer: int = -1,
    group: str = "g",
    awaited: bool = True,
    created: int = NOW - 3 * SECOND,
    error: str = "",
) -> Operation:
    """A collective's record, or where ``peer`` is given a message's; unfinished by default."""
    return Operation(
        number=number,
        operation=name,
        group=group,
        group_id=sum(group.encode()),
        sequence=number if peer < 0 and name not in ("send", "recv") else -1,
        dtype="float32",
        count=2,
        nbytes=8,
        reduce_op="",
        root=-1,
        peer=peer,
        tag=-1 if peer < 0 and name not in ("send", "recv") else 0,
        created=created,
        started=created,
        finished=0 if state == "running" else created + SECOND,
        state=state,
        error=error,
        waiting_for=tuple(waiting_for),
        awaited=awaited and state == "running",
    )


def part(
    rank: int,
    *operations: Operation,
    size: int = 3,
    started: int | None = None,
    stuck: float = 0.0,
    place: str = "",
    host: str = "here",
    samples: Sequence[ClockSample] = (),
    clock: int = NOW,
    wall: float = 1000.0,
    groups: Sequence[GroupState] | None = None,
) -> RankReport:
    """A part with group "g" of all ranks, which has started as many operations as it has records."""
    count = sum(each.sequence >= 0 for each in operations) if started is None else started
    whole = GroupState(sum(b"g"), "g", tuple(range(size)), count)
    return RankReport(
        identity=Identity("job", rank, size, host, f"kernel of {host}", 100 + rank),
        reason="a test",
        clock=clock,
        wall=wall,
        standpoint=CodeLocation(place, stuck),
        groups=(whole,) if groups is None else tuple(groups),
        operations=operations,
        samples=tuple(samples),
    )
