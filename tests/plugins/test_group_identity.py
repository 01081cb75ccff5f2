"""GroupIdentity: who the scheduler of an Anolis kernel takes for latency sensitive."""

import dataclasses
import json

import pytest

from koord.api.nodeslo import HostApplication, NodeSLO, merge_nodeslo
from koord.api.qos import QOS_LABEL, KubeQoS
from koord.api.qosstrategy import CPUPolicy, CPUQoS, QoSClassStrategy, QoSPolicies, ResourceQoS
from koord.plugin import InvalidObject
from koordlet.plugin import PodMeta, resources
from koordlet.plugin.testing import FakeGroup, FakeHost, PluginHarness, make_pod
from koordlet_plugins.group_identity import (
    CPU_QOS,
    GroupIdentity,
    Identities,
    identities,
    identity_claims,
    pod_identity,
)

BVT = resources.CPU_BVT
ALL = Identities(2, 2, -1)
GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoS


def wanted(lsr: int | None = 2, ls: int | None = 2, be: int | None = -1, **policies) -> NodeSLO:
    """A NodeSLO; None: CPU QoS of that class is off."""

    def settings(identity: int | None) -> QoSClassStrategy:
        on = identity is not None
        return QoSClassStrategy(cpu=CPUQoS(enable=on, group_identity=identity or 0))

    return NodeSLO(
        resource_qos=ResourceQoS(
            policies=QoSPolicies(**policies), lsr=settings(lsr), ls=settings(ls), be=settings(be)
        )
    )


def pod(label: str = "", qos: KubeQoS = BURSTABLE, annotation: object = None) -> PodMeta:
    return make_pod(
        "web",
        qos=qos,
        labels={QOS_LABEL: label} if label else {},
        annotations={} if annotation is None else {CPU_QOS: json.dumps(annotation)},
        sandbox=True,
    )


@pytest.mark.parametrize(
    ("meta", "rule", "identity"),
    [
        (pod("LS"), ALL, 2),
        (pod("LSE", GUARANTEED), Identities(1, 2, -1), 1),
        (pod("BE", BEST_EFFORT), ALL, -1),
        (pod("", GUARANTEED), ALL, 2),
        (pod("", BURSTABLE), Identities(2, 1, -1), 1),
        (pod("", BEST_EFFORT), ALL, -1),
        (pod("SYSTEM"), ALL, 2),
        (pod("LS", annotation={"enable": True, "groupIdentity": -1}), ALL, -1),
        (pod("LS", annotation={"Enable": True, "GROUPIDENTITY": 1}), ALL, 1),
        (pod("LS", annotation={"enable": True}), ALL, 2),
        (pod("LS", annotation={"groupIdentity": -1}), ALL, 0),
        (pod("LS", annotation={"enable": False}), ALL, 0),
        (pod("BE", BEST_EFFORT, {"enable": True, "groupIdentity": 2}), ALL, -1),
        (pod("", GUARANTEED), Identities(None, 2, -1), 2),
        (pod("", GUARANTEED), Identities(None, None, -1), 0),
        (pod("LSR", GUARANTEED), Identities(None, 2, -1), 0),
    ],
)
def test_identity_of_a_pod(meta: PodMeta, rule: Identities, identity: int) -> None:
    """The label's class decides, then Kubernetes'; LS pods may choose by an annotation."""
    claims = list(identity_claims(meta, pod_identity(meta.pod), rule))

    assert [claim.value for claim in claims] == [identity] * 3
    places = [meta.cgroup, meta.containers[0].cgroup, meta.sandbox]
    assert [claim.target.place for claim in claims] == places


@pytest.mark.parametrize(
    "text", ['{"enable": true, "groupIdentity": 5}', "{", "[]", '{"enable":3}']
)
def test_a_bad_annotation_is_refused(text: str) -> None:
    """An identity that no kernel knows, and what is no such object."""
    meta = make_pod("web", labels={QOS_LABEL: "LS"}, annotations={CPU_QOS: text})

    with pytest.raises(InvalidObject, match="cpuQOS"):
        pod_identity(meta.pod)


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        (wanted(), ALL),
        (wanted(lsr=None), Identities(None, 2, -1)),
        (wanted(cpu=CPUPolicy.CORE_SCHED), Identities()),
        (wanted(cpu=None), Identities()),
        (NodeSLO(), Identities()),
    ],
)
def test_identities_of_a_node_slo(slo: NodeSLO, expected: Identities) -> None:
    """Only classes that are enabled, and only by the policy of this name."""
    assert identities(slo.resource_qos) == expected


@pytest.mark.parametrize(("qos", "identity"), [(GUARANTEED, 0), (BURSTABLE, 2), (BEST_EFFORT, -1)])
def test_identity_of_a_qos_class(qos: KubeQoS, identity: int) -> None:
    """The group of guaranteed pods holds those of the other classes, so it has none."""
    assert ALL.of_class(qos) == identity


