"""What ``import torch`` runs where aiodist is installed; see ``aiodist.torch_backend``.

A module outside the package: importing that would make ``import torch`` slower for every program. An
exception here would break ``import torch``.
"""

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from typing import Any

_log = logging.getLogger("aiodist")

VARIABLE = "AIODIST_INSTEAD_OF"
"""Names the backend in whose place programs get aiodist: "gloo", or nothing."""


def autoload() -> None:
    """Run `register`, and let torch be imported where that fails."""
    try:
        register()
    except Exception as error:  # noqa: BLE001  # a torch without distributed, or with another registry
        level = logging.WARNING if os.environ.get(VARIABLE) else logging.DEBUG
        _log.log(level, 'torch does not get the backend "aiodist": %r', error)


def register() -> None:
    """Let torch know of the backend "aiodist" and of the rendezvous "aiodist://".

    Both are imported when they are first asked for. The second call does nothing.
    """
    from torch import distributed

    # Any: torch's annotations say less than there is.
    torch_dist: Any = distributed
    backends, c10d = torch_dist.Backend, torch_dist.distributed_c10d
    if hasattr(backends, "AIODIST"):
        return
    backends.register_backend("aiodist", _open, extended_api=True, devices=_devices())
    torch_dist.register_rendezvous_handler("aiodist", _meet)
    if hasattr(c10d, "_maybe_attach_flight_recorder"):  # since torch 2.15
        c10d._maybe_attach_flight_recorder = _skipping_own_groups(
            c10d._maybe_attach_flight_recorder
        )
    _leave_untraced()
    if mistake := mistake_in(os.environ):
        _log.warning("%s; it has no effect", mistake)
    elif os.environ.get(VARIABLE, "").strip():
        c10d._new_process_group_helper = replacing_gloo(c10d._new_process_group_helper)


def mistake_in(environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with the value of `VARIABLE`; None where it is valid or not set."""
    text = environ.get(VARIABLE, "")
    if text.strip().lower() in ("", "gloo"):
        return None
    return f"{VARIABLE} must be gloo, the one backend that aiodist replaces, not {text!r}"


def replacing_gloo(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``make``, torch's function behind each new group, with aiodist where it is to use Gloo.

    The group has the name that was asked for, with which such programs compare: Ignite, for instance,
    averages no gradients under another one. Where there are GPUs, torch's default, which is
    "cpu:gloo,cuda:nccl", stays as it is: a group of aiodist's would have no place for NCCL.
    """
    from torch.distributed import Backend, distributed_c10d

    c10d: Any = distributed_c10d

    def make_instead(
        size: Any, rank: Any, ranks: Any, backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        has_gpu = "cuda" in Backend.backend_capability["aiodist"]
        replaced = _GLOO if has_gpu else _GLOO | _DEFAULTS
        asks_for_gloo = str(backend).lower() in replaced
        chosen = type(backend)("aiodist") if asks_for_gloo else backend
        made = group, store = make(size, rank, ranks, chosen, *args, **kwargs)
        if asks_for_gloo and group in c10d._world.pg_map:  # not on ranks outside the group
            c10d._world.pg_map[group] = (backend, store)
        return made

    return make_instead


_GLOO = {"gloo", "cpu:gloo"}
_DEFAULTS = {"undefined", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"}
"""What torch takes for "no backend named", and the same in writing."""


def _devices() -> list[str]:
    """The kinds of device whose tensors there can be: torch tries all that a backend names."""
    from torch import cuda

    # NVIDIA's management library answers then. CUDA's own answer would bar forked children from it.
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        return ["cpu", "cuda"] if cuda.is_available() else ["cpu"]
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _skipping_own_groups(attach: Callable[..., None]) -> Callable[..., None]:
    """Return ``attach``, which gives each new group torch's flight recorder, for groups of others alone.

    It raises for a group that is written in Python, which has no C++ half to record. Such a group takes
    the place of all backends that were named, "cpu:aiodist,cuda:nccl" too.
    """

    def attach_to_others(group: Any, backend_config: Any, ranks: list[int]) -> None:
        if "aiodist" not in backend_config.get_device_backend_map().values():
            attach(group, backend_config, ranks)

    return attach_to_others


_TRACE_RULES = "torch._dynamo.trace_rules"


def _leave_untraced() -> None:
    """Have torch.compile call the functions of aiodist as they are, and trace none of them.

    Each call from a compiled function is then a graph break. torch's compiler takes seconds to import,
    so the rule is set only when a program imports it.
    """
    if _TRACE_RULES in sys.modules:
        _add_rule(sys.modules[_TRACE_RULES])
    else:
        sys.meta_path.insert(0, _TraceRulesFinder())


def _add_rule(trace_rules: Any) -> None:
    with contextlib.suppress(Exception):  # not torch's public API: the compiler works without it
        trace_rules.add("aiodist")


class _TraceRulesFinder:
    """Find torch's module of rules for the compiler, and add the rule once that module has run."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return None for every other module: the next finder looks for it."""
        if name != _TRACE_RULES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_add(module: Any) -> None:
                execute(module)
                _add_rule(module)

            loader.exec_module = execute_and_add
        return spec


def _open(options: Any, backend_options: Any = None) -> Any:
    from aiodist.torch_backend import open_group

    return open_group(options, backend_options)


def _meet(url: str, **kwargs: Any) -> Iterator[Any]:
    from aiodist.torch_backend.rendezvous import rendezvous

    return rendezvous(url, **kwargs)
