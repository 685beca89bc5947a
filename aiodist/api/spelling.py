"""Misspelt environment variables, which nothing reads."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES = tuple(
    f"AIODIST_{name}"
    for name in (
        "ALLOW_PICKLE",
        "BUFFER_BYTES",
        "CUDA_IPC",
        "DUMP_DIR",
        "HOST_ID",
        "INIT_TIMEOUT",
        "INSTEAD_OF",
        "LIVENESS_TIMEOUT",
        "MPI_CHECK",
        "RECORDER_SIZE",
        "REJOIN_STORE",
        "REPLACEMENT",
        "RESTART_COUNT",
        "RUN_ID",
        "SECRET",
        "SECRET_FILE",
        "SHM_BYTES",
        "SOCKET_IFNAME",
        "STREAMS",
        "TABLE",
        "TLS_CA",
        "TLS_CERT",
        "TLS_KEY",
        "TORCH_GROUP",
        "TRACE_DIR",
        "TRANSPORT",
    )
)
"""The variables that this package reads, or sets for its own processes."""

_NEAR = 0.85
"""difflib's ratio from which a name counts as misspelt: one letter wrong or two exchanged."""


def misspelt_in(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable whose name nearly is one of `VARIABLES`."""
    from difflib import get_close_matches  # imported where needed: rank 0 alone looks

    return [
        f"{name} is set, and nothing reads it: is {meant} meant?"
        for name in environ
        if name not in VARIABLES
        and get_close_matches(name.partition("_")[0], ["AIODIST"], 1, _NEAR)
        for meant in get_close_matches(name, VARIABLES, 1, _NEAR)
    ]
