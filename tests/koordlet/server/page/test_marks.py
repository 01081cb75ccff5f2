"""Marks on the charts where a plugin acted."""

from koord.api.qos import KubeQoS
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.desired import Change
from koordlet.executor.claims.target import Target
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.resources import CPU_QUOTA, CPUSET_CPUS_WANTED
from koordlet.plugin.testing import make_pod
from koordlet.plugin.testing.clock import SimulatedClock
from koordlet.server.page.marks import KEPT, Marks

BE = Target.qos_class(Layout.default(Driver.CGROUPFS), KubeQoS.BEST_EFFORT)


def change(target=BE, resource=CPU_QUOTA, *, new=71100, inputs=None):
    return Change("set", Key(target, resource), ("CPUSuppress",), -1, new, "hot", inputs or {})


def test_a_mark_has_the_rule_and_its_numbers():
    clock = SimulatedClock()
    marks = Marks(clock.wall)
    marks(change(inputs={"node": 0.71, "policy": "cfsQuota"}))
    [mark] = marks.after(0)
    assert mark["t"] == clock.wall()
    assert (mark["what"], mark["plugins"], mark["resource"]) == (
        "set",
        ["CPUSuppress"],
        "cpu_quota",
    )
    assert (mark["old"], mark["new"], mark["reason"]) == ("-1", "71100", "hot")
    assert mark["inputs"] == {"node": 0.71, "policy": "cfsQuota"}


def test_the_changes_of_one_second_are_one_mark_that_is_sent_again():
    """150 pods whose quota is raised at once are one mark, whose number stays."""
    clock = SimulatedClock()
    marks = Marks(clock.wall)
    marks(change())
    [first] = marks.after(0)
    seen = marks.revision
    marks(change(new=5))
    [again] = marks.after(seen)
    assert (again["number"], again["times"], again["new"]) == (first["number"], 2, "5")
    assert marks.after(marks.revision) == []
    clock.tick(1)
    marks(change())
    marks(change(resource=CPUSET_CPUS_WANTED, new={3, 1}))
    assert [mark["new"] for mark in marks.after(0)] == ["5", "71100", "[1, 3]"]


def test_marks_leave_with_the_history_and_are_bounded():
    clock = SimulatedClock()
    marks = Marks(clock.wall)
    for _ in range(KEPT + 10):
        clock.tick(1)
        marks(change())
    assert len(marks.after(0)) == KEPT
    clock.tick(3600)
    assert marks.after(0) == []


def test_texts_of_pods_and_plugins_are_cut():
    marks = Marks(SimulatedClock().wall)
    pod = make_pod("<img src=x onerror=alert(1)>" * 50, namespace="shop")
    marks(change(Target.of_pod(pod), inputs={f"n{i}": "x" * 5000 for i in range(500)}))
    [mark] = marks.after(0)
    assert len(mark["pod"]) == 300
    assert mark["pod"].startswith("shop/<img src=x")  # the page shows it as text
    assert len(mark["inputs"]) == 20
    assert max(map(len, mark["inputs"].values())) == 300
