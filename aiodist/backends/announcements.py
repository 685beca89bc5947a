"""Messages that are announced over aiodist's streams and carried by another library.

Any rank that receives over aiodist's streams may get an announcement: in a group with a backend for
each kind of device, sender and receiver may use different ones. The format of announcements is
therefore here.
"""

from __future__ import annotations

from aiodist.errors import InvalidUsageError
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.naming import announcement_group_id
from aiodist.wire.frames import TENSOR, Key

_MARK = b"\xfe"
"""No tensor's description starts like this."""

_HEAD = len(_MARK) + 8

ELSEWHERE = b"\xff"
"""The receiver's answer: the message was received for another backend of the group. It is the last one."""


def announcement(number: int, meta: bytes) -> bytes:
    """Return the metadata for its sender's message ``number``, a tensor that ``meta`` describes."""
    return _MARK + number.to_bytes(8, "little") + meta


def is_announcement(meta: bytes) -> bool:
    """Return whether ``meta`` is that of an announcement."""
    return meta[:1] == _MARK and len(meta) >= _HEAD


def read(meta: bytes) -> tuple[int, bytes]:
    """Return number and description of an `announcement`."""
    return int.from_bytes(meta[len(_MARK) : _HEAD], "little"), meta[_HEAD:]


def key_of(group: int, number: int, sender: int, receiver: int) -> Key:
    """Return the key of the control messages about announced message ``number``.

    ``group``: its `announcement_group_id`. Ranks are global.
    """
    return (TENSOR, group, number * 2 + (sender < receiver))


def decline(group: GroupEngine, src: int, meta: bytes) -> InvalidUsageError:
    """Refuse an announced message on a receive over aiodist's streams, and return the receiver's error.

    The sender gets its own error.
    """
    number, _ = read(meta)
    key = key_of(announcement_group_id(group), number, src, group.global_rank)
    group.endpoint.send(src, key, memoryview(ELSEWHERE), b"")
    return other_device(src)


def other_device(src: int) -> InvalidUsageError:
    """Return the error of a receive whose message goes through another backend of the same group."""
    return InvalidUsageError(
        f"rank {src} sent a tensor of a device that another backend of this group serves; receive "
        "it into a tensor on such a device. The message is dropped"
    )


def declined(to: int) -> InvalidUsageError:
    """Return the error of a send whose message rank ``to`` received for another backend."""
    return InvalidUsageError(
        f"rank {to} received the message for another backend of this group than the one that "
        "serves the tensor that was sent: it wants a tensor on such a device. The message is dropped"
    )
