"""The handshake: two sides that know the key agree; any other side is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.errors import HandshakeError
from aiodist.wire.handshake import MAX_BYTES, VERSION, Handshake

KEY = b"k" * 32


def pair(
    client_key: bytes = KEY, server_key: bytes = KEY, *, client: int = 0, server: int = 1
) -> tuple[Handshake, Handshake]:
    return Handshake(client_key, client, 4, 1000), Handshake(server_key, server, 4, 2000)


def test_both_learn_rank_and_window() -> None:
    client, server = pair()
    hello = client.start(1)
    welcome = server.receive(hello)
    assert welcome is not None
    assert not client.done
    proof = client.receive(welcome)
    assert proof is not None
    assert client.done
    assert not server.done  # nothing is proven to it yet
    assert server.receive(proof) is None
    assert server.done
    assert (client.peer_rank, client.peer_window) == (1, 2000)
    assert (server.peer_rank, server.peer_window) == (0, 1000)
    assert max(map(len, (hello, welcome, proof))) <= MAX_BYTES


def test_a_client_with_another_key_is_refused_at_its_proof() -> None:
    client, server = pair(client_key=b"other" * 7)
    welcome = server.receive(client.start(1))
    assert welcome is not None
    with pytest.raises(HandshakeError, match="does not know this job's key"):
        client.receive(welcome)
    # A client that skips that check has nothing to say that the server would believe.
    with pytest.raises(HandshakeError, match="does not know this job's key"):
        server.receive(b"p" * 32)
    assert not server.done


def test_a_server_with_another_key_is_refused() -> None:
    client, server = pair(server_key=b"other" * 7)
    welcome = server.receive(client.start(1))
    assert welcome is not None
    with pytest.raises(HandshakeError, match="does not know this job's key"):
        client.receive(welcome)
    assert not client.done


def test_the_wrong_rank_is_told_which_rank_answers() -> None:
    client, server = pair(server=2)
    with pytest.raises(HandshakeError, match="this is rank 2, rank 1 was wanted here"):
        server.receive(client.start(1))


@pytest.mark.parametrize("rank", [1, 4, 1000])
def test_ranks_outside_the_job_and_the_own_rank_are_refused(rank: int) -> None:
    _, server = pair()
    stranger = Handshake(KEY, rank, 5000, 0)
    with pytest.raises(HandshakeError, match=f"no rank {rank} may connect"):
        server.receive(stranger.start(1))


def test_an_answer_of_another_rank_is_refused() -> None:
    client, _ = pair()
    hello = client.start(1)
    # Rank 2 shares the key but answers in rank 1's place.
    forged = struct.pack("<4sHIIQ32s", b"AIOD", VERSION, 0, 2, 1000, hello[-32:])
    welcome = Handshake(KEY, 2, 4, 0).receive(forged)
    assert welcome is not None
    with pytest.raises(HandshakeError):
        client.receive(welcome)


@pytest.mark.parametrize("version", [0, VERSION + 1, 65535])
@pytest.mark.parametrize("extra", [b"", b"more bytes than this version's"])
def test_another_version_is_named(version: int, extra: bytes) -> None:
    client, server = pair()
    hello = bytearray(client.start(1))
    struct.pack_into("<H", hello, 4, version)
    with pytest.raises(HandshakeError, match=f"speaks version {version} .* version {VERSION}"):
        server.receive(bytes(hello) + extra)
    with pytest.raises(HandshakeError, match=f"speaks version {version} .* version {VERSION}"):
        client.receive(b"AIOD" + struct.pack("<H", version) + extra)


def test_a_replayed_greeting_and_proof_are_worth_nothing() -> None:
    client, server = pair()
    hello = client.start(1)
    welcome = server.receive(hello)
    assert welcome is not None
    proof = client.receive(welcome)
    assert proof is not None
    again = Handshake(KEY, 1, 4, 2000)
    assert again.receive(hello) != welcome  # a nonce of its own
    with pytest.raises(HandshakeError):
        again.receive(proof)


def test_a_welcome_sent_back_as_a_proof_is_refused() -> None:
    """A reflection: the server's own proof is not the client's."""
    client, server = pair()
    welcome = server.receive(client.start(1))
    assert welcome is not None
    with pytest.raises(HandshakeError):
        server.receive(welcome[-32:])


def test_nothing_may_follow_the_end() -> None:
    client, server = pair()
    welcome = server.receive(client.start(1))
    assert welcome is not None
    proof = client.receive(welcome)
    assert proof is not None
    server.receive(proof)
    for side in (client, server):
        with pytest.raises(HandshakeError, match="is over"):
            side.receive(proof)


def test_every_truncation_and_every_flipped_bit_is_refused() -> None:
    client, server = pair()
    hello = client.start(1)
    for length in range(len(hello)):
        with pytest.raises(HandshakeError):
            Handshake(KEY, 1, 4, 0).receive(hello[:length])
    welcome = server.receive(hello)
    assert welcome is not None
    for length in range(len(welcome)):
        fresh = Handshake(KEY, 0, 4, 0)
        fresh.start(1)
        with pytest.raises(HandshakeError):
            fresh.receive(welcome[:length])
    proof = client.receive(welcome)
    assert proof is not None
    for position in range(len(welcome)):
        damaged = bytearray(welcome)
        damaged[position] ^= 1
        fresh = Handshake(KEY, 0, 4, 1000)
        fresh._hello = hello
        with pytest.raises(HandshakeError):
            fresh.receive(bytes(damaged))


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_raise_nothing_but_handshake_errors(data: bytes, as_client: bool) -> None:
    side = Handshake(KEY, 1, 4, 0)
    if as_client:
        side.start(2)
    with pytest.raises(HandshakeError):
        side.receive(data)
