"""A process that has imported torch once and forks ranks from itself, a program at a time.

It reads a line of JSON for each program, ``["ddp:equals_whole_batch", 3]``, and answers with one:
for each rank the traceback of its error, or null. The ranks have called
``init_process_group("aiodist")``, and call ``destroy_process_group`` at the end.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

from tests.limits import scaled

RANK_SECONDS = 100.0


def run(program: str, size: int) -> list[str | None]:
    """Each rank's traceback, or None where it ended well."""
    module, _, function = program.partition(":")
    with tempfile.TemporaryDirectory(prefix="aiodist-ranks-") as folder:
        fork = multiprocessing.get_context("fork")
        links, children = [], []
        for rank in range(size):
            here, there = fork.Pipe(duplex=False)
            child = fork.Process(target=_rank, args=(module, function, rank, size, folder, there))
            child.start()
            there.close()
            links.append(here)
            children.append(child)
        answers = [_answer(link) for link in links]
        for child in children:
            child.join(5.0)
            child.kill()
            child.join()
            child.close()
        return answers


def _answer(link: Any) -> str | None:
    try:
        if not wait([link], scaled(RANK_SECONDS)):
            return f"no answer within {scaled(RANK_SECONDS)} s"
        answer: str | None = link.recv()
        return answer
    except EOFError:
        return "the process died"
    finally:
        link.close()


def _rank(module: str, function: str, rank: int, size: int, folder: str, link: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ["TEST_FOLDER"] = folder
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        program = getattr(
            importlib.import_module(f"tests.torch_backend.programs.{module}"), function
        )
        dist.init_process_group(
            "aiodist",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
        )
        program(rank, size)
        if dist.is_initialized():
            dist.destroy_process_group()
        link.send(None)
    except BaseException:  # noqa: BLE001  # reported, whatever it is
        link.send(traceback.format_exc())
        link.close()
        os._exit(1)  # the others may wait for this one: let them see that it is gone
    link.close()


def main() -> None:
    faulthandler.enable()
    # Once, before any fork. What is imported here is imported in every rank.
    import torch._dynamo  # which every optimizer imports
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    import aiodist.torch_backend  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print is not an answer
    for line in sys.stdin:
        program, size = json.loads(line)
        print(json.dumps(run(program, size)), file=answers, flush=True)


if __name__ == "__main__":
    main()
