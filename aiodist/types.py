"""Names of the public vocabulary that belong to no layer: reduce operations, backend names, constants."""

from __future__ import annotations

import enum
import warnings
from datetime import timedelta
from typing import Any

from aiodist.errors import InvalidUsageError

DEFAULT_TIMEOUT = timedelta(minutes=30)
"""Of every operation and of init_process_group, where the caller names none (torch's default)."""


class RedOpType(enum.Enum):
    """The kinds of reduction; values are the codes on the wire."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8


class ReduceOp:
    """How elements of several ranks become one: ``ReduceOp.SUM`` and its like.

    ``AVG`` is the sum divided by the number of ranks (integers: truncated toward zero).
    ``ReduceOp.premul_sum(factor)`` multiplies each rank's input by its ``factor`` before the sum.
    ``BAND``, ``BOR``, ``BXOR`` take integers and booleans; ``MIN`` and ``MAX`` no complex numbers.

    Where a call takes a ``ReduceOp``, it also takes torch's, or one of these strings in upper or lower
    case: "sum", "avg", "product", "min", "max", "band", "bor", "bxor". Other names, such as "mean" or
    "prod", raise TypeError.
    """

    __slots__ = ("factor", "kind")

    SUM: ReduceOp
    AVG: ReduceOp
    PRODUCT: ReduceOp
    MIN: ReduceOp
    MAX: ReduceOp
    BAND: ReduceOp
    BOR: ReduceOp
    BXOR: ReduceOp

    def __init__(self, kind: RedOpType, factor: Any = None) -> None:
        """Make an operation; programs use the attributes and `premul_sum`.

        Args:
            kind: Its kind, as torch names it.
            factor: The factor of PREMUL_SUM.
        """
        self.kind = kind
        self.factor = factor

    @classmethod
    def premul_sum(cls, factor: Any) -> ReduceOp:
        """Return the operation that multiplies each rank's input by a factor before the sum.

        Args:
            factor: A number, or a 0-d tensor or array.

        Raises:
            TypeError: ``factor`` is something else.
        """
        try:
            value = factor.item() if hasattr(factor, "item") else factor
        except (RuntimeError, ValueError):  # torch's and numpy's for several elements
            value = None
        if isinstance(value, bool) or not isinstance(value, int | float | complex):
            raise TypeError(
                f"the factor of PREMUL_SUM must be a number or a 0-d tensor, not {factor!r}"
            )
        return cls(RedOpType.PREMUL_SUM, value)

    # torch has the kind itself as an attribute; its factor has to come from premul_sum.
    PREMUL_SUM = RedOpType.PREMUL_SUM

    @staticmethod
    def of(op: Any) -> ReduceOp:
        """Return the ReduceOp that ``op`` means.

        Args:
            op: One of ours, one of torch's, or the name of an attribute of `ReduceOp` such as "sum",
                in upper or lower case.

        Raises:
            TypeError: It is something else, or PREMUL_SUM without its factor.
        """
        if isinstance(op, ReduceOp):
            return op
        if isinstance(op, str):
            name = op.upper()
        else:
            # torch's RedOpType has .name; its ReduceOp carries the RedOpType as .op
            name = str(getattr(op, "name", None) or getattr(getattr(op, "op", None), "name", ""))
        if name == "PREMUL_SUM":
            # torch keeps the factor where only pickle finds it: the state is (kind, factor).
            state = op.__getstate__()
            if isinstance(state, tuple) and len(state) == 2 and state[1] is not None:
                return ReduceOp.premul_sum(state[1])
            raise TypeError("PREMUL_SUM needs its factor: pass ReduceOp.premul_sum(factor)")
        if name in RedOpType.__members__:
            # The one there is: by it equal calls are known.
            found: ReduceOp = getattr(ReduceOp, name)
            return found
        names = ", ".join(
            repr(kind.name.lower()) for kind in RedOpType if kind is not RedOpType.PREMUL_SUM
        )
        raise TypeError(
            f"op must be a ReduceOp such as ReduceOp.SUM, or one of {names}, not {op!r}"
        )

    @property
    def name(self) -> str:
        return self.kind.name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReduceOp):
            return self.kind is other.kind and self.factor == other.factor
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        tail = f"({self.factor})" if self.factor is not None else ""
        return f"ReduceOp.{self.kind.name}{tail}"


for _kind in RedOpType:
    if _kind is not RedOpType.PREMUL_SUM:
        setattr(ReduceOp, _kind.name, ReduceOp(_kind))


class _DeprecatedReduceOp:
    """torch's old lower-case name: ``reduce_op.SUM`` still works and warns once per place."""

    def __getattr__(self, name: str) -> Any:
        if name not in RedOpType.__members__:
            raise AttributeError(name)
        message = "reduce_op is deprecated, use ReduceOp instead"
        warnings.warn(message, FutureWarning, stacklevel=2)
        return getattr(ReduceOp, name)


reduce_op = _DeprecatedReduceOp()


class Backend(str):
    """A backend's name, parsed and lower-cased: ``Backend("GLOO") == "gloo"``.

    ``"aiodist"`` is the native backend; ``"gloo"`` names it too, so that scripts written for
    torch run on it unchanged. ``"torch:NAME"`` is torch's own process group of that name, and
    ``"nccl"`` is short for ``"torch:nccl"``. ``"cpu:aiodist,cuda:nccl"`` gives each kind of
    device its own backend. Unknown names raise InvalidUsageError with the known ones.
    """

    UNDEFINED = "undefined"
    AIODIST = "aiodist"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"
    TORCH_GLOO = "torch:gloo"
    TORCH_NCCL = "torch:nccl"

    backend_list = (UNDEFINED, AIODIST, GLOO, NCCL, MPI, TORCH_GLOO, TORCH_NCCL)

    DEVICES = ("cpu", "cuda")
    """Kinds of device that a name such as ``"cpu:aiodist,cuda:nccl"`` speaks of."""

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise InvalidUsageError(f"Backend constructor parameter must be string-ish: {name!r}")
        value = name.lower().replace(" ", "")
        parts = [cls._split(part) for part in value.split(",")]
        devices = [device for device, _ in parts]
        known = ", ".join(repr(b) for b in cls.backend_list if b != cls.UNDEFINED)
        if any(backend not in cls.backend_list for _, backend in parts):
            raise InvalidUsageError(f"Invalid backend: {name!r}. Known backends: {known}")
        if len(parts) > 1 and (None in devices or len(set(devices)) < len(devices)):
            raise InvalidUsageError(
                f"Invalid backend: {name!r}. Several backends need a device each, "
                f"as in 'cpu:aiodist,cuda:nccl'"
            )
        return super().__new__(cls, value)

    @classmethod
    def _split(cls, part: str) -> tuple[str | None, str]:
        device, colon, backend = part.partition(":")
        return (device, backend) if colon and device in cls.DEVICES else (None, part)

    def by_device(self) -> dict[str, Backend]:
        """The backend of each kind of device that the name speaks of; empty for a plain name."""
        parts = [self._split(part) for part in self.split(",")]
        return {device: Backend(backend) for device, backend in parts if device is not None}
