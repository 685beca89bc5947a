"""Find the address of a Slurm node whose name this host cannot look up, as in a container."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from functools import partial

_SECONDS = 20.0
"""Timeout in seconds for scontrol, which asks the controller."""


def address_of_node(name: str, environ: Mapping[str, str], seconds: float = _SECONDS) -> str:
    """Return ``name`` if this host can look it up, else the node's address as Slurm knows it.

    ``name``: that of the first node of a Slurm step. A name that the user has set as MASTER_ADDR,
    and any name outside of a Slurm job, is returned unchanged.

    Asks SLURM_NODE_ALIASES, then ``scontrol``, then SLURM_LAUNCH_NODE_IPADDR: a batch script runs
    srun on the first node, which is that of rank 0. Returns ``name`` if none of them helps. Blocks
    for a name look-up, and for scontrol up to ``seconds``, of which 20 are the most.
    """
    ask_scontrol = partial(_of_scontrol, seconds=min(seconds, _SECONDS))
    candidates = (_alias, ask_scontrol, _launching_node)
    in_job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not in_job or environ.get("MASTER_ADDR") or _is_known(name):
        return name
    return next((a for ask in candidates if (a := ask(name, environ)) and _is_known(a)), name)


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _alias(name: str, environ: Mapping[str, str]) -> str:
    """Find ``name`` in ``name:address:hostname`` of each node of a cloud, separated by commas."""
    for entry in environ.get("SLURM_NODE_ALIASES", "").split(","):
        node, _, rest = entry.partition(":")
        if node == name and rest:
            bracketed = re.match(r"\[([^\]]*)\]", rest)
            return bracketed[1] if bracketed else rest.partition(":")[0]
    return ""


def _of_scontrol(name: str, environ: Mapping[str, str], seconds: float) -> str:
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "--oneliner", "show", "node", name],
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # comments in other fields may have any bytes
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return found[1] if found else ""


def _launching_node(name: str, environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
