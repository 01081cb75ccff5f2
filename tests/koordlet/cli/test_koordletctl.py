"""koordletctl as its users run it, against the real application on a real socket."""

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from koord.util.clock import stamp
from koordlet.metriccache.kinds import KINDS, NODE_CPU_USAGE, POD_CPU_USAGE, Sample
from koordlet.plugin.testing import FakeHost

EVERY_QUESTION = (
    ["status"],
    ["doctor"],
    ["plugins"],
    ["plugins", "release", "PressureWatch"],
    ["metrics"],
    ["metrics", "pod_cpu_usage"],
    ["nodemetric"],
    ["explain"],
    ["explain", "jobs/sort"],
    ["dry-run"],
    ["dry-run", "CPUBurst", "off"],
    ["audit"],
    ["audit", "--pod=web", "--lines=1"],
    ["top"],
)


@pytest.mark.parametrize("command", EVERY_QUESTION, ids=" ".join)
def test_every_command_speaks_json_and_to_people(ctl, daemon, command):
    """The option may stand before and after the command."""
    code, out, err = ctl("--output", "json", *command)
    daemon.plugins[0]["state"] = "quarantined"
    later = ctl(*command, "-o", "json")
    daemon.plugins[0]["state"] = "quarantined"
    table = ctl(*command)

    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(later[1])
    assert (table[0], table[2]) == (0, "")
    assert table[1].strip()
    assert not any(line.endswith(" ") for line in table[1].splitlines())


def test_status_says_what_is_wrong(ctl, daemon):
    """Degraded works with less; unhealthy is a failure to scripts, too."""
    daemon.status |= {"health": "degraded", "problems": {"plugin X": "broken: setup"}}
    degraded = ctl("status")
    daemon.status |= {"health": "unhealthy", "samples_dropped": {"invalid": 3}}
    daemon.status |= {"needs_restart": ["addr"]}
    unhealthy = ctl("status")

    assert degraded[0] == 0
    assert "plugin X  broken: setup" in degraded[1]
    assert unhealthy[0] == 1
    assert "samples: 3 invalid" in unhealthy[1]
    assert "restart for  addr" in unhealthy[1]


def test_doctor_fails_only_for_what_is_in_use(ctl, daemon):
    """What a gate that is off would need is worth a line, not a failure."""
    unused = ctl("doctor")
    daemon.status["gates_on"] = ["CPUBurst"]
    missing = ctl("doctor")
    report = json.loads(ctl("doctor", "-o", "json")[1])

    assert unused[0] == 0
    assert "needed only by gates that are off" in unused[1]
    assert "1 supported, 0 missing, 1 not needed now" in unused[1]
    assert missing[0] == 1
    assert "\nMissing\n" in missing[1]
    assert "    needed by  CPUBurst\n    fix        Linux 5.14\n" in missing[1]
    assert [finding["wanted"] for finding in report["findings"]] == [False, True]


def test_doctor_does_not_fail_for_what_is_not_known(ctl, daemon):
    """It says so, beside what was found."""
    found = {"supported": None, "needed_by": [], "detail": "no answer", "fix": ""}
    daemon.findings.append({"area": "cluster", "name": "own node's objects only", **found})

    code, out, _ = ctl("doctor")

    assert code == 0
    assert "\nNot known\n" in out
    assert "cluster: own node's objects only" in out
    assert "1 supported, 0 missing, 1 not needed now, 1 not known" in out


def test_doctor_looks_itself_when_there_is_no_daemon(ctl):
    """It says so, because a daemon may see other things."""
    code, out, err = ctl("doctor")

    assert code in (0, 1)
    assert not err
    assert "seen by this command, as no daemon answered:" in " ".join(out.split())
    assert "node: cpu and memory" in out


