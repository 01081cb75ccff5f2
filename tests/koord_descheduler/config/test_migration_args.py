"""Arguments of MigrationController: defaults and rules."""

import pytest

from koord_descheduler_plugins.migration.args import (
    ArbitrationArgs,
    EvictionGate,
    EvictionPolicy,
    JobMode,
    MigrationControllerArgs,
    ObjectLimiter,
)

NAME = "MigrationController"


def test_the_defaults(args):
    assert args(NAME, "{}") == MigrationControllerArgs(
        dry_run=False,
        max_concurrent_reconciles=1,
        max_migrating_globally=None,
        max_migrating_per_node=2,
        max_migrating_per_namespace=None,
        max_migrating_per_workload=None,
        max_unavailable_per_workload=None,
        object_limiters={"workload": ObjectLimiter(duration=300.0)},
        default_job_mode=JobMode.RESERVATION_FIRST.value,
        default_job_ttl=300.0,
        scheduler_names=("koord-scheduler",),
        evict_qps=10.0,
        evict_burst=1,
        eviction_policy=EvictionPolicy.EVICTION,
        arbitration_args=ArbitrationArgs(enabled=True, interval=0.5),
    )


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("{evictQPS: '10'}", "evict_qps", 10.0),
        ("{evictQPS: 2.5}", "evict_qps", 2.5),
        ("{evictQPS: '1e1'}", "evict_qps", 10.0),
        ("{defaultJobTTL: 0s}", "default_job_ttl", 0.0),
        ("{defaultJobMode: EvictDirectly}", "default_job_mode", JobMode.EVICT_DIRECTLY),
        ("{evictionPolicy: SoftEviction}", "eviction_policy", EvictionPolicy.SOFT_EVICTION),
        ("{maxMigratingPerWorkload: 5}", "max_migrating_per_workload", 5),
        ("{maxMigratingPerWorkload: 10%}", "max_migrating_per_workload", "10%"),
        ("{maxMigratingPerWorkload: -5}", "max_migrating_per_workload", -5),
        ("{objectLimiters: {}}", "object_limiters", {"workload": ObjectLimiter(duration=300.0)}),
        (
            "{objectLimiters: {namespace: {duration: 1s, maxMigrating: 10, burst: 2}}}",
            "object_limiters",
            {"namespace": ObjectLimiter(duration=1.0, max_migrating=10, burst=2)},
        ),
        ("{schedulerNames: []}", "scheduler_names", ("koord-scheduler",)),
        ("{arbitrationArgs: {}}", "arbitration_args", ArbitrationArgs(enabled=False)),
        ("{arbitrationArgs: {interval: 1s}}", "arbitration_args", ArbitrationArgs(interval=1.0)),
        (
            "{defaultDeleteOptions: {gracePeriodSeconds: 5}}",
            "default_delete_options",
            {"gracePeriodSeconds": 5},
        ),
        ("{skipEvictionGates: [PVC, BarePods]}", "skip_eviction_gates", ("PVC", "BarePods")),
    ],
)
def test_single_arguments(args, text, attribute, value):
    assert getattr(args(NAME, text), attribute) == value


def test_every_gate_is_known(args):
    names = ", ".join(EvictionGate)

    assert args(NAME, f"{{skipEvictionGates: [{names}]}}").skip_eviction_gates == tuple(
        EvictionGate
    )
    assert len(EvictionGate) == 14


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "{skipEvictionGates: [pvc]}",
            'skipEvictionGates[0]: Invalid value: "pvc": unknown evictio',
        ),
        (
            "{maxMigratingGlobally: -1}",
            "maxMigratingGlobally: Invalid value: -1: "
            "maxMigratingGlobally should be greater or equal 0",
        ),
        (
            "{maxMigratingPerNamespace: -1}",
            "maxMigratingPerNamespace: Invalid value: -1: "
            "maxMigratingPerNamespace should be greater or equal 0",
        ),
        (
            "{maxMigratingPerNode: -1}",
            "maxMigratingPerNode: Invalid value: -1: "
            "maxMigratingPerNode should be greater or equal 0",
        ),
        ("{maxMigratingPerWorkload: ten}", 'maxMigratingPerWorkload: Invalid value: "ten": wanted'),
        (
            "{maxUnavailablePerWorkload: 1.5%}",
            'maxUnavailablePerWorkload: Invalid value: "1.5%": w',
        ),
        ("{evictQPS: 0}", "evictQPS: Invalid value: 0.0: evictQPS must be greater than 0"),
        ("{evictQPS: -1}", "evictQPS: Invalid value: -1.0: evictQPS must be greater than 0"),
        (
            "{evictQPS: fast}",
            'evictQPS: Invalid value: "fast": wanted a number, or a text with one',
        ),
        ("{evictQPS: 'inf'}", 'evictQPS: Invalid value: "inf": wanted a number'),
        (
            "{nodeSelector: 'a b'}",
            'nodeSelector: Invalid value: "a b": selector: wanted a',
        ),
        ("{evictBurst: 0}", "evictBurst: Invalid value: 0: evictBurst must be greater than 0"),
        ("{labelSelector: {matchLabels: {a: '?'}}}", "labelSelector: Invalid value"),
        (
            "{namespaces: {include: [a], exclude: [b]}}",
            'namespaces: Invalid value: {"include": ["a"], "exclude": ["b"]}: '
            "only one of Include/Exclude namespaces can be set",
        ),
        (
            "{maxConcurrentReconciles: 0}",
            "maxConcurrentReconciles: Invalid value: 0: "
            "maxConcurrentReconciles should be greater than or equal to 1",
        ),
        (
            "{defaultJobMode: Slowly}",
            'defaultJobMode: Invalid value: "Slowly": '
            "defaultJobMode must be ReservationFirst or EvictDirectly",
        ),
        (
            "{defaultJobTTL: -1s}",
            'defaultJobTTL: Invalid value: "-1s": defaultJobTTL should be positive or zero',
        ),
        (
            "{evictionPolicy: Kill}",
            'evictionPolicy: Unsupported value: "Kill": supported values: "Eviction", "Delete"',
        ),
        ("{objectLimiters: {node: {}}}", 'objectLimiters[node]: Unsupported value: "node"'),
        (
            "{objectLimiters: {workload: {duration: -1s}}}",
            'objectLimiters[workload].duration: Invalid value: "-1s": wanted 0s or more',
        ),
        (
            "{objectLimiters: {workload: {burst: -1}}}",
            "objectLimiters[workload].burst: Invalid value: -1: wanted 0 or more",
        ),
        (
            "{arbitrationArgs: {interval: 0s}}",
            'arbitrationArgs.interval: Invalid value: "0s": wanted more than 0s',
        ),
        (
            "{defaultJobTtl: 5m}",
            'defaultJobTtl: unknown field "defaultJobTtl"; did you mean "defaul',
        ),
    ],
)
def test_what_is_refused(args_faults, text, found):
    lines = args_faults(NAME, text)

    assert len(lines) == 1, lines
    assert lines[0].startswith(found)


def test_percent_of_a_namespace_is_a_warning(read):
    limiter = "{duration: 1s, maxMigrating: 10%}"
    found = read(
        "deschedulingInterval: 1s\nprofiles: [{pluginConfig: [{name: MigrationController,"
        f" args: {{objectLimiters: {{namespace: {limiter}}}}}}}]}}]"
    )

    assert "a percentage limits nothing" in str(found.warnings[0])
