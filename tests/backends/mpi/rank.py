"""One rank of an MPI job: ``python rank.py matrix:matrix ...`` runs programs in one world.

Prints ``NAME: ok`` on rank 0 for each program. A program that fails ends the job at once, with its
traceback: the other ranks may wait for this one.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import os
import sys
import traceback
import warnings

import aiodist as dist

SECONDS = 60.0


async def main(view_cache: list[str]) -> None:
    """Run them in order."""
    for program in view_cache:
        module, _, function = program.partition(":")
        run = getattr(importlib.import_module(f"tests.backends.mpi.programs.{module}"), function)
        await dist.init_process_group("mpi", timeout=SECONDS)
        await run()
        await dist.barrier()
        if dist.get_rank() == 0:
            print(f"{program}: ok", flush=True)
        await dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("error")
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
    try:
        asyncio.run(main(sys.argv[1:]))
    except BaseException:  # noqa: BLE001  # whatever it is, the others must not wait
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # mpiexec ends the others; an ordinary end would wait for them in MPI
