"""BatchNorm over the batches of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from aiodist.errors import InvalidUsageError
from aiodist.horovod import ranks as job
from aiodist.horovod.async_collectives import Sum
from aiodist.horovod.collectives import allreduce


class SyncBatchNorm(_BatchNorm):
    """BatchNorm whose mean and variance are those of the batches of all ranks, on the CPU, too.

    Takes the arguments of ``torch.nn.BatchNorm2d``, and inputs of shape (N, C) or (N, C, ...). Call it on
    all ranks when training: forward and backward have one all_reduce each. A rank's batch may be of
    any size. In evaluation it is a BatchNorm.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidUsageError(
                f"SyncBatchNorm takes an input of 2 dimensions or more, not {input.dim()}"
            )

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input``, normalised by channel (dimension 1).

        Args:
            input: A batch of shape (N, C) or (N, C, ...).
        """
        if not self.training or job.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        others = [number for number in range(input.dim()) if number != 1]
        count = input.new_full((1,), input.numel() / input.shape[1])
        # The statistics add up over the ranks, and so do their gradients.
        sums = allreduce(torch.cat([input.sum(others), input.square().sum(others), count]), op=Sum)
        channels = input.shape[1]
        total = sums[-1].detach()
        mean = sums[:channels] / total
        variance = (sums[channels:-1] / total - mean.square()).clamp_min(0)
        self._follow(mean.detach(), variance.detach(), float(total))
        shape = [1, channels] + [1] * (input.dim() - 2)
        weight = torch.ones_like(mean) if self.weight is None else self.weight
        scale = weight * (variance + self.eps).rsqrt()
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return input * scale.view(shape) + shift.view(shape)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Move the running statistics towards those of this batch."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum
        factor = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
