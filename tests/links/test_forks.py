"""What forked children close, and what a process that makes many groups keeps of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import pytest

import aiodist.sync as dist
from aiodist.links.forks import close_in_children


class Owner:
    """An object that notes whether it was closed."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.closed = False

    def close_in_child(self) -> None:
        self.closed = True
        if self.fails:
            raise OSError("closed already")


def status_of_child(program: Callable[[], bool]) -> int:
    """Return 0 if ``program()`` holds in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if program() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_closes_all_owners_also_after_one_that_fails() -> None:
    owners = [Owner(), Owner(fails=True), Owner()]
    for owner in owners:
        close_in_children(owner)
        close_in_children(owner)
    assert status_of_child(lambda: all(owner.closed for owner in owners)) == 0
    assert not any(owner.closed for owner in owners)


def test_groups_that_are_destroyed_leave_no_hook_for_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = []
    register_at_fork = os.register_at_fork

    def counting(**hooks: Callable[[], None]) -> None:
        registered.append(hooks)
        register_at_fork(**hooks)

    monkeypatch.setattr(os, "register_at_fork", counting)
    for _ in range(3):
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        dist.barrier()
        dist.destroy_process_group()
    assert registered == []
