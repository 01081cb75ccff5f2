"""What plugins bring along: controllers, endpoints, informers."""

from collections.abc import Iterable, Mapping

import pytest

from koord.component.plugins.shared import SharedParts
from koord.util.health import OK, PartHealth
from koord.util.stop import Stop
from koord_scheduler.framework.extension.providers import (
    MAX_PART_LENGTH,
    MAX_PART_PODS,
    MAX_PARTS,
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    InformerFactoryProvider,
    NodePart,
    NodePartsProvider,
    PluginRequest,
    PrivateInformer,
    ProvidedServices,
    ProvidedServicesError,
    node_parts,
)
from koord_scheduler.plugin import NodeInfo
from koord_scheduler.plugin.testing import fake_cluster
from tests.support.scheduler.framework import FreeCpu, Kit


class Part:
    """A controller, or an informer."""

    async def run(self, stop: Stop) -> None:
        await stop.wait()

    async def wait_ready(self) -> None:
        """It is."""

    async def wait_synced(self) -> None:
        """It is."""

    def health(self) -> PartHealth:
        return OK


async def nothing(request: PluginRequest) -> object:
    return {}


class Provides(FreeCpu, ControllerProvider, APIServiceProvider, InformerFactoryProvider):
    def __init__(self, *paths: str) -> None:
        self.paths = paths or ("/node/{node}",)
        self.part = Part()

    def new_controllers(self) -> Mapping[str, Part]:
        return {"sync": self.part}

    def endpoints(self) -> Iterable[Endpoint]:
        return [Endpoint("GET", path, nothing) for path in self.paths]

    def new_informers(self) -> Mapping[str, PrivateInformer]:
        return {"devices": self.part}


async def provided(**plugins: Provides) -> ProvidedServices:
    """Of two profiles that both name the plugins."""
    profiles = [await Kit().profile(filter=plugins), await Kit().profile(filter=plugins)]
    return ProvidedServices(profiles)


async def test_each_plugin_is_asked_once_however_many_profiles_name_it() -> None:
    found = await provided(One=Provides(), Two=Provides())
    assert list(found.endpoints) == ["One", "Two"]
    assert list(found.informers) == ["One/devices", "Two/devices"]


@pytest.mark.parametrize(
    ("selected", "running"),
    [
        (("*",), {"One/sync", "Two/sync"}),
        (("*", "-Two"), {"One/sync"}),
        (("Two",), {"Two/sync"}),
        ((), set()),
    ],
)
async def test_the_flag_says_whose_controllers_run(
    selected: tuple[str, ...], running: set[str]
) -> None:
    one, two, parts = Provides(), Provides(), SharedParts()
    (await provided(One=one, Two=two)).add_controllers(parts, selected)
    other = Part()
    found = {f"{name}/sync": parts.get(f"{name}/sync", lambda: other) for name in ("One", "Two")}
    assert {name for name, part in found.items() if part is not other} == running


@pytest.mark.parametrize(
    ("method", "path", "parameters"),
    [
        ("GET", "node/a", {"node": "a"}),
        ("GET", "/node/a/", {"node": "a"}),
        ("PUT", "node/a", None),
        ("GET", "node", None),
        ("GET", "node/a/b", None),
        ("GET", "pod/a", None),
    ],
)
def test_an_endpoint_knows_its_paths(
    method: str, path: str, parameters: dict[str, str] | None
) -> None:
    assert Endpoint("GET", "/node/{node}", nothing).match(method, path) == parameters


async def test_two_endpoints_of_one_place_are_refused() -> None:
    with pytest.raises(
        ProvidedServicesError, match=r"plugin One: endpoints\(\): GET /x is there twice"
    ):
        await provided(One=Provides("/x", "/x"))


class Parts(FreeCpu, NodePartsProvider):
    """More than is shown, and all of it long."""

    def node_parts(self, node: NodeInfo) -> Iterable[NodePart]:
        pods = tuple(f"default/{at}" for at in range(100))
        for number in range(10_000):
            yield NodePart(("x" * 1000,) * 9, f"{number} " * 100, pods, 7.0, "n" * 1000)


class BrokenParts(FreeCpu, NodePartsProvider):
    def node_parts(self, node: NodeInfo) -> Iterable[NodePart]:
        yield NodePart((), "first")
        raise ValueError("it is broken")


async def test_parts_of_a_node_are_cut_to_size() -> None:
    """And a plugin that fails says nothing."""
    cluster = fake_cluster()
    cluster.node("n1")
    profile = await Kit().profile(filter={"Parts": Parts(), "Broken": BrokenParts()})
    view = cluster.state.view()
    found = node_parts([profile, profile], NodeInfo(view, 0))
    assert list(found) == ["Parts"]
    assert len(found["Parts"]) == MAX_PARTS
    part = found["Parts"][0]
    assert {len(text) for text in (*part.place, part.name, part.note)} == {MAX_PART_LENGTH}
    assert (len(part.pods), len(part.place), part.used) == (MAX_PART_PODS, 4, 1.0)
