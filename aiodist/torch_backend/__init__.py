"""The third door: ``torch.distributed.init_process_group("aiodist")``.

Importing this registers the backend with torch. Where aiodist is installed, ``import torch`` does
so by itself; where it is only on the path, ``import aiodist`` after torch does.
"""

from aiodist.torch_backend.opening import open_group
from aiodist.torch_backend.registration import register

__all__ = ["open_group", "register"]

register()
