"""The public faces of the daemons: few names, each in one place, each used or with its reason."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ("koord.plugin", "koord.plugin.args", "koord.plugin.kube")
SCHEDULER = tuple(
    f"koord_scheduler.plugin{each}"
    for each in ("", ".vector", ".preemption", ".koordinator", ".storage")
)
DESCHEDULER = ("koord_descheduler.plugin",)
MANAGER = ("koord_manager.plugin",)
AGENT = tuple(f"koordlet.plugin{each}" for each in ("", ".kernel", ".metrics", ".network", ".pods"))
FACES = (*SHARED, *SCHEDULER, *DESCHEDULER, *MANAGER, *AGENT)


def source(module: str) -> str:
    """Return the source of a module."""
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def exported(module: str) -> dict[str, str]:
    """Return the names of a face, each with the comment beside it, "" for none."""
    found = re.search(r"^__all__ = \[\n(.*?)^\]", source(module), re.MULTILINE | re.DOTALL)
    assert found is not None, module
    lines = re.findall(r'^    "(\w+)",(?:  # (.+))?$', found[1], re.MULTILINE)
    assert len(lines) == found[1].count("\n"), module
    return dict(lines)


def imported(text: str) -> set[tuple[str, str]]:
    """Return the pairs of module and name that a source imports from faces."""
    return {
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def examples() -> list[str]:
    """Return the sources of shipped plugins and of examples, in plugins/ and in the tutorials."""
    found = [path.read_text() for path in (ROOT / "plugins").rglob("*.py")]
    for page in ROOT.glob("docs/writing-*.md"):
        found += re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return found


def test_each_name_is_used_or_has_its_reason():
    """A name that no shipped plugin and no example imports says beside it why it is public."""
    used = set().union(*map(imported, examples()))

    unexplained = [
        f"{face}.{name}"
        for face in FACES
        for name, reason in exported(face).items()
        if not reason and (face, name) not in used
    ]

    assert unexplained == []


@pytest.mark.parametrize(
    ("faces", "most"),
    [
        (("koordlet.plugin",), 30),
        (AGENT, 70),
        (DESCHEDULER, 110),
        (("koord_scheduler.plugin",), 80),
        (MANAGER, 30),
    ],
)
def test_a_face_is_small(faces, most):
    """Who needs another name finds it in a module of fewer readers, or says why not."""
    assert sum(len(exported(face)) for face in faces) <= most


@pytest.mark.parametrize("faces", [SCHEDULER, DESCHEDULER, MANAGER, AGENT])
def test_a_name_has_one_place(faces):
    """What plugins of all daemons need is in koord.plugin only, and no module repeats another."""
    times = Counter(name for face in (*SHARED, *faces) for name in exported(face))

    assert [name for name, count in times.items() if count > 1] == []


def test_faces_are_all_looked_at():
    """A new module of a face counts here, too."""
    found = {
        ".".join(path.with_suffix("").relative_to(ROOT).parts).removesuffix(".__init__")
        for daemon in ("koord", "koord_scheduler", "koord_descheduler", "koord_manager", "koordlet")
        for path in (ROOT / daemon / "plugin").rglob("*.py")
        if re.search(r"^__all__", path.read_text(), re.MULTILINE)
    }

    assert {each for each in found if ".testing" not in each} == set(FACES)
