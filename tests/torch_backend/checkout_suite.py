"""Compare aiodist with Gloo by PyTorch's own tests, out of a checkout of PyTorch.

    python tests/torch_backend/checkout_suite.py CHECKOUT [--only checkpoint] [--json FILE]

CHECKOUT has the sources of the torch that is installed. Each file of its ``test/distributed`` runs twice
without GPUs: over Gloo, and with ``AIODIST_INSTEAD_OF=gloo``. The output names each test that passes over
Gloo alone, and the exit status is 1 if there is one. ``make test-pytorch CHECKOUT=...`` runs it on torch
2.6.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]

OTHER_FOLDERS = {"elastic", "launcher", "rpc", "bin"}
"""Parts of PyTorch that use no process group."""

OWN_CLASSES = ("ProcessGroupGloo(", "ProcessGroupNCCL(")
"""Files with these make groups of C++ without torch's registry: no backend takes their place."""

Outcomes = dict[str, str]
"""What became of each test: "passed", "failed" or "skipped"."""


def files_of(checkout: Path, only: list[str]) -> list[Path]:
    """The files of tests that a backend can reach, whose paths contain one of ``only``, if given."""
    folder = checkout / "test" / "distributed"
    return [
        path
        for path in sorted(folder.rglob("test_*.py"))
        if OTHER_FOLDERS.isdisjoint(path.relative_to(folder).parts)
        and not any(name in path.read_text() for name in OWN_CLASSES)
        and (not only or any(part in str(path.relative_to(folder)) for part in only))
    ]


def run(path: Path, instead_of: str, seconds: float) -> Outcomes:
    """Run a file's tests by pytest, each for ``seconds`` at most; nothing if it cannot be imported."""
    with tempfile.TemporaryDirectory(prefix="checkout-suite-") as folder:
        report = Path(folder) / "report.xml"
        process = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-c", os.devnull),
                *("--noconftest", "-p", "no:cacheprovider", "--timeout", str(seconds)),
                *("--rootdir", str(path.parent), "--junitxml", str(report), str(path)),
            ],
            cwd=path.parent,
            env={
                **os.environ,
                "AIODIST_INSTEAD_OF": instead_of,
                "PYTHONPATH": str(ROOT),
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "TMPDIR": folder,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait()
        finally:
            kill_session(process.pid)
            process.wait()
        return outcomes_of(report.read_text()) if report.exists() else {}


def kill_session(leader: int) -> None:
    """End the processes of a session that a test has left behind."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def outcomes_of(report: str) -> Outcomes:
    """Read the outcomes out of pytest's report in JUnit's format."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        failed = kinds & {"failure", "error"}
        found[name] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return found


def only_over_gloo(gloo: Mapping[str, str], aiodist: Mapping[str, str]) -> list[str]:
    """The tests that pass over Gloo and not over aiodist."""
    return [
        name for name, what in gloo.items() if what == "passed" and aiodist.get(name) != "passed"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="PART")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each test")
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    options = parser.parse_args()
    paths = files_of(options.checkout, options.only)
    if not paths:
        sys.exit(f"no file of tests in {options.checkout / 'test' / 'distributed'}")
    all_found, passed, differ = {}, 0, 0
    for path in paths:
        gloo, ours = (run(path, instead_of, options.seconds) for instead_of in ("", "gloo"))
        name = str(path.relative_to(options.checkout))
        all_found[name] = {"gloo": gloo, "aiodist": ours}
        own = only_over_gloo(gloo, ours)
        here = list(gloo.values()).count("passed")
        passed, differ = passed + here, differ + len(own)
        print(f"{name}: Gloo passes {here}, aiodist {here - len(own)} of these", flush=True)
        for test in own:
            print(f"  {ours.get(test, 'missing')} over aiodist: {test}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(all_found, indent=1))
    print(f"{len(paths)} files: Gloo passes {passed} tests, aiodist {passed - differ} of these")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
