"""The code of the tutorials is run, so they cannot become untrue."""

import asyncio
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from koord.api.eviction import EvictionOutcome
from koord.api.node import Node
from koord.api.nodemetric import NodeMetricSpec
from koord.api.nodeslo import NodeSLO
from koord.kube.eviction import EVICTION_TIMEOUT
from koord.plugin import Stop
from koordlet.executor.evictions.evictor import ENDING_TIMEOUT
from koordlet.plugin import StateType
from koordlet.plugin.base import Limits
from koordlet.plugin.testing import SimulatedClock
from koordlet.qosmanager.admission import Outcome
from koordlet.qosmanager.guard import GuardOptions
from koordlet.qosmanager.manager import PluginFamilies
from koordlet.qosmanager.runner import Breaker
from koordlet.rules.node_topology import NodeTopology
from koordlet.statesinformer.informer import StatesInformer
from tests.support.warm_python import WarmPython, warm_python

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:python|toml|yaml)\n# file: (\S+)\n(.*?)^```$", re.M | re.DOTALL)
PAGES = {
    name: (ROOT / "docs" / name).read_text()
    for name in (
        "writing-plugins.md",
        "writing-descheduler-plugins.md",
        "writing-manager-plugins.md",
        "writing-scheduler-plugins.md",
    )
}
TEXT = PAGES["writing-plugins.md"]


