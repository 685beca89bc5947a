"""The job's secret and its certificates, as the environment names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from aiodist.api.settings import schemes_from
from aiodist.credentials import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, Certificates, job_secret
from aiodist.errors import InvalidUsageError
from aiodist.launch.environment import job_identity
from tests.certificates import tls_files


def tls_environ(authority: str = "the job's") -> dict[str, str]:
    files = tls_files(authority)
    return {CERT_VARIABLE: files.cert, KEY_VARIABLE: files.key, CA_VARIABLE: files.ca}


def test_the_secret_comes_from_the_variable_or_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text("from a file\n")
    named = {"AIODIST_SECRET_FILE": str(file)}
    assert job_secret({}) == b""
    assert job_secret(named) == b"from a file"
    assert job_secret({**named, "AIODIST_SECRET": "plain"}) == b"plain"
    assert job_identity(named)["AIODIST_SECRET"] == "from a file"
    assert len(job_identity({})["AIODIST_SECRET"]) == 64
    file.chmod(0o640)
    with pytest.raises(InvalidUsageError, match="can be read by other users"):
        job_secret(named)
    file.chmod(0o600)
    file.write_text(" \n")
    with pytest.raises(InvalidUsageError, match="is empty"):
        job_secret(named)
    with pytest.raises(InvalidUsageError, match="cannot be read: No such file"):
        job_secret({"AIODIST_SECRET_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize("secret", [b"\xff\xfe random bytes", b"a\0b"])
def test_a_secret_that_is_no_text_is_refused(tmp_path: Path, secret: bytes) -> None:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_bytes(secret)
    for environ in ({"AIODIST_SECRET_FILE": str(file)}, {"AIODIST_SECRET": os.fsdecode(secret)}):
        with pytest.raises(InvalidUsageError, match="no text: write a secret in UTF-8"):
            job_identity(environ)


@pytest.mark.parametrize("missing", [CERT_VARIABLE, KEY_VARIABLE, CA_VARIABLE])
def test_all_three_variables_or_none(missing: str) -> None:
    assert Certificates.from_environ({}) is None
    environ = tls_environ()
    assert Certificates.from_environ(environ) == tls_files()
    del environ[missing]
    with pytest.raises(InvalidUsageError, match=f"^{missing} must be set too"):
        Certificates.from_environ(environ)


def test_files_that_do_not_serve_are_named(tmp_path: Path) -> None:
    files, others = tls_files(), tls_files("another")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("no certificate")
    for broken, name in (
        (Certificates(files.cert, files.key, str(nonsense)), CA_VARIABLE),
        (Certificates(files.cert, files.key, str(tmp_path / "none")), CA_VARIABLE),
        (Certificates(str(nonsense), files.key, files.ca), CERT_VARIABLE),
        (Certificates(files.cert, others.key, files.ca), KEY_VARIABLE),
    ):
        for make in (broken.server_context, broken.client_context):
            with pytest.raises(InvalidUsageError, match=f"{name}="):
                make()


def test_a_key_with_a_password_is_refused_with_the_way_to_one_without(tmp_path: Path) -> None:
    files = tls_files()
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), password=None)
    encryption = serialization.BestAvailableEncryption(b"password")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked = tmp_path / "locked.pem"
    locked.write_bytes(key.private_bytes(*form, encryption))
    with pytest.raises(InvalidUsageError, match="openssl pkey"):
        Certificates(files.cert, str(locked), files.ca).server_context()


def test_with_certificates_tls_takes_the_place_of_tcp() -> None:
    assert schemes_from({}) == ["shm", "unix", "tcp"]
    assert schemes_from(tls_environ()) == ["shm", "unix", "tls"]
    assert schemes_from({**tls_environ(), "AIODIST_TRANSPORT": "tcp"}) == ["tcp"]
    with pytest.raises(InvalidUsageError, match="names tls, which needs AIODIST_TLS_CERT"):
        schemes_from({"AIODIST_TRANSPORT": "tls"})
    bad = {**tls_environ(), KEY_VARIABLE: tls_files("another").key}
    with pytest.raises(InvalidUsageError, match=KEY_VARIABLE):
        schemes_from(bad)