def test_doctor_looks_at_the_directories_given(ctl, daemon, tmp_path):
    """Even while a daemon runs."""
    paths = FakeHost(tmp_path / "host", version=2).paths
    roots = ("--cgroup-root-dir", str(paths.cgroup), "--proc-root-dir", str(paths.proc))
    roots += ("--var-run-root-dir", str(paths.var_run))

    _, out, _ = ctl("doctor", *roots, "--sys-root-dir", str(paths.sys), "--output=json")

    report = json.loads(out)
    found = {(finding["area"], finding["name"]): finding for finding in report["findings"]}
    assert report["seen_by"] == "seen by this command with the given directories"
    assert found["cgroup", "hierarchies"]["detail"] == f"v2 below {paths.cgroup}"
    assert "NodeNetworkCollector" in report["gates_on"]
    nri = found["container", "settings before its start"]["detail"]
    assert nri == f"no socket {paths.var_run}/nri/nri.sock"


def test_plugins_show_what_they_cost_and_why_they_do_not_work(ctl, daemon):
    """And releasing one shows at once."""
    _, before, _ = ctl("plugins")
    released = ctl("plugins", "release", "PressureWatch")
    again = ctl("plugins", "release", "PressureWatch")

    assert (
        "PressureWatch  quarantined  PressureWatch      12       1  0.50 s  2.2 ms   4.0Ki"
        in before
    )
    assert "PressureWatch  held the event loop" in before
    assert released == (0, "PressureWatch is released\n", "")
    assert again[0] == 2
    assert "it is not in quarantine" in again[2]


def test_no_plugins_is_no_table(ctl, daemon):
    """An empty table would look like an error."""
    daemon.plugins.clear()

    assert ctl("plugins") == (0, "no plugins are installed\n", "")


def test_metrics_by_series(ctl, daemon):
    """A pod goes by its name, one that is gone by its UID."""
    for value in (1.0, 2.0, 3.0):
        daemon.clock.tick(1)
        samples = [Sample(POD_CPU_USAGE, value, (uid,)) for uid in ("uid-web", "uid-gone")]
        daemon.cache.append(stamp(daemon.clock), samples)

    code, out, _ = ctl("metrics", "pod_cpu_usage", "--window=30s")
    one = json.loads(ctl("metrics", "pod_cpu_usage", "--pod", "web", "-o", "json")[1])

    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert out.startswith("pod_cpu_usage in cores, last 30s\n")
    assert lines[2] == ["uid-gone", "3.00", "2.00", "1.00", "2.00", "2.00", "2.00", "3", "2s"]
    assert lines[3][0] == "default/web"
    assert [series["pod_uid"] for series in one["series"]] == ["uid-web"]


def test_metrics_without_samples(ctl, daemon):
    """Nothing measured is not an empty table."""
    assert ctl("metrics", "node_cpu_usage") == (
        0,
        "node_cpu_usage: no samples in the last 1m 0s\n",
        "",
    )


def test_all_kinds_are_listed_without_a_daemon(ctl):
    """To find the name one may ask for."""
    code, out, _ = ctl("metrics")

    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(KINDS)


def test_nodemetric_in_short(ctl, daemon):
    """The whole object is --output json."""
    _, out, _ = ctl("nodemetric")
    found = json.loads(ctl("nodemetric", "-o", "json")[1])

    assert ["node", "1.50", "1.0Gi"] in [line.split() for line in out.splitlines()]
    assert found["kind"] == "NodeMetric"


