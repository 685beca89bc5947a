"""A pipeline by streams: one rank reads, each of the others has some layers, the last one writes.

    aiodist run -n 4 examples/apps/pipeline.py texts.txt scores.jsonl

Each line of the input becomes a line {"text": ..., "score": ...} of the output, in the same order. All
stages work at once. A stage that is slow holds those before it back: `window` batches wait for it at
most. The end of the input ends the stages one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

import torch
from torch import nn

import aiodist as dist

WIDTH, LAYERS, BATCH = 32, 6, 8


def batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lists of up to BATCH lines, without their ends."""
    kept = (line.rstrip("\n") for line in lines)
    while batch := list(islice(kept, BATCH)):
        yield batch


def embed(texts: list[str]) -> torch.Tensor:
    """A vector for each text: how often each of WIDTH kinds of characters occurs in it."""
    rows = torch.zeros(len(texts), WIDTH)
    for row, text in zip(rows, texts, strict=True):
        for character in text:
            row[ord(character) % WIDTH] += 1
    return rows


def layers(part: int, parts: int) -> nn.Sequential:
    """One stage's layers of the model, which is the same for any number of stages."""
    torch.manual_seed(1)
    every = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    first, last = LAYERS * part // parts, LAYERS * (part + 1) // parts
    return nn.Sequential(*every[first:last])


async def read(path: str) -> AsyncIterator[dict]:
    """The batches of a file. Reading it happens in a thread: the loop goes on meanwhile."""
    with open(path, encoding="utf-8") as file:  # noqa: ASYNC230  # opening it is quick
        parts = batches(file)
        while texts := await asyncio.to_thread(next, parts, None):
            yield {"texts": texts, "state": embed(texts)}


async def compute(source: AsyncIterator[dict], model: nn.Module) -> AsyncIterator[dict]:
    """What comes from ``source``, through this stage's layers."""
    async for batch in source:
        with torch.no_grad():
            batch["state"] = await asyncio.to_thread(model, batch["state"])
        yield batch


async def write(source: AsyncIterator[dict], path: str) -> int:
    """Write a line for each text; return how many there were."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:  # noqa: ASYNC230
        async for batch in source:
            scores = batch["state"].mean(1).tolist()
            for text, score in zip(batch["texts"], scores, strict=True):
                print(json.dumps({"text": text, "score": round(score, 4)}), file=file)
            count += len(scores)
    return count


async def main() -> None:
    """Be one stage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--window", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    async with dist.process_group() as group:
        rank, last = group.rank(), group.size() - 1
        if not last:
            raise SystemExit("two ranks or more: one reads, the others compute")
        if rank == 0:
            async with dist.open_stream(1, window=arguments.window) as after:
                async for batch in read(arguments.input):
                    await after.send(batch)
            return
        model = layers(rank - 1, last)
        async with dist.open_stream(rank - 1, window=arguments.window) as before:
            results = compute(before, model)
            if rank == last:
                print(await write(results, arguments.output), "texts", flush=True)
                return
            async with dist.open_stream(rank + 1, window=arguments.window) as after:
                async for batch in results:
                    await after.send(batch)


if __name__ == "__main__":
    asyncio.run(main())
