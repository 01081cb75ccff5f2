"""The kubelet is who it claims to be, gets our token only then, and cannot do us harm."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koord.api.node import AddressType, Node, NodeAddress
from koord.kube import errors
from koord.kube.transport import Traffic
from koordlet import kubelet as kubelet_client
from koordlet.kubelet import KubeletClient, KubeletMetrics, KubeletOptions, PodsReader, kubelet_url
from tests.support.kube.apiserver import Handler
from tests.support.kube.certificates import Authority
from tests.support.kube.faults import answer, begin, drop, endless, hang, refuse
from tests.support.kube.kubelet import Kubelet, api_config, make_kubelet, rbac

POD = {"metadata": {"namespace": "shop", "name": "web", "uid": "1"}}


@pytest.fixture
async def kubelet(authority: Authority) -> AsyncIterator[Kubelet]:
    kubelet = make_kubelet(authority)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def connect(
    kubelet: Kubelet, authority: Authority, clock
) -> AsyncIterator[Callable[..., KubeletClient]]:
    """Clients that know the kubelet from its Node, and its CA from the API server's."""
    clients: list[KubeletClient] = []

    def connect(
        *, observe: Callable[[Traffic], None] | None = None, ca: Path | None = None,
        node: Callable[[], Node | None] = lambda: kubelet.node, token: dict[str, Any] | None = None,
        **options: Any,
    ) -> KubeletClient:  # fmt: skip
        api = api_config(ca or authority.certificate, **(token or {}))
        client = KubeletClient(api, node, clock, KubeletOptions(**options), observe=observe)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.close()


async def test_pods_and_configuration(kubelet: Kubelet, connect) -> None:
    """Over one connection, by requests that need no more than nodes/pods and nodes/configz."""
    kubelet.pods = [POD]
    client = connect()

    [pod], problems = await client.pods()
    assert (pod.namespace, pod.name, problems) == ("shop", "web", ())
    assert await client.configz() == {"cpuManagerPolicy": "none"}

    assert {rbac(entry) for entry in kubelet.requests} == {
        ("get", "nodes/pods"), ("get", "nodes/configz"),
    }  # fmt: skip


async def test_the_token_is_read_again(kubelet: Kubelet, connect, service_account: Path) -> None:
    """As the kubelet itself replaces it in a pod, every hour or so."""
    client = connect(token={"token_file": service_account / "token"})
    kubelet.token = "first"
    await client.pods()

    (service_account / "token").write_text("second")
    kubelet.token = "second"
    await client.pods()


@pytest.mark.parametrize(
    ("certificate", "cause", "hint"),
    [
        ({"hosts": ("other.example",)}, "mismatch", "--kubelet-preferred-address-type"),
        ({"days": -1}, "certificate has expired", "clock"),
    ],
)
async def test_a_certificate_that_does_not_hold(
    authority: Authority, connect, certificate: dict[str, Any], cause: str, hint: str
) -> None:
    """The message says why and what to do; no token leaves."""
    kubelet = make_kubelet(authority, **certificate)
    await kubelet.start()

    with pytest.raises(errors.TlsVerificationError, match=f"(?s){cause}.*{hint}"):
        await connect(node=lambda: kubelet.node).pods()

    assert kubelet.requests == []
    await kubelet.stop()


async def test_a_ca_of_its_own(kubelet: Kubelet, connect, authority, tmp_path: Path) -> None:
    """It goes before that of the API server, whose verification may even be off."""
    other = Authority(tmp_path, "another CA").certificate
    with pytest.raises(errors.TlsVerificationError, match="--kubelet-ca-file"):
        await connect(ca=other).pods()
    with pytest.raises(errors.TlsVerificationError):
        await connect(ca_file=other, token={"verify": False}).pods()
    assert kubelet.requests == []

    await connect(ca=other, ca_file=authority.certificate).pods()


async def test_names_and_proxies_of_the_api_server_are_not_the_kubelets(
    kubelet: Kubelet, connect
) -> None:
    """A kubeconfig's tls-server-name and proxy-url are about another server."""
    of_api = {"tls_server_name": "kubernetes", "proxy_url": "http://127.0.0.1:1"}
    await connect(token=of_api).pods()


