"""A daemon whose plugins are classes, made later with arguments, and that has no gates."""

import inspect
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import DistributionFinder, EntryPoint, PathDistribution, distributions
from pathlib import Path

import pytest

from koord.component.plugins.discovery import discover
from koord.component.plugins.registry import Origin, PluginError, Registered, Registry

MODULE = """\
from {here} import Score

class Spread(Score): ...
class Pack(Score): ...
class NoScore(Score):
    weight = None

def register(registry):
    registry.register("First", Spread)
    registry.register("Second", Pack)
"""


class Score:
    """What plugins of this daemon derive from."""

    weight: float | None = 1.0


class Scores(Registry[Registered[type[Score]]]):
    """The plugins of a daemon of this test."""

    group = "test.scores"
    shipped = "homemade"
    base = Score

    def register(self, name: str, plugin: type[Score]) -> None:
        """As a plugin's function calls it."""
        defect = "" if plugin.weight is not None else "wanted a weight, found None"
        self._add(Registered(name, plugin, self.origin()), defect)

    def register_class(self, name: str, plugin: type[Score]) -> None:
        self.register(name, plugin)

    def unloadable(self, name: str, origin: Origin, error: str) -> Registered[type[Score]]:
        return Registered(name, Score, origin, error)


def install(site: Path, name: str, entries: dict[str, str]) -> None:
    """Put a distribution with a module of its name where Python finds it."""
    (site / f"{name}_scores.py").write_text(MODULE.format(here=__name__))
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {name}_scores:{value}\n" for key, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{Scores.group}]\n{lines}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith("_scores")]:
        del sys.modules[name]


def found(site: Path) -> list[EntryPoint]:
    context = DistributionFinder.Context(path=[str(site)])
    return [entry for dist in distributions(context=context) for entry in dist.entry_points]


def test_classes_and_functions_are_registered_shipped_ones_first(site: Path):
    """No gate is needed for that."""
    install(site, "acme", {"Spread": "Spread", "Late": "Spread"})
    install(site, "homemade", {"x": "register", "Late": "Pack"})
    registry = Scores()

    (problem,) = discover(registry, found(site))

    assert [each.name for each in registry] == ["Late", "First", "Second", "Spread"]
    assert registry.get("Spread").plugin.__name__ == "Spread"
    assert registry.get("Spread").version == "1.0"
    assert "Late = acme_scores:Spread (acme 1.0): wanted a free name" in problem
    assert "Late = homemade_scores:Pack (homemade 1.0), which stays" in problem


def test_a_defect_is_said_by_the_stand_in(site: Path):
    """The daemon judges the shape; the name of what it refuses is known."""
    install(site, "acme", {"Odd": "NoScore", "Good": "Pack"})
    registry = Scores()

    assert discover(registry, found(site)) == []

    odd = registry.get("Odd")
    assert odd.error.endswith("(acme 1.0): wanted a weight, found None")
    assert (odd.plugin, registry.get("Good").error) == (Score, "")


def test_a_refused_name_does_not_take_the_others_of_its_package_along(site: Path):
    """Neither those before it nor those after it, whether the name is taken or the shape wrong."""
    install(site, "homemade", {"First": "Pack"})
    install(site, "acme", {"all": "register"})
    (site / "acme_scores.py").write_text(
        MODULE.format(here=__name__)
        + "    registry.register('Odd', NoScore)\n    registry.register('Third', Pack)\n"
    )
    registry = Scores()

    (problem,) = discover(registry, found(site))

    assert [each.name for each in registry] == ["First", "Second", "Third", "Odd"]
    assert "plugin First from all = acme_scores:register (acme 1.0): wanted a free name" in problem
    assert [each.name for each in registry if each.error] == ["Odd"]
    with pytest.raises(PluginError, match="wanted a free name"):
        registry.register("First", Score)


def test_a_module_that_blocks_for_good_is_interrupted(site: Path):
    """The daemon used to hang before it listened, for one plugin."""
    install(site, "acme", {"Stuck": "Spread"})
    install(site, "best", {"Good": "Pack"})
    (site / "acme_scores.py").write_text("import threading\nthreading.Event().wait()\n")
    registry = Scores()

    assert discover(registry, found(site), seconds=0.05) == []

    assert "wanted an end within 0.05 s, found it at " in registry.get("Stuck").error
    assert registry.get("Good").error == ""


def test_metadata_is_parsed_once_per_distribution(site: Path, monkeypatch: pytest.MonkeyPatch):
    """Twelve entry points of one distribution were 48 parses, 55 ms of every start."""
    install(site, "acme", {f"Plugin{number}": "Pack" for number in range(12)})
    parsed = []
    read = PathDistribution.metadata.fget

    def counted(self: PathDistribution) -> Message:
        parsed.append(self)
        return read(self)

    monkeypatch.setattr(PathDistribution, "metadata", property(counted))
    registry = Scores()

    discover(registry, found(site))

    assert (len(registry), len(parsed)) == (12, 1)


def test_registering_by_hand_names_the_line_that_did():
    """However many methods of the registry are between."""
    registry = Scores()
    line = inspect.currentframe().f_lineno + 1
    registry.register_class("Pack", Score)
    registry.register("Spread", Score)

    assert registry.get("Pack").source == f"{__file__}:{line}"
    assert registry.get("Spread").source == f"{__file__}:{line + 1}"
    with pytest.raises(PluginError, match="wanted a free name") as refused:
        registry.register("Pack", Score)
    assert refused.value.name == "Pack"
