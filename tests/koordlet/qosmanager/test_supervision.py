"""One bad plugin breaks one plugin: deadlines, failures, breaker, cost and health."""

import asyncio
import itertools
import json

import pytest
from prometheus_client import generate_latest

from koord.plugin import Stop, Unavailable
from koord.util.ownedfiles import OwnedDirectory
from koordlet.plugin import WAITS_FOR_EVENTS, Limits
from koordlet.qosmanager.runner import Breaker


async def test_a_round_over_its_deadline_is_ended_and_tried_again(bench):
    """A turn of stop.every that hangs counts as late, and a fresh run begins after a pause."""

    class Slow(bench.Recorder):
        limits = Limits(round=10.0)

        async def round(self) -> None:
            if self.turns == 2:
                await asyncio.Event().wait()

    plugin = bench.add("P", Slow())
    await bench.start()
    await bench.clock.advance(10.9)
    assert plugin.calls.count("run") == 1
    await bench.clock.advance(4)
    assert bench.runner("P").rounds["late"] == 1
    assert plugin.calls[2:] == ["run", "stop", "run"]
    assert plugin.turns > 2
    assert bench.part("P").reason == "running: a round took longer than 10 s"


async def test_a_long_pause_between_rounds_is_not_a_late_round(bench):
    """Only the work counts, not the waiting in stop.every."""

    class Rare(bench.Recorder):
        limits = Limits(round=1.0, silence=1.0)

        async def run(self, stop: Stop) -> None:
            async for _ in stop.every(60):
                self.turns += 1

    plugin = bench.add("P", Rare())
    await bench.start()
    await bench.clock.advance(121)
    assert plugin.turns == 3
    assert bench.runner("P").errors == 0


async def test_a_run_without_rounds_is_watched_by_its_silence(bench):
    """A run that does nothing at all for too long is started again, unless it said it would."""

    class Waits(bench.Recorder):
        limits = Limits(silence=60.0)

        async def run(self, stop: Stop) -> None:
            self.calls.append("run")
            for _ in range(3):  # signs of life
                await self.clock.sleep(50)
            await asyncio.Event().wait()

    class Patient(Waits):
        limits = WAITS_FOR_EVENTS

    watched, patient = bench.add("P", Waits()), bench.add("Q", Patient())
    await bench.start()
    await bench.clock.advance(200)
    assert watched.calls.count("run") == 1
    await bench.clock.advance(30)
    assert watched.calls.count("run") == 2
    assert bench.runner("P").rounds["silent"] == 1
    assert patient.calls.count("run") == 1


@pytest.mark.parametrize("method", ["init_flags", "setup", "run", "stop"])
@pytest.mark.parametrize("error", [RuntimeError("bang"), SystemExit(1)])
async def test_a_plugin_that_raises_anywhere_breaks_alone(bench, method, error):
    """Whatever a plugin raises, in whichever method, the other plugin goes on."""

    class Bad(bench.Recorder):
        def init_flags(self, flags):
            self.fail("init_flags")

        def setup(self, client, metric_cache, states_informer):
            self.fail("setup")

        async def run(self, stop: Stop) -> None:
            self.fail("run")
            await stop.wait()

        async def stop(self) -> None:
            self.fail("stop")

        def fail(self, here: str) -> None:
            if here == method:
                raise error

    bench.add("Bad", Bad())
    good = bench.add("Good", bench.Recorder())
    await bench.start()
    await bench.clock.advance(5)
    if method != "stop":
        part = bench.part("Bad")
        assert part.status.value == "degraded"
        assert "bang" in part.reason or "sys.exit" in part.reason or "SystemExit" in part.reason
    await bench.finish()
    assert good.turns == 6
    assert bench.runner("Bad").errors >= 1


async def test_a_broken_setup_keeps_the_plugin_out_for_good(bench):
    """Without its setup a plugin is never run, however often its gate is toggled."""

    class Bad(bench.Recorder):
        def setup(self, client, metric_cache, states_informer):
            raise ValueError("no such mode")

    plugin = bench.add("P", Bad())
    await bench.start()
    for value in (False, True):
        bench.gates.replace_map({"P": value})
        await bench.clock.advance(400)
    assert "run" not in plugin.calls
    assert bench.runner("P").state == "broken"
    assert "no such mode" in bench.part("P").reason


