"""Marks on the charts where a plugin acted."""

from koord.api.qos import KubeQoS
from koordlet.executor.claims.claim import Change, Key, Target
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.resources import CPU_QUOTA, CPUSET_CPUS_WANTED
from koordlet.plugin.testing import make_pod
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.server.page import MAX_ANNOTATIONS, ChangeAnnotations

BE = Target.qos_class(Layout.default(Driver.CGROUPFS), KubeQoS.BEST_EFFORT)


def change(target=BE, resource=CPU_QUOTA, *, new=71100, inputs=None):
    return Change("set", Key(target, resource), ("CPUSuppress",), -1, new, "hot", inputs or {})


def test_a_mark_has_the_rule_and_its_numbers():
    clock = SimulatedClock()
    annotations = ChangeAnnotations(clock.wall)
    annotations(change(inputs={"node": 0.71, "policy": "cfsQuota"}))
    [mark] = annotations.after(0)
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
    annotations = ChangeAnnotations(clock.wall)
    annotations(change())
    [first] = annotations.after(0)
    seen = annotations.revision
    annotations(change(new=5))
    [again] = annotations.after(seen)
    assert (again["number"], again["times"], again["new"]) == (first["number"], 2, "5")
    assert annotations.after(annotations.revision) == []
    clock.tick(1)
    annotations(change())
    annotations(change(resource=CPUSET_CPUS_WANTED, new={3, 1}))
    assert [mark["new"] for mark in annotations.after(0)] == ["5", "71100", "[1, 3]"]


def test_marks_leave_with_the_history_and_are_bounded():
    clock = SimulatedClock()
    annotations = ChangeAnnotations(clock.wall)
    for _ in range(MAX_ANNOTATIONS + 10):
        clock.tick(1)
        annotations(change())
    assert len(annotations.after(0)) == MAX_ANNOTATIONS
    clock.tick(3600)
    assert annotations.after(0) == []


def test_texts_of_pods_and_plugins_are_cut():
    annotations = ChangeAnnotations(SimulatedClock().wall)
    pod = make_pod("<img src=x onerror=alert(1)>" * 50, namespace="shop")
    annotations(change(Target.of_pod(pod), inputs={f"n{i}": "x" * 5000 for i in range(500)}))
    [mark] = annotations.after(0)
    assert len(mark["pod"]) == 300
    assert mark["pod"].startswith("shop/<img src=x")  # the page shows it as text
    assert len(mark["inputs"]) == 20
    assert max(map(len, mark["inputs"].values())) == 300
