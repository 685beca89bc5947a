"""The measured table of choices that a job was given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aiodist.collectives.rule_tables import decode
from aiodist.errors import InvalidUsageError


def table_from(environ: Mapping[str, str]) -> bytes:
    """Return the table of choices in the file that AIODIST_TABLE names. Raises InvalidUsageError."""
    path = environ.get("AIODIST_TABLE", "")
    if not path:
        return b""
    try:
        table = Path(path).read_bytes()
    except OSError as error:
        raise InvalidUsageError(
            f"AIODIST_TABLE={path}: {error.strerror}; aiodist tune makes such a file"
        ) from error
    try:
        decode(table)
    except InvalidUsageError as error:
        raise InvalidUsageError(f"AIODIST_TABLE={path}: {error}") from None
    return table
