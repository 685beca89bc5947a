"""What ``import torch`` runs where aiodist is installed; see ``aiodist.torch_backend``.

A module outside the package because an exception here would break ``import torch`` for everybody,
and importing the package would slow it down for those who use torch for something else.
"""

from typing import Any


def autoload() -> None:
    """Let torch know of the backend "aiodist", which is imported when it is first asked for."""
    try:
        from torch.distributed import Backend

        if not hasattr(Backend, "AIODIST"):
            Backend.register_backend("aiodist", _open, extended_api=True, devices=["cpu", "cuda"])
    except Exception:  # noqa: BLE001  # a torch without distributed, or with another registry
        pass


def _open(options: Any, backend_options: Any = None) -> Any:
    from aiodist.torch_backend import open_group

    return open_group(options, backend_options)
