"""What the tests install in the cluster: the three daemons, from their manifests and images."""

import json
from pathlib import Path
from typing import Any

import yaml
from clusterclient import SHOP, SYSTEM, Cluster
from overlay import DEPLOY, overlay
from treeimages import NAMES, REGISTRY, TAGS

COMPONENTS = (
    "crds", "manager-duties", "pods-from-api-server", "events", "evictions", "nri",
    "networkpolicy", "descheduler", "descheduler/crds", "descheduler/networkpolicy", "scheduler",
    "scheduler/networkpolicy",
)  # fmt: skip
WORKLOADS = ("daemonset/koordlet", "deployment/koord-descheduler", "deployment/koord-scheduler")
INTERVAL = 30  # seconds between reports, the least that is taken


class Installation:
    """What `kubectl apply -k` of a user's directory installs: all three daemons, which act."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self.directory = directory

    def apply(self, tag: str = TAGS[0], *, high: float = 100.0) -> None:
        """Install it, or change what is installed, with the images of that tag.

        high: from how many percent of CPU a node is hot, for koord-descheduler's next start.
        """
        config = shipped_config("descheduler")
        config.pop("dryRun")
        config["deschedulingInterval"] = "2s"
        config["profiles"][0]["pluginConfig"][0]["args"] = low_node_load(high)
        overlay(
            self.directory,
            *COMPONENTS,
            images=[
                {"name": each, "newName": f"{REGISTRY}/{each}", "newTag": tag} for each in NAMES
            ],
            patches=[{"patch": json.dumps(config_map("koord-descheduler", config))}],
        )
        self._cluster.kubectl("apply", "-k", self.directory)
        self._cluster.rolled_out(*WORKLOADS)


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
        "metadata": {"name": daemon, "namespace": SYSTEM},
        "data": {f"{daemon}.config": yaml.safe_dump(config)},
    }


def slo_config(*, squeeze: bool) -> dict[str, Any]:
    """The ConfigMap that koord-manager would read, and without it each agent."""
    data = {
        "colocation-config": {
            "enable": True,
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
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {name: json.dumps(value) for name, value in data.items()},
    }
