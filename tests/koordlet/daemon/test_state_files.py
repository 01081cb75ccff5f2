"""Pods, node and NodeSLO from files, seen from the outside of a whole daemon."""

import json

import pytest

from koord.api.qos import KubeQoS


def pod(uid, name, **more):
    """A running pod of a kubelet, with one container whose cgroup is containers/c1."""
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": uid, **more.pop("metadata", {})},
        "spec": {"containers": [{"name": "main"}], **more.pop("spec", {})},
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [
                {"name": "main", "containerID": "containerd://c1", "state": {"running": {}}}
            ],
            **more,
        },
    }


def pod_list(*pods):
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "items": pods})


async def names(daemon):
    """The pods that the latest report is about."""
    return sorted(p["name"] for p in (await daemon.node_metric())["status"]["podsMetric"])


@pytest.fixture
def pods_file(tmp_path):
    return tmp_path / "pods.json"


async def test_the_pods_of_a_file_are_joined_with_their_cgroups(daemon, pods_file):
    """Names, priority and QoS are the file's, figures the kernel's; other pods are not exported.

    A pod that was added to the file is reported within a few seconds, one taken off is not.
    """
    daemon.busy_pod("u1", cores=0.25)
    daemon.busy_pod("u2", cores=0.5)
    first = pod("u1", "web", metadata={"labels": {"koordinator.sh/qosClass": "LS"}})
    pods_file.write_text(pod_list(first))
    await daemon.start(f"--pods-file={pods_file}", "--report-interval=1s")
    await daemon.seconds(3)

    [usage] = (await daemon.node_metric())["status"]["podsMetric"]
    assert (usage["namespace"], usage["name"], usage["qos"]) == ("shop", "web", "LS")
    assert usage["podUsage"]["resources"]["cpu"] == "250m"
    [row] = (await daemon.ctl("top"))["pods"]
    assert row["name"] == "shop/web"

    pods_file.write_text(pod_list(first, pod("u2", "db")))
    await daemon.seconds(4)
    assert await names(daemon) == ["db", "web"]

    pods_file.write_text(pod_list(pod("u2", "db")))
    await daemon.seconds(3)
    assert await names(daemon) == ["db"]


