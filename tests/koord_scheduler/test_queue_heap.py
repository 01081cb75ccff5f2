"""A heap from which anything can be removed."""

from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler.activequeue import KeyedHeap


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "remove", "pop", "peek"]), st.integers(0, 9), st.integers()
        ),
        max_size=300,
    )
)
def test_it_is_a_sorted_table(steps: list[tuple[str, int, int]]) -> None:
    """The same as sorting all items each time."""
    heap: KeyedHeap[int] = KeyedHeap(lambda one, other: one < other)
    table: dict[str, int] = {}
    for step, key, value in steps:
        name = str(key)
        if step == "push":
            heap.push(name, value)
            table[name] = value
        elif step == "remove":
            assert heap.remove(name) == table.pop(name, None)
        elif step == "peek":
            assert heap.peek() == min(table.values(), default=None)
        else:
            least = heap.pop()
            assert least == min(table.values(), default=None)
            gone = set(table) - {each for each in table if each in heap}
            assert [table.pop(each) for each in gone] == ([] if least is None else [least])
        assert len(heap) == len(table)
        assert sorted(heap) == sorted(table.values())


def test_removed_items_do_not_pile_up() -> None:
    """However often an item is replaced."""
    compared = 0

    def less(one: int, other: int) -> bool:
        nonlocal compared
        compared += 1
        return one < other

    heap: KeyedHeap[int] = KeyedHeap(less)
    for value in range(20_000):
        heap.push("a", -value)
    assert len(heap) == 1
    assert heap.pop() == -19_999
    assert compared < 20_000 * 10
