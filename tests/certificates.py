"""Certificates for tests: an authority of the session's own, and ranks' certificates by it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import trustme

from aiodist.credentials import Certificates


def tls_files(authority: str = "the job's", *, days: int = 365) -> Certificates:
    """A rank's certificate by ``authority``, the same one each time; another name, another one.

    ``days``: for how many days from now it is valid; it has expired if the number is negative.
    """
    return _issued(authority, days)


@cache
def _issued(authority: str, days: int) -> Certificates:
    directory = Path(tempfile.mkdtemp(prefix="aiodist-test-certificates-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    ca = trustme.CA(organization_name=authority)
    now = datetime.now(UTC)
    issued = ca.issue_cert(
        "rank.invalid", not_before=now - timedelta(365), not_after=now + timedelta(days)
    )
    cert, key, root = (directory / name for name in ("cert.pem", "key.pem", "ca.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    issued.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(root)
    return Certificates(str(cert), str(key), str(root))
