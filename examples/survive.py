"""Train on while ranks are killed, take their replacements in, and end with equal replicas.

    pip install 'aiodist[examples]'
    aiodist run -n 4 --max-restarts 2 examples/survive.py

Two ranks kill themselves in the middle of a step, by SIGKILL: rank 2, and later rank 0, at which all
had met. The others notice, agree on the survivors, and go on from the newest state among them. The
launcher starts a process in place of each, which gets the model from a rank that lives.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional

import aiodist.sync as dist

LOST = (dist.PeerLostError, dist.GroupRevokedError, dist.CollectiveCancelledError)


class Training:
    """A model, its optimizer, and how many steps they have made."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.steps = -1  # before the first agreement it has made none, and knows nothing

    def agree(self) -> None:
        """Go on, all ranks, from the state of one that has made most steps.

        A rank that dies in the middle of a step leaves survivors that have made it, and others.
        """
        made = [0] * dist.get_world_size()
        dist.all_gather_object(made, self.steps)
        newest = max(range(len(made)), key=made.__getitem__)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": max(self.steps, 0),
        }
        dist.sync_state(state, group_src=newest)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    def step(self, dies: bool) -> float:
        """One step on this rank's part of the data; the loss on all. ``dies``: half way."""
        generator = torch.Generator().manual_seed(self.steps * 1000 + dist.get_rank())
        inputs = torch.randn(32, 16, generator=generator)
        loss = functional.mse_loss(self.model(inputs), inputs.sum(1, keepdim=True).sin())
        self.optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        flat = torch.cat([loss.detach().reshape(1), *(each.flatten() for each in gradients)])
        work = dist.all_reduce(flat, dist.ReduceOp.AVG, async_op=True)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        work.wait()
        means = flat[1:].split([each.numel() for each in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))
        self.optimizer.step()
        self.steps += 1
        return flat[0].item()

    def digest(self) -> str:
        """Return a short hash of the model's bytes."""
        parts = (value.numpy().tobytes() for value in self.model.state_dict().values())
        return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def say(text: str) -> None:
    """Once for all: by the first rank that is there."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def train(training: Training, kills: dict[int, int], total: int, full: list[int]) -> None:
    """Make ``total`` steps; rank ``kills[step]`` dies in that step.

    At the steps in ``full``, wait until all ranks are back.
    """
    rank = int(os.environ["RANK"])
    known: dist.ProcessGroup | None = None  # the group whose members have agreed on the state
    progress = time.perf_counter()
    lost_at: float | None = None
    loss = float("nan")
    while True:
        try:
            group = dist.group.WORLD
            if group is not known:
                training.agree()  # until then, ranks may be a step apart
                known = group
                if group.newcomers:
                    say(f"step {training.steps}: took in rank {group.newcomers[0]}")
            all_ranks = group.lineage
            if training.steps in full and len(group.ranks) < len(all_ranks):
                dist.grow(ranks=all_ranks)
            elif training.steps % 5 == 0:
                dist.grow()
            if dist.group.WORLD is not known:
                continue
            if training.steps >= total:
                break
            dies = kills.get(training.steps) == rank and not dist.is_replacement()
            loss = training.step(dies)
            if lost_at is not None:
                took = time.perf_counter() - lost_at
                say(f"step {training.steps}: went on {took:.2f} s after the last step before")
                lost_at = None
            progress = time.perf_counter()
        except LOST as error:
            lost_at = lost_at or progress
            group = dist.shrink()
            say(f"step {training.steps}: {type(error).__name__}, left are ranks {group.ranks}")
    say(f"{total} steps, loss {loss:.4f}")


def main() -> None:
    """Train, and compare the replicas."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    training = Training(arguments.seed)
    if dist.is_replacement():
        dist.rejoin()
    else:
        dist.init_process_group()
    dist.register_elastic()

    train(training, kills={32: 2, 62: 0}, total=90, full=[55, 85])

    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, training.digest())
    assert len(set(digests)) == 1, digests
    say(f"bitwise the same on {len(digests)} ranks (sha256 {digests[0]})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
