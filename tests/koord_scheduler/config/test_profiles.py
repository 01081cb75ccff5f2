"""What profiles mean: defaults, multiPoint, and the points' own plugins."""

from typing import Any

import pytest

from koord.component.config.componentconfig import Reader
from koord_scheduler.config.configuration import profiles_of
from koord_scheduler.config.profiles import (
    DEFAULT_POINTS,
    DEFAULT_WEIGHTS,
    EnabledPlugin,
    KnownPlugin,
    KnownPlugins,
    Point,
    Profile,
)
from koord_scheduler.config.v1 import KubeSchedulerProfile

EVERY = frozenset({Point.FILTER, Point.SCORE, Point.PRE_SCORE})
IMPLEMENTS: KnownPlugins = {
    name: KnownPlugin(points)
    for name, points in {**DEFAULT_POINTS, "Mine": EVERY, "Other": EVERY}.items()
}


def read(*profiles: Any) -> tuple[KubeSchedulerProfile, ...]:
    reader = Reader()
    made = tuple(reader.read(KubeSchedulerProfile, one, ()) for one in profiles)
    assert reader.faults == []
    return made


def plugins(section: Any) -> Profile:
    (profile,), faults = profiles_of(read({"plugins": section}), IMPLEMENTS)
    assert faults == []
    return profile


def faults(*profiles: Any) -> list[str]:
    _, found = profiles_of(read(*profiles), IMPLEMENTS)
    return [str(fault) for fault in found if not fault.is_warning]


def names(profile: Profile, point: Point) -> list[str]:
    return [one.name for one in profile.enabled(point)]


def test_the_default_profile() -> None:
    """All default plugins at every point that they have, with their weights."""
    (profile,), found = profiles_of((), IMPLEMENTS)
    assert found == []
    assert profile.scheduler_name == "default-scheduler"
    assert profile.percentage_of_nodes_to_score is None
    assert names(profile, Point.QUEUE_SORT) == ["PrioritySort"]
    assert names(profile, Point.FILTER) == [
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "NodeVolumeLimits",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
        "DynamicResources",
    ]
    weights = {one.name: one.weight for one in profile.enabled(Point.SCORE)}
    assert weights == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "VolumeBinding": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "DynamicResources": 2,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    assert names(profile, Point.BIND) == ["DefaultBinder"]
    assert names(profile, Point.PERMIT) == []
    assert set(profile.names) == set(DEFAULT_WEIGHTS)


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        ({}, ["PodTopologySpread", "ImageLocality"]),
        (
            {"score": {"enabled": [{"name": "Mine", "weight": 5}]}},
            ["PodTopologySpread", "ImageLocality", "Mine"],
        ),
        (
            {"score": {"enabled": [{"name": "Mine"}], "disabled": [{"name": "*"}]}},
            ["Mine"],
        ),
        ({"score": {"disabled": [{"name": "ImageLocality"}]}}, ["PodTopologySpread"]),
        (
            {"multiPoint": {"enabled": [{"name": "Mine"}]}},
            ["PodTopologySpread", "ImageLocality", "Mine"],
        ),
        (
            {
                "multiPoint": {"enabled": [{"name": "Mine"}]},
                "score": {"disabled": [{"name": "Mine"}]},
            },
            ["PodTopologySpread", "ImageLocality"],
        ),
        (
            {"score": {"enabled": [{"name": "Other"}, {"name": "ImageLocality", "weight": 9}]}},
            ["ImageLocality", "PodTopologySpread", "Other"],
        ),
        (
            {
                "multiPoint": {"enabled": [{"name": "Mine"}, {"name": "Other"}]},
                "score": {"enabled": [{"name": "Other"}, {"name": "Mine"}]},
            },
            ["Other", "Mine", "PodTopologySpread", "ImageLocality"],
        ),
        (
            {
                "score": {
                    "enabled": [{"name": "ImageLocality"}],
                    "disabled": [{"name": "ImageLocality"}],
                }
            },
            ["PodTopologySpread", "ImageLocality"],
        ),
    ],
)
def test_the_order_at_one_point(section: Any, wanted: list[str]) -> None:
    """Plugins of both come first, then the rest of multiPoint, then the rest of the point."""
    shown = {"PodTopologySpread", "ImageLocality", "Mine", "Other"}
    found = names(plugins(section), Point.SCORE)
    assert [name for name in found if name in shown] == wanted


def test_a_plugin_at_one_point_is_not_at_its_others() -> None:
    """Only multiPoint enables it everywhere."""
    profile = plugins({"score": {"enabled": [{"name": "Mine"}]}})
    assert "Mine" not in names(profile, Point.FILTER)
    profile = plugins({"multiPoint": {"enabled": [{"name": "Mine"}]}})
    assert all("Mine" in names(profile, point) for point in EVERY)
    assert "Mine" not in names(profile, Point.BIND)


def test_all_defaults_can_be_disabled_everywhere() -> None:
    """By multiPoint; what is needed must then be named."""
    section = {
        "multiPoint": {
            "disabled": [{"name": "*"}],
            "enabled": [{"name": "PrioritySort"}, {"name": "DefaultBinder"}],
        }
    }
    assert plugins(section).names == ("PrioritySort", "DefaultBinder")


