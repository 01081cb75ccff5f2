"""koordletctl and a real koordlet, each a process of its own, on a fake host."""

import json

import pytest

import koordlet
from koord.api.qos import KubeQoS
from koord.util.clock import SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.host.procfiles import parse_boot_id
from koordlet.plugin.testing import FakeHost
from koordlet.qosmanager.admission import Quarantine
from tests.support.kube.daemon_flags import host_flags

UID = "f2b9c1de-0000-4000-8000-000000000001"


@pytest.fixture
def host(tmp_path):
    host = FakeHost(tmp_path / "host", version=2)
    pod = host.add_pod(UID, KubeQoS.BURSTABLE)
    pod.group.use_memory(64 * 2**20)
    return host


@pytest.fixture
def run_dir(tmp_path, host):
    """A run directory in which a plugin is in quarantine since before."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    boot_id = parse_boot_id((host.paths.proc / "sys/kernel/random/boot_id").read_bytes())
    Quarantine(OwnedDirectory.open(run_dir), boot_id, SystemClock()).add(
        "PressureWatch", koordlet.__version__, "held the event loop"
    )
    return run_dir


@pytest.fixture
def roots(host):
    """The flags that name the directories of the fake host, those of the kernel first."""
    return host_flags(host.paths)


@pytest.fixture
def daemon(koordlet, run_dir, roots):
    daemon = koordlet(
        *("--standalone", "--node-name=n1"),
        "--feature-gates=PressureWatch=true,PSICollector=true",
        *roots,
        run_dir=run_dir,
    )
    daemon.wait_ready()
    return daemon


@pytest.fixture
def ctl(warm, run_dir):
    def ctl(*args):
        return warm.run(["-m", "koordlet.cli.koordletctl", "--run-dir", run_dir, *args])

    return ctl


@pytest.fixture
def eventually(daemon, ctl):
    """Asks koordletctl for JSON until the response is as wanted, and returns it."""

    def eventually(*args, wanted=lambda answer: True):
        def ask():
            done = ctl(*args, "--output=json")
            answer = json.loads(done.stdout) if done.returncode == 0 else None
            return answer if answer is not None and wanted(answer) else None

        return daemon.until(ask)

    return eventually


def pressure_watch(plugins):
    [found] = [plugin for plugin in plugins if plugin["name"] == "PressureWatch"]
    return found


def plugin_is(state):
    return lambda plugins: pressure_watch(plugins)["state"] == state


def test_a_daemon_answers_queries_and_commands(eventually, ctl):
    """What is measured shows up, and a released plugin runs."""
    top = eventually("top", wanted=lambda top: top["pods"] and top["pods"][0]["memory_bytes"])
    quarantined = eventually("plugins", wanted=plugin_is("quarantined"))
    released = ctl("plugins", "release", "PressureWatch")
    eventually("plugins", wanted=plugin_is("running"))
    node_metric = eventually("nodemetric")
    status, doctor = ctl("status"), ctl("doctor", "-o", "json")

    assert top["node"]["name"] == "n1"
    assert (top["pods"][0]["uid"], top["pods"][0]["memory_bytes"]) == (UID, 64 * 2**20)
    assert "koordletctl plugins release PressureWatch" in pressure_watch(quarantined)["reason"]
    assert (released.returncode, released.stdout) == (0, "PressureWatch is released\n")
    assert "NodeTopologyReport, PSICollector, PodNetworkCollector, PressureWatch" in status.stdout
    assert json.loads(doctor.stdout)["seen_by"] == "seen by the daemon"
    assert node_metric["metadata"]["name"] == "n1"


def test_doctor_sees_with_and_without_the_daemon_the_same(daemon, ctl, roots):
    """The same code looks at the same directories."""
    kernel = roots[:4]
    of_daemon = json.loads(ctl("doctor", "-o", "json").stdout)
    own = json.loads(ctl("doctor", "-o", "json", *kernel).stdout)

    def facts(report):
        return {(one["area"], one["name"]): one["supported"] for one in report["findings"]}

    assert facts(own) == facts(of_daemon)


def test_a_stopped_daemon_cannot_be_asked(daemon, ctl):
    """Its socket is gone with it."""
    daemon.stop()

    answer = ctl("status")

    assert answer.returncode == 1
    assert "start koordlet" in answer.stderr


def test_a_record_can_be_played(daemon, ctl, tmp_path):
    """What the daemon measured goes into a file, which needs no daemon afterwards."""
    file = tmp_path / "node.record"
    recorded = ctl("record", str(file), "--duration=3s", "--output=json")
    again = ctl("record", str(file))
    daemon.stop()
    played = ctl("replay", str(file), "--output=json")
    table = ctl("replay", str(file), "--feature-gates=PSICollector=true")

    assert json.loads(recorded.stdout)["complete"], recorded.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert (again.returncode, "wanted a new file" in again.stderr) == (1, True)
    answer = json.loads(played.stdout)
    assert (played.returncode, answer["problems"], answer["linesLost"]) == (0, [], 0)
    assert 1 <= answer["seconds"] < 60
    assert "no kernel value was changed, nor would be" in table.stdout


def test_what_is_wrong_with_a_question_about_a_record(ctl, tmp_path):
    """Exit status 2 for the command line, 1 for the file."""
    file = tmp_path / "other"
    file.write_text("{}")
    missing = ctl("replay", str(tmp_path / "none"))
    other = ctl("replay", str(file))
    slo = ctl("replay", str(file), f"--nodeslo={file}.yaml")

    assert (missing.returncode, other.returncode) == (1, 1)
    assert "wanted a record" in other.stderr
    assert slo.returncode == 1
