"""Arguments of NetworkTraffic: defaults and what is refused."""

from typing import Any

import pytest

from koord.component.config.field_errors import path_text
from koord.component.plugins.args import args_type_of
from koord_scheduler_plugins.network_traffic import NetworkTraffic, NetworkTrafficArgs
from koord_scheduler_plugins.network_traffic.readings import Direction, Query

PROMETHEUS = {"prometheusAddress": "http://prometheus-kube-server.monitor"}


def read(**given: Any) -> tuple[NetworkTrafficArgs | None, list[str]]:
    declared = args_type_of(NetworkTraffic)
    assert declared is not None
    args, faults = declared.read(given, ())
    return args, [path_text(one.path) for one in faults]


def test_defaults_are_the_tutorials_with_prometheus() -> None:
    """ens192 where the interface is missing or empty, five minutes."""
    for given in ({}, {"networkInterface": ""}):
        args, faults = read(**PROMETHEUS, **given)
        assert args is not None
        assert not faults
        assert (args.network_interface, args.time_range_in_minutes) == ("ens192", 5)
        assert (args.query, args.direction, args.interval) == (Query.RATE, Direction.SUM, 5.0)
    args, _ = read(**PROMETHEUS, query="sum_over_time")
    assert args is not None
    assert args.direction is Direction.RECEIVE


def test_without_prometheus_agents_are_asked_about_all_interfaces() -> None:
    """Once a minute each."""
    args, faults = read()
    assert args is not None
    assert not faults
    assert (args.network_interface, args.interval, args.is_tls) == ("*", 60.0, False)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"prometheusAddress": "prometheus:9090"}, "prometheusAddress"),
        ({"prometheusAddress": "ftp://prometheus"}, "prometheusAddress"),
        ({"prometheusAddress": "http://me:secret@prometheus"}, "prometheusAddress"),
        ({"prometheusAddress": "http://prometheus?x=1"}, "prometheusAddress"),
        ({"prometheusAddress": "http://prometheus:99999"}, "prometheusAddress"),
        ({"prometheusAddress": "http://"}, "prometheusAddress"),
        ({"prometheusAddress": 5}, "prometheusAddress"),
        ({**PROMETHEUS, "networkInterface": 'eth0"} or up'}, "networkInterface"),
        ({**PROMETHEUS, "networkInterface": "a-name-too-long-for-linux"}, "networkInterface"),
        ({**PROMETHEUS, "timeRangeInMinutes": 0}, "timeRangeInMinutes"),
        ({**PROMETHEUS, "timeRangeInMinutes": -3}, "timeRangeInMinutes"),
        ({**PROMETHEUS, "timeRangeInMinutes": "3"}, "timeRangeInMinutes"),
        ({**PROMETHEUS, "timeRangeInMinutes": 2000}, "timeRangeInMinutes"),
        ({**PROMETHEUS, "query": "increase"}, "query"),
        ({"query": "sum_over_time"}, "prometheusAddress"),
        ({**PROMETHEUS, "query": "sum_over_time", "networkInterface": "*"}, "networkInterface"),
        ({**PROMETHEUS, "query": "sum_over_time", "direction": "max"}, "direction"),
        ({**PROMETHEUS, "query": "sum_over_time", "scoring": "capacity"}, "scoring"),
        ({**PROMETHEUS, "metricPrefix": "up or"}, "metricPrefix"),
        ({**PROMETHEUS, "nodeLabel": "a-b"}, "nodeLabel"),
        ({**PROMETHEUS, "interval": "10ms"}, "interval"),
        ({**PROMETHEUS, "interval": "5m", "expiration": "3m"}, "expiration"),
        ({**PROMETHEUS, "tokenFile": "/token"}, "tokenFile"),
        ({**PROMETHEUS, "certFile": "/cert"}, "certFile"),
        ({**PROMETHEUS, "adress": "x"}, "adress"),
        ({"agentAddress": "http://10.0.0.1:9316/metrics"}, "agentAddress"),
        ({"agentAddress": "http://{host}:9316/metrics"}, "agentAddress"),
        ({"agentAddress": "{address}/metrics"}, "agentAddress"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(given: dict[str, Any], path: str) -> None:
    """With the field that is wrong, and nothing else."""
    args, faults = read(**given)
    assert args is None
    assert faults == [path]
