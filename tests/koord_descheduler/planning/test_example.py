"""The example dump: the command prints a plan with a reason for every pod of a hot node."""

import asyncio
import copy
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cluster.dump import DumpReader
from koord.component.plugins.discovery import discover
from koord.component.terminal import plain
from koord_descheduler.cli.descheduler import main
from koord_descheduler.cli.views import plan_view
from koord_descheduler.config import parse_configuration
from koord_descheduler.framework.profile import PluginRegistry, known_plugins
from koord_descheduler.planning import (
    default_plan_configuration,
    make_plan,
    offline_services,
    plan_report,
)

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/cluster-dump"


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The plan as JSON."""
    assert main(["plan", "--from", str(EXAMPLE), "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_files_are_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("generate", EXAMPLE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert {path.name: path.read_text() for path in EXAMPLE.glob("*.json")} == module.files()


def test_every_pod_of_a_hot_node_has_its_reason(report: dict[str, Any]) -> None:
    verdicts = {one["node"]: one["verdict"] for one in report["nodes"]}
    assert [name for name in sorted(verdicts) if verdicts[name] == "high"] == [
        "worker-1",
        "worker-2",
        "worker-3",
    ]
    actions = {one["pod"]: (one["action"], one["candidates"]) for one in report["pods"]}
    assert actions["shop/report-a"] == ("evict", ["worker-7"])
    assert actions["shop/web-b"] == ("evict", ["worker-7"])
    reasons = {one["pod"]: one["reason"] for one in report["pods"]}
    assert {
        "shop/debug": "no controller would make a pod that could take its Reservation",
        "shop/index-a": "it fits no low node that would stay below its thresholds with it",
        "shop/payment-a": "the PodDisruptionBudget payment allows no eviction now",
        "shop/cache-a": "it has local storage",
        "shop/batch-a": "its node is high no more without it",
    }.items() <= reasons.items()
    pods = json.loads((EXAMPLE / "pods.json").read_text())["items"]
    on_hot_nodes = {
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if pod["spec"]["nodeName"] in ("worker-1", "worker-2")
    }
    assert on_hot_nodes == reasons.keys()


def test_what_else_is_said_of_nodes(report: dict[str, Any]) -> None:
    """A stale report, a node hot by its system, and the threshold that would change the plan."""
    nodes = {one["node"]: one for one in report["nodes"]}
    assert nodes["worker-8"]["reason"] == "its NodeMetric is 1295 s old"
    assert nodes["worker-3"]["reason"].endswith("nothing to move")
    assert nodes["worker-1"]["hint"] == "would not be high with highThresholds: cpu 88.75"
    assert report["input"]["skipped"] == {}
    assert report["input"]["rejections"] == 0


def test_the_readme_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command, run; its excerpt is the end of the output."""
    readme = (ROOT / "README.md").read_text()
    command = re.search(r'^make run-descheduler ARGS="(plan .*)"$', readme, re.MULTILINE)
    assert command is not None
    monkeypatch.chdir(ROOT)
    assert main(command[1].split()) == 0
    shown = re.search(r"^```text\n(EVICT .*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out.endswith(shown[1])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in an object."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


OBJECTS = [
    item
    for path in sorted(EXAMPLE.glob("*.json"))
    for item in json.loads(path.read_text())["items"]
]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), number=st.integers(0, len(OBJECTS) - 1), value=_JSON)
def test_whatever_one_field_says_there_is_a_plan(
    data: st.DataObject, number: int, value: Any
) -> None:
    """An object with nonsense in it is left out and named, or taken at its word."""
    objects = copy.deepcopy(OBJECTS)
    *path, last = data.draw(st.sampled_from(list(places(objects[number]))))
    inner = objects[number]
    for key in path:
        inner = inner[key]
    inner[last] = value
    reader = DumpReader()
    reader.read(json.dumps({"kind": "List", "items": objects}).encode(), "x")
    registry = PluginRegistry()
    assert discover(registry) == []
    read = parse_configuration(
        default_plan_configuration(), Path("defaults"), known_plugins(registry)
    )
    now = reader.dump.newest_report or 0.0
    services = offline_services(reader.dump.cluster, now)

    plan = asyncio.run(make_plan(read.configuration, registry, services))

    assert plan.errors == ()
    assert len(plan.nodes) >= len(reader.dump.cluster.nodes()) - 1
    plain(plan_view(plan_report(plan, reader.dump)))
