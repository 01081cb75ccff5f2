"""The config file under a running daemon: gates and log levels at once, the rest later."""

import pytest


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "koordlet.yaml"
    path.write_text("log-level: info\n")
    return path


async def test_a_gate_starts_and_stops_its_plugin(daemon, config):
    """Within two seconds; a second start is another run without a second setup."""
    await daemon.start(f"--config={config}")
    await daemon.seconds(2)
    assert daemon.probe.calls == []

    config.write_text("feature-gates: {Probe: true}\n")
    await daemon.seconds(4)
    assert daemon.probe.calls == ["run"]
    assert daemon.probe.rounds >= 2
    assert (await daemon.ctl("plugins"))[0]["state"] == "running"

    config.write_text("feature-gates: {Probe: false}\n")
    await daemon.seconds(2)
    assert daemon.probe.calls == ["run", "returned", "stop"]
    rounds = daemon.probe.rounds
    await daemon.seconds(2)
    assert daemon.probe.rounds == rounds

    config.write_text("qos-extension-plugins: {Probe: true}\n")
    await daemon.seconds(3)
    assert daemon.probe.calls == ["run", "returned", "stop", "run"]
    read = daemon.events("config.read")
    assert [(event["on"], event["off"]) for event in read] == [
        (["Probe"], []),
        ([], ["Probe"]),
        (["Probe"], []),
    ]


async def test_a_gate_starts_and_stops_its_collector(daemon, config):
    """A collector that is off has neither health nor figures."""
    pod = daemon.use_host(version=2).add_pod("p1")
    pod.group.set_pressure("cpu", 30.0)
    await daemon.start(f"--config={config}", "--psi-collector-interval=1s")
    await daemon.seconds(3)
    assert await daemon.metric("koordlet_pod_psi") == []

    config.write_text("feature-gates: {PSICollector: true}\n")
    await daemon.seconds(4)
    assert 30.0 in await daemon.metric("koordlet_pod_psi")
    assert "[+]collector pod_pressure ok" in (await daemon.get("/healthz?verbose"))[1]

    config.write_text("")
    await daemon.seconds(3)
    assert await daemon.metric("koordlet_pod_psi") == []
    assert "pod_pressure" not in (await daemon.get("/healthz?verbose"))[1]


async def test_the_command_line_keeps_its_say(daemon, config):
    """A gate or level that it sets does not follow the file."""
    await daemon.start(f"--config={config}", "--feature-gates=Probe=true", "--log-level=warning")
    config.write_text("feature-gates: {Probe: false}\nlog-level: debug\n")
    await daemon.seconds(3)

    assert daemon.probe.calls == ["run"]
    assert daemon.events("probe.round") == []


async def test_log_levels_follow_by_name(daemon, config):
    """A plugin can be watched closely for a while."""
    await daemon.start(f"--config={config}", "--feature-gates=Probe=true")
    await daemon.seconds(2)
    assert daemon.events("probe.round") == []

    config.write_text("log-level: info,Probe=debug\n")
    await daemon.seconds(4)
    seen = len(daemon.events("probe.round"))
    assert seen >= 2

    config.write_text("log-level: info\n")
    await daemon.seconds(3)
    seen = len(daemon.events("probe.round"))
    await daemon.seconds(2)
    assert len(daemon.events("probe.round")) == seen


async def test_what_needs_a_restart_says_so_and_stays(daemon, config):
    """In the log once, in the status as long as it waits; taking it back ends the wait."""
    await daemon.start(f"--config={config}")
    config.write_text("log-level: info\nreport-interval: 7s\nfeature-gates: {Probe: true}\n")
    await daemon.seconds(3)

    [warning] = daemon.events("config.restart_required")
    assert warning["keys"] == ["report-interval"]
    assert (await daemon.ctl("status"))["needs_restart"] == ["report-interval"]
    assert daemon.settings.options.report_interval.value == 0
    assert daemon.probe.calls == ["run"]

    config.write_text("log-level: info\nfeature-gates: {Probe: true}\n")
    await daemon.seconds(3)
    assert (await daemon.ctl("status"))["needs_restart"] == []


