"""A training step through stock PyTorch: DistributedDataParallel, with one backend and the other."""
