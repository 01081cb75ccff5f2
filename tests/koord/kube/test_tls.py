"""The server is who it claims to be, or nothing is sent to it."""

import json
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from structlog.testing import capture_logs

from koord.kube import errors
from koord.kube.client import NODES
from koord.kube.transport import translated
from koord.util.logs import LevelSpec, configure
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.certificates import Authority, Pair

PATH = NODES.object("worker-1")


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Pair], ApiServer]]:
    """Servers with a certificate."""
    servers: list[ApiServer] = []

    async def serve(pair: Pair) -> ApiServer:
        server = ApiServer(tls=pair.server_context())
        server.objects.create("/api/v1/nodes", {"metadata": {"name": "worker-1"}})
        await server.start()
        servers.append(server)
        return server

    yield serve
    for server in servers:
        await server.stop()


@pytest.mark.parametrize("inline", [False, True])
async def test_a_known_ca(serve, make_client, authority: Authority, inline: bool) -> None:
    """As a file or as data in the kubeconfig."""
    server = await serve(authority.issue("good"))
    ca = authority.certificate.read_bytes() if inline else authority.certificate

    found = await make_client(server=server.url, ca=ca).get(PATH)

    assert found["metadata"]["name"] == "worker-1"


@pytest.mark.parametrize(
    ("certificate", "cause", "hint"),
    [
        ({"hosts": ("other.example",)}, "IP address mismatch", "tls-server-name"),
        ({"days": -1}, "certificate has expired", "clock"),
    ],
)
async def test_a_certificate_that_does_not_hold(
    serve, make_client, authority: Authority, certificate: dict, cause: str, hint: str
) -> None:
    """Wrong name, or expired: the message says which and what to do. No token leaves."""
    server = await serve(authority.issue("bad", **certificate))
    client = make_client(server=server.url, ca=authority.certificate, token="secret")

    with pytest.raises(errors.TlsVerificationError, match=f"(?s){cause}.*{hint}"):
        await client.get(PATH)

    assert server.requests == []


def test_a_clock_an_hour_behind() -> None:
    """A certificate that was just issued is not valid yet there."""
    found = ssl.SSLCertVerificationError()
    found.verify_message = "certificate is not yet valid"
    key = ConnectionKey("10.0.0.1", 443, True, True, None, None, None)

    with (
        pytest.raises(errors.TlsVerificationError, match="not yet valid; check this node's clock"),
        translated("GET /x"),
    ):
        raise aiohttp.ClientConnectorCertificateError(key, found)


@pytest.mark.parametrize("other", [True, False])
async def test_an_unknown_ca(
    serve, make_client, authority: Authority, tmp_path: Path, other: bool
) -> None:
    """Neither another CA nor the system's vouch for it."""
    server = await serve(authority.issue("good"))
    ca = Authority(tmp_path, "another CA").certificate if other else None
    client = make_client(server=server.url, ca=ca, token="secret")

    with pytest.raises(errors.TlsVerificationError, match="certificate-authority"):
        await client.get(PATH)

    assert server.requests == []


async def test_tls_server_name(serve, make_client, authority: Authority) -> None:
    """The name to check may differ from the one to connect to."""
    server = await serve(authority.issue("named", hosts=("kubernetes.default",)))
    names = {"ca": authority.certificate, "tls_server_name": "kubernetes.default"}

    assert await make_client(server=server.url, **names).get(PATH)


async def test_a_ca_that_is_replaced(
    serve, make_client, authority: Authority, tmp_path: Path
) -> None:
    """A cluster that rotates its CA needs no restart of ours."""
    ca = tmp_path / "ca.crt"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(Authority(other, "old CA").certificate, ca)
    server = await serve(authority.issue("good"))
    client = make_client(server=server.url, ca=ca)
    with pytest.raises(errors.TlsVerificationError):
        await client.get(PATH)

    ca.write_text("-----BEGIN CERTIFICATE-----\nhalf")
    with pytest.raises(errors.TlsVerificationError):
        await client.get(PATH)
    shutil.copy(authority.certificate, ca)

    assert await client.get(PATH)


async def test_a_ca_that_never_worked(make_client, tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "ca.crt").write_text("no certificate")
    client = make_client(server="https://127.0.0.1:1", ca=tmp_path / "ca.crt")

    with pytest.raises(errors.ConfigError, match=f"{tmp_path}/ca.crt: wanted a CA certificate"):
        await client.get(PATH)


async def test_an_encrypted_key_prompts_for_no_password(make_client, authority: Authority) -> None:
    """OpenSSL would ask at the terminal."""
    pair = authority.issue("locked")
    key = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIH\n-----END ENCRYPTED PRIVATE KEY-----\n"
    client = make_client(
        server="https://127.0.0.1:1", certificate=pair.certificate.read_bytes(), key=key
    )

    with pytest.raises(errors.ConfigError, match="client-certificate-data"):
        await client.get(PATH)


@pytest.mark.parametrize("unverified", [True, False])
async def test_insecure_is_obeyed_and_said(
    serve, make_client, authority: Authority, unverified: bool
) -> None:
    """Once, with the reason why it is a bad idea."""
    server = await serve(authority.issue("bad", hosts=("other.example",), days=-1))
    client = make_client(server=server.url, ca=authority.certificate, verify=not unverified)
    with capture_logs() as logs:
        for _ in range(2):
            try:
                await client.get(PATH)
            except errors.TlsVerificationError:
                assert not unverified

    said = [log for log in logs if log["event"] == "server.verification_disabled"]
    assert len(said) == unverified
    assert all(log["setting"] == "insecure-skip-tls-verify" for log in said)


async def test_transports_of_one_kind_of_server_say_once_that_it_is_not_verified(
    server: ApiServer, make_client, capsys
) -> None:
    """Whatever the address of each is; it names the setting."""
    server.objects.create("/api/v1/nodes", {"metadata": {"name": "worker-1"}})
    configure("json", LevelSpec())
    for host in ("127.0.0.1", "localhost", "127.0.0.1"):
        await make_client(server=server.url.replace("127.0.0.1", host)).get(PATH)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = [line for line in lines if line["event"] == "server.verification_disabled"]
    assert [line["setting"] for line in said] == ["server"]
