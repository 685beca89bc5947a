"""Check the file that a command writes at its end, before the command begins."""

from __future__ import annotations

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
