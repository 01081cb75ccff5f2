"""Plugins import what their daemon's public face exports, and nothing else of it."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
SOURCES = sorted(PLUGINS.rglob("*.py"))
REFERENCE = (PLUGINS.parent / "docs" / "plugin-api.md").read_text()


def imports(path: Path, daemon: str) -> list[tuple[str, str]]:
    """Module and name of each import from a daemon."""
    return [
        (node.module, name.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == daemon
        for name in node.names
    ]


def test_there_are_plugins():
    """The shipped ones and the examples, of each daemon."""
    assert {path.parts[len(PLUGINS.parts)] for path in SOURCES} == {
        "koordlet_plugins",
        "example",
        "koord_descheduler_plugins",
        "koord_manager_plugins",
        "koord_scheduler_plugins",
        "example-descheduler",
        "example-manager",
        "example-scheduler",
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PLUGINS)))
def test_a_plugin_imports_public_names(path: Path):
    """Each is in its module's __all__, and koordlet's are in the reference."""
    for daemon in ("koord_descheduler", "koord_manager", "koord_scheduler"):
        for module, name in imports(path, daemon):
            assert module.startswith(f"{daemon}.plugin"), f"{module} is no public module"
            assert name in import_module(module).__all__, f"{module} does not export {name}"
    for module, name in imports(path, "koordlet"):
        assert module.startswith("koordlet.plugin"), f"{module} is no public module"
        assert name in import_module(module).__all__, f"{module} does not export {name}"
        assert f"`{name}`" in REFERENCE
