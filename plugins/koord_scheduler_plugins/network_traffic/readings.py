"""Arguments of NetworkTraffic, and readings of traffic as numbers that can be scored."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

import numpy as np

from koord.plugin import KoordError
from koord.plugin.args import FieldError, Seconds, invalid, required
from koord_scheduler.plugin import View
from koord_scheduler.plugin.vector import Scores

TUTORIAL_INTERFACE = "ens192"
EVERY_INTERFACE = "*"
AGENTS_ADDRESS = "http://{address}:9316/metrics"

_INTERFACE = re.compile(r"[^\s/\"\\{}]{1,15}")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,127}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_MAX_RANGE_MINUTES = 24 * 60  # minutes


class Query(StrEnum):
    """The question that Prometheus is asked."""

    RATE = "rate"
    """Bytes per second of all nodes, in one query."""
    SUM_OVER_TIME = "sum_over_time"
    """The tutorial's, one query for each node: a sum of counter readings, which ranks by uptime."""


class Direction(StrEnum):
    """The traffic that counts."""

    RECEIVE = "receive"
    TRANSMIT = "transmit"
    SUM = "sum"
    MAX = "max"


class TrafficScoring(StrEnum):
    """The base that traffic is compared with."""

    AUTO = "auto"
    """With the links, if the speed of all of them is known; else with the busiest node."""
    CAPACITY = "capacity"
    RELATIVE = "relative"


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkTrafficArgs:
    """Where traffic is read, and how it is scored."""

    prometheus_address: str = ""  # "": the node agents are asked
    network_interface: str = ""  # "*": all but virtual ones
    time_range_in_minutes: int = 5
    query: Query = Query.RATE
    direction: Direction | None = None  # by default the sum; with sum_over_time what is received
    scoring: TrafficScoring = TrafficScoring.AUTO
    link_speed_mbps: int = 0  # of links whose speed is not reported; 0: it stays unknown
    idle_below: int = 0  # bytes per second; if no node has more, all score 100
    metric_prefix: str = "node_network"  # of ..._receive_bytes_total and its sisters
    node_label: str = "kubernetes_node"  # that has the node's name
    agent_address: str = AGENTS_ADDRESS  # {address}: the node's InternalIP, {node}: its name
    interval: Seconds = 0.0  # 0: 5 s with Prometheus, 1 minute for each agent
    timeout: Seconds = 3.0  # of one request
    expiration: Seconds = 180.0  # after which a figure counts no more
    concurrency: int = 16  # requests at a time
    token_file: str = ""
    ca_file: str = ""  # "": the system's
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""  # in the server's certificate; "": the one in the address
    insecure_skip_verify: bool = False

    def complete(self) -> Self:
        """Return the arguments with the defaults that depend on the source."""
        tutorial = self.query is Query.SUM_OVER_TIME
        everywhere = "" if self.prometheus_address or tutorial else EVERY_INTERFACE
        return replace(
            self,
            network_interface=self.network_interface or everywhere or TUTORIAL_INTERFACE,
            direction=self.direction or (Direction.RECEIVE if tutorial else Direction.SUM),
            interval=self.interval or (5.0 if self.prometheus_address else 60.0),
        )

    def validate(self) -> Iterator[FieldError]:
        """Return all faults."""
        yield from self._validate_source()
        yield from self._validate_query()
        yield from self._validate_numbers()
        yield from self._validate_tls()

    @property
    def is_tls(self) -> bool:
        """Whether the source is asked over TLS."""
        return (self.prometheus_address or self.agent_address).lower().startswith("https:")

    def _validate_source(self) -> Iterator[FieldError]:
        if self.prometheus_address:
            yield from _bad_url(("prometheusAddress",), self.prometheus_address)
            return
        if self.query is Query.SUM_OVER_TIME:
            yield required(("prometheusAddress",), "query sum_over_time is for Prometheus")
        yield from _bad_url(("agentAddress",), self.agent_address)
        rest = self.agent_address.replace("{address}", "").replace("{node}", "")
        if rest == self.agent_address or "{" in rest or "}" in rest:
            wanted = "wanted {address} or {node} in it, and no other braces"
            yield invalid(("agentAddress",), self.agent_address, wanted)

    def _validate_query(self) -> Iterator[FieldError]:
        path = ("networkInterface",)
        if not _INTERFACE.fullmatch(self.network_interface):
            wanted = f'wanted the name of an interface, or "{EVERY_INTERFACE}"'
            yield invalid(path, self.network_interface, wanted)
        if self.query is Query.SUM_OVER_TIME:
            if self.network_interface == EVERY_INTERFACE:
                yield invalid(path, EVERY_INTERFACE, "query sum_over_time is about one interface")
            if self.direction is not Direction.RECEIVE:
                wanted = "query sum_over_time is about what is received"
                yield invalid(("direction",), str(self.direction), wanted)
            if self.scoring is TrafficScoring.CAPACITY:
                wanted = "sums of counters cannot be compared with the speed of links"
                yield invalid(("scoring",), str(self.scoring), wanted)
        if not _METRIC.fullmatch(self.metric_prefix):
            yield invalid(("metricPrefix",), self.metric_prefix, "wanted the begin of a metric")
        if not _LABEL.fullmatch(self.node_label):
            yield invalid(("nodeLabel",), self.node_label, "wanted the name of a label")

    def _validate_numbers(self) -> Iterator[FieldError]:
        for key, value, least, most in (
            ("timeRangeInMinutes", self.time_range_in_minutes, 1, _MAX_RANGE_MINUTES),
            ("linkSpeedMbps", self.link_speed_mbps, 0, 10_000_000),
            ("idleBelow", self.idle_below, 0, 10**15),
            ("concurrency", self.concurrency, 1, 256),
        ):
            if not least <= value <= most:
                yield invalid((key,), value, f"wanted {least} to {most}")
        for key, seconds, shortest, longest in (
            ("interval", self.interval, 1.0, 3600.0),
            ("timeout", self.timeout, 0.1, 60.0),
            ("expiration", self.expiration, 1.0, 86400.0),
        ):
            if not shortest <= seconds <= longest:
                yield invalid((key,), seconds, f"wanted {shortest:g} s to {longest:g} s")
        if self.expiration < self.interval:
            wanted = f"wanted at least the interval, {self.interval:g} s"
            yield invalid(("expiration",), self.expiration, wanted)

    def _validate_tls(self) -> Iterator[FieldError]:
        if bool(self.cert_file) != bool(self.key_file):
            yield invalid(("certFile",), self.cert_file, "wanted certFile and keyFile together")
        if self.token_file and not self.is_tls:
            yield invalid(("tokenFile",), self.token_file, "wanted https: others could read it")
        if self.insecure_skip_verify and self.ca_file:
            yield invalid(("caFile",), self.ca_file, "nothing is verified by insecureSkipVerify")


