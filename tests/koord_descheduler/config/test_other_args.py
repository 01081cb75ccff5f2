"""Arguments of the other plugins: their defaults and rules."""

import pytest

from koord_descheduler.config import Point
from tests.support.descheduler.shipped_plugins import IN_TREE

PERCENT_RULE = "Invalid value: 101.0: wanted 0 to 100 percent"


@pytest.mark.parametrize(
    ("plugin", "text", "values"),
    [
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}}, {name: b, nodeSelector: {}}]}",
            {"paused": False, "dry_run": False, "node_fit": True, "mode": "BestEffort"}
            | {"auto_cordon": False},
        ),
        (
            "FragmentationAware",
            "{}",
            {"resources": ("cpu", "memory"), "imbalance_threshold": 0.15, "node_fit": True}
            | {"min_improvement_threshold": 0.02, "paused": False, "dry_run": False},
        ),
        ("FragmentationAware", "{resources: []}", {"resources": ("cpu", "memory")}),
        (
            "ScaleDownBinPack",
            "{}",
            {"strategy": "CalculateOnly", "resources": ("cpu", "memory"), "paused": False}
            | {"resource_weights": {"cpu": 1.0, "memory": 1.0}},
        ),
        (
            "ScaleDownBinPack",
            "{resources: [cpu, gpu], resourceWeights: {gpu: 2.5}}",
            {"resource_weights": {"cpu": 1.0, "gpu": 2.5}},
        ),
        (
            "HighNodeUtilization",
            "{thresholds: {cpu: 20}}",
            {"thresholds": {"cpu": 20.0}, "number_of_nodes": 0, "evictable_namespaces": None}
            | {"eviction_modes": ("OnlyThresholdingResources",)},
        ),
        (
            "LowNodeUtilization",
            "{thresholds: {cpu: 20}, targetThresholds: {cpu: 50}, evictionLimits: {node: 3}}",
            {"use_deviation_thresholds": False, "number_of_nodes": 0},
        ),
        (
            "LowNodeUtilization",
            "{useDeviationThresholds: true, thresholds: {a: 20}, targetThresholds: {a: 10}}",
            {"target_thresholds": {"a": 10.0}},
        ),
        ("RemoveDuplicates", "{}", {"namespaces": None, "exclude_owner_kinds": ()}),
        (
            "RemovePodsViolatingTopologySpreadConstraint",
            "{}",
            {"constraints": ("DoNotSchedule",), "topology_balance_node_fit": True},
        ),
        ("PodLifeTime", "{exitCodes: [1]}", {"exit_codes": (1,), "states": ()}),
        ("PodLifeTime", "{maxPodLifeTimeSeconds: 0}", {"max_pod_life_time_seconds": 0}),
        (
            "PodLifeTime",
            "{conditions: [{type: Ready, minTimeSinceLastTransitionSeconds: 5}]}",
            {"including_init_containers": False, "including_ephemeral_containers": False},
        ),
        ("RemoveFailedPods", "{}", {"min_pod_lifetime_seconds": 3600, "reasons": ()}),
        (
            "RemovePodsHavingTooManyRestarts",
            "{podRestartThreshold: 1, states: [Running, CrashLoopBackOff]}",
            {"pod_restart_threshold": 1, "states": ("Running", "CrashLoopBackOff")},
        ),
        ("RemovePodsViolatingInterPodAntiAffinity", "{}", {"namespaces": None}),
        (
            "RemovePodsViolatingNodeAffinity",
            "{nodeAffinityType: [requiredDuringSchedulingIgnoredDuringExecution]}",
            {"node_affinity_type": ("requiredDuringSchedulingIgnoredDuringExecution",)},
        ),
        (
            "RemovePodsViolatingNodeTaints",
            "{excludedTaints: [a=b]}",
            {
                "excluded_taints": ("a=b",),
                "included_taints": (),
                "include_prefer_no_schedule": False,
            },
        ),
        (
            "DefaultEvictor",
            "{}",
            {
                "node_selector": "",
                "node_fit": False,
                "min_replicas": 0,
                "min_pod_age": None,
                "no_eviction_policy": "Preferred",
                "evict_local_storage_pods": False,
                "evict_daemon_set_pods": False,
                "evict_system_critical_pods": False,
                "ignore_pvc_pods": False,
                "ignore_pods_without_pdb": False,
                "evict_failed_bare_pods": False,
            },
        ),
        ("DefaultEvictor", "{ignorePodsWithoutPDB: true}", {"ignore_pods_without_pdb": True}),
        ("DefaultEvictor", "{nodeSelector: 'a in (b,c)'}", {"node_selector": "a in (b,c)"}),
        ("DefaultEvictor", "{MINPODAGE: 5m}", {"min_pod_age": 300.0}),
    ],
)
def test_defaults_and_values(args, plugin, text, values):
    found = args(plugin, text)

    assert {name: getattr(found, name) for name in values} == values


