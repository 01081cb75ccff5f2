"""Traffic from the node agents themselves: their metrics, asked for one node after the other."""

import asyncio
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from koord_scheduler.plugin import Call, Clock, KoordError, Transport, get_logger
from koord_scheduler_plugins.network_traffic.args import EVERY_INTERFACE, NetworkTrafficArgs
from koord_scheduler_plugins.network_traffic.prometheus import VIRTUAL, Count, uncounted
from koord_scheduler_plugins.network_traffic.readings import Reading, Traffic, usable

STEP = 5.0  # seconds between two groups of agents that are asked
MOST_LINES = 4096  # about interfaces, of one agent
_PREFIX = b"\nkoordlet_node_network_"
_LINE = re.compile(
    rb"(receive|transmit)_bytes(_total|_per_second)|(speed)_bytes"
)  # after the prefix
_DEVICE = re.compile(rb'[{,]device="([^"\\\n]{1,64})"[,}]')
_VIRTUAL = re.compile(VIRTUAL)

log = get_logger("NetworkTraffic")


class NoFigures(KoordError):
    """An agent's answer has nothing about the wanted interfaces."""


@dataclass(slots=True)
class Interface:
    """Figures of one interface; None: there is none."""

    receive_total: float | None = None  # bytes
    transmit_total: float | None = None
    receive_per_second: float | None = None  # over a few seconds, as the agent has it
    transmit_per_second: float | None = None
    speed: float | None = None  # bytes per second


@dataclass(frozen=True, slots=True)
class Sighting:
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
        self._seen: dict[str, Sighting] = {}
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
                log.debug("agent.silent", node=name, error=str(err))
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
            raise NoFigures(
                f"wanted figures of {self._args.network_interface} in koordlet's metrics, found "
                "none; is its gate NodeNetworkCollector on?"
            )
        latest = Sighting(now, interfaces)
        earlier = self._seen.get(name)
        self._seen[name] = latest
        return Reading(now, traffic_between(earlier, latest, 3 * self._args.interval))


def place_of(template: str, name: str, address: str) -> tuple[str, str]:
    """Server and path of a node's agent.

    Raises:
        NoFigures: the node has no address, or one that is none.
    """
    if "{address}" in template:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            raise NoFigures(f"wanted an InternalIP, found {address!r:.60}") from None
        address = f"[{found}]" if found.version == 6 else str(found)
    url = urlsplit(template.replace("{address}", address).replace("{node}", quote(name, safe="")))
    return f"{url.scheme}://{url.netloc}", url.path or "/"


def is_wanted(device: str, wanted: str) -> bool:
    """Whether the traffic of an interface counts."""
    return not _VIRTUAL.fullmatch(device) if wanted == EVERY_INTERFACE else device == wanted


def read_interfaces(data: bytes) -> dict[str, Interface]:
    """Figures by interface from koordlet's metrics; what is malformed is left out."""
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


def traffic_between(earlier: Sighting | None, latest: Sighting, longest: float) -> Traffic:
    """Traffic since the earlier sighting, of all interfaces together.

    Without one, and where a counter was reset or the time is too long, it is what the agent has
    measured last itself.
    """
    seconds = latest.at - earlier.at if earlier is not None else 0.0
    if earlier is None or not 0 < seconds <= longest:
        earlier, seconds = Sighting(latest.at), 1.0
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
    for _ in range(MOST_LINES):
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


def _sum(figures: Iterable[float | None]) -> float | None:
    known = [one for one in figures if one is not None]
    return sum(known) if known else None
