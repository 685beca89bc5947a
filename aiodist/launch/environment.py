"""The environment variables by which a started process learns its place in the job."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping

from aiodist.credentials import job_secret

INHERITED_FROM_AN_OUTER_JOB = (
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "AIODIST_REJOIN_STORE",
    "AIODIST_REPLACEMENT",
    "AIODIST_RESTART_COUNT",
)
"""Removed from the ranks' environment: they describe a launcher that is not this job's, and would
send the ranks to a store that is not theirs."""


def rank_environment(
    *, rank: int, local_rank: int | None, world_size: int, local_world_size: int | None
) -> dict[str, str]:
    """Return the variables that tell one process its place. A value that is None makes no variable."""
    place = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": local_world_size,
    }
    return {name: str(value) for name, value in place.items() if value is not None}


def meeting_environment(address: str, port: int) -> dict[str, str]:
    """Return the variables that say where the ranks meet."""
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def job_identity(base: Mapping[str, str]) -> dict[str, str]:
    """Return AIODIST_SECRET and AIODIST_RUN_ID of a job on one host: those in ``base``, or new ones."""
    return {
        "AIODIST_SECRET": secret_or_new(base),
        "AIODIST_RUN_ID": base.get("AIODIST_RUN_ID") or str(uuid.uuid4()),
    }


def secret_or_new(base: Mapping[str, str]) -> str:
    """Return AIODIST_SECRET in ``base``, or 32 random bytes in hex.

    An empty value counts as unset: an empty secret would protect nothing.
    """
    return job_secret(base).decode() or secrets.token_hex(32)
