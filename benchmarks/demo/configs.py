"""Configurations of the demo: those of a cluster, with short times."""

from typing import Any

from benchmarks.demo.agents import PORT
from benchmarks.demo.world import SCHEDULER

Json = dict[str, Any]

LOW, HIGH = 0.30, 0.55  # of a node's CPU
_DESCHEDULER = "descheduler/v1alpha2"
_SCHEDULER = "kubescheduler.config.k8s.io/v1"


def descheduler_config(kubeconfig: str) -> Json:
    """LowNodeLoad, whose pods are evicted at once instead of by a Reservation."""
    load = {
        "highThresholds": {"cpu": round(HIGH * 100)},
        "lowThresholds": {"cpu": round(LOW * 100)},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
    }
    migration = {
        "evictionPolicy": "Eviction",
        "defaultJobMode": "EvictDirectly",
        "maxMigratingPerWorkload": 2,
        "maxUnavailablePerWorkload": 2,
        "objectLimiters": {"workload": {"duration": "1s"}},  # 5 minutes in a cluster
    }
    args = {"LowNodeLoad": load, "MigrationController": migration}
    return {
        "apiVersion": _DESCHEDULER,
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "3s",
        "evictionLedger": {"spacing": "3s", "settleTime": "5s"},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig},
        "healthzBindAddress": "127.0.0.1:0",
        "metricsBindAddress": "127.0.0.1:0",
        "profiles": [
            {
                "name": "demo",
                "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                "pluginConfig": [_args(name, _DESCHEDULER, one) for name, one in args.items()],
            }
        ],
    }


def scheduler_config(kubeconfig: str) -> Json:
    """The default plugins, LoadAwareScheduling and NetworkTraffic."""
    load = {
        "usageThresholds": {"cpu": round(HIGH * 100) - 5},
        "estimatedScalingFactors": {"cpu": 100, "memory": 100},
    }
    traffic = {
        "agentAddress": f"http://{{address}}:{PORT}/metrics",
        "interval": "2s",
        "scoring": "capacity",
    }
    args = {"LoadAwareScheduling": load, "NetworkTraffic": traffic}
    return {
        "apiVersion": _SCHEDULER,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig},
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "plugins": {
                    "multiPoint": {
                        "enabled": [
                            {"name": "LoadAwareScheduling", "weight": 3},
                            {"name": "NetworkTraffic", "weight": 3},
                        ]
                    }
                },
                "pluginConfig": [_args(name, _SCHEDULER, one) for name, one in args.items()],
            }
        ],
    }


def _args(name: str, version: str, fields: Json) -> Json:
    return {"name": name, "args": {"apiVersion": version, "kind": f"{name}Args", **fields}}
