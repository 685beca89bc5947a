"""Point-to-point messages of tensors over the native streams."""

from __future__ import annotations

import math

from aiodist.backends.native_objects import OBJECTS, OFFERED, NativeObjects
from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.groups.backend import Received, Tensor
from aiodist.groups.work import Work
from aiodist.mesh.matching import Recv
from aiodist.tensors import Buffer, buffer_of, decode_meta, empty_like_message, encode_meta
from aiodist.wire.frames import Key


class NativeMessages(NativeObjects):
    """Sends, and receives into a tensor or into a new one that the message describes."""

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        buffer_of(tensor, "tensor", writable=writable, load=False)

    def send(self, tensor: Tensor, dst: int, tag: int, timeout: float | None) -> Work[None]:
        buffer = buffer_of(tensor, "tensor", writable=False)
        return self._group.send(buffer.view, encode_meta(buffer), dst, tag, timeout)

    def recv(self, tensor: Tensor, src: int | None, tag: int, timeout: float | None) -> Work[int]:
        buffer = buffer_of(tensor, "tensor", writable=True, load=False)

        def make(key: Key, source: int) -> Recv:
            return Recv(key, source, buffer.view, encode_meta(buffer), check)

        def check(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
            if meta == OBJECTS or meta[:1] == OFFERED:
                return objects_came(src) if meta == OBJECTS else other_device(src)
            _, dtype, shape = decode_meta(meta)
            if dtype == buffer.dtype and length == buffer.nbytes:
                return None
            return InvalidUsageError(
                f"rank {src} sent {dtype.name}{list(shape)}, the tensor to receive into is "
                f"{buffer.dtype.name}{list(buffer.shape)}; the message is dropped"
            )

        def finish(source: int) -> int:
            buffer.write_back()
            return source

        return self._group.recv(make, finish, src, tag, timeout)

    def recv_new(self, src: int | None, tag: int, timeout: float | None) -> Work[Received]:
        made: list[Buffer] = []

        def allocate(meta: bytes, length: int) -> memoryview:
            kind, dtype, shape = decode_meta(meta)
            made[:] = [empty_like_message(kind, dtype, shape)]
            return made[0].view

        def make(key: Key, source: int) -> Recv:
            return Recv(key, source, None, b"", check, allocate)

        def check(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
            if meta == OBJECTS or meta[:1] == OFFERED:
                return objects_came(src) if meta == OBJECTS else other_device(src)
            _, dtype, shape = decode_meta(meta)
            if math.prod(shape) * dtype.itemsize != length:
                return ProtocolError(f"rank {src} sent {length} bytes as {dtype.name}{list(shape)}")
            return None

        def finish(source: int) -> Received:
            return Received(made[0].owner, source)

        return self._group.recv(make, finish, src, tag, timeout)


def objects_came(src: int) -> InvalidUsageError:
    """The error of a receive of a tensor that got objects."""
    return InvalidUsageError(
        f"rank {src} sent objects; receive them with recv_object_list. The message is dropped"
    )


def other_device(src: int) -> InvalidUsageError:
    """The error of a receive whose message goes through another backend of the same group."""
    return InvalidUsageError(
        f"rank {src} sent a tensor of a device that another backend of this group serves; receive "
        "it into a tensor on such a device. The message is dropped"
    )
