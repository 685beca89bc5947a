"""Small models by name, their fingerprint, and the schedule of the learning rate."""

from __future__ import annotations

import argparse
import hashlib
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from common.data import Data
from common.ranks import BadInput


class Residual(nn.Module):
    """Two convolutions around which the input goes on; ``stride`` 2 halves the sides."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, outputs, H / stride, W / stride) of (N, inputs, H, W)."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def mlp(data: Data) -> nn.Module:
    """Two dense layers; no BatchNorm."""
    pixels = data.channels * data.image_size**2
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, len(data.classes))
    )


def cnn(data: Data) -> nn.Module:
    """Two convolutions and two dense layers; no BatchNorm."""
    return _convolutions(data, lambda _: nn.Identity())


def cnn_bn(data: Data) -> nn.Module:
    """The same with BatchNorm."""
    return _convolutions(data, nn.BatchNorm2d)


def resnet(data: Data) -> nn.Module:
    """Three residual blocks with BatchNorm, for images of any size."""
    return nn.Sequential(
        nn.Conv2d(data.channels, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(data.classes)),
    )


def _convolutions(data: Data, norm: type[nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(data.channels, 16, 3),
        norm(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        norm(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(5),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, len(data.classes)),
    )


ARCHITECTURES = MappingProxyType({make.__name__: make for make in (mlp, cnn, cnn_bn, resnet)})


def build_model(arch: str, data: Data) -> nn.Module:
    """Return the model called ``arch`` for the images of ``data``; raise BadInput for an unknown one."""
    if arch not in ARCHITECTURES:
        raise BadInput(f"--arch {arch} is unknown; there are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[arch](data)


def settle_buckets(replica: DistributedDataParallel, data: Data) -> None:
    """Have ``replica`` arrange its buckets of gradients now, by a backward that changes nothing.

    It arranges them anew after its first backward. A sum over more than two ranks may be rounded
    differently in another arrangement, so a run that resumes would differ from one that went on.
    Call it on all ranks, after the checkpoint was read.
    """
    replica.eval()  # BatchNorm keeps its buffers
    device = next(replica.parameters()).device
    images = torch.zeros(2, data.channels, data.image_size, data.image_size, device=device)
    replica(images).sum().backward()
    replica.zero_grad()
    replica.train()


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of every bit of every parameter and buffer, in hex."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def sgd(model: nn.Module, options: argparse.Namespace) -> SGD:
    """Return the optimizer that ``--lr``, ``--momentum`` and ``--wd`` ask for."""
    return SGD(model.parameters(), options.lr, options.momentum, weight_decay=options.wd)


def learning_rate_schedule(optimizer: Optimizer, options: argparse.Namespace) -> LambdaLR:
    """Multiply the rate by ``--gamma`` every ``--lr-step`` epochs; step it after each epoch.

    The rate depends on the epoch's number alone, so it is right after ``--start-epoch`` too.
    """
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return LambdaLR(
        optimizer,
        lambda epoch: options.gamma ** (epoch // options.lr_step),
        last_epoch=options.start_epoch - 1,
    )
