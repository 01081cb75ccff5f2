"""Which clients of the extender server are let in, over real TLS; and which starts are refused."""

import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from koord.component.http.certificate import CertificateError
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.errors import OptionError
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.daemon.settings import new_flags
from koord_scheduler.extenderserver import Access, AccessFiles
from tests.support.kube.certificates import Authority, Pair

Make = Callable[..., tuple[Access, HttpServer]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Of another authority."""
    return Authority(tmp_path_factory.mktemp("other")).issue("stranger")


def server_of(access: Access) -> HttpServer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="in")

    app = web.Application()
    app.router.add_post("/", answer)
    return HttpServer(app, Address("127.0.0.1", 0), access.tls, clock=SimulatedClock())


async def test_with_a_client_ca_only_its_clients_are_served(
    authority: Authority, stranger: Pair
) -> None:
    """TLS ends for all others before they have said anything."""
    pair = authority.issue("extender")
    files = AccessFiles(certificate=pair.certificate, key=pair.key, client_ca=authority.certificate)
    access = Access(files, ssl.TLSVersion.TLSv1_2)
    assert access.guard is None
    server = server_of(access)
    await server.start()

    async def asked(shown: Pair | None) -> str:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        url = f"https://127.0.0.1:{server.port}/"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, ssl=context, json={}) as answer,
        ):
            return await answer.text()

    try:
        assert await asked(authority.issue("kube-scheduler")) == "in"
        for shown in (None, stranger):
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await asked(shown)
    finally:
        await server.stop()


def test_a_client_ca_that_cannot_be_used_ends_the_start(
    authority: Authority, tmp_path: Path
) -> None:
    pair, wrong = authority.issue("extender"), tmp_path / "ca.crt"
    for text in ("", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"):
        wrong.write_text(text)
        files = AccessFiles(certificate=pair.certificate, key=pair.key, client_ca=wrong)
        with pytest.raises(CertificateError, match="wanted certificates of CAs in PEM"):
            Access(files, ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ("--extender=:8888", ""),
        ("--extender=[::1]:8888", ""),
        ("--extender=localhost:8888", ""),
        ("--extender=0.0.0.0:8888", "others can connect there"),
        ("--extender=[::]:8888", "others can connect there"),
        ("--extender=10.0.0.1:8888 --extender-tls-cert-file=c --extender-tls-private-key-file=k",
         "others can connect there"),
        ("--extender=10.0.0.1:8888 --extender-token-file=t", ""),
        ("--extender=10.0.0.1:8888 --extender-client-ca-file=ca",
         "give --extender-tls-private-key-file as well"),
        ("--extender=10.0.0.1:8888 --extender-client-ca-file=ca --extender-tls-cert-file=c "
         "--extender-tls-private-key-file=k", ""),
        ("--extender=:8888 --extender-tls-private-key-file=k",
         "give --extender-tls-cert-file as well"),
    ],
)  # fmt: skip
def test_a_start_beyond_loopback_needs_known_clients(flags: str, error: str) -> None:
    """In one line that says what to give."""

    given, _, own = new_flags()
    given.parse(flags.split())
    if not error:
        own.check_combinations()
        return
    with pytest.raises(OptionError, match=error) as refused:
        own.check_combinations()
    assert "\n" not in str(refused.value)
