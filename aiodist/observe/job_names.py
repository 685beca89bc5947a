"""Which jobs a name on a command line means."""

from __future__ import annotations

from collections.abc import Iterable


def jobs_called(wanted: str | None, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that ``wanted`` means, sorted; all of them for None.

    A job's name is its AIODIST_RUN_ID and a few digits (`observer.job_name`). A whole name comes
    first, then AIODIST_RUN_ID, then how names begin: ``exp1`` means no ``exp10`` if there is an
    ``exp1``.
    """
    known = sorted(names)
    if wanted is None:
        return known
    return (
        [name for name in known if name == wanted]
        or [name for name in known if name.rpartition("-")[0] == wanted]
        or [name for name in known if name.startswith(wanted)]
    )
