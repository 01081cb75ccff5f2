"""koordlet as its DaemonSet's pod on the real node."""

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request

from tests.support.programs import KUBERNETES, REPOSITORY
from tests.support.real_cluster.access import NODE, SERVER
from tests.support.real_cluster.client import (
    BEST_EFFORT,
    SYSTEM,
    Cluster,
    best_effort,
    kernel,
    quota,
)
from tests.support.real_cluster.installation import Installation, slo_config
from tests.support.real_runtime.nri_node import BATCH, BATCH_PODS


def test_it_reports_the_pods_of_the_kubelet(cluster: Cluster, squeezed: None) -> None:
    """By name, with what they use, in the NodeMetric of its node."""

    def usage() -> str:
        pods = cluster.report().get("podsMetric") or []
        found = {each["name"]: each["podUsage"]["resources"] for each in pods}
        return str(found.get("crunch", {}).get("cpu", ""))

    assert cluster.until(usage, "the report has the pod") not in ("0", "0m")


def test_a_best_effort_pod_is_squeezed_and_restored_at_kubectl_delete(
    cluster: Cluster, installed: Installation, squeezed: None
) -> None:
    """When the DaemonSet's pod ends, the kernel has what the kubelet wrote."""
    cluster.kubectl("-n", SYSTEM, "delete", "daemonset", "koordlet")
    cluster.until(lambda: not cluster.pods("koordlet", SYSTEM), "the agent is gone")
    cluster.until(lambda: quota() == -1, "the quota is restored")

    installed.apply()

    cluster.until(lambda: quota() > 0, "the new agent has set a quota")


def test_the_strategy_is_switched_off_by_the_configmap(cluster: Cluster, squeezed: None) -> None:
    """Then the quota is restored, while the agent runs on."""
    try:
        cluster.apply(slo_config(squeeze=False))
        cluster.until(lambda: quota() == -1, "the quota is restored")
    finally:
        cluster.apply(slo_config(squeeze=True))


def test_a_container_begins_with_its_settings_over_nri(
    cluster: Cluster, installed: Installation, shop: None
) -> None:
    """Its program finds the quota of its batch resources when it begins, and says so in its log."""
    pod = best_effort("batch", **{BATCH: json.dumps(BATCH_PODS)})
    pod["spec"]["containers"][0]["args"] = []
    cluster.apply(pod)
    log = cluster.until(
        lambda: cluster.kubectl("-n", "shop", "logs", "batch", check=False).partition("cpu_quota ")[
            2
        ],
        "the container has begun",
    )
    assert log.split()[0] == "200000"
    uid = cluster.find("pod", "batch", "-n", "shop")["metadata"]["uid"]
    assert kernel("cpu", f"{BEST_EFFORT}/pod{uid}", "cpu.shares") == "1024"


def test_kubectl_koordlet_asks_the_agent_of_a_node(cluster: Cluster, squeezed: None) -> None:
    """The plugin of kubectl finds the pod on the node and runs koordletctl in it."""
    path = f"{REPOSITORY / '.venv' / 'bin'}:{KUBERNETES.binary.parent}:{os.environ['PATH']}"
    command = ["kubectl", "koordlet", "status", NODE]
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"node        {NODE}" in done.stdout


def test_the_metric_of_another_node_cannot_be_forged(
    cluster: Cluster, installed: Installation, idle_nodes: list[str]
) -> None:
    """With the token of the pod on this node its own object can be written, and no other."""
    [pod] = cluster.pods("koordlet", SYSTEM)
    token = cluster.kubectl(
        "-n", SYSTEM, "create", "token", "koordlet", "--bound-object-kind=Pod",
        f"--bound-object-name={pod['metadata']['name']}",
        f"--bound-object-uid={pod['metadata']['uid']}",
    ).strip()  # fmt: skip

    def answer(node: str) -> tuple[int, str]:
        """What the API server says to a patch that changes nothing."""
        where = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
        request = urllib.request.Request(
            f"{SERVER}{where}/{node}/status",
            b"{}",
            {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
            },
            method="PATCH",
        )
        context = ssl.create_default_context(cafile=cluster.directory / "access" / "ca.crt")
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as found:
                return found.status, ""
        except urllib.error.HTTPError as err:
            return err.code, json.load(err)["message"]

    assert answer(NODE) == (200, "")
    status, message = answer(idle_nodes[0])
    assert status == 403
    assert f"koordlet on node {NODE} may write nodemetrics of this node only" in message
