"""What is recorded reads back to the same facts; what is malformed is refused."""

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.cluster import kinds
from koord.cluster.facts import (
    ClusterNamespace,
    DisruptionBudget,
    Owner,
    PriorityClass,
    ReportedAggregate,
    ReportedPodUsage,
    ReportedUsage,
    Workload,
)
from koord.cluster.kinds import UsageReport
from koord.cluster.storage import (
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VOLUME_ATTACHMENT,
    Claim,
    ClaimReference,
    CsiDriver,
    CsiNode,
    NodeDriver,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from koord.util.errors import InvalidObject
from koord_descheduler.backtest.recorder import RecordingState
from koord_descheduler.backtest.records import (
    Change,
    Eviction,
    Header,
    Tick,
    TickDecoder,
    TickEncoder,
    header_block,
    layout_of,
    pack,
    read_header,
    summary_of,
    to_report,
    to_row,
    unpack,
)
from tests.support.clusters import deleting, near, node_affinity, read_node, read_pod, term
from tests.support.clusters import node as node_json
from tests.support.clusters import pod as pod_json

_CORES = st.integers(0, 10**6).map(lambda milli: milli / 1000)
_BYTES = st.integers(0, 2**50).map(float)
_USAGES = st.builds(ReportedUsage, _CORES, _BYTES)
_MAYBE = st.none() | _USAGES
_TEXTS = st.text("abc-", max_size=4)
_PODS = st.builds(ReportedPodUsage, name=_TEXTS, namespace=_TEXTS, usage=_USAGES, qos=_TEXTS)
_REPORTS = st.builds(
    UsageReport,
    node=st.sampled_from(["n1", "n2", "n3"]),
    update_time=st.none() | st.integers(0, 2 * 10**9).map(float),
    usage=_MAYBE,
    system_usage=_MAYBE,
    host_usage=_MAYBE,
    aggregated=st.lists(
        st.builds(ReportedAggregate, st.sampled_from([300.0, 600.0]), *[_MAYBE] * 5), max_size=2
    ).map(tuple),
    pods=st.lists(_PODS, max_size=4).map(tuple),
)


def there_and_back(*blocks: list[Tick]) -> list[Tick]:
    encoder, decoder = TickEncoder(), TickDecoder()
    return [tick for block in blocks for tick in decoder.ticks(encoder.block(block))]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers_are_packed_without_loss(values: list[int]) -> None:
    """Also the largest ones, of either sign."""
    assert unpack(pack(np.array(values, np.int64))).tolist() == values


@given(_REPORTS)
def test_a_row_has_all_of_a_report(report: UsageReport) -> None:
    """To the milli-core and byte, in which NodeMetrics are."""
    assert to_report(layout_of(report), to_row(report)) == report


@given(st.lists(st.lists(st.lists(_REPORTS, max_size=4), max_size=3), max_size=3))
def test_reports_come_back_tick_by_tick(blocks: list[list[list[UsageReport]]]) -> None:
    """Whatever the reports of a node before were like."""
    written = [
        [Tick(float(at), reports=reports) for at, reports in enumerate(ticks)] for ticks in blocks
    ]

    assert there_and_back(*written) == [tick for block in written for tick in block]


def test_absurd_amounts_are_bounded() -> None:
    """A NodeMetric can say anything."""
    report = UsageReport("n1", 1.0, ReportedUsage(1e300, -1e300))

    [tick] = there_and_back([Tick(1.0, reports=[report])])

    usage = tick.reports[0].usage
    assert usage is not None
    assert usage.memory_bytes == -usage.cores * 1000 == -float(1 << 61)


def _pods() -> list[Any]:
    rules = {
        "affinity": {
            **node_affinity(
                {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}
            ),
            **near("podAntiAffinity", term("zone", {"app": "web"})),
        },
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "ports": [{"hostPort": 80}],
    }
    plain = [pod_json(f"web-{at}", "n1", {"app": "web"}, {"cpu": "1"}, **rules) for at in range(3)]
    return [*plain, pod_json("other"), deleting(pod_json("going", "n2"))]


def test_objects_of_all_kinds_come_back() -> None:
    """Pods with the rules and labels that they share; removed ones as removed."""
    items = {
        kinds.NODE: read_node(node_json("n1", {"zone": "a"})),
        CLAIM: Claim("ns", "data", "pv", selector=(Requirement("a", "Exists", ()),)),
        VOLUME: Volume("pv", (), labels={"a": "b"}, claim=ClaimReference("ns", "data", "u")),
        STORAGE_CLASS: StorageClass("fast", "csi.test", True, ()),
        CSI_NODE: CsiNode("n1", (NodeDriver("csi.test", 3, ("zone",)),)),
        CSI_DRIVER: CsiDriver("csi.test", True),
        STORAGE_CAPACITY: StorageCapacity("ns", "a", "fast", (), 5),
        VOLUME_ATTACHMENT: VolumeAttachment("at", "csi.test", "n1", "pv"),
        kinds.NAMESPACE: ClusterNamespace("ns", MappingProxyType({"a": "b"})),
        kinds.BUDGET: DisruptionBudget("ns", "web", (), 3),
        kinds.PRIORITY_CLASS: PriorityClass("high", 10),
        **{
            kind: Workload(
                kind=kind.name,
                namespace="ns",
                name="web",
                uid="u",
                replicas=2,
                controller=Owner("Deployment", "d", "v", controller=True),
            )
            for kind in kinds.WORKLOADS
        },
    }
    changes = [Change(kind, item.key, item) for kind, item in items.items()]
    pods = [Change(kinds.POD, pod.key, pod) for pod in map(read_pod, _pods())]
    removed = [Change(kind, "ns/gone", None) for kind in RecordingState().kinds]
    eviction = Eviction(at=3.0, pod="ns/web-1", uid="u1", node="n1", plugin="A", reason="hot")
    written = [
        [Tick(1.0, changes), Tick(2.0, pods[:2])],
        [Tick(3.0, [*pods[2:], *removed], evictions=[eviction])],
    ]

    found = there_and_back(*written)

    flat = [change for tick in found for change in tick.changes]
    wanted = [*changes, *pods, *removed]
    assert [(one.kind, one.key) for one in flat] == [(one.kind, one.key) for one in wanted]
    for one, other in zip(flat, wanted, strict=True):
        if one.kind is kinds.POD and one.item is not None:
            mine, theirs = one.item, other.item
            assert (mine.label_set.namespace, dict(mine.labels)) == (
                theirs.label_set.namespace,
                dict(theirs.labels),
            )
            for name in theirs.spec.__struct_fields__:
                assert getattr(mine.spec, name) == getattr(theirs.spec, name)
            assert (mine.name, mine.uid, mine.node, mine.deleting) == (
                theirs.name,
                theirs.uid,
                theirs.node,
                theirs.deleting,
            )
        else:
            assert one.item == other.item
    assert found[0].changes[0].item == items[kinds.NODE]
    web = [one.item for one in flat if one.key.startswith("default/web-")]
    assert len({id(pod.spec) for pod in web}) == len({id(pod.label_set) for pod in web}) == 1
    assert found[-1].evictions == [eviction]


def test_a_summary_needs_no_other_block() -> None:
    """Times and evictions."""
    encoder = TickEncoder()
    eviction = Eviction(at=3.0, pod="ns/web-1", uid="u1", node="n1")
    encoder.block([Tick(1.0, reports=[UsageReport("n1", 1.0)])])

    found = summary_of(
        encoder.block([Tick(2.0, reports=[UsageReport("n1", 2.0)]), Tick(3.0, [], [], [eviction])])
    )

    assert (found.times, found.evictions) == ([2.0, 3.0], [eviction])


def test_a_block_out_of_its_order_is_refused() -> None:
    """Its numbers mean nothing then."""
    encoder = TickEncoder()
    pod = read_pod(_pods()[0])
    tick = Tick(1.0, [Change(kinds.POD, pod.key, pod)], [UsageReport("n1", 1.0)])
    encoder.block([tick])
    second = encoder.block([tick])

    with pytest.raises(InvalidObject, match="wanted what record writes"):
        list(TickDecoder().ticks(second))


@pytest.mark.parametrize("numbers", [1, 2, 50])
def test_numbers_that_begin_anew(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a million of them; the reader follows."""
    monkeypatch.setattr("koord_descheduler.backtest.records.MAX_NUMBERED", numbers)
    pods = [read_pod(pod_json(f"p{at}", labels={"at": str(at)})) for at in range(6)]
    written = [
        [Tick(1.0, [Change(kinds.POD, pod.key, pod)], [UsageReport("n1", 1.0)])] for pod in pods
    ]

    found = there_and_back(*written)

    assert [tick.changes[0].item.labels for tick in found] == [dict(pod.labels) for pod in pods]


@given(st.binary(max_size=80))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    """As a header, as a block, and for a summary."""
    for read in (read_header, summary_of, lambda found: list(TickDecoder().ticks(found))):
        with pytest.raises(InvalidObject):
            read(data)


def test_a_changed_block_is_refused_or_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checksum can be right and its data wrong: nothing but InvalidObject comes of it."""
    pod = read_pod(_pods()[0])
    data = TickEncoder().block(
        [
            Tick(
                1.0,
                [Change(kinds.POD, pod.key, pod)],
                [UsageReport("n1", 1.0, ReportedUsage(1.0, 2.0))],
            )
        ]
    )
    refused = 0
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            try:
                list(TickDecoder().ticks(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]))
            except InvalidObject:
                refused += 1
    assert refused > len(data) / 4


def test_the_header_comes_back() -> None:
    header = Header(began=12.5, config="kind: x\n", recorder="test")

    assert read_header(header_block(header)) == header
