"""Plugins that hold the event loop, in a real process: interrupted, or the process ends itself."""

import json
import signal
import textwrap
from pathlib import Path

import pytest

from koord.util.ownedfiles import OwnedDirectory
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.qosmanager.admission import Quarantine
from koordlet.qosmanager.guard import HangRecord, previous_hang
from tests.support.warm_python import WarmPython

TIMEOUT = 60.0  # seconds; only a plugin that is not stopped takes them
PROGRAM = textwrap.dedent(
    '''
    """A small daemon: a plugin that does what argv[1] says, and one that behaves."""
    import asyncio, itertools, json, re, sys, time
    from pathlib import Path
    from prometheus_client import CollectorRegistry
    from koordlet.features import feature_gates
    from koord.component.flags import FeatureGates, FeatureSpec
    from koord.api.node import Node
    from koordlet.plugin import ExtensionPlugin, FlagSet, PluginRegistry
    from koordlet.plugin.interfaces import UnavailableClient
    from koordlet.qosmanager import QOSExtensionConfig, QOSManager
    from koordlet.qosmanager.guard import GuardOptions
    from koordlet.statesinformer.informer import StatesInformer
    from koord.util.clock import SystemClock
    from koord.util.health import Health
    from koord.util.ownedfiles import OwnedDirectory
    from koord.util.stop import Stop

    def swallow():
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass

    def eat():
        hoard = []
        while True:
            hoard.append(b"x" * 2**20)
            time.sleep(0.002)

    DEEDS = {
        "sleep": lambda: time.sleep(60),
        "spin": lambda: [None for _ in iter(int, 1)],
        "regex": lambda: re.match(r"(a*)*b", "a" * 64),
        "swallow": swallow,
        "native": lambda: sum(itertools.repeat(0)),
        "eat": eat,
        "nothing": lambda: None,
    }

    class Bad(ExtensionPlugin):
        def setup(self, client, cache, states):
            if WHERE == "callback":
                states.register_callbacks("AllPods", "bad", "", lambda *_: DEEDS[DEED]())
            if WHERE == "setup":
                DEEDS[DEED]()

        async def run(self, stop):
            async for _ in stop.every(0.05):
                if WHERE == "task":
                    await asyncio.create_task(self.work())
                elif WHERE == "run":
                    await self.work()

        async def work(self):
            DEEDS[DEED]()

    class Good(ExtensionPlugin):
        def setup(self, *_):
            pass

        async def run(self, stop):
            async for _ in stop.every(0.05):
                pass

    async def main():
        clock, registry = SystemClock(), PluginRegistry()
        for name, plugin in (("Bad", Bad()), ("Good", Good())):
            view = registry.from_source(name, "1.0")
            spec = FeatureSpec(default=name != "Bad" or GATE == "on")
            view.register_qos_ext_plugin(name, spec, plugin)
        config = QOSExtensionConfig(
            registry, feature_gates(), clock=clock, metrics=CollectorRegistry()
        )
        config.init_flags(FlagSet())
        states = StatesInformer(clock)
        states.set_node(Node("n1"))
        states.set_pods(())
        manager = QOSManager(
            config, client=UnavailableClient(), metric_cache=None, states_informer=states,
            health=Health(), run_dir=OwnedDirectory.open(Path(RUN_DIR)), boot_id="boot-1",
            guard=GuardOptions(interrupt_after=LIMIT, exit_after=LIMIT * 4, memory=64 * 2**20),
        )
        stop = Stop(clock)
        informer = asyncio.create_task(states.run(stop))
        running = asyncio.create_task(manager.run(stop))
        while rounds(manager, "Good") < ROUNDS:
            await asyncio.sleep(0.02)
        stop.set()
        await running
        await informer
        print(json.dumps({entry.name: [entry.state, entry.rounds, entry.reason]
                          for entry in manager.describe()}))

    def rounds(manager, name):
        return sum(entry.rounds["ok"] for entry in manager.describe() if entry.name == name)

    DEED, WHERE, RUN_DIR, GATE = sys.argv[1:5]
    ROUNDS = int(sys.argv[5])
    LIMIT = 5.0 if DEED in ("eat", "nothing") else 0.4
    asyncio.run(main())
    '''
)


def owned(path: Path) -> OwnedDirectory:
    return OwnedDirectory.open(path)


