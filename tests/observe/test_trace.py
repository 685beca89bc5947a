"""A trace that Perfetto reads: times in microseconds from 0, nothing overlaps in a bulk ring."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.rank_report import ClockSample
from aiodist.observe.trace import Lanes, chrome_trace
from tests.observe.made import NOW, SECOND, op, part


def test_operations_of_all_ranks_on_one_clock() -> None:
    parts = {
        0: part(0, op(0, "done", created=NOW), samples=[ClockSample(0, 0, 0)]),
        1: part(
            1,
            op(0, "done", created=NOW - 5 * SECOND),
            op(1, waiting_for=[0], created=NOW - SECOND, awaited=True),
            host="there",
            samples=[ClockSample(0, 5 * SECOND + 2000, 1500)],
        ),
    }
    trace = json.loads(json.dumps(chrome_trace(parts)))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in events] == [
        (0, 0.0, 1e6),
        (1, 2.0, 1e6),
        (1, 4e6 + 2.0, 1e6),
    ]
    assert events[2]["args"]["state"] == "running"
    assert events[2]["args"]["waiting_for"] == [0]
    assert events[0]["args"]["bytes"] == 8
    names = {
        (event["pid"], event["name"]): event["args"]
        for event in trace["traceEvents"]
        if event["ph"] == "M"
    }
    assert names[1, "process_name"] == {"name": "rank 1 (process 101 on there)"}
    assert names[1, "thread_name"] == {"name": "g"}
    assert trace["otherData"]["clock_error_us"] == {"0": 0.0, "1": 1.5}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.integers(0, 20)), max_size=40)
)
def test_lanes_never_overlap_and_belong_to_one_track(
    spans: list[tuple[str, int, int]],
) -> None:
    lanes = Lanes()
    taken: dict[int, list[tuple[str, int, int]]] = {}
    for track, start, length in sorted(spans, key=lambda span: span[1]):
        lane, is_new = lanes.place(track, start, start + length)
        assert is_new == (lane not in taken)
        for other, _, end in taken.setdefault(lane, []):
            assert other == track
            assert end <= start
        taken[lane].append((track, start, start + length))
