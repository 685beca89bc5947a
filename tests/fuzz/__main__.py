"""The coverage-guided run: ``python -m tests.fuzz [--seconds 60] [target ...]``.

Each target has the same time, in a process of its own. libFuzzer (through atheris) ends it with an
error at a crash, at an input that takes longer than 5 s, or above 1 GiB of memory. The input that
caused the error lies in the current directory; ``--replay`` runs it again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

RSS_MIB = 1024
HANG_SECONDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help="which of the targets; all where none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--replay", type=Path, help="run one input, of the one target named")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        return _fuzz(options.inside, options.seconds)
    from tests.fuzz.targets import TARGETS

    chosen = options.target or list(TARGETS)
    if unknown := [name for name in chosen if name not in TARGETS]:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    if options.replay is not None:
        TARGETS[chosen[0]](options.replay.read_bytes())
        return 0
    failed = []
    for name in chosen:
        print(f"== fuzz: {name}, {options.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--inside", name]
        if subprocess.run([*command, "--seconds", str(options.seconds)], check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "no crash, no hang, no memory growth")
    return bool(failed)


def _fuzz(name: str, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["aiodist", "msgpack.fallback"]):
        from tests.fuzz.targets import TARGETS, seeds
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()[name]):
            (Path(corpus) / f"seed{number}").write_bytes(seed)
        flags = [
            f"-max_total_time={seconds}",
            f"-timeout={HANG_SECONDS}",
            f"-rss_limit_mb={RSS_MIB}",
            "-max_len=4096",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *flags, corpus], TARGETS[name])
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
