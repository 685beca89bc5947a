"""What ranks know each other by: the job's secret, and certificates where TLS is wanted.

Both sides of a TLS connection show theirs. Host names in certificates are not looked at: ranks
are found by addresses that change from job to job, and any certificate of the authority is a
rank's. So the authority should be the job's, or the cluster's, own.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.errors import InvalidUsageError

CERT_VARIABLE = "AIODIST_TLS_CERT"
KEY_VARIABLE = "AIODIST_TLS_KEY"
CA_VARIABLE = "AIODIST_TLS_CA"
VARIABLES = (CERT_VARIABLE, KEY_VARIABLE, CA_VARIABLE)

SECRET_VARIABLE = "AIODIST_SECRET"
SECRET_FILE_VARIABLE = "AIODIST_SECRET_FILE"


def job_secret(environ: Mapping[str, str]) -> bytes:
    """The job's secret, from AIODIST_SECRET or the file that AIODIST_SECRET_FILE names.

    Empty where neither is set. Raises InvalidUsageError for a secret that is no text, and for a file
    that is empty, cannot be read, or can be read by other users.
    """
    secret = environ.get(SECRET_VARIABLE, "")
    path = environ.get(SECRET_FILE_VARIABLE, "")
    if secret or not path:
        return _text(os.fsencode(secret), SECRET_VARIABLE)
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read().strip()
    except OSError as error:
        raise InvalidUsageError(
            f"{SECRET_FILE_VARIABLE}={path!r} cannot be read: {error.strerror}"
        ) from error
    if stat.S_ISREG(mode) and mode & 0o077:
        raise InvalidUsageError(
            f"{SECRET_FILE_VARIABLE}={path!r} can be read by other users: chmod 600 it, and "
            "write a new secret into it"
        )
    if not content:
        raise InvalidUsageError(
            f"{SECRET_FILE_VARIABLE}={path!r} is empty: write a long random value into it, such as "
            "from: openssl rand -hex 32"
        )
    return _text(content, f"{SECRET_FILE_VARIABLE}={path!r}")


def _text(secret: bytes, source: str) -> bytes:
    """Return ``secret``. Launchers hand it to the ranks in a variable, which holds text alone."""
    try:
        is_text = "\0" not in secret.decode()
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise InvalidUsageError(
            f"{source} has bytes that are no text: write a secret in UTF-8, such as from: "
            "openssl rand -hex 32"
        )
    return secret


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: a certificate with its chain, its private key, and the authority's."""

    cert: str
    key: str
    ca: str

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Certificates | None:
        """What the three variables name; None where none is set.

        Raises InvalidUsageError when only some are: the job would be less safe than it looks.
        """
        values = [environ.get(name, "").strip() for name in VARIABLES]
        if not any(values):
            return None
        missing = [name for name, value in zip(VARIABLES, values, strict=True) if not value]
        if missing:
            raise InvalidUsageError(
                f"{' and '.join(missing)} must be set too: TLS between ranks needs a certificate "
                f"({CERT_VARIABLE}), its key ({KEY_VARIABLE}) and the authority that signed every "
                f"rank's certificate ({CA_VARIABLE}), each the path of a PEM file"
            )
        return cls(*values)

    def server_context(self) -> ssl.SSLContext:
        """For the side that listens. Raises InvalidUsageError for files that do not serve."""
        context = self._load(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # no session is resumed, and an unread ticket would reset a stream
        return context

    def client_context(self) -> ssl.SSLContext:
        """For the side that connects. Raises InvalidUsageError for files that do not serve."""
        return self._load(ssl.PROTOCOL_TLS_CLIENT)

    def _load(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidUsageError(
                f"{CA_VARIABLE}={self.ca!r} is no file of certificates: {_why(error)}"
            ) from error
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise InvalidUsageError(
                f"{CERT_VARIABLE}={self.cert!r} and {KEY_VARIABLE}={self.key!r} are no certificate "
                f"with its key: {_why(error)}"
            ) from error
        return context


def _no_password() -> str:
    """Raise InvalidUsageError. OpenSSL would ask at the terminal for the password of an encrypted key."""
    raise InvalidUsageError(
        f"{KEY_VARIABLE} names a key with a password, which no rank can be asked for; write it without "
        "one: openssl pkey -in KEY -out NEW"
    )


def secret_and_certificates(
    secret: bytes | None, certificates: Certificates | None, environ: Mapping[str, str]
) -> tuple[bytes, Certificates | None]:
    """Return what a caller gave or, without a ``secret``, the job's secret and certificates."""
    if secret is not None:
        return secret, certificates
    return job_secret(environ), certificates or Certificates.from_environ(environ)


def tls_refusal(error: ssl.SSLError) -> str:
    """Return the reason in words, such as "CERTIFICATE_VERIFY_FAILED: certificate has expired"."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{reason}: {error.verify_message}"
    return reason


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
