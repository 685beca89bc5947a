"""torch.distributed that you can await."""