@pytest.mark.parametrize(
    ("section", "weight"),
    [
        ({}, 3),
        ({"score": {"enabled": [{"name": "TaintToleration", "weight": 7}]}}, 7),
        ({"score": {"enabled": [{"name": "TaintToleration"}]}}, 1),
        ({"multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 5}]}}, 5),
        ({"multiPoint": {"enabled": [{"name": "TaintToleration"}]}}, 1),
        (
            {
                "multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 5}]},
                "score": {"enabled": [{"name": "TaintToleration", "weight": 7}]},
            },
            7,
        ),
    ],
)
def test_the_weight_of_the_point_wins_over_multi_point(section: Any, weight: int) -> None:
    """A plugin that is listed without one has 1."""
    enabled = plugins(section).enabled(Point.SCORE)
    assert EnabledPlugin("TaintToleration", weight) in enabled
    names = [one.name for one in enabled]
    assert names.count("TaintToleration") == 1


@pytest.mark.parametrize(
    ("profiles", "wanted"),
    [
        (
            [{"plugins": {"filter": {"enabled": [{"name": "Mime"}]}}}],
            'profiles[0].plugins.filter.enabled[0].name: Invalid value: "Mime": plugin "Mime" does '
            'not exist; did you mean "Mine"?',
        ),
        (
            [{"plugins": {"bind": {"enabled": [{"name": "Mine"}]}}}],
            'profiles[0].plugins.bind.enabled[0].name: Invalid value: "Mine": plugin "Mine" does '
            "not extend bind; it is for filter, preScore, score",
        ),
        (
            [{"plugins": {"score": {"enabled": [{"name": "Mine"}, {"name": "Mine"}]}}}],
            'profiles[0].plugins.score.enabled[1].name: Duplicate value: "Mine"',
        ),
        (
            [{"plugins": {"multiPoint": {"enabled": [{}]}}}],
            "profiles[0].plugins.multiPoint.enabled[0].name: Required value",
        ),
        (
            [{"plugins": {"score": {"enabled": [{"name": "Mine", "weight": -1}]}}}],
            "profiles[0].plugins.score.enabled[0].weight: Invalid value: -1: wanted 0 or more",
        ),
        (
            [{"plugins": {"bind": {"disabled": [{"name": "*"}]}}}],
            "profiles[0].plugins.bind: Required value: at least one bind plugin is needed",
        ),
        (
            [{"plugins": {"queueSort": {"disabled": [{"name": "PrioritySort"}]}}}],
            "profiles[0].plugins.queueSort: Invalid value: []: wanted exactly one queueSort plugin",
        ),
        (
            [{"percentageOfNodesToScore": 101}],
            "profiles[0].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
        (
            [{"schedulerName": "a"}, {"schedulerName": "a"}],
            'profiles[1].schedulerName: Duplicate value: "a"',
        ),
        ([{"schedulerName": "a"}, {}], "profiles[1].schedulerName: Required value"),
        (
            [{"pluginConfig": [{"name": "Mine"}, {"name": "Mine"}]}],
            'profiles[0].pluginConfig[1].name: Duplicate value: "Mine"',
        ),
        (
            [{"pluginConfig": [{"name": "Mine", "args": {"kind": "OtherArgs"}}]}],
            'profiles[0].pluginConfig[0].args.kind: Invalid value: "OtherArgs": wanted "MineArgs"',
        ),
        (
            [{"pluginConfig": [{"name": "Mine", "args": {"apiVersion": "v1beta1"}}]}],
            'profiles[0].pluginConfig[0].args.apiVersion: Invalid value: "v1beta1": wanted '
            '"kubescheduler.config.k8s.io/v1"',
        ),
        (
            [{"pluginConfig": [{"name": "Mine", "args": 5}]}],
            "profiles[0].pluginConfig[0].args: Invalid value: 5: wanted an object",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_field(profiles: list[Any], wanted: str) -> None:
    """In Kubernetes' words."""
    assert faults(*profiles) == [wanted]


def test_profiles_with_different_queue_sorts_are_refused() -> None:
    """There is one queue."""
    implements = {**IMPLEMENTS, "Sort": KnownPlugin(frozenset({Point.QUEUE_SORT}))}
    sort = {"queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Sort"}]}}
    both = read({"schedulerName": "a"}, {"schedulerName": "b", "plugins": sort})
    _, found = profiles_of(both, implements)
    assert [str(fault) for fault in found] == [
        'profiles: Invalid value: ["PrioritySort", "Sort"]: wanted the same queueSort plugin in '
        "all profiles"
    ]


def test_a_default_plugin_that_is_not_built_is_named() -> None:
    """The profile runs without it; it is a warning until it is disabled."""
    implements = {name: points for name, points in IMPLEMENTS.items() if name != "VolumeZone"}
    (profile,), found = profiles_of((), implements)
    assert [(str(fault), fault.is_warning) for fault in found] == [
        (
            'profiles[0].plugins.multiPoint: plugin "VolumeZone" is not built: the profile runs '
            "without it at preFilter, filter",
            True,
        )
    ]
    assert "VolumeZone" not in profile.names
    assert profile.not_built == ("VolumeZone",)
    disabled = read({"plugins": {"multiPoint": {"disabled": [{"name": "VolumeZone"}]}}})
    assert profiles_of(disabled, implements)[1] == []


def test_percentages_of_a_profile_win_over_the_global_one() -> None:
    """0 is Kubernetes' rule by size, and not the same as none."""
    given = read({"schedulerName": "a", "percentageOfNodesToScore": 0}, {"schedulerName": "b"})
    made, _ = profiles_of(given, IMPLEMENTS, 30)
    assert [one.percentage_of_nodes_to_score for one in made] == [0, 30]


def test_arguments_are_handed_on_by_name() -> None:
    """As they are in the file."""
    args = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "MineArgs", "depth": 3}
    enabled = {"multiPoint": {"enabled": [{"name": "Mine"}, {"name": "Other"}]}}
    config = [{"name": "Mine", "args": args}, {"name": "Other"}]
    given = read({"plugins": enabled, "pluginConfig": config})
    (profile,), found = profiles_of(given, IMPLEMENTS)
    assert found == []
    assert profile.args == {"Mine": args}
