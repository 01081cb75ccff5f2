"""Arguments of NetworkTraffic: the tutorial's, and ours."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from koord_scheduler.plugin import Fault, Seconds, invalid, required

TUTORIAL_INTERFACE = "ens192"
EVERY_INTERFACE = "*"
AGENTS_ADDRESS = "http://{address}:9316/metrics"

_INTERFACE = re.compile(r"[^\s/\"\\{}]{1,15}")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,127}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_LONGEST_RANGE = 24 * 60  # minutes


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


class Scoring(StrEnum):
    """What traffic is compared with."""

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
    scoring: Scoring = Scoring.AUTO
    link_speed_mbps: int = 0  # of links whose speed nobody reports; 0: it stays unknown
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

    def validate(self) -> Iterator[Fault]:
        """Return all faults."""
        yield from self._validate_source()
        yield from self._validate_query()
        yield from self._validate_numbers()
        yield from self._validate_tls()

    @property
    def is_tls(self) -> bool:
        """Whether the source is asked over TLS."""
        return (self.prometheus_address or self.agent_address).lower().startswith("https:")

    def _validate_source(self) -> Iterator[Fault]:
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

    def _validate_query(self) -> Iterator[Fault]:
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
            if self.scoring is Scoring.CAPACITY:
                wanted = "sums of counters cannot be compared with the speed of links"
                yield invalid(("scoring",), str(self.scoring), wanted)
        if not _METRIC.fullmatch(self.metric_prefix):
            yield invalid(("metricPrefix",), self.metric_prefix, "wanted the begin of a metric")
        if not _LABEL.fullmatch(self.node_label):
            yield invalid(("nodeLabel",), self.node_label, "wanted the name of a label")

    def _validate_numbers(self) -> Iterator[Fault]:
        for key, value, least, most in (
            ("timeRangeInMinutes", self.time_range_in_minutes, 1, _LONGEST_RANGE),
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

    def _validate_tls(self) -> Iterator[Fault]:
        if bool(self.cert_file) != bool(self.key_file):
            yield invalid(("certFile",), self.cert_file, "wanted certFile and keyFile together")
        if self.token_file and not self.is_tls:
            yield invalid(("tokenFile",), self.token_file, "wanted https: others could read it")
        if self.insecure_skip_verify and self.ca_file:
            yield invalid(("caFile",), self.ca_file, "nothing is verified by insecureSkipVerify")


def _bad_url(path: tuple[str], url: str) -> Iterator[Fault]:
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
