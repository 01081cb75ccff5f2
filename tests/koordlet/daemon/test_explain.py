"""A plugin's changes are explained and audited, and not written in dry-run, in a whole daemon."""

import fcntl
import json
import os

import pytest

from koord.api.qos import KubeQoS
from koordlet.plugin import ClaimScope, ExtensionPlugin, Level, Target, resources
from koordlet.plugin.kernel import AuditText, ClaimState
from koordlet.plugin.testing import FakeHost

BE = KubeQoS.BEST_EFFORT
UID = "11111111-2222-3333-4444-555555555555"


class Squeeze(ExtensionPlugin):
    """Holds best-effort pods to half a core, each time a test says so."""

    may_claim = (
        ClaimScope(
            resources.CPU_QUOTA,
            Level.QOS,
            frozenset({BE}),
            audit_text=AuditText("AdjustBEByNodeCPUUsage", "update BE group to cfs_quota: {value}"),
        ),
        ClaimScope(resources.CPU_SHARES, Level.POD),
    )

    def setup(self, client, metric_cache, states_informer):
        self.states = states_informer

    async def run(self, stop):
        await stop.wait()

    async def squeeze(self, quota=50000):
        return await self.claim(
            Target.qos_class(self.kernel.layout, BE),
            resources.CPU_QUOTA,
            quota,
            reason="BE gets what LS leaves of 65 %",
            inputs={"ls_cores": 2.1},
        )


@pytest.fixture
async def squeezed(daemon, tmp_path):
    """A daemon whose plugin holds BE down; its audit log is on."""
    daemon.probe = Squeeze()
    daemon.busy_pod(UID, BE)
    await daemon.start(
        "--feature-gates=AuditEvents=true,AuditEventsHTTPHandler=true,Probe=true",
        f"--audit-log-dir={tmp_path / 'audit'}",
    )
    await daemon.seconds(2)
    assert (await daemon.probe.squeeze()).state is ClaimState.IN_FORCE
    yield daemon
    await daemon.stop()


