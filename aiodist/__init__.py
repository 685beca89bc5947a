"""torch.distributed that you can await.

The async API: every operation starts at the call and returns an awaitable `Work`. The blocking
API, with the API of torch.distributed, is ``import aiodist.sync as dist``.

The names are those of `aiodist.public`. It is imported at the first use of one, so that the command
line starts without numpy and the engine.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiodist.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        public = importlib.import_module("aiodist.public")
        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(public, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *importlib.import_module("aiodist.public").__all__})


__version__ = "0.1.0"

if "torch" in sys.modules:  # else torch does it, when it is imported; this does not import it
    importlib.import_module("aiodist.torch_backend")
