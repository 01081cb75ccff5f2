"""The shape of the code as style and CONTRIBUTING.md promise it: modules, names, places."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path
    for package in [*ROOT.glob("koord*"), *(ROOT / "plugins").glob("koord*_plugins")]
    for path in package.rglob("*.py")
)
MOST_MODULES = 640
MOST_LINES = 700

_WHERE = re.compile(r"^## Where is.*?(?=^## )", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"`([\w/.-]+(?:\.py|/|\.toml))`")
_NAMED = re.compile(r"`([\w/.]+\.py)`: `([\w.]+)`")


def test_modules_are_few_and_short() -> None:
    """A subject has one module, and a module is read at one sitting."""
    assert len(MODULES) <= MOST_MODULES
    lines = {path: path.read_text().count("\n") for path in MODULES}
    assert [str(path) for path, count in lines.items() if count > MOST_LINES] == []


def daemon_of(path: Path) -> str:
    """Return the daemon of a module, its plugins counted to it, or "koord"."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] != "plugins" else parts[1].removesuffix("_plugins")


def classes() -> Iterator[tuple[str, str]]:
    """Yield the daemon and the name of each class."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield daemon_of(path), node.name


def test_class_names_stand_once() -> None:
    """But those of a wire type and its fact, which docs/architecture.md lists."""
    twice = {key for key, count in Counter(classes()).items() if count > 1}
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.partition("### One name for a wire type")[2].partition("\n### ")[0]
    listed = {("koord", name) for name in re.findall(r"`([A-Z]\w+)`", section)}

    assert twice == listed


def where() -> str:
    """Return the answers of CONTRIBUTING.md."""
    found = _WHERE.search((ROOT / "CONTRIBUTING.md").read_text())
    assert found is not None
    return found[0]


@pytest.mark.parametrize("name", sorted(set(_PATH.findall(where()))))
def test_a_named_place_exists(name: str) -> None:
    """Some from the root, some within the package or plugin that the sentence is about."""
    bases = ("", "koord_scheduler", "koordlet/executor/evictions", *map(str, plugin_folders()))
    assert any((ROOT / base / name).exists() for base in bases), name


def plugin_folders() -> list[Path]:
    """Return the folders in which plugins are, relative to the root."""
    folders = [*ROOT.glob("plugins/koord*_plugins"), *ROOT.glob("plugins/koord*_plugins/*/")]
    return [path.relative_to(ROOT) for path in folders]


@pytest.mark.parametrize(("path", "name"), _NAMED.findall(where()))
def test_a_named_function_exists(path: str, name: str) -> None:
    """A class, a function, or a method of a class."""
    nodes: list[ast.stmt] = ast.parse((ROOT / path).read_text()).body
    for part in name.split("."):
        found = [node for node in nodes if getattr(node, "name", "") == part]
        assert found, f"{path}: no {part}"
        nodes = getattr(found[0], "body", [])


def test_there_are_answers() -> None:
    """Each of the six questions, most of them with the function's name."""
    assert len(re.findall(r"^\| … ", where(), re.MULTILINE)) == 6
    assert len(_NAMED.findall(where())) >= 6