def test_explain_says_what_was_decided_and_why(ctl, daemon):
    """Latest first; a pod that is gone is known as long as its decisions are."""
    _, out, _ = ctl("explain")
    daemon.explained |= {"dryRun": ["CPUEvict"], "evictionBudget": {"perHour": 0, "used": 1}}
    _, one, _ = ctl("explain", "jobs/sort")
    _, none, _ = ctl("explain", "web")
    daemon.explained["observeOnly"] = "another agent is here"
    _, observing, _ = ctl("explain")

    assert out.splitlines() == [
        "evictions  1 of 20 in the past hour",
        "dry-run    off",
        "",
        "LAST                  TIMES  PLUGIN       POD          OUTCOME  WHY",
        "2023-11-14T22:13:20Z    200  MemoryEvict  jobs/crunch  refused  memory 92 % of 16Gi, "
        "above 70 %; 429 TooManyRequests: the budget needs 2 healthy pods",
        "2023-11-14T22:09:00Z      1  MemoryEvict  jobs/sort    evicted  memory 95 % of 16Gi, "
        "above 70 %",
    ]
    assert "1 without bound in the past hour" in one
    assert "dry-run    CPUEvict" in one
    assert "jobs/crunch refused" not in one
    assert none.splitlines()[-1] == "nothing was decided about web"
    assert one.splitlines()[3:] == [
        "jobs/sort evicted 2023-11-14T22:09:00Z",
        "  by          MemoryEvict, feature BEMemoryEvict",
        "  because     memory 95 % of 16Gi, above 70 %",
        "              memory_bytes=1.52e+10, threshold_percent=70",
        "  candidates  jobs/sort, jobs/crunch",
        "  freed       memory_bytes=2.5e+09",
    ]
    assert "dry-run    all plugins: another agent is here" in observing


def value(pod, resource, unit, now, before, *claims, level="pod", **more):
    """A value as /explain has it."""
    return {
        "target": "kubepods/besteffort" if level == "qos" else "kubepods/podx",
        "level": level,
        "pod": pod,
        "uid": "",
        "resource": resource,
        "unit": unit,
        "value": now,
        "valueAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "wanted": now,
        "original": before,
        "state": "in force",
        "message": "",
        "since": "2023-11-14T22:10:00Z",
        "dryRun": False,
        "claims": [
            {"plugin": plugin, "part": "value", "value": now, "reason": reason, "inputs": inputs}
            for plugin, reason, inputs in claims
        ],
        **more,
    }


def test_explain_shows_values_with_owner_state_and_why(ctl, daemon):
    """As a table, and in detail when it is about one pod or cgroup."""
    squeeze = ("BECPUSuppress", "BE gets what LS leaves of 65 %", {"ls_cores": 0.59, "mode": "q"})
    daemon.explained["values"] = [
        value("", "cpu_quota", "us, -1 for no limit", 71100, -1, squeeze, level="qos"),
        value(
            *("", "cpuset", "CPUs", [0], [0], squeeze),
            level="qos",
            state="would",
            wanted=[0, 1, 2, 5],
            valueAt="2023-11-14T22:10:00Z",
        ),
        value(
            "jobs/sort",
            "memory_high",
            "bytes, -1 for no limit",
            2**29,
            -1,
            ("CgroupReconcile", "throttling", {}),
            ("Other", "more", {}),
            state="failed",
            message="EINVAL",
        ),
    ]
    _, table, _ = ctl("explain")
    _, one, _ = ctl("explain", "jobs/sort")

    aged = [re.sub(r"\d+d \d+h ago", "OLD ago", line) for line in table.splitlines()]
    rows = [re.sub(r" {2,}\d+d \d+h ", "  AGE ", line).split("  ") for line in aged]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows[3:7]]
    because = "BE gets what LS leaves of 65 % (ls_cores=0.59, mode=q)"
    assert cells == [
        ["VALUE", "WHERE", "NOW", "WANTED", "BEFORE", "STATE", "SINCE", "BY", "WHY"],
        [
            *("cpu_quota", "kubepods/besteffort", "71100", "71100", "no limit"),
            *("in force", "AGE", "BECPUSuppress", because),
        ],
        [
            *("cpuset", "kubepods/besteffort", "0, OLD ago", "0-2,5", "0"),
            *("would", "AGE", "BECPUSuppress", because),
        ],
        [
            *("memory_high", "jobs/sort", "512Mi", "512Mi", "no limit", "failed", "AGE"),
            *("CgroupReconcile, Other", "throttling; more"),
        ],
    ]
    assert "memory_high of jobs/sort, in bytes, -1 for no limit" in one
    assert "  message                                     EINVAL" not in one
    assert [line.split(maxsplit=1) for line in one.splitlines()[4:8]][:2] == [
        ["now", "512Mi"],
        ["wanted", "512Mi"],
    ]
    assert "EINVAL" in one
    assert "CgroupReconcile (value 536870912)  throttling" in one
    assert "cpuset" not in one