async def test_the_read_only_port_gets_no_token(clock) -> None:
    """Nor a certificate: it is plain HTTP."""
    kubelet = Kubelet(pods=[POD])
    await kubelet.start()
    options = KubeletOptions(insecure=True, read_only_port=kubelet.port)
    client = KubeletClient(api_config(None), lambda: kubelet.node, clock, options)

    [pod], _ = await client.pods()
    assert pod.name == "web"

    assert "Authorization" not in kubelet.requests[0].headers
    await client.close()
    await kubelet.stop()


async def test_a_kubelet_that_moves_is_followed(
    kubelet: Kubelet, connect, authority: Authority
) -> None:
    """The Node's address or port changes under a running daemon."""
    other = make_kubelet(authority)
    await other.start()
    nodes = [None, kubelet.node, other.node]
    client = connect(node=lambda: nodes.pop(0))

    with pytest.raises(errors.NoAddress, match="found none yet"):
        await client.pods()
    await client.pods()
    await client.pods()

    assert (len(kubelet.requests), len(other.requests)) == (1, 1)
    await other.stop()


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "https://10.0.0.7:10250"),
        ({"address_type": AddressType.EXTERNAL_IP}, "https://[fd00::7]:10250"),
        ({"address_type": AddressType.HOSTNAME}, "https://worker-7:10250"),
        ({"insecure": True, "read_only_port": 10255}, "http://10.0.0.7:10255"),
    ],
)
def test_where_the_kubelet_is(options: dict[str, Any], url: str) -> None:
    """The first address of the wanted type, and the port that the kubelet has reported."""
    pairs = [("Hostname", "worker-7"), ("InternalIP", "10.0.0.7"), ("InternalIP", "10.0.0.8"),
             ("ExternalIP", "fd00::7")]  # fmt: skip
    node = Node("w", addresses=tuple(NodeAddress(*pair) for pair in pairs), kubelet_port=10250)

    assert kubelet_url(node, KubeletOptions(**options)) == url


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (Node("w"), "no address and port none"),
        (Node("w", addresses=(NodeAddress("InternalIP", "10.0.0.7"),)), "port none"),
        (Node("w", addresses=(NodeAddress("Hostname", "w"),), kubelet_port=1), "found Hostname"),
    ],
)
def test_a_node_that_does_not_say_where(node: Node, found: str) -> None:
    """No other address is guessed."""
    with pytest.raises(errors.NoAddress, match=found):
        kubelet_url(node, KubeletOptions())


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (answer(b"Unauthorized", 401), errors.Unauthorized, "401"),
        (answer(b"Forbidden (user=u, verb=get,\n subresource=proxy)", 403,
                {"Content-Type": "text/plain"}), errors.Forbidden, "user=u, verb=get, subresource"),
        (refuse(500), errors.ServerError, "500"),
        (answer(b"<html>", 502), errors.ServerError, "502"),
        (answer(b"not json"), errors.BadResponse, "wanted a list of pods"),
        (answer(b'{"items": [{"metadata"'), errors.BadResponse, "wanted a list of pods"),
        (answer(b'{"items": [{"metadata":' + b"[" * 100_000), errors.BadResponse, "too deep"),
        (answer(b'{"kind": "Status"}'), errors.BadResponse, "a PodList with items"),
        (answer(b'{"kind": "PodList", "items": {}}'), errors.BadResponse, "wanted a list"),
        (begin(b'{"items"', then_cut=True), errors.Unreachable, "wanted an answer"),
        (drop, errors.Unreachable, "wanted an answer"),
    ],
)  # fmt: skip
async def test_each_fault_is_reported(
    kubelet: Kubelet, connect, fault: Handler, error: type[errors.KubeError], text: str
) -> None:
    """And the next request works."""
    is_asked_twice = fault is drop or error is errors.Unauthorized
    kubelet.script(*[fault] * (2 if is_asked_twice else 1))
    client = connect()

    with pytest.raises(error, match=f"GET /pods.*{text}"):
        await client.pods()

    assert await client.pods() == ((), ())


