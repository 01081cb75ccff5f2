"""Pods joined with their cgroups."""

import pytest

from koord.api.pod import ContainerStatus, Pod
from koord.api.qos import KubeQoS, QoSClass
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.cgroups.tree import ContainerDir, PodDir
from koordlet.statesinformer.podmeta import ContainerMeta, discovered_pod, join_pod, main_layout

SYSTEMD = Layout.default(Driver.SYSTEMD)
CGROUPFS = Layout.default(Driver.CGROUPFS)
KIND = Layout(Driver.SYSTEMD, "kubelet.slice/kubelet-kubepods.slice")
HEX = "0123456789abcdef" * 4
UID = "7712555c-ce62-454a-9e18-9ff0217b8941"


def tree_with(layout: Layout, *children: str, uid: str = UID) -> dict[str, PodDir]:
    cgroup = layout.pod_dir(KubeQoS.BURSTABLE, uid)
    containers = tuple(ContainerDir(f"{cgroup}/{child}", 7.0) for child in children)
    return {uid: PodDir(uid, KubeQoS.BURSTABLE, layout, cgroup, containers, 5.0)}


def known_pod(*container_ids: str, **fields: object) -> Pod:
    statuses = tuple(
        ContainerStatus(f"c{number}", container_id, running=True)
        for number, container_id in enumerate(container_ids)
    )
    return Pod("shop", "web-0", UID, qos=KubeQoS.BURSTABLE, statuses=statuses, **fields)


@pytest.mark.parametrize(
    ("layout", "directory", "name", "container_id"),
    [
        (SYSTEMD, f"cri-containerd-{HEX}.scope", "0123456789ab", f"containerd://{HEX}"),
        (SYSTEMD, f"docker-{HEX}.scope", "0123456789ab", f"docker://{HEX}"),
        (SYSTEMD, f"crio-{HEX}.scope", "0123456789ab", f"cri-o://{HEX}"),
        (SYSTEMD, "crio-99", "99", "cri-o://99"),
        (SYSTEMD, "libpod-77.scope", "libpod-77", "libpod-77"),
        (CGROUPFS, HEX, "0123456789ab", HEX),
        (CGROUPFS, f"crio-{HEX}", "0123456789ab", f"cri-o://{HEX}"),
        (CGROUPFS, "busy", "busy", "busy"),
    ],
)
def test_a_discovered_container_goes_by_its_id(
    layout: Layout, directory: str, name: str, container_id: str
) -> None:
    """As far as the directory's name shows it; long ids are shortened to what people read."""
    [pod] = tree_with(layout, directory).values()

    [container] = discovered_pod(pod).containers

    assert container == ContainerMeta(name, container_id, f"{pod.cgroup}/{directory}", 7.0)


def test_a_discovered_pod_is_honest_about_what_is_unknown() -> None:
    """Name is the UID, namespace says unknown, QoS comes from the path."""
    [pod] = tree_with(KIND).values()

    meta = discovered_pod(pod)

    assert (meta.pod.namespace, meta.pod.name, meta.uid) == ("unknown", UID, UID)
    assert (meta.kube_qos, meta.qos, meta.absent_at) == (KubeQoS.BURSTABLE, QoSClass.LS, 5.0)
    assert meta.cgroup == pod.cgroup
    assert not meta.pod.finished


@pytest.mark.parametrize(
    ("layout", "directory", "container_id"),
    [
        (SYSTEMD, f"cri-containerd-{HEX}.scope", f"containerd://{HEX}"),
        (KIND, f"cri-containerd-{HEX}.scope", f"containerd://{HEX}"),
        (SYSTEMD, f"crio-{HEX}.scope", f"cri-o://{HEX}"),
        (CGROUPFS, HEX, f"docker://{HEX}"),
        (CGROUPFS, f"crio-{HEX}", f"cri-o://{HEX}"),
    ],
)
def test_a_known_pod_finds_its_cgroups_by_ids(
    layout: Layout, directory: str, container_id: str
) -> None:
    """Whatever the driver, the nesting and the runtime; the sandbox is no container."""
    tree = tree_with(layout, directory, "sandbox")

    meta = join_pod(known_pod(container_id), tree, SYSTEMD)

    cgroup = tree[UID].cgroup
    assert (meta.cgroup, meta.absent_at) == (cgroup, 5.0)
    assert meta.containers == (ContainerMeta("c0", container_id, f"{cgroup}/{directory}", 7.0),)
    assert meta.sandbox == f"{cgroup}/sandbox"


