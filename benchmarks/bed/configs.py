"""Configurations of the programs under measurement, and the pods to be placed."""

from typing import Any

Json = dict[str, Any]

_SCHEDULER = "kubescheduler.config.k8s.io/v1"
_DESCHEDULER = "descheduler/v1alpha2"
TEMPLATES = ("basic", "spread", "affinity", "antiaffinity", "distinct")
"""Of pods: without rules, with one of them, or each with its own requests and labels."""
_SCORED = ("cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")


def scheduler_config(profile: str, kubeconfig: str, percent: int) -> Json:
    """profile koord: Koordinator's (config/manager/scheduler-config.yaml); kube: the default one.

    percent: percentageOfNodesToScore; 0: the program's default.
    """
    config: Json = {
        "apiVersion": _SCHEDULER,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": _connection(kubeconfig),
    }
    if percent:
        config["percentageOfNodesToScore"] = percent
    if profile == "koord":
        config["profiles"] = [_koord_profile()]
    return config


def descheduler_config(
    kubeconfig: str, interval: int, *, dry_run: bool, node_fit: bool, planner: str = ""
) -> Json:
    """LowNodeLoad alone, with MigrationController to evict; planner "": not said."""
    load = {
        "apiVersion": _DESCHEDULER,
        "kind": "LowNodeLoadArgs",
        "dryRun": dry_run,
        "nodeFit": node_fit,
        "lowThresholds": {"cpu": 30},
        "highThresholds": {"cpu": 70},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
        **({"planner": planner} if planner else {}),
    }
    migration = {
        "apiVersion": _DESCHEDULER,
        "kind": "MigrationControllerArgs",
        "evictionPolicy": "Eviction",
        "defaultJobMode": "EvictDirectly",
    }
    profile = {
        "name": "koord-descheduler",
        "plugins": {
            "deschedule": {"disabled": [{"name": "*"}]},
            "balance": _enabled("LowNodeLoad"),
            "evict": _only("MigrationController"),
        },
        "pluginConfig": [
            {"name": "MigrationController", "args": migration},
            {"name": "LowNodeLoad", "args": load},
        ],
    }
    return {
        "apiVersion": _DESCHEDULER,
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": f"{interval}s",
        "leaderElection": {"leaderElect": False},
        "clientConnection": _connection(kubeconfig),
        "healthzBindAddress": "127.0.0.1:0",
        "metricsBindAddress": "127.0.0.1:0",
        "profiles": [profile],
    }


def pending_pod(template: str, scheduler: str) -> Json:
    """The pod that the bed makes copies of, by one of TEMPLATES.

    {i}, {app} and {zone} are filled in by the bed.
    """
    distinct = template == "distinct"
    tolerations = [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        for key in ("not-ready", "unreachable")
    ]
    container = {
        "name": "c",
        "image": "registry.local/app:1",
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "requests": {
                "cpu": "{i}m" if distinct else "100m",
                "memory": "209{i}" if distinct else "200Mi",
            }
        },
    }
    spec: Json = {
        "schedulerName": scheduler,
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "serviceAccountName": "default",
        "priority": 0,
        "containers": [container],
        "tolerations": tolerations,
        **_rules(template),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "new-{i}",
            "namespace": "default",
            "labels": {"app": "new-{i}" if distinct else "new-{app}"},
        },
        "spec": spec,
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _rules(template: str) -> Json:
    own = {"labelSelector": {"matchLabels": {"app": "new-{app}"}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    zone, host = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
    match template:
        case "spread":
            soft = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", **own}
            constraints = [{**soft, "topologyKey": key} for key in (zone, host)]
            return {"topologySpreadConstraints": constraints}
        case "affinity":
            here = {"key": zone, "operator": "In", "values": ["{zone}"]}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
            return {"affinity": {"nodeAffinity": {required: terms}}}
        case "antiaffinity":
            return {"affinity": {"podAntiAffinity": {required: [{"topologyKey": host, **own}]}}}
    return {}


def _connection(kubeconfig: str) -> Json:
    json = "application/json"
    accepted = {"contentType": json, "acceptContentTypes": json}
    return {"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000, **accepted}


def _koord_profile() -> Json:
    scoring = {
        "type": "LeastAllocated",
        "resources": [{"name": name, "weight": 1} for name in _SCORED],
    }
    return {
        "schedulerName": "koord-scheduler",
        "pluginConfig": [
            _args("NodeResourcesFit", scoringStrategy=scoring),
            _args(
                "LoadAwareScheduling",
                filterExpiredNodeMetrics=False,
                nodeMetricExpirationSeconds=300,
                resourceWeights={"cpu": 1, "memory": 1},
                usageThresholds={"cpu": 0, "memory": 0},
                estimatedScalingFactors={"cpu": 85, "memory": 70},
            ),
            _args("ElasticQuota", quotaGroupNamespace="koordinator-system"),
        ],
        "plugins": {
            "preEnqueue": _enabled("Coscheduling"),
            "queueSort": _only("PrioritySort"),
            "preFilter": _enabled(
                "SchedulingHint",
                "Reservation",
                "NodeNUMAResource",
                "DeviceShare",
                "Coscheduling",
                "ElasticQuota",
            ),
            "filter": _enabled(
                "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"
            ),
            "postFilter": _only("Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"),
            "preScore": _enabled("Reservation", "Coscheduling"),
            "score": _enabled(
                LoadAwareScheduling=1,
                NodeNUMAResource=1,
                DeviceShare=1,
                Reservation=5000,
                Coscheduling=1,
            ),
            "reserve": _enabled(
                "LoadAwareScheduling",
                "NodeNUMAResource",
                "DeviceShare",
                "Reservation",
                "Coscheduling",
                "ElasticQuota",
            ),
            "permit": _enabled("Coscheduling"),
            "preBind": _enabled(
                "NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"
            ),
            "bind": _only("Reservation", "DefaultBinder"),
            "postBind": _enabled("Coscheduling"),
        },
    }


def _args(name: str, **fields: Any) -> Json:
    return {"name": name, "args": {"apiVersion": _SCHEDULER, "kind": f"{name}Args", **fields}}


def _enabled(*names: str, **weights: int) -> Json:
    plain = [{"name": name} for name in names]
    weighted = [{"name": name, "weight": weight} for name, weight in weights.items()]
    return {"enabled": [*plain, *weighted]}


def _only(*names: str) -> Json:
    return {"disabled": [{"name": "*"}], **_enabled(*names)}
