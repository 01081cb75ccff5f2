"""Which plugins a kube-scheduler can be served."""

import pytest

from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.extenderserver import NotServable, served_profile, verbs_of


def profile(**points: tuple[str, ...]) -> Profile:
    plugins = {"queueSort": ("PrioritySort",), "bind": ("DefaultBinder",), **points}
    enabled = {
        Point(point): tuple(EnabledPlugin(name) for name in names)
        for point, names in plugins.items()
    }
    return Profile(scheduler_name="p", plugins=enabled, percentage_of_nodes_to_score=30)


def test_what_kube_scheduler_runs_itself_is_left_out() -> None:
    """All nodes are looked at: it says which are of interest."""
    found = served_profile(
        profile(
            filter=("NodeName", "Mine"),
            score=("ImageLocality",),
            postFilter=("DefaultPreemption",),
            preEnqueue=("SchedulingGates",),
            preBind=("DefaultPreBind",),
        )
    )
    assert found.names == ("PrioritySort", "Mine", "DefaultBinder")
    assert found.percentage_of_nodes_to_score is None


@pytest.mark.parametrize(
    ("points", "verbs"),
    [
        ({"preFilter": ("A",)}, ("filter",)),
        ({"filter": ("A",), "score": ("A",)}, ("filter", "prioritize")),
        ({"score": ("A",), "reserve": ("A",)}, ("prioritize", "bind")),
        ({"preBind": ("A",)}, ("bind",)),
        ({"postBind": ("A",)}, ("bind",)),
    ],
)
def test_verbs_are_those_that_plugins_need(
    points: dict[str, tuple[str, ...]], verbs: tuple[str, ...]
) -> None:
    """bind, where plugins reserve something or prepare a pod."""
    assert verbs_of(profile(**points)) == verbs


def test_what_the_protocol_cannot_do_is_refused_by_plugin_and_point() -> None:
    """All of it at once, with what to do."""
    points = dict.fromkeys(("preEnqueue", "queueSort", "postFilter", "permit"), ("Mine",))
    with pytest.raises(NotServable) as caught:
        served_profile(profile(**points, filter=("Mine",)))
    for point in points:
        assert f'plugin "Mine" cannot be served at {point}: ' in str(caught.value)
    with pytest.raises(NotServable, match="wanted a plugin to serve"):
        served_profile(profile(filter=("NodeName",)))
