"""Traffic from Prometheus: one query for all nodes, or the tutorial's for each.

Source: Prometheus, HTTP API v1, instant queries.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from msgspec import DecodeError, Struct, ValidationError, json

from koord_scheduler.plugin import Call, Clock, KoordError, KubeError, Transport, get_logger
from koord_scheduler_plugins.network_traffic.args import EVERY_INTERFACE, NetworkTrafficArgs, Query
from koord_scheduler_plugins.network_traffic.readings import MeasureError, Reading, Traffic, usable

PATH = "/api/v1/query"
MOST_SERIES = 60_000  # in an answer: three of each of 20,000 nodes
LONGEST_NAME = 253  # characters of a node's
LARGE = 64 << 10  # bytes of an answer that are decoded off the loop
LONGEST_REASON = 300
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


class _Answer(Struct):
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
            found = await asyncio.to_thread(read, data) if len(data) > LARGE else read(data)
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
        if not name or len(name) > LONGEST_NAME or way not in ("receive", "transmit", "speed"):
            continue
        figures = found.setdefault(name, {})
        if way in figures:
            twice.add(name)
        figures[way] = usable(_number(one))
    if twice:
        log.warning("node.ambiguous", nodes=len(twice), example=min(twice), label=label)
    return {name: Traffic(**figures) for name, figures in found.items() if name not in twice}


def read_vector(data: bytes) -> list[_Series]:
    """Return the samples of an answer.

    Raises:
        QueryFailed: it has none, but an error, something else, or too much.
    """
    try:
        answer = json.decode(data, type=_Answer)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as err:
        raise QueryFailed(f"wanted samples of an instant query, found {err}") from err
    if answer.status != "success" or answer.data is None:
        raise QueryFailed(
            f"wanted success, found {answer.error or answer.status:.{LONGEST_REASON}}"
        )
    if answer.data.resultType != "vector":
        raise QueryFailed(f"wanted a vector, found a {answer.data.resultType:.40}")
    if len(answer.data.result) > MOST_SERIES:
        raise QueryFailed(f"wanted at most {MOST_SERIES} series, found {len(answer.data.result)}")
    if answer.warnings:
        log.warning("query.warned", first=answer.warnings[0][:LONGEST_REASON])
    return answer.data.result


def quoted(text: str) -> str:
    """A text for a string of PromQL."""
    return re.sub(r'(["\\])', r"\\\1", text).replace("\n", r"\n")


def _as(query: str, way: str) -> str:
    return f'label_replace({query}, "traffic", "{way}", "", "")'


def _range(args: NetworkTrafficArgs) -> str:
    """As Go prints a duration of whole minutes: 5m0s, 1h30m0s."""
    hours, minutes = divmod(args.time_range_in_minutes, 60)
    return f"{hours}h{minutes}m0s" if hours else f"{minutes}m0s"


def _number(series: _Series) -> float:
    try:
        return float(series.value[1])
    except ValueError:
        return float("nan")