async def test_failures_in_a_row_double_the_pause_and_open_the_breaker(bench):
    """A plugin that always fails is tried at 1, 2, 4, 8 seconds, then every five minutes."""
    starts: list[float] = []

    class Fails(bench.Recorder):
        async def run(self, stop: Stop) -> None:
            starts.append(self.clock.monotonic())
            raise RuntimeError("bang")

    bench.add("P", Fails())
    await bench.start()
    await bench.clock.advance(20)
    assert bench.runner("P").state == "broken"
    await bench.clock.advance(700)
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    for pause, nominal in zip(pauses, (1, 2, 4, 8, 300, 300), strict=True):
        assert nominal <= pause <= nominal * 1.1
    assert bench.metric("koordlet_plugin_errors_total", plugin="P") == len(starts)


async def test_a_plugin_that_fails_in_its_second_round_is_given_a_rest(bench):
    """One good round between two failures is no recovery: pauses grow, and the breaker opens."""

    class SecondRoundFails(bench.Recorder):
        async def run(self, stop: Stop) -> None:
            self.calls.append("run")
            async for turn in stop.every(1.0):
                if turn == 1:
                    raise RuntimeError("bang")

    plugin = bench.add("P", SecondRoundFails())
    await bench.start()
    await bench.clock.advance(55)
    assert plugin.calls.count("run") == 5
    assert bench.runner("P").state == "broken"
    assert bench.part("P").reason == "broken: RuntimeError('bang')"
    await bench.clock.advance(700)
    assert plugin.calls.count("run") == 7


async def test_good_rounds_for_five_minutes_close_the_breaker(bench):
    """Until then the plugin is degraded; after that the next failure starts with a short pause."""
    failing = {2, 3, 4}

    class Flaky(bench.Recorder):
        async def round(self) -> None:
            if self.turns in failing:
                raise RuntimeError("bang")

    bench.add("P", Flaky())
    await bench.start()
    await bench.clock.advance(9)
    assert bench.runner("P").state == "running"
    await bench.clock.advance(290)
    assert bench.part("P").reason == "running: RuntimeError('bang')"
    await bench.clock.advance(15)
    assert bench.part("P").reason == ""
    failing.update(range(5, 10_000))
    await bench.clock.advance(1)
    failing.clear()
    assert bench.runner("P").state == "retrying"
    await bench.clock.advance(1.2)
    assert bench.runner("P").state == "running"


async def test_a_run_without_rounds_counts_as_working_after_five_minutes(bench):
    """Holding out is the sign of health of a plugin that makes no rounds."""

    class Waits(bench.Recorder):
        limits = WAITS_FOR_EVENTS

        async def run(self, stop: Stop) -> None:
            self.calls.append("run")
            if self.calls.count("run") == 1:
                raise RuntimeError("bang")
            await stop.wait()

    bench.add("P", Waits())
    await bench.start()
    await bench.clock.advance(290)
    assert bench.part("P").reason == "running: RuntimeError('bang')"
    await bench.clock.advance(75)
    assert bench.part("P").status.value == "ok"


