"""Lines that all ranks print, and lines of one rank."""

import os

rank = int(os.environ["RANK"])
print("loading data")
print(f"rank {rank} has {100 + rank} rows")
print("epoch 1")
print("done")
