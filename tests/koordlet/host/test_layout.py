"""Names of pods' cgroups, in both directions."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qos import KubeQoS
from koordlet.host.cgroups.layout import (
    Driver,
    Layout,
    default_host_app_dir,
    host_app_dir,
    qos_of,
)

SYSTEMD = Layout.default(Driver.SYSTEMD)
CGROUPFS = Layout.default(Driver.CGROUPFS)
KIND = Layout(Driver.SYSTEMD, "kubelet.slice/kubelet-kubepods.slice")
UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
UID_ = UID.replace("-", "_")

layouts = st.sampled_from([SYSTEMD, CGROUPFS, KIND, Layout(Driver.CGROUPFS, "kubelet/kubepods")])
uids = st.uuids().map(str)


@pytest.mark.parametrize(
    ("layout", "qos", "uid", "path"),
    [
        (
            SYSTEMD,
            KubeQoS.BURSTABLE,
            UID,
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice",
        ),
        (SYSTEMD, KubeQoS.GUARANTEED, UID, f"kubepods.slice/kubepods-pod{UID_}.slice"),
        (SYSTEMD, KubeQoS.GUARANTEED, "uid1", "kubepods.slice/kubepods-poduid1.slice"),
        (
            SYSTEMD,
            KubeQoS.BEST_EFFORT,
            "1-2",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice",
        ),
        (CGROUPFS, KubeQoS.BEST_EFFORT, "111-222-333", "kubepods/besteffort/pod111-222-333"),
        (CGROUPFS, KubeQoS.GUARANTEED, "a", "kubepods/poda"),
        (
            KIND,
            KubeQoS.BURSTABLE,
            "1-2",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            "/kubelet-kubepods-burstable-pod1_2.slice",
        ),
    ],
)
def test_pod_dir(layout, qos, uid, path):
    """The path of a pod is root, QoS class and pod, as the kubelet makes them."""
    assert layout.pod_dir(qos, uid) == path


@pytest.mark.parametrize(
    ("container_id", "scope"),
    [
        ("docker://H", "docker-H.scope"),
        ("containerd://H", "cri-containerd-H.scope"),
        ("pouch://H", "pouch-H.scope"),
        ("cri-o://H", "crio-H.scope"),
    ],
)
def test_container_names(container_id, scope):
    """systemd names have the runtime, cgroupfs names are the id alone."""
    assert SYSTEMD.container_name(container_id) == scope
    assert CGROUPFS.container_name(container_id) == "H"
    assert SYSTEMD.container_dir("pod", container_id) == f"pod/{scope}"
    assert str(SYSTEMD.parse_container_dir(scope)) == container_id


@pytest.mark.parametrize("container_id", ["H", "", "://H", "lxc://H", "docker://"])
def test_a_container_of_unknown_runtime_is_refused(container_id):
    """An id without runtime, or with an unknown one, has no cgroup name."""
    with pytest.raises(ValueError, match="wanted <runtime>://<id>"):
        SYSTEMD.container_name(container_id)


@pytest.mark.parametrize(
    ("layout", "name", "pod"),
    [
        (SYSTEMD, "kubepods-besteffort-pod1_2.slice", "1_2"),
        (SYSTEMD, "kubepods-burstable-pod1_2.slice", "1_2"),
        (SYSTEMD, "kubepods-pod1_2.slice", "1_2"),
        (KIND, "kubelet-kubepods-pod1_2.slice", "1_2"),
        (CGROUPFS, "pod1-2", "1-2"),
    ],
)
def test_pod_ids_are_read_back(layout, name, pod):
    """The last part of a pod's path holds its id; systemd's keeps the underscores."""
    assert layout.parse_pod_dir(name) == pod
    assert layout.pod_uid(name) == "1-2"


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (SYSTEMD, "pod1-2"),
        (SYSTEMD, "kubepods-besteffort.slice"),
        (SYSTEMD, "kubepods-pod.slice"),
        (SYSTEMD, "kubepods-pod1"),
        (KIND, "kubepods-pod1_2.slice"),
        (CGROUPFS, "besteffort"),
        (CGROUPFS, "pod"),
        (CGROUPFS, ""),
    ],
)
def test_other_directories_are_no_pods(layout, name):
    """What does not have a pod's name is refused, not guessed."""
    with pytest.raises(ValueError, match="wanted the cgroup of a pod"):
        layout.parse_pod_dir(name)


@pytest.mark.parametrize(
    ("layout", "name", "container"),
    [
        (SYSTEMD, "crio-99", "99"),
        (SYSTEMD, "crio-99.scope", "99"),
        (SYSTEMD, "cri-containerd-ab.scope", "ab"),
        (CGROUPFS, "docker-1.scope", "docker-1.scope"),
    ],
)
def test_container_ids_are_read_back(layout, name, container):
    """CRI-O's sandbox has no suffix; with cgroupfs any name may be a container."""
    assert layout.parse_container_dir(name).id == container


