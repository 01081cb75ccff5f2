"""Plugins import what the plugin reference lists, and nothing else of koordlet."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
SOURCES = sorted(PLUGINS.rglob("*.py"))
REFERENCE = (PLUGINS.parent / "docs" / "plugin-api.md").read_text()


def imports(path: Path) -> list[tuple[str, str]]:
    """Module and name of each import from koordlet."""
    return [
        (node.module, name.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "koordlet"
        for name in node.names
    ]


def test_there_are_plugins():
    """The shipped ones and the example."""
    assert {path.parts[len(PLUGINS.parts)] for path in SOURCES} == {"koordlet_plugins", "example"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PLUGINS)))
def test_a_plugin_imports_public_names(path: Path):
    """Each is in its module's __all__, and the reference has it."""
    for module, name in imports(path):
        assert module.startswith("koordlet.plugin"), f"{module} is no public module"
        assert name in import_module(module).__all__, f"{module} does not export {name}"
        assert f"`{name}`" in REFERENCE