def test_dry_run_is_listed_and_switched(ctl, daemon):
    """Who switched it is said; a plugin that there is not is named, and its neighbour."""
    _, before, _ = ctl("dry-run")
    _, after, _ = ctl("dry-run", "BECPUSuppress", "on")
    daemon.switches.observe_only = "another agent is here"
    unknown, half = ctl("dry-run", "CPUBrust", "on"), ctl("dry-run", "CPUBurst")
    _, observing, _ = ctl("dry-run")

    assert before.splitlines() == [
        "PLUGIN         DRY-RUN  BY",
        "BECPUSuppress  off      flag or config file",
        "CPUBurst       on       flag or config file",
    ]
    assert "BECPUSuppress  on       hand, until the next start" in after
    assert (unknown[0], "the nearest is 'CPUBurst'" in unknown[2]) == (2, True)
    assert (half[0], "wanted on or off" in half[2]) == (2, True)
    assert observing.splitlines()[-1] == "all in dry-run: another agent is here"


def test_status_says_what_is_changed(ctl, daemon):
    """By plugin and state; evictions of the hour; the plugins in dry-run."""
    daemon.status["claims"] = {"B": {"would": 2}, "A": {"in force": 12, "yielded": 1}}
    daemon.status["dry_run"] = ["B"]
    _, out, _ = ctl("status")
    daemon.status |= {"claims": {}, "dry_run": False}
    _, none, _ = ctl("status")

    lines = out.splitlines()
    assert "changes    A: 12 in force, 1 yielded; B: 2 would" in lines
    assert "evictions  3 of 20 in the past hour" in lines
    assert "dry-run    B" in lines
    assert "changes    none" in none
    assert "dry-run" not in none


def test_top_marks_who_is_held_down(ctl, daemon):
    """With the cores that plugins leave to it."""
    daemon.limits["kubepods"] = 0.71
    _, out, _ = ctl("top")

    assert ["default/web", "LS", "≤0.71"] in [line.split()[:3] for line in out.splitlines()]


def test_audit_shows_the_latest_events_last(ctl, daemon):
    """Whatever they are about; and why there may be no new ones."""
    _, out, _ = ctl("audit")
    _, one, _ = ctl("audit", "--reason", "evicted", "-o", "json")
    daemon.audit.enabled, daemon.audit.problem = False, "No space left on device"
    _, none, _ = ctl("audit", "--pod", "nobody")

    assert out.splitlines() == [
        "TIME                       ABOUT          REASON         MESSAGE",
        "2026-07-24T06:52:45+08:00  jobs/sort      evicted        kill pod: sort",
        "2026-07-24T06:52:46+08:00  node           UpdateCgroups  update cpu.max to 5",
        "2026-07-24T06:52:47Z       shop/web/main  CPUBurst       m",
    ]
    assert [event["name"] for event in json.loads(one)["events"]] == ["sort"]
    assert none.splitlines() == [
        "no events in /var/log/koordlet",
        "the gate AuditEvents is off: nothing is recorded",
        "not everything is on disk: No space left on device",
    ]


def test_audit_reads_a_directory_without_a_daemon(ctl, tmp_path):
    """After the daemon has ended, or on another machine."""
    (tmp_path / "audit.log").write_text(
        '{"createdAt":"2026-07-24T06:52:45Z","reason":"a","message":"one"}\n'
        '{"createdAt":"2026-07-24T06:52:46Z","reason":"b","message":"two"}\n'
    )
    found = ctl("audit", "--dir", str(tmp_path), "-n1", "-o", "json")
    wrong = ctl("audit", "--dir", str(tmp_path), "--lines=0")

    assert [event["message"] for event in json.loads(found[1])["events"]] == ["two"]
    assert wrong[0] == 2
    assert "use 1 to 2048" in wrong[2]