@pytest.mark.parametrize(
    ("children", "ids", "sandbox"),
    [
        (["1", "pause"], ["containerd://1"], "pause"),
        (["pause"], ["containerd://1"], "pause"),
        (["1"], ["containerd://1"], ""),
        (["1", "2", "pause"], ["containerd://1"], ""),
        (["pause"], [""], ""),
        (["pause"], [], ""),
    ],
)
def test_the_sandbox_is_the_only_cgroup_without_a_container(
    children: list[str], ids: list[str], sandbox: str
) -> None:
    """Also while its containers have ended; not known as long as no container is."""
    tree = tree_with(CGROUPFS, *children)

    meta = join_pod(known_pod(*ids), tree, CGROUPFS)

    assert meta.sandbox == (f"{tree[UID].cgroup}/{sandbox}" if sandbox else "")


@pytest.mark.parametrize("container_id", ["", "containerd://", "containerd://gone", "nonsense"])
def test_a_status_without_cgroup_is_no_container(container_id: str) -> None:
    """Not created yet, ended, or malformed: the pod is measured all the same."""
    meta = join_pod(known_pod(container_id), tree_with(SYSTEMD, "cri-containerd-1.scope"), SYSTEMD)

    assert meta.containers == ()
    assert meta.cgroup


def test_two_statuses_with_one_id_are_one_container() -> None:
    """Otherwise its usage would count twice."""
    tree = tree_with(CGROUPFS, "1")

    meta = join_pod(known_pod("containerd://1", "containerd://1"), tree, CGROUPFS)

    assert [container.name for container in meta.containers] == ["c0"]


def test_a_running_init_container_counts() -> None:
    """Sidecars are init containers."""
    pod = Pod(
        "shop",
        "web-0",
        UID,
        qos=KubeQoS.BURSTABLE,
        init_statuses=(ContainerStatus("sidecar", "containerd://1", running=True),),
    )

    meta = join_pod(pod, tree_with(CGROUPFS, "1"), CGROUPFS)

    assert [container.name for container in meta.containers] == ["sidecar"]


@pytest.mark.parametrize(
    ("layout", "cgroup"),
    [
        (
            SYSTEMD,
            "kubepods.slice/kubepods-burstable.slice/"
            "kubepods-burstable-pod7712555c_ce62_454a_9e18_9ff0217b8941.slice",
        ),
        (CGROUPFS, f"kubepods/burstable/pod{UID}"),
    ],
)
def test_a_pod_without_cgroup_is_listed_with_the_path_it_would_have(
    layout: Layout, cgroup: str
) -> None:
    """It may not have started yet, or be finished: reports count it until its samples are old."""
    meta = join_pod(known_pod("containerd://1", phase="Succeeded"), {}, layout)

    assert (meta.cgroup, meta.containers, meta.absent_at) == (cgroup, (), None)
    assert meta.pod.finished


def test_a_static_pod_has_its_cgroup_under_the_hash_of_its_manifest() -> None:
    """The API server gives its mirror another UID."""
    tree = tree_with(SYSTEMD, "cri-containerd-1.scope", uid="6b3df5d1")
    pod = known_pod("containerd://1", annotations={"kubernetes.io/config.hash": "6b3df5d1"})

    meta = join_pod(pod, tree, SYSTEMD)

    assert meta.uid == UID
    assert meta.cgroup == tree["6b3df5d1"].cgroup
    assert len(meta.containers) == 1


@pytest.mark.parametrize(
    ("layouts", "wanted"),
    [
        ([], CGROUPFS),
        ([KIND], KIND),
        ([KIND, CGROUPFS], CGROUPFS),
        ([CGROUPFS, SYSTEMD], SYSTEMD),
    ],
)
def test_the_main_layout_is_that_of_the_host_itself(layouts: list[Layout], wanted: Layout) -> None:
    """Of both drivers systemd, as Koordinator decides; clusters nested in containers come last."""
    assert main_layout(layouts, CGROUPFS) == wanted
