"""Where it listens, and whom it answers."""

import ssl

import aiohttp
import pytest
from structlog.testing import capture_logs

from koord.component.http.sockets import ListenError
from tests.support.descheduler.replicas import SHIPPED, Start
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.certificates import Authority
from tests.support.kube.faults import refuse
from tests.support.kube.replicas import free_port

OFF = SHIPPED.replace("0.0.0.0:{port}", "127.0.0.1:0")


async def test_https_asks_the_api_server_about_tokens(
    start: Start, server: ApiServer, clock, authority: Authority
) -> None:
    """Metrics and health are for all; the plain listeners are off with port 0."""
    pair, port = authority.issue("descheduler"), free_port()
    with capture_logs() as logs:
        start(
            OFF,
            f"--secure-port={port}", "--bind-address=127.0.0.1",
            f"--tls-cert-file={pair.certificate}", f"--tls-private-key-file={pair.key}",
            "--tls-min-version=VersionTLS13",
        )  # fmt: skip
        await clock.until(lambda: any(log["event"] == "server.listening" for log in logs))

    listening = [(log["address"], log["tls"]) for log in logs if log["event"] == "server.listening"]
    assert listening == [(f"127.0.0.1:{port}", True)]
    trusted = ssl.create_default_context(cafile=str(authority.certificate))
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{port}"
        async with session.get(f"{url}/metrics", ssl=trusted) as answer:
            assert answer.status == 200
        # As a page in a browser would ask: not local, so a token is wanted.
        foreign = {"Host": "evil.example"}
        async with session.get(f"{url}/configz", ssl=trusted, headers=foreign) as answer:
            assert answer.status == 401
        server.script(refuse(403), path="/apis/authentication.k8s.io")
        bearer = {**foreign, "Authorization": "Bearer abc"}
        async with session.get(f"{url}/configz", ssl=trusted, headers=bearer) as answer:
            assert answer.status == 503
        old = ssl.create_default_context(cafile=str(authority.certificate))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{url}/metrics", ssl=old)


async def test_https_without_a_certificate_is_off(start: Start, clock) -> None:
    """And said, if it was asked for."""
    with capture_logs() as logs:
        start(SHIPPED, "--secure-port=10258")
        await clock.until(lambda: any(log["event"] == "daemon.started" for log in logs))

    [off] = [log for log in logs if log["event"] == "https.disabled"]
    assert off["port"] == 10258
    assert [log["tls"] for log in logs if log["event"] == "server.listening"] == [False]


async def test_an_address_in_use_ends_the_start(start: Start, clock, pass_time) -> None:
    first = start()
    await clock.until(lambda: bool(first.watchers))
    second = start(SHIPPED.replace("{port}", str(first.port)))
    await pass_time(second.task.done)

    with pytest.raises(ListenError, match="in use"):
        second.task.result()


async def test_metrics_may_have_an_address_of_their_own(start: Start, clock) -> None:
    """Both listeners have all endpoints."""
    port = free_port()
    config = SHIPPED.replace("metricsBindAddress: 0.0.0.0:{port}", f"metricsBindAddress: :{port}")
    replica = start(config)
    await clock.until(lambda: bool(replica.watchers))
    for each in (port, replica.port):
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{each}/metrics"
            async with session.get(url) as answer:
                assert answer.status == 200