def test_an_identity_out_of_range_is_refused_with_its_section() -> None:
    """The last good settings stay, as with every wrong value in a NodeSLO."""
    be = {"cpuQOS": {"enable": True, "groupIdentity": 3}}
    slo, problems = merge_nodeslo({"spec": {"resourceQOSStrategy": {"beClass": be}}}, wanted())

    assert slo.resource_qos == wanted().resource_qos
    assert [problem.where for problem in problems] == [
        "nodeSLO.spec.resourceQOSStrategy.beClass.cpuQOS.groupIdentity"
    ]


class Anolis:
    """A fake host with the files of an Anolis kernel, and one LS pod."""

    def __init__(self, host: FakeHost) -> None:
        groups = host.add_pod("web", BURSTABLE, ("web-main",))
        self.pod = groups.group
        self.container = groups.containers["web-main"]
        classes = [host.group(host.layout.qos_dir(qos)) for qos in KubeQoS]
        self.groups: list[FakeGroup] = [*classes, self.pod, self.container, groups.sandbox]
        for group in self.groups:
            group.write(f"{'cpu/' if host.version == 1 else ''}cpu.bvt_warp_ns", "0\n")


async def test_identities_land_and_go(host, value) -> None:
    """On classes, pod, container and sandbox; with the strategy they go at once."""
    groups = Anolis(host).groups
    harness = PluginHarness(GroupIdentity(), pods=[pod("LS")], host=host)

    async with harness:
        await harness.rounds(1)
        assert harness.changes == []
        harness.set_node_slo(wanted())
        await harness.advance(0.1)
        assert [value(BVT, group) for group in groups] == [0, 2, -1, 2, 2, 2]
        harness.set_node_slo(NodeSLO())
        await harness.advance(0.1)
        assert [value(BVT, group) for group in groups] == [0] * 6
        assert harness.claims() == []


async def test_the_kernels_switch_goes_first_and_core_scheduling_ends(host, value) -> None:
    """Without the switch identities mean nothing; both are restored in the end."""
    groups = Anolis(host)
    switch = host.write("proc/sys/kernel/sched_group_identity_enabled", "0\n")
    cores = host.write("proc/sys/kernel/sched_core", "1\n")
    harness = PluginHarness(GroupIdentity(), pods=[pod("LS")], host=host)

    async with harness:
        harness.set_node_slo(wanted())
        await harness.rounds(1)
        assert (switch.read_text().strip(), cores.read_text().strip()) == ("1", "0")
        assert [change.key.resource.name for change in harness.changes][:2] == [
            "sched_core",
            "sched_group_identity",
        ]
        assert value(BVT, groups.pod) == 2
    assert (switch.read_text().strip(), cores.read_text().strip()) == ("0", "1")


async def test_without_the_switch_nothing_else_is_done(host, value) -> None:
    """A switch that cannot be set is logged once."""
    groups = Anolis(host)
    host.write("proc/sys/kernel/sched_group_identity_enabled", "no number\n")
    harness = PluginHarness(GroupIdentity(), pods=[pod("LS")], host=host)

    async with harness:
        harness.set_node_slo(wanted())
        await harness.rounds(3)
        assert value(BVT, groups.pod) == 0
        assert len(harness.log.named("identity.switch_failed")) == 1


async def test_host_applications_have_the_identity_of_their_class(host, value) -> None:
    """One without a class has none."""
    Anolis(host)
    groups = [host.group(path) for path in ("host-latency-sensitive/redis", "other")]
    for group in groups:
        group.write(f"{'cpu/' if host.version == 1 else ''}cpu.bvt_warp_ns", "1\n")
    apps = (HostApplication("redis", qos="LS"), HostApplication("other"))
    harness = PluginHarness(GroupIdentity(), pods=[pod("LS")], host=host)

    async with harness:
        harness.set_node_slo(dataclasses.replace(wanted(), host_applications=apps))
        await harness.advance(0.1)
        assert [value(BVT, group) for group in groups] == [2, 0]
    assert [value(BVT, group) for group in groups] == [1, 1]


async def test_another_kernel_is_logged_once_and_left_alone(host) -> None:
    """Most kernels are like that."""
    host.add_pod("web", BURSTABLE, ("web-main",))
    harness = PluginHarness(GroupIdentity(), pods=[pod("LS")], host=host)

    async with harness:
        harness.set_node_slo(wanted())
        await harness.rounds(3)
        assert len(harness.log.named("kernel.unsupported")) == 1
        assert harness.claims() == []


async def test_an_annotation_without_enable_is_logged(host, value) -> None:
    """The identity is 0 then, as in Koordinator, which is hardly what its author meant."""
    groups = Anolis(host)
    meta = pod("LS", annotation={"groupIdentity": 2})
    harness = PluginHarness(GroupIdentity(), pods=[meta], host=host)

    async with harness:
        harness.set_node_slo(wanted())
        await harness.rounds(2)
        assert value(BVT, groups.pod) == 0
        [warning] = harness.log.named("identity.enable_failed")
        assert warning["pod"] == "default/web"
