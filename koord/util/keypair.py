"""A certificate and its private key, loaded without asking for a password."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

MAX_PEM_BYTES = 4 << 20


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key into a context; CA certificates may follow. All PEM.

    Raises:
        ssl.SSLError: one of them is not valid, or they do not belong together.
        ValueError: the key is encrypted.
    """
    with _as_file(certificate) as certificate_file, _as_file(key) as key_file:
        context.load_cert_chain(certificate_file, key_file, password=_no_password)


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # else OpenSSL would ask at the terminal


@contextmanager
def _as_file(pem: bytes) -> Iterator[str]:
    """A file in memory, because the ssl module takes keys from files only."""
    fd = os.memfd_create("tls-pair", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(pem)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
