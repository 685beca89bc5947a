"""Lines of many ranks on one screen."""

from __future__ import annotations

import os
import random
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiodist.launch import output
from aiodist.launch.output import Console, LineSplitter, Piece, Screen
from tests.limits import scaled


class Captured:
    """A screen on a pipe, and what was written there."""

    def __init__(self, *, tty: bool) -> None:
        self.read_end, self.write_end = os.pipe()
        self.screen = Screen(self.write_end, tty=tty)

    def put(self, rank: int, text: bytes, end: bytes = b"\n") -> None:
        self.screen.put(rank, b"[%d] " % rank, Piece(text, end))

    def text(self) -> bytes:
        self.screen.flush()
        os.close(self.write_end)
        with os.fdopen(self.read_end, "rb") as read:
            return read.read()


@pytest.fixture
def file() -> Captured:
    return Captured(tty=False)


@pytest.fixture
def terminal() -> Captured:
    return Captured(tty=True)


def test_lines_are_cut_wherever_the_chunks_end():
    data = b"one\ntwo\r\nthree\rfour\n\nlast"
    whole = LineSplitter()
    expected = [
        Piece(b"one", b"\n"),
        Piece(b"two", b"\n"),
        Piece(b"three", b"\r"),
        Piece(b"four", b"\n"),
        Piece(b"", b"\n"),
    ]
    assert whole.feed(data) == expected
    assert whole.flush() == [Piece(b"last", b"")]
    assert whole.flush() == []


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_pieces_do_not_depend_on_where_the_stream_is_cut(size):
    data = b"one\r\ntwo\r\n\r\n10%\r20%\r\nlast\r"
    splitter = LineSplitter()
    pieces = [
        piece for at in range(0, len(data), size) for piece in splitter.feed(data[at : at + size])
    ]
    assert splitter.holds_text
    assert pieces + splitter.flush() == [
        Piece(b"one", b"\n"),
        Piece(b"two", b"\n"),
        Piece(b"", b"\n"),
        Piece(b"10%", b"\r"),
        Piece(b"20%", b"\n"),
        Piece(b"last", b"\r"),
    ]


def test_any_bytes_in_any_chunks_come_out_again():
    source = random.Random(7)
    data = source.randbytes(20_000).replace(b"\r", b"-") + b"end"
    splitter, pieces, rest = LineSplitter(), [], data
    while rest:
        cut = source.randrange(1, 500)
        pieces += splitter.feed(rest[:cut])
        rest = rest[cut:]
    pieces += splitter.flush()
    assert b"".join(text + end for text, end in pieces) == data


def test_each_byte_of_a_long_line_is_looked_at_once(monkeypatch):
    end, looked_at = output._END, []

    class Counting:
        def finditer(self, data, start=0):
            looked_at.append(len(data) - start)
            return end.finditer(data, start)

    monkeypatch.setattr(output, "_END", Counting())
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 1000) == []
    assert splitter.feed(b"\r") == []
    assert splitter.feed(b"\n") == [Piece(b"x" * 100_000, b"\n")]
    assert sum(looked_at) < 101_000


def test_a_line_beyond_the_limit_comes_in_parts():
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"123456789") == []
    assert splitter.feed(b"abc") == [Piece(b"123456789abc", b"")]
    assert splitter.feed(b"def\n") == [Piece(b"def", b"\n")]


def test_parts_of_a_long_line_have_one_prefix(file):
    file.put(0, b"long ", b"")
    file.put(0, b"line")
    file.put(0, b"next")
    assert file.text() == b"[0] long line\n[0] next\n"


def test_in_a_file_an_open_line_is_ended_before_another_ranks(file):
    file.put(0, b"open", b"")
    file.put(1, b"whole")
    file.put(0, b"rest")
    assert file.text() == b"[0] open\n[1] whole\n[0] rest\n"


