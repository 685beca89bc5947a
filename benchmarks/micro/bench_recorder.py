"""What the flight recorder adds to every operation: a begin, a start and an end."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from aiodist.groups.fingerprint import Fingerprint
from aiodist.observe.recorder import GroupLabel, Recorder

GROUP = GroupLabel(1, "default_pg", (0, 1))


def bench_record_of_a_collective(benchmark: Any) -> None:
    """The budget is a microsecond."""
    recorder = Recorder()
    fingerprint = Fingerprint("barrier")

    def operation() -> None:
        record = recorder.begin(GROUP, 0, fingerprint)
        record.started = monotonic_ns()
        record.end()

    benchmark(operation)
    assert recorder.records()[-1].state == "done"


def bench_record_of_a_message(benchmark: Any) -> None:
    """As a collective's, and the facts of the message."""
    recorder = Recorder()

    def operation() -> None:
        record = recorder.begin(GROUP, -1, ("send", 1, 0, b"", 4))
        record.started = monotonic_ns()
        record.end()

    benchmark(operation)
    assert recorder.records()[-1].state == "done"
