"""Filters of pods."""

import pytest

from koord.api.labelselector import LabelSelector
from koord_descheduler.framework.handle import combine, pod_filter, unfinished
from tests.support.descheduler.framework import make_pod

POD = make_pod(namespace="shop", labels={"app": "web"})


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, True),
        ({"include": ["shop"]}, True),
        ({"include": ["bank"]}, False),
        ({"exclude": ["shop"]}, False),
        ({"exclude": ["bank"]}, True),
        ({"include": ["shop"], "exclude": ["shop"]}, False),
        ({"selector": LabelSelector({"app": "web"})}, True),
        ({"selector": LabelSelector({"app": "db"})}, False),
        ({"selector": LabelSelector()}, True),
        ({"custom": lambda pod: pod.name == "web"}, True),
        ({"custom": lambda pod: False}, False),
    ],
)
def test_a_pod_passes_when_namespaces_labels_and_function_agree(
    options: dict[str, object], passes: bool
) -> None:
    """Empty included namespaces are all."""
    assert pod_filter(**options)(POD) is passes  # type: ignore[arg-type]


def test_checks_are_made_in_order_and_no_further_than_needed() -> None:
    """A custom filter may be expensive: it sees only what the others let through."""
    seen: list[str] = []

    def record(pod: object) -> bool:
        seen.append("custom")
        return True

    assert not pod_filter(exclude=["shop"], custom=record)(POD)
    assert not pod_filter(selector=LabelSelector({"app": "db"}), custom=record)(POD)
    assert seen == []
    assert combine(None, record, None)(POD)
    assert combine()(POD)
    assert seen == ["custom"]


def test_pods_that_have_ended_are_not_listed() -> None:
    """Whether they succeeded or failed."""
    pods = [make_pod(phase, phase=phase) for phase in ("Running", "Pending", "Failed", "Succeeded")]

    found = unfinished(pods, lambda pod: pod.name != "Pending")
    assert [pod.name for pod in found] == ["Running"]
