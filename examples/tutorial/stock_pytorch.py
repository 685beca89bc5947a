"""Stock PyTorch: DistributedDataParallel over aiodist, by the name of the backend alone.

aiodist run -n 2 examples/tutorial/stock_pytorch.py
torchrun --nproc-per-node 2 examples/tutorial/stock_pytorch.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a line: each rank has half of the points, and all ranks get the same line."""
    dist.init_process_group("aiodist")  # the only line that changes
    x = torch.linspace(-1, 1, 64)[dist.get_rank() :: dist.get_world_size(), None]
    y = 3 * x + 0.5
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    weight, bias = (parameter.item() for parameter in model.parameters())
    print(f"y = {weight:.2f} x + {bias:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