@pytest.mark.parametrize(
    "content",
    [
        "feature-gates: {Probe: maybe}\n",
        "feature-gates: {Prob: true}\n",
        "feature-gates: {Probe: true\n",
        "feature-gates: {Probe: false}\nqos-extension-plugins: {Probe: true}\n",
        "feature-gates: {Probe: false}\nlog-levle: debug\n",
        "feature-gates: {Probe: false}\nreport-interval: 1ms\n",
        "\x00\x01",
        "- Probe\n",
    ],
)
async def test_a_file_that_cannot_be_used_changes_nothing(daemon, config, content):
    """The last good one stays in force and /healthz names the file, until it is mended."""
    config.write_text("feature-gates: {Probe: true}\n")
    await daemon.start(f"--config={config}")
    await daemon.seconds(1)
    config.write_text(content)
    await daemon.seconds(4)

    status, text = await daemon.get("/healthz")
    assert status == 200
    assert "degraded: config: " in text
    assert str(config) in text
    assert daemon.probe.calls == ["run"]
    assert len(daemon.events("config.rejected")) == 1

    config.write_text("feature-gates: {Probe: true} # mended\n")
    await daemon.seconds(3)
    assert await daemon.get("/healthz") == (200, "ok")
    assert daemon.probe.calls == ["run"]


async def test_a_file_that_is_being_written_is_not_read(daemon, config):
    """The first half of a file can be a valid file that switches everything off."""
    whole = "log-level: info\nfeature-gates:\n  Probe: true\n"
    config.write_text(whole)
    await daemon.start(f"--config={config}")
    await daemon.seconds(1)

    for end in (0, 16, 20, 30, len(whole)):
        config.write_text(whole[:end])
        await daemon.clock.advance(0.15)
    await daemon.seconds(2)

    assert daemon.probe.calls == ["run"]


@pytest.mark.parametrize("stands", [0.5, 1.5])
async def test_a_content_that_stood_for_half_a_second_takes_effect(daemon, config, stands):
    """Off and on again within a second is seen: the plugin ends and starts again."""
    on = "feature-gates: {Probe: true}\n"
    config.write_text(on)
    await daemon.start(f"--config={config}")
    await daemon.seconds(2)
    for _ in range(3):
        config.write_text("feature-gates: {Probe: false}\n")
        await daemon.clock.advance(stands)
        config.write_text(on)
        await daemon.clock.advance(stands)
    assert daemon.probe.calls == ["run", *["returned", "stop", "run"] * 3]
    assert len(daemon.events("config.read")) == 6


async def test_without_inotify_it_takes_two_seconds(daemon, config, monkeypatch):
    """Where the kernel or a sandbox has none, the file is looked at once a second."""
    monkeypatch.setattr("koord.util.filewatch.DirectoryWatch.open", lambda watch: None)
    await daemon.start(f"--config={config}")
    config.write_text("feature-gates: {Probe: true}\n")
    await daemon.clock.advance(2)
    assert daemon.probe.calls == ["run"]


async def test_a_busy_directory_is_looked_at_five_times_a_second(daemon, config, monkeypatch):
    """Other files beside it cost no more than that."""
    await daemon.start(f"--config={config}")
    await daemon.seconds(1)
    looks = []
    monkeypatch.setattr(
        "koord.util.filewatch.FileWatch.changed", lambda watch: bool(looks.append(1))
    )
    for number in range(100):
        (config.parent / f"other{number % 7}").write_text(str(number))
        await daemon.clock.advance(0.02)
    assert 5 <= len(looks) <= 12


async def test_an_unchanged_file_is_read_silently_at_the_start(daemon, config):
    """Nothing was said in it that is not in force; a change that comes later is logged."""
    await daemon.start(f"--config={config}")
    await daemon.seconds(3)
    assert daemon.events("config.read") == []
    config.write_text("log-level: info # as before\n")
    await daemon.seconds(2)
    assert len(daemon.events("config.read")) == 1


async def test_a_file_that_is_gone_or_unreadable_keeps_its_say(daemon, config):
    """A restart would fail, so /healthz reports it; its return is seen even with its old times."""
    config.write_text("feature-gates: {Probe: true}\n")
    await daemon.start(f"--config={config}")
    await daemon.seconds(2)
    kept = config.rename(config.with_name("kept"))
    await daemon.seconds(3)
    assert "No such file" in (await daemon.problems())["config"][1]
    assert len(daemon.events("config.rejected")) == 1

    kept.rename(config)
    await daemon.seconds(3)
    assert await daemon.get("/healthz") == (200, "ok")
    assert daemon.probe.calls == ["run"]


async def test_a_config_map_is_followed_through_its_links(daemon, tmp_path):
    """Kubernetes swaps a link to the directory, the file's own name never changes."""
    for number, gate in enumerate(("false", "true")):
        (tmp_path / f"data{number}").mkdir()
        (tmp_path / f"data{number}/koordlet.yaml").write_text(f"feature-gates: {{Probe: {gate}}}\n")
    (tmp_path / "..data").symlink_to("data0")
    config = tmp_path / "config.yaml"
    config.symlink_to("..data/koordlet.yaml")
    await daemon.start(f"--config={config}")
    await daemon.seconds(1)

    (tmp_path / "..new").symlink_to("data1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    await daemon.seconds(3)
    assert daemon.probe.calls == ["run"]
