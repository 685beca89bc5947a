"""What a rank does and last did, in words, for the ranks that may have to say so of it."""

from __future__ import annotations

from aiodist.observe.recorder import DONE, RUNNING, Recorder, operation

_LOOKED_AT = 64
_TOLD = 2


def describe_activity(recorder: Recorder) -> str:
    """The operation that this rank finished last, and those that it is in. Any thread."""
    latest = recorder.latest(_LOOKED_AT)
    done = [record for record in latest if record.state == DONE]
    running = [str(operation(record)) for record in latest if record.state == RUNNING]
    parts = []
    if done:
        last = max(done, key=lambda record: record.finished)
        parts.append(f"finished {operation(last)}")
    if running:
        more = f" and {len(running) - _TOLD} more" if len(running) > _TOLD else ""
        parts.append(f"was in {', '.join(reversed(running[:_TOLD]))}{more}")
    return " and ".join(parts)
