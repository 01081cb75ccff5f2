"""What a container gets instead of what the runtime was asked for, by the plugins' own claims."""

import json

import pytest

from koord.api.pod import EXTENDED_RESOURCES, Pod
from koord.api.pod import Container as PodContainer
from koord.api.qos import KubeQoS, QoSClass
from koordlet.executor.claims.claim import Claim, Part, Target
from koordlet.host import resources as r
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.runtimehooks.adjustments import OwnedClaim, adjustments, linux_resources
from koordlet.runtimehooks.handlers import listed_pod, pod_meta, with_container
from koordlet.runtimehooks.wire import (
    Container,
    LinuxContainer,
    LinuxCPU,
    LinuxMemory,
    LinuxPodSandbox,
    LinuxResources,
    PodSandbox,
)
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

GIB = 1 << 30
CONTAINER = ContainerMeta("main", "containerd://c1", "kubepods/pod1/c1")
POD = PodMeta(
    Pod("jobs", "web", "1"), "kubepods/pod1", (CONTAINER,), QoSClass.LS, KubeQoS.GUARANTEED
)
ASKED = LinuxResources(LinuxMemory(GIB), LinuxCPU(shares=1024, quota=100_000, period=100_000))


def claim(resource, value, *, part=Part.VALUE, owner="Some", original=None, of_pod=False):
    target = Target.of_pod(POD) if of_pod else Target.of_container(POD, CONTAINER)
    made = Claim(
        target=target, resource=resource, value=value, part=part, original=original, reason="why"
    )
    return OwnedClaim(owner, made)


@pytest.mark.parametrize(
    ("claims", "given"),
    [
        ([], None),
        ([claim(r.CPU_QUOTA, -1)], LinuxResources(cpu=LinuxCPU(quota=-1))),
        ([claim(r.CPU_QUOTA, 100_000)], None),  # as asked
        ([claim(r.CPU_QUOTA, 50_000, of_pod=True)], None),  # not the container's
        ([claim(r.CPU_BVT, 2)], None),  # the runtime has no such field
        ([claim(r.CPU_SHARES, 512)], LinuxResources(cpu=LinuxCPU(shares=512))),
        ([claim(r.MEMORY_LIMIT, -1)], LinuxResources(LinuxMemory(-1))),
        (
            [claim(r.CPUSET_CPUS_WANTED, frozenset({0, 1, 2, 5}), part=Part.PIN)],
            LinuxResources(cpu=LinuxCPU(cpus="0-2,5")),
        ),
        (  # a ratio alone divides what the claim says is the base
            [claim(r.CPU_QUOTA, 1.2, part=Part.RATIO, original=100_000)],
            LinuxResources(cpu=LinuxCPU(quota=83_334)),
        ),
        (  # plugins that decide together
            [
                claim(r.CPU_QUOTA, 1.2, part=Part.RATIO, original=100_000, owner="Ratio"),
                claim(r.CPU_QUOTA, 200_000),
            ],
            LinuxResources(cpu=LinuxCPU(quota=166_667)),
        ),
    ],
)
def test_the_claims_on_a_container_become_the_answer(claims, given):
    assert linux_resources(adjustments(claims, CONTAINER.cgroup, ASKED)) == given


def test_an_adjustment_has_what_was_asked_and_why():
    """Which is what the journal and /explain need."""
    claims = [
        claim(r.CPU_QUOTA, 1.2, part=Part.RATIO, original=100_000, owner="Ratio"),
        claim(r.CPU_QUOTA, 200_000, owner="Batch"),
    ]

    [found] = adjustments(claims, CONTAINER.cgroup, ASKED)

    assert (found.asked, found.owners, found.reason) == (100_000, ("Ratio", "Batch"), "why; why")


@pytest.mark.parametrize(
    ("asked", "original"),
    [
        (None, -1),
        (LinuxResources(), -1),
        (LinuxResources(cpu=LinuxCPU(quota=0)), -1),
        (LinuxResources(cpu=LinuxCPU(quota=-7)), -1),
        (LinuxResources(cpu=LinuxCPU(quota=30_000)), 30_000),
    ],
)
def test_what_was_not_asked_for_is_the_kernels_default(asked, original):
    [found] = adjustments([claim(r.CPU_QUOTA, 50_000)], CONTAINER.cgroup, asked)

    assert found.asked == original


def test_a_quota_of_another_period_is_left_to_the_plugin():
    """A kubelet may have another period; ours are of 100 ms."""
    asked = LinuxResources(cpu=LinuxCPU(quota=5_000, period=10_000))

    assert not adjustments([claim(r.CPU_QUOTA, 50_000)], CONTAINER.cgroup, asked)


def test_an_update_changes_only_what_it_is_about():
    """The rest stays as it is in the kernel."""
    claims = [claim(r.CPU_QUOTA, 50_000), claim(r.MEMORY_LIMIT, GIB)]
    asked = LinuxResources(LinuxMemory(2 * GIB))

    found = adjustments(claims, CONTAINER.cgroup, asked, only_requested=True)

    assert linux_resources(found) == LinuxResources(LinuxMemory(GIB))


