"""Bad input ends all ranks with exit code 2, and rank 0 says why in one sentence."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.training.conftest import RECIPES, CompletedRun
from tests.images import write_images
from tests.limits import scaled

BY_HAND = Path(__file__).with_name("programs") / "by_hand.py"
LOOPS = (
    ("mixed_precision.py",),
    ("horovod_style.py",),
    ("from_scratch.py",),
    ("local_sgd.py",),
    ("async_training.py", "--port", "0"),
    ("elastic.py",),
    ("elastic_shrink.py",),
)
"""Recipes with a loop of their own, and what they need."""
ASKS = "error: no launcher has started this rank; start it by: aiodist run -n 2 "
OPTIONS = set(
    re.findall(
        "[-a-z]+",
        "--data --arch -j --workers --epochs --start-epoch -b --batch-size --lr --momentum --wd "
        "-p --print-freq -e --evaluate --resume --seed --dist-url --dist-backend --world-size --rank",
    )
)

Recipes = Callable[..., list[CompletedRun]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def sentence(ended: CompletedRun) -> str:
    """Return what rank 0 says; every rank has exit code 2, and no other one says anything."""
    assert ended.codes == [2, 2]
    assert ended.errors[1] == ""
    said = [line for line in ended.errors[0].splitlines() if "error:" in line]
    assert len(said) == 1, ended.errors[0]
    assert re.match(r"\w+\.py: error: ", said[0])  # not behind a progress bar
    assert "Traceback" not in ended.errors[0]
    return said[0].partition("error: ")[2]


@pytest.mark.examples
def test_bad_input_ends_all_ranks(recipes: Recipes, tmp_path: Path) -> None:
    for name in ("good", "empty", "broken", "cut", "lonely"):
        write_images(tmp_path / name, ("one", "two"), 6)
    for file in (tmp_path / "empty" / "train" / "two").iterdir():
        file.unlink()
    broken = tmp_path / "broken" / "train" / "two" / "3.jpg"
    broken.write_text("no image")
    cut = tmp_path / "cut" / "val" / "one" / "4.png"
    cut.write_bytes(cut.read_bytes()[:200])
    (tmp_path / "lonely" / "train" / "two").rename(tmp_path / "lonely" / "train" / "three")
    (tmp_path / "text.pth.tar").write_text("text\n")  # at which torch.load raises IndexError
    latest = tmp_path / "2-0" / "checkpoint.pth.tar"

    def distributed(data: str, *arguments: str) -> list[str]:
        size = ("--image-size", "16", "-b", "4", "--epochs", "1", "-p", "1", "--arch", "mlp")
        return ["distributed.py", "--data", str(tmp_path / data), *size, *arguments]

    def resuming(file: object, *arguments: str) -> list[str]:
        return distributed("good", "--resume", str(file), *arguments)

    nowhere, two = tmp_path / "nowhere" / "train", tmp_path / "empty" / "train" / "two"
    of_rank_1 = tmp_path / "2-1" / "checkpoint.pth.tar"  # where "nowhere" has written nothing
    expected = [
        (distributed("nowhere"), f"there is no folder {nowhere};"),
        (distributed("empty"), f"the class {two} has no image"),
        (distributed("broken"), f"{broken} cannot be read as an image"),
        (distributed("broken", "--dist-backend", "gloo", "-j", "1"), f"{broken} cannot be read"),
        (distributed("cut"), f"{cut} cannot be read as an image"),
        (distributed("lonely"), "has the class three in one of train and val alone"),
        (
            distributed("good", "--arch", "vgg"),
            "--arch vgg is unknown; there are mlp, cnn, cnn_bn,",
        ),
        (
            distributed("good", "-b", "1"),
            "--batch-size 1 is of all ranks together, so 2 ranks need",
        ),
        (resuming(latest, "--arch", "cnn"), f"--resume {latest} is of --arch mlp, not cnn"),
        (
            resuming(latest, "--image-size", "20"),
            f"--resume {latest}: its state_dict does not fit (",
        ),
        (resuming(tmp_path / "nothing.pth.tar"), "nothing.pth.tar is not there;"),
        (resuming(tmp_path / "text.pth.tar"), "text.pth.tar cannot be read as a checkpoint ("),
        (
            resuming(tmp_path / "2-RANK" / "checkpoint.pth.tar"),
            f"rank 1: --resume {of_rank_1} is not there;",
        ),
    ]
    expected.append((["evaluate.py"], "--resume FILE is needed: the checkpoint to evaluate"))
    # Every loop over batches ends all ranks at an image that one of them cannot read.
    expected += [
        ([name, *distributed("broken")[1:], *more], f"{broken} cannot be read as an image")
        for name, *more in LOOPS
    ]
    taken = tmp_path / f"2-{1 + len(expected)}"  # the next one's --checkpoint-dir
    taken.write_text("no folder")
    expected.append((distributed("good"), f"--checkpoint-dir {taken} cannot be made (File exists)"))
    good, *bad = recipes(2, [distributed("good"), *(run for run, _ in expected)])
    assert good.codes == [0, 0], good.errors
    for (_, text), ended in zip(expected, bad, strict=True):
        assert text in sentence(ended)


def test_the_job_has_exit_code_2(launch: Callable[..., str]) -> None:
    output = launch(2, RECIPES / "distributed.py", "--arch", "vgg", code=2)
    assert output.count("[0] distributed.py: error: --arch vgg is unknown") == 1
    assert "[1] " not in output
    assert "Traceback" not in output


@pytest.mark.examples
def test_every_recipe_has_the_usual_options_and_asks_for_its_launcher() -> None:
    """dataparallel.py and spawned.py start without one."""
    names = sorted(file.name for file in RECIPES.glob("*.py"))
    names = [name for name in names if name not in ("dataparallel.py", "spawned.py")]
    ended = subprocess.run(
        [sys.executable, BY_HAND, *names],
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "PMI", "OMPI")) and name != "RANK"
        },
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(names) >= 10
    for name, row in zip(names, json.loads(ended.stdout), strict=True):
        help_code, help_text, code, said = row
        assert help_code == 0
        shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text))
        assert shown >= OPTIONS, name
        assert code == 2
        asks = "error: this is no task of Slurm" if name == "slurm.py" else ASKS
        assert asks in said


@pytest.mark.examples
@pytest.mark.parametrize(
    ("recipe", "option"),
    [
        ("local_sgd", "--sync-every"),
        ("elastic", "--save-every"),
        ("horovod_style", "--batches-per-allreduce"),
    ],
)
def test_a_number_that_is_divided_by_is_not_0(
    recipe: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = set(sys.modules)
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.setattr(sys, "argv", [recipe, option, "0"])
    try:
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(recipe).main()
    finally:
        for name in set(sys.modules) - known:
            if name == recipe or name.partition(".")[0] == "common":
                del sys.modules[name]
    assert ended.value.code == 2
    assert f"argument {option}: 0 is not a number from 1 on" in capsys.readouterr().err