@pytest.mark.parametrize(
    ("page", "kit", "steps"),
    [
        ("writing-plugins.md", "koordlet.plugin.testing", 11),
        ("writing-descheduler-plugins.md", "koord_descheduler.plugin.testing", 4),
        ("writing-manager-plugins.md", "koord_manager.plugin.testing", 2),
        ("writing-scheduler-plugins.md", "koord_scheduler.plugin.testing", 8),
    ],
)
def test_every_step_of_the_tutorial_works(page: str, kit: str, steps: int, tmp_path: Path):
    """Files are written in the order of the page; each test is run with what is there then."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    tests = 0
    with warm_python("pytest", kit) as python:
        for name, content in BLOCK.findall(PAGES[page]):
            (tmp_path / name).write_text(content)
            if name.startswith("test_"):
                tests += 1
                _run_pytest(python, tmp_path, name)
    assert tests == steps


@pytest.mark.parametrize("page", PAGES)
def test_no_code_of_the_tutorial_is_left_out(page: str):
    """Every Python block is a file, so every one of them is run."""
    text = PAGES[page]
    blocks = [name for name, _ in BLOCK.findall(text) if not name.endswith(".yaml")]
    assert text.count("```python\n") + text.count("```toml\n") == len(blocks)


@pytest.mark.parametrize(
    ("page", "program"),
    [
        ("writing-plugins.md", "koordlet"),
        ("writing-descheduler-plugins.md", "koord-descheduler"),
        ("writing-manager-plugins.md", "koord-manager"),
        ("writing-scheduler-plugins.md", "koord-scheduler"),
    ],
)
def test_the_container_recipe_fits_the_image(page: str, program: str):
    """The same Debian builds both, and the plugin lands among the packages of the image.

    test_example installs a package with the same options, and runs it.
    """
    (recipe,) = re.findall(r"^```dockerfile\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    image = (ROOT / "deploy" / "Containerfile").read_text()
    builds = re.findall(r"^ARG \w+=(\S+)$", image, re.MULTILINE)  # before their digests
    venvs = re.findall(r"python3 -m venv (\S+)", image)

    build, own = re.findall(r"^FROM (\S+)", recipe, re.MULTILINE)
    assert build in builds
    assert build.endswith("debian:12-slim")
    assert own.startswith(f"REGISTRY/{program}:")
    assert f"/opt/{program}" in venvs
    target, packages = re.findall(r"--target=(\S+)|^COPY --from=build \S+ (\S+)", recipe, re.M)
    assert f"COPY --from=build {target[0]}/ " in recipe
    # Debian 12 has Python 3.11.
    assert packages[1] == f"/opt/{program}/lib/python3.11/site-packages/"
    assert "--no-deps" in recipe


@pytest.mark.parametrize("state_type", StateType)
async def test_what_callbacks_get_is_what_the_table_says(state_type: StateType):
    """The state of each type, by the name of its class."""
    clock = SimulatedClock()
    states, got = StatesInformer(clock), []
    states.set_node(Node("n", labels={"a": "b"}))
    states.set_node_slo(NodeSLO())
    topology = NodeTopology(**dict.fromkeys(NodeTopology.__dataclass_fields__))
    states.set_node_topology(dataclasses.replace(topology, kubelet_allocations=()))
    states.set_node_metric_spec(NodeMetricSpec(report_interval=30.0))
    states.set_pods(())
    states.register_callbacks(state_type, "reader", "", lambda *call: got.append(call))
    stop = Stop(clock)
    running = asyncio.create_task(states.run(stop))
    await clock.advance(0)
    stop.set()
    await running

    [(_, state, target)] = got
    (row,) = re.findall(rf"^\| `{state_type.name}` \| (.+?) \|", TEXT, re.MULTILINE)
    assert row.startswith(f"`{type(state).__name__ if state else None}`")
    assert target.pods == ()


def test_the_tables_match_the_code():
    """Numbers, outcomes and metric names on the page are those in force."""
    guard, breaker = GuardOptions(), Breaker()
    assert f"holds the event loop for {guard.interrupt_after:g} s" in TEXT
    assert f"holds the event loop for {guard.exit_after:g} s" in TEXT
    pauses = [breaker.failed() for _ in range(5)]
    assert int(pauses[0]) == 1
    assert "waits 1 s" in TEXT
    assert 300 <= pauses[4] <= 330
    assert "after five it tries every five minutes" in TEXT
    for field in Limits.__dataclass_fields__:
        if field in ("round", "silence", "memory"):
            assert f"limits.{field}" in TEXT
    registry = CollectorRegistry()
    registry.register(PluginFamilies(()))
    for name in re.findall(r"# TYPE (\S+)", generate_latest(registry).decode()):
        assert f"`{name}{{" in TEXT
    for outcome in (*Outcome, *EvictionOutcome):
        assert f"`{outcome}`" in TEXT
    assert f"asked for less than {ENDING_TIMEOUT / 60:g} minutes ago".replace("2", "two") in TEXT
    assert EVICTION_TIMEOUT == 10
    assert "within ten seconds" in TEXT


def test_the_program_of_the_scheduler_tutorial_runs_beside_its_package_once_that_is_removed(
    tmp_path: Path,
):
    """What a build leaves in the directory is found as a package is; the page says so."""
    page = PAGES["writing-scheduler-plugins.md"]
    for name, content in BLOCK.findall(page):
        if name in ("pyproject.toml", "main.py", "roomy.yaml"):
            (tmp_path / name).write_text(content)
    first = next(content for name, content in BLOCK.findall(page) if name == "roomy_nodes.py")
    (tmp_path / "roomy_nodes.py").write_text(first)
    build = "import sys; sys.argv = ['x', '-q', 'build']; import setuptools; setuptools.setup()"
    egg_info = build.replace("'build'", "'egg_info'")
    for code in (egg_info, build):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)

    (left,) = re.findall(r"`rm -r ([^`]+)`", page)
    for one in left.split():
        assert (tmp_path / one).is_dir(), one
    refused = _main(tmp_path)
    assert (refused.returncode, "wanted a free name" in refused.stderr) == (1, True)
    assert not (tmp_path / "effective.yaml").exists()

    for one in left.split():
        shutil.rmtree(tmp_path / one)
    done = _main(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RoomyNodes" in (tmp_path / "effective.yaml").read_text()


def _main(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the tutorial's program so far that its configuration is read."""
    flags = ["--config=roomy.yaml", "--write-config-to=effective.yaml"]
    return subprocess.run(
        [sys.executable, "main.py", *flags],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def _run_pytest(python: WarmPython, directory: Path, name: str) -> None:
    done = python.run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", name],
        cwd=directory,
        environ={
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a good part of such a short run
            "PYTEST_PLUGINS": "pytest_asyncio.plugin",
        },
    )
    assert done.returncode == 0, f"{name}:\n{done.stdout}{done.stderr}"
