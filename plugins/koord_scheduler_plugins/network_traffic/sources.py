"""Sources of traffic: Prometheus, or the metrics of the node agents."""

import asyncio
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlsplit

from msgspec import DecodeError, Struct, ValidationError, json

from koord.plugin import Clock, KoordError, get_logger
from koord.plugin.kube import Call, KubeError, Transport
from koord_scheduler_plugins.network_traffic.readings import (
    EVERY_INTERFACE,
    MeasureError,
    NetworkTrafficArgs,
    Query,
    Reading,
    Traffic,
    usable,
)

PATH = "/api/v1/query"
MAX_SERIES = 60_000  # in an answer: three of each of 20,000 nodes
MAX_NAME_LENGTH = 253  # characters of a node's
LARGE_RESPONSE_BYTES = 64 << 10  # bytes of an answer that are decoded off the loop
MAX_REASON_LENGTH = 300
VIRTUAL = (
    r"lo|veth.*|cali.*|lxc.*|nerdctl.*|docker.*|cni.*|flannel.*|cilium.*|br-.*|virbr.*|tun.*|tap.*"
    r"|vxlan.*|geneve.*|dummy.*|kube-ipvs.*|nodelocaldns|ipvlan.*|macvlan.*|wg.*|bond.*|team.*"
    r"|.*[.@].*"
)
"""Interfaces whose traffic is that of others, seen again: not counted with "*"."""

T = TypeVar("T")

Count = Callable[[str], None]
"""Called with the result of each question: "answered" or "failed"."""


def uncounted(_: str) -> None:
    """Count nothing."""


log = get_logger("NetworkTraffic")


