"""docs/recipes.md, from the results and the recipes' own docstrings: no figure in it is typed by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.machine import busy
from benchmarks.recipes.plan import (
    ALONE,
    FOLDER,
    GLOO,
    OTHER_OPTIMIZER,
    OURS,
    SLOW_LINK,
    UNDER_SLURM,
)
from benchmarks.recipes.plot import FIGURE
from benchmarks.recipes.run import Settings
from benchmarks.table import NOTHING, markdown_row, time_text

Row = dict[str, Any]


def render(report: dict[str, Any], folder: str) -> str:
    """The page as Markdown; its figure and its data are in ``folder`` beside it."""
    settings, rows = report["settings"], report["rows"]
    measured = {row["recipe"].partition(" ")[0] for row in rows}
    parts = [
        "# Training recipes",
        "<!-- no shell block runs here: tests/examples/training runs the recipes -->",
        f"Made by `{_command(settings)}` out of [{folder}/results.json]({folder}/results.json) and the "
        "scripts in `examples/training`; `make recipes` makes it for your machine.",
        "Each recipe is one script. Model, data, meters and checkpoints are shared, in `common/`. All "
        "take the options of PyTorch's ImageNet example (`--help` lists them). They train on MNIST by "
        "default, and on a folder of images by class with `--data DIR`. They need "
        "`pip install 'aiodist[examples]'`.",
        "`--statistics FILE` samples CPU use, GPU use and power into a CSV. `--summary FILE` writes what a "
        "run measured as JSON. Input that cannot be used (a missing folder, a broken image, a checkpoint "
        "of another model) ends all ranks with exit code 2 and one sentence of rank 0. Under `torchrun` "
        "the ranks end so, too, and `torchrun` itself with 1.",
        "## The recipes",
        *_recipes(measured),
        "## The machine",
        "\n".join(_machine(report)),
        "## How it is measured",
        f"Every rank has one thread. A run has {settings['epochs']} epochs. aiodist (A) and Gloo (B) take "
        f"turns in the same processes: {' '.join(['A B'] * settings['passes'])}. A run whose replicas are "
        "not bitwise equal at its end fails, and then there is no page.",
        "`aiodist run` starts the ranks, and `spawned.py` its own." + _slurm_words(measured),
        "- **images/s**: of all ranks together, in the last epoch; the median of its runs. "
        "`evaluate.py` does not train: its images are those evaluated.\n"
        "- **accuracy**: top-1 over the images that are held out. `local_sgd.py` trains with AdamW, the "
        "other recipes with SGD.\n"
        "- **bytes a step**: what a rank gives to all_reduce, on average over the steps.\n"
        "- **communication a step**: how long operations were under way, waiting for slower ranks "
        "included. Each step is the mean over ranks; median, mean and 99th percentile are over all "
        "steps of all passes. One rank has nothing to send: there it is the cost of asking.",
        _accuracy_words(rows),
        f"![Images per second of each recipe]({folder}/{FIGURE})",
    ]
    for ranks in settings["ranks"]:
        title = "1 rank, and one process without ranks" if ranks == 1 else f"{ranks} ranks"
        parts += [f"## {title}", "\n".join(_table([row for row in rows if row["ranks"] == ranks]))]
    parts.append("## A slow link")
    if report["link"]:
        parts += [
            f"Two hosts, made of network namespaces, each of which may send {_rate(settings['rate'])} "
            "(`tc tbf`). `local_sgd.py` and the same training with gradients averaged in every step.",
            _link_words(report["link"]),
            "\n".join(_table(report["link"])),
        ]
    else:
        parts.append(
            "Not measured. The link is made of network namespaces, which only root may make."
        )
    return "\n\n".join(parts) + "\n"


def _command(settings: dict[str, Any]) -> str:
    """Return what made the report: settings that are not the usual ones show in the command."""
    names = ("passes", "epochs")
    usual = Settings()
    other = [
        f" --{name} {settings[name]}" for name in names if settings[name] != getattr(usual, name)
    ]
    return f"python -m benchmarks.recipes{''.join(other)}" if other else "make recipes"


def _recipes(measured: set[str]) -> Iterator[str]:
    """Title, command and first paragraph of each recipe's docstring. ``measured``: scripts with rows."""
    for file in sorted(FOLDER.glob("*.py")):
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
        title, *blocks = text.replace("``", "`").split("\n\n")
        commands = next((block for block in blocks if block.startswith("    ")), "")
        words = next((block for block in blocks if block[:1].isupper()), "")
        if words.endswith(":"):  # a list follows
            words = "\n\n".join(blocks[blocks.index(words) :][:2])
        yield f"### {file.name}"
        yield " ".join(title.split())
        if commands:
            yield "```sh\n" + "\n".join(line.strip() for line in commands.splitlines()) + "\n```"
        yield words
    unmeasured = {file.name for file in FOLDER.glob("*.py")} - measured
    if unmeasured:
        yield f"Not measured below: {', '.join(sorted(unmeasured))}."
    if UNDER_SLURM in unmeasured:
        yield f"`{UNDER_SLURM}` is measured where Slurm is installed; `make test-slurm` installs it."


