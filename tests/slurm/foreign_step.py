"""Another user of the cluster, who tries to take part in a job: prints what each try came to.

Imports are done as root, since only root may read this environment's files.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # names are looked up in one, and it is imported late
import encodings.idna  # noqa: F401  # host names are encoded by it, and it is imported late
import os
import sys

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError
from aiodist.rendezvous.munge import Munge, StepSecret
from aiodist.store import TcpStore

NOBODY = 65534


async def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    told = StepSecret(Munge.find(os.environ))
    for learn in (None, told.learn):
        try:
            async with await TcpStore.connect(host, port, Deadline(30), learn=learn):
                print("it was let in", flush=True)
        except DistStoreError as error:
            print(error, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
