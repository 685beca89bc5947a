"""CPU use, GPU use and power of this machine, into a CSV while a recipe runs."""

from __future__ import annotations

import csv
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

COLUMNS = (
    "seconds",
    "cpu_percent",
    "memory_mib",
    "cpu_watts",
    "gpu_percent",
    "gpu_memory_mib",
    "gpu_watts",
)
QUERY = "utilization.gpu,memory.used,power.draw"
ENERGY = Path("/sys/class/powercap/intel-rapl:0/energy_uj")


@contextmanager
def sampled_to(file: Path | None, interval: float = 0.5) -> Iterator[None]:
    """Write a row of `COLUMNS` to ``file`` every ``interval`` seconds during the block, in a thread.

    A cell is empty where the machine does not tell: power needs Intel's counters and the right to
    read them, GPUs need nvidia-smi (their use is averaged, memory and power are added). ``file`` None:
    do nothing.
    """
    if file is None:
        yield
        return
    stop = threading.Event()
    file.parent.mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=_sample, args=(file, interval, stop), name="statistics")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _sample(file: Path, interval: float, stop: threading.Event) -> None:
    started = before = time.monotonic()
    energy = _energy()
    psutil.cpu_percent()  # the first call only remembers where the counters stand
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        ended = False
        while not ended:
            ended = stop.wait(interval)  # a short run has one row too
            now, joules = time.monotonic(), _energy()
            # The counter starts again at 0 now and then: that row has no power.
            known = energy is not None and joules is not None and joules >= energy
            watts = f"{(joules - energy) / (now - before):.1f}" if known else ""
            before, energy = now, joules
            memory = round(psutil.virtual_memory().used / 2**20)
            row = (f"{now - started:.2f}", psutil.cpu_percent(), memory, watts, *_gpus())
            writer.writerow(row)
            stream.flush()


def _energy() -> float | None:
    """Return the joules that the first CPU has used, or None where that cannot be read."""
    try:
        return int(ENERGY.read_text()) / 1e6
    except OSError:
        return None


def _gpus() -> tuple[float | str, float | str, float | str]:
    """Return mean use in per cent, MiB in use, watts; empty strings where there is no GPU."""
    if shutil.which("nvidia-smi") is None:
        return "", "", ""
    query = ("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    try:
        rows = [[float(cell) for cell in line.split(",")] for line in answer.stdout.splitlines()]
    except ValueError:  # "[N/A]"
        return "", "", ""
    if not rows:
        return "", "", ""
    use, memory, watts = (sum(column) for column in zip(*rows, strict=True))
    return use / len(rows), memory, watts