def _bad_url(path: tuple[str], url: str) -> Iterator[FieldError]:
    wanted = "wanted http://HOST or https://HOST, with port and path where needed"
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        usable = "{" in url and url.lower().startswith(("http://", "https://"))
        if not usable:
            yield invalid(path, url, wanted)
        return
    if (
        not usable
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username is not None
        or parts.query
        or parts.fragment
        or len(url) > 2048
        or not url.isprintable()
        or " " in url
    ):
        yield invalid(path, url, wanted)


UNKNOWN = -1
_FIRST_ERROR = -2  # and below: errors, by number
_BEYOND = 2.0**62  # no byte counter gets there
_EXACT = (2**63 - 1) // 100  # up to which a hundred times a score is a number of 64 bits


class MeasureError(KoordError):
    """The traffic of a node cannot be scored: the tutorial's errors."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of a node, in bytes per second; None: unknown."""

    receive: float | None = None
    transmit: float | None = None
    speed: float | None = None  # of its links together, in each direction

    def amount(self, direction: Direction) -> float | None:
        """Bytes per second that count."""
        known = [one for one in (self.receive, self.transmit) if one is not None]
        match direction:
            case Direction.RECEIVE:
                return self.receive
            case Direction.TRANSMIT:
                return self.transmit
            case Direction.SUM:
                return sum(known) if known else None
            case Direction.MAX:
                return max(known, default=None)

    def used_percent(self, direction: Direction, default_speed: float | None) -> int | None:
        """Percent of the link that is used, rounded up, at most 100; None: unknown.

        Links are full duplex, so the busier direction counts where both do.
        """
        speed = default_speed if self.speed is None else self.speed
        both = direction is Direction.SUM
        amount = self.amount(Direction.MAX if both else direction)
        if amount is None or not speed:
            return None
        return min(math.ceil(amount * 100 / speed), 100)