@pytest.mark.parametrize(
    ("plugin", "text", "message"),
    [
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}}]}",
            "evictionOrder: Invalid value: 1: "
            "CustomPriority requires at least 2 resource priority levels",
        ),
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}}, {name: a, nodeSelector: {}}]}",
            'evictionOrder[1].name: Duplicate value: "a"',
        ),
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}}, {nodeSelector: {}}]}",
            "evictionOrder[1].name: Required value",
        ),
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}}, {name: b}]}",
            "evictionOrder[1].nodeSelector: Required value",
        ),
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}, keepThreshold: 101},"
            " {name: b, nodeSelector: {}}]}",
            f"evictionOrder[0].keepThreshold: {PERCENT_RULE}",
        ),
        (
            "CustomPriority",
            "{evictionOrder: [{name: a, nodeSelector: {}}, {name: b, nodeSelector: {}}],"
            " mode: Hard}",
            'mode: Unsupported value: "Hard": supported values: "BestEffort", "DrainNode"',
        ),
        ("FragmentationAware", "{resources: [a, a]}", 'resources[1]: Duplicate value: "a"'),
        (
            "FragmentationAware",
            "{imbalanceThreshold: -1}",
            "imbalanceThreshold: Invalid value: -1.0",
        ),
        ("FragmentationAware", "{minImprovementThreshold: -1}", "minImprovementThreshold: Invalid"),
        ("FragmentationAware", "{Resources: [a]}", 'Resources: unknown field "Resources"'),
        (
            "ScaleDownBinPack",
            "{strategy: EvictDirectly}",
            "maxPodsToEvict: Invalid value: 0: wanted",
        ),
        (
            "ScaleDownBinPack",
            "{resourceWeights: {cpu: 0}}",
            "resourceWeights[cpu]: Invalid value: 0",
        ),
        (
            "ScaleDownBinPack",
            "{evictableNamespaces: {include: [a], exclude: [b]}}",
            "evictableNames",
        ),
        ("HighNodeUtilization", "{}", "thresholds: Required value: a percentage for at least one"),
        ("HighNodeUtilization", "{thresholds: {cpu: 101}}", f"thresholds[cpu]: {PERCENT_RULE}"),
        (
            "HighNodeUtilization",
            "{thresholds: {cpu: 1}, evictableNamespaces: {include: [a]}}",
            'evictableNamespaces.include: Invalid value: ["a"]: only exclude is supported',
        ),
        (
            "LowNodeUtilization",
            "{thresholds: {cpu: 20}, targetThresholds: {memory: 50}}",
            'targetThresholds: Invalid value: ["memory"]: thresholds and targetThresholds must be',
        ),
        (
            "LowNodeUtilization",
            "{thresholds: {cpu: 60}, targetThresholds: {cpu: 50}}",
            "thresholds[cpu]: Invalid value: 60.0: must be less than or equal to targetThresholds",
        ),
        (
            "LowNodeUtilization",
            "{thresholds: {cpu: 6}, targetThresholds: {cpu: 50}, evictionLimits: {node: -1}}",
            "evictionLimits.node: Invalid value: -1: wanted a whole number, 0 or more",
        ),
        (
            "RemoveDuplicates",
            "{namespaces: {include: [a], exclude: [b]}}",
            "namespaces: Invalid value",
        ),
        (
            "RemovePodsViolatingTopologySpreadConstraint",
            "{constraints: [Maybe]}",
            'constraints[0]: Unsupported value: "Maybe": supported values: "DoNotSchedule"',
        ),
        (
            "PodLifeTime",
            "{}",
            "maxPodLifeTimeSeconds: Required value: or states, conditions or exit",
        ),
        (
            "PodLifeTime",
            "{states: [a], ownerKinds: {include: [a], exclude: [b]}}",
            "ownerKinds: Inv",
        ),
        (
            "RemoveFailedPods",
            "{minPodLifetimeSeconds: -1}",
            "minPodLifetimeSeconds: Invalid value: -1",
        ),
        (
            "RemovePodsHavingTooManyRestarts",
            "{}",
            "podRestartThreshold: Invalid value: 0: wanted 1 or",
        ),
        (
            "RemovePodsHavingTooManyRestarts",
            "{podRestartThreshold: 1, states: [Failed]}",
            'states[0]: Unsupported value: "Failed"',
        ),
        (
            "RemovePodsViolatingInterPodAntiAffinity",
            "{labelSelector: {matchLabels: {a: '-'}}}",
            "labelSelector: Invalid value",
        ),
        (
            "RemovePodsViolatingNodeAffinity",
            "{}",
            "nodeAffinityType: Required value: for example req",
        ),
        (
            "RemovePodsViolatingNodeTaints",
            "{excludedTaints: [a], includedTaints: [b]}",
            'includedTaints: Invalid value: ["b"]: only one of excludedTaints and includedTaints',
        ),
        (
            "DefaultEvictor",
            "{noEvictionPolicy: Never}",
            'noEvictionPolicy: Unsupported value: "Never"',
        ),
        (
            "DefaultEvictor",
            "{minPodAge: -1s}",
            'minPodAge: Invalid value: "-1s": wanted 0s or more',
        ),
        ("DefaultEvictor", "{nodeSelector: 'a>1'}", 'nodeSelector: Invalid value: "a>1": selector'),
        ("DefaultEvictor", "{minReplicas: -1}", "minReplicas: Invalid value: -1: wanted a whole"),
    ],
)
def test_what_is_refused(args_faults, plugin, text, message):
    lines = args_faults(plugin, text)

    assert len(lines) == 1, lines
    assert lines[0].startswith(message)


def test_adapted_plugins_ignore_unknown_fields_but_say_so(read):
    """As the Kubernetes descheduler does; Koordinator's own plugins refuse them."""
    found = read(
        "deschedulingInterval: 1s\n"
        "profiles: [{plugins: {deschedule: {enabled: [{name: RemoveFailedPods}]}}, pluginConfig: "
        "[{name: RemoveFailedPods, args: {MinPodLifeTimeSeconds: 5, kind: X, reason: a}}]}]"
    )

    args = found.configuration.profiles[0].args["RemoveFailedPods"]
    assert args.min_pod_lifetime_seconds == 5
    assert [str(fault) for fault in found.warnings] == [
        'profiles[0].pluginConfig[0].args.reason: unknown field "reason"; did you mean "reasons"?'
    ]


def test_the_registry_is_koordinators():
    """16 plugins, each with arguments; one extension point, or evict and filter."""
    assert len(IN_TREE) == 16
    for name, plugin in IN_TREE.items():
        assert plugin.args is not None
        assert plugin.args.cls.__name__ == f"{name}Args"
        assert len(plugin.points) == 1 or plugin.points == {Point.EVICT, Point.FILTER}
