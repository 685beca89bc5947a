import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.errors import DistStoreError
from aiodist.observe.asking import _state
from aiodist.procfs import stat_fields
from aiodist.store.participants import Participant, check_admission, start_time, this_host

linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")


@linux
def test_a_name_that_ends_in_half_a_character_is_read(tmp_path):
    """The system cuts names to 15 bytes."""
    name = tmp_path / "обучение_модели"
    name.symlink_to(shutil.which("sleep"))
    with subprocess.Popen([name, "60"]) as child:
        try:
            assert b"\xd0)" in Path(f"/proc/{child.pid}/stat").read_bytes()
            assert start_time(child.pid) == start_time(child.pid) is not None
            assert len(stat_fields(child.pid)) > 20
            assert _state(child.pid) in ("R", "S", "D")
        finally:
            child.kill()


def test_this_process_lives():
    assert not Participant.current(0).is_dead()


@linux
def test_a_later_process_of_the_same_pid_is_another_one():
    me = Participant.current(0)
    assert me.started is not None
    assert replace(me, started=me.started - 1).is_dead()


def test_an_ended_process_is_dead_even_before_its_parent_waits_for_it():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        other = Participant("t", 0, child.pid, this_host(), start_time(child.pid))
        assert not other.is_dead()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # leaves it a zombie
        if other.started is not None:
            assert other.is_dead()
    assert other.is_dead()
    assert replace(other, started=None).is_dead()  # as on systems without /proc


@linux
def test_a_process_that_cannot_be_looked_at_is_not_dead(monkeypatch):
    me, read = Participant.current(0), Path.read_text

    def without_a_descriptor(path, **settings):
        if path.name == "stat":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(path, **settings)

    monkeypatch.setattr(Path, "read_text", without_a_descriptor)
    assert not me.is_dead()


def test_processes_of_other_hosts_count_as_unknown():
    assert not Participant("t", 0, 2**22 + 1, "elsewhere", 1).is_dead()


def test_admission():
    me = Participant.current(3)
    parent = Participant("t", 3, os.getppid(), me.host, start_time(os.getppid()))
    check_admission("f", me, [replace(parent, rank=2), me, replace(me, rank=None)])
    check_admission("f", replace(me, rank=None), [replace(parent, rank=None)])
    with pytest.raises(DistStoreError, match=rf"f: rank 3 is taken by .* process {parent.pid}"):
        check_admission("f", me, [parent])
    with pytest.raises(DistStoreError, match=r"f: rank 3 .* another host.*delete the file"):
        check_admission("f", me, [replace(parent, host="elsewhere")])