async def test_a_failure_that_repeats_is_logged_with_its_stack_once(bench, capsys):
    """One line for each, one stack for an episode; another kind of failure has its own."""
    from koord.util import logs

    logs.configure("json", logs.parse_levels("info"))

    class Fails(bench.Recorder):
        error = RuntimeError("bang")

        async def run(self, stop: Stop) -> None:
            raise self.error

    plugin = bench.add("P", Fails())
    await bench.start()
    await bench.clock.advance(5)
    plugin.error = ValueError("boom")
    await bench.clock.advance(15)
    await bench.switch(P=False)
    await bench.switch(P=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    failed = [line for line in lines if line["event"] == "plugin.failed"]
    assert [(line["error"], "exception" in line) for line in failed] == [
        ("RuntimeError('bang')", True),
        ("RuntimeError('bang')", False),
        ("RuntimeError('bang')", False),
        ("ValueError('boom')", True),
        ("ValueError('boom')", False),
        ("ValueError('boom')", True),  # after it was off
    ]


async def test_switching_a_failing_plugin_off_and_on_gives_it_a_clean_slate(bench):
    """The pause ends, the breaker is closed, and nothing is held against it."""

    class Fails(bench.Recorder):
        async def run(self, stop: Stop) -> None:
            self.calls.append("run")
            raise RuntimeError("bang")

    plugin = bench.add("P", Fails())
    await bench.start()
    await bench.clock.advance(60)
    assert bench.runner("P").state == "broken"
    bench.gates.replace_map({"P": False})
    await bench.clock.settle()
    assert (bench.runner("P").state, bench.part("P").status.value) == ("disabled", "ok")
    runs = plugin.calls.count("run")
    bench.gates.replace_map({"P": True})
    await bench.clock.settle()
    assert plugin.calls.count("run") == runs + 1
    assert bench.runner("P").state == "retrying"


@pytest.mark.parametrize(
    ("seconds", "rounds", "works"),
    [
        (299, 299, False),
        (300, 300, True),
        (300, 2, False),
        (700, 3, True),
        (3599, 2, False),
        (3600, 2, True),
        (299, None, False),
        (300, None, True),
    ],
)
def test_what_a_recovery_is(seconds, rounds, works):
    """Several good rounds over five minutes; a run whose rounds are rare, or none, holds out."""
    breaker = Breaker()
    breaker.failed()
    assert breaker.worked(seconds, rounds) is works
    assert (breaker.failures == 0) is works


def test_breaker_pauses():
    """Pauses grow, the breaker opens at its threshold, and a reset starts over."""
    breaker = Breaker(threshold=3, cooldown=60)
    pauses = [breaker.failed() for _ in range(4)]
    assert breaker.open
    for pause, nominal in zip(pauses, (1, 2, 60, 60), strict=True):
        assert nominal <= pause <= nominal * 1.1
    breaker.reset()
    assert not breaker.open
    assert breaker.failed() < 1.2


async def test_a_plugin_that_eats_memory_is_stopped_and_kept_out(bench, monkeypatch):
    """Growth is charged to the plugin whose step it happened in; over budget means quarantine."""
    used = 50 * 2**20
    monkeypatch.setattr("koordlet.qosmanager.manager.ResidentMemory", lambda: lambda: used)

    class Eater(bench.Recorder):
        limits = Limits(memory=32 * 2**20)

        async def round(self) -> None:
            nonlocal used
            used += 20 * 2**20

    eater, good = bench.add("Eater", Eater()), bench.add("Good", bench.Recorder())
    await bench.start()
    await bench.clock.advance(60)
    assert eater.turns == 3  # what a round took is known when its last step has ended
    assert good.turns == 61
    assert bench.runner("Eater").state == "quarantined"
    assert "grew the process by 60 MiB" in bench.part("Eater").reason
    bench.gates.replace_map({"Eater": False})
    await bench.clock.advance(1)
    bench.gates.replace_map({"Eater": True})
    await bench.clock.advance(1)
    assert bench.runner("Eater").state == "running"


async def test_memory_that_is_given_back_is_not_held_against_a_plugin(bench, monkeypatch):
    """Only net growth counts."""
    used = 50 * 2**20
    monkeypatch.setattr("koordlet.qosmanager.manager.ResidentMemory", lambda: lambda: used)

    class Breathes(bench.Recorder):
        async def round(self) -> None:
            nonlocal used
            used += 30 * 2**20
            await self.clock.sleep(0.1)
            used -= 30 * 2**20

    plugin = bench.add("P", Breathes())
    await bench.start()
    await bench.clock.advance(20)
    assert plugin.turns == 21
    assert bench.runner("P").errors == 0


async def test_cost_is_counted_and_exported(bench):
    """Rounds, errors, CPU seconds and state of each plugin are in the daemon's registry."""

    class Works(bench.Recorder):
        async def round(self) -> None:
            sum(range(20_000))
            await asyncio.sleep(0)

    bench.add("P", Works())
    bench.add("Q", bench.Recorder(), None)
    bench.registry.get("Q").plugin.gates = ("CPUEvict",)
    await bench.start()
    await bench.clock.advance(9)
    assert bench.metric("koordlet_plugin_rounds_total", plugin="P", outcome="ok") == 10
    assert 0 < bench.metric("koordlet_plugin_cpu_seconds_total", plugin="P") < 1
    assert bench.metric("koordlet_plugin_errors_total", plugin="P") == 0
    assert bench.metric("koordlet_plugin_state", plugin="P", state="running") == 1
    assert bench.metric("koordlet_plugin_state", plugin="P", state="broken") == 0
    assert bench.metric("koordlet_plugin_state", plugin="Q", state="disabled") == 1
    assert b"# TYPE koordlet_plugin_rounds_total counter" in generate_latest(bench.metrics)
    report = {entry.name: entry for entry in bench.manager.describe()}["P"]
    assert (report.state, report.enabled, report.rounds["ok"]) == ("running", True, 10)
    assert (report.source, report.version, report.gates) == ("test of P", "1.0", ("P",))


async def test_health_names_a_collector_that_is_off(bench):
    """A plugin that reads an uncollected kind is degraded, until its collector is on."""
    plugin = bench.Recorder()
    plugin.needs = ("PSICollector",)
    bench.add("P", plugin)
    await bench.start()
    assert "PSICollector" in bench.part("P").reason
    assert bench.part("P").detail["state"] == "running"
    bench.gates.replace_map({"PSICollector": True})
    assert bench.part("P").status.value == "ok"


async def test_health_names_plugins_that_were_refused(bench):
    """What discovery could not register is degraded, not unhealthy."""
    bench.problems = ("plugin P from x: wanted a free name",)
    await bench.start()
    part = bench.health.parts()["plugins"]
    assert part.status.value == "degraded"
    assert "wanted a free name" in part.reason


async def test_standalone_client_says_that_there_is_no_api_server(bench):
    """Without Kubernetes the client is there, and its calls raise with the reason."""
    seen: list[object] = []

    class Asks(bench.Recorder):
        def setup(self, client, metric_cache, states_informer):
            self.client = client

        async def round(self) -> None:
            for call in (
                self.client.get("/api/v1/nodes/n1"),
                self.client.create("/api/v1/events", {}),
                self.client.patch("/api/v1/nodes/n1", {}, "application/json-patch+json"),
                self.client.delete("/api/v1/pods/p"),
            ):
                with pytest.raises(Unavailable, match="standalone mode"):
                    await call
            seen.append(1)

    bench.add("P", Asks())
    await bench.start()
    assert seen


async def test_each_plugin_logs_under_its_own_name(bench, capsys):
    """The level of one plugin can be changed while it runs, without the others'."""
    from koord.util import logs

    class Talks(bench.Recorder):
        async def round(self) -> None:
            self.log.debug("thing.seen", turn=self.turns)

    logs.configure("json", logs.parse_levels("info"))
    for name in ("A", "B"):
        bench.add(name, Talks())
    await bench.start()
    logs.set_levels(logs.parse_levels("info,B=debug"))
    await bench.clock.advance(1)
    await bench.finish()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    logs.set_levels(logs.parse_levels("info"))
    assert [line["logger"] for line in lines if line["event"] == "thing.seen"] == ["B"]


async def test_the_quarantine_list_is_obeyed_and_cleared_by_hand(bench, tmp_path):
    """A plugin of the list stays out at start; releasing it lets it run at once."""
    (tmp_path / "quarantine.json").write_text(
        json.dumps(
            {
                "boot_id": "boot-1",
                "plugins": {
                    "P": {"reason": "hung", "at": "2026-01-01T00:00:00Z", "version": "1.0"}
                },
            }
        )
    )
    bench.run_dir = OwnedDirectory.open(tmp_path)
    plugin = bench.add("P", bench.Recorder())
    await bench.start()
    assert bench.runner("P").state == "quarantined"
    assert plugin.calls == ["init_flags"]
    assert "hung at 2026-01-01T00:00:00Z" in bench.part("P").reason
    assert not bench.manager.release("Q")
    assert bench.manager.release("P")
    await bench.clock.settle()
    assert plugin.calls == ["init_flags", "setup", "run"]
    assert bench.part("P").status.value == "ok"
