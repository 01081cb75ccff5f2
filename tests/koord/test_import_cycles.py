"""No module imports itself by way of others, imports for type checkers counted."""

import grimp
import pytest

ROOTS = (
    "koord",
    "koordlet",
    "koord_descheduler",
    "koord_scheduler",
    "koord_manager",
    "koordlet_plugins",
    "koord_descheduler_plugins",
    "koord_scheduler_plugins",
    "koord_manager_plugins",
)


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by way of others.

    Modules that import nothing, or nothing that is left, are taken away until none is left; then
    those that nobody imports. What stays is in a cycle or between two.
    """
    left = {module: set(found) for module, found in imports.items()}
    while ends := {
        module
        for module, found in left.items()
        if not found or not any(module in others for others in left.values())
    }:
        left = {module: found - ends for module, found in left.items() if module not in ends}
    return [[module, *sorted(found)] for module, found in sorted(left.items())]


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}, [["b", "c"], ["c", "b"]]),
    ],
)
def test_a_cycle_is_found(imports, found):
    """The modules of a cycle stay, those that lead to it do not."""
    assert cycles(imports) == found


def test_no_import_cycles():
    """An import under TYPE_CHECKING is an import: two modules that need each other are one."""
    graph = grimp.build_graph(*ROOTS, cache_dir=None, exclude_type_checking_imports=False)
    imports = {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }

    assert len(imports) > 400
    assert cycles(imports) == []
