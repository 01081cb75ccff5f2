"""The images of this tree, as tar files: `python -m tests.support.image.treeimages` writes them."""

import fcntl
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.image.bases import KEPT, debian, distroless
from tests.support.image.buildah import Buildah, build_context
from tests.support.programs import REPOSITORY

DEBIAN = "docker.io/library/debian:12-slim"
DISTROLESS = "gcr.io/distroless/python3-debian12"
CERTIFICATES = Path("/etc/ssl/certs")
NAMES = ("koordlet", "koord-descheduler", "koord-manager", "koord-scheduler")
REGISTRY = "registry.example"  # as README.md calls it
TAGS = ("0.1.0", "0.1.1")  # of one image: to upgrade from and to


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


@contextmanager
def store_of_bases(directory: Path) -> Iterator[Images]:
    """A store with both bases."""
    pip = directory / "pip.conf"
    pip.write_text(f"[global]\ncert = {CERTIFICATES}/ca-certificates.crt\n")
    trust = (f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", f"--volume={pip}:/etc/pip.conf:ro")
    with Buildah(directory) as store:
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


def image_tars() -> list[Path]:
    """The images as tars that a container runtime imports; built unless the tree is as it was.

    Only one process of a checkout builds; others wait for it.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _image_tars()


def _image_tars() -> list[Path]:
    tars = [KEPT / f"{name}-image.tar" for name in NAMES]
    built, state = KEPT / "images-of", _state_of_the_tree()
    if built.exists() and built.read_text() == state and all(each.exists() for each in tars):
        return tars
    built.unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="koord-images-") as directory,
        store_of_bases(Path(directory)) as images,
    ):
        for name, tar in zip(NAMES, tars, strict=True):
            images.build(name)
            pushed = Path(directory) / "image.tar"
            images.store.do("push", name, f"docker-archive:{pushed}:{REGISTRY}/{name}:{TAGS[0]}")
            _tag(pushed, tar, [f"{REGISTRY}/{name}:{tag}" for tag in TAGS])
            pushed.unlink()
    built.write_text(state)
    return tars


def _state_of_the_tree() -> str:
    """What the Containerfile makes the images of."""
    digest = hashlib.sha256()
    wanted = [
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    command = ["git", "ls-files", "--", *wanted, "deploy/Containerfile"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        path = REPOSITORY / name
        content = path.read_bytes() if path.exists() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _tag(source: Path, target: Path, tags: list[str]) -> None:
    """Copy a tar of an image, which is then called so."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for entry in old:
            data = old.extractfile(entry) if entry.isfile() else None
            if entry.name == "manifest.json":
                assert data is not None
                [described] = json.load(data)
                text = json.dumps([{**described, "RepoTags": tags}]).encode()
                entry.size, data = len(text), io.BytesIO(text)
            new.addfile(entry, data)


if __name__ == "__main__":
    print(*image_tars(), sep="\n")
    sys.exit(0)
