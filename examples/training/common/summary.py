"""The end of a run: what it measured, in a few lines and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn

from common.meters import Result
from common.models import fingerprint
from common.ranks import Ranks
from common.traffic import Traffic


def finish(
    options: argparse.Namespace,
    ranks: Ranks,
    model: nn.Module,
    trained: Result | None,
    evaluated: Result,
    traffic: Traffic | None = None,
) -> None:
    """Compare the replicas, and have rank 0 print what was measured and write ``--summary``.

    ``trained``: the result of the last epoch of training, or None without one: images per second are then
    those of the evaluation. ``traffic``: of all of the run. Call it on all ranks. Raises RuntimeError if
    the replicas differ.
    """
    prints = ranks.gather(fingerprint(model))
    if len(set(prints)) != 1:
        raise RuntimeError(f"the replicas differ: {prints}")
    seconds: list[float] = []
    sent, steps = 0.0, 0
    if traffic is not None:
        counts = ranks.gather(
            len(traffic.seconds)
        )  # with uneven batches ranks take more steps or less
        steps = sum(counts) // ranks.size
        missing = [0.0] * (max(counts) - len(traffic.seconds))
        rows = torch.tensor([traffic.bytes, *traffic.seconds, *missing], dtype=torch.float64)
        sent, *seconds = (ranks.sum(rows) / ranks.size).tolist()
    if ranks.rank != 0:
        return
    count = "1 rank" if ranks.size == 1 else f"{ranks.size} ranks"
    print(
        f"accuracy       top-1 {evaluated.top1:.2f} %, top-5 {evaluated.top5:.2f} % "
        f"of {evaluated.images} images, loss {evaluated.loss:.3f}"
    )
    name, measured = ("evaluation", evaluated) if trained is None else ("training", trained)
    print(f"{name:14} {measured.images_per_second:.0f} images/s")
    if steps:
        print(
            f"communication  {sum(seconds):.2f} s, {sent / steps:,.0f} bytes of gradients a step and rank"
        )
    print(f"replicas       bitwise the same on {count} (sha256 {prints[0][:12]})")
    if options.summary is None:
        return
    summary = {
        "recipe": Path(sys.argv[0]).stem,
        "backend": getattr(options, "dist_backend", None),
        "ranks": ranks.size,
        "arch": options.arch,
        "epochs": options.epochs,
        "images_per_second": measured.images_per_second,
        "loss": evaluated.loss,
        "top1": evaluated.top1,
        "top5": evaluated.top5,
        "images": evaluated.images,
        "communication_seconds": sum(seconds) if traffic is not None else None,
        "communication_by_step": seconds,  # each the mean over ranks
        "bytes_per_step": sent / steps if steps else None,
        "steps": steps,
        "sha256": prints[0],
    }
    options.summary.parent.mkdir(parents=True, exist_ok=True)
    options.summary.write_text(json.dumps(summary, indent=2) + "\n")
