"""The namespaces of a run go with it, wherever a signal ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import hosts


class System:
    """Keeps names as ``ip`` does, and is interrupted in one call: before its work or after it."""

    def __init__(self, names: Path, interrupted: int, works: bool) -> None:
        self.names = names
        self.calls = 0
        self._interrupted = interrupted
        self._works = works

    def run(self, *words: str) -> None:
        number, self.calls = self.calls, self.calls + 1
        if number != self._interrupted or self._works:
            match words:
                case ("ip", "netns", "add", name):
                    (self.names / name).touch(exist_ok=False)
                case ("ip", "netns", "delete", name):
                    (self.names / name).unlink()
        if number == self._interrupted:
            raise SystemExit(143)


@pytest.mark.parametrize("works", [False, True], ids=["before", "after"])
def test_a_signal_leaves_no_namespace_behind(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_NAMES", tmp_path)
    whole = System(tmp_path, -1, works)
    monkeypatch.setattr(hosts, "_run", whole.run)
    with hosts.namespaces(2) as names:
        assert {path.name for path in tmp_path.iterdir()} > set(names)
    assert not list(tmp_path.iterdir())

    for number in range(whole.calls):
        interrupted = System(tmp_path, number, works)
        monkeypatch.setattr(hosts, "_run", interrupted.run)
        with pytest.raises(SystemExit), hosts.namespaces(2):
            pass
        assert not list(tmp_path.iterdir()), f"interrupted in call {number}"
