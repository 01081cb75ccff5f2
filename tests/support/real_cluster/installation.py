"""What the tests install in the cluster: the daemons, from their manifests and images."""

import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.support.deploy.overlay import DEPLOY, overlay
from tests.support.image.treeimages import NAMES, REGISTRY, TAGS
from tests.support.programs import REPOSITORY
from tests.support.real_cluster.audit_log import longest_gap
from tests.support.real_cluster.client import SHOP, SYSTEM, Cluster, quota
from tests.support.real_cluster.own_stat import own_stat_patch
from tests.support.real_cluster.readme import shell
from tests.support.real_cluster.services import OWN_STAT

COMPONENTS = (
    "crds", "podmonitor", "manager-duties", "pods-from-api-server", "events", "evictions", "nri",
    "networkpolicy", "descheduler", "descheduler/crds", "descheduler/networkpolicy", "scheduler",
    "scheduler/networkpolicy",
)  # fmt: skip
# The values of the chart that have the same components.
VALUES = (
    "managerDuties",
    "podsFromApiServer",
    "events",
    "evictions",
    "nri",
    "networkPolicy",
    "podMonitor",
)
WORKLOADS = ("daemonset/koordlet", "deployment/koord-descheduler", "deployment/koord-scheduler")
MANAGER = "deployment/koord-manager"  # in the namespace CONFIG
REMOVING = 3  # commands of docs/manager.md remove it
INTERVAL = 30  # seconds between reports, the least that is taken
CONFIG = "koordinator-system"  # the namespace of the ConfigMap, and of koord-manager
# What an operator brings that README.md supposes to be there.
POD_MONITOR = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True,
                }},
            },
        ],
    },
}  # fmt: skip


def images(tag: str) -> list[dict[str, str]]:
    """The images of a kustomization.yaml, with that tag."""
    return [{"name": each, "newName": f"{REGISTRY}/{each}", "newTag": tag} for each in NAMES]


class Installed(Protocol):
    """The three daemons in the cluster, which act."""

    def apply(self, tag: str = TAGS[0], *, high: float = 100.0) -> None:
        """Install them, or change what is installed, with the images of that tag.

        high: from how many percent of CPU a node is hot, for koord-descheduler's next start.
        """


class Installation:
    """What `kubectl apply -k` of a user's directory installs: all three daemons, which act."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        components: Sequence[str] = (),
        patches: Sequence[dict[str, Any]] = (),
    ) -> None:
        """components: of deploy/, further ones. patches: laid over the objects of deploy/."""
        self._cluster = cluster
        self._own_stat = own_stat_patch(cluster.directory / OWN_STAT)
        self._components = (*COMPONENTS, *components)
        self._patches = [{"patch": json.dumps(each)} for each in patches]
        self.directory = directory

    def apply(self, tag: str = TAGS[0], *, high: float = 100.0) -> None:
        """See Installed."""
        self.directory.mkdir(exist_ok=True)
        overlay(
            self.directory,
            *self._components,
            images=images(tag),
            patches=[
                *self._patches,
                {"patch": json.dumps(config_map("koord-descheduler", descheduler_config(high)))},
                {"target": {"kind": "DaemonSet"}, "patch": json.dumps(self._own_stat)},
            ],
        )
        self._cluster.kubectl("apply", "-k", self.directory)
        self._cluster.rolled_out(*WORKLOADS)


class Manager:
    """koord-manager, as `kubectl apply -k` of another directory of the user's installs it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self.directory = directory

    def apply(self, tag: str = TAGS[0]) -> None:
        """Install it, or change its image to that of a tag; return when one replica works."""
        self.directory.mkdir(exist_ok=True)
        shipped = Path(os.path.relpath(DEPLOY, self.directory))
        overlay(
            self.directory,
            *(f"manager/{each}" for each in ("crds", "podmonitor", "networkpolicy")),
            resources=[str(shipped / "manager")],
            images=images(tag),
        )
        self._cluster.kubectl("apply", "-k", self.directory)
        self._cluster.rolled_out(MANAGER, namespace=CONFIG)
        manager_works(self._cluster, tag)

    def delete(self) -> None:
        """Remove it and what it has made, by the commands of docs/manager.md.

        Its namespace goes with it, so we make it again, without the ConfigMap.
        """
        script = "\n".join(removal()).replace("deploy/manager", str(self.directory))
        shell(script, self.directory)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CONFIG}}
        self._cluster.apply(namespace)


def removal() -> list[str]:
    """Return the commands of docs/manager.md that remove it; the first is of its manifests."""
    text = (REPOSITORY / "docs" / "manager.md").read_text()
    commands = re.findall(r"^kubectl (?:delete|annotate) .*$", text, re.MULTILINE)
    assert len(commands) == REMOVING
    return commands


def manager_works(cluster: Cluster, tag: str) -> None:
    """Return when a replica with the image of that tag holds the Lease."""

    def works() -> bool:
        pods = cluster.pods("koord-manager", CONFIG)
        images = {each["metadata"]["name"]: each["spec"]["containers"][0]["image"] for each in pods}
        return images.get(cluster.leader("koord-manager"), "").endswith(f":{tag}")

    cluster.until(works, f"a replica of the version {tag} holds the Lease")


