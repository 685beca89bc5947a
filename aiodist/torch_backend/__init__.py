"""The third API: ``torch.distributed.init_process_group("aiodist")``.

Importing this registers the backend with torch. Where aiodist is installed, ``import torch`` does
so by itself; where it is only on the path, ``import aiodist`` after torch does.
"""

from _aiodist_autoload import register
from aiodist.torch_backend.destroying import shut_down_destroyed_groups
from aiodist.torch_backend.group_opening import connect, open_group
from aiodist.torch_backend.joining import give_joins_works_of_cpp

__all__ = ["connect", "open_group", "register"]

shut_down_destroyed_groups()
give_joins_works_of_cpp()
register()