def usable(value: float) -> float | None:
    """A figure from outside; None: it is no amount."""
    return value if math.isfinite(value) and 0 <= value < _BEYOND else None


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of a node: its traffic, or the error for which there is none."""

    at: float  # monotonic seconds
    traffic: Traffic = Traffic()
    error: str = ""


class Measure:
    """Scores of nodes before NormalizeScore, of one time. It does not change.

    A score is bytes per second (sums of counters with sum_over_time), or percent of the link that
    is used; UNKNOWN, or below that an error.
    """

    def __init__(
        self,
        raw: Mapping[str, int],
        *,
        by_capacity: bool = False,
        idle_below: int = 0,
        errors: tuple[str, ...] = (),
        without_capacity: int = 0,
        version: int = 0,
    ) -> None:
        self.raw = raw
        self.without_capacity = without_capacity
        """Number of nodes whose traffic is known, and the speed of their links is not."""
        self.by_capacity = by_capacity
        self.idle_below = idle_below
        self.version = version
        """Another one is another measure."""
        self._errors = errors
        self._column: tuple[object, Scores] | None = None  # and the names that it is for

    @classmethod
    def of(
        cls,
        readings: Mapping[str, Reading],
        *,
        direction: Direction,
        scoring: TrafficScoring,
        default_speed: float | None = None,
        idle_below: int = 0,
        version: int = 0,
    ) -> "Measure":
        """Make it of readings, all of which count."""
        raw: dict[str, int] = {}
        errors: dict[str, int] = {}
        percents: dict[str, int] = {}
        for name, one in readings.items():
            amount = None if one.error else one.traffic.amount(direction)
            if one.error:
                raw[name] = _FIRST_ERROR - errors.setdefault(one.error, len(errors))
            elif amount is not None:
                raw[name] = int(amount)
                percent = one.traffic.used_percent(direction, default_speed)
                if percent is not None:
                    percents[name] = percent
        known = sum(score >= 0 for score in raw.values())
        whole = bool(percents) and len(percents) == len(raw)
        by_capacity = scoring is TrafficScoring.CAPACITY or (
            scoring is TrafficScoring.AUTO and whole
        )
        return cls(
            percents if by_capacity else raw,
            by_capacity=by_capacity,
            idle_below=0 if by_capacity else idle_below,
            errors=tuple(errors),
            without_capacity=known - len(percents),
            version=version,
        )

    def score(self, name: str) -> int:
        """The score of one node.

        Raises:
            MeasureError: it has an error.
        """
        found = self.raw.get(name, UNKNOWN)
        self._refuse(found)
        return found

    def column(self, nodes: View) -> Scores:
        """The scores of all nodes; shape (nodes,). Kept while no node has changed."""
        traits = nodes.traits
        if self._column is None or self._column[0] is not traits:
            known = (self.raw.get(name, UNKNOWN) for name in traits.rows)
            column = np.fromiter(known, np.int64, len(nodes))
            column.flags.writeable = False
            self._column = traits, column
        return self._column[1]

    def normalize(self, score: int, highest: int) -> int:
        """Return the score of a node from 0 to 100; highest is that of the busiest node.

        Raises:
            MeasureError: it has an error.
        """
        self._refuse(score)
        if score == UNKNOWN:
            return 0
        if self.by_capacity:
            return 100 - score
        return 100 if highest <= self.idle_below else 100 - score * 100 // highest

    def normalize_all(self, scores: Scores) -> Scores:
        """Return the scores of nodes from 0 to 100.

        Raises:
            MeasureError: one of them has an error.
        """
        if not len(scores):
            return scores
        self._refuse(int(scores.min()))
        highest = int(scores.max())
        if self.by_capacity:
            found = 100 - scores
        elif highest <= self.idle_below:
            found = np.full_like(scores, 100)
        elif highest <= _EXACT:
            found = 100 - scores * 100 // highest
        else:  # readings of counters can be as large; slow, and exact
            found = (100 - scores.astype(object) * 100 // highest).astype(np.int64)
        return np.where(scores == UNKNOWN, 0, found)

    def _refuse(self, score: int) -> None:
        if score <= _FIRST_ERROR:
            text = self._errors[_FIRST_ERROR - score]
            raise MeasureError(f"error getting node bandwidth measure: {text}")
