"""A file that a command cannot write is a mistake in the command line, told before the work begins."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.commands.main import main
from aiodist.commands.output_file import check_output, write_output
from aiodist.errors import InvalidUsageError

COMMANDS = {
    "run": (["run", "--trace", "FILE", "x.py"], "--trace"),
    "trace": (["trace", "parts", "-o", "FILE"], "--output"),
    "map": (["trace", "parts", "--map", "FILE.svg"], "--map"),
    "bench": (["bench", "barrier", "--json", "FILE"], "--json"),
    "tune": (["tune", "-o", "FILE"], "--output"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_in_no_folder_is_refused_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("open('began', 'w').close()")
    argv, option = COMMANDS[name]
    assert main([each.replace("FILE", "none/file") for each in argv]) == 2
    told = capsys.readouterr().err
    assert f"{option} none/file" in told
    assert "no file can be written there (No such file or directory); name a file" in told
    assert [path.name for path in tmp_path.iterdir()] == ["x.py"]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match=r"--trace .*\(Is a directory\)"):
        check_output("--trace", tmp_path)


def test_a_check_changes_no_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("a trace of before")
    check_output("--trace", kept)
    check_output("--trace", tmp_path / "new")
    assert kept.read_text() == "a trace of before"
    assert list(tmp_path.iterdir()) == [kept]


def test_a_check_keeps_a_link_that_leads_to_no_file_yet(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new")
    check_output("--trace", link)
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file grows beyond 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_file_that_could_not_be_written_to_its_end_is_named_and_removed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"File too large: '.*/trace\.json'"):
        write_output(tmp_path / "trace.json", "{}" * 100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_files")
def test_a_folder_that_keeps_its_files_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match=r"File too large: '.*/trace\.json'"):
        write_output(tmp_path / "trace.json", "{}" * 100)


def test_a_device_that_is_full_is_named_and_stays() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_output(Path("/dev/full"), "{}")
    assert Path("/dev/full").exists()
