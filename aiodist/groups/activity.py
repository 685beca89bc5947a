"""What a rank does and last did, in words, for the ranks that may have to say so of it."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns

from aiodist.observe.recorder import DONE, FAILED, RUNNING, Record, Recorder, operation

_LOOKED_AT = 64
_TOLD = 2


def describe_activity(recorder: Recorder) -> str:
    """Return the operation that this rank finished last, and those that it is in. Any thread."""
    latest = recorder.latest(_LOOKED_AT)
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

    The time is that of the operation named first, which others may be waiting behind: the oldest of the
    64 that were begun last.
    """
    latest = recorder.latest(_LOOKED_AT)
    running = [record for record in latest if record.state == RUNNING]
    if running:
        seconds = (monotonic_ns() - running[-1].created) / 1e9
        return f"is in {_listed(running)} for {seconds:.1f} s"
    if latest and latest[0].state == FAILED:
        return f"is in no operation, after {operation(latest[0])} failed there"
    return "is in no operation"


def _listed(newest_first: Sequence[Record]) -> str:
    oldest_first = newest_first[::-1]
    more = f" and {len(oldest_first) - _TOLD} more" if len(oldest_first) > _TOLD else ""
    return ", ".join(str(operation(each)) for each in oldest_first[:_TOLD]) + more