def test_audit_follows_the_log(daemon):
    """Event by event, as they come, until ^C."""
    command = [sys.executable, "-m", "koordlet.cli.koordletctl", "audit", "--follow", "-n1"]
    process = subprocess.Popen(
        [*command, "--run-dir", daemon.run_dir], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().split()[-1] == "m"
    daemon.audit.lines.append(daemon.audit.lines[0].replace(b"sort", b"next"))
    assert process.stdout.readline().split()[1] == "jobs/next"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stdout.read() == ""


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("metrics", "node_cpu"), "did you mean node_cpu_usage?"),
        (("metrics", "a/b"), "did you mean"),
        (("metrics", "node_cpu_usage", "--window", "5"), "use a duration above 0"),
        (("metrics", "node_cpu_usage", "--pod", "wbe"), "did you mean default/web?"),
        (("plugins", "release", "PressureWach"), "did you mean PressureWatch?"),
        (("stats",), "choose from 'status'"),
        (("top", "--sort", "size"), "choose from 'cpu'"),
        (("top", "--interval", "0"), "use 0.1 to 3600 seconds"),
        ((), "COMMAND"),
    ],
)
def test_a_wrong_question_is_2_and_says_what_was_meant(ctl, daemon, question, message):
    """Whether the command line is wrong or the daemon does not know the name."""
    code, out, err = ctl(*question)

    assert (code, out) == (2, "")
    assert message in err


def test_no_daemon_is_1(ctl, tmp_path):
    """In one line."""
    code, out, err = ctl("status")

    assert (code, out) == (1, "")
    assert err.startswith(f"koordletctl: wanted a running daemon, found no ctl.sock in {tmp_path}")
    assert err.count("\n") == 1


def test_names_cannot_steer_the_terminal(ctl, daemon):
    """Names of cgroups may hold any character, and what looks like markup."""
    daemon.plugins[0]["name"] = "\x1b[2J[red]x"

    _, out, _ = ctl("plugins")

    assert "\\x1b[2J[red]x" in out
    assert "\x1b" not in out


def test_a_closed_pipe_is_quiet(daemon):
    """As with `koordletctl top | head`."""
    daemon.cache.append(stamp(daemon.clock), [Sample(NODE_CPU_USAGE, 1.0)])
    command = [sys.executable, "-m", "koordlet.cli.koordletctl", "top", "--run-dir", daemon.run_dir]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()

    assert (process.returncode, errors) == (1, b"")


def test_the_start_imports_nothing_heavy():
    """Asking must not cost more than the response, and asyncio alone is 19 MiB."""
    heavy = ("aiohttp", "asyncio", "structlog", "pyroute2", "psutil", "yaml", "prometheus_client")
    script = (
        "import sys, koordlet.cli.koordletctl as ctl, koordlet.cli.ctl.top, koordlet.cli.ctl.top;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert found.stdout == b"[]\n"


def test_explain_shows_what_was_added_to_containers(ctl, daemon):
    """Variables, mounts and devices, each on its own line; an older agent has none."""
    answer = {
        "at": "2026-01-01T00:00:00Z",
        "pod": "ml/train",
        "container": "main",
        "adjusted": [],
        "inDryRun": [],
        "left": [],
    }
    added = {"by": "GPUEnvInject", "env": {"A": "1"}, "mounts": ["/s:/d"], "devices": []}
    tried = {"by": "RDMADeviceInject", "env": {}, "mounts": [], "devices": ["/dev/x 10:58"]}
    daemon.explained["runtimeHooks"] = [answer]
    code, _, _ = ctl("explain", "ml/train")
    assert code == 0

    daemon.explained["runtimeHooks"] = [answer | {"injected": [added], "injectedInDryRun": [tried]}]
    _, out, _ = ctl("explain", "ml/train")

    lines = [line.split() for line in out.splitlines()[-3:]]
    assert [line[3:] for line in lines] == [
        ["A=1", "GPUEnvInject", "added"],
        ["/s:/d", "GPUEnvInject", "added"],
        ["/dev/x", "10:58", "RDMADeviceInject", "in", "dry-run:", "added"],
    ]
