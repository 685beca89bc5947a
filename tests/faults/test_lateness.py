"""What is allowed for: turns that a busy machine did not give, and nothing else."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.faults.lateness import lateness, turns_of


def test_waits_are_late_less_what_the_ranks_ran_themselves() -> None:
    before = {0: {"10": (1.0, 5.0)}, 1: {"20": (1.0, 5.0)}}
    after = {0: {"10": (1.25, 7.0)}, 1: {"20": (1.25, 6.0), "21": (0.0, 0.25)}}
    assert lateness(before, after) == {0: 1.5 + 0.5, 1: 0.5 + 1.5}


def test_a_computing_or_sleeping_rank_is_not_late() -> None:
    before = {0: {"10": (0.0, 0.0)}, 1: {"20": (0.0, 0.0)}}
    computing = {0: {"10": (1.5, 1.5)}, 1: {"20": (1.5, 1.5)}}  # in turns, on one core
    assert lateness(before, computing) == {0: 0.0, 1: 0.0}
    assert lateness(before, before) == {0: 0.0, 1: 0.0}


def test_a_rank_alone_has_no_peer_to_hear_from() -> None:
    assert lateness({}, {2: {"10": (0.0, 0.5)}}) == {2: 0.5}


@pytest.mark.skipif(not turns_of(os.getpid()), reason="this kernel does not count turns")
def test_the_kernel_counts_each_thread() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    before = turns_of(os.getpid())
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    after = turns_of(os.getpid())
    done.set()
    other.join()
    me = str(threading.get_native_id())
    assert {me, str(other.native_id)} <= before.keys()
    assert after[me][0] - before[me][0] > 0.01
    assert turns_of(1 << 30) == {}
