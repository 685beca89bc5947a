"""The texts of errors about operations: which ranks disagree or are missing, what was under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from aiodist.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    PeerLostError,
    ProtocolError,
)
from aiodist.groups.fingerprint import (
    Fingerprint,
    describe,
    differ_in_device_alone,
    is_elsewhere,
    tensor_in_words,
)
from aiodist.groups.group_facts import GroupFacts
from aiodist.groups.naming import announcement_group_id, plural_of
from aiodist.observe.recorder import DONE, FAILED, RUNNING, Record, Recorder, operation
from aiodist.tensors import decode_meta
from aiodist.wire.frames import COLLECTIVE, MESSAGES, Frame, Key

if TYPE_CHECKING:
    from aiodist.groups.collective_backend import CollectiveBackend
    from aiodist.groups.status_query import Answers
    from aiodist.p2p.endpoint_events import StatusAnswer

_ELSEWHERE = " by way of a GPU or another library"

_TAGS = 5
"""The most tags of waiting messages that an error names."""

_TOLD = 8
"""The most missing ranks whose activity an error names."""

_LATEST = 64
"""How many of the latest operations are searched for what a rank does."""

_NAMED = 2
"""The most operations under way that are named, the oldest first."""

_FEW = 2
"""The most groups that an error about a lost rank names."""


class KnownGroup(GroupFacts, Protocol):
    """What errors say of the groups of a rank: see `GroupEngine`."""

    backend: CollectiveBackend

    def last_in_memory(self, rank: int) -> str: ...


def mismatch(
    group: GroupFacts,
    sequence: int,
    fingerprint: Fingerprint,
    src: int,
    meta: bytes,
    detail: str = "",
) -> CollectiveMismatchError:
    """Return the error for a message of rank ``src`` that another operation sent than is called here."""
    mine = theirs = ""
    if fingerprint.elsewhere != is_elsewhere(meta):
        mine, theirs = (_ELSEWHERE, "") if fingerprint.elsewhere else ("", _ELSEWHERE)
    sides = f"{fingerprint}{mine}, rank {src} called {describe(meta)}{theirs}{detail}"
    if differ_in_device_alone(fingerprint.encoded, meta):
        here, there = "on a GPU", "on the CPU"
        if is_elsewhere(meta):
            here, there = there, here
        sides = (
            f"{fingerprint} with its tensor {here}, rank {src} with its tensor {there}; in one collective "
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


def explained(
    error: PeerLostError, last: Frame | None, groups: Mapping[int, KnownGroup], here: int
) -> PeerLostError:
    """Return ``error`` with what rank ``here`` knows of the lost rank and the error does not say yet.

    ``last``: the last message that came from that rank. ``groups``: those of ``here``, by their numbers.
    """
    if error.rank == here:  # the others gave this rank up
        return error
    noticed_by = here if error.noticed_by < 0 else error.noticed_by
    told = []
    in_memory = (group.last_in_memory(error.rank) for group in groups.values())
    if few := " and ".join(islice(filter(None, in_memory), _FEW)):
        told.append(f"it last {few}, in shared memory")
    if last is not None:  # collectives in shared memory send no messages
        told.append(f"the last that came from it: {last_activity(last, groups)}")
    if error.last:  # a heartbeat, which is often older than the rank's last operations
        told.append(error.last)
    said = "; ".join(told)
    heard = said or "no message ever came from it"
    fields = error.fields | {"last": said, "noticed_by": noticed_by}
    full = PeerLostError(f"{error.message}; {heard}; rank {noticed_by} noticed", **fields)
    full.__cause__ = error.__cause__
    return full


def last_activity(frame: Frame, groups: Mapping[int, KnownGroup]) -> str:
    """Return what a rank's message says that it was doing, for the error about its end.

    ``groups``: this rank's, by their numbers.
    """
    group = groups.get(frame.group)
    if group is None:
        for each in groups.values():
            if frame.group == announcement_group_id(each):
                return (
                    f"word about a message that {each.backend.name} carries in {each.group_name!r}"
                )
    where = "a group that is not open here" if group is None else f"{group.group_name!r}"
    if frame.kind == COLLECTIVE:
        return f"{describe(frame.meta)}, operation {frame.channel} of {where}"
    return f"{plural_of(frame.kind)} with tag {frame.channel} in {where}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ``ranks 1, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def unread_in_words(arrived: Iterable[tuple[Key, int]], group: int, sources: Sequence[int]) -> str:
    """Return which messages of ``sources`` in that group wait for a receive of their kind and tag."""
    tags: dict[int, set[int]] = {}
    for (kind, its_group, tag), src in arrived:
        if kind in MESSAGES and its_group == group and src in sources:
            tags.setdefault(kind, set()).add(tag)
    if not tags:
        return ""
    which = " and ".join(
        f"{plural_of(kind)} with tag {', '.join(map(str, sorted(tags[kind])[:_TAGS]))}"
        + (", ..." if len(tags[kind]) > _TAGS else "")
        for kind in sorted(tags)
    )
    return f", from where {which} have come that no receive asked for"


def missing_of(answers: Answers) -> Answers:
    """Return those that have not entered a collective, or do not answer."""
    return {rank: said for rank, said in answers.items() if said is None or not said.entered}


def describe_missing(missing: Answers, waiting: Sequence[int]) -> str:
    """Return why a collective takes so long.

    ``missing``: the ranks that were asked and are not in it. ``waiting``: those that it waits for now.
    """
    told = []
    if outside := {rank: said for rank, said in missing.items() if said is not None}:
        peers = "rank {}" if len(outside) > 1 else "it"
        each = [f"{peers.format(rank)} {_does(said)}" for rank, said in outside.items()]
        if len(each) > _TOLD:
            each[_TOLD:] = [f"and {len(each) - _TOLD} more"]
        told.append(f"{ranks_in_words(list(outside))} did not enter it ({'; '.join(each)})")
    if silent := [rank for rank, said in missing.items() if said is None]:
        verb = "does" if len(silent) == 1 else "do"
        told.append(f"{ranks_in_words(silent)} {verb} not answer")
    if told:
        return ", and ".join(told)
    if waiting:
        return f"all ranks are in it, still waiting for {ranks_in_words(waiting)}"
    return "all ranks are in it, and it goes on without waiting for any: it needs more time"


def _does(said: StatusAnswer) -> str:
    return f"finished {said.last} last, and {said.now}" if said.last else said.now


def describe_waiting(ranks: Sequence[int], unread: str, answers: Answers) -> str:
    """Return why a message takes so long: it waits for ``ranks``. One that is alone may have been asked.

    ``unread``: what `unread_in_words` says of them.
    """
    told = ["; it " + ("does not answer" if s is None else s.now) for s in answers.values()]
    return f"still waiting for {ranks_in_words(ranks)}{unread}{''.join(told)}"


def timed_out(
    what: str, seconds: float, why: str, ranks: Sequence[int], fields: dict[str, Any]
) -> CollectiveTimeoutError:
    """Return the error for ``what``, which waits for ``ranks``; ``fields`` has the rest of its facts."""
    if fields["tensor"]:
        why += f"; the tensor here: {fields['tensor']}"
    return CollectiveTimeoutError(
        f"{what} timed out after {seconds:g} s on rank {fields['rank']}: {why}; "
        "see what keeps it, or pass a longer timeout to the call or to its group",
        waiting_for=ranks,
        **fields,
    )


def tensor_of_message(meta: bytes) -> str:
    """Return the tensor that a message's description tells of; empty where it tells of none."""
    try:
        _, dtype, shape = decode_meta(meta)
    except ProtocolError:  # objects, or a receive that takes what comes
        return ""
    return tensor_in_words(dtype, shape)


