"""Builds the emulated device into the environment whose python runs this; its torch finds nothing else.

Takes torch 2.11 for CUDA 13, nvidia-cuda-crt and nvidia-cuda-cccl 13.0 (headers), g++ and binutils; for
``make test-gpu-emulated``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
SITE = Path(sysconfig.get_path("purelib"))
TORCH, CUDA, NCCL = SITE / "torch", SITE / "nvidia/cu13", SITE / "nvidia/nccl"
FLAGS = ("-std=c++20", "-O2", "-fPIC", f"-I{CUDA}/include", f"-I{NCCL}/include")

AUTOLOAD = """
from pathlib import Path

import torch


def load():
    from aiodist.backends import registry

    torch.ops.load_library(str(Path(__file__).with_name("libemulated_operators.so")))
    registry._DRIVERS = (__file__,)  # there is no driver, but a device
"""


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def names(files: Iterable[Path], *options: str) -> set[str]:
    """The symbols that nm lists by ``options``."""
    lines = run("nm", *options, *files).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line and not line.endswith(":")}


def compiled(sources: Iterable[Path], folder: Path, *flags: str) -> list[Path]:
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        run("g++", *FLAGS, *flags, "-c", source, "-o", objects[-1])
    return objects


def library(
    name: str, objects: list[Path], wanted: set[str], folder: Path, *options: str | Path
) -> Path:
    """A library ``name`` of ``objects``; what else is ``wanted`` of it says that it is not emulated."""
    missing = sorted(wanted - names(objects, "-g", "--defined-only"))
    stubs = folder / "stubs.c"
    stubs.write_text(
        "#include <stdio.h>\n"
        + "".join(
            f'int {symbol}(void) {{ fputs("emulated device: no {symbol}\\n", stderr); return 801; }}\n'
            for symbol in missing
        )
    )
    run("gcc", "-fPIC", "-c", stubs, "-o", folder / "stubs.o")
    made = folder / name
    run("g++", "-shared", *objects, folder / "stubs.o", f"-Wl,-soname,{name}", "-o", made, *options)
    return made


def put(made: Path, place: Path) -> None:
    place.unlink(missing_ok=True)  # may be the real one, which some process has mapped
    shutil.copy(made, place)


def main() -> None:
    missing = [tool for tool in ("g++", "gcc", "nm") if shutil.which(tool) is None]
    if missing:
        sys.exit(
            f"emulated devices are compiled here, and these are not found: {', '.join(missing)}"
        )
    libraries = [*TORCH.glob("lib/libtorch*.so"), TORCH / "lib/libc10_cuda.so"]
    undefined = "-D", "--undefined-only"
    wanted = names(libraries, *undefined)
    driver = {
        name
        for name in names([TORCH / "lib/libcaffe2_nvrtc.so"], *undefined)
        if name.startswith("cu")
    }
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        versions = folder / "versions"
        versions.write_text("libcudart.so.13 { global: cuda*; __cuda*; emulated_*; local: *; };\n")
        sources = [HERE / f"{name}.cpp" for name in ("memory", "streams", "events", "runtime")]
        runtime = library(
            "libcudart.so.13",
            compiled(sources, folder),
            {name for name in wanted if name.startswith(("cuda", "__cuda"))},
            folder,
            f"-Wl,--version-script={versions}",
        )
        nccl = library(
            "libnccl.so.2",
            compiled([HERE / "nccl.cpp"], folder),
            {name for name in wanted if name.startswith("nccl")},
            folder,
            runtime,
        )
        put(runtime, CUDA / "lib/libcudart.so.13")
        put(nccl, NCCL / "lib/libnccl.so.2")
        objects = compiled([HERE / "driver.cpp"], folder)
        # torch closes it as the process ends, and asks it once more.
        put(
            library("libcuda.so.1", objects, driver, folder, "-Wl,-z,nodelete"),
            TORCH / "lib/libcuda.so.1",
        )
        headers = [f"-I{TORCH}/include{more}" for more in ("", "/torch/csrc/api/include")]
        operators = compiled([HERE / "operators.cpp"], folder, *headers)
        torch = [
            TORCH / f"lib/lib{name}.so" for name in ("c10", "c10_cuda", "torch_cpu", "torch_cuda")
        ]
        put(
            library("libemulated_operators.so", operators, set(), folder, *torch, runtime),
            SITE / "libemulated_operators.so",
        )
    (SITE / "emulated_gpu.py").write_text(AUTOLOAD)
    facts = SITE / "emulated_gpu-1.dist-info"
    facts.mkdir(exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: emulated-gpu\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\nemulated = emulated_gpu:load\n")


if __name__ == "__main__":
    main()
