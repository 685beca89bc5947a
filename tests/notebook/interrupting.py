"""Interrupt cells of a kernel and end it: ``python interrupting.py``; prints what happened as JSON.

A process for it, because the kernel's client leaves sockets and threads to the end.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

PIDS = "import os\nprint('pid', os.getpid(), flush=True)"
BLOCKING = "%%ranks\nimport time\nprint('waits', flush=True)\ntime.sleep(1000)"
ASYNC = "%%ranks\nimport asyncio\nprint('waits', flush=True)\nawait asyncio.sleep(1000)"
CLUSTER = """\
import aiodist
ranks = await aiodist.cluster(2).__aenter__()
print(*(f"pid {pid}" for pid in ranks.pids), sep="\\n")"""
RUN = """\
def wait():
    import time
    print("waits", flush=True)
    time.sleep(1000)
await ranks.run(wait)"""


class Notebook:
    """A kernel, and what its cells print."""

    def __init__(self, folder: str) -> None:
        # Sockets in a folder: kernels that start at the same moment may choose the same ports.
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=90)

    def run(self, source: str, *, interrupt: bool = False) -> str:
        """Execute a cell; return its output, and the name of its error. Interrupt it when both
        ranks wait.
        """
        request = self.client.execute(source, stop_on_error=False)
        text = error = ""
        interrupted = False
        while True:
            message: Any = self.client.get_iopub_msg(timeout=90)
            kind, content = message["msg_type"], message["content"]
            # ipykernel reports the error of an interrupted `await` below no cell.
            if kind == "error":
                error = content["ename"]
                if interrupt:
                    return text + error
            elif message["parent_header"].get("msg_id") != request:
                continue
            elif kind == "stream":
                text += content["text"]
                if interrupt and not interrupted and text.count("waits") == 2:
                    interrupted = True
                    self.manager.interrupt_kernel()
            elif content.get("execution_state") == "idle":
                return text + error

    def pids(self, source: str) -> list[int]:
        """Execute a cell that prints the ranks' process ids; return them."""
        printed = self.run(source)
        pids = [int(pid) for word, pid in pairwise(printed.split()) if word == "pid"]
        assert pids, f"no process ids in {printed!r}"
        return sorted(pids)


def living(pids: list[int], seconds: float = 20.0) -> list[int]:
    """Return which processes still live after so many seconds, or sooner where none does."""
    limit = time.monotonic() + seconds
    while True:
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left or time.monotonic() > limit:
            return left
        time.sleep(0.05)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="aiodist-") as folder:
        json.dump(facts_of(Notebook(folder)), sys.stdout)


def facts_of(notebook: Notebook) -> dict[str, Any]:
    """Interrupt cells and end the kernel; return what happened."""
    try:
        notebook.run("%load_ext aiodist.notebook")
        before = notebook.pids("%%ranks -n 2\n" + PIDS)
        ends = [notebook.run(cell, interrupt=True) for cell in (BLOCKING, ASYNC)]
        after = notebook.pids("%%ranks\n" + PIDS)
        others = notebook.pids(CLUSTER)
        ends.append(notebook.run(RUN, interrupt=True))
        alive = notebook.run("print(await ranks.run(lambda: 1))")
        notebook.manager.restart_kernel()
        left = living(before + others)
    finally:
        notebook.client.stop_channels()
        notebook.manager.shutdown_kernel(now=True)
    return {
        "before": before,
        "after": after,
        "others": others,
        "ends": ends,
        "alive": alive,
        "left": left,
    }


if __name__ == "__main__":
    main()