def describe_activity(recorder: Recorder) -> str:
    """Return the operation that this rank finished last, and those that it is in. Any thread."""
    latest = recorder.latest(_LATEST)
    done = [record for record in latest if record.state == DONE]
    running = [record for record in latest if record.state == RUNNING]
    parts = []
    if done:
        last = max(done, key=lambda record: record.finished)
        parts.append(f"finished {operation(last)}")
    if running:
        parts.append(f"was in {_listed(running)}")
    return " and ".join(parts)


def describe_present(recorder: Recorder) -> str:
    """Return what this rank does now, as in "rank 3 is in no operation": without the rank. Any thread.

    The time is that of the oldest operation under way among the latest 64: later ones may wait for it.
    """
    latest = recorder.latest(_LATEST)
    running = [record for record in latest if record.state == RUNNING]
    if running:
        seconds = (monotonic_ns() - running[-1].created) / 1e9
        return f"is in {_listed(running)} for {seconds:.1f} s"
    if latest and latest[0].state == FAILED:
        return f"is in no operation, after {operation(latest[0])} failed there"
    return "is in no operation"


def _listed(newest_first: Sequence[Record]) -> str:
    oldest_first = newest_first[::-1]
    more = f" and {len(oldest_first) - _NAMED} more" if len(oldest_first) > _NAMED else ""
    return ", ".join(str(operation(each)) for each in oldest_first[:_NAMED]) + more
