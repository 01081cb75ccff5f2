"""The images as the Containerfile makes them, built once in a run."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.image.buildah import Built
from tests.support.image.treeimages import NAMES, Images, store_of_bases
from tests.support.programs import REPOSITORY

PACKAGES = {
    "buildah": "buildah",
    "dpkg-deb": "dpkg",
    "mmdebstrap": "mmdebstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "runc": "runc",
}


def pytest_runtest_setup() -> None:
    """Skip where something is missing; fail in CI."""
    lacking = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    lacking += ["Go 1.25"] * (not shutil.which("go")) + ["root"] * (os.geteuid() != 0)
    if lacking:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {', '.join(lacking)}")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """A store with both bases."""
    with store_of_bases(tmp_path_factory.mktemp("buildah")) as images:
        yield images


@pytest.fixture(scope="session")
def built(images: Images) -> Mapping[str, Built]:
    """All images, by name."""
    found = {}
    for name in NAMES:
        images.build(name)
        found[name] = images.store.mount(name)
    return found


@pytest.fixture(scope="session")
def sbom_python() -> Path:
    """A Python that has cyclonedx-bom."""
    directory = REPOSITORY / "build" / "image" / "venv"
    locked = REPOSITORY / "requirements" / "sbom.txt"
    mark = directory / "installed.txt"
    if not mark.exists() or mark.read_bytes() != locked.read_bytes():
        subprocess.run(["python3", "-m", "venv", "--clear", directory], check=True)
        pip = [directory / "bin" / "pip", "install", "--quiet", "--require-hashes", "-r", locked]
        subprocess.run(pip, check=True, timeout=600)
        shutil.copy(locked, mark)
    return directory / "bin" / "python"
