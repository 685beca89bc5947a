"""What the summary blames, and what it repeats."""

from __future__ import annotations

import traceback

import pytest

from aiodist.errors import GroupRevokedError, PeerLostError
from aiodist.groups.diagnostics import timed_out
from aiodist.launch.failure import Failure, Tail, describe_status, exit_code, last_traceback

PLAIN = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    1 / 0
ZeroDivisionError: division by zero"""

CHAINED = f"""{PLAIN}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    raise KeyError("x")
KeyError: 'x'"""

GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    | ValueError: inner
    +------------------------------------"""

LOST = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
aiodist.errors.PeerLostError: rank 2 is gone"""

LOST_IN_A_CALLBACK = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
RuntimeError: Got the following error when running the callback: PeerLostError: rank 1 has left

At:
  aiodist/torch_backend/torch_work.py(106): outcome"""


def failure(stderr: str | None, status: int = 1) -> Failure:
    return Failure(rank=3, local_rank=1, pid=42, host="here", status=status, stderr=stderr)


def test_the_last_traceback_is_found_with_its_chain():
    assert last_traceback("nothing here\n") is None
    assert last_traceback(f"warning\n{PLAIN}\n") == PLAIN
    assert last_traceback(f"{PLAIN}\nwent on\n{CHAINED}\n") == CHAINED
    assert last_traceback(f"{PLAIN}\nwent on\n{GROUP}\n") == GROUP


@pytest.mark.parametrize(
    "above", ["Exception ignored in: <function A.__del__ at 0x7f>", "Exception in thread Thread-1:"]
)
def test_a_traceback_that_did_not_end_the_process_does_not_hide_the_one_that_did(above):
    aside = f"{above}\n{CHAINED}"
    assert last_traceback(f"{LOST}\n{aside}\n{aside}\n") == LOST
    assert last_traceback(f"{aside}\n{PLAIN}\n") == PLAIN
    assert last_traceback(f"{aside}\n") == CHAINED
    assert failure(f"{LOST}\n{aside}\n").is_consequence()
    assert "KeyError" not in failure(f"{LOST}\n{aside}\n").summary()


def test_the_summary_ends_with_the_traceback():
    told = failure(f"noise\n{PLAIN}\n").summary("then ended: rank 0 by SIGTERM").splitlines()
    assert told[0] == (
        "aiodist: rank 3 failed first: exit code 1 (local rank 1, pid 42, host here)"
    )
    assert told[1] == "aiodist: then ended: rank 0 by SIGTERM"
    assert told[-4:] == PLAIN.splitlines()
    assert "noise" not in told


def test_without_a_traceback_the_summary_ends_with_the_last_lines():
    told = failure("".join(f"line {n}\n" for n in range(50))).summary().splitlines()
    assert told[-20:] == [f"line {n}" for n in range(30, 50)]
    assert "wrote nothing" in failure("").summary()
    assert "look above" in failure(None).summary()


def test_a_signal_is_named_and_old_tracebacks_are_not_blamed_for_it():
    told = failure(f"{PLAIN}\nhandled\n", status=-11).summary()
    assert "failed first: SIGSEGV" in told
    assert "its traceback" not in told
    assert told.endswith("handled")


def test_a_sigkill_without_trace_suggests_the_oom_killer():
    assert "for want of memory" in failure("", -9).summary()
    assert "memory" not in failure("", -15).summary()


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [(3, 3, "exit code 3"), (-9, 137, "SIGKILL"), (-63, 191, "signal 63")],
)
def test_statuses(status, code, words):
    assert exit_code(status) == code
    assert describe_status(status) == words


def test_a_lost_peer_is_a_consequence():
    assert failure(LOST).is_consequence()
    assert not failure(PLAIN).is_consequence()
    assert not failure(f"{LOST}\nwent on\n{PLAIN}").is_consequence()
    assert not failure(
        'Traceback (most recent call last):\nValueError: "PeerLostError"'
    ).is_consequence()
    assert not failure(None).is_consequence()


def test_a_lost_peer_in_the_error_of_a_callback_of_torch_is_a_consequence():
    assert failure(LOST_IN_A_CALLBACK).is_consequence()
    assert failure(
        "Traceback (most recent call last):\nRuntimeError: PeerLostError: x"
    ).is_consequence()
    assert not failure(
        "Traceback (most recent call last):\nRuntimeError: no PeerLostError: x"
    ).is_consequence()