async def test_a_kubelet_that_is_not_there(kubelet: Kubelet, connect) -> None:
    """Nobody listens on the port that the Node still names."""
    await kubelet.stop()

    with pytest.raises(errors.Unreachable):
        await connect().pods()


@pytest.mark.parametrize("fault", [hang, begin(then_hang=True), begin(b"{", then_hang=True)])
async def test_silence_ends_after_the_timeout(
    kubelet: Kubelet, connect, clock, pass_time, fault: Handler
) -> None:
    """Of the whole request, wherever it hangs."""
    kubelet.script(fault)
    begun = clock.monotonic()
    asked = asyncio.ensure_future(connect(timeout=3.0).pods())
    await pass_time(lambda: bool(kubelet.requests), step=0.0)
    await pass_time(asked.done, step=0.1)

    with pytest.raises(errors.TimedOut, match="the whole answer within 3 s"):
        await asked
    assert clock.monotonic() - begun == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("byte", [b" ", b"{", b'"'])
async def test_a_body_without_an_end(
    kubelet: Kubelet, connect, monkeypatch: pytest.MonkeyPatch, byte: bytes
) -> None:
    """Is not read to its end, and not kept."""
    monkeypatch.setattr(kubelet_client, "MAX_LIST_BYTES", 64 << 20)
    kubelet.script(endless(byte * 65536))
    client = connect()
    tracemalloc.start()

    with pytest.raises(errors.BadResponse):
        await client.pods()

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


async def test_a_node_full_of_the_largest_pods_is_read(kubelet: Kubelet, connect, clock) -> None:
    """Each of 1.5 MB, which a tenant may make; in memory is one of them, and what is kept."""
    item = {"metadata": {"namespace": "bad"}, "spec": {"containers": [{"name": "c"}]}}
    item["spec"]["containers"][0]["args"] = [character * 1500 for character in "<é" * 500]
    kubelet.pods = [
        item | {"metadata": {"namespace": "bad", "name": f"p{number}", "uid": f"p{number}"}}
        for number in range(40)
    ]
    kubelet.pods.insert(20, POD)
    client = connect()
    pods, problems = await client.pods()
    assert (len(pods), problems) == (41, ())
    assert "web" in {pod.name for pod in pods}


@pytest.mark.parametrize("config", [None, [], "none"])
async def test_a_configuration_of_another_shape(kubelet: Kubelet, connect, config: Any) -> None:
    """Is refused whole."""
    kubelet.config = config

    with pytest.raises(errors.BadResponse, match="wanted an object with a kubeletconfig"):
        await connect().configz()


async def test_answers_are_timed(kubelet: Kubelet, connect) -> None:
    """Under Koordinator's name and labels; what was never answered is not."""
    registry = CollectorRegistry()
    client = connect(observe=KubeletMetrics(registry).observe)
    kubelet.script(drop, drop, refuse(403))  # what is dropped is asked for twice
    for _ in range(2):
        with pytest.raises(errors.KubeError):
            await client.pods()
    await client.pods()
    await client.configz()

    def count(path: str, code: str) -> float | None:
        labels = {"verb": "get", "path": path, "code": code}
        name = "koordlet_kubelet_request_duration_seconds_count"
        return registry.get_sample_value(name, labels)

    assert (count("/pods/", "200"), count("/pods/", "403"), count("/configz", "200")) == (1, 1, 1)
    assert count("/pods/", "0") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "name", "uid", "spec", "status"]), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["items", "kind", "metadata"]), JSON | st.lists(JSON)))
def test_whatever_stands_in_a_list_of_pods(value: dict[str, Any]) -> None:
    """Each item is a pod or a problem, or all of it is no response."""
    try:
        pods, problems = PodsReader().end(json.dumps(value).encode())
    except errors.BadResponse:
        return
    assert len(pods) + len(problems) >= len(value.get("items") or ())
