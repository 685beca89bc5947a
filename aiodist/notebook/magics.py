"""``%%ranks``: a cell on every rank, with output, results, errors and plots by rank."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import Image, display

from aiodist.errors import PeerLostError
from aiodist.notebook.cells import CellResult, check_cell, run_cell
from aiodist.rank_processes import Cluster, RanksError
from aiodist.sync.portal import portal

DEFAULT_RANKS = 2

PYPLOT_BACKEND = "aiodist.notebook.pyplot_backend"
"""A module, which the ranks import where they have matplotlib."""


@magics_class
class RanksMagics(Magics):
    """Keeps the rank processes of a notebook: they live from the first cell to the end of its kernel.

    While there are ranks it keeps the portal's loop running, which reads their output between cells.
    """

    longest_pause = 0.0

    def __init__(self, shell: InteractiveShell) -> None:
        """``shell``: IPython's, as its extensions get it."""
        super().__init__(shell)
        self._cluster: Cluster | None = None
        self._size = 0
        self._cells = 0

    @magic_arguments()
    @argument("-n", type=int, help=f"how many ranks; {DEFAULT_RANKS}, or as many as there are")
    @argument("-r", default="", help="only these ranks execute the cell: -r 0,2")
    @argument("--close", action="store_true", help="end the ranks")
    @argument("-h", "--help", action="store_true", help="show this")
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Execute the cell on every rank; ``%ranks -n 4`` alone starts ranks, ``%ranks --close`` ends them.

        ``%ranks`` alone starts ranks where none run, and prints how many run.
        Names live on from cell to cell on each rank. The ranks' default group is initialised, and
        ``import aiodist as dist`` (with a top-level ``await``) and ``import aiodist.sync as dist``
        both use it. Another number of ranks than there are is refused: they would lose their names.
        """
        options = parse_argstring(self.ranks, line)
        if options.help:
            print(self.ranks.__doc__)  # noqa: T201  # what a cell shows is printed
            return
        if options.close:
            self.close()
            return
        if cell is not None:
            check_cell(cell, self._cells + 1)
        cluster = self._open(options.n)
        if cell is None:
            print(self._running(cluster))  # noqa: T201
            return
        chosen = self._chosen(options.r)
        self._cells += 1
        try:
            results = portal().run(cluster.run_on, chosen, run_cell, cell, self._cells)
        except RanksError as error:
            for rank, lost in error.by_rank.items():
                if isinstance(lost, PeerLostError) and lost.rank == rank:
                    lost.add_note(
                        "%ranks --close ends the other ranks, and the next cell starts all anew; "
                        "-r executes a cell on the others alone"
                    )
            # How the ranks were called says nothing here.
            raise error.with_traceback(None) from None
        for rank, result in zip(chosen, results, strict=True):
            _show(rank, result)

    def close(self) -> None:
        """End the ranks. Without ranks it does nothing."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            try:
                portal().run(cluster.close)
            finally:
                portal().remove_user(self)

    async def leave(self) -> None:
        """End the ranks on the portal's loop, as the process ends."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def close_in_child(self) -> None:
        """Do nothing: the descriptors are closed on exec, and a forked child has no use for them."""

    def _open(self, size: int | None) -> Cluster:
        """Return the ranks that there are, or new ones. Raises UsageError for another number of ranks."""
        if self._cluster is not None:
            if size not in (None, self._size):
                raise UsageError(
                    f"{self._size} ranks run, and -n asks for {size}: leave -n out, or end the ranks and "
                    "all their names by %ranks --close first"
                )
            return self._cluster
        size = DEFAULT_RANKS if size is None else size
        cluster = Cluster(size, env={"MPLBACKEND": f"module://{PYPLOT_BACKEND}"})
        portal().add_user(self)  # first: the loop that starts the processes must go on
        try:
            portal().run(cluster.start)
        except BaseException:
            portal().remove_user(self)
            raise
        self._cluster, self._size = cluster, size
        return cluster

    def _running(self, cluster: Cluster) -> str:
        """Return how many ranks run, and what to do if some have ended."""
        if cluster.ended:
            return (
                f"{self._size - len(cluster.ended)} of {self._size} ranks run: %ranks --close ends them, "
                "and the next cell starts all anew"
            )
        return "1 rank runs" if self._size == 1 else f"{self._size} ranks run"

    def _chosen(self, text: str) -> list[int]:
        try:
            return [int(part) for part in text.split(",")] if text else list(range(self._size))
        except ValueError:
            raise UsageError(f"-r takes ranks with commas, such as -r 0,2; not {text!r}") from None


def _show(rank: int, result: CellResult) -> None:
    label = f"[{rank}] "
    if result.text:
        text = result.text.replace("\n", "\n" + " " * len(label))  # columns stay columns
        print(label + text)  # noqa: T201  # what a cell shows is printed
    for picture in result.pictures:
        print(f"[{rank}]")  # noqa: T201
        display(Image(picture))
