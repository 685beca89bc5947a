"""What is said of a rank that answers at none of its addresses."""

from __future__ import annotations

from aiodist.errors import DistError, DistNetworkError
from aiodist.links.dialing import unreachable


def failed(text: str, cause: BaseException | None) -> DistError:
    error = DistNetworkError(text)
    error.__cause__ = cause
    return error


REFUSED = failed("cannot connect to tcp:h:1: refused", ConnectionRefusedError())
NO_FILE = failed("cannot connect to unix:/x: refused", FileNotFoundError())
STRIPED = failed("of 2 streams, number 0 failed: refused", REFUSED)
SILENT = failed("timed out", TimeoutError())


def test_a_refused_connection_means_that_the_process_has_probably_ended() -> None:
    assert unreachable({"unix:/x": NO_FILE, "tcp:h:1": REFUSED}, left=False) == (
        "has probably left, or its process has ended: cannot connect to unix:/x: refused; "
        "cannot connect to tcp:h:1: refused"
    )
    assert unreachable({"tcps://h:1": STRIPED}, left=False).startswith("has probably left")


def test_another_dialing_error_tells_nothing_about_the_process() -> None:
    assert unreachable({"unix:/x": NO_FILE, "tcp:h:2": SILENT}, left=False) == (
        "cannot be reached: unix:/x: cannot connect to unix:/x: refused; tcp:h:2: timed out"
    )
    assert "let AIODIST_TRANSPORT on both ranks name" in unreachable({}, left=False)


def test_a_rank_that_said_goodbye_has_left() -> None:
    assert unreachable({"tcp:h:1": REFUSED}, left=True).startswith("has left: ")
