"""CUDA tensors of ranks that share a GPU: each maps the others' memory, and nothing leaves it."""
