"""Where and with what something was measured. No host name, no path: the page is public."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "uvloop", "msgpack")


def describe() -> dict[str, Any]:
    """The machine, the versions and the moment, as JSON can hold it."""
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": _memory(),
        "system": f"{platform.system()} {kernel}, {platform.machine()}",
        "congestion_control": _congestion_control(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "aiodist": {"version": _version("aiodist"), "commit": commit()},
    }


def busy(machine: dict[str, Any]) -> bool:
    """Whether the described machine had other work before the run."""
    load, cores = machine["load_average"][0], machine["cores"]
    return bool(load > 0.3 * (cores or 1))


def commit() -> str:
    """The commit that was measured; marked where files were changed after it."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "aiodist")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name} with uncommitted changes" if changed else name


def _git(*arguments: str) -> str:
    root = Path(__file__).parents[1]
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _congestion_control() -> str:
    """Return the system's default congestion control of TCP; empty if the system does not tell."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return ""


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
