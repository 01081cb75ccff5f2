"""NodeMetrics as they are read quickly are what a plain reading of their JSON gives."""

import json
import sys
import tracemalloc
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koord.api.pod import amount
from koord.cluster.decoder import Decoder
from koord.cluster.facts import ReportedPods, ReportedPodUsage, ReportedUsage
from koord.cluster.kinds import NODE_METRIC, UsageReport
from koord.cluster.pod_specs import MAX_AMOUNT, read_amount
from koord.util.errors import InvalidObject

Json = dict[str, Any]

DIGITS = st.integers(0, 2**63).map(str) | st.sampled_from(
    ["007", "1_0", "٣", "²", "1" * 19, "1" * 300]
)
QUANTITIES = (
    st.tuples(
        st.sampled_from(["", "", "", "-", "+", " "]),
        DIGITS,
        st.sampled_from(["", ".5", "."]),
        st.sampled_from(
            ["", "m", "n", "u", "k", "M", "G", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "i", "ii",
             "mi", "e3", "e-3", "E999999999", "e400", "x", " "]
        ),
    ).map("".join)
    | st.text(max_size=6)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
ORDINARY = st.integers(0, 50_000).map(lambda milli: f"{milli}m")
SIZES = st.integers(0, 2**40).map(str) | st.integers(0, 2**30).map(lambda count: f"{count}Ki")
MAPS = st.one_of(
    st.fixed_dictionaries({"cpu": ORDINARY, "memory": SIZES}),
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), QUANTITIES | ORDINARY, max_size=3
    ),
)
USAGES = st.none() | st.just({}) | st.fixed_dictionaries({"resources": st.none() | MAPS})
CLASSES = st.sampled_from(["koord-prod", "koord-batch", "LS", "", None])
PODS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=5), "namespace": st.sampled_from(["default", "shop"])},
        optional={"podUsage": USAGES, "priority": CLASSES, "qos": CLASSES},
    ),
    max_size=4,
)
TIMES = st.sampled_from([None, "", "2026-07-24T06:52:45Z", "1970-01-01T00:02:00+02:00"])
REPORTS = st.fixed_dictionaries(
    {"metadata": st.just({"name": "n", "resourceVersion": "7"})},
    optional={
        "spec": st.sampled_from([None, {}, {"metricCollectPolicy": {"reportIntervalSeconds": 30}}]),
        "status": st.none() | st.fixed_dictionaries(
            {},
            optional={
                "updateTime": TIMES,
                "podsMetric": st.none() | PODS,
                "nodeMetric": st.fixed_dictionaries(
                    {}, optional={"nodeUsage": USAGES, "systemUsage": USAGES}
                ),
            },
        ),
    },
)  # fmt: skip


def slowly(name: str, value: str | int | float) -> int | None:
    """The amount as Kubernetes' rules have it; None: it is refused."""
    try:
        found = amount(name, str(value))
    except ValueError:
        return None
    return min(found, MAX_AMOUNT) if found >= 0 else None


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), QUANTITIES)
@example("memory", "1Ei")
@example("memory", "0Pi")
@example("memory", "1xi")
@example("memory", "5m")
@example("cpu", "1Mi")
def test_a_quantity_is_what_the_rules_say(name: str, value: str | int | float) -> None:
    """However it is written, and however it is malformed."""
    wanted = slowly(name, value)
    if wanted is None:
        with pytest.raises(ValueError, match=r"quantity|below zero"):
            read_amount(name, value)
    else:
        assert read_amount(name, value) == wanted


def plain_usage(
    found: Json | None, wanted: tuple[str, ...] = ("cpu", "memory")
) -> ReportedUsage | None:
    amounts, said = {}, (found or {}).get("resources") or {}
    for name, value in said.items():
        if (known := slowly(name, value)) not in (None, MAX_AMOUNT):
            amounts[name] = known
    if not amounts or any(name not in amounts for name in wanted):
        return None
    if any(name in said and name not in amounts for name in ("cpu", "memory")):
        return None
    others = tuple((name, one) for name, one in amounts.items() if name not in ("cpu", "memory"))
    return ReportedUsage(amounts.get("cpu", 0) / 1000, float(amounts.get("memory", 0)), others)


def plain_report(found: Json) -> UsageReport:
    status, spec = found.get("status") or {}, found.get("spec") or {}
    at, metric = status.get("updateTime"), status.get("nodeMetric") or {}
    pods = []
    for one in status.get("podsMetric") or ():
        usage = plain_usage(one.get("podUsage"), wanted=())
        if usage is not None:
            classes = one.get("priority") or "", one.get("qos") or ""
            pods.append(ReportedPodUsage(one["name"], one["namespace"], usage, *classes))
    interval = (spec.get("metricCollectPolicy") or {}).get("reportIntervalSeconds")
    return UsageReport(
        node="n",
        update_time=datetime.fromisoformat(at).timestamp() if at else None,
        usage=plain_usage(metric.get("nodeUsage")),
        system_usage=plain_usage(metric.get("systemUsage")),
        pods=tuple(pods),
        interval=None if interval is None else float(interval),
    )


