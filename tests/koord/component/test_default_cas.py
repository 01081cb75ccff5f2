"""CAs of the system are read by the first connection that needs them, not by an import."""

import os
import subprocess
import sys

import pytest

from tests.support.kube.certificates import Authority

IMPORT = """
import ssl
from koord.component.process import default_cas_on_use
with default_cas_on_use():
    from aiohttp import connector
contexts = connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED
def cas(context):
    return context.cert_store_stats()["x509_ca"]
"""


@pytest.fixture
def run(tmp_path):
    """Run a program after that import, on a system with one CA; return what it prints."""
    environ = {**os.environ, "SSL_CERT_FILE": str(Authority(tmp_path).certificate)}
    environ["SSL_CERT_DIR"] = str(tmp_path / "none")

    def run(program: str) -> str:
        command = [sys.executable, "-c", IMPORT + program]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, check=True
        ).stdout.strip()

    return run


def test_aiohttp_is_imported_without_them(run):
    assert run("print(*map(cas, contexts))") == "0 0"


@pytest.mark.parametrize(
    "connect",
    [
        "contexts[0].wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname='a')",
        "contexts[0].wrap_socket(__import__('socket').socket(), server_hostname='a')",
    ],
)
def test_a_connection_verifies_with_them_as_ever(run, connect):
    """The context of connections that name none has the CAs, and demands a certificate."""
    shown = "print(cas(contexts[0]), contexts[0].verify_mode.name, contexts[0].check_hostname)"

    assert run(f"{connect}\n{connect}\n{shown}") == "1 CERT_REQUIRED True"


def test_contexts_that_are_made_later_have_them_at_once(run):
    assert run("print(cas(ssl.create_default_context()))") == "1"


def test_an_error_inside_ends_it_too(run):
    program = """
try:
    with default_cas_on_use():
        raise KeyError
except KeyError:
    print(cas(ssl.create_default_context()))
"""
    assert run(program) == "1"
