"""Matplotlib's backend on the ranks: ``agg``, but ``plt.show()`` does not warn on a desktop."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg

FigureCanvas = FigureCanvasAgg
"""What matplotlib draws with."""


def show(*_: object, **__: object) -> None:
    """Do nothing: the end of a cell shows all open figures."""
