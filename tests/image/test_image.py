"""The images: built as documented, started as their manifests say, and what is in them."""

import asyncio
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.image.buildah import Built
from tests.support.programs import REPOSITORY, Program

from ..cgroups.container.cluster import Agent, Cluster
from ..cgroups.container.nodepod import NodePod
from ..cgroups.container.ocispec import oci_spec
from ..cgroups.container.runc import Container
from .conftest import Images

DEPLOY = REPOSITORY / "deploy"
SECCOMP = Program("containerdseccomp", Path(__file__).parent / "containerdseccomp")
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DAEMONS = {
    "koordlet": (DEPLOY / "daemonset.yaml", DEPLOY / "daemonset.yaml", 9316),
    "koord-descheduler": (
        DEPLOY / "descheduler" / "descheduler.yaml", DEPLOY / "descheduler" / "config.yaml", 10251,
    ),
    "koord-scheduler": (
        DEPLOY / "scheduler" / "scheduler.yaml", DEPLOY / "scheduler" / "config.yaml", 10251,
    ),
}  # fmt: skip

_numbers = itertools.count()


def workload(name: str) -> dict[str, Any]:
    """The pod of a daemon's manifest."""
    found = yaml.safe_load_all(DAEMONS[name][0].read_text())
    [pod] = [each["spec"]["template"]["spec"] for each in found if "template" in each["spec"]]
    assert isinstance(pod, dict)
    return pod


@pytest.fixture(scope="session")
def seccomp() -> dict[str, Any]:
    """RuntimeDefault as containerd has it, for a container without capabilities."""
    done = subprocess.run([SECCOMP.build()], stdout=subprocess.PIPE, check=True, timeout=60)
    profile: dict[str, Any] = json.loads(done.stdout)
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    return profile


@pytest.fixture
def contain(
    built: Mapping[str, Built], seccomp: dict[str, Any], tmp_path: Path
) -> Iterator[Callable[..., Container]]:
    """Makes a container of an image, with the security context of its manifest."""
    containers: list[Container] = []
    (tmp_path / "account").mkdir()
    config = tmp_path / "config"
    config.mkdir()

    def contain(name: str, pod: dict[str, Any], command: list[str]) -> Container:
        image = built[name]
        for document in yaml.safe_load_all(DAEMONS[name][1].read_text()):
            for file, text in document.get("data", {}).items():
                (config / file).write_text(text)
        number = next(_numbers)
        label = f"koord-image-{os.getpid()}-{number}"
        spec = oci_spec(
            pod,
            command or [*image.entrypoint, *pod["containers"][0]["args"]],
            environ={**image.environ, **Cluster.environment},
            host=tmp_path / "host",
            files={SERVICE_ACCOUNT: tmp_path / "account", "/config": config},
            cgroup=f"/{label}",
            image=image.root,
            seccomp=seccomp,
        )
        containers.append(Container(tmp_path / str(number), label, spec))
        return containers[-1]

    yield contain
    for container in containers:
        container.remove()


@pytest.mark.parametrize("missing", ["DEBIAN", "DISTROLESS"])
def test_without_digests_of_the_bases_nothing_is_built(images: Images, missing: str) -> None:
    """A tag alone, which may be another image tomorrow, is refused; the words name the argument."""
    digest = f"sha256:{0:064}"
    given = [name for name in ("DEBIAN", "DISTROLESS") if name != missing]
    options = [f"--build-arg={name}_DIGEST={digest}" for name in given]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        images.build("koordlet", "--pull-never", *options)
    assert f'missing \\"{missing}_DIGEST\\" build argument' in caught.value.stderr


@pytest.mark.parametrize("name", DAEMONS)
async def test_it_starts_as_its_manifest_says(
    name: str, contain: Any, images: Images, tmp_path: Path
) -> None:
    """No capability, read-only, containerd's seccomp profile: its probes are answered, it ends."""
    pod = workload(name)
    [spec] = pod["containers"]
    spec["args"] = [each.replace("$(POD_NAMESPACE)", "koordlet-system") for each in spec["args"]]
    with NodePod() as node_pod:
        container = contain(name, pod, [])
        cluster = Cluster(tmp_path, node_pod.uid)
        agent = Agent(container, port=DAEMONS[name][2], ctl=(f"/opt/{name}/bin/koordletctl",))
        began = time.monotonic()
        await cluster.serve(container)
        for probe in ("livenessProbe", "readinessProbe"):
            path = spec[probe]["httpGet"]["path"]
            await agent.until(lambda path=path: agent.get(path)[0] == 200)
        took = time.monotonic() - began
        if name == "koordlet":
            await agent.until(lambda: cluster.usage("web"))
            assert agent.lacks("privilege") != []
        container.stop()
        await cluster.server.stop()
    assert '"event": "daemon.stopped"' in container.output
    print(f"{name}: {images.store.size(name)}, ready after {took:.1f} s")


def test_an_image_has_no_shell_and_nothing_that_installs(built: Mapping[str, Built]) -> None:
    """Its own programs, and Python."""
    for name, image in built.items():
        programs = {path.name for path in (image.root / "opt" / name / "bin").glob("*")}
        assert {each for each in programs if "koord" in each} <= {
            name, *(("koordletctl",) if name == "koordlet" else ()),
        }  # fmt: skip
        found = {path.name for path in image.root.glob("**/bin/*")}
        assert not found & {"sh", "bash", "dash", "apt", "dpkg", "pip", "pip3"}
        assert image.user == ("" if name == "koordlet" else "65532:65532")


def test_the_sbom_names_what_is_in_the_image(built: Mapping[str, Built], sbom_python: Path) -> None:
    """All locked packages of Python with their versions, and Debian's."""
    locks = {
        "koordlet": "run.txt",
        "koord-manager": "manager.txt",
        "koord-scheduler": "descheduler.txt",
    }
    for name, locked in locks.items():
        command = [sbom_python, DEPLOY / "sbom.py", built[name].root]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
        document = json.loads(done.stdout)
        (REPOSITORY / "build" / "image" / f"{name}.cdx.json").write_bytes(done.stdout)

        assert document["bomFormat"] == "CycloneDX"
        purls = {each.get("purl", "") for each in document["components"]}
        assert {each for each in purls if each.startswith("pkg:pypi/")} == set(_locked(locked))
        assert any(each.startswith("pkg:deb/debian/python3.11-minimal@3.11") for each in purls)
        assert any(each.startswith("pkg:deb/debian/libc6@2.36") for each in purls)
        assert "koordlet" in {each["name"] for each in document["components"]}
        print(f"{name}: {len(purls)} packages")


def _locked(name: str) -> Iterator[str]:
    """What a lock has for the image's Python on Linux, as package URLs."""
    image = {"python_full_version": "3.11.2", "python_version": "3.11", "sys_platform": "linux"}
    for line in (REPOSITORY / "requirements" / name).read_text().splitlines():
        if "==" in line and not line.startswith(" "):
            locked = Requirement(line.removesuffix("\\"))
            if locked.marker is None or locked.marker.evaluate(image):
                yield f"pkg:pypi/{locked.name.lower()}@{str(locked.specifier).removeprefix('==')}"


async def test_a_command_can_be_run_in_the_image(contain: Any) -> None:
    """koordletctl, as kubectl exec finds it on PATH."""
    container = contain("koordlet", workload("koordlet"), ["koordletctl", "--version"])
    assert await asyncio.to_thread(container.run)
