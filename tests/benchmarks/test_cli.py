"""Wrong words on the command line are answered in a line, before anything is measured."""

from __future__ import annotations

import pytest

from benchmarks.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 0", "numbers above 0"),
        ("--ranks 1", "nothing to measure with 1 rank"),
        ("--sizes x", "no number of bytes"),
        ("--passes 0", "--passes must be at least 1"),
        ("--peers nonsense", "no peer 'nonsense'; there are gloo"),
        ("--peers nowhere:Peer", "nowhere"),
        ("--peers math:Peer", "Peer"),
        ("--operations all", "no operation all; there are all_reduce"),
        ("--fast", "unrecognized arguments: --fast"),
        ("--output /proc", "--output /proc: no file can be written there (Is a directory)"),
        ("--output /proc/no/file", "/proc/no"),
    ],
)
def test_invalid_arguments_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.run.run", None)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--quick", *words.split()])
    assert said in f"{ended.value} {capsys.readouterr().err}"


def test_late_ranks_are_not_measured_with_an_unknown_peer() -> None:
    with pytest.raises(SystemExit, match="no peer 'nonsense'; there are gloo"):
        main(["arrival", "--quick", "--peers", "gloo,nonsense"])