@given(REPORTS)
def test_a_report_is_what_its_json_says(found: Json) -> None:
    """A malformed amount of CPU or memory costs its usage, any other only itself."""
    data = json.dumps({"type": "MODIFIED", "object": found}).encode()
    event = Decoder().event(NODE_METRIC, data)
    assert event.object == plain_report(found)
    assert (event.type, event.key, event.resource_version) == ("MODIFIED", "n", "7")


@pytest.mark.parametrize(
    "usage",
    [
        b'{"cpu":NaN,"memory":"1"}',
        b'{"cpu":1e999,"memory":"1"}',
        b'{"cpu":true,"memory":"1"}',
        b'{"cpu":["1"],"memory":"1"}',
        b'{"cpu":"1e999999999","memory":"1"}',
        b'{"cpu":"1","memory":"\\ud800"}',
        b'{"cpu":"1","memory":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"cpu":"' + b"1" * 5000 + b'","memory":"1"}',
    ],
    ids=["nan", "infinite", "boolean", "list", "exponent", "surrogate", "nested", "long"],
)
@pytest.mark.parametrize(
    "where", [b'"nodeMetric":{"nodeUsage":{"resources":%s}}',
              b'"podsMetric":[{"name":"p","namespace":"d","podUsage":{"resources":%s}}]']
)  # fmt: skip
def test_hostile_usage_costs_only_itself(usage: bytes, where: bytes) -> None:
    """What is no JSON at all begins the watch again; of the rest all else counts."""
    status = b'"updateTime":"1970-01-01T00:02:00Z",' + where % usage
    line = b'{"type":"ADDED","object":{"metadata":{"name":"n"},"status":{%s}}}' % status
    try:
        event = Decoder().event(NODE_METRIC, line)
    except InvalidObject:
        return
    found = event.object
    if isinstance(found, InvalidObject):
        return
    assert found.update_time == 120.0
    assert found.usage is None
    assert all(one.usage.cores in (0.0, 1.0) for one in found.pods)
    assert len(event.faults) == 1


def test_of_a_key_that_is_there_twice_the_last_one_counts() -> None:
    """As in Go."""
    usage = b'{"resources":{"cpu":"1","cpu":"2","memory":"3"}}'
    line = b'{"metadata":{"name":"n"},"status":{"nodeMetric":{"nodeUsage":%s,"nodeUsage":%s}}}' % (
        b'{"resources":{"cpu":"9","memory":"9"}}',
        usage,
    )
    assert Decoder().object(NODE_METRIC, line).usage == ReportedUsage(2.0, 3.0)


def test_usages_of_pods_are_columns_that_read_as_the_entries_they_were_made_of() -> None:
    """Entries come back equal, in order, by place and by slice."""
    entries = (
        ReportedPodUsage("web-0", "shop", ReportedUsage(0.25, 2.0**30), "koord-prod", "LS"),
        ReportedPodUsage("job-1", "batch", ReportedUsage(1.5, 3.0, (("gpu", 2),)), "koord-batch"),
        ReportedPodUsage("web-1", "shop", ReportedUsage(0.0, 0.0), "koord-prod", "LS"),
    )

    pods = ReportedPods(entries)

    assert (len(pods), tuple(pods), pods[1], pods[-2:]) == (3, entries, entries[1], entries[1:])
    assert (pods[0], pods[-1]) == (entries[0], entries[-1])
    assert pods.keys() == ["shop/web-0", "batch/job-1", "shop/web-1"]
    with pytest.raises(IndexError):
        pods[3]
    assert pods == entries
    assert pods == ReportedPods(entries)
    assert hash(pods) == hash(ReportedPods(list(entries)))
    assert pods != ReportedPods(entries[:2])
    assert not ReportedPods(())


def test_usage_of_a_pod_takes_less_memory_as_columns() -> None:
    """Beside its name, a pod takes less than half of what its entry would."""
    reports = [
        [
            ReportedPodUsage(f"pod-{at}", "shop", ReportedUsage(at + 0.5, at + 0.25))
            for at in range(30)
        ]
        for _ in range(100)
    ]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [ReportedPods(entries) for entries in reports]
        taken = (tracemalloc.get_traced_memory()[0] - before) / 3000
    finally:
        tracemalloc.stop()

    entry = reports[0][0]
    assert len(kept) == 100
    floats = sys.getsizeof(entry.usage.cores) + sys.getsizeof(entry.usage.memory_bytes)
    assert taken < (sys.getsizeof(entry) + sys.getsizeof(entry.usage) + floats) / 2
