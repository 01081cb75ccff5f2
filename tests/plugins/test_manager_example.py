"""The manager's example package, as a third party would ship it: installed, found and run."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "plugins" / "example-manager"
INSTALLED = textwrap.dedent(
    '''
    """Beside the package's own tests: it is found, and the README's configuration is its own."""

    import re
    from pathlib import Path

    from koord.component.plugins.discovery import discover
    from koord_manager.daemon.settings import load_settings


    def test_it_is_found_and_configured(tmp_path: Path) -> None:
        readme = Path("README.md").read_text()
        [text] = re.findall(r"^```yaml\\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        file = tmp_path / "licenses.yaml"
        file.write_text(text)
        settings = load_settings([f"--config={file}"], {}, discover=discover)
        assert settings.warnings() == []
        assert "Licenses" in settings.enabled
        assert settings.configuration.args["Licenses"].pools == {"large": 20, "small": 2}
        off = load_settings(["--feature-gates=Licenses=false"], {}, discover=discover)
        assert "Licenses" not in off.enabled
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

    assert re.search(r"^9 passed", done, re.MULTILINE)


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
