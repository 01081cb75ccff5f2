"""Traffic from node agents: their metrics, over time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.plugin import KoordError
from koord.plugin.kube import ApiConfig, RequestLimits, Transport
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler_plugins.network_traffic.readings import NetworkTrafficArgs, Traffic
from koord_scheduler_plugins.network_traffic.sources import (
    AgentsSource,
    Interface,
    NoSamples,
    Scrape,
    is_wanted,
    place_of,
    read_interfaces,
    traffic_between,
)
from tests.support.http_site import ScriptedSite

PREFIX = "koordlet_node_network"


def exposition(device: str = "eth0", node: str = "n1", **figures: float) -> bytes:
    """Koordlet's metrics, other families around."""
    lines = [
        f'{PREFIX}_{name}{{node="{node}",device="{device}"}} {value}'
        for name, value in figures.items()
    ]
    around = [f"# TYPE {PREFIX}_receive_bytes_total counter", "koordlet_start_time 1.0"]
    return "\n".join([around[0], *lines, around[1], ""]).encode()


def test_figures_are_found_among_all_metrics() -> None:
    """By interface; other families and what is malformed are left out."""
    data = (
        exposition(receive_bytes_total=10, transmit_bytes_total=20, speed_bytes=30)
        + exposition("eth1", receive_bytes_per_second=1.5, transmit_bytes_per_second=2)
        + exposition("eth2", receive_packets_total=1, receive_bytes_totally=2)
        + b'koordlet_node_network_receive_bytes_total{node="n1",device="eth3"} NaN\n'
        + b'koordlet_node_network_receive_bytes_total{node="n1",device="eth4"} x\n'
        + b'koordlet_node_network_receive_bytes_total{node="n1",device="eth5"}\n'
        + b'koordlet_node_network_receive_bytes_total{node="n1"} 1\n'
        + b'koordlet_node_network_receive_bytes_total{node="n1",device="eth6"} 7'
    )
    assert read_interfaces(data) == {
        "eth0": Interface(10, 20, None, None, 30),
        "eth1": Interface(None, None, 1.5, 2),
        "eth3": Interface(),
        "eth6": Interface(7),
    }


@given(st.binary(max_size=200), st.binary(max_size=60), st.floats())
def test_any_bytes_are_read(data: bytes, device: bytes, value: float) -> None:
    """Without an error, with amounts only."""
    line = b'\nkoordlet_node_network_speed_bytes{device="' + device + b'"} %r\n' % value
    for one in read_interfaces(data + line).values():
        assert one.speed is None or 0 <= one.speed < 2**62


@pytest.mark.parametrize(
    ("device", "wanted", "found"),
    [
        ("eth0", "*", True),
        ("enp3s0f1", "*", True),
        ("ens192", "*", True),
        ("wlan0", "*", True),
        ("lo", "*", False),
        ("cni0", "*", False),
        ("bond0", "*", False),
        ("eth0.100", "*", False),
        ("docker0", "docker0", True),
        ("eth0", "eth1", False),
    ],
)
def test_a_star_stands_for_all_but_virtual_interfaces(
    device: str, wanted: str, found: bool
) -> None:
    """A name stands for itself."""
    assert is_wanted(device, wanted) is found


def seen(at: float, receive: float, transmit: float = 0.0, **more: Any) -> Scrape:
    return Scrape(at, {"eth0": Interface(receive, transmit, **more)})


@pytest.mark.parametrize(
    ("earlier", "latest", "wanted"),
    [
        (seen(0, 10e9), seen(60, 10.6e9, 6e8, speed=125e6), Traffic(1e7, 1e7, 125e6)),
        (None, seen(60, 10e9), Traffic()),
        (None, seen(60, 10e9, receive_per_second=7.0), Traffic(7.0)),
        (seen(0, 500), seen(60, 100), Traffic(None, 0.0)),  # the counter was reset
        (seen(0, 0), seen(200, 1000), Traffic()),  # more than three intervals
        (seen(60, 0), seen(60, 1000), Traffic()),
        (Scrape(0.0), seen(60, 1000, receive_per_second=2.0), Traffic(2.0)),  # a new interface
    ],
)
def test_a_rate_is_of_two_sightings(
    earlier: Scrape | None, latest: Scrape, wanted: Traffic
) -> None:
    """Or else what the agent measured itself, if it says so."""
    assert traffic_between(earlier, latest, 180.0) == wanted


def test_addresses_of_agents_are_those_of_their_nodes() -> None:
    """A node cannot have another place be asked than its own address."""
    template = "http://{address}:9316/metrics"
    assert place_of(template, "n1", "10.0.0.7") == ("http://10.0.0.7:9316", "/metrics")
    assert place_of(template, "n1", "fd00::7") == ("http://[fd00::7]:9316", "/metrics")
    assert place_of("https://{node}.agents/m", "n1", "") == ("https://n1.agents", "/m")
    for wrong in ("", "evil.example/?", "10.0.0.7:80/x#", "10.0.0.7@evil"):
        with pytest.raises(NoSamples):
            place_of(template, "n1", wrong)


async def test_each_agent_is_asked_once_in_an_interval(site: ScriptedSite) -> None:
    """All at the start, a few at a time; then in turns. What one does is its own matter."""
    clock, sizes = SimulatedClock(), dict[str, int]()
    port = site.url.rpartition(":")[2]

    def answer(request: Any) -> Any:
        host = request.host.partition(":")[0]
        sizes[host] = sizes.get(host, 0) + 6_000_000
        if host == "127.0.0.3":
            return 500
        if host == "127.0.0.4":
            return b"koordlet_start_time 1.0\n"
        return exposition(receive_bytes_total=sizes[host], transmit_bytes_total=0)

    site.answer = answer
    args = NetworkTrafficArgs(
        agent_address=f"http://{{address}}:{port}/metrics", concurrency=2
    ).complete()
    config = ApiConfig(server=args.agent_address, source="test")
    limits = RequestLimits(qps=0, keepalive=0)
    transport = Transport(config, clock, limits=limits)
    source = AgentsSource(args, transport, clock)
    nodes = {f"n{at}": f"127.0.0.{at}" for at in range(1, 13)}
    first = await source.read(nodes)
    assert first.keys() == nodes.keys() - {"n3", "n4"}
    assert all(one.traffic == Traffic() for one in first.values())
    assert site.most_open == 2
    assert not await source.read(nodes)
    rounds = []
    for _ in range(12):
        clock.tick(5.0)
        rounds.append(await source.read(nodes))
    assert [len(one) for one in rounds[:11]] == [0] * 11
    assert set(rounds[11]) <= nodes.keys()
    clock.tick(5.0)
    later = {**rounds[11], **await source.read(nodes)}
    assert {one.traffic.receive for one in later.values()} <= {100_000.0, 6_000_000 / 65}
    site.answer = lambda request: 500
    clock.tick(60.0)
    with pytest.raises(KoordError, match="no one of"):
        await source.read(nodes)
    await transport.close()
