"""The claimed values that apply to a pod or group, and the cores that they leave."""

import pytest

from koord.api.qos import KubeQoS
from koordlet.executor.claims.claim import ApplyResult, ClaimState, Key, Target
from koordlet.executor.claims.table import ClaimedValue, ValueInForce, concerns, cpu_limits
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.resources import CPU_QUOTA, CPUSET_CPUS_WANTED, MEMORY_HIGH, OOM_SCORE_ADJ
from koordlet.plugin.testing import make_pod

LAYOUT = Layout.default(Driver.CGROUPFS)
POD = make_pod("sort", namespace="jobs", uid="u1", qos=KubeQoS.BEST_EFFORT)
TARGETS = {
    "node": Target.node(),
    "kubepods": Target.qos_class(LAYOUT, KubeQoS.GUARANTEED),
    "besteffort": Target.qos_class(LAYOUT, KubeQoS.BEST_EFFORT),
    "burstable": Target.qos_class(LAYOUT, KubeQoS.BURSTABLE),
    "pod": Target.of_pod(POD),
    "container": Target.of_container(POD, POD.containers[0]),
    "process": Target.of_process(POD, 4711, 5),
    "another pod": Target.of_pod(make_pod("web")),
}
OWN, ABOVE = {"pod", "container", "process"}, {"kubepods", "besteffort"}


@pytest.mark.parametrize(
    ("place", "groups", "concerned"),
    [
        ("", (), set(TARGETS)),
        ("jobs/sort", (), OWN),
        ("jobs/sort", (POD.cgroup,), OWN | ABOVE),
        ("sort", (POD.cgroup,), OWN | ABOVE),
        ("u1", (POD.cgroup,), OWN | ABOVE),
        (POD.cgroup, (), OWN - {"process"} | ABOVE),
        (f"/{POD.containers[0].cgroup}/", (), {"pod", "container"} | ABOVE),
        ("kubepods/burstable", (), {"kubepods", "burstable", "another pod"}),
        ("kubepods/best", (), {"kubepods"}),
        ("nobody", (), set()),
    ],
)
def test_a_pod_is_concerned_by_its_own_values_and_those_above(place, groups, concerned):
    """What limits the QoS class limits the pod; a name that only begins alike does not count."""
    found = {
        name for name, target in TARGETS.items() if concerns(Key(target, CPU_QUOTA), place, groups)
    }
    assert found == concerned


def claimed(target, resource, value, original=-1, state=ClaimState.IN_FORCE):
    applied = ApplyResult(state, value, original)
    return ClaimedValue(
        Key(TARGETS[target], resource), ValueInForce(value, applied, (), 0.0, 0.0, False), ()
    )


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([claimed("besteffort", CPU_QUOTA, 71100)], {"kubepods/besteffort": 0.711}),
        (
            [
                claimed("besteffort", CPU_QUOTA, 150000),
                claimed("besteffort", CPUSET_CPUS_WANTED, frozenset({0}), frozenset({0, 1})),
                claimed("burstable", CPU_QUOTA, 300000),
            ],
            {"kubepods/besteffort": 1.0, "kubepods/burstable": 3.0},
        ),
        ([claimed("besteffort", CPU_QUOTA, -1)], {}),
        ([claimed("besteffort", CPU_QUOTA, 71100, state=ClaimState.WOULD)], {}),
        ([claimed("besteffort", CPUSET_CPUS_WANTED, frozenset({0}), frozenset({0}))], {}),
        ([claimed("pod", CPU_QUOTA, 71100), claimed("besteffort", MEMORY_HIGH, 5)], {}),
        ([claimed("process", OOM_SCORE_ADJ, 5)], {}),
    ],
)
def test_what_holds_a_qos_class_down(values, limits):
    """The least of quota and CPUs, when it is in force and not the original."""
    assert cpu_limits(values) == limits
