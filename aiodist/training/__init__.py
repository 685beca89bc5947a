"""Data-parallel training: gradients are averaged over the ranks while backward still runs.

The async API's half; `aiodist.training.sync` has the same names for the blocking API.
"""

from aiodist.training.async_reducer import (
    GradientReducer,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from aiodist.training.compression import Compression

__all__ = ["Compression", "GradientReducer", "broadcast_optimizer_state", "broadcast_parameters"]
