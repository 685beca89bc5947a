"""How many processes ``cpu``, ``gpu`` and ``auto`` stand for on this host."""

from __future__ import annotations

import glob
import subprocess
import sys

from aiodist.errors import InvalidUsageError
from aiodist.links.host import own_cores


def process_count(text: str) -> int:
    """Return what ``text`` names: digits, or ``cpu``, ``gpu``, ``auto`` (GPUs if any, else CPUs).

    Raises InvalidUsageError.
    """
    word = text.strip().lower()
    if word == "cpu":
        return len(own_cores())
    if word == "gpu":
        count = _gpus()
        if count == 0:
            raise InvalidUsageError("torch sees no GPU on this host: pass a number, or 'cpu'")
        return count
    if word == "auto":
        return _likely_gpus() or len(own_cores())
    try:
        count = int(word)
    except ValueError:
        raise InvalidUsageError(
            f"the number of processes must be a number, 'cpu', 'gpu' or 'auto', not {text!r}"
        ) from None
    if count < 1:
        raise InvalidUsageError(f"the number of processes must be at least 1, not {count}")
    return count


def _likely_gpus() -> int:
    """Return `_gpus` where there may be any: to ask torch takes seconds."""
    signs = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
    return _gpus() if any(map(glob.glob, signs)) else 0


def _gpus() -> int:
    """Return how many devices torch sees. Another process imports torch, which would stay in this one."""
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        check=False,
    )
    if done.returncode != 0:
        raise InvalidUsageError(
            "torch cannot be asked for its GPUs: " + done.stderr.strip().rpartition("\n")[2]
        )
    return int(done.stdout.split()[-1])
