"""Tokens and certificates are renewed from their source."""

import asyncio
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from koord.kube import errors
from koord.kube.client import NODES, ApiClient
from koord.kube.credentials import ApiConfig, ExecPlugin, credentials_of, run_plugin
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.certificates import Authority, Pair

V1 = "client.authentication.k8s.io/v1"
PATH = NODES.object("worker-1")


def config(**fields) -> ApiConfig:
    return ApiConfig(server="https://127.0.0.1:1", source="the test", **fields)


async def test_a_token_file_is_read_again_when_it_changes(service_account: Path, clock) -> None:
    """The kubelet renews it about once an hour."""
    credentials = credentials_of(config(token_file=service_account / "token"), clock)
    assert (await credentials.current()).token == "first"

    (service_account / "token").write_text("second")

    assert (await credentials.current()).token == "second"


async def test_a_change_that_cannot_be_seen_is_found_within_a_minute(
    service_account: Path, clock: SimulatedClock
) -> None:
    """Same inode, size and time of change: then only reading helps."""
    path = service_account / "token"
    credentials = credentials_of(config(token_file=path), clock)
    await credentials.current()
    before = path.stat()
    path.write_text("fresh\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (await credentials.current()).token == "first"

    await clock.advance(60)

    assert (await credentials.current()).token == "fresh"


@pytest.mark.parametrize("spoilt", [None, b"", b"\n", b"\xff", b"two\nlines"])
async def test_the_last_good_token_stays(
    service_account: Path, clock: SimulatedClock, spoilt: bytes | None
) -> None:
    """While the file is missing or spoilt; and it is read again once it is good."""
    path = service_account / "token"
    credentials = credentials_of(config(token_file=path), clock)
    await credentials.current()
    path.unlink()
    if spoilt is not None:
        path.write_bytes(spoilt)

    assert (await credentials.current()).token == "first"

    path.write_text("third")
    assert (await credentials.current()).token == "third"


async def test_without_any_token_the_error_names_the_file(tmp_path: Path, clock) -> None:
    """There is nothing to go on with."""
    credentials = credentials_of(config(token_file=tmp_path / "token"), clock)

    with pytest.raises(errors.ConfigError, match=f"{tmp_path}/token: wanted a bearer token"):
        await credentials.current()


async def test_a_401_reads_the_token_again_at_once(
    server: ApiServer, make_client, service_account: Path
) -> None:
    """An expired token costs one more request, not an error."""
    path = service_account / "token"
    server.objects.create("/api/v1/nodes", {"metadata": {"name": "worker-1"}})
    server.token = "first"
    client = make_client(token_file=path)
    await client.get(PATH)
    before = path.stat()
    server.token = "other"
    path.write_text("other\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a change that cannot be seen

    await client.get(PATH)

    used = [entry.headers["Authorization"] for entry in server.requests]
    assert used == ["Bearer first", "Bearer first", "Bearer other"]


async def test_a_token_that_stays_wrong_is_an_error(server: ApiServer, make_client) -> None:
    """After one more attempt."""
    server.token = "good"

    with pytest.raises(errors.Unauthorized):
        await make_client(token="bad").get(PATH)

    assert len(server.requests) == 2


def plugin_script(directory: Path, body: str) -> Path:
    """A program that notes each run, then does what body says in Python."""
    path = directory / "plugin"
    path.write_text(
        f"#!{sys.executable} -IS\nimport json, os, sys, time\n"
        f"open({str(directory / 'runs')!r}, 'a').write('x')\n{body}\n"
    )
    path.chmod(0o700)
    return path


def prints(status: dict, version: str = V1) -> str:
    found = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(found)!r})"


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


async def test_a_plugin_runs_once_until_its_token_expires(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    """By the wall clock, a little early."""
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.wall() + 600))
    status = {"token": "t", "expirationTimestamp": expires}
    plugin = ExecPlugin(api_version=V1, command=str(plugin_script(tmp_path, prints(status))))
    credentials = credentials_of(config(exec_plugin=plugin), clock, {})

    found = await asyncio.gather(*[credentials.current() for _ in range(5)])
    assert [credential.token for credential in found] == ["t"] * 5
    await clock.advance(580)
    await credentials.current()
    assert runs(tmp_path) == 1

    await clock.advance(15)
    await credentials.current()
    assert runs(tmp_path) == 2

    credentials.refused()
    await credentials.current()
    assert runs(tmp_path) == 3


@pytest.mark.parametrize("error", [3600, -3600])
async def test_a_plugin_on_a_node_whose_clock_is_an_hour_off(
    tmp_path: Path, clock: SimulatedClock, error: int
) -> None:
    """Fast, its token seems to have expired, yet it runs no more than once a minute. Slow, the
    server's rejection shows."""
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.wall() + 900))
    status = {"token": "t", "expirationTimestamp": expires}
    plugin = ExecPlugin(api_version=V1, command=str(plugin_script(tmp_path, prints(status))))
    credentials = credentials_of(config(exec_plugin=plugin), clock, {})
    clock.step_wall(error)
    for _ in range(59):
        await credentials.current()
        await clock.advance(1)
    assert runs(tmp_path) == 1

    await clock.advance(1000)
    credentials.refused()
    await credentials.current()
    assert runs(tmp_path) == 2


