"""What the system tells about a process, this boot and this host; most of it stands in /proc."""

from __future__ import annotations

import socket
from pathlib import Path


def stat_fields(pid: int | str) -> list[str]:
    """Return the fields of a process from its state on: state, parent, process group, ..., [19] start time.

    Raises OSError for a process that has ended, and on systems without /proc.
    """
    # "pid (name) state ...": the name may hold spaces and parentheses, and end in half a character.
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def boot_and_namespace(kind: str) -> str:
    """Return a text that is equal for the processes of one boot in one namespace of this ``kind``.

    Without /proc it is the host's name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path(f'/proc/self/ns/{kind}').readlink()}"
    except OSError:
        return host_name()


def host_name() -> str:
    """Return the name of this host as text for messages: each byte of it that is not UTF-8 is a "?"."""
    return socket.gethostname().encode(errors="replace").decode()
