"""A training step through stock PyTorch, DDP and FSDP2, with one backend and the other."""
