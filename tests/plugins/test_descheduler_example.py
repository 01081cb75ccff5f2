"""The descheduler's example package, as a third party would ship it: installed, found and run."""

import re
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from koord.component.plugins.args import args_type_of
from tests.support.examplepackages import run_installed_tests

EXAMPLE = Path(__file__).parents[2] / "plugins" / "example-descheduler"
README = (EXAMPLE / "README.md").read_text()

INSTALLED = textwrap.dedent(
    '''
    """Beside the package's own tests: it is found, and the README's configuration runs."""

    import re
    from pathlib import Path

    from koord_descheduler.plugin.testing import FakeCluster, ProfileHarness

    README = Path("README.md").read_text()


    async def test_it_is_found_and_runs() -> None:
        cluster = FakeCluster()
        cluster.node("full", pods=10)
        cluster.node("free", pods=10)
        for number in range(10):
            cluster.pod(f"p{number}", "full")
        [text] = re.findall(r"^```yaml\\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
        wet = text.replace("dryRun: true", "dryRun: false")
        async with ProfileHarness(wet, cluster, installed=True) as harness:
            result = await harness.cycle()
            assert result.errors == harness.warnings == []
            assert result.evictions == {"crowded": {"CrowdedNodes": 1}}
            [pod] = harness.server.evicted
            assert pod.node == "full"
        sources = {entry.name: entry.source for entry in harness.registry}
        assert sources["GentleEvictor"] == (
            "GentleEvictor = koord_crowded_nodes.gentle:GentleEvictor (koord-crowded-nodes 0.1.0)"
        )
    '''
)


def test_the_installed_package_passes_its_tests_and_is_found(tmp_path: Path) -> None:
    done = run_installed_tests(EXAMPLE, tmp_path, INSTALLED)

    assert re.search(r"^16 passed", done, re.MULTILINE)


@pytest.mark.parametrize("name", ["CrowdedNodes", "GentleEvictor"])
def test_its_readme_has_every_field_of_the_args(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default."""
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    module = {"CrowdedNodes": "crowded", "GentleEvictor": "gentle"}[name]
    found = __import__(f"koord_crowded_nodes.{module}", fromlist=[name])
    declared = args_type_of(getattr(found, name))
    assert declared is not None
    written = dict(re.findall(rf"^\| `{name}` \| `(\w+)` \| (\S+) \|", README, re.MULTILINE))

    def value(default: object) -> str:
        match default:
            case tuple():
                return ",".join(map(str, default))
            case float() if name == "GentleEvictor":
                return f"{default:g}s"
            case int() | float():
                return f"{default:g}"
        raise AssertionError(default)

    assert written == {
        re.sub(r"_(\w)", lambda match: match[1].upper(), each.name): value(each.default)
        for each in fields(declared.cls)
    }
