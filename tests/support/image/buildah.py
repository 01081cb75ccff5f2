"""Images by buildah, in a store of their own."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Built:
    """An image, and where its files are."""

    root: Path
    entrypoint: tuple[str, ...]
    environ: Mapping[str, str]
    user: str  # "": root


class Buildah:
    """A store of images. Use it as a context manager: nothing of it stays mounted."""

    def __init__(self, directory: Path) -> None:
        # Files of the store are not layers over each other (vfs): that works on every file system.
        self._command = ["buildah", "--storage-driver", "vfs"]
        self._command += ["--root", str(directory / "store"), "--runroot", str(directory / "run")]

    def __enter__(self) -> "Buildah":
        return self

    def __exit__(self, *_: object) -> None:
        self.do("rm", "--all")
        self.do("rmi", "--all", "--force")

    def load(self, tar: Path, name: str) -> str:
        """Make an image of one tar file; return its digest."""
        container = self.do("from", "scratch").strip()
        self.do("add", "--quiet", container, str(tar), "/")
        self.do("commit", "--quiet", "--rm", container, name)
        return self.do("images", "--digests", "--format", "{{.Digest}}", name).strip()

    def build(self, directory: Path, *options: str) -> None:
        """Build an image from deploy/Containerfile.

        Raises:
            subprocess.CalledProcessError: buildah refuses or fails; output has its words.
        """
        file = directory / "deploy" / "Containerfile"
        isolation = ("--isolation", "chroot")  # as in a container that may not make containers
        self.do("build", *isolation, *options, "-f", str(file), str(directory))

    def mount(self, name: str) -> Built:
        """The files of an image, in a container that nothing runs in."""
        container = self.do("from", name).strip()
        root = Path(self.do("mount", container).strip())
        found: dict[str, Any] = json.loads(self.do("inspect", "--type", "image", name))
        config = found["OCIv1"]["config"]
        environ = dict(each.split("=", 1) for each in config.get("Env", ()))
        return Built(root, tuple(config["Entrypoint"]), environ, config.get("User", ""))

    def size(self, name: str) -> str:
        """The size of an image, as buildah prints it."""
        return self.do("images", "--format", "{{.Size}}", name).strip()

    def do(self, *arguments: str) -> str:
        """What a command of buildah prints."""
        done = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, "BUILDAH_HISTORY": "false"},
        )
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, arguments, done.stdout, done.stderr[-5000:]
            )
        return done.stdout


def build_context(base: str, image: str) -> Sequence[str]:
    """The option that builds on a local image where the Containerfile names base."""
    return ("--build-context", f"{base}=container-image://{image}")
