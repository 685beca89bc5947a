"""Warnings about misspelt environment variables, which nothing reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger("aiodist")

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


def warn_of_misspelt(environ: Mapping[str, str]) -> None:
    """Log the variables whose name nearly is one of `VARIABLES`, and leave other names alone."""
    from difflib import get_close_matches  # imported where needed: rank 0 alone looks

    for name in environ:
        prefix = name.partition("_")[0]
        if name not in VARIABLES and get_close_matches(prefix, ["AIODIST"], 1, _NEAR):
            for meant in get_close_matches(name, VARIABLES, 1, _NEAR):
                log.warning("%s is set, and nothing reads it: is %s meant?", name, meant)
