"""Completion scripts, and what every command has."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from aiodist.commands.command_table import COMMANDS, load
from aiodist.commands.main import main

COMPLETE = """
try() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _shtab_aiodist aiodist "${COMP_WORDS[COMP_CWORD]}" ""; echo "${COMPREPLY[*]}"; }
try aiodist t; try aiodist run --show; try aiodist run tr; try aiodist completion ""
try aiodist bench all_r; aiodist() { echo "$* exp1"; }; try aiodist top e
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_files_and_choices(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    done = subprocess.run(
        ["bash", "-c", script("bash", capsys) + COMPLETE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "top trace tune",
        "--show-ranks --show_ranks",
        "train.py",
        "bash zsh fish",
        "all_reduce",
        "exp1",
    ]


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("zsh", ["#compdef aiodist", "--show-ranks", "_files", "(bash zsh fish)"]),
        ("fish", ["complete -c aiodist", "-l show-ranks", "__fish_complete_path", "bash zsh fish"]),
    ],
)
def test_zsh_and_fish_have_commands_options_files_and_choices(
    shell: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    assert [word for word in [*words, *COMMANDS] if word not in text] == []


def test_without_shtab_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'aiodist[completion]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_has_examples(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as done:
        main(["help", name])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: aiodist {name} ")
    assert f"aiodist {name}" in text.partition("examples:\n")[2]
    assert "\x1b" not in text
    assert load(name).parser().prog == f"aiodist {name}"
