"""Train by Ray Train's TorchTrainer with ``TorchConfig(backend=...)``: ``ray_train BACKEND``."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from tests.ecosystem.programs.results import train


def work(config: dict[str, Any]) -> None:
    figures = train()
    if dist.get_rank() == 0:
        Path(config["result"]).write_text(" ".join(map(str, figures)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR")
        try:
            TorchTrainer(
                work,
                train_loop_config={"result": str(result)},
                torch_config=TorchConfig(backend=sys.argv[1]),
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=folder),
            ).fit()
        finally:
            ray.shutdown()
        print("result", result.read_text())


if __name__ == "__main__":
    main()
