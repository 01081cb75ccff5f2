"""Values that a real daemon changes: kept, taken over, restored, whichever way it ends."""

import textwrap

import pytest

from koord.api.qos import KubeQoS
from koordlet.cli.koordletctl import main
from koordlet.executor.journal import JournalRecord, header_line, set_line
from koordlet.host.paths import HostPaths
from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import LAID_OUT

PLUGIN = """\
    from koord.api.qos import KubeQoS
    from koordlet.plugin import ExtensionPlugin, FeatureSpec, Level, ClaimScope, Target
    from koordlet.plugin import resources

    class Squeeze(ExtensionPlugin):
        spec = FeatureSpec(default=True)
        may_claim = (ClaimScope(resources.CPU_SHARES, Level.QOS),)

        def setup(self, client, metric_cache, states_informer):
            pass

        async def run(self, stop):
            group = Target.qos_class(self.kernel.layout, KubeQoS.BEST_EFFORT)
            async for turn in stop.every(0.1):
                await self.claim(
                    group, resources.CPU_SHARES, 500 + turn % 2, reason="it is a test"
                )
"""
FILE = "cpu/cpu.shares"


@pytest.fixture
def group(tmp_path):
    host = FakeHost(tmp_path / "host")
    return host.qos_group(KubeQoS.BEST_EFFORT)


@pytest.fixture
def start(koordlet, tmp_path, group):
    info = tmp_path / "site" / "squeeze-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squeeze\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[koordlet.qos_plugins]\nSqueeze = squeeze:Squeeze\n")
    (tmp_path / "site" / "squeeze.py").write_text(textwrap.dedent(PLUGIN))
    flags = [
        "--standalone",
        "--force",
        f"--cgroup-root-dir={tmp_path}/host/cgroup",
        f"--proc-root-dir={tmp_path}/host/proc",
        f"--sys-root-dir={tmp_path}/host/sys",
    ]

    def start(*more, program=(LAID_OUT,), run_dir=tmp_path / "run"):
        daemon = koordlet(
            *flags,
            *more,
            run_dir=run_dir,
            program=program,
            PYTHONPATH=str(tmp_path / "site"),
        )
        daemon.wait_ready()
        return daemon

    return start


def squeezed(group):
    return group.read(FILE) in ("500", "501")


def test_a_killed_daemon_is_made_good_by_the_next(start, group):
    """Which has the plugin off, so that it is not squeezed again."""
    daemon = start()
    daemon.until(lambda: squeezed(group))
    [value] = daemon.until(lambda: daemon.ctl("explain")["values"])  # after the write
    assert (value["original"], value["state"]) == (1024, "in force")
    assert daemon.ctl("status")["values"]["changed"] == 1
    daemon.kill()
    assert squeezed(group)

    daemon = start("--feature-gates=Squeeze=false")
    assert group.read(FILE) == "1024"
    assert [event["count"] for event in daemon.events("values.restored")] == [1]
    assert daemon.stop() == 0


def test_a_kept_value_is_taken_over_and_restored_by_hand(
    start, group, tmp_path, monkeypatch, capsys
):
    """As in a rolling update; the original outlives both daemons."""
    daemon = start("--on-exit=keep")
    daemon.until(lambda: squeezed(group))
    assert daemon.stop() == 0
    assert squeezed(group)

    daemon = start("--on-exit=keep")
    assert squeezed(group)
    [value] = daemon.until(lambda: daemon.ctl("explain")["values"])
    assert value["original"] == 1024
    assert not daemon.events("values.restored")
    assert daemon.stop() == 0
    assert squeezed(group)

    roots = [f"--cgroup-root-dir={tmp_path}/host/cgroup", f"--proc-root-dir={tmp_path}/host/proc"]
    laid_out = HostPaths.below(tmp_path / "host")
    monkeypatch.setattr("koordlet.cli.ctl.restore.host_paths", lambda _: laid_out)
    assert main(["restore", f"--run-dir={tmp_path}/run", *roots]) == 0
    assert "1 restored" in capsys.readouterr().out
    assert group.read(FILE) == "1024"


def test_a_planted_journal_is_refused_at_the_start(start, group, tmp_path):
    """By name; what it names is neither made nor written, and the daemon works."""
    victim = tmp_path / "host" / "victim"
    victim.mkdir()
    (victim / "cpu.shares").write_text("5\n")
    boot_id = (tmp_path / "host/proc/sys/kernel/random/boot_id").read_text().strip()
    planted = JournalRecord("cpu_shares", "pod", "../../victim", 0, 0, ("P",), "1024", "5", "5")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal").write_bytes(header_line(boot_id) + set_line(1, planted))

    daemon = start()
    daemon.until(lambda: squeezed(group))

    [event] = daemon.events("journal.records_rejected")
    assert event["count"] == 1
    assert (
        "cpu_shares of ../../victim in the journal is refused: its place"
        in (daemon.ctl("status")["problems"]["executor"])
    )
    assert daemon.stop() == 0
    assert (victim / "cpu.shares").read_text() == "5\n"


def test_of_two_daemons_of_a_host_one_acts(start, group, tmp_path):
    """Also with run directories of their own; the other takes over when the first has ended."""
    first = start()
    first.until(lambda: squeezed(group))
    second = start(run_dir=tmp_path / "another")

    second.until(lambda: second.ctl("status")["observe_only"])
    status = second.ctl("status")
    assert "cgroup: wanted to be the only koordlet that acts on this host" in status["observe_only"]
    assert status["problems"]["acting lock"] == status["observe_only"]
    assert status["values"]["changed"] == 0
    assert "koordlet_observe_only 1.0" in second.get("/metrics")[1]
    assert first.stop() == 0
    second.until(lambda: squeezed(group))
    assert second.ctl("status")["observe_only"] == ""
    assert "koordlet_observe_only 0.0" in second.get("/metrics")[1]
    assert second.stop() == 0


def test_flags_alone_cannot_have_a_plain_file_written(start, group):
    """Whatever names the roots: what is not the kernel's is refused, by name, and left."""
    daemon = start(program=("-m", "koordlet.cli.koordlet"))
    [value] = daemon.until(lambda: daemon.ctl("explain")["values"])

    assert value["state"] == "failed"
    assert "cpu.shares: wanted a kernel file (cgroup or cgroup2), found one on" in value["message"]
    assert daemon.stop() == 0
    assert group.read(FILE) == "1024"


def test_an_orderly_end_puts_everything_back(start, group):
    """Also with the plugin in the middle of changing it."""
    daemon = start()
    daemon.until(lambda: squeezed(group))

    assert daemon.stop() == 0
    assert group.read(FILE) == "1024"
