"""Refuse to copy or pickle an object that holds connections, descriptors or an event loop."""

from typing import NoReturn, SupportsIndex


class Unpicklable:
    """An object of the process that made it: `copy` and `pickle` raise TypeError at once.

    A copy would hold the same descriptors, and close them at its end.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise TypeError."""
        name = type(self).__name__
        raise TypeError(f"cannot copy or pickle a {name}: it belongs to the process that made it")