def gone(path: Path) -> OwnedDirectory:
    """A run directory that was removed while it was in use."""
    directory = OwnedDirectory.open(path / "gone")
    (path / "gone").rmdir()
    return directory


class Ended:
    """How the process ended: return code, plugins at the end, log events.

    It ends by itself when the plugin that behaves has had so many rounds.
    """

    def __init__(
        self,
        warm: WarmPython,
        run_dir: Path,
        deed: str,
        where: str = "run",
        rounds: int = 5,
        gate: str = "on",
    ) -> None:
        program = run_dir / "program.py"
        program.write_text(PROGRAM)
        command = [program, deed, where, run_dir, gate, str(rounds)]
        done = warm.run(command, timeout=TIMEOUT)
        self.code = done.returncode
        self.plugins = json.loads(done.stdout) if done.stdout else {}
        self.stderr = done.stderr
        self.log = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, object]]:
        return [event for event in self.log if event["event"] == name]


@pytest.mark.parametrize(
    ("deed", "where", "frame"),
    [
        ("sleep", "run", "time.sleep(60)"),
        ("spin", "run", "iter(int, 1)"),
        ("regex", "run", "re.match"),
        ("sleep", "task", "time.sleep(60)"),
        ("sleep", "setup", "time.sleep(60)"),
        ("sleep", "callback", "time.sleep(60)"),
    ],
)
def test_a_plugin_that_holds_the_loop_is_interrupted(warm, tmp_path, deed, where, frame):
    """Python code, sleeping or not, ends with its stack in the log, and the rest goes on."""
    ended = Ended(warm, tmp_path, deed, where)
    assert ended.code == 0, ended.stderr
    [blocked] = ended.events("plugin.blocked")
    assert blocked["plugin"] == "Bad"
    assert frame in blocked["stack"]
    assert blocked["held_s"] >= 0.3
    rounds = ended.plugins["Bad"][1]
    if where == "setup":
        assert ended.plugins["Bad"][0] == "broken"
    else:
        assert rounds["blocked"] >= 1
    assert not (tmp_path / "quarantine.json").exists()


@pytest.mark.parametrize(
    ("deed", "where", "frame"),
    [
        ("swallow", "run", "in work"),
        ("native", "run", "in work"),
        ("swallow", "setup", "in setup"),
        ("swallow", "callback", "in swallow"),
    ],
)
def test_what_cannot_be_interrupted_ends_the_process_and_is_kept_out(
    warm, tmp_path, deed, where, frame
):
    """The process ends by itself; the next one runs without that plugin and says why."""
    ended = Ended(warm, tmp_path, deed, where)
    assert ended.code == -signal.SIGALRM, ended.stderr
    assert len(ended.events("plugin.blocked")) == (deed == "swallow")

    again = Ended(warm, tmp_path, deed, where)
    assert again.code == 0, again.stderr
    (hung,) = again.events("plugin.hung")
    assert hung["plugin"] == "Bad"
    assert frame in hung["stacks"]
    assert again.plugins["Bad"][1]["ok"] == 0
    assert (
        "held the event loop"
        in json.loads((tmp_path / "quarantine.json").read_text())["plugins"]["Bad"]["reason"]
    )

    third = Ended(warm, tmp_path, deed, where)
    assert third.code == 0
    assert not third.events("plugin.hung")
    assert third.plugins["Bad"][1]["ok"] == 0


@pytest.mark.parametrize("where", ["setup", "callback"])
def test_a_plugin_that_is_off_cannot_hold_anything(warm, tmp_path, where):
    """Not even one that would, in setup or a callback, end each process."""
    ended = Ended(warm, tmp_path, "swallow", where, gate="off")
    assert ended.code == 0, ended.stderr
    assert ended.plugins["Bad"][0] == "disabled"
    assert not ended.events("plugin.blocked")


def test_a_plugin_that_takes_memory_without_a_pause_is_interrupted(warm, tmp_path):
    """Growth within one step is seen before the step is too long."""
    ended = Ended(warm, tmp_path, "eat")
    assert ended.code == 0, ended.stderr
    assert "grew the process" in ended.events("plugin.failed")[0]["error"]


def test_plugins_that_behave_never_meet_the_guard(warm, tmp_path):
    """Without a blocked plugin there is nothing in the log and no quarantine."""
    ended = Ended(warm, tmp_path, "nothing", rounds=10)
    assert ended.code == 0
    assert not ended.events("plugin.blocked")
    assert previous_hang(owned(tmp_path), "boot-1") is None


