"""A real control plane: ours, or with KUBECONFIG_E2E any cluster that may be written to."""

import asyncio
import contextlib
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

from koord.api import podmigrationjob, reservation
from koord.kube.client import CONFIG_MAPS, LEASES, ApiClient, Resource
from koord.kube.credentials import ApiConfig
from koord.kube.errors import AlreadyExists, NotFound
from koord.kube.kubeconfig import load, split_list
from koord.kube.transport import Limits, Transport
from koord.util import documents
from koord.util.clock import SystemClock
from koord_manager import LEASE as MANAGER_LEASE
from koord_manager import NAME as MANAGER
from tests.support.deploy.overlay import overlay
from tests.support.kube.apiserver import ApiServer
from tests.support.programs import (
    ADMISSION,
    HELM,
    KUBERNETES,
    KUSTOMIZE,
    REPOSITORY,
    Program,
    ask_policy,
)
from tests.support.real_apiserver.accounts import SYSTEM, Accounts
from tests.support.real_apiserver.cluster_objects import SERVICE_ACCOUNTS, ClusterObjects
from tests.support.real_apiserver.control_plane import (
    ControlPlane,
    kubeconfig_of_a_cluster,
    missing,
)
from tests.support.real_apiserver.kubectl import Kubectl
from tests.support.real_apiserver.policies import delete_policies
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.rights import Right, wanted_by
from tests.support.real_apiserver.served import TIMEOUT, until_served

CHART = REPOSITORY / "deploy" / "chart"
KUBERNETES_VERSION = "v1.35.0"  # the cluster that the chart is rendered for
MANAGER_NAMESPACE = "koordinator-system"
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")

_LAST = "test_rbac.py"  # judges what all others asked

_JOBS = (
    Resource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL).collection(),
    Resource(reservation.API_VERSION, reservation.PLURAL).collection(),
)
_LEDGER = "koord-descheduler-ledger"

_names = itertools.count()
_asked: dict[str, set[Right]] = {}  # by the file of the test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == _LAST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Function) -> None:
    """Note what the daemon asked of the API server, and of a kubelet."""
    for server in getattr(item, "funcargs", {}).values():
        if isinstance(server, (ApiServer, Recorder)):
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


@pytest.fixture(params=["as shipped", "by Helm"])
def deciding(
    request: pytest.FixtureRequest, go_program: Any, render: Any, installed: Any, tmp_path: Path
) -> Callable[[str], Callable[..., list[str]]]:
    """Kubernetes' own plugin with the policies of a component of koord-scheduler.

    Called with a policy and requests, it answers "" for an allowed request, else why not.
    """

    def deciding(component: str) -> Callable[..., list[str]]:
        if request.param == "by Helm":
            first, *words = component.split("-")
            value = first + "".join(map(str.capitalize, words))
            made = installed({"scheduler": {"enabled": True, "components": {value: True}}})
        else:
            made = render(overlay(tmp_path, "scheduler", f"scheduler/{component}"))
        return partial(ask_policy, go_program(ADMISSION), made)

    return deciding


@pytest.fixture(scope="session")
def problems(control_plane: ControlPlane) -> Callable[[list[dict[str, Any]]], str]:
    """What our own API server has against objects, unknown fields too; "" when nothing."""
    kubectl = Kubectl(str(control_plane.kubeconfig))

    def problems(objects: list[dict[str, Any]]) -> str:
        for name in sorted({each["metadata"].get("namespace", "default") for each in objects}):
            kubectl.run("create", "namespace", name)
        return kubectl.problems(objects)

    return problems


@pytest.fixture(scope="session")
def control_plane(
    tmp_path_factory: pytest.TempPathFactory, go_program: Callable[[Program], Path]
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, one of each for all tests."""
    if lacking := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")
    go_program(KUBERNETES)
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


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest, go_program: Callable[[Program], Path]) -> Kubectl:
    """kubectl with the rights of the cluster's administrator."""
    go_program(KUBERNETES)
    if named := kubeconfig_of_a_cluster():
        return Kubectl(named)
    plane: ControlPlane = request.getfixturevalue("control_plane")
    return Kubectl(str(plane.kubeconfig))


@pytest.fixture
async def own_plane(request: pytest.FixtureRequest) -> AsyncIterator[ControlPlane]:
    """The control plane, for tests that stop it, or in which a control plane daemon works.

    What such a daemon leaves behind is removed at the end.
    """
    if kubeconfig_of_a_cluster():
        pytest.skip("stops the API server or evicts pods, which are not ours")
    plane: ControlPlane = request.getfixturevalue("control_plane")
    clock = SystemClock()
    client = ApiClient(Transport(plane.config, clock, limits=Limits(qps=0)), clock)
    yield plane
    for path in (*_JOBS, LEASES.collection(SYSTEM), CONFIG_MAPS.object(_LEDGER, namespace=SYSTEM)):
        with contextlib.suppress(NotFound):
            await client.delete(path)
    await client.close()


@pytest.fixture
async def client(api_config: ApiConfig) -> AsyncIterator[ApiClient]:
    """A client in real time, with our CRDs installed."""
    clock = SystemClock()
    client = ApiClient(Transport(api_config, clock, limits=Limits(qps=0)), clock)
    await _install_crds(client)
    yield client
    await client.close()


@pytest.fixture
async def objects(client: ApiClient) -> AsyncIterator[ClusterObjects]:
    """What others than our daemons have in the cluster."""
    objects = ClusterObjects(client)
    yield objects
    await objects.remove_all()


@pytest.fixture
async def accounts(
    tmp_path_factory: pytest.TempPathFactory, render: Callable[[Path], list[dict[str, Any]]],
    kubectl: Kubectl, client: ApiClient, node_name: str,
) -> AsyncIterator[Accounts]:  # fmt: skip
    """Tokens of our daemons, with the rights that ship."""
    accounts = Accounts(tmp_path_factory.mktemp("rights"), render, kubectl, client, node_name)
    yield accounts
    await accounts.remove()


@pytest.fixture
async def manager_token(
    own_plane: ControlPlane, client: ApiClient, kubectl: Kubectl
) -> AsyncIterator[str]:
    """A token of koord-manager, with the rights that ship; what it leaves is removed at the end."""
    manifests = [
        one
        for name in ("namespace", "rbac")
        for one in yaml.safe_load_all((REPOSITORY / f"deploy/manager/{name}.yaml").read_text())
    ]
    await asyncio.to_thread(kubectl.apply, manifests)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = SERVICE_ACCOUNTS.object(MANAGER, namespace=MANAGER_NAMESPACE, subresource="token")
    yield (await client.post(path, request))["status"]["token"]
    await delete_policies(client)
    await client.delete(LEASES.object(MANAGER_LEASE, namespace=MANAGER_NAMESPACE))
    await asyncio.to_thread(kubectl.delete, manifests[1:])


@pytest.fixture
async def recorder(api_config: ApiConfig) -> AsyncIterator[Recorder]:
    """The API server as the daemon under test sees it; what that asks must be allowed."""
    async with Recorder(api_config) as recorder:
        yield recorder
    assert [f"{each.verb} {each.path}" for each in recorder.refused] == []


@pytest.fixture
def node_name() -> str:
    """A name that no other test uses."""
    return f"koordlet-e2e-{next(_names)}"


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for something that the server does in its own time."""

    async def eventually(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
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
