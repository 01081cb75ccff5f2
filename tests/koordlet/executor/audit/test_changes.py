"""Changes of kernel values in the audit log."""

import pytest

from koord.api.qos import KubeQoS
from koordlet.executor.change_observers import ChangeAudit
from koordlet.executor.claims.claim import AuditText, Change, ClaimScope, Key, Target
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.resource import Level
from koordlet.host.resources import CPU_QUOTA, CPUSET_CPUS_WANTED, OOM_SCORE_ADJ
from koordlet.plugin.testing import make_pod

POD = make_pod("web", namespace="shop")
BE = Target.qos_class(Layout.default(Driver.CGROUPFS), KubeQoS.BEST_EFFORT)
WORDS = AuditText("AdjustBEByNodeCPUUsage", "update BE group to cfs_quota: {value}")


def event(target, resource=CPU_QUOTA, *, what="set", old=-1, new=71100, audit_text=None):
    """The event of one change, as a line of it would say."""
    noted = []
    audit = ChangeAudit(
        noted.append, lambda key: f"/cg/{key.target.place}", lambda change: audit_text
    )
    audit(Change(what, Key(target, resource), ("A", "B"), old, new, "node at 70 %"))
    [found] = noted
    subject = "/".join(filter(None, (found.type, found.namespace, found.name, found.container)))
    return subject, found.reason, found.message


@pytest.mark.parametrize(
    ("target", "subject", "reason"),
    [
        (BE, "node", "UpdateCgroups"),
        (Target.of_pod(POD), "pod/shop/web", "UpdateCgroups"),
        (Target.below_pod(POD, "kubepods/podweb/abc"), "shop/web/abc", "UpdateCgroups"),
        (Target.node(), "node", "UpdateSystemConfig"),
        (Target.of_process(POD, 4711, 5), "shop/web", "UpdateSystemConfig"),
    ],
)
def test_any_value_is_recorded_as_koordinator_records_it(target, subject, reason):
    """What it is about follows from where the value is; then who wanted it, and why."""
    path = f"/cg/{target.place}"
    assert event(target) == (subject, reason, f"update {path} to 71100, A, B: node at 70 %")


def test_a_plugin_may_have_words_of_its_own():
    """They are for setting the value."""
    assert event(BE, audit_text=WORDS)[1:] == (
        "AdjustBEByNodeCPUUsage",
        "update BE group to cfs_quota: 71100, A, B: node at 70 %",
    )
    assert event(BE, audit_text=WORDS, what="restored", old=71100, new=-1)[1:] == (
        "AdjustBEByNodeCPUUsage",
        "restored /cg/kubepods/besteffort: 71100, now -1, A, B: node at 70 %",
    )


@pytest.mark.parametrize("what", ["would_set", "would_restore"])
def test_what_dry_run_would_do_is_marked(what):
    """A reason that is not mistaken for a change."""
    assert event(BE, what=what)[1] == "would_UpdateCgroups"
    assert event(BE, what=what, audit_text=WORDS)[1] == "would_AdjustBEByNodeCPUUsage"


def test_the_numbers_of_the_decision_are_recorded():
    """After the rule, short enough to read."""
    noted = []
    audit = ChangeAudit(noted.append, lambda key: "/cg/cpu.max", lambda change: None)
    inputs = {"ls_cores": 1 / 3, "capacity_bytes": 2**40, "measured": "by looks"}
    audit(Change("set", Key(BE, CPU_QUOTA), ("A",), -1, 5, "BE is squeezed", inputs))
    assert noted[0].message == (
        "update /cg/cpu.max to 5, A: BE is squeezed "
        "(ls_cores=0.333333, capacity_bytes=1099511627776, measured=by looks)"
    )


def test_cpus_are_a_list():
    """As the kernel writes them."""
    found = event(BE, CPUSET_CPUS_WANTED, old=frozenset({0}), new=frozenset({0, 1, 2, 5}))
    assert found[2].startswith("update /cg/kubepods/besteffort to 0-2,5, ")


def test_words_are_for_what_was_declared():
    """Level and QoS decide."""
    may = ClaimScope(CPU_QUOTA, Level.QOS, frozenset({"BestEffort"}), audit_text=WORDS)
    assert may.is_for(Key(BE, CPU_QUOTA))
    assert not may.is_for(Key(Target.of_pod(POD), CPU_QUOTA))
    assert not may.is_for(Key(BE, OOM_SCORE_ADJ))
