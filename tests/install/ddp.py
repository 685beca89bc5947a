"""Train by DDP from an installed aiodist: ``make test-install`` starts it outside the repository."""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("aiodist")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    model = torch.nn.parallel.DistributedDataParallel(net)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        rows = torch.randn(size, 8, 4)  # the same numbers on all ranks, and a share for each
        steps.zero_grad()
        loss = (model(rows[rank]) - rows[rank].sum(1, keepdim=True)).square().mean()
        loss.backward()
        steps.step()
        dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4, losses
    weights = [torch.empty_like(net.weight) for _ in range(size)]
    dist.all_gather(weights, net.weight.detach())
    assert all(torch.equal(one, weights[0]) for one in weights)
    if rank == 0:
        print(f"torch {torch.__version__}, {size} ranks: loss {losses[0]:.3f} to {losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
