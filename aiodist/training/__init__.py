"""Data-parallel training: gradients are averaged over the ranks while backward still runs.

The async door's half; `aiodist.training.sync` has the same names for the blocking door.
"""

from aiodist.training.compression import Compression
from aiodist.training.door import GradientReducer, broadcast_parameters

__all__ = ["Compression", "GradientReducer", "broadcast_parameters"]