def _slurm_words(measured: set[str]) -> str:
    if UNDER_SLURM not in measured:
        return ""
    return (
        f" `srun` starts those of `{UNDER_SLURM}`, on one node of a real Slurm that "
        "`tests/slurm/cluster.py` starts on this machine."
    )


def _machine(report: dict[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    load = ", ".join(f"{each:.2f}" for each in machine["load_average"])
    if busy(machine):
        load += ": it was busy with something else, and figures of a busy machine mislead"
    lines = {
        "processor": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        "system": machine["system"],
        "load before the run (1, 5, 15 minutes)": load,
        "versions": f"{machine['python']}, torch {machine['versions']['torch']}, "
        f"aiodist commit {machine['aiodist']['commit']}",
        "measured": f"{machine['date']}, in {report['settings']['seconds']} s",
    }
    yield "| | |"
    yield "| --- | --- |"
    for name, value in lines.items():
        yield markdown_row([name, str(value)])


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield markdown_row(
        [
            "recipe",
            "over",
            "images/s",
            "accuracy",
            "bytes a step",
            "communication a step: median",
            "mean",
            "p99",
        ]
    )
    yield markdown_row(["---", "---", *["---:"] * 6])
    for name in dict.fromkeys(row["recipe"] for row in rows):
        for backend in (OURS, GLOO):
            found = [row for row in rows if (row["recipe"], row["backend"]) == (name, backend)]
            if found:
                yield markdown_row([name, _over(name, backend), *_cells(found)])


def _over(name: str, backend: str) -> str:
    return NOTHING if name == ALONE else {OURS: "aiodist", GLOO: "Gloo"}[backend]


def _cells(rows: Sequence[Row]) -> list[str]:
    rates = [row["images_per_second"] for row in rows if row["images_per_second"]]
    sent = rows[0]["bytes_per_step"]
    seconds = [each for row in rows for each in row["communication_by_step"]]
    times = [median(seconds), fmean(seconds), float(np.percentile(seconds, 99))] if seconds else []
    return [
        f"{median(rates):,.0f}" if rates else NOTHING,
        f"{_accuracy(rows):.1f} %",
        f"{sent:,.0f}" if sent else NOTHING,
        *([time_text(1e6 * each) for each in times] or [NOTHING] * 3),
    ]


def _accuracy(rows: Sequence[Row]) -> float:
    return median(row["top1"] for row in rows)


def _accuracy_words(rows: Sequence[Row]) -> str:
    """Say where the accuracy differs most from that of one process, and from that over Gloo."""
    alone = [row for row in rows if row["recipe"] == ALONE]
    ours, theirs = (
        {
            key: [
                row
                for row in rows
                if (row["recipe"], row["ranks"], row["backend"]) == (*key, backend)
            ]
            for key in {(row["recipe"], row["ranks"]) for row in rows if row["backend"] == backend}
        }
        for backend in (OURS, GLOO)
    )
    words = ""
    if alone:
        references = {
            key: ours.get((key[0], 1)) if key[0] in OTHER_OPTIMIZER else alone for key in ours
        }
        gaps = {
            key: _accuracy(ours[key]) - _accuracy(ref) for key, ref in references.items() if ref
        }
        words += f"From one process the accuracy over aiodist differs most in {_largest(gaps)}"
        own = sorted(OTHER_OPTIMIZER & {name for name, _ in ours})
        words += f"; for {', '.join(own)} that process is its own single rank. " if own else ". "
    if theirs:
        gaps = {key: _accuracy(ours[key]) - _accuracy(found) for key, found in theirs.items()}
        words += f"From the same recipe over Gloo it differs most in {_largest(gaps)}."
    return words.rstrip()


def _largest(gaps: dict[tuple[str, int], float]) -> str:
    name, ranks = max(sorted(gaps), key=lambda key: abs(gaps[key]))
    gap = gaps[name, ranks]
    way = "higher" if gap > 0 else "lower"
    return f"{name} with {_ranks(ranks)}, by {abs(gap):.1f} percentage points ({way})"


def _ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _rate(rate: str) -> str:
    return rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s").replace("kbit", " kbit/s")


def _link_words(rows: Sequence[Row]) -> str:
    synchronous, local = (
        [row for row in rows if (row["recipe"], row["backend"]) == (recipe.name, OURS)]
        for recipe in SLOW_LINK
    )
    bytes_ratio = synchronous[0]["bytes_per_step"] / local[0]["bytes_per_step"]
    speed = median(row["images_per_second"] for row in local) / median(
        row["images_per_second"] for row in synchronous
    )
    return (
        f"Over aiodist, the ranks that meet every few steps give {1 / bytes_ratio:.3f} of the bytes and "
        f"{speed:.1f} times the images per second. Their accuracy is {_accuracy(local):.1f} %, beside "
        f"{_accuracy(synchronous):.1f} %."
    )