def test_a_kill_during_a_step_blames_no_plugin(tmp_path):
    """A process that was killed from outside leaves no stacks, so no plugin is blamed."""
    record = HangRecord(owned(tmp_path), "boot-1")
    record.begin("Bad")
    assert previous_hang(owned(tmp_path), "boot-1") is None


def test_a_hang_of_another_boot_blames_no_plugin(tmp_path):
    """The run directory may outlive the boot; its records do not."""
    record = HangRecord(owned(tmp_path), "boot-1")
    record.begin("Bad")
    record.stacks.write(b"Current thread 0x1 (most recent call first):\n")
    record.close()
    hang = previous_hang(owned(tmp_path), "boot-1")
    assert hang is not None
    assert hang.plugin == "Bad"
    assert previous_hang(owned(tmp_path), "boot-2") is None
    (tmp_path / "plugin-step").write_bytes(b"junk")
    assert previous_hang(owned(tmp_path), "boot-1") is None


def test_a_run_directory_that_cannot_be_used_costs_the_record_only(tmp_path):
    """Watching goes on where nothing can be kept."""
    record = HangRecord.open(gone(tmp_path), "boot-1")
    record.begin("P")
    record.end()
    record.close()
    (tmp_path / "plugin-hang").mkdir()
    assert previous_hang(owned(tmp_path), "boot-1") is None


def test_the_step_record_knows_who_runs(tmp_path):
    """Names of any length and script are noted, shortened to what fits."""
    record = HangRecord(owned(tmp_path), "boot-1")
    record.stacks.write(b"x")
    record.stacks.flush()
    for name, noted in (("A", "A"), ("Überwachung", "Überwachung"), ("x" * 300, "x" * 200)):
        record.begin(name)
        hang = previous_hang(owned(tmp_path), "boot-1")
        assert hang is not None
        assert hang.plugin == noted
    record.end()
    hang = previous_hang(owned(tmp_path), "boot-1")
    assert hang is not None
    assert hang.plugin == ""
    record.close()


def test_without_any_place_to_write_the_record_is_kept_in_memory(tmp_path, monkeypatch):
    """A full run directory in a container whose root is read-only: there is no /tmp either."""
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    record = HangRecord.open(gone(tmp_path), "boot-1")
    record.begin("A")
    record.end()
    record.stacks.write(b"x")
    record.close()


def test_the_record_is_readable_by_its_owner_only(tmp_path):
    HangRecord(owned(tmp_path), "boot-1").close()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_quarantine_survives_the_process_but_not_the_boot_nor_the_version(tmp_path):
    """The list is per boot and per version of the plugin."""
    clock = SimulatedClock(wall=0)
    Quarantine(owned(tmp_path), "boot-1", clock).add("P", "1.0", "hung")
    kept = Quarantine(owned(tmp_path), "boot-1", clock)
    sentence = kept.get("P", "1.0")
    assert sentence is not None
    assert (sentence.reason, sentence.at) == ("hung", "1970-01-01T00:00:00Z")
    assert kept.get("P", "1.1") is None
    assert kept.get("Q", "1.0") is None
    assert Quarantine(owned(tmp_path), "boot-2", clock).get("P", "1.0") is None
    assert kept.clear("P")
    assert not kept.clear("P")
    assert Quarantine(owned(tmp_path), "boot-1", clock).get("P", "1.0") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b'{"boot_id": "boot-1"}',
        b'{"boot_id": "boot-1", "plugins": []}',
        b'{"boot_id": "boot-1", "plugins": {"P": {"why": 1}}}',
    ],
)
def test_a_damaged_quarantine_list_counts_as_empty(tmp_path, content):
    """A broken state file costs its content, not the start."""
    (tmp_path / "quarantine.json").write_bytes(content)
    quarantine = Quarantine(owned(tmp_path), "boot-1", SimulatedClock())
    assert quarantine.get("P", "1.0") is None
    quarantine.add("P", "1.0", "hung")
    assert Quarantine(owned(tmp_path), "boot-1", SimulatedClock()).get("P", "1.0") is not None


def test_a_quarantine_that_cannot_be_saved_still_holds(tmp_path):
    """A full or vanished run directory is logged; the plugin stays out for this process."""
    quarantine = Quarantine(gone(tmp_path), "boot-1", SimulatedClock())
    quarantine.add("P", "1.0", "hung")
    assert quarantine.get("P", "1.0") is not None
