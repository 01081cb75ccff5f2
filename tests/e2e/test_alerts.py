"""Each rule of deploy/alerts, by the real promtool: an alert fires on its case, and alone.

The rules are those that users get; docs/generate.py checks their metrics against the code.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.real_apiserver.control_plane import missing

RULES = Path(__file__).parents[2] / "deploy" / "alerts" / "rules.yml"
AGENT = 'job="koordlet-system/koordlet",instance="10.0.0.1:9316",node="n1"'
OTHER = 'job="koordlet-system/koordlet",instance="10.0.0.2:9316",node="n2"'
MOVER = 'job="koordlet-system/koord-descheduler",instance="10.0.0.3:10251"'
SECOND = 'job="koordlet-system/koord-descheduler",instance="10.0.0.4:10251"'
MANAGER = 'job="koordinator-system/koord-manager",instance="10.0.0.7:10252"'
NEXT = 'job="koordinator-system/koord-manager",instance="10.0.0.8:10252"'
PLACER = 'job="koord-scheduler",instance="10.0.0.5:10251"'
STANDBY = 'job="koord-scheduler",instance="10.0.0.6:10251"'
EXPIRY = "slo_controller_webhook_certificate_expiry_timestamp_seconds"  # time begins at 0 here

Series = dict[str, str]
"""Samples, one a minute, as promtool writes them, by series."""


class Case(NamedTuple):
    """Series on which an alert fires after so many minutes, and others on which none does."""

    minutes: int
    fires: Series
    silent: Series


def agents(name: str, labels: str, samples: str, calm: str) -> tuple[Series, Series]:
    return {f"{name}{{{AGENT}{labels}}}": samples}, {f"{name}{{{AGENT}{labels}}}": calm}


CASES = {
    "KoordletDown": Case(
        10,
        {f"up{{{AGENT}}}": "0x20", f"up{{{OTHER}}}": "1x20"},
        {f"up{{{AGENT}}}": "0 0 0 1x20", 'up{job="another",instance="x"}': "0x20"},
    ),
    "KoordletRestarts": Case(
        10, *agents("koordlet_start_time", "", "1 2 3 4 5x20", "1 2 3 3 3x20")
    ),
    "KoordletReportsFail": Case(
        40,
        {
            f'koordlet_report_rounds_total{{{AGENT},outcome="failed"}}': "0+1x60",
            f'koordlet_report_rounds_total{{{AGENT},outcome="ok"}}': "7x60",
        },
        {
            f'koordlet_report_rounds_total{{{AGENT},outcome="failed"}}': "0+1x60",
            f'koordlet_report_rounds_total{{{AGENT},outcome="ok"}}': "0+0.2x60",
        },
    ),
    "KoordletForbidden": Case(
        40,
        {f'koordlet_kube_requests_total{{{AGENT},verb="PATCH",code="403"}}': "0+1x60"},
        {
            f'koordlet_kube_requests_total{{{AGENT},verb="PATCH",code="409"}}': "0+1x60",
            f'koordlet_kube_requests_total{{{AGENT},verb="GET",code="403"}}': "3x60",
        },
    ),
    "KoordletPluginOut": Case(
        15,
        {
            f'koordlet_plugin_state{{{AGENT},plugin="CPUBurst",state="quarantined"}}': "1x30",
            f'koordlet_plugin_state{{{AGENT},plugin="CPUBurst",state="broken"}}': "0x30",
        },
        {
            f'koordlet_plugin_state{{{AGENT},plugin="CPUBurst",state="retrying"}}': "1x30",
            f'koordlet_plugin_state{{{AGENT},plugin="CPUBurst",state="broken"}}': "0x30",
        },
    ),
    "KoordletPluginFails": Case(
        35, *agents("koordlet_plugin_errors_total", ',plugin="CPUBurst"', "0+1x60", "0 1 2 2x60")
    ),
    "KoordletCollectorFails": Case(
        40,
        {
            f'koordlet_collector_rounds_total{{{AGENT},collector="x",outcome="late"}}': "0+1x60",
            f'koordlet_collector_rounds_total{{{AGENT},collector="x",outcome="ok"}}': "7x60",
            f'koordlet_collector_rounds_total{{{AGENT},collector="y",outcome="ok"}}': "0+1x60",
        },
        {
            f'koordlet_collector_rounds_total{{{AGENT},collector="x",outcome="failed"}}': "0+1x60",
            f'koordlet_collector_rounds_total{{{AGENT},collector="x",outcome="ok"}}': "0+60x60",
            f'koordlet_collector_rounds_total{{{AGENT},collector="y",outcome="unsupported"}}': (
                "0+60x60"
            ),
        },
    ),
    "KoordletReadsHang": Case(
        15, *agents("koordlet_sampling_threads_given_up", "", "1x30", "1 1 0x30")
    ),
    "KoordletLoopLags": Case(
        30,
        {
            f'koordlet_event_loop_lag_seconds_bucket{{{AGENT},le="0.25"}}': "0+50x60",
            f'koordlet_event_loop_lag_seconds_bucket{{{AGENT},le="0.5"}}': "0+60x60",
            f'koordlet_event_loop_lag_seconds_bucket{{{AGENT},le="+Inf"}}': "0+60x60",
        },
        {
            f'koordlet_event_loop_lag_seconds_bucket{{{AGENT},le="0.01"}}': "0+60x60",
            f'koordlet_event_loop_lag_seconds_bucket{{{AGENT},le="+Inf"}}': "0+60x60",
        },
    ),
    "KoordletWritesRefused": Case(
        50,
        {f'koordlet_kernel_writes_total{{{AGENT},resource="c",outcome="refused"}}': "0+1x60"},
        {
            f'koordlet_kernel_writes_total{{{AGENT},resource="c",outcome="refused"}}': "0 1 1x60",
            f'koordlet_kernel_writes_total{{{AGENT},resource="c",outcome="accepted"}}': "0+9x60",
        },
    ),
    "KoordletValuesContested": Case(
        60,
        *agents(
            "koordlet_kernel_value_changes_total",
            ',plugin="CPUBurst",change="retaken"',
            "0+1x90",
            "0+0.1x90",
        ),
    ),
    "KoordletObservesOnly": Case(65, *agents("koordlet_observe_only", "", "1x90", "1x30 0x60")),
    "KoordletMemoryHigh": Case(
        20,
        *agents("process_resident_memory_bytes", "", "300000000x30", "80000000x30"),
    ),
    "KoordletEvictsMany": Case(
        12,
        *agents(
            "koordlet_evictions_total",
            ',plugin="MemoryEvict",reason="x",outcome="evicted"',
            "0+3x20",
            "0+0.5x20",
        ),
    ),
    "KoordletEvictionsFail": Case(
        65,
        {
            f'koordlet_evictions_total{{{AGENT},plugin="p",reason="x",outcome="refused"}}': (
                "0+0.2x90"
            )
        },
        {
            f'koordlet_evictions_total{{{AGENT},plugin="p",reason="x",outcome="no_pressure"}}': (
                "0+0.2x90"
            ),
            f'koordlet_evictions_total{{{AGENT},plugin="p",reason="x",outcome="evicted"}}': (
                "0+0.2x90"
            ),
        },
    ),
    "NodeMemoryStalls": Case(
        15,
        *agents(
            "koordlet_node_psi",
            ',psi_resource_type="mem",psi_degree="full",psi_precision="avg300"',
            "25x30",
            "4x30",
        ),
    ),
    "KoordDeschedulerDown": Case(15, {f"up{{{MOVER}}}": "0x30"}, {f"up{{{MOVER}}}": "1x30"}),
    "KoordDeschedulerNoLeader": Case(
        15,
        {
            f'leader_election_master_status{{{MOVER},name="l"}}': "0x30",
            f'leader_election_master_status{{{SECOND},name="l"}}': "0x30",
        },
        {
            f'leader_election_master_status{{{MOVER},name="l"}}': "0x30",
            f'leader_election_master_status{{{SECOND},name="l"}}': "1x30",
        },
    ),
    "KoordDeschedulerConfigRefused": Case(
        5,
        {f'descheduler_config_readings_total{{{MOVER},outcome="refused"}}': "0 0 1x20"},
        {f'descheduler_config_readings_total{{{MOVER},outcome="applied"}}': "0 0 1x20"},
    ),
    "KoordDeschedulerIdle": Case(
        75,
        {
            f"descheduler_cycle_duration_seconds_count{{{MOVER}}}": "5x90",
            f'leader_election_master_status{{{MOVER},name="l"}}': "1x90",
        },
        {
            f"descheduler_cycle_duration_seconds_count{{{MOVER}}}": "0+0.5x90",
            f'leader_election_master_status{{{MOVER},name="l"}}': "1x90",
            f"descheduler_cycle_duration_seconds_count{{{SECOND}}}": "5x90",
            f'leader_election_master_status{{{SECOND},name="l"}}': "0x90",
        },
    ),
    "KoordDeschedulerPluginFails": Case(
        65,
        {f'descheduler_plugin_rounds_total{{{MOVER},plugin="p",outcome="late"}}': "0+1x90"},
        {f'descheduler_plugin_rounds_total{{{MOVER},plugin="p",outcome="ok"}}': "0+1x90"},
    ),
    "KoordDeschedulerEvictionsFail": Case(
        65,
        {f'descheduler_pods_evicted{{{MOVER},result="error",node="a"}}': "0+1x90"},
        {
            f'descheduler_pods_evicted{{{MOVER},result="error",node="a"}}': "0 1 2 2x90",
            f'descheduler_pods_evicted{{{MOVER},result="success",node="a"}}': "0+1x90",
        },
    ),
    "KoordDeschedulerMovesInVain": Case(
        420,
        {
            f'descheduler_eviction_outcomes_total{{{MOVER},outcome="not-relieved"}}': "0+1x500",
            f'descheduler_eviction_outcomes_total{{{MOVER},outcome="relieved"}}': "0+0.5x500",
        },
        {
            f'descheduler_eviction_outcomes_total{{{MOVER},outcome="not-relieved"}}': "0+1x500",
            f'descheduler_eviction_outcomes_total{{{MOVER},outcome="relieved"}}': "0+2x500",
        },
    ),
    "KoordManagerDown": Case(
        15,
        {f"up{{{MANAGER}}}": "0x30", f"up{{{NEXT}}}": "1x30"},
        {f"up{{{MANAGER}}}": "0x5 1x30"},
    ),
    "KoordManagerNoLeader": Case(
        15,
        {
            f'leader_election_master_status{{{MANAGER},name="l"}}': "0x30",
            f'leader_election_master_status{{{NEXT},name="l"}}': "0x30",
        },
        {
            f'leader_election_master_status{{{MANAGER},name="l"}}': "0x30",
            f'leader_election_master_status{{{NEXT},name="l"}}': "1x30",
        },
    ),
    "KoordManagerConfigRefused": Case(
        5,
        {f"slo_controller_config_map_rejections_total{{{MANAGER}}}": "0 1x20"},
        {f"slo_controller_config_map_rejections_total{{{MANAGER}}}": "3x20"},
    ),
    "KoordManagerPluginFails": Case(
        65,
        {
            f'slo_controller_node_resource_run_plugin_status{{{MANAGER},plugin="p",'
            'status="failed",reason="ResourceCalculate"}': "0+1x90"
        },
        {
            f'slo_controller_node_resource_run_plugin_status{{{MANAGER},plugin="p",'
            'status="failed",reason="ResourceCalculate"}': "0 1x90"
        },
    ),
    "KoordManagerWritesFail": Case(
        35,
        {
            f'slo_controller_node_resource_reconcile_count{{{MANAGER},status="failed",'
            'reason="updateNodeStatus"}': "0+1x60"
        },
        {
            f'slo_controller_node_resource_reconcile_count{{{MANAGER},status="failed",'
            'reason="updateNodeStatus"}': "0+0.1x60",
            f'slo_controller_node_resource_reconcile_count{{{MANAGER},status="succeeded",'
            'reason="reconcileSuccess"}': "0+9x60",
        },
    ),
    "KoordManagerReportsStale": Case(
        20,
        {
            f'slo_controller_nodes{{{MANAGER},state="stale"}}': "3x40",
            f'slo_controller_nodes{{{MANAGER},state="enabled"}}': "20x40",
            f'slo_controller_nodes{{{NEXT},state="stale"}}': "0x40",
            f'slo_controller_nodes{{{NEXT},state="enabled"}}': "0x40",
        },
        {
            f'slo_controller_nodes{{{MANAGER},state="stale"}}': "1x40",
            f'slo_controller_nodes{{{MANAGER},state="enabled"}}': "20x40",
        },
    ),
    "KoordManagerNodesShort": Case(
        40,
        {f'slo_controller_nodes{{{MANAGER},state="short"}}': "2x60"},
        {f'slo_controller_nodes{{{MANAGER},state="short"}}': "2x20 0x40"},
    ),
    "KoordManagerCertificateEnds": Case(
        65,
        {f"{EXPIRY}{{{MANAGER}}}": "1200000x80", f"{EXPIRY}{{{NEXT}}}": "5000000x80"},
        {f"{EXPIRY}{{{MANAGER}}}": "1200000x20 5000000x60", f"{EXPIRY}{{{NEXT}}}": "0x80"},
    ),
    "KoordSchedulerDown": Case(10, {f"up{{{PLACER}}}": "0x30"}, {f"up{{{PLACER}}}": "1x30"}),
    "KoordSchedulerNoLeader": Case(
        10,
        {
            f'leader_election_master_status{{{PLACER},name="l"}}': "0x30",
            f'leader_election_master_status{{{STANDBY},name="l"}}': "0x30",
        },
        {
            f'leader_election_master_status{{{PLACER},name="l"}}': "1x30",
            f'leader_election_master_status{{{STANDBY},name="l"}}': "0x30",
        },
    ),
    "KoordSchedulerErrors": Case(
        25,
        {f'scheduler_schedule_attempts_total{{{PLACER},result="error",profile="p"}}': "0+1x40"},
        {
            f'scheduler_schedule_attempts_total{{{PLACER},result="unschedulable",profile="p"}}': (
                "0+9x40"
            ),
            f'scheduler_schedule_attempts_total{{{PLACER},result="error",profile="p"}}': "0 1x40",
        },
    ),
    "KoordSchedulerBehind": Case(
        20,
        {f'scheduler_pending_pods{{{PLACER},queue="active"}}': "900x30"},
        {
            f'scheduler_pending_pods{{{PLACER},queue="active"}}': "900x8 20 900x20",
            f'scheduler_pending_pods{{{PLACER},queue="gated"}}': "900x30",
        },
    ),
    "KoordSchedulerPodsUnschedulable": Case(
        65,
        {f'scheduler_pending_pods{{{PLACER},queue="unschedulable"}}': "2x90"},
        {
            f'scheduler_pending_pods{{{PLACER},queue="unschedulable"}}': "2x30 0 2x60",
            f'scheduler_pending_pods{{{PLACER},queue="gated"}}': "2x90",
        },
    ),
    "KoordSchedulerSlow": Case(
        30,
        {
            "scheduler_scheduling_attempt_duration_seconds_bucket"
            f'{{{PLACER},result="scheduled",profile="p",le="{bound}"}}': f"0+{count}x60"
            for bound, count in (("1.024", 10), ("2.048", 60), ("+Inf", 60))
        },
        {
            "scheduler_scheduling_attempt_duration_seconds_bucket"
            f'{{{PLACER},result="scheduled",profile="p",le="{bound}"}}': f"0+{count}x60"
            for bound, count in (("0.004", 60), ("+Inf", 60))
        },
    ),
    "KoordSchedulerTrafficUnknown": Case(
        10,
        {f'scheduler_network_traffic_newest_age_seconds{{{PLACER},meter="m"}}': "100+60x20"},
        {f'scheduler_network_traffic_newest_age_seconds{{{PLACER},meter="m"}}': "6x20"},
    ),
}


def slow(histogram: str, labels: str) -> Series:
    """A histogram with sixty observations a minute, each between 0.1 and 1 second."""
    counts = {"0.1": "0x20", "1": "0+60x20", "+Inf": "0+60x20"}
    return {f'{histogram}_bucket{{{labels},le="{bound}"}}': each for bound, each in counts.items()}


BE, LS = 'qos_class="besteffort"', 'qos_class="burstable"'
RECORDED: dict[str, tuple[Series, dict[str, float]]] = {  # and what is recorded, by labels
    "node:koordlet_cpu_seconds:rate5m": (
        {
            f"process_cpu_seconds_total{{{AGENT}}}": "0+3x20",
            f"process_cpu_seconds_total{{{MOVER}}}": "0+60x20",
        },
        {'node="n1"': 0.05},
    ),
    "node:koordlet_event_loop_lag_seconds:p99_5m": (
        slow("koordlet_event_loop_lag_seconds", AGENT),
        {'node="n1"': 0.991},
    ),
    "node:koordlet_sampling_pass_seconds:p99_5m": (
        slow("koordlet_sampling_pass_seconds", AGENT),
        {'node="n1"': 0.991},
    ),
    "node:koordlet_pod_cpu_throttled_ratio:max": (
        {
            f'koordlet_pod_cpu_throttled_ratio{{{AGENT},qos="LS",pod_name="a"}}': "0.1x20",
            f'koordlet_pod_cpu_throttled_ratio{{{AGENT},qos="LS",pod_name="b"}}': "0.3x20",
            f'koordlet_pod_cpu_throttled_ratio{{{AGENT},qos="BE",pod_name="c"}}': "0.9x20",
        },
        {'node="n1",qos="LS"': 0.3, 'node="n1",qos="BE"': 0.9},
    ),
    "cluster:koordlet_qos_cpu_usage_cores:sum": (
        {
            f"koordlet_qos_cpu_usage_cores{{{AGENT},{BE}}}": "2x20",
            f"koordlet_qos_cpu_usage_cores{{{OTHER},{BE}}}": "3x20",
            f"koordlet_qos_cpu_usage_cores{{{OTHER},{LS}}}": "1x20",
        },
        {BE: 5, LS: 1},
    ),
    "cluster:koordlet_qos_memory_usage_bytes:sum": (
        {
            f"koordlet_qos_memory_usage_bytes{{{AGENT},{BE}}}": "1024x20",
            f"koordlet_qos_memory_usage_bytes{{{OTHER},{BE}}}": "1024x20",
        },
        {BE: 2048},
    ),
    "cluster:koordlet_node_used_cpu_cores:sum": (
        {
            f"koordlet_node_used_cpu_cores{{{AGENT}}}": "4x20",
            f"koordlet_node_used_cpu_cores{{{OTHER}}}": "6x20",
        },
        {"": 10},
    ),
    "cluster:koordlet_be_suppress_cpu_cores:sum": (
        {
            f'koordlet_be_suppress_cpu_cores{{{AGENT},type="cfsQuota"}}': "2x20",
            f'koordlet_be_suppress_cpu_cores{{{OTHER},type="cfsQuota"}}': "1x20",
        },
        {'type="cfsQuota"': 3},
    ),
    "cluster:koordlet_evictions:increase5m": (
        {
            f'koordlet_evictions_total{{{each},plugin="MemoryEvict",outcome="evicted"}}': "0+1x20"
            for each in (AGENT, OTHER)
        },
        {'plugin="MemoryEvict",outcome="evicted"': 10},
    ),
    "cluster:koordlet_kube_requests:rate5m": (
        {
            f'koordlet_kube_requests_total{{{each},verb="PATCH",code="200"}}': "0+6x20"
            for each in (AGENT, OTHER)
        },
        {'verb="PATCH",code="200"': 0.2},
    ),
    "cluster:descheduler_cycle_duration_seconds:p99_5m": (
        slow("descheduler_cycle_duration_seconds", MOVER),
        {"": 0.991},
    ),
    "cluster:descheduler_pods_evicted:increase5m": (
        {
            f'descheduler_pods_evicted{{{MOVER},result="success",node="{node}"}}': "0+1x20"
            for node in ("n1", "n2")
        },
        {'result="success"': 10},
    ),
    "cluster:slo_controller_node_extended_resource_allocatable:sum": (
        {
            f"slo_controller_node_extended_resource_allocatable_internal{{{MANAGER},{each}}}": text
            for each, text in (
                ('node="n1",resource="kubernetes.io/batch-cpu",unit="core"', "4x20"),
                ('node="n2",resource="kubernetes.io/batch-cpu",unit="core"', "3x20"),
                ('node="n2",resource="kubernetes.io/mid-cpu",unit="core"', "1x20"),
            )
        },
        {'resource="kubernetes.io/batch-cpu"': 7, 'resource="kubernetes.io/mid-cpu"': 1},
    ),
    "cluster:slo_controller_node_resource_patch_latency_seconds:p99_5m": (
        slow("slo_controller_node_resource_patch_latency_seconds", MANAGER),
        {"": 0.991},
    ),
    "cluster:scheduler_schedule_attempts:rate5m": (
        {
            f'scheduler_schedule_attempts_total{{{PLACER},result="scheduled"}}': "0+600x20",
            f'scheduler_schedule_attempts_total{{{STANDBY},result="scheduled"}}': "0x20",
        },
        {'result="scheduled"': 10},
    ),
    "cluster:scheduler_pod_scheduling_sli_duration_seconds:p99_5m": (
        slow("scheduler_pod_scheduling_sli_duration_seconds", PLACER),
        {"": 0.991},
    ),
    "cluster:scheduler_pending_pods:max": (
        {
            f'scheduler_pending_pods{{{PLACER},queue="active"}}': "7x20",
            f'scheduler_pending_pods{{{STANDBY},queue="active"}}': "0x20",
        },
        {'queue="active"': 7},
    ),
}


@pytest.fixture(scope="session", autouse=True)
def promtool() -> None:
    """Only where it is installed, with Prometheus; in CI it must be."""
    if lacking := missing("prometheus"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_names() -> list[str]:
    return [rule["alert"] for rule in rules() if "alert" in rule]


def said(directory: Path, series: Series, found: dict[str, Any]) -> str:
    """What promtool says of the rules on these series; "" if an expression has what it must."""
    given = [{"series": name, "values": values} for name, values in series.items()]
    file = directory / "test.yml"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(RULES)],
                "evaluation_interval": "1m",
                "tests": [
                    {"interval": "1m", "input_series": given, "promql_expr_test": [found]},
                ],
            }
        )
    )
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def firing(directory: Path, series: Series, minutes: int, wanted: list[str]) -> str:
    """What promtool says of the alerts that fire then; "" if they are the wanted ones."""
    found = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minutes}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in wanted],
    }
    return said(directory, series, found)


def test_the_rules_are_sound() -> None:
    """Promtool's own check; each alert has a case here."""
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert alert_names() == list(CASES)
    assert [rule["record"] for rule in rules() if "record" in rule] == list(RECORDED)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_on_its_case_alone(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    assert firing(tmp_path, case.fires, case.minutes, [name]) == ""
    assert firing(tmp_path, case.silent, case.minutes, []) == ""


@pytest.mark.parametrize("name", RECORDED)
def test_a_series_is_recorded(tmp_path: Path, name: str) -> None:
    series, wanted = RECORDED[name]
    samples = [
        {"labels": f"{name}{{{labels}}}", "value": value} for labels, value in wanted.items()
    ]
    found = {"expr": f'{{__name__="{name}"}}', "eval_time": "15m", "exp_samples": samples}
    assert said(tmp_path, series, found) == ""


def test_an_alert_that_is_expected_in_vain_is_reported(tmp_path: Path) -> None:
    """These tests can fail."""
    case = CASES["KoordletDown"]
    assert "KoordletDown" in firing(tmp_path, case.fires, case.minutes, [])
    assert "KoordletDown" in firing(tmp_path, case.silent, case.minutes, ["KoordletDown"])
