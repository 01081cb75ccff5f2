"""Koordinator's koordlet among the pods of a node, and all that is not it."""

from dataclasses import replace

import pytest

from koord.api.fields import Fields
from koord.api.pod import Container, ContainerStatus, Controller, Pod, parse_pod, reaches_host
from koordlet.rules.other_agent import image_of, image_repository, other_agent_pod

OURS = Controller("DaemonSet", "koordlet", "ds-ours")
THEIRS = Controller("DaemonSet", "koord-koordlet", "ds-theirs")
RUNNING = (ContainerStatus("koordlet", "containerd://1", running=True),)


def pod(name, controller, image, *, label=False, statuses=RUNNING, phase="Running"):
    return Pod(
        "koordinator-system",
        name,
        f"uid-{name}",
        labels={"koord-app": "koordlet"} if label else {},
        phase=phase,
        containers=(Container("koordlet", image=image),),
        statuses=statuses,
        controller=controller,
    )


OWN = pod("own", OURS, "registry/ours/koordlet:0.2")
OTHER = pod("other", THEIRS, "ghcr.io/koordinator-sh/koordlet:v1.6", label=True)
WAITING = (ContainerStatus("koordlet"),)


@pytest.mark.parametrize(
    "other",
    [
        OTHER,
        replace(OTHER, labels={}),  # by its DaemonSet's name
        replace(OTHER, controller=Controller("DaemonSet", "node-agent", "x")),  # by its label
        replace(OTHER, controller=Controller("DaemonSet", "koordlet", "x"), labels={}),  # Helm
        replace(OTHER, phase="Pending"),  # a container that runs acts, whatever the phase says
        replace(OTHER, namespace="kube-system"),
        replace(OTHER, namespace="koordlet-system"),
        replace(OTHER, namespace="qos", reaches_host=True),  # anywhere, if it can act
    ],
)
def test_the_other_agent(other):
    """Is found among all pods of the node."""
    web = Pod("shop", "web", "u1", containers=(Container("app", image="web:1"),), statuses=RUNNING)

    assert other_agent_pod([web, OWN, other], OWN.uid) is other


@pytest.mark.parametrize(
    "pods",
    [
        [OWN],
        [],
        [OTHER],  # our own pod is not known (yet): no word on who is who
        [OWN, pod("previous", OURS, "registry/ours/koordlet:0.1")],  # rolling update
        [OWN, pod("moved", OURS, "elsewhere/agent:0.1")],  # the same, with another registry
        [OWN, pod("recreated", THEIRS, "registry/ours/koordlet@sha256:1234")],  # DaemonSet anew
        [OWN, replace(OTHER, phase="Failed")],  # evicted
        [OWN, replace(OTHER, phase="Succeeded")],
        [OWN, replace(OTHER, statuses=WAITING)],  # crashed, and waits to be started again
        [OWN, replace(OTHER, statuses=())],
        [OWN, replace(OTHER, controller=None)],  # its image started by hand
        [OWN, replace(OTHER, controller=Controller("ReplicaSet", "koordlet", "x"))],
        [OWN, replace(OTHER, controller=Controller("DaemonSet", "web", "x"), labels={})],
        [OWN, replace(OTHER, namespace="shop")],  # a tenant's: names and labels are free
        [OWN, replace(OTHER, namespace="kube-system-of-mine")],
        [
            OWN,
            replace(OTHER, namespace="shop", controller=Controller("DaemonSet", "koordlet", "x")),
        ],
        [OWN, replace(OTHER, namespace="koordinator-system", labels={}, controller=None)],
        [OWN, pod("manager", Controller("ReplicaSet", "koord-manager", "x"), "koord-manager:1")],
    ],
)
def test_not_the_other_agent(pods):
    """Ours, what is left over of it, and pods that only look alike."""
    assert other_agent_pod(pods, OWN.uid) is None


