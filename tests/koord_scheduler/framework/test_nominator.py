"""Nominated pods."""

from typing import Any

import msgspec

from koord_scheduler.framework.nominator import Nominator
from tests.support.scheduler.framework import make_pod


def nominated_pod(name: str, priority: int) -> Any:
    return make_pod(name, priority=priority)


def test_a_pod_is_nominated_to_one_node_at_a_time() -> None:
    """Forgetting it twice is forgetting it once."""
    nominator, web = Nominator(), make_pod()
    nominator.nominate(web, "a")
    nominator.nominate(web, "b")
    assert nominator.pods_of("a") == ()
    assert nominator.pods_of("b") == (web,)
    assert nominator.node_of(web.key) == "b"
    nominator.forget(web.key)
    nominator.forget(web.key)
    assert nominator.node_of(web.key) is None
    assert len(nominator) == 0


def test_rivals_have_equal_or_higher_priority() -> None:
    """A pod is not in the way of itself."""
    nominator = Nominator()
    low, same, high = (nominated_pod(f"p{priority}", priority) for priority in (1, 5, 9))
    for pod, node in ((low, "a"), (same, "a"), (high, "b")):
        nominator.nominate(pod, node)
    assert nominator.nominated_pods(nominated_pod("web", 5)) == {"a": [same], "b": [high]}
    assert nominator.nominated_pods(high) == {}


def test_a_changed_pod_stays_nominated_and_another_of_its_name_is_not() -> None:
    """By its uid."""
    nominator, web = Nominator(), nominated_pod("web", 1)
    nominator.nominate(web, "a")
    changed = msgspec.structs.replace(web, priority=7)
    nominator.update(changed)
    assert nominator.pods_of("a") == (changed,)
    nominator.update(msgspec.structs.replace(web, uid="another"))
    assert len(nominator) == 0
    nominator.update(web)
    assert len(nominator) == 0