class _Series(Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(Struct):
    resultType: str  # noqa: N815 - as it is on the wire
    result: list[_Series]


class _QueryResponse(Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] | None = None


class QueryFailed(KoordError):
    """Prometheus did not answer a query with samples."""


class PrometheusHandle:
    """Asks one Prometheus."""

    def __init__(
        self, args: NetworkTrafficArgs, transport: Transport, count: Count = uncounted
    ) -> None:
        self._count = count
        self._args = args
        self._transport = transport

    async def get_node_bandwidth_measure(self, node: str) -> float:
        """Return the tutorial's measure of a node: the sum of the counter's readings.

        Raises:
            MeasureError: with the tutorial's words; there was no answer, or not one sample.
        """
        try:
            series = await self._query(sum_query(self._args, node), read_vector)
        except (KubeError, QueryFailed) as err:
            raise MeasureError(f"[NetworkTraffic] Error querying prometheus: {err}") from err
        values = [usable(_number(one)) for one in series]
        if len(values) != 1:
            raise MeasureError(
                f"[NetworkTraffic] Invalid response, expected 1 value, got {len(values)}"
            )
        if values[0] is None:
            text = series[0].value[1]
            raise MeasureError(f"[NetworkTraffic] Invalid response, expected a sum, got {text:.40}")
        return values[0]

    async def get_traffic(self) -> Mapping[str, Traffic]:
        """Return the traffic of all nodes that Prometheus knows.

        Raises:
            KubeError, QueryFailed: there was no usable answer.
        """
        label = self._args.node_label
        return await self._query(
            rate_query(self._args), lambda data: traffic_of(read_vector(data), label)
        )

    async def _query(self, text: str, read: Callable[[bytes], T]) -> T:
        result = "failed"
        try:
            data = await self._transport.exchange(Call("GET", PATH, {"query": text}))
            found = (
                await asyncio.to_thread(read, data)
                if len(data) > LARGE_RESPONSE_BYTES
                else read(data)
            )
            result = "answered"
        finally:
            self._count(result)
        return found


class PrometheusSource:
    """Readings of all nodes from one Prometheus; see meter.Source."""

    def __init__(
        self, args: NetworkTrafficArgs, transport: Transport, clock: Clock, count: Count = uncounted
    ) -> None:
        self.interval = args.interval
        self._args = args
        self._clock = clock
        self._handle = PrometheusHandle(args, transport, count)

    async def read(self, nodes: Mapping[str, str]) -> Mapping[str, Reading]:
        """Return what is new about nodes.

        Raises:
            KoordError: nothing is, and why.
        """
        if self._args.query is Query.RATE:
            found = await self._handle.get_traffic()
            now = self._clock.monotonic()
            return {name: Reading(now, one) for name, one in found.items() if name in nodes}
        readings: dict[str, Reading] = {}
        waiting = iter(nodes)
        askers = min(self._args.concurrency, len(nodes))
        await asyncio.gather(*(self._ask(waiting, readings) for _ in range(askers)))
        return readings

    async def _ask(self, waiting: Iterator[str], readings: dict[str, Reading]) -> None:
        for name in waiting:
            try:
                value = await self._handle.get_node_bandwidth_measure(name)
            except MeasureError as err:
                readings[name] = Reading(self._clock.monotonic(), error=str(err))
            else:
                readings[name] = Reading(self._clock.monotonic(), Traffic(receive=value))


def sum_query(args: NetworkTrafficArgs, node: str) -> str:
    """The tutorial's query for one node."""
    label, name = args.node_label, quoted(node)
    where = f'{label}="{name}",device="{quoted(args.network_interface)}"'
    return f"sum_over_time({args.metric_prefix}_receive_bytes_total{{{where}}}[{_range(args)}])"


def rate_query(args: NetworkTrafficArgs) -> str:
    """One query for traffic and speed of all nodes; the label traffic says which it is."""
    label, prefix = args.node_label, args.metric_prefix
    name = quoted(args.network_interface)
    device = f'device="{name}"'
    if args.network_interface == EVERY_INTERFACE:
        device = f'device!~"{quoted(VIRTUAL)}"'
    where = f'{{{device},{label}!=""}}'

    def rate(way: str) -> str:
        return f"sum by ({label}) (rate({prefix}_{way}_bytes_total{where}[{_range(args)}]))"

    speed = f"sum by ({label}) ({prefix}_speed_bytes{where} > 0)"
    return " or ".join([rate("receive"), _as(rate("transmit"), "transmit"), _as(speed, "speed")])


def traffic_of(series: list[_Series], label: str) -> Mapping[str, Traffic]:
    """Traffic by node from the answer to rate_query. A node with a figure twice is left out."""
    found: dict[str, dict[str, float | None]] = {}
    twice: set[str] = set()
    for one in series:
        name, way = one.metric.get(label, ""), one.metric.get("traffic", "receive")
        if not name or len(name) > MAX_NAME_LENGTH or way not in ("receive", "transmit", "speed"):
            continue
        stats = found.setdefault(name, {})
        if way in stats:
            twice.add(name)
        stats[way] = usable(_number(one))
    if twice:
        log.warning("node.ambiguous", nodes=len(twice), example=min(twice), label=label)
    return {name: Traffic(**stats) for name, stats in found.items() if name not in twice}


def read_vector(data: bytes) -> list[_Series]:
    """Return the samples of an answer.

    Raises:
        QueryFailed: it has none, but an error, something else, or too much.
    """
    try:
        answer = json.decode(data, type=_QueryResponse)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as err:
        raise QueryFailed(f"wanted samples of an instant query, found {err}") from err
    if answer.status != "success" or answer.data is None:
        raise QueryFailed(
            f"wanted success, found {answer.error or answer.status:.{MAX_REASON_LENGTH}}"
        )
    if answer.data.resultType != "vector":
        raise QueryFailed(f"wanted a vector, found a {answer.data.resultType:.40}")
    if len(answer.data.result) > MAX_SERIES:
        raise QueryFailed(f"wanted at most {MAX_SERIES} series, found {len(answer.data.result)}")
    if answer.warnings:
        log.warning("query.warning", first=answer.warnings[0][:MAX_REASON_LENGTH])
    return answer.data.result


def quoted(text: str) -> str:
    """A text for a string of PromQL."""
    return re.sub(r'(["\\])', r"\\\1", text).replace("\n", r"\n")


def _as(query: str, way: str) -> str:
    return f'label_replace({query}, "traffic", "{way}", "", "")'


def _range(args: NetworkTrafficArgs) -> str:
    """Return a duration of whole minutes as Go prints it: 5m0s, 1h30m0s."""
    hours, minutes = divmod(args.time_range_in_minutes, 60)
    return f"{hours}h{minutes}m0s" if hours else f"{minutes}m0s"


def _number(series: _Series) -> float:
    try:
        return float(series.value[1])
    except ValueError:
        return float("nan")


STEP = 5.0  # seconds between two groups of agents that are asked
MAX_METRIC_LINES = 4096  # about interfaces, of one agent
_PREFIX = b"\nkoordlet_node_network_"
_LINE = re.compile(
    rb"(receive|transmit)_bytes(_total|_per_second)|(speed)_bytes"
)  # after the prefix
_DEVICE = re.compile(rb'[{,]device="([^"\\\n]{1,64})"[,}]')
_VIRTUAL = re.compile(VIRTUAL)


class NoSamples(KoordError):
    """An agent's answer has nothing about the wanted interfaces."""


@dataclass(slots=True)
class Interface:
    """Counters, rates and speed of one interface; None: not known."""

    receive_total: float | None = None  # bytes
    transmit_total: float | None = None
    receive_per_second: float | None = None  # over a few seconds, as the agent has it
    transmit_per_second: float | None = None
    speed: float | None = None  # bytes per second


@dataclass(frozen=True, slots=True)
class Scrape:
    """The answer of an agent."""

    at: float  # monotonic seconds
    interfaces: Mapping[str, Interface] = field(default_factory=dict)


class AgentsSource:
    """Readings of nodes from their agents; see meter.Source.

    Each agent is asked once in an interval. The first call asks all of them, so that the first
    cycle knows them.
    """

    def __init__(
        self, args: NetworkTrafficArgs, transport: Transport, clock: Clock, count: Count = uncounted
    ) -> None:
        self.interval = min(STEP, args.interval)
        self._count = count
        self._args = args
        self._transport = transport
        self._clock = clock
        self._seen: dict[str, Scrape] = {}
        self._asked: dict[str, float] = {}  # monotonic seconds, by node

    async def read(self, nodes: Mapping[str, str]) -> Mapping[str, Reading]:
        """Return what is new about nodes, whose addresses are given.

        Raises:
            KoordError: nothing is, and why.
        """
        now = self._clock.monotonic()
        for kept in (self._seen, self._asked):
            for name in kept.keys() - nodes.keys():
                del kept[name]
        due = self._due(nodes, now)
        waiting, found, errors = iter(due), dict[str, Reading](), list[str]()
        askers = min(self._args.concurrency, len(due))
        await asyncio.gather(*(self._ask(waiting, nodes, found, errors) for _ in range(askers)))
        if errors and not found:
            raise KoordError(f"no one of {len(due)} agents answered; the first: {errors[0]}")
        return found

    def _due(self, nodes: Mapping[str, str], now: float) -> list[str]:
        """The nodes whose turn it is: new ones, and so many that each has one in an interval."""
        new = [name for name in nodes if name not in self._asked]
        share = -(-len(nodes) * self.interval // self._args.interval)
        old = sorted((at, name) for name, at in self._asked.items())
        late = now - self._args.interval + self.interval / 2
        return new + [name for at, name in old[: int(share)] if at <= late]

    async def _ask(
        self,
        waiting: Iterator[str],
        nodes: Mapping[str, str],
        found: dict[str, Reading],
        errors: list[str],
    ) -> None:
        for name in waiting:
            self._asked[name] = self._clock.monotonic()
            try:
                found[name] = await self._read_one(name, nodes[name])
                self._count("answered")
            except KoordError as err:
                self._count("failed")
                log.debug("agent.unreachable", node=name, error=str(err))
                errors.append(f"{name}: {err}")

    async def _read_one(self, name: str, address: str) -> Reading:
        server, path = place_of(self._args.agent_address, name, address)
        data = await self._transport.exchange(Call("GET", path, accept="text/plain", server=server))
        now = self._clock.monotonic()
        interfaces = {
            device: one
            for device, one in read_interfaces(data).items()
            if is_wanted(device, self._args.network_interface)
        }
        if not interfaces:
            raise NoSamples(
                f"wanted figures of {self._args.network_interface} in koordlet's metrics, found "
                "none; is its gate NodeNetworkCollector on?"
            )
        latest = Scrape(now, interfaces)
        earlier = self._seen.get(name)
        self._seen[name] = latest
        return Reading(now, traffic_between(earlier, latest, 3 * self._args.interval))


def place_of(template: str, name: str, address: str) -> tuple[str, str]:
    """Server and path of a node's agent.

    Raises:
        NoSamples: the node has no address, or an invalid one.
    """
    if "{address}" in template:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            raise NoSamples(f"wanted an InternalIP, found {address!r:.60}") from None
        address = f"[{found}]" if found.version == 6 else str(found)
    url = urlsplit(template.replace("{address}", address).replace("{node}", quote(name, safe="")))
    return f"{url.scheme}://{url.netloc}", url.path or "/"


def is_wanted(device: str, wanted: str) -> bool:
    """Whether the traffic of an interface counts."""
    return not _VIRTUAL.fullmatch(device) if wanted == EVERY_INTERFACE else device == wanted


def read_interfaces(data: bytes) -> dict[str, Interface]:
    """Return the interfaces in koordlet's metrics, by name; malformed lines are left out."""
    found: dict[str, Interface] = {}
    for line in _lines(data):
        match, end = _LINE.match(line), line.rfind(b"}")
        device = _DEVICE.search(line)
        if match is None or device is None or line[match.end() : match.end() + 1] != b"{":
            continue
        try:
            value = usable(float(line[end + 1 :].split()[0]))
            name = device[1].decode("ascii")
        except (ValueError, IndexError):
            continue
        way = (match[1] or match[3]).decode()
        kind = (match[2] or b"").decode()
        setattr(found.setdefault(name, Interface()), way + kind, value)
    return found


def traffic_between(earlier: Scrape | None, latest: Scrape, longest: float) -> Traffic:
    """Traffic since the earlier sighting, of all interfaces together.

    Without one, and where a counter was reset or the time is too long, it is what the agent has
    measured last itself.
    """
    seconds = latest.at - earlier.at if earlier is not None else 0.0
    if earlier is None or not 0 < seconds <= longest:
        earlier, seconds = Scrape(latest.at), 1.0
    receive, transmit, speed = [], [], []
    for name, now in latest.interfaces.items():
        before = earlier.interfaces.get(name, Interface())
        receive.append(
            _rate(before.receive_total, now.receive_total, seconds, now.receive_per_second)
        )
        transmit.append(
            _rate(before.transmit_total, now.transmit_total, seconds, now.transmit_per_second)
        )
        speed.append(now.speed)
    return Traffic(_sum(receive), _sum(transmit), _sum(speed))


def _lines(data: bytes) -> Iterator[bytes]:
    """Lines about the node's interfaces, without the prefix that they all have."""
    data = b"\n" + data
    at = data.find(_PREFIX)
    for _ in range(MAX_METRIC_LINES):
        if at < 0:
            return
        begin = at + len(_PREFIX)
        end = data.find(b"\n", begin)
        yield data[begin : end if end >= 0 else len(data)]
        at = data.find(_PREFIX, begin)


def _rate(
    before: float | None, now: float | None, seconds: float, own: float | None
) -> float | None:
    if before is None or now is None or now < before:
        return own
    return (now - before) / seconds


def _sum(stats: Iterable[float | None]) -> float | None:
    known = [one for one in stats if one is not None]
    return sum(known) if known else None