def is_locked(host):
    """Whether a daemon that acts holds the lock on the cgroups of the host."""
    descriptor = os.open(host.paths.cgroup, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def quota(host: FakeHost) -> str:
    return host.qos_group(BE).read("cpu/cpu.cfs_quota_us")


@pytest.mark.parametrize(
    "place", [UID, f"unknown/{UID}", "kubepods/besteffort", "{cgroup}/cpu/kubepods/besteffort"]
)
async def test_a_pods_explanation_has_the_limit_of_its_class(squeezed, place):
    """Over HTTP and to koordletctl: owner, value, original, since when, the numbers, the rule."""
    place = place.format(cgroup=squeezed.host.paths.cgroup)
    status, text = await squeezed.get(f"/explain?pod={place}")
    found = json.loads(text)

    assert status == 200
    assert found == await squeezed.ctl(f"explain?pod={place}")
    [value] = found["values"]
    assert value["target"] == "kubepods/besteffort"
    assert (value["resource"], value["value"], value["original"]) == ("cpu_quota", 50000, -1)
    assert value["state"] == "in force"
    assert value["since"].startswith("2023-11-14T22:13:")
    assert value["claims"] == [
        {
            "plugin": "Probe",
            "part": "value",
            "value": 50000,
            "reason": "BE gets what LS leaves of 65 %",
            "inputs": {"ls_cores": 2.1},
        }
    ]


async def test_others_are_not_concerned(squeezed):
    """Another class, and an unknown pod."""
    for place in ("kubepods/burstable", "nobody"):
        assert (await squeezed.ctl(f"explain?pod={place}"))["values"] == []


async def test_status_and_top_show_it(squeezed):
    """How many values by plugin; which pods are held to how much."""
    status, top = await squeezed.ctl("status"), await squeezed.ctl("top")
    assert status["claims"] == {"Probe": {"in force": 1}}
    assert status["evictions"] == {"per_hour": 20, "used": 0}
    assert [pod["cpu_limit_cores"] for pod in top["pods"]] == [0.5]


async def test_changes_are_audited_in_the_plugins_words(squeezed, tmp_path):
    """The file is there before the daemon ends, and what is restored at its end is in it, too."""
    status, line = await squeezed.get("/events")
    event = json.loads(line)
    assert status == 200
    assert (event["type"], event["reason"]) == ("node", "AdjustBEByNodeCPUUsage")
    assert event["message"] == (
        "update BE group to cfs_quota: 50000, Probe: BE gets what LS leaves of 65 % (ls_cores=2.1)"
    )
    file = tmp_path / "audit/audit.log"
    await squeezed.stop()
    last = json.loads(file.read_text().splitlines()[-1])
    assert last["message"].startswith("restored ")
    assert last["message"].endswith(": 50000, now -1, Probe: no longer claimed")
    assert quota(squeezed.host) == "-1"


async def test_dry_run_restores_and_writes_nothing_until_it_is_off_again(squeezed):
    """Switched by hand while the value is in force; no restart is needed."""
    assert quota(squeezed.host) == "50000"
    assert is_locked(squeezed.host)
    found = await squeezed.post("dry-run/Probe/on")
    assert not is_locked(squeezed.host)  # another daemon may act
    assert found["plugins"] == [{"name": "Probe", "dryRun": True, "byHand": True}]
    assert quota(squeezed.host) == "-1"
    [value] = (await squeezed.ctl("explain"))["values"]
    assert (value["value"], value["wanted"], value["state"]) == (-1, 50000, "would")
    newest = (await squeezed.ctl("audit?lines=2"))["events"]
    assert [event["reason"].partition("_")[0] for event in newest] == [
        "AdjustBEByNodeCPUUsage",
        "would",
    ]
    assert newest[0]["message"].endswith(": 50000, now -1, Probe: in dry-run from now on")

    assert (await squeezed.probe.squeeze(40000)).state is ClaimState.WOULD
    assert quota(squeezed.host) == "-1"
    explained = await squeezed.ctl("explain")
    assert explained["dryRun"] == ["Probe"]
    assert [(each["wanted"], each["state"]) for each in explained["values"]] == [(40000, "would")]
    assert (await squeezed.ctl("status"))["dry_run"] == ["Probe"]
    assert (await squeezed.ctl("top"))["pods"][0]["cpu_limit_cores"] is None
    newest = (await squeezed.ctl("audit?lines=1"))["events"][0]
    assert newest["reason"] == "would_AdjustBEByNodeCPUUsage"

    assert not is_locked(squeezed.host)
    await squeezed.post("dry-run/all/off")
    assert quota(squeezed.host) == "40000"
    assert is_locked(squeezed.host)
    assert (await squeezed.ctl("dry-run"))["plugins"][0]["dryRun"] is False


async def test_a_plugin_that_is_not_there_is_named(squeezed):
    """And its nearest neighbour; nothing has changed."""
    answer = await squeezed.post("dry-run/Prob/on", status=400)
    assert "found 'Prob'; no plugin of this name; the nearest is 'Probe'" in answer
    assert quota(squeezed.host) == "50000"


@pytest.mark.parametrize(
    ("content", "by_hand"),
    [("dry-run: false\nlog-level: info\n", False), ("log-level: info\n", True)],
)
async def test_a_config_file_that_speaks_of_dry_run_wins(daemon, tmp_path, content, by_hand):
    """When it is read again; one that does not leaves alone what was switched by hand."""
    config = tmp_path / "koordlet.yaml"
    config.write_text(content)
    await daemon.start(f"--config={config}")
    await daemon.seconds(2)
    await daemon.post("dry-run/Probe/on")
    config.write_text(content.replace("info", "debug"))
    await daemon.seconds(3)
    assert len(daemon.events("config.read")) == 1
    assert (await daemon.ctl("dry-run"))["plugins"][0]["dryRun"] is by_hand
    assert len(daemon.events("dry_run.reset")) == (not by_hand)


async def test_a_foreign_write_shows_at_once(squeezed):
    """What the kernel holds at the moment of the question, not what was written last."""
    squeezed.host.qos_group(BE).write("cpu/cpu.cfs_quota_us", "77000\n")

    [value] = (await squeezed.ctl("explain"))["values"]

    assert (value["value"], value["wanted"], value["original"]) == (77000, 50000, -1)


async def test_in_dry_run_nothing_has_changed(squeezed):
    """The desired value is another one than the kernel's."""
    await squeezed.post("dry-run/Probe/on")

    [value] = (await squeezed.ctl("explain"))["values"]

    assert quota(squeezed.host) == "-1"
    assert (value["state"], value["value"], value["wanted"]) == ("would", -1, 50000)
