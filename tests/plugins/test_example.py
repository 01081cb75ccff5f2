"""The example package, as a third party would ship it: built, installed, found and run."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "plugins" / "example"

PROGRAM = textwrap.dedent(
    """
    import asyncio, json, sys
    from prometheus_client import CollectorRegistry
    from koordlet.features import feature_gates
    from koord.component.flags import FeatureGates
    from koord.component.plugins.discovery import discover
    from koord.api.node import Node
    from koordlet.plugin import FlagSet, PluginRegistry, kinds
    from koordlet.plugin.interfaces import UnavailableClient
    from koordlet.plugin.testing import ScriptedMetrics, SimulatedClock
    from koordlet.qosmanager import QOSExtensionConfig, QOSManager
    from koordlet.statesinformer.informer import StatesInformer
    from koord.util.health import Health
    from koord.util.stop import Stop

    async def main():
        clock, registry = SimulatedClock(), PluginRegistry()
        gates, flags = feature_gates(), FlagSet()
        problems = discover(registry)
        config = QOSExtensionConfig(registry, gates, clock=clock, metrics=CollectorRegistry())
        config.init_flags(flags)
        flags.parse(["--qos-extension-plugins=BusyNode=true", "--busy-node-share=0.5"])
        gates.set_from_map(config.gate_values({}))
        states, metrics, stop = StatesInformer(clock), ScriptedMetrics(clock), Stop(clock)
        states.set_node(Node("n1", capacity={"cpu": "2"}))
        states.set_pods(())
        metrics.hold(kinds.POD_CPU_USAGE, 1.5, "p1")
        manager = QOSManager(
            config, client=UnavailableClient(), metric_cache=metrics.cache,
            states_informer=states, health=Health(), run_dir=None, boot_id="b", problems=problems,
        )
        tasks = [asyncio.create_task(work) for work in (metrics.run(stop), manager.run(stop))]
        await clock.advance(65)
        reports = {entry.name: entry for entry in manager.describe()}
        stop.set()
        await clock.advance(10)
        await asyncio.gather(*tasks)
        print(json.dumps({
            "problems": problems,
            "states": {name: entry.state for name, entry in reports.items()},
            "source": reports["BusyNode"].source,
            "rounds": reports["BusyNode"].rounds["ok"],
        }))

    asyncio.run(main())
    """
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel without the network and install it into a directory of its own."""
    work = tmp_path_factory.mktemp("example")
    source = work / "source"
    _copy(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    _run([*pip, "wheel", *offline, "--no-build-isolation", "-w", str(work), str(source)], work)
    (wheel,) = work.glob("koordlet_busy_node-*.whl")
    site = work / "site"
    _run([*pip, "install", *offline, "--target", str(site), str(wheel)], work)
    return site


def test_the_installed_package_is_found_and_runs(installed: Path, tmp_path: Path):
    """Its entry point joins the gate table, its flag the command line, and it does its rounds."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = _run([sys.executable, str(program)], tmp_path, installed)
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["states"]["BusyNode"] == "running"
    assert found["source"] == "BusyNode = koordlet_busy_node:BusyNode (koordlet-busy-node 0.1.0)"
    assert found["rounds"] == 7
    events = [json.loads(line) for line in done.stderr.splitlines()]
    (busy,) = [event for event in events if event["event"] == "node.busy"]
    assert (busy["logger"], busy["pods"]) == ("BusyNode", {"p1": 1.5})


def test_its_own_tests_pass(installed: Path, tmp_path: Path):
    """The tests that the package brings, with nothing but the kit."""
    _copy(EXAMPLE / "tests", tmp_path / "tests")
    (tmp_path / "pyproject.toml").write_text((EXAMPLE / "pyproject.toml").read_text())
    done = _run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        tmp_path,
        installed,
    )
    assert " passed" in done.stdout


def test_its_readme_names_every_flag_and_metric(installed: Path):
    """The page is complete."""
    text = (EXAMPLE / "README.md").read_text()
    for name in ("busy-node-share", "busy-node-window", "busy-node-top"):
        assert f"`--{name}`" in text
    for name in ("episodes_total", "busy"):
        assert f"`koordlet_plugin_busy_node_{name}`" in text


def _run(
    command: list[str], directory: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path) if path else ""}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def _copy(source: Path, target: Path) -> None:
    """Copy files that belong to the package; what builds and editors left stays behind."""
    for file in source.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".toml", ".md", ".typed"}:
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
