"""A real control plane: ours, or with KUBECONFIG_E2E any cluster that may be written to."""

import asyncio
import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane import ControlPlane, kubeconfig_of_a_cluster, missing
from programs import CRD_SERVER, HELM, KUSTOMIZE, REPOSITORY, STRICT, Program, ask
from rights import Right, wanted_by
from served import PATIENCE, until_served

from koord.kube.client import ApiClient, Resource
from koord.kube.credentials import ApiConfig
from koord.kube.errors import AlreadyExists
from koord.kube.kubeconfig import load, split_list
from koord.kube.transport import Limits, Transport
from koord.util import documents
from koord.util.clock import SystemClock
from tests.support.kube.apiserver import ApiServer

CHART = REPOSITORY / "deploy" / "chart"
KUBERNETES_VERSION = "v1.35.0"  # the cluster that the chart is rendered for
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")

_LAST = "test_rbac.py"  # judges what all others asked

_names = itertools.count()
_asked: dict[str, set[Right]] = {}  # by the file of the test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == _LAST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Function) -> None:
    """Note what the daemon asked of the servers that stood in for Kubernetes."""
    for value in getattr(item, "funcargs", {}).values():
        server = getattr(value, "front", value)
        if isinstance(server, ApiServer):
            _asked.setdefault(item.path.name, set()).update(wanted_by(server))


@pytest.fixture
def asked_by_all_tests(request: pytest.FixtureRequest) -> dict[str, set[Right]]:
    """What the daemon asked for in this run, by test file; only a whole and good one has all."""
    session, option = request.session, request.config.option
    here = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    partial = here - {item.path.name for item in session.items} or option.keyword or option.markexpr
    if partial or any("::" in argument for argument in request.config.args):
        pytest.skip("needs a run of all tests in tests/e2e")
    if session.testsfailed or not _asked or kubeconfig_of_a_cluster():
        pytest.skip("needs a good run on our own control plane")
    return _asked


@pytest.fixture(scope="session")
def go_program() -> Callable[[Program], Path]:
    """Builds a program of the tests, once in a run, and returns its file."""
    if lacking := missing("go"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")
    return cache(Program.build)


@pytest.fixture(scope="session")
def render(go_program: Callable[[Program], Path]) -> Callable[[Path], list[dict[str, Any]]]:
    """Renders a directory as `kubectl apply -k` does."""
    kustomize = go_program(KUSTOMIZE)

    def render(directory: Path) -> list[dict[str, Any]]:
        done = subprocess.run(
            [kustomize, "build", directory], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return render


@pytest.fixture(scope="session")
def helm(
    go_program: Callable[[Program], Path],
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a command of Helm on our chart with some values."""
    program = go_program(HELM)

    def helm(
        *command: str, values: dict[str, Any], kubernetes: str = KUBERNETES_VERSION
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [program, *command, CHART, f"--kube-version={kubernetes}", "--values=-"],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return helm


@pytest.fixture(scope="session")
def installed(
    helm: Callable[..., "subprocess.CompletedProcess[str]"],
) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """The objects that our chart makes of values."""

    def installed(values: dict[str, Any]) -> list[dict[str, Any]]:
        done = helm("template", "koordlet", values=values)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return installed


@pytest.fixture(scope="session")
def problems(go_program: Callable[[Program], Path]) -> Callable[[list[dict[str, Any]]], list[str]]:
    """What Kubernetes' decoder finds wrong with objects, of kinds of its own."""
    return partial(ask, go_program(STRICT))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and the CRD server, one of each for all tests."""
    lacking = missing()
    if lacking:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")
    CRD_SERVER.build()
    plane = ControlPlane(tmp_path_factory.mktemp("controlplane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def api_config(request: pytest.FixtureRequest) -> ApiConfig:
    """The cluster under test."""
    if named := kubeconfig_of_a_cluster():
        return load(split_list(named), must_exist=True)
    plane: ControlPlane = request.getfixturevalue("control_plane")
    return plane.config


@pytest.fixture
def own_plane(request: pytest.FixtureRequest) -> ControlPlane:
    """The control plane, for tests that stop it."""
    if kubeconfig_of_a_cluster():
        pytest.skip("stops the API server, which is not ours")
    plane: ControlPlane = request.getfixturevalue("control_plane")
    return plane


@pytest.fixture
async def client(api_config: ApiConfig) -> AsyncIterator[ApiClient]:
    """A client in real time, with our CRDs installed."""
    clock = SystemClock()
    client = ApiClient(Transport(api_config, clock, limits=Limits(qps=0)), clock)
    await _install_crds(client)
    yield client
    await client.close()


@pytest.fixture
def node_name() -> str:
    """A name that no other test uses."""
    return f"koordlet-e2e-{next(_names)}"


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for something that the server does in its own time."""

    async def eventually(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - the server has no event to await
                await asyncio.sleep(0.02)

    return eventually


def crd_files() -> list[Path]:
    """The definitions that ship, of the agent's kinds and of the descheduler's."""
    deploy = REPOSITORY / "deploy"
    found = [*deploy.glob("crds/*.yaml"), *deploy.glob("descheduler/crds/*.yaml")]
    return sorted(path for path in found if path.name != "kustomization.yaml")


async def _install_crds(client: ApiClient) -> None:
    for path in crd_files():
        crd = documents.decode(path.read_bytes(), str(path))
        assert isinstance(crd, dict)
        try:
            await client.create(CRDS.collection(), crd)
        except AlreadyExists:
            continue
        for version in crd["spec"]["versions"]:
            resource = Resource(
                f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["plural"]
            )
            await until_served(client, resource)
