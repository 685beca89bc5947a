"""Bytes to frames and back, the handshake, and the object codec. No socket, no event loop, no tensor."""