class Release:
    """What `helm upgrade` makes of the release that is there."""

    def __init__(self, cluster: Cluster, checkout: Path) -> None:
        self._cluster = cluster
        self._checkout = checkout
        self.since = datetime.now(UTC)

    def apply(self, tag: str = TAGS[0], *, high: float = 100.0) -> None:
        """See Installed."""
        values = {
            "koordlet": {"components": dict.fromkeys(VALUES, True)},
            "descheduler": {
                "enabled": True,
                "components": {"networkPolicy": True},
                "config": yaml.safe_dump(descheduler_config(high)),
            },
            "scheduler": {"enabled": True, "components": {"networkPolicy": True}},
        }
        for daemon, of_daemon in values.items():
            name = daemon if daemon == "koordlet" else f"koord-{daemon}"
            of_daemon["image"] = {"repository": f"{REGISTRY}/{name}", "tag": tag}
        self._upgrade(values)
        self._cluster.rolled_out(*WORKLOADS)

    def apply_manager(self, tag: str = TAGS[0]) -> None:
        """Have koord-manager in it, with the image of that tag; as Manager."""
        values = {
            "enabled": True,
            "createNamespace": False,
            "components": {"networkPolicy": True, "podMonitor": True},
            "image": {"repository": f"{REGISTRY}/koord-manager", "tag": tag},
        }
        self._upgrade({"manager": values})
        self._cluster.rolled_out(MANAGER, namespace=CONFIG)
        manager_works(self._cluster, tag)

    def remove_manager(self) -> None:
        """Have no koord-manager in it."""
        self._upgrade({"manager": {"enabled": False}})
        self._cluster.until(
            lambda: not self._cluster.pods("koord-manager", CONFIG), "koord-manager is gone"
        )

    def _upgrade(self, values: dict[str, Any]) -> None:
        command = "helm upgrade koordlet deploy/chart --reset-then-reuse-values --values=-"
        shell(command, self._checkout, given=json.dumps(values))


def upgrade(cluster: Cluster, installed: Installed) -> None:
    """Give all daemons new images while pods are squeezed, and see that nothing is amiss."""
    cluster.until(cluster.report, "it reports")
    before = datetime.now(UTC)
    installed.apply(TAGS[1])
    for workload in WORKLOADS:
        pods = cluster.pods(workload.partition("/")[2], SYSTEM)
        images = {each["spec"]["containers"][0]["image"] for each in pods}
        assert {image.rpartition(":")[2] for image in images} == {TAGS[1]}
    done = datetime.now(UTC)
    cluster.until(
        lambda: datetime.fromisoformat(cluster.report()["updateTime"]) > done, "the new one reports"
    )
    cluster.until(lambda: quota() > 0, "best-effort pods are squeezed again")
    assert longest_gap(cluster, before) <= 2 * INTERVAL


def descheduler_config(high: float) -> dict[str, Any]:
    """That of koord-descheduler which acts, and at once."""
    config = shipped_config("descheduler")
    config.pop("dryRun")
    config["deschedulingInterval"] = "2s"
    config["profiles"][0]["pluginConfig"][0]["args"] = low_node_load(high)
    return config


def low_node_load(high: float) -> dict[str, Any]:
    """Args with which a node is hot at once, and one that has nothing to do is cool."""
    return {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "LowNodeLoadArgs",
        "highThresholds": {"cpu": high},
        "lowThresholds": {"cpu": high / 2},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
        "nodeFit": True,
        "evictableNamespaces": {"include": [SHOP]},
    }


def shipped_config(daemon: str) -> dict[str, Any]:
    """The configuration in deploy/, as koord-<daemon> reads it."""
    text = yaml.safe_load((DEPLOY / daemon / "config.yaml").read_text())["data"]
    found: dict[str, Any] = yaml.safe_load(text[f"koord-{daemon}.config"])
    return found


def config_map(daemon: str, config: dict[str, Any]) -> dict[str, Any]:
    """The ConfigMap of a daemon with another configuration."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{daemon}-config", "namespace": SYSTEM},
        "data": {f"{daemon}.config": yaml.safe_dump(config)},
    }


def slo_config(*, squeeze: bool, colocate: bool = True, reclaim: int = 100) -> dict[str, Any]:
    """The ConfigMap that koord-manager would read, and without it each agent.

    reclaim: percent of a node's CPU that prod and batch pods may use together.
    """
    data = {
        "colocation-config": {
            "enable": colocate,
            "cpuReclaimThresholdPercent": reclaim,
            "metricAggregateDurationSeconds": 60,
            "metricReportIntervalSeconds": INTERVAL,
        },
        "resource-threshold-config": {
            "clusterStrategy": {
                "enable": squeeze,
                "cpuSuppressThresholdPercent": 65,
                "cpuSuppressPolicy": "cfsQuota",
            }
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slo-controller-config", "namespace": CONFIG},
        "data": {name: json.dumps(value) for name, value in data.items()},
    }
