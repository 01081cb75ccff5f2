"""The shipped roles against all that the daemon asked in the tests before this one."""

from pathlib import Path
from typing import Any

import pytest
from overlay import overlay
from rights import Right, allows, role

# Rights without a request, and why they are there.
NOT_ASKED_FOR = {
    Right("update", "", "nodes/finalizers"): "an admission plugin of some clusters wants it",
}
# What the components add, by the test file whose requests need it.
COMPONENTS = {
    "pods-from-api-server": "test_roles.py",
    "manager-duties": "test_duties.py",
    "evictions": "test_evictions.py",
    "events": "test_events.py",
    "measure-only": "",
}


@pytest.fixture
def held(render: Any, tmp_path: Path) -> Any:
    """The rights of the agent with these components."""

    def held(*components: str) -> set[Right]:
        return role(render(overlay(tmp_path, *components)))

    return held


def test_all_that_was_asked_is_allowed(
    asked_by_all_tests: dict[str, set[Right]], held: Any
) -> None:
    """A request without a right would be refused in a cluster."""
    everything = held(*COMPONENTS)
    asked = set().union(*asked_by_all_tests.values())

    refused = [each for each in asked if not any(allows(one, each) for one in everything)]

    assert sorted(refused) == []


def test_nothing_is_allowed_that_no_request_needs(
    asked_by_all_tests: dict[str, set[Right]], held: Any
) -> None:
    """A right without a request is one too many."""
    asked = set().union(*asked_by_all_tests.values())

    unused = [one for one in held() if not any(allows(one, each) for each in asked)]

    assert sorted(unused) == sorted(NOT_ASKED_FOR)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_adds_what_its_feature_asks_for(
    component: str, asked_by_all_tests: dict[str, set[Right]], held: Any
) -> None:
    """Each right in it was asked for where the feature is tested, and takes nothing away."""
    default, more = held(), held(component)
    asked = asked_by_all_tests.get(COMPONENTS[component], set())

    unused = [one for one in more - default if not any(allows(one, each) for each in asked)]

    assert sorted(unused) == []
    assert default <= more
    assert bool(more - default) == bool(COMPONENTS[component])
