"""The blocking API: the names and the meaning of torch.distributed.

aiodist run -n 2 examples/tutorial/blocking_api.py
"""

import torch

import aiodist.sync as dist  # in place of: import torch.distributed as dist


def main() -> None:
    """Sum a tensor over the ranks, once blocking and once beside other work."""
    dist.init_process_group()
    rank = dist.get_rank()
    total = torch.full((3,), float(rank + 1))
    dist.all_reduce(total)
    print("the sum is", total.tolist())

    largest = torch.tensor([10 * rank])
    work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
    partial = sum(range(1000))  # the operation runs meanwhile
    work.wait()
    print("the largest is", largest.item(), "and the other work gave", partial)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