@pytest.mark.parametrize(
    ("error", "named_cause"),
    [
        ("StreamClosedError: rank 0 gave the stream up: ValueError: bad batch", 0),
        ("StreamClosedError: rank 0 has closed the stream: it receives no more", 0),
        ("GroupRevokedError: rank 2 has left the service: x", 2),
        ("CollectiveError: recv(from rank 2) of group 'a' failed on rank 1: ValueError: x", 1),
        ("CollectiveError: the operation failed on rank 1, which gave no reason", 1),
        ("CollectiveTimeoutError: barrier() timed out after 0.5 s on rank 1: it waits", 1),
    ],
)
def test_an_error_because_of_another_rank_is_a_consequence(error: str, named_cause: int) -> None:
    trace = failure(f"Traceback (most recent call last):\naiodist.errors.{error}")
    assert trace.is_consequence()
    assert trace.named_cause() == named_cause


def test_the_text_of_a_timeout_says_which_rank_it_is_of() -> None:
    facts = {"rank": 1, "group": "g", "sequence": 0, "tensor": ""}
    error = timed_out("barrier()", 0.5, "rank 2 is in no operation", [2], facts)
    trace = failure(
        f"Traceback (most recent call last):\naiodist.errors.CollectiveTimeoutError: {error}"
    )
    assert trace.named_cause() == 1


@pytest.mark.parametrize(
    "error",
    [
        "CollectiveError: broadcast() failed on rank 3: ValueError: x",
        "CollectiveTimeoutError: barrier() timed out after 0.5 s on rank 3: rank 1 is in no operation",
        "CollectiveMismatchError: ranks disagree: rank 3 called barrier(), rank 1 called gather()",
        "WorkerError: the handler raised on rank 1: ValueError: x",
        "ServiceClosedError: the service has ended on this rank: it answers no more requests",
    ],
)
def test_an_error_of_this_rank_or_of_all_is_no_consequence(error: str) -> None:
    assert not failure(
        f"Traceback (most recent call last):\naiodist.errors.{error}"
    ).is_consequence()


def grouped(*errors: Exception) -> Failure:
    try:
        raise ExceptionGroup("tasks", errors)
    except ExceptionGroup:
        return failure(traceback.format_exc())


def test_a_group_of_consequences_is_a_consequence() -> None:
    lost, revoked = PeerLostError("rank 2 is gone"), GroupRevokedError("rank 1 revoked it")
    nested = ExceptionGroup("inner", [lost])
    assert grouped(lost).named_cause() == 2
    assert grouped(revoked, nested).named_cause() == 1
    assert grouped(nested, ExceptionGroup("inner", [nested, revoked])).is_consequence()
    assert not grouped(lost, ValueError("own")).is_consequence()
    assert not grouped(ExceptionGroup("inner", [ValueError("own")]), lost).is_consequence()


def test_the_rank_that_torch_puts_before_each_line_is_left_out():
    tail = Tail()
    for line in LOST_IN_A_CALLBACK.splitlines():
        tail.feed(f"[rank11]: {line}\n".encode() if line else b"\n")
    assert tail.text() == f"{LOST_IN_A_CALLBACK}\n"
    tail = Tail()
    tail.feed(b"[rank0]:[W1123 a.cpp:12] a warning of torch's\nsaid [rank0]: x\n")
    assert tail.text() == "[rank0]:[W1123 a.cpp:12] a warning of torch's\nsaid [rank0]: x\n"


def test_colours_do_not_hide_that_another_rank_is_the_cause():
    """Python 3.13 and newer write them into a pipe, too, where FORCE_COLOR or PYTHON_COLORS is set."""
    tail = Tail()
    tail.feed(
        b'Traceback (most recent call last):\n  File \x1b[35m"a.py"\x1b[0m, line \x1b[35m3\x1b[0m\n'
    )
    tail.feed(b"\x1b[1;35maiodist.errors.PeerLostError\x1b[0m: \x1b[35mrank 1 has left\x1b[0m\n")
    text = tail.text()
    assert "\x1b" not in text
    assert failure(text).is_consequence()
    assert failure(text).named_cause() == 1


def test_a_tail_keeps_whole_lines_of_the_end():
    tail = Tail(limit=20)
    for number in range(100):
        tail.feed(b"line %d\n" % number)
    assert tail.text() == "line 98\nline 99\n"
    short = Tail()
    short.feed(b"10%\r20%\r\n\xff")
    assert short.text() == "10%\n20%\n\ufffd"