@pytest.mark.parametrize("name", ["docker-1", "crio-conmon-1.scope", "x.scope", "init.scope", ""])
def test_other_directories_are_no_containers(name):
    """CRI-O's monitor process has a scope, but is no container."""
    with pytest.raises(ValueError, match="wanted the cgroup of a container"):
        SYSTEMD.parse_container_dir(name)


@pytest.mark.parametrize(
    ("children", "containers", "sandbox"),
    [
        (["S", "C1"], ["containerd://C1"], "containerd://S"),
        (["S", "I1", "C1"], ["containerd://I1", "containerd://C1"], "containerd://S"),
        (["S"], [], ""),
    ],
)
def test_the_sandbox_is_the_child_that_is_no_container(children, containers, sandbox):
    """Pods do not list their sandbox; it is found by leaving out what they list."""
    assert CGROUPFS.sandbox_id(children, containers) == sandbox


def test_the_sandbox_of_crio_has_no_scope():
    """Among CRI-O's directories only one without ".scope" can be the sandbox."""
    children = ["crio-S", "crio-C1.scope", "crio-conmon-C1.scope"]

    assert SYSTEMD.sandbox_id(children, ["cri-o://C1"]) == "cri-o://S"


@pytest.mark.parametrize("children", [["S", "C_new"], ["C_old"], []])
def test_an_ambiguous_sandbox_is_refused(children):
    """With none or two candidates the response would be a guess."""
    with pytest.raises(ValueError, match="wanted one sandbox"):
        CGROUPFS.sandbox_id(children, ["containerd://C_old"])


@pytest.mark.parametrize(
    ("path", "qos"),
    [
        ("kubepods/besteffort/poda", KubeQoS.BEST_EFFORT),
        ("kubepods.slice/kubepods-burstable.slice", KubeQoS.BURSTABLE),
        ("kubepods/poda", KubeQoS.GUARANTEED),
    ],
)
def test_the_path_gives_the_qos_class(path, qos):
    """A pod without API object still has a class."""
    assert qos_of(path) is qos


@pytest.mark.parametrize(
    ("qos", "path"),
    [
        ("LSE", "host-latency-sensitive/a"),
        ("LSR", "host-latency-sensitive/a"),
        ("LS", "host-latency-sensitive/a"),
        ("BE", "host-best-effort/a"),
        ("SYSTEM", "a"),
        ("", "a"),
    ],
)
def test_a_host_application_without_path(qos, path):
    """Its QoS class decides where it is."""
    assert default_host_app_dir("a", qos) == path


@pytest.mark.parametrize(
    ("base", "parent", "relative", "path"),
    [
        ("CgroupRoot", "host-latency-sensitive/", "nginx/", "host-latency-sensitive/nginx"),
        ("", "a", "b", "a/b"),
        ("Nonsense", "", "b", "b"),
        ("Kubepods", "", "b", "kubepods.slice/b"),
        ("KubepodsBurstable", "", "b", "kubepods.slice/kubepods-burstable.slice/b"),
        ("KubepodsBesteffort", "", "yarn", "kubepods.slice/kubepods-besteffort.slice/yarn"),
    ],
)
def test_a_host_application_with_path(base, parent, relative, path):
    """Parts are joined below the base, and slashes cleaned."""
    assert host_app_dir(SYSTEMD, base, parent, relative) == path


@pytest.mark.parametrize("relative", ["../x", "a/../../x", ".."])
def test_a_host_application_stays_below_its_base(relative):
    """A NodeSLO cannot make the agent look outside of the cgroup tree."""
    with pytest.raises(ValueError, match="without"):
        host_app_dir(SYSTEMD, "CgroupRoot", "", relative)
    with pytest.raises(ValueError, match="without"):
        default_host_app_dir(relative, "LS")


@given(layouts, st.sampled_from(KubeQoS), uids)
def test_every_pod_path_is_read_back(layout, qos, uid):
    """Naming and parsing are inverse, for every driver, class and uid."""
    path = layout.pod_dir(qos, uid)

    assert path.startswith(layout.root + "/")
    assert layout.pod_uid(path.rpartition("/")[2]) == uid
    assert qos_of(path) is qos


@given(layouts, st.text(max_size=40))
def test_any_directory_name_is_a_pod_or_a_value_error(layout, name):
    """Foreign directories below kubepods never crash the scan."""
    with suppress(ValueError):
        assert layout.parse_pod_dir(name)
        assert layout.parse_container_dir(name).id
