"""The shipped roles against all that the daemons asked in the tests before this one."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.overlay import overlay
from tests.support.real_apiserver.rights import Right, allows, rights_of, role

# Rights without a request, and why they are there.
NOT_ASKED_FOR = {
    Right("update", "", "nodes/finalizers"): "an admission plugin of some clusters wants it",
    Right("write-own-node-only", "slo.koordinator.sh", "nodemetrics"): "admission.yaml asks for it",
}
# What the components add, by the test file whose requests need it.
COMPONENTS = {
    "pods-from-api-server": "test_roles.py",
    "manager-duties": "test_duties.py",
    "evictions": "test_evictions.py",
    "events": "test_events.py",
    "devices": "test_devices.py",
    "nvidia": "",
    "pod-resources": "",
    "measure-only": "",
}

# The tests of koord-descheduler's process, and its rights without a request there.
NAME, DESCHEDULER = "koord-descheduler", {"test_descheduler.py", "test_migrations.py"}
DESCHEDULER_NOT_ASKED_FOR = {
    Right("delete", "scheduling.koordinator.sh", "podmigrationjobs"): "the scavenger's",
    Right("get", "scheduling.koordinator.sh", "podmigrationjobs"): "after a conflict",
    Right("patch", "scheduling.koordinator.sh", "reservations"): "those of a user's job",
    Right("patch", "", "events"): "an event that is repeated",
    Right("watch", "apps.kruise.io", "clonesets"): "a kind that this cluster lacks",
    Right("update", "", "configmaps", "koord-descheduler-ledger"): "a ledger that changes",
    **{
        Right(verb, group, kind): "no pod has devices or CPUs of its own, see test_numa_and_devices"
        for group, kind in (
            ("scheduling.koordinator.sh", "devices"),
            ("topology.node.k8s.io", "noderesourcetopologies"),
        )
        for verb in ("list", "watch")
    },
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
    everything, asked = held(*COMPONENTS), _asked_by_agents(asked_by_all_tests)

    refused = [each for each in asked if not any(allows(one, each) for one in everything)]

    assert sorted(refused) == []


def test_nothing_is_allowed_that_no_request_needs(
    asked_by_all_tests: dict[str, set[Right]], held: Any
) -> None:
    """A right without a request is one too many."""
    asked = _asked_by_agents(asked_by_all_tests)

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


def test_the_descheduler_s_role_is_what_it_asks_for(
    asked_by_all_tests: dict[str, set[Right]], render: Any, tmp_path: Path
) -> None:
    """Nothing less; and nothing more but what these tests have no occasion for."""
    objects = render(overlay(tmp_path, "descheduler"))
    found = set[Right]()
    for each in objects:
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] == NAME:
            found |= rights_of(each["rules"])
    asked = set[Right]().union(*(asked_by_all_tests[file] for file in DESCHEDULER))

    refused = [each for each in asked if not any(allows(one, each) for one in found)]
    unused = [one for one in found if not any(allows(one, each) for each in asked)]

    assert sorted(refused) == []
    assert set(unused) <= set(DESCHEDULER_NOT_ASKED_FOR)


def _asked_by_agents(asked: dict[str, set[Right]]) -> set[Right]:
    """Without the tests in which the control plane runs, some of them beside an agent."""
    others = DESCHEDULER | {
        "test_loop.py",
        "test_colocation.py",
        "test_dashboards.py",
        "test_status_page.py",
        "test_device_share.py",
        "test_manager.py",
        "test_node_numa_resource.py",
        "test_numa_and_devices.py",
        "test_profiles.py",
        "test_quotas.py",
        "test_reservations.py",
    }
    return set().union(*(rights for file, rights in asked.items() if file not in others))
