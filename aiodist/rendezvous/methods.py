"""The init_method URLs: ``env://``, ``tcp://host:port``, ``file:///path``, by torch's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from aiodist.errors import InvalidUsageError
from aiodist.rendezvous.environments import Number, port_number, whole_number


@dataclass(frozen=True)
class InitMethod:
    """A parsed URL. ``rank`` and ``size`` are those of its query string, None without one."""

    url: str
    scheme: str
    host: str | None = None
    port: Number | None = None
    path: Path | None = None
    rank: Number | None = None
    size: Number | None = None


def parse(url: object) -> InitMethod:
    """Parse ``url``. Raises TypeError, or InvalidUsageError that says what is wrong."""
    if not isinstance(url, str):
        raise TypeError(f"init_method must be a URL such as 'env://', not {url!r}")
    try:
        parts = urlsplit(url, allow_fragments=False)  # a file's name may have a "#"
    except ValueError as error:
        raise InvalidUsageError(f"init_method {url!r} is not a URL: {error}") from None
    scheme = parts.scheme if "://" in url else ""
    if scheme not in _SCHEMES:
        raise InvalidUsageError(
            f"init_method {url!r} does not start with a known scheme: use 'env://', "
            "'tcp://host:port' or 'file:///path/shared/by/all/ranks'"
        )
    host, port, path = _SCHEMES[scheme](url, parts)
    query = dict(parse_qsl(parts.query))
    return InitMethod(
        url, scheme, host, port, path,
        rank=_from_query(query, "rank", url),
        size=_from_query(query, "world_size", url),
    )  # fmt: skip


def _from_query(query: dict[str, str], name: str, url: str) -> Number | None:
    return whole_number(query[name], f"init_method {url}: {name}") if name in query else None


_Parts = tuple[str | None, Number | None, Path | None]


def _env(url: str, parts: SplitResult) -> _Parts:
    if parts.netloc or parts.path:
        raise InvalidUsageError(
            f"init_method {url!r} has an address, and 'env://' takes it from MASTER_ADDR and "
            "MASTER_PORT: did you mean 'tcp://host:port'?"
        )
    return None, None, None


def _tcp(url: str, parts: SplitResult) -> _Parts:
    # Do not use SplitResult.port: its errors do not say which number is wrong.
    place = parts.netloc.rpartition("@")[2]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        raise InvalidUsageError(f"init_method {url!r} lacks the port: write 'tcp://host:port'")
    if not host:
        raise InvalidUsageError(f"init_method {url!r} lacks the host: write 'tcp://host:port'")
    if ":" in host and not host.startswith("["):
        raise InvalidUsageError(
            f"init_method {url!r}: an IPv6 address goes in brackets, as in 'tcp://[::1]:29500'"
        )
    return host.strip("[]"), port_number(port, f"init_method {url}: port"), None


def _file(url: str, parts: SplitResult) -> _Parts:
    if parts.netloc not in ("", "localhost"):
        raise InvalidUsageError(
            f"init_method {url!r} names a host, {parts.netloc!r}: an absolute path has three "
            f"slashes, 'file:///{parts.netloc}{parts.path}'"
        )
    if not parts.path.startswith("/") or parts.path == "/":
        raise InvalidUsageError(
            f"init_method {url!r} lacks the path: write 'file:///path/shared/by/all/ranks'"
        )
    if "?" in url and not {"rank", "world_size"}.intersection(dict(parse_qsl(parts.query))):
        raise InvalidUsageError(
            f"init_method {url!r} has neither rank nor world_size behind its '?': write '%3F' for a "
            "'?' in the file's name"
        )
    return None, None, Path(unquote(parts.path))


_SCHEMES = MappingProxyType[str, Callable[[str, SplitResult], _Parts]](
    {"env": _env, "tcp": _tcp, "file": _file}
)
