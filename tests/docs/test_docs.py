"""The documentation says what is so: links, commands, flags, metrics and examples."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from koord.api.node import parse_node
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import parse_pod_list
from koord.component.config.follower import parse_flag_document
from koord.component.flags import FlagSet
from koord.component.plugins.discovery import discover
from koord_descheduler.daemon.run import new_flags
from koord_scheduler.daemon import settings as scheduler_settings
from koordlet.cli.ctl.arguments import parse
from koordlet.daemon.settings import load_settings
from koordlet.plugin.testing import SimulatedClock

ROOT = Path(__file__).parents[2]
WRITTEN = (
    "README.md",
    "docs/operations.md",
    "docs/differences.md",
    "docs/architecture.md",
    "docs/planning.md",
    "docs/scheduler.md",
)
OTHERS_FLAGS = {  # of commands that are not ours
    "--set",
    "--reset-then-reuse-values",
    "--wait",
    "--now",
    "--target",
    "--show-managed-fields",
    "--audience",
    "--build-arg",
    "--format",
    "--platform",
    "--require-hashes",
    "--cacert",
    "--clusterrole",
    "--field-selector",
    "--serviceaccount",
}
DESCHEDULER_COMMANDS = (
    "koord_descheduler/cli/plan",
    "koord_descheduler/cli/explain",
    "koord/controlplane/commands",
)
CTL_FLAGS = {  # of commands beside the agent's, and of koord-descheduler
    "--help",
    *(
        name
        for module in ("koordlet/cli/ctl/arguments", *DESCHEDULER_COMMANDS)
        for name in re.findall(r'"(--[a-z-]+)"', (ROOT / f"{module}.py").read_text())
    ),
    *(f"--{flag.name}" for flag in new_flags()[0]),
    *(f"--{flag.name}" for flag in scheduler_settings.new_flags()[0]),
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*\*?")
_METRIC = re.compile(r"\bkoordlet_[a-z0-9_]+\b(?!\.py|/)")


def pages() -> list[Path]:
    """All pages of the repository."""
    tops = (ROOT, *(ROOT / name for name in ("docs", "plugins", "deploy", "systemd")))
    found = [page for top in tops[:1] for page in top.glob("*.md")]
    return sorted(found + [page for top in tops[1:] for page in top.rglob("*.md")])


def blocks(page: str, language: str = "") -> list[str]:
    """The fenced blocks of a page; a plain fence is a shell session or its output."""
    return [text for found, text in _FENCE.findall((ROOT / page).read_text()) if found == language]


def shell_lines() -> Iterator[str]:
    for block in blocks("README.md") + blocks("docs/operations.md"):
        yield from (line.partition("  #")[0].strip() for line in block.splitlines())


def words_after(command: str) -> set[str]:
    """What follows a command in the shell lines, up to the first flag or assignment."""
    found = (re.search(rf"(?:^|[ /]){command} ([a-z-]+)", line) for line in shell_lines())
    return {match[1] for match in found if match}


@pytest.fixture(scope="module")
def flags() -> FlagSet:
    """The daemon's flags, those of its plugins included."""
    return load_settings(
        ["--standalone"],
        {},
        clock=SimulatedClock(),
        metrics=CollectorRegistry(),
        discover=discover,
    ).flags


def test_references_are_what_the_code_says() -> None:
    """The pages that docs/generate.py makes were written after the last change."""
    script = [sys.executable, "docs/generate.py", "--check"]

    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    """Files and headings that a page points to exist."""
    text = _FENCE.sub("", page.read_text())
    for link in _LINK.findall(text):
        path, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / path if path else page

        assert target.exists(), f"{page}: {link}"
        assert not heading or heading in anchors(target), f"{page}: {link}"


def anchors(page: Path) -> set[str]:
    """Names of the headings, as GitHub makes them."""
    headings = (
        re.sub(r"[^\w\s-]", "", text).lower() for text in _HEADING.findall(page.read_text())
    )
    return {heading.strip().replace(" ", "-") for heading in headings}


