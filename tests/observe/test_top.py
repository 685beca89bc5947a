"""`aiodist top` on a running job, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import termios
from collections.abc import Callable
from dataclasses import replace

import pytest

from aiodist.commands.main import main as aiodist
from aiodist.commands.terminal import Frames, has_colours
from aiodist.commands.top import Snapshot
from aiodist.observe.load import RankLoad
from aiodist.observe.rank_report import Identity
from aiodist.observe.usage import Usage
from tests.observe.conftest import Job

SLOW = """
import aiodist.sync as dist

dist.init_process_group(timeout=300)
while True:
    time.sleep(0.1 if dist.get_rank() == 1 else 0.0)
    dist.all_reduce(np.ones(1000, np.float32))
"""


def test_a_running_job_is_shown_with_its_slowest_and_its_silent_rank(
    start: Callable[[str, int], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(SLOW, 2)
    places = job.places(2)
    assert aiodist(["top", job.name, "--once", "--json", "-i", "0.5"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["slowest"] == 1
    quick, slow = facts["rank"]
    assert quick["waiting"] > 0.5 > slow["waiting"]
    assert slow["holds_up"] > 0.5 > quick["holds_up"]
    assert 0 < quick["sent"] == pytest.approx(4000 * quick["operations"], rel=0.3)
    assert quick["memory"] > 1 << 20
    os.kill(places[1].pid, signal.SIGSTOP)
    assert aiodist(["top", job.name, "--once", "-i", "0.1"]) == 0
    told = capsys.readouterr().out
    assert f"no answer: process {places[1].pid} is stopped" in told
    assert "Rank 1: no answer." in told
    assert "waits for 1" in told
    assert "\x1b" not in told
    os.kill(places[1].pid, signal.SIGCONT)


def test_a_terminal_is_drawn_in_place_until_q(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    with (
        os.fdopen(keyboard, "rb", buffering=0),
        os.fdopen(terminal, "w") as file,
        os.fdopen(os.dup(terminal)) as typed,
    ):
        monkeypatch.setattr(sys, "stdin", typed)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert has_colours(file)
        with Frames(file) as frames:
            frames.draw(["first"])
            frames.draw(["second"])
            drawn = b""
            while b"second" not in drawn:
                drawn += os.read(keyboard, 4096)
            assert drawn.count(b"\x1b[H") == 2
            assert b"first" in drawn
            os.write(keyboard, b"xq")
            assert frames.wait(60)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not has_colours(file)


def test_a_signal_that_ends_the_command_gives_the_terminal_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyboard, terminal = pty.openpty()
    with (
        os.fdopen(keyboard),
        os.fdopen(terminal, "w") as file,
        os.fdopen(os.dup(terminal)) as typed,
    ):
        monkeypatch.setattr(sys, "stdin", typed)
        monkeypatch.setenv("TERM", "xterm")
        mode = termios.tcgetattr(typed)
        outer = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            with pytest.raises(SystemExit, match="143"), Frames(file):
                signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        finally:
            signal.signal(signal.SIGTERM, outer)
        assert termios.tcgetattr(typed) == mode


@pytest.mark.parametrize(("size", "shown"), [(1, "1 rank"), (2, "2 ranks")])
def test_the_heading_counts_the_ranks(size: int, shown: str) -> None:
    heading = Snapshot("here", size, 1.0, {}, {}, {}).lines(None, colours=False)[0]
    assert heading.startswith(f"job here: {shown}, ")


def test_no_line_is_wider_than_the_terminal() -> None:
    job = "9b2d6a1e-6c1f-4f57-9d0e-0a8f5d0f3c11-97327738"  # a launcher's own name
    snapshot = Snapshot(job, 1, 1.0, {}, {}, {0: "process 14908 has ended"})
    assert max(map(len, snapshot.lines(80, colours=False))) == 80
    narrow = snapshot.lines(10, colours=False)
    assert max(map(len, narrow)) == 10
    assert narrow[-2:] == ["Rank 0: no", "answer."]  # which is not cut


def test_a_terminal_too_low_for_all_ranks_shows_the_silent_ones_and_the_conclusion() -> None:
    snapshot = Snapshot(
        "here", 64, 1.0, {}, {}, dict.fromkeys(range(64), "process 14908 has ended")
    )
    whole = snapshot.lines(80, colours=False)
    assert snapshot.lines(80, len(whole), colours=False)[1:] == whole[1:]
    low = snapshot.lines(80, 24, colours=False)
    assert len(low) == 24
    assert low[-3:] == ["and 46 more ranks", "", "Ranks 0-63: no answer."]


def usage(rank: int, size: int) -> Usage:
    identity = Identity("here", rank, size, "vm", "kernel", 100 + rank)
    return Usage(identity, 1, 0, 0.0, 0, 0, "", None, (), (), ())


def test_a_terminal_too_low_for_all_ranks_shows_the_slowest() -> None:
    usages = {rank: usage(rank, 64) for rank in range(64)}
    idle = RankLoad(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, is_sample=False)
    busy = {rank: replace(idle, holds_up=float(rank == 50)) for rank in range(64)}
    snapshot = Snapshot("here", 64, 1.0, usages, busy, {})
    low = snapshot.lines(80, 10, colours=False)
    assert [line.split()[0] for line in low[3:7]] == ["0", "1", "2", "50"]
    assert low[7:] == ["and 60 more ranks", "", low[-1]]
    assert low[-1].startswith("Rank 50 is the slowest")
    assert [line[:2] for line in snapshot.lines(80, 2, colours=False)[3:5]] == ["50", "an"]


def test_a_file_gets_one_picture_below_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    with Frames(sys.stdout) as frames:
        frames.draw(["first"])
        frames.draw(["second"])
        assert not frames.wait(0.0)
    assert capsys.readouterr().out == "first\n\nsecond\n"
