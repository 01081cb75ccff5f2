"""The images as the Containerfile makes them, built once in a run."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from bases import debian, distroless
from buildah import Buildah, Built, build_context
from programs import REPOSITORY

DEBIAN = "docker.io/library/debian:12-slim"
DISTROLESS = "gcr.io/distroless/python3-debian12"
CERTIFICATES = Path("/etc/ssl/certs")
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


@dataclass(frozen=True, slots=True)
class Images:
    """Builds images with the Containerfile."""

    store: Buildah
    bases: tuple[str, ...]  # options of a build: digests, and what stands in for registries
    trust: tuple[str, ...]  # options of a build: pip trusts what this machine trusts

    def build(self, name: str, *options: str) -> None:
        """Build a target and name the image so."""
        self.store.build(
            REPOSITORY, "--target", name, "--tag", name, *self.trust, *(options or self.bases)
        )


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """A store with both bases."""
    pip = tmp_path_factory.mktemp("pip") / "pip.conf"
    pip.write_text(f"[global]\ncert = {CERTIFICATES}/ca-certificates.crt\n")
    trust = (f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", f"--volume={pip}:/etc/pip.conf:ro")
    with Buildah(tmp_path_factory.mktemp("buildah")) as store:
        options: list[str] = []
        for name, base, tar in (
            ("DEBIAN", DEBIAN, debian()),
            ("DISTROLESS", DISTROLESS, distroless()),
        ):
            image = f"localhost/{name.lower()}"
            digest = store.load(tar, image)
            options += ["--build-arg", f"{name}_DIGEST={digest}"]
            options += build_context(f"{base}@{digest}", image)
        yield Images(store, tuple(options), trust)


@pytest.fixture(scope="session")
def built(images: Images) -> Mapping[str, Built]:
    """All images, by name."""
    found = {}
    for name in ("koordlet", "koord-descheduler", "koord-scheduler"):
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
