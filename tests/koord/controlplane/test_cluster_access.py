"""What informers keep of objects."""

import json
from typing import Any

from koord.controlplane.cluster_access import (
    MAX_SHARED,
    MIN_SHARED,
    InformerFactory,
    _ObjectReader,
)
from koord.kube.client import CONFIG_MAPS, OneObject
from koord.kube.reflector import Object
from koord.util.simulatedclock import SimulatedClock


def item(name: str, text: str) -> Object:
    """An object as it comes off the wire: no text of it is another one's."""
    meta = {"name": name, "annotations": {"a": text}, "managedFields": [{}]}
    found: Object = json.loads(json.dumps({"metadata": meta}))
    return found


def annotation(found: Object) -> str:
    text: str = found["metadata"]["annotations"]["a"]
    return text


def test_long_annotations_that_are_equal_are_kept_once() -> None:
    """As the CPUs of nodes of one kind."""
    read, text = _ObjectReader(), "x" * MIN_SHARED
    first, second, other = (read(item(name, each)) for name, each in (
        ("a", text), ("b", text), ("c", text + "y"),
    ))  # fmt: skip
    assert annotation(first) is annotation(second)
    assert annotation(other) == text + "y"
    assert "managedFields" not in first["metadata"]


def test_short_ones_are_left_alone_and_few_are_known() -> None:
    """Those that were seen last."""
    read = _ObjectReader()
    first, second = read(item("a", "short")), read(item("b", "short"))
    assert annotation(first) is not annotation(second)
    long = [f"{number:0{MIN_SHARED}}" for number in range(2 * MAX_SHARED)]
    kept = [read(item("a", text)) for text in long]
    assert annotation(read(item("b", long[-1]))) is annotation(kept[-1])
    assert annotation(read(item("b", long[0]))) is not annotation(kept[0])


def test_any_annotations_are_taken() -> None:
    read = _ObjectReader()
    for odd in (None, [], "x", {"a": None}, {"a": 5}):
        assert read({"metadata": {"annotations": odd}})["metadata"]["annotations"] == odd


def test_of_a_kind_one_object_can_be_followed() -> None:
    """The role need not let all of them be listed."""
    client: Any = None
    informers = InformerFactory(client, SimulatedClock())
    one: Any = informers.informer(OneObject("v1", "configmaps", "place", "na=me"))
    every: Any = informers.informer(CONFIG_MAPS)
    assert one is not every
    watched = one._reflector._watched
    assert watched.path == "/api/v1/namespaces/place/configmaps"
    assert watched.query == {"fieldSelector": "metadata.name=na\\=me"}
    assert every._reflector._watched.query == {}
