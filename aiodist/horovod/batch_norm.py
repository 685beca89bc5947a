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
        channels, ranks, own = input.shape[1], job.size(), job.rank()
        shape = [1, channels] + [1] * (input.dim() - 2)
        # Half precision can neither add up the squares of a batch nor count its numbers.
        data = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = data.new_full((1,), input.numel() // channels)
        n_own = count.clamp_min(1)
        mean = data.sum(others) / n_own
        variance = (data - mean.view(shape)).square().sum(others) / n_own
        # A row for each rank; means and variances are combined as Chan, Golub and LeVeque do (1979). The
        # mean of squares less the square of the mean has no digit left where the mean is large. Rows add
        # up over the ranks, and so do their gradients.
        row = torch.cat([mean, variance, count])
        before, after = row.new_zeros(own, len(row)), row.new_zeros(ranks - 1 - own, len(row))
        rows = allreduce(torch.cat([before, row.unsqueeze(0), after]), op=Sum)
        counts = rows[:, -1:].detach()
        total = counts.sum()
        shares = counts / total
        means, variances = rows[:, :channels], rows[:, channels:-1]
        mean = (shares * means).sum(0)
        variance = (shares * (variances + (means - mean).square())).sum(0)
        self._follow(mean.detach(), variance.detach(), float(total))
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = self.weight * scale
        output = (data - mean.view(shape)) * scale.view(shape)
        if self.bias is not None:
            output = output + self.bias.view(shape)
        return output.to(input.dtype)

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