def test_make_targets_exist() -> None:
    """Each `make X` in the docs is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    wanted = words_after("make")

    assert {"run", "test", "install-systemd"} <= wanted
    assert wanted <= targets


def test_scripts_exist() -> None:
    """What is run from .venv/bin is a console script; what is run from docs is executable."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(shell_lines())

    assert (
        set(re.findall(r"(?:\.venv|/opt/koordlet)/bin/([\w-]+)", text)) <= project["scripts"].keys()
    )
    examples = set(re.findall(r"^(docs/examples/[\w.-]+)", text, re.MULTILINE))
    assert examples
    assert all(os.access(ROOT / example, os.X_OK) for example in examples)


def test_koordletctl_commands_exist() -> None:
    """Each `koordletctl X` of a shell block is understood, with its flags."""
    lines = (line.partition("koordletctl ") for line in shell_lines() if "bin/koordletctl " in line)

    commands = {parse(rest.split()).command for _, _, rest in lines}

    assert {"status", "top", "doctor", "metrics", "plugins"} <= commands


def test_endpoints_exist() -> None:
    """Each path that the docs curl is served."""
    paths = {
        match[1]
        for line in shell_lines()
        if (match := re.search(r"curl 127\.0\.0\.1:9316(/[a-z]+)", line))
    }

    assert {"/metrics", "/healthz", "/nodemetric"} <= paths
    served = (ROOT / "koordlet/server/app.py").read_text()
    assert all(f'"{path}"' in served for path in paths)


@pytest.mark.parametrize("page", WRITTEN)
def test_flags_exist(page: str, flags: FlagSet) -> None:
    """Each --flag that a page names is one; --tsdb-* stands for all that begin so."""
    known = {f"--{flag.name}" for flag in flags} | OTHERS_FLAGS | CTL_FLAGS
    for name in _FLAG.findall((ROOT / page).read_text()):
        pattern = re.compile(re.escape(name).replace(r"\*", ".*"))

        assert any(map(pattern.fullmatch, known)), f"{page}: {name}"


@pytest.mark.parametrize("page", WRITTEN)
def test_metrics_exist(page: str) -> None:
    """Each koordlet_* family that a page names is in the metrics reference."""
    reference = (ROOT / "docs/metrics.md").read_text()
    for name in _METRIC.findall((ROOT / page).read_text()):
        if name not in ("koordlet_plugins", "koordlet_plugin_"):
            assert f"`{name}" in reference, f"{page}: {name}"


def test_config_examples_can_be_read(flags: FlagSet) -> None:
    """The config files of the README, the reference and the unit have flags as keys."""
    texts = re.findall(
        r"koordlet\.yaml <<EOF\n(.*?)EOF", (ROOT / "README.md").read_text(), re.DOTALL
    )
    texts += blocks("docs/configuration.md", "yaml")
    texts.append((ROOT / "systemd/koordlet.yaml").read_text())

    assert len(texts) == 3
    for text in texts:
        config = parse_flag_document(text.encode(), Path("example"))
        flags.set_from_config(config.values, config.where)
    flags.set_from_config({})


def test_the_status_example_names_the_gates_of_this_build() -> None:
    """What is on by default, with the two that the example switches on; all of it is built."""
    settings = load_settings(
        ["--standalone", "--feature-gates=PSICollector=true,PressureWatch=true"],
        {},
        clock=SimulatedClock(),
        metrics=CollectorRegistry(),
        discover=discover,
    )
    shown = re.findall(
        r"^(?:gates on|not built) +(.+)$",
        (ROOT / "docs/koordletctl.md").read_text(),
        re.MULTILINE,
    )

    [on] = (line.split(", ") for line in shown)
    working = settings.gates.working()
    assert on == working
    enabled = filter(settings.gates.enabled, settings.gates.names())
    assert set(enabled) <= set(working)  # else the example has a line "not built"


def test_object_examples_can_be_read() -> None:
    """The PodList, Node and NodeSLO of operations.md are good ones."""
    objects: dict[str, Any] = {
        item["kind"]: item for item in map(yaml.safe_load, blocks("docs/operations.md", "yaml"))
    }

    pods, problems = parse_pod_list(objects["PodList"])
    assert [(pod.name, len(pod.statuses)) for pod in pods] == [("crunch", 1)]
    assert not problems
    assert parse_node(objects["Node"]).capacity["memory"] == "24Gi"
    slo, problems = merge_nodeslo(objects["NodeSLO"])
    assert [app.name for app in slo.host_applications] == ["backup"]
    assert not problems
