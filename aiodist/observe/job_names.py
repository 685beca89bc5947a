"""The names of jobs, and which jobs a name on a command line means."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST = 48


def plain_name(run_id: str) -> str:
    """Return AIODIST_RUN_ID as sockets and files can be called."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", run_id)[:_LONGEST]


def jobs_called(wanted: str | None, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that ``wanted`` means, sorted; all of them for None.

    A job's name is its AIODIST_RUN_ID, as `plain_name` has it, and a few digits
    (`observer.job_name`). A whole name comes first, then AIODIST_RUN_ID, then how names begin:
    ``exp1`` means no ``exp10`` if there is an ``exp1``.
    """
    known = sorted(names)
    if wanted is None:
        return known
    return (
        [name for name in known if name == wanted]
        or [name for name in known if name.rpartition("-")[0] == plain_name(wanted)]
        or [name for name in known if name.startswith(wanted)]
        or [name for name in known if name.startswith(plain_name(wanted))]
    )
