"""The example packages of plugins, installed as a user would install a third party's."""

import os
import subprocess
import sys
from pathlib import Path


def run_installed_tests(example: Path, directory: Path, more: str) -> str:
    """Install an example package below a directory, run its tests, and return pytest's output.

    Without the network, and without the package's source: its tests need nothing but the kit.
    more: the text of one more test module beside them.
    """
    source, site = directory / "source", directory / "site"
    for file in example.rglob("*"):
        if file.is_file() and file.suffix in {".py", ".toml", ".md", ".typed"}:
            copy = source / file.relative_to(example)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    _run(
        ["pip", "--disable-pip-version-check", "--no-input", "--quiet", "install", "--no-deps"]
        + ["--no-index", "--no-build-isolation", "--target", str(site), str(source)],
        directory,
    )
    work = directory / "work"
    work.mkdir()
    (source / "tests").rename(work / "tests")
    for name in ("pyproject.toml", "README.md"):
        (source / name).rename(work / name)
    (work / "tests" / "test_installed.py").write_text(more)
    return _run(["pytest", "-q", "-p", "no:cacheprovider", "tests"], work, site)


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
