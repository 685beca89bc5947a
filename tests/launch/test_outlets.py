"""Where the ranks' lines go: folded, into files, or only those of some ranks on the screen."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.launch.job_summary import duration, summary
from aiodist.launch.outlets import FOLD_SECONDS, Folding, LogFile
from aiodist.launch.output import Piece, Screen
from tests.launch.conftest import Sandbox


class Folded:
    """A `Folding` on a pipe."""

    def __init__(self, n_ranks: int) -> None:
        self._read, write = os.pipe()
        self._written = os.fdopen(write, "wb")
        self.screen = Screen(write, tty=False)
        self.folding = Folding(
            self.screen, lambda ranks: b"%d" % len(ranks) + bytes(ranks), n_ranks
        )

    def put(self, rank: int, text: bytes, end: bytes = b"\n") -> None:
        self.folding.put(rank, rank, Piece(text, end))

    def lines(self) -> list[tuple[tuple[int, ...], bytes]]:
        """The ranks and the text of each line, once all are shown."""
        self.folding.release()
        self.screen.flush()
        self._written.close()
        with os.fdopen(self._read, "rb") as read:
            lines = read.read().splitlines()
        return [(tuple(line[1 : 1 + line[0] - 48]), line[1 + line[0] - 48 :]) for line in lines]


@pytest.fixture
def folded() -> Folded:
    return Folded(3)


def test_equal_lines_are_one_and_a_ranks_own_line_stands_between(folded: Folded) -> None:
    for rank in (1, 0, 2):
        for text in (b"load", b"own %d" % rank, b"step", b"step"):
            folded.put(rank, text)
    everyone, own = (0, 1, 2), [((1,), b"own 1"), ((0,), b"own 0"), ((2,), b"own 2")]
    assert folded.lines() == [(everyone, b"load"), *own, (everyone, b"step"), (everyone, b"step")]


def test_the_lines_of_each_rank_stay_in_their_order() -> None:
    source = random.Random(3)
    for _ in range(50):
        folded = Folded(4)
        written: dict[int, list[bytes]] = {rank: [] for rank in range(4)}
        for _ in range(100):
            rank, text = source.randrange(4), source.choice([b"a", b"b", b"c"])
            written[rank].append(text)
            folded.put(rank, text)
        shown = folded.lines()
        for rank, texts in written.items():
            assert [text for ranks, text in shown if rank in ranks] == texts


def test_a_line_waits_for_the_other_ranks_a_bounded_time(folded: Folded) -> None:
    assert folded.folding.due(0.0) == float("inf")
    folded.put(0, b"alone")
    born = folded.folding.due(0.0) - FOLD_SECONDS
    assert folded.folding.due(born) == pytest.approx(FOLD_SECONDS)
    folded.folding.release(born)
    assert folded.folding.due(born) > 0
    folded.folding.release(born + FOLD_SECONDS)
    assert folded.folding.due(born) == float("inf")
    assert folded.lines() == [((0,), b"alone")]


def test_a_prompt_is_shown_at_once_and_goes_on(folded: Folded) -> None:
    folded.put(1, b"first")
    folded.put(0, b"name? ", b"")
    folded.put(0, b"me")
    folded.put(1, b"last")
    assert folded.lines() == [((1,), b"first"), ((0,), b"name? me"), ((1,), b"last")]


@pytest.fixture
def full() -> Iterator[tuple[LogFile, list[str]]]:
    """A file on a full disk, and what is told."""
    from pathlib import Path

    told: list[str] = []
    file = LogFile(Path("/dev/full"), told.append)
    yield file, told
    file.close()


def test_a_line_in_a_file_has_nothing_of_another_stream(tmp_path: Path) -> None:
    """A process that was killed within a line may have a successor."""
    path = tmp_path / "rank0.log"
    file = LogFile(path, lambda text: None)
    for source, text, end in (
        ("before", b"", b"\r"),
        ("errors", b"started", b"\n"),
        ("before", b"9%", b"\r"),
        ("before", b"10%", b""),
        ("before", b" of", b""),
        ("after", b"", b"\r"),
        ("after", b"started", b"\n"),
        ("after", b"9%", b"\r"),
    ):
        file.put(source, Piece(text, end))
    file.close()
    assert path.read_bytes() == b"started\n9%\r10% of\nstarted\n9%\r"


def test_a_full_disk_is_told_once(full: tuple[LogFile, list[str]]) -> None:
    file, told = full
    for _ in range(3):
        file.put(0, Piece(b"text", b"\n"))
        file.flush()
    assert len(told) == 1
    assert "/dev/full does not get any more lines" in told[0]


def test_run_writes_files_shows_some_ranks_and_sums_up(
    sandbox: Sandbox, run_command: tuple[str, ...]
) -> None:
    script = sandbox.script("print('from', RANK, os.environ['X'], os.environ['AIODIST_RUN_ID'])\n")
    options = ("--log-dir", "logs/a", "--show-ranks", "1", "--env", "X=y=z", "--tag", "t1")
    code, _, err = sandbox.run(*run_command, "--log-dir", script, script)
    assert code == 2
    assert "--log-dir: no file can be written" in err
    code, out, err = sandbox.run(*run_command, "-n", "2", *options, script)
    assert (code, out) == (0, "[1] from 1 y=z t1\n")
    assert err.splitlines()[-1].startswith("aiodist: t1: 2 ranks, ")
    assert re.search(r" MiB \(rank [01]\), output in logs/a\n$", err)
    logs = sandbox.folder / "logs" / "a"
    assert (logs / "rank0.log").read_text() == "from 0 y=z t1\n"
    assert (logs / "rank1.log").read_text() == "from 1 y=z t1\n"


def test_peak_memory_is_that_of_the_largest_rank(
    sandbox: Sandbox, run_command: tuple[str, ...]
) -> None:
    script = sandbox.script("data = b'x' * (300 << 20 if RANK == '1' else 1)\n")
    _, _, err = sandbox.run(*run_command, "-n", "2", "--fold", script)
    (memory,) = [word for word in err.split() if word.isdecimal() and 300 <= int(word) < 340]
    assert f"peak memory {memory} MiB (rank 1)" in err


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.34, "12.3 s"), (125, "2 min 05 s"), (3725, "1 h 02 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("status", [b"Name:\tp\xf6\nVmHWM:\t1 kB\n", b"Name:\tp\nVmRSS:\t1 kB\n"])
def test_the_summary_needs_nothing_of_the_launchers_own_status(
    status: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may be no text, and a sandbox may leave the peak out."""
    (tmp_path / "status").write_bytes(status)
    monkeypatch.setattr("aiodist.launch.job_summary.Path", lambda _: tmp_path / "status")
    told = summary("", 1, 2.0, {0: 1 << 50}, None)
    assert told == "aiodist: 1 rank, 2.0 s, peak memory 1048576 GiB (rank 0)"
