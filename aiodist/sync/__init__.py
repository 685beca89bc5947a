"""The blocking door: torch.distributed's functions over the async ones."""
