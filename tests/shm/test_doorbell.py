"""A pipe by which ranks wake each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from aiodist.shm.doorbell import Doorbell, open_doorbell, ring


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()
    bell.close()


def test_tells_which_groups_were_rung_for(bell: Doorbell) -> None:
    fd = open_doorbell(os.getpid(), bell.number)
    for group in (7, 1 << 40, 7):
        ring(fd, group)

    assert bell.take() == {7, 1 << 40}
    assert bell.take() == set()
    os.close(fd)


def test_a_full_pipe_is_no_error(bell: Doorbell) -> None:
    fd = open_doorbell(os.getpid(), bell.number)
    for _ in range((1 << 20) // 8 + 1):
        ring(fd, 1)

    assert bell.take() == {1}
    os.close(fd)


def test_a_rank_that_is_gone_is_an_error(bell: Doorbell) -> None:
    fd = open_doorbell(os.getpid(), bell.number)
    bell.close()

    with pytest.raises(OSError, match="Broken pipe"):
        ring(fd, 1)
    os.close(fd)


def test_only_a_pipe_is_opened(bell: Doorbell) -> None:
    with open(os.devnull, "w") as other, pytest.raises(OSError, match="is no pipe"):
        open_doorbell(os.getpid(), other.fileno())


def test_a_thread_waits_until_it_is_rung_and_takes_that_ring(bell: Doorbell) -> None:
    bell.ring()
    assert bell.wait(10.0)

    assert bell.take() == set()
    assert not bell.wait(0.001)  # nothing came


def test_a_thread_in_a_doorbell_that_closes_reads_no_other_file(bell: Doorbell) -> None:
    bell.ring()
    assert bell.wait(10.0)
    number = bell.fd
    bell.close()
    with open(os.devnull) as reuses:
        assert reuses.fileno() == number
        bell.wait(0.001)  # as the thread may, which has not learned of the end yet
