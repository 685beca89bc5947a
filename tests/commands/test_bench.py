"""`aiodist bench`."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from importlib import metadata
from pathlib import Path

import pytest

import aiodist
from aiodist.bench.cases import Case
from aiodist.commands.bench import _cases, _job, _machine, parser
from aiodist.commands.main import main
from aiodist.launch.args import nodes_of
from benchmarks.processes import environment


@pytest.mark.slow
def test_bench_measures_checks_and_prints_all_libraries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_LIVENESS_TIMEOUT", "60")
    file = tmp_path / "times.json"
    options = ["-s", "4K", "--seconds", "0.2", "--json", str(file)]
    assert main(["bench", "all_gather", *options]) == 0
    out = capfd.readouterr().out
    assert out.startswith("all_gather, 2 ranks\n")
    assert "aiodist, blocking" in out
    assert "every result was right" in out
    rows = json.loads(file.read_text())
    assert [row["peer"] for row in rows] == ["gloo", "async", "blocking"]
    assert all(row["timing"]["p99"] >= row["timing"]["median"] > 0 for row in rows)


def test_sizes_are_rounded_up_to_equal_blocks() -> None:
    args = parser().read(["all_gather", "broadcast", "barrier", "-s", "4,1000"])
    assert _cases(args, 3) == [
        Case("all_gather", 3, 12),
        Case("all_gather", 3, 1008),
        Case("broadcast", 3, 4),
        Case("broadcast", 3, 1000),
        Case("barrier", 3, 0),
    ]


@pytest.mark.parametrize("name", ["bench/measuring_rank.py", "tuning/tuning_rank.py"])
def test_ctrl_c_ends_a_rank_that_measures_without_a_traceback(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "no order"])
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(ValueError, match="Expecting value"):
            runpy.run_path(str(Path(aiodist.__file__).parent / name), run_name="__main__")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_package_without_metadata_does_not_lose_the_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    assert _machine().endswith("torch (not installed), aiodist (not installed)")


def test_a_node_says_where_the_times_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodist.commands.bench.run_job", lambda spec: 0)
    nodes = ["--nnodes", "2", "--node_rank", "1", "--master_addr", "node0", "-n", "1"]
    assert main(["bench", *nodes]) == 0
    assert "node 0 shows and writes the times\n" in capsys.readouterr().err


def test_gloo_is_not_aiodist_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_INSTEAD_OF", "gloo")
    nodes = nodes_of(parser().read([]), {})
    assert "AIODIST_INSTEAD_OF" not in _job(nodes, 2, "{}").environment
    assert "AIODIST_INSTEAD_OF" not in environment()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["all_reduc"], "did you mean all_reduce?"),
        (["-n", "1"], "one rank has no other"),
        (["send_recv", "-n", "4"], "send_recv is between 2 ranks"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--seconds", "inf"], "above 0 and finite, not inf"),
        (["--against", "glo"], "did you mean gloo?"),
        (["--sizes", "big"], "write 4, 64K or 16M"),
        (["--svg", "figure.png"], "the picture is an SVG, which every browser shows"),
    ],
)
def test_mistakes(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    assert words in capsys.readouterr().err
