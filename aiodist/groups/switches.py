"""Environment variables that are 0 or 1."""

from __future__ import annotations

from collections.abc import Mapping

from aiodist.errors import InvalidUsageError


def switch_from(name: str, environ: Mapping[str, str]) -> bool | None:
    """Return what the variable ``name`` says; None where it is not set or empty.

    Raises InvalidUsageError for a value that is neither 0 nor 1.
    """
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise InvalidUsageError(f"{name} must be 0 or 1, not {text!r}")
    return text == "1" if text else None
