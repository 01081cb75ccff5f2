"""A real koordlet that changes cgroups of a fake host, seen and steered with koordletctl."""

import json

import pytest

from koord.api.qos import KubeQoS
from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import LAID_OUT, host_flags

UID = "f2b9c1de-0000-4000-8000-000000000002"
PODS = {
    "kind": "PodList",
    "items": [
        {
            "metadata": {
                "name": "crunch",
                "namespace": "jobs",
                "uid": UID,
                "labels": {"koordinator.sh/qosClass": "BE"},
            },
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "resources": {
                            "requests": {"kubernetes.io/batch-cpu": "500"},
                            "limits": {"kubernetes.io/batch-memory": "64Mi"},
                        },
                    }
                ]
            },
            "status": {
                "phase": "Running",
                "qosClass": "BestEffort",
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://c1", "state": {"running": {}}}
                ],
            },
        }
    ],
}
EVERYTHING = "BatchResource=true,AuditEvents=true"


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "host", version=2)


@pytest.fixture
def pod(host):
    """The cgroup of a best-effort pod; its container has batch-memory of 64 MiB."""
    return host.add_pod(UID, KubeQoS.BEST_EFFORT).group


@pytest.fixture
def daemon(koordlet, tmp_path, host, pod):
    (tmp_path / "pods.json").write_text(json.dumps(PODS))
    daemon = koordlet(
        *("--standalone", "--node-name=n1", f"--feature-gates={EVERYTHING}"),
        f"--pods-file={tmp_path / 'pods.json'}",
        f"--audit-log-dir={tmp_path / 'audit'}",
        *host_flags(host.paths),
        run_dir=tmp_path / "run",
        program=[LAID_OUT],
    )
    daemon.wait_ready()
    daemon.until(lambda: memory(pod) == 64 * 2**20)
    return daemon


@pytest.fixture
def ctl(warm, tmp_path):
    def ctl(*args):
        command = ["-m", "koordlet.cli.koordletctl", "--run-dir", tmp_path / "run"]
        done = warm.run([*command, *args])
        assert done.returncode == 0, done.stderr
        return done.stdout

    return ctl


def memory(pod):
    text = pod.read("memory.max")
    return text if text == "max" else int(text)


def test_what_a_plugin_does_is_seen_and_steered(daemon, pod, ctl, tmp_path):
    """In force, explained and audited; only decided in dry-run; restored at the end."""
    explained = json.loads(ctl("explain", "jobs/crunch", "-o", "json"))
    values = {value["resource"]: value for value in explained["values"] if value["level"] == "pod"}
    assert values["memory_limit"]["original"] == -1
    [claim] = values["memory_limit"]["claims"]
    assert claim["plugin"] == "BatchResource"
    assert claim["inputs"] == {"batch_memory_limit_bytes": 64 * 2**20}

    switched = ctl("dry-run", "BatchResource", "on")
    assert ["BatchResource", "on", "hand,"] in [line.split()[:3] for line in switched.splitlines()]
    assert memory(pod) == "max"
    daemon.until(lambda: '"would"' in ctl("explain", pod.path, "-o", "json"))
    assert memory(pod) == "max"
    ctl("dry-run", "all", "off")
    assert memory(pod) == 64 * 2**20

    assert daemon.stop() == 0
    assert memory(pod) == "max"
    events = json.loads(ctl("audit", "--dir", str(tmp_path / "audit"), "-o", "json"))["events"]
    reported = [event for event in events if "/memory.max" in event["message"]]
    of_pod = [event for event in reported if event.get("type") == "pod"]
    assert [event["reason"] for event in of_pod[:3]] == ["runtime-hooks"] * 2 + [
        "would_runtime-hooks"
    ]
    assert of_pod[0]["name"] == "crunch"
    assert of_pod[-1]["message"].startswith("restored ")
