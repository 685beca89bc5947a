"""Certificates for tests: an authority of the session's own, and ranks' certificates by it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import trustme

from aiodist.credentials import Certificates


def tls_files(authority: str = "the job's") -> Certificates:
    """A rank's certificate by ``authority``, the same one each time; another name, another one."""
    return _issued(authority)


@cache
def _issued(authority: str) -> Certificates:
    directory = Path(tempfile.mkdtemp(prefix="aiodist-test-certificates-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    ca = trustme.CA(organization_name=authority)
    issued = ca.issue_cert("rank.invalid")
    cert, key, root = (directory / name for name in ("cert.pem", "key.pem", "ca.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    issued.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(root)
    return Certificates(str(cert), str(key), str(root))
