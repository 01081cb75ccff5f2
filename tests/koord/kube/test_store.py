"""A store after lists and events."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.errors import BadResponse
from koord.kube.reflector import Change, Store
from koord.util.errors import InvalidObject


def item(name: str, version: object = 1, value: object = "v", uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}, "value": value}


def make_store() -> tuple[Store[str], list[str]]:
    """A store, and the names of the objects that it has read."""
    read: list[str] = []

    def reader(found: dict[str, Any]) -> str:
        read.append(found["metadata"]["name"])
        if found["value"] == "bad":
            raise InvalidObject("value", wanted="a good one", found="bad")
        return str(found["value"])

    return Store(reader, "things"), read


def take(store: Store[str], *items: dict[str, Any]) -> list[Change[str]]:
    """Take over a list."""
    listed = dict(map(store.read, items))
    changes = list(store.keep(listed))
    for key, reading in listed.items():
        changes += store.take(key, reading)
    return changes


def test_an_event_copies_nothing_until_the_next_read() -> None:
    """The same snapshot as long as nothing changes; one that was handed out never changes."""
    store, _ = make_store()
    take(store, item("a"), item("b"))
    before = store.objects

    list(store.put(item("c")))
    list(store.remove(item("a")))

    assert dict(before) == {"a": "v", "b": "v"}
    assert dict(store.objects) == {"b": "v", "c": "v"}
    assert store.objects is store.objects


def test_what_a_list_repeats_is_not_read_again() -> None:
    """After 410 most objects are the same as before."""
    store, read = make_store()
    take(store, item("a"), item("b"))
    read.clear()

    changes = take(store, item("a"), item("b", 2, "w"))

    assert read == ["b"]
    assert [(change.kind.value, change.key) for change in changes] == [("modified", "b")]


def test_an_object_without_name_or_version_spoils_the_list() -> None:
    """Nothing of such a list is taken over."""
    store, _ = make_store()
    with pytest.raises(BadResponse):
        store.read({"metadata": {"name": "a"}})
    assert not store.objects


_names = st.sampled_from(["a", "b", "c"])
_items = st.builds(
    item, _names, st.integers(1, 5), st.sampled_from(["v", "w", "bad"]), st.sampled_from(["u", "x"])
)
_steps = st.one_of(
    st.tuples(st.just("list"), st.lists(_items, unique_by=lambda one: one["metadata"]["name"])),
    st.tuples(st.just("put"), _items),
    st.tuples(st.just("remove"), _items),
)


@given(st.lists(_steps, max_size=12))
def test_the_changes_lead_to_the_objects(steps: list[tuple[str, Any]]) -> None:
    """Whoever follows the changes knows the collection, and each step fits what was before."""
    store, _ = make_store()
    followed: dict[str, str] = {}
    for what, given_ in steps:
        if what == "list":
            changes = take(store, *given_)
        else:
            changes = list(store.put(given_) if what == "put" else store.remove(given_))
        for change in changes:
            assert change.old == followed.get(change.key)
            if change.new is not None:
                followed[change.key] = change.new
            else:
                followed.pop(change.key, None)
        assert dict(store.objects) == followed