async def test_a_half_written_list_is_not_believed(daemon, pods_file):
    """Cut anywhere, it keeps the pods of the last good one; so does garbage."""
    daemon.busy_pod("u1")
    daemon.busy_pod("u2")
    whole = pod_list(pod("u1", "web"), pod("u2", "db"))
    pods_file.write_text(whole)
    await daemon.start(f"--pods-file={pods_file}", "--report-interval=1s")
    await daemon.seconds(3)

    for end in (0, len(whole) // 2, len(whole) - 1):
        pods_file.write_text(whole[:end])
        await daemon.seconds(2)
        status, reason = (await daemon.problems())["source pods"]
        assert status == "degraded"
        assert str(pods_file) in reason
        assert await names(daemon) == ["db", "web"]
    assert (await daemon.get("/healthz"))[0] == 200

    pods_file.write_text(whole)
    await daemon.seconds(2)
    assert await daemon.get("/healthz") == (200, "ok")
    assert len(daemon.events("source.recovered")) == 1


async def test_one_bad_pod_costs_only_itself(daemon, pods_file):
    """Duplicated, of a wrong type or without a name: /healthz counts them, the others are there."""
    daemon.busy_pod("u1")
    daemon.busy_pod("u2")
    bad = [pod("u2", "twin"), {"metadata": {"uid": 7}}, {"metadata": {"uid": "u3"}}, "pod", None]
    pods_file.write_text(pod_list(pod("u1", "web"), pod("u2", "db"), *bad))
    await daemon.start(f"--pods-file={pods_file}", "--report-interval=1s")
    await daemon.seconds(3)

    assert await names(daemon) == ["db", "web"]
    _, reason = (await daemon.problems())["source pods"]
    assert "5 pods left out" in reason


async def test_a_list_that_is_not_there_yet_is_waited_for(daemon, pods_file):
    """Nothing is reported meanwhile, as every pod would be missing from it."""
    daemon.busy_pod("u1")
    await daemon.start(f"--pods-file={pods_file}", "--report-interval=1s")
    await daemon.seconds(3)
    status, text = await daemon.get("/nodemetric")
    assert (status, "not known yet" in text) == (503, True)
    assert (await daemon.get("/readyz"))[0] == 503
    assert (await daemon.get("/livez"))[0] == 200

    pods_file.write_text(pod_list(pod("u1", "web")))
    await daemon.seconds(4)
    assert await names(daemon) == ["web"]
    assert (await daemon.get("/readyz"))[0] == 200


async def test_yaml_and_finished_pods(daemon, pods_file):
    """A finished pod is known, but neither sampled nor reported."""
    daemon.busy_pod("u1")
    daemon.busy_pod("u2")
    pods_file.write_text(
        "items:\n"
        "- metadata: {namespace: shop, name: web, uid: u1}\n"
        "  spec: {containers: []}\n"
        "  status: {phase: Running, qosClass: Burstable}\n"
        "- metadata: {namespace: shop, name: job, uid: u2}\n"
        "  spec: {containers: []}\n"
        "  status: {phase: Succeeded, qosClass: Burstable}\n"
    )
    await daemon.start(f"--pods-file={pods_file}", "--report-interval=1s")
    await daemon.seconds(3)

    assert await names(daemon) == ["web"]
    assert len(daemon.states.pods()) == 2


async def test_discovered_pods_come_and_go_with_their_cgroups(daemon):
    """Without a file; a pod that ended leaves the report, and nothing is left of it on /metrics."""
    daemon.busy_pod("u1", KubeQoS.GUARANTEED)
    await daemon.start("--report-interval=1s")
    await daemon.seconds(3)
    assert await names(daemon) == ["u1"]

    daemon.host.add_pod("u2", KubeQoS.BEST_EFFORT)
    await daemon.seconds(3)
    assert await names(daemon) == ["u1", "u2"]

    del daemon.each_second[1:]
    daemon.host.remove(daemon.host.layout.pod_dir(KubeQoS.GUARANTEED, "u1"))
    await daemon.seconds(3)
    assert await names(daemon) == ["u2"]
    assert 'u1"' not in (await daemon.get("/metrics"))[1]
    assert await daemon.get("/healthz") == (200, "ok")


async def test_the_node_of_a_file(daemon, tmp_path):
    """Labels, annotations and capacity are the file's; a broken file leaves them as they were."""
    path = tmp_path / "node.yaml"
    text = (
        "metadata: {{name: n1, labels: {{zone: {zone}}}}}\nstatus: {{allocatable: {{cpu: '8'}}}}\n"
    )
    path.write_text(text.format(zone="a"))
    await daemon.start(f"--node-file={path}")
    await daemon.seconds(1)
    assert daemon.states.node().labels == {"zone": "a"}
    assert daemon.states.node().allocatable["cpu"] == "8"

    path.write_text(text.format(zone="b"))
    await daemon.seconds(2)
    assert daemon.states.node().labels == {"zone": "b"}

    path.write_text("metadata: [")
    await daemon.seconds(2)
    assert daemon.states.node().labels == {"zone": "b"}
    _, reason = (await daemon.problems())["source node"]
    assert str(path) in reason


async def test_this_host_is_the_node_without_a_file(daemon):
    """Its name, CPUs and memory."""
    await daemon.start()
    await daemon.seconds(1)

    node = daemon.states.node()
    assert (node.name, node.capacity) == ("n1", {"cpu": "4", "memory": f"{16 * 2**20}Ki"})


async def test_host_applications_of_a_nodeslo_file(daemon, tmp_path):
    """They are measured from when they are named until they no longer are."""
    path = tmp_path / "nodeslo.json"
    path.write_text("{}")
    application = daemon.host.group("system.slice/nginx")
    daemon.each_second.append(lambda: application.use_cpu(0.75))
    await daemon.start(f"--nodeslo-file={path}", "--report-interval=1s")
    await daemon.seconds(2)
    assert "hostApplicationMetric" not in (await daemon.node_metric())["status"]

    wanted = {"name": "nginx", "priority": "koord-prod", "qos": "LS"}
    where = {"base": "CgroupRoot", "parentDir": "system.slice", "relativePath": "nginx"}
    spec = {"hostApplications": [{**wanted, "cgroupPath": where}]}
    path.write_text(json.dumps({"spec": spec}))
    await daemon.seconds(4)
    [usage] = (await daemon.node_metric())["status"]["hostApplicationMetric"]
    assert (usage["name"], usage["priority"], usage["qos"]) == ("nginx", "koord-prod", "LS")
    assert usage["usage"]["resources"]["cpu"] == "750m"

    path.write_text(json.dumps({"spec": {"hostApplications": [{"name": "../x"}]}}))
    await daemon.seconds(2)
    assert 'without ".."' in (await daemon.problems())["source nodeslo"][1]
    assert "hostApplicationMetric" in (await daemon.node_metric())["status"]
