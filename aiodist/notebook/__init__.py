"""Magics for IPython and Jupyter: ``%load_ext aiodist.notebook``, then ``%%ranks`` above a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%ranks`` and ``%%ranks``. IPython calls it on ``%load_ext aiodist.notebook``.

    Args:
        shell: IPython's shell.
    """
    from aiodist.notebook.magics import RanksMagics

    shell.register_magics(RanksMagics(shell))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """End the ranks. IPython calls it on ``%unload_ext aiodist.notebook``.

    Args:
        shell: IPython's shell.
    """
    magics = shell.magics_manager.registry.get("RanksMagics")
    if magics is not None:
        magics.close()