def test_our_image_in_koordinators_daemonset():
    """Its manifest starts this daemon, too; its earlier pods there are Koordinator's no more."""
    own = pod("own", THEIRS, "registry/ours/koordlet:0.2", label=True)
    previous = pod("previous", THEIRS, "registry/ours/koordlet:0.1", label=True)

    assert other_agent_pod([previous, own], own.uid) is None


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("koordlet", "koordlet"),
        ("koordlet:v1", "koordlet"),
        ("registry:5000/koordlet", "registry:5000/koordlet"),
        ("registry:5000/koordlet:v1", "registry:5000/koordlet"),
        ("registry:5000/koordlet:v1@sha256:12:34", "registry:5000/koordlet"),
        ("ghcr.io/a/b@sha256:1234", "ghcr.io/a/b"),
        ("", ""),
    ],
)
def test_the_repository_of_an_image(image, name):
    """Without tag and digest; a registry's port is no tag."""
    assert image_repository(image) == name


def test_the_image_is_the_agent_s_not_a_sidecar_s():
    """Both may have the same proxy beside them."""
    proxy, agent = Container("proxy", image="proxy:1"), Container("koordlet", image="k:1")

    assert image_of(replace(OWN, containers=(proxy, agent))) == "k:1"
    assert image_of(replace(OWN, containers=(proxy,))) == "proxy:1"
    assert image_of(replace(OWN, containers=())) == ""


def test_the_daemonset_that_a_pod_shows():
    """The owner that controls it, of several."""
    found = parse_pod(
        {
            "metadata": {
                "name": "koordlet-x",
                "uid": "u",
                "ownerReferences": [
                    {"kind": "Node", "name": "n", "uid": "1"},
                    {"kind": "DaemonSet", "name": "koordlet", "uid": "2", "controller": True},
                ],
            },
            "spec": {"containers": [{"name": "koordlet", "image": "k:1"}]},
        }
    )

    assert found.controller == Controller("DaemonSet", "koordlet", "2")
    assert found.containers[0].image == "k:1"


def test_namespaces_are_configurable_beside_our_own():
    """Where this agent runs, its operator makes the pods."""
    own, neighbour = replace(OWN, namespace="agents"), replace(OTHER, namespace="agents")
    elsewhere = replace(OTHER, namespace="qos")

    assert other_agent_pod([own, neighbour], own.uid, ()) is neighbour
    assert other_agent_pod([own, OTHER, elsewhere], own.uid, ()) is None
    assert other_agent_pod([own, OTHER, elsewhere], own.uid, ("qos",)) is elsewhere


@pytest.mark.parametrize(
    ("spec", "reaches"),
    [
        ({}, False),
        ({"hostPID": True}, True),
        ({"hostNetwork": True, "hostIPC": True}, False),
        ({"containers": [{"name": "a"}, {"securityContext": {"privileged": True}}]}, True),
        ({"initContainers": [{"securityContext": {"privileged": True}}]}, True),
        ({"containers": [{"securityContext": {"privileged": False, "runAsUser": 0}}]}, False),
        ({"volumes": [{"emptyDir": {}}, {"hostPath": {"path": "/sys/fs/cgroup"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "/sys/fs/cgroup/kubepods/"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "/sys/fs"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "/sys//fs/./cgroup"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "/"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "//"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "/var/../sys/fs/cgroup"}}]}, True),
        ({"volumes": [{"hostPath": {"path": "/var/log"}}, {"hostPath": None}]}, False),
        ({"volumes": [{"hostPath": {"path": "/sys/fs/cgroups"}}]}, False),
        ({"volumes": [{"hostPath": {"path": "/sys/kernel"}}]}, False),
    ],
)  # fmt: skip
def test_pods_that_may_act_on_the_node(spec, reaches):
    """By the host's pids, privilege, or the host's cgroups."""
    assert reaches_host(Fields(spec, "spec")) is reaches
    if not spec.keys() & {"containers", "initContainers"}:
        metadata = {"name": "a", "uid": "u"}
        assert parse_pod({"metadata": metadata, "spec": spec}).reaches_host is reaches
