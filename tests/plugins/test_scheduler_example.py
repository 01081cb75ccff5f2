"""The scheduler's example package, as a third party would ship it: installed, found and run."""

import re
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from koord.component.plugins.args import args_type_of
from tests.support.examplepackages import run_installed_tests

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "plugins" / "example-scheduler"
README = (EXAMPLE / "README.md").read_text()
PAGE = (ROOT / "docs" / "writing-scheduler-plugins.md").read_text()

INSTALLED = textwrap.dedent(
    '''
    """Beside the package's own tests: it is found, and the README's configuration runs."""

    import re
    from pathlib import Path

    from koord_scheduler.plugin.testing import ProfileHarness, fake_cluster, make_pod

    README = Path("README.md").read_text()


    async def test_it_is_found_and_runs() -> None:
        cluster = fake_cluster()
        cluster.node("roomy", pods=110)
        cluster.node("small", pods=3)
        [text] = re.findall(r"^```yaml\\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
        async with ProfileHarness(text, cluster, installed=True) as harness:
            assert harness.warnings == []
            decided = harness.decide(make_pod("web", labels={"example.com/licence": "1"}))
            assert decided.node == "roomy"
            assert decided.rejections == {"small": "node(s) had no spare room for pods"}
        sources = {entry.name: entry.source for entry in harness.registry}
        assert sources["Seats"] == (
            "Seats = koord_roomy_nodes.seats:Seats (koord-roomy-nodes 0.1.0)"
        )
    '''
)


def test_the_installed_package_passes_its_tests_and_is_found(tmp_path: Path) -> None:
    done = run_installed_tests(EXAMPLE, tmp_path, INSTALLED)

    assert re.search(r"^38 passed", done, re.MULTILINE)


@pytest.mark.parametrize("module", ["roomy_nodes", "seats", "crews"])
def test_the_guide_builds_this_package(module: str) -> None:
    """What its last step has is what is here."""
    source = (EXAMPLE / "src" / "koord_roomy_nodes" / f"{module}.py").read_text()
    assert f"```python\n# file: {module}.py\n{source}```\n" in PAGE


@pytest.mark.parametrize(
    ("name", "module"), [("RoomyNodes", "roomy_nodes"), ("Seats", "seats"), ("Crews", "crews")]
)
def test_its_readme_has_every_field_of_the_args(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default."""
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    found = __import__(f"koord_roomy_nodes.{module}", fromlist=[name])
    declared = args_type_of(getattr(found, name))
    assert declared is not None
    written = dict(re.findall(rf"^\| `{name}` \| `(\w+)` \| (\S+) \|", README, re.MULTILINE))
    assert written == {each.name: str(each.default) for each in fields(declared.cls)}


def test_readme_has_the_guides_first_plugin() -> None:
    """The ten lines of the project's README are those that the guide's tests run."""
    [first, *_] = re.findall(r"```python\n# file: roomy_nodes.py\n(.*?)```", PAGE, re.DOTALL)
    assert f"```python\n{first}```" in (ROOT / "README.md").read_text()
