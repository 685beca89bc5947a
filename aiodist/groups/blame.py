"""The words of errors about operations: who disagrees, who is missing, what was under way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiodist.errors import CollectiveMismatchError, CollectiveTimeoutError, ProtocolError
from aiodist.groups.fingerprint import (
    Fingerprint,
    describe,
    differ_in_device_alone,
    is_elsewhere,
    tensor_in_words,
)
from aiodist.tensors import decode_meta
from aiodist.wire.frames import COLLECTIVE, POINT_TO_POINT, Frame, Key

if TYPE_CHECKING:
    from aiodist.groups.process_group import ProcessGroup

_TAGS = 5
"""So many of messages that wait are named."""


def mismatch(
    group: ProcessGroup,
    sequence: int,
    fingerprint: Fingerprint,
    src: int,
    meta: bytes,
    detail: str = "",
) -> CollectiveMismatchError:
    """The error for a message of rank ``src`` that another operation sent than is called here."""
    sides = f"{fingerprint}, rank {src} called {describe(meta)}{detail}"
    if differ_in_device_alone(fingerprint.encoded, meta):
        here, there = "on a GPU", "on the CPU"
        if is_elsewhere(meta):
            here, there = there, here
        call = replace(fingerprint, elsewhere=False)
        sides = (
            f"{call} with its tensor {here}, rank {src} with its tensor {there}; in one collective "
            "they have to be on the CPU on all ranks, or on GPUs on all: move them by .cpu() or "
            ".cuda() before the call"
        )
    return CollectiveMismatchError(
        f"ranks disagree about operation {sequence} of group {group.group_name!r}: "
        f"rank {group.global_rank} called {sides}",
        operation=fingerprint.operation,
        group=group.group_name,
        sequence=sequence,
        rank=src,
    )


def last_words(frame: Frame, group: ProcessGroup | None) -> str:
    """What a rank's message says that it was doing, for the error about its end."""
    where = "a group not made here" if group is None else f"{group.group_name!r}"
    if frame.kind == COLLECTIVE:
        return f"{describe(frame.meta)}, operation {frame.channel} of {where}"
    return f"a message with tag {frame.channel} in {where}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``ranks 1, 2``, or ``no rank``."""
    if not ranks:
        return "no rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def unread_in_words(arrived: Iterable[tuple[Key, int]], group: int, sources: Sequence[int]) -> str:
    """Which messages of ``sources`` in that group wait for a receive: one tag may be a wrong one."""
    tags = sorted(
        {key[2] for key, src in arrived if key[:2] == (POINT_TO_POINT, group) and src in sources}
    )
    if not tags:
        return ""
    which = ", ".join(map(str, tags[:_TAGS])) + (", ..." if len(tags) > _TAGS else "")
    return f", from where messages with tag {which} have come that nobody has asked for"


def who_keeps_it(missing: dict[int, str], waiting: Sequence[int]) -> str:
    """Why a collective takes so long. ``missing``: ranks that have not entered it, each with what it
    finished last; ``waiting``: whom it waits for just now."""
    if missing:
        told = ", ".join(f"rank {rank} {last}" for rank, last in missing.items() if last)
        finished = f" (last finished: {told})" if told else ""
        return f"{ranks_in_words(list(missing))} did not enter it or cannot answer{finished}"
    if waiting:
        return f"all ranks are in it, still waiting for {ranks_in_words(waiting)}"
    return "all ranks are in it, and it goes on without waiting for any: it needs more time"


def timed_out(
    what: str, seconds: float, blame: str, ranks: Sequence[int], fields: dict[str, Any]
) -> CollectiveTimeoutError:
    """The error for ``what``, which waits for ``ranks``; ``fields`` has the rest of its facts."""
    if fields["tensor"]:
        blame += f"; the tensor here: {fields['tensor']}"
    return CollectiveTimeoutError(
        f"{what} timed out after {seconds:g} s on rank {fields['rank']}: {blame}; "
        "see what keeps it, or pass a longer timeout to the call or to its group",
        waiting_for=ranks,
        **fields,
    )


def tensor_of_message(meta: bytes) -> str:
    """The tensor that a message's description tells of; empty where it tells of none."""
    try:
        _, dtype, shape = decode_meta(meta)
    except ProtocolError:  # objects, or a receive that takes what comes
        return ""
    return tensor_in_words(dtype, shape)