def test_a_list_of_cpus_that_is_none_does_no_harm():
    """The runtime will fail on it by itself."""
    asked = LinuxResources(cpu=LinuxCPU(cpus="0-x"))
    pinned = claim(r.CPUSET_CPUS_WANTED, frozenset({1}), part=Part.PIN)

    [found] = adjustments([pinned], CONTAINER.cgroup, asked)

    assert found.asked == frozenset()


LAYOUTS = [Layout.default(Driver.CGROUPFS), Layout.default(Driver.SYSTEMD)]


def sandbox(parent: str, **annotations: str) -> PodSandbox:
    return PodSandbox(
        name="web",
        uid="ab-1",
        namespace="jobs",
        labels={"koordinator.sh/qosClass": "BE"},
        annotations=annotations,
        linux=LinuxPodSandbox(parent),
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=["cgroupfs", "systemd"])
def test_a_pod_that_is_not_known_yet_is_as_the_runtime_describes_it(layout):
    group = layout.pod_dir(KubeQoS.BEST_EFFORT, "ab-1")

    meta = pod_meta(sandbox(f"/{group}"), None, layout)

    assert meta is not None
    assert (meta.cgroup, meta.qos, meta.kube_qos) == (group, QoSClass.BE, KubeQoS.BEST_EFFORT)
    made = with_container(meta, Container(id="c9", name="main"), layout, "containerd")
    assert made is not None
    assert made.containers[0].cgroup == layout.container_dir(group, "containerd://c9")
    assert [one.name for one in made.pod.containers] == ["main"]


def test_a_slice_by_its_name_alone_is_found():
    """Some runtimes have what systemd calls it."""
    layout = LAYOUTS[1]
    meta = pod_meta(sandbox("kubepods-besteffort-podab_1.slice"), None, layout)

    assert meta is not None
    assert meta.cgroup == layout.pod_dir(KubeQoS.BEST_EFFORT, "ab-1")


@pytest.mark.parametrize(
    "parent",
    ["", "/", "/system.slice/a", "/kubepods", "/kubepods/../etc", "/kubepods//x", "/kubepods/a\nb"],
)
def test_what_is_no_pod_of_the_kubelet_is_left_alone(parent):
    assert pod_meta(sandbox(parent), None, LAYOUTS[0]) is None
    assert pod_meta(PodSandbox(uid="ab-1"), None, LAYOUTS[0]) is None


@pytest.mark.parametrize("container_id", ["", "../x", "a/b", "a\0b", ".", "x" * 129])
def test_an_id_never_leads_out_of_the_pod(container_id):
    meta = pod_meta(sandbox("/kubepods/podab-1"), None, LAYOUTS[0])
    assert meta is not None
    assert with_container(meta, Container(container_id, name="c"), LAYOUTS[0], "containerd") is None


def test_a_known_pod_is_the_one_of_the_states():
    """Its spec is there, and its annotations may be newer than the sandbox."""
    pod = Pod("jobs", "web", "ab-1", containers=(PodContainer("main"),))
    asked = sandbox("/kubepods/podab-1")
    known = PodMeta(pod, "kubepods/podab-1", (), QoSClass.LS, KubeQoS.BURSTABLE)

    meta = pod_meta(asked, listed_pod(asked, [POD, known]), LAYOUTS[0])

    assert meta is not None
    assert meta.pod is pod


def test_a_static_pod_is_known_by_its_hash():
    annotations = {"kubernetes.io/config.hash": "ab-1"}
    pod = Pod("jobs", "web", "mirror", annotations=annotations)
    asked = sandbox("/kubepods/podab-1")
    known = PodMeta(pod, "kubepods/podab-1", (), QoSClass.LS, KubeQoS.BURSTABLE)

    meta = pod_meta(asked, listed_pod(asked, [known]), LAYOUTS[0])

    assert meta is not None
    assert meta.uid == "mirror"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (json.dumps({"containers": {"a": {}, "b": {}}}), ["a", "b"]),
        ("{", []),
        ("[]", []),
        ('{"containers": 3}', []),
        ("[" * 100_000, []),
    ],
)
def test_the_annotation_of_batch_resources_names_containers(text, names):
    """Of a pod whose spec is not known yet; what is wrong with it is for the plugin to say."""
    meta = pod_meta(sandbox("/kubepods/podab-1", **{EXTENDED_RESOURCES: text}), None, LAYOUTS[0])

    assert meta is not None
    assert [one.name for one in meta.pod.containers] == names


def test_the_limit_of_a_container_whose_spec_is_not_known_is_the_runtimes():
    """CPU normalization divides it."""
    meta = pod_meta(sandbox("/kubepods/podab-1"), None, LAYOUTS[0])
    assert meta is not None
    described = Container("c9", name="main", linux=LinuxContainer(ASKED))

    made = with_container(meta, described, LAYOUTS[0], "containerd")

    assert made is not None
    assert made.pod.containers[0].limits == {"cpu": "1000m"}
