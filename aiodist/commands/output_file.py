"""The file that a command writes at its end: check it before the command begins, and write it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from aiodist.errors import InvalidUsageError


def check_output(option: str, path: Path) -> None:
    """Raise InvalidUsageError if the file ``path`` of ``option`` cannot be written.

    The file is as it was afterwards: one that was not there is absent.
    """
    try:
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.resolve().unlink()  # of a link that leads to no file yet, what it leads to
    except OSError as error:
        raise InvalidUsageError(
            f"{option} {path}: no file can be written there ({error.strerror}); name a file in a "
            "folder that exists and that you may write to"
        ) from None


def write_output(path: Path, text: str) -> None:
    """Write ``text`` to the file ``path``. Raises OSError with the name of the file, as on a full disk.

    A file of which only a part could be written is removed, if its folder allows that.
    """
    file = path.open("w", encoding="utf-8")
    try:
        with file:
            file.write(text)
    except OSError as error:
        if path.is_file():  # neither a pipe nor a device
            with suppress(OSError):
                path.resolve().unlink()
        error.filename = str(path)
        raise
