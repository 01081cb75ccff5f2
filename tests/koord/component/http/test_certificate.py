"""A server's certificate while it is replaced under it, asked over real TLS."""

import asyncio
import functools
import os
import shutil
import ssl
import subprocess

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from koord.component.http.certificate import INTERVAL, CertificateError, ServingCertificate
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop


class Files:
    """The two files as options of the daemon."""

    def __init__(self, directory, issue):
        self._issue = issue
        self.certificate, self.key = directory / "tls.crt", directory / "tls.key"
        self.put("first")

    def put(self, name, *, certificate=True, key=True):
        """Replace the files, or one of them, with those of another certificate."""
        pair = self._issue(name)
        for wanted, source, target in (
            (certificate, pair.certificate, self.certificate),
            (key, pair.key, self.key),
        ):
            if wanted:
                shutil.copy(source, target.with_suffix(".new"))
                target.with_suffix(".new").replace(target)


@pytest.fixture(scope="module")
def issue(authority):
    """Certificates by name, each made once."""
    return functools.cache(authority.issue)


@pytest.fixture
def files(tmp_path, issue):
    return Files(tmp_path, issue)


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
async def certificate(files, clock):
    """The certificate, followed."""
    certificate, stop = ServingCertificate(files.certificate, files.key), Stop(clock)
    following = asyncio.create_task(certificate.run(stop))
    await clock.settle()
    yield certificate
    stop.set()
    await following


@pytest.fixture
async def server(certificate):
    server = HttpServer(web.Application(), Address("127.0.0.1", 0), certificate.context)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def shown(server, authority):
    """The name in the certificate that a new connection sees."""

    async def shown():
        context = ssl.create_default_context(cafile=str(authority.certificate))
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        subject = writer.get_extra_info("ssl_object").getpeercert()["subject"]
        writer.close()
        await writer.wait_closed()
        return subject[0][0][1]

    return shown


@pytest.fixture
def look(clock, certificate):
    """Let the daemon look at the files, and wait for what it makes of them."""

    async def look(until):
        for _ in range(200):
            await clock.advance(INTERVAL)
            await asyncio.sleep(0.005)
            if until():
                return
        raise AssertionError("not so after 200 looks")

    return look


async def test_new_connections_show_the_new_certificate(files, shown, look, server, authority):
    """Those that are there already go on."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    assert await shown() == "first"

    with capture_logs() as logs:
        files.put("second")
        await look(lambda: any(log["event"] == "certificate.renewed" for log in logs))

    assert await shown() == "second"
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"404" in await reader.readline()
    writer.close()


@pytest.mark.parametrize("broken", ["half a rotation", "no certificate", "gone", "a directory"])
async def test_a_broken_pair_keeps_the_last_good_one(
    files, certificate, shown, look, clock, broken
):
    """It is named once in the log and by /healthz, until it is mended."""
    with capture_logs() as logs:
        if broken == "half a rotation":
            files.put("second", key=False)
        elif broken == "no certificate":
            files.certificate.write_text("-----BEGIN CERTIFICATE-----\nhalf")
        else:
            files.certificate.unlink()
        if broken == "a directory":
            files.certificate.mkdir()
        await look(lambda: certificate.health().status is HealthStatus.DEGRADED)
        await clock.advance(5 * INTERVAL)

        assert await shown() == "first"
        assert str(files.certificate) in certificate.health().reason
        assert [log["event"] for log in logs] == ["certificate.unusable"]

    if broken == "a directory":
        files.certificate.rmdir()
    files.put("third")
    await look(lambda: certificate.health().status is HealthStatus.OK)
    assert await shown() == "third"


def test_a_rotation_as_kubernetes_does_it(tmp_path, files, clock):
    """A Secret's volume swaps one link for all files, and what was read before stays valid."""
    first, second = tmp_path / "..1", tmp_path / "..2"
    first.mkdir()
    shutil.copy(files.certificate, first)
    shutil.copy(files.key, first)
    (tmp_path / "..data").symlink_to(first.name)
    data = tmp_path / "..data"
    certificate = ServingCertificate(data / "tls.crt", data / "tls.key")
    files.put("second")
    second.mkdir()
    shutil.copy(files.certificate, second)
    shutil.copy(files.key, second)
    (tmp_path / "..tmp").symlink_to(second.name)
    os.replace(tmp_path / "..tmp", data)

    with capture_logs() as logs:
        asyncio.run(_one_look(certificate, clock))

    assert [log["event"] for log in logs] == ["certificate.renewed"]


async def _one_look(certificate, clock):
    stop = Stop(clock)
    following = asyncio.create_task(certificate.run(stop))
    await clock.settle()
    stop.set()
    await following


def test_a_pair_that_cannot_be_used_stops_the_start(files):
    """The message names both files and both flags."""
    files.put("other", certificate=False)
    with pytest.raises(CertificateError) as raised:
        ServingCertificate(files.certificate, files.key)

    for part in (files.certificate, files.key, "--tls-cert-file", "--tls-private-key-file"):
        assert str(part) in str(raised.value)


def test_an_encrypted_key_prompts_for_no_password(files):
    """OpenSSL would ask at the terminal."""
    key, locked = files.key, files.key.with_suffix(".locked")
    command = f"openssl ec -in {key} -aes256 -passout pass:secret -out {locked}"
    subprocess.run(command.split(), check=True, capture_output=True)
    locked.replace(key)

    with pytest.raises(CertificateError, match="the key is encrypted"):
        ServingCertificate(files.certificate, files.key)


async def test_old_protocols_are_refused(certificate):
    """TLS 1.1 is broken, and no client of today needs it. OpenSSL may refuse it anyway, or not."""
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2
