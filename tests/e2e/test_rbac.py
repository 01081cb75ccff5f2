"""The shipped ClusterRole against all that the daemon asked in the tests before this one."""

import yaml
from controlplane import REPOSITORY
from rights import Right, allows, rights_of

# Rights without a request, and why they are there.
NOT_ASKED_FOR = {
    Right("update", "", "nodes/finalizers"): "an admission plugin of some clusters wants it",
}


def role() -> set[Right]:
    objects = yaml.safe_load_all((REPOSITORY / "deploy" / "rbac.yaml").read_text())
    [rules] = [each["rules"] for each in objects if each["kind"] == "ClusterRole"]
    return rights_of(rules)


def test_all_that_was_asked_is_allowed(asked_by_all_tests: set[Right]) -> None:
    """A request without a right would be refused in a cluster."""
    held = role()

    refused = [each for each in asked_by_all_tests if not any(allows(one, each) for one in held)]

    assert sorted(refused) == []


def test_nothing_is_allowed_that_nobody_asked(asked_by_all_tests: set[Right]) -> None:
    """A right without a request is one too many."""
    unused = [one for one in role() if not any(allows(one, each) for each in asked_by_all_tests)]

    assert sorted(unused) == sorted(NOT_ASKED_FOR)
