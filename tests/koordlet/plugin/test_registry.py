"""Plugins are found by entry points; one that is bad or a duplicate blocks no other."""

import sys
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from koord.component.flags import FeatureSpec
from koord.component.plugins.discovery import discover
from koord.component.plugins.registry import PluginError
from koordlet.plugin import PluginRegistry

PLUGIN = """\
from koordlet.plugin import ExtensionPlugin, FeatureSpec

class Watcher(ExtensionPlugin):
    def setup(self, client, metric_cache, states_informer): ...
    async def run(self, stop): ...

class Evictor(Watcher):
    gates = ("CPUEvict", "BECPUEvict")

class Ripe(Watcher):
    spec = FeatureSpec(default=True)

def register(registry):
    registry.register_qos_ext_plugin("First", FeatureSpec(), Watcher())
    registry.register_qos_ext_plugin("Second", FeatureSpec(default=True), Watcher())

def twice(registry):
    registry.register_qos_ext_plugin("Twice", FeatureSpec(), Watcher())
    registry.register_qos_ext_plugin("Twice", FeatureSpec(), Evictor())

def no_plugin(registry):
    registry.register_qos_ext_plugin("Odd", FeatureSpec(), Watcher)

def fails(registry):
    raise RuntimeError("bang")

def exits(registry):
    raise SystemExit(3)

NUMBER = 7
"""


def install(site: Path, dist: str, version: str, module: str, entries: dict[str, str]) -> None:
    """Put a distribution with entry points where Python finds it."""
    (site / f"{module}.py").write_text(PLUGIN)
    info = site / f"{dist}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    lines = "".join(f"{name} = {module}:{value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{PluginRegistry.group}]\n{lines}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("strangers"):
            del sys.modules[name]


def found(site: Path) -> list[EntryPoint]:
    return [entry for dist in distributions(path=[str(site)]) for entry in dist.entry_points]


def test_a_class_is_registered_under_the_entry_points_name(site: Path):
    """A class gets a gate of its own, unless it names gates that exist."""
    install(
        site, "acme", "1.2", "strangers_a", {"Watch": "Watcher", "Evict": "Evictor", "R": "Ripe"}
    )
    registry = PluginRegistry()
    assert discover(registry, found(site)) == []
    watch, evict, ripe = (registry.get(name) for name in ("Watch", "Evict", "R"))
    assert (watch.spec, watch.gates) == (FeatureSpec(), ("Watch",))
    assert (evict.spec, evict.gates) == (None, ("CPUEvict", "BECPUEvict"))
    assert ripe.spec == FeatureSpec(default=True)
    assert watch.source == "Watch = strangers_a:Watcher (acme 1.2)"
    assert (watch.version, watch.plugin.name) == ("1.2", "Watch")


def test_a_function_registers_what_it_likes(site: Path):
    """A function gets the registry, and its plugins carry its distribution."""
    install(site, "acme", "1.2", "strangers_b", {"x": "register"})
    registry = PluginRegistry()
    assert discover(registry, found(site)) == []
    assert [entry.name for entry in registry] == ["First", "Second"]
    assert all("(acme 1.2)" in entry.source for entry in registry)


def test_a_taken_name_is_refused_and_both_sources_are_named(site: Path):
    """The first plugin of a name stays, whoever comes second."""
    install(site, "acme", "1.2", "strangers_c", {"x": "register"})
    install(site, "best", "3.4", "strangers_d", {"First": "Watcher", "Other": "Watcher"})
    registry = PluginRegistry()
    (problem,) = discover(registry, found(site))
    assert "First = strangers_d:Watcher (best 3.4)" in problem
    assert "x = strangers_c:register (acme 1.2), which stays" in problem
    assert registry.get("First").version == "1.2"
    assert registry.get("Other") is not None


def test_shipped_plugins_come_before_strangers(site: Path):
    """Nobody takes the name of a shipped plugin by being first in the alphabet."""
    install(site, "aaa", "1", "strangers_e", {"Mine": "Watcher"})
    install(site, "koordlet", "9", "strangers_f", {"Mine": "Watcher"})
    registry = PluginRegistry()
    assert len(discover(registry, found(site))) == 1
    assert registry.get("Mine").source.endswith("(koordlet 9)")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("twice", "plugin Twice from x = strangers_g:twice (acme 1): wanted a free name"),
        ("no_plugin", "wanted an instance of ExtensionPlugin"),
        ("fails", "RuntimeError('bang')"),
        ("exits", "SystemExit(3)"),
        ("NUMBER", "wanted a class derived from ExtensionPlugin, or a function"),
        ("missing", "AttributeError"),
    ],
)
def test_a_bad_entry_point_blocks_no_other_plugin(site: Path, value: str, message: str):
    """Each bad entry point is one problem; the good one after it is there."""
    install(site, "acme", "1", "strangers_g", {"x": value, "y": "Watcher"})
    registry = PluginRegistry()
    problems = discover(registry, found(site))
    bad = [entry for entry in registry if entry.error]
    assert message in " ".join([*problems, *(entry.error for entry in bad)])
    assert len(problems) + len(bad) == 1
    assert registry.get("y").error == ""


def test_a_module_that_cannot_be_imported_keeps_its_name(site: Path):
    """Its entry point's name is known as that of a plugin that could not be loaded, and why."""
    install(site, "acme", "1", "strangers_h", {"x": "Watcher"})
    (site / "strangers_h.py").write_text("import no_such_module_anywhere\n")
    registry = PluginRegistry()
    assert discover(registry, found(site)) == []
    entry = registry.get("x")
    assert entry.error.startswith("x = strangers_h:Watcher (acme 1): ModuleNotFoundError")
    assert "no_such_module_anywhere" in entry.error
    assert (entry.gates, entry.version) == (("x",), "1")


def test_a_module_that_cannot_be_imported_takes_no_other_plugins_name(site: Path):
    """Where another plugin has the name, it is one problem."""
    install(site, "acme", "1", "strangers_i", {"x": "Watcher"})
    install(site, "best", "1", "strangers_j", {"x": "Watcher"})
    (site / "strangers_j.py").write_text("import no_such_module_anywhere\n")
    registry = PluginRegistry()
    (problem,) = discover(registry, found(site))
    assert "no_such_module_anywhere" in problem
    assert registry.get("x").error == ""


def test_a_plugin_of_the_wrong_shape_keeps_its_feature(site: Path):
    """The name that a function registers it under, not that of the entry point."""
    install(site, "acme", "1", "strangers_k", {"x": "no_plugin"})
    registry = PluginRegistry()
    assert discover(registry, found(site)) == []
    assert "wanted an instance" in registry.get("Odd").error
    assert registry.get("x") is None


def test_the_shipped_plugins_are_installed():
    """This distribution's own entry points are found like a stranger's."""
    registry = PluginRegistry()
    assert discover(registry) == []
    assert registry.get("PressureWatch") is not None


def test_registering_by_hand_names_file_and_line():
    """Without an entry point the source is the caller's line."""
    from koordlet.plugin import ExtensionPlugin

    class Plugin(ExtensionPlugin):
        def setup(self, client, metric_cache, states_informer): ...

        async def run(self, stop): ...

    registry = PluginRegistry()
    registry.register_qos_ext_plugin("P", FeatureSpec(), Plugin())
    assert registry.get("P").source.startswith(f"{__file__}:")
    with pytest.raises(PluginError, match="wanted a free name"):
        registry.register_qos_ext_plugin("P", FeatureSpec(), Plugin())
    assert len(registry) == 1
