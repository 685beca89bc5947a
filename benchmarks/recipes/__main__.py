"""``python -m benchmarks.recipes``: measure the training recipes and write docs/recipes.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, exit_on_sigterm
from benchmarks.recipes import page, plot
from benchmarks.recipes.run import RecipeFailedError, Settings, run


def main() -> None:
    """Measure, unless ``--page-only`` is given, and write page, figures and JSON."""
    usual = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "recipes.md")
    parser.add_argument("--ranks", type=int, nargs="+", default=usual.ranks)
    parser.add_argument("--passes", type=int, default=usual.passes)
    parser.add_argument("--epochs", type=int, default=usual.epochs)
    parser.add_argument("--limit", type=int, help="images to train with (default: all)")
    parser.add_argument(
        "--rate", default=usual.rate, help="of the slow link (default: %(default)s)"
    )
    parser.add_argument("--no-link", action="store_const", const=None, dest="rate")
    parser.add_argument("--only", nargs="+", default=(), metavar="SCRIPT", help="no other recipes")
    parser.add_argument("--page-only", action="store_true", help="from the JSON of an earlier run")
    given = vars(parser.parse_args())
    output: Path = given.pop("output")
    file = output.with_suffix("") / "results.json"
    if given.pop("page_only"):
        report = json.loads(file.read_text())
    else:
        exit_on_sigterm()
        settings = Settings(**{name: _tuple(value) for name, value in given.items()})
        try:
            report = run(settings, lambda line: print(line, flush=True))
        except RecipeFailedError as error:
            raise SystemExit(f"python -m benchmarks.recipes: {error}") from None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report) + "\n")
    plot.draw(report, file.parent)
    output.write_text(page.render(report, file.parent.name))
    print(f"wrote {output.name}, {file.name} and the figures", flush=True)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