async def test_a_plugin_gets_the_cluster_info(tmp_path: Path) -> None:
    """Arguments, environment, and KUBERNETES_EXEC_INFO; no shell reads any of it."""
    script = plugin_script(
        tmp_path,
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "token = [sys.argv[1:], os.environ['A'], os.environ['B'], info, sys.stdin.read()]\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential',"
        " 'status': {'token': json.dumps(token)}}))",
    )
    plugin = ExecPlugin(
        api_version="client.authentication.k8s.io/v1beta1",
        command=str(script),
        args=("--cluster", "$(reboot); a b"),
        env={"A": "1"},
        cluster={"server": "https://x"},
    )

    found = await run_plugin(plugin, {"A": "0", "B": "2"})

    arguments, a, b, info, stdin = json.loads(found.token)
    assert arguments == ["--cluster", "$(reboot); a b"]
    assert (a, b, stdin) == ("1", "2", "")
    assert info["spec"] == {"interactive": False, "cluster": {"server": "https://x"}}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("sys.exit('no login')", "found 1: no login"),
        ("print('hello')", "ExecCredential"),
        (prints({"token": "t"}, "client.authentication.k8s.io/v1alpha1"), "v1alpha1"),
        (prints({}), "a token, or a certificate and its key"),
        (prints({"clientCertificateData": "c"}), "a token, or a certificate and its key"),
        (prints({"token": "t", "expirationTimestamp": "tomorrow"}), "RFC 3339"),
        (prints({"token": "t", "expirationTimestamp": "2030-01-01T00:00:00"}), "RFC 3339"),
        (prints({"token": 1}), "status.token"),
        ("while True: sys.stdout.write('x' * 65536)", "more than 1048576 bytes"),
        ("while True: sys.stderr.write('x' * 65536)", "silence"),
        ("time.sleep(60)", "silence"),
        ("os.close(1), os.close(2), time.sleep(60)", "silence"),
        ("os.fork() or time.sleep(60)", "silence"),
    ],
)
async def test_a_plugin_that_misbehaves_is_an_error(tmp_path: Path, body: str, wanted: str) -> None:
    """In time, with what it said, and without keeping what it poured out."""
    plugin = ExecPlugin(api_version=V1, command=str(plugin_script(tmp_path, body)))
    timeout = 0.6 if wanted == "silence" else 60.0  # those that end may take their time

    with pytest.raises(errors.ConfigError, match=wanted):
        await run_plugin(plugin, dict(os.environ), timeout=timeout)


async def test_a_missing_plugin_says_how_to_install_it(tmp_path: Path) -> None:
    """The kubeconfig often knows."""
    plugin = ExecPlugin(api_version=V1, command=str(tmp_path / "no"), install_hint="get it at x.y")

    with pytest.raises(errors.ConfigError, match=r"No such file or directory; get it at x\.y"):
        await run_plugin(plugin, {})


@pytest.fixture
async def mutual(authority: Authority, tmp_path: Path):
    """A server that knows its clients by their certificates."""
    context = authority.issue("mutual").server_context(client_ca=authority.certificate)
    server = ApiServer(tls=context)
    server.objects.create("/api/v1/nodes", {"metadata": {"name": "worker-1"}})
    await server.start()
    yield server
    await server.stop()


def material(pair: Pair, *, files: bool) -> dict[str, object]:
    if files:
        return {"certificate": pair.certificate, "key": pair.key}
    return {"certificate": pair.certificate.read_bytes(), "key": pair.key.read_bytes()}


@pytest.mark.parametrize("files", [True, False])
async def test_client_certificates(
    mutual: ApiServer, make_client, authority: Authority, files: bool
) -> None:
    """From files or from the kubeconfig itself."""
    pair = authority.issue("worker")
    client: ApiClient = make_client(
        server=mutual.url, ca=authority.certificate, **material(pair, files=files)
    )

    assert (await client.get(PATH))["metadata"]["name"] == "worker-1"


async def test_a_server_that_wants_a_certificate_and_gets_none(
    mutual: ApiServer, make_client, authority: Authority
) -> None:
    """It hangs up on us, in TLS 1.3 only after our side believes to be connected."""
    client = make_client(server=mutual.url, ca=authority.certificate)

    with pytest.raises(errors.Unreachable):
        await client.get(PATH)


async def test_client_certificates_from_a_plugin(
    mutual: ApiServer, make_client, authority: Authority, tmp_path: Path
) -> None:
    """Some clouds' plugins print a certificate in place of a token."""
    pair = authority.issue("worker")
    status = {
        "clientCertificateData": pair.certificate.read_text(),
        "clientKeyData": pair.key.read_text(),
    }
    plugin = ExecPlugin(api_version=V1, command=str(plugin_script(tmp_path, prints(status))))
    client = make_client(server=mutual.url, ca=authority.certificate, exec_plugin=plugin)

    assert (await client.get(PATH))["metadata"]["name"] == "worker-1"


async def test_a_certificate_that_is_being_replaced(
    mutual: ApiServer, make_client, authority: Authority, tmp_path: Path
) -> None:
    """Between the two steps of a rotation the old pair is used, then the new one."""
    old, new = authority.issue("old"), authority.issue("new")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    shutil.copy(old.certificate, certificate)
    shutil.copy(old.key, key)
    names = []

    async def note(request):
        subject = request.transport.get_extra_info("peercert")["subject"]
        names.append(subject[0][0][1])
        from tests.support.kube.faults import answer

        return await answer(b"{}")(request)

    mutual.script(*[note] * 3)
    client = make_client(
        server=mutual.url, ca=authority.certificate, certificate=certificate, key=key
    )
    await client.get(PATH)
    shutil.copy(new.certificate, certificate)
    await client.get(PATH)
    shutil.copy(new.key, key)
    await client.get(PATH)

    assert names == ["old", "old", "new"]