def test_a_progress_bar_in_a_file_stays_on_its_line(file):
    file.put(0, b"", b"\r")
    file.put(0, b"10%", b"\r")
    file.put(0, b"20%", b"\r")
    file.put(0, b"", b"\n")
    file.put(1, b"done")
    assert file.text() == b"[0] 10%\r[0] 20%\r\n[1] done\n"


def test_on_a_terminal_lines_appear_above_the_bar(terminal):
    terminal.put(0, b"10%", b"\r")
    terminal.put(1, b"hello")
    terminal.put(0, b"20%", b"\r")
    assert terminal.text() == b"[0] 10%\r\r\x1b[K[1] hello\n[0] 10%\r[0] 20%\r"


def test_on_a_terminal_a_prompt_goes_on_after_another_ranks_line(terminal):
    terminal.put(0, b"name? ", b"")
    terminal.put(1, b"hello")
    terminal.put(0, b"me")
    assert terminal.text() == b"[0] name? \r\x1b[K[1] hello\n[0] name? me\n"


def test_two_bars_take_turns(terminal):
    terminal.put(0, b"a", b"\r")
    terminal.put(1, b"b", b"\r")
    terminal.put(0, b"", b"\n")
    assert terminal.text() == b"[0] a\r\r\x1b[K[1] b\r\r\x1b[K[0] \n[1] b\r"


def test_settling_ends_the_open_line_once(file):
    file.put(0, b"open", b"")
    file.screen.end_line()
    file.screen.end_line()
    file.put(0, b"new")
    assert file.text() == b"[0] open\n[0] new\n"


def test_flush_waits_for_a_slow_reader_of_a_non_blocking_pipe(file):
    os.set_blocking(file.write_end, False)
    size = 300_000  # more than a pipe holds
    file.put(0, b"x" * size)
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(lambda: os.read(file.read_end, 10) + _read_all(file.read_end))
        file.screen.flush()
        os.close(file.write_end)
        assert received.result() == b"[0] " + b"x" * size + b"\n"
    os.close(file.read_end)


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_while_a_slow_reader_is_waited_for_something_else_is_called(kind, monkeypatch):
    monkeypatch.setattr(output, "WAIT_SECONDS", 0.01)
    read_end, write_end = (os.openpty if kind == "terminal" else os.pipe)()
    screen = Screen(write_end, tty=kind == "terminal")
    called_while_full = threading.Event()

    def act() -> bool:
        if not select.select([], [write_end], [], 0)[1]:
            called_while_full.set()
        return True

    def read() -> bool:
        was_called = called_while_full.wait(scaled(5))
        received = 0
        while received < size:
            received += os.read(read_end, 1 << 16).count(b"x")
        return was_called

    size = 300_000  # more than a pipe or a terminal holds
    text = b"\n".join([b"x" * 100] * (size // 100))
    try:
        with ThreadPoolExecutor(1) as threads:
            was_called = threads.submit(read)
            with screen.calling_while_waiting(act):
                screen.put(0, b"", Piece(text, b"\n"))
                screen.flush()
            assert was_called.result()
        screen.put(0, b"", Piece(b"end", b"\n"))
        screen.flush()
        assert b"end" in os.read(read_end, 100)
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.fixture
def pty() -> Iterator[int]:
    leader, follower = os.openpty()
    yield follower
    os.close(leader)
    os.close(follower)


def test_ranks_have_colours_on_a_terminal_only(pty, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with open(os.devnull, "wb") as null:
        console = Console(pty, null.fileno())
        assert console.prefix([1], console.stdout) == b"\x1b[33m[1]\x1b[0m "
        assert console.prefix([1], console.stderr) == b"[1] "
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
            with monkeypatch.context() as patched:
                patched.setenv(name, value)
                console = Console(pty, null.fileno())
                assert console.prefix([1], console.stdout) == b"[1] "


def test_one_place_is_one_screen(pty):
    both = Console(pty, pty)
    assert both.stdout is both.stderr
    with open(os.devnull, "wb") as null:
        split = Console(pty, null.fileno())
    assert split.stdout is not split.stderr
