"""The descheduler's example package, as a third party would ship it: installed, found and run."""

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from koord.component.plugins.args import args_type_of

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
    """Without the network, into a directory of its own; the tests need nothing but the kit."""
    source, site = tmp_path / "source", tmp_path / "site"
    for file in EXAMPLE.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".toml", ".md", ".typed"}:
            copy = source / file.relative_to(EXAMPLE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    _run(
        ["pip", "--disable-pip-version-check", "--no-input", "--quiet", "install", "--no-deps"]
        + ["--no-index", "--no-build-isolation", "--target", str(site), str(source)],
        tmp_path,
    )
    work = tmp_path / "work"
    work.mkdir()
    (source / "tests").rename(work / "tests")
    for name in ("pyproject.toml", "README.md"):
        (source / name).rename(work / name)
    (work / "tests" / "test_installed.py").write_text(INSTALLED)

    done = _run(["pytest", "-q", "-p", "no:cacheprovider", "tests"], work, site)

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


def _run(module: list[str], directory: Path, path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path) if path else ""}
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
