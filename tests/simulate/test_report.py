"""``aiodist simulate`` and the page that is made with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiodist.commands.main import main
from aiodist.launch.starting import USAGE_ERROR
from aiodist.simulate.report import duration, size

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.parametrize(
    ("operation", "ranks"),
    [
        ("all_reduce", "16,256,4096"),  # its 65,536 ranks take ten seconds
        ("all_gather", "16,256,4096"),
        ("barrier", "16,256,4096,65536"),
    ],
)
def test_the_page_equals_the_output_of_the_command(
    operation: str, ranks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", operation, "-n", ranks, "-s", "1M,64M,1G", "--markdown"]
    assert main(argv) == 0
    title, table = capsys.readouterr().out.strip().split("\n\n")
    page = PAGE.read_text(encoding="utf-8")
    shown = page[page.index(f"{title}\n") :].split("\n\n")[1].splitlines()
    left_out = [row for row in shown if row.startswith("| 65,536 |") and "65536" not in ranks]
    assert [row for row in shown if row not in left_out] == table.splitlines()


def test_a_table_for_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "all_reduce", "-n", "4", "-s", "4", "--latency", "10", "--overhead", "0"]
    assert main([*argv, "--bandwidth", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all_reduce"
    assert lines[1].split() == [
        *("ranks", "bytes", "algorithm", "time", "bytes", "alone", "messages", "sent"),
        *("by", "formula"),
    ]
    first = lines[2].split()
    assert first[:5] == ["4", "4", "B", "doubling*", "20"]
    assert first[-5:] == ["2", "8", "B", "8", "B"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["reverse"], "no operation is called 'reverse'"),
        (["-s", "4X"], "'4X' is no number of bytes"),
        (["-n", "4,0"], "no list of numbers above 0"),
        (["-n", "4,99999999999"], "at most 1,048,576 ranks, not 99,999,999,999"),
        (["all_reduce", "all_to_all", "--per-host", "2"], "all_to_all over hosts"),
        (["--bandwidth", "0"], "above 0 GB/s"),
        (["--latency", "-1"], "no cost is negative"),
        (["--latency", "nan"], "latency is nan: no cost"),
        (["--overhead", "inf"], "overhead is inf: no cost"),
        (["--bandwidth", "nan"], "per_byte is nan: no cost"),
    ],
)
def test_wrong_questions(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *argv]) == USAGE_ERROR
    out, err = capsys.readouterr()
    assert out == ""  # nothing is simulated before
    assert said in err


def test_stderr_names_each_algorithm_that_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "all_to_all", "-n", "4,5000", "-s", "4K"]) == 0
    out, err = capsys.readouterr()
    assert len(out.strip().splitlines()) == 4  # both algorithms on 4 ranks
    assert err == (
        "aiodist: all_to_all: pairwise on 5,000 ranks with 4 KiB is left out: it would take "
        "minutes\n"
    )


def test_numbers_never_need_an_exponent() -> None:
    assert [size(n) for n in (0, 1000, 1500, 1023 << 10, (1 << 20) - 256, (1 << 20) - 1000)] == [
        *("0 B", "1000 B", "1.46 KiB", "1023 KiB", "1 MiB", "1023 KiB"),
    ]
    assert size((1 << 30) - (1 << 18)) == "1 GiB"
    assert [duration(s) for s in (0.0, 999.4e-6, 999.6e-6, 0.0123, 0.9996, 1234.0)] == [
        *("0 us", "999 us", "1 ms", "12.3 ms", "1 s", "1234 s"),
    ]
