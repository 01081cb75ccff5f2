"""The policies of profiles: exactly these objects, and what of a profile they cannot do."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.qos import KoordPriorityClass
from koord_manager_plugins.profiles.controller import Wanted, wanted_objects
from koord_manager_plugins.profiles.mutation import MutationOptions, PriorityClass
from koord_manager_plugins.profiles.policies import (
    ProfileSet,
    device_policy,
    extended_spec_policy,
    literal,
    policy_name,
    profile_policy,
)
from koord_manager_plugins.profiles.profile import disjoint, parse_profile
from koord_manager_plugins.profiles.rules import device_rules_policy, qos_policy

GOLDEN = Path(__file__).parent / "golden"
CLASSES = {"koord-batch": KoordPriorityClass.BATCH}
FULL = {
    "metadata": {"name": "colocation-batch", "uid": "u-1"},
    "spec": {
        "namespaceSelector": {"matchLabels": {"enable-colocation": "true"}},
        "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["spark"]}]},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "koordinatorPriority": 1000,
        "schedulerName": "koord-scheduler",
        "labels": {"mutated": "true"},
        "annotations": {"said": 'a "b"\\\n'},
        "labelKeysMapping": {"app-user-id": "koordinator.sh/core-sched-group-id"},
        "labelSuffixes": {"team": "-batch"},
        "patch": {"spec": {"terminationGracePeriodSeconds": 30, "securityContext": {"fsGroup": 1}}},
    },
}


def profile(name: str, **spec: Any) -> Any:
    return parse_profile({"metadata": {"name": name}, "spec": spec})


def policy_of(one: Any, *others: Any, version: str = "v1") -> Any:
    return profile_policy(one, ProfileSet([one, *others]), CLASSES, version)


def expressions(made: Any) -> str:
    [policy, _] = made.objects
    return "\n".join(one["jsonPatch"]["expression"] for one in policy["spec"]["mutations"])


@pytest.mark.parametrize(
    ("name", "objects"),
    [
        (
            "profile",
            policy_of(parse_profile(FULL)).objects,
        ),
        ("devices", device_policy("v1beta1")),
        ("extended-resource-spec", extended_spec_policy("v1beta1")),
        ("rules", [*qos_policy(), *device_rules_policy()]),
    ],
)
def test_the_objects_are_those_that_were_tried_on_an_api_server(name: str, objects: Any):
    """After a change: run tests/e2e/test_profiles.py, then write the files anew with write()."""
    assert list(objects) == list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))


def test_of_two_profiles_the_later_name_decides_what_both_set():
    first = profile("a", labels={"team": "blue", "own": "1"}, selector={"matchLabels": {"x": "1"}})
    second = profile("b", labels={"team": "red"}, namespaceSelector={"matchLabels": {"n": "1"}})

    made = policy_of(first, second)

    assert made.overruled == ("metadata.labels.team by profile b",)
    assert '[?"n"] == optional.of("1")) ? [] : [JSONPatch{op: "add", path: "/metadata/labels/team"'\
        in expressions(made)  # fmt: skip
    assert policy_of(second, first).overruled == ()


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        ({"matchLabels": {"a": "1"}}, {"matchLabels": {"a": "2"}}, True),
        ({"matchLabels": {"a": "1"}}, {"matchLabels": {"b": "2"}}, False),
        (
            {"matchLabels": {"a": "1"}},
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["2", "3"]}]},
            True,
        ),
        (
            {"matchLabels": {"a": "1"}},
            {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]},
            True,
        ),
        ({}, {"matchLabels": {"a": "1"}}, False),
    ],
)
def test_profiles_that_no_pod_has_together(one: Any, other: Any, are: bool):
    first, second = profile("a", selector=one), profile("b", selector=other)

    assert disjoint(first, second) is are
    assert disjoint(second, first) is are


def test_a_share_of_the_pods_is_named_and_none_has_it():
    made = policy_of(profile("a", labels={"x": "y"}, probability=50))

    assert made.not_applied == ("probability: 50% of pods cannot be drawn: none is",)
    assert '"/metadata/labels/x"' not in expressions(made)
    assert "batch" not in made.objects[0]["metadata"]["name"]
    assert made.objects[0]["metadata"]["annotations"]["config.koordinator.sh/not-applied"]


def test_keyed_lists_of_a_patch_are_applied():
    """By what the key of each item is; tests/e2e/test_profiles.py runs it."""
    patch = {"spec": {"containers": [{"name": "a", "env": [{"name": "B", "value": "c"}]}]}}

    made = policy_of(profile("a", patch=patch))

    assert made.not_applied == ()
    first, second, third, *_ = [
        one["jsonPatch"]["expression"] for one in made.objects[0]["spec"]["mutations"]
    ]
    assert '"/spec/containers" + "/-"' in first
    assert '.indexOf("a")' in second
    assert '"name": "B"' in second
    assert '"/value", value: "c"' in third


def test_fields_of_one_item_contradict_each_other_one_by_one():
    """Two profiles may set different variables of one container."""
    earlier = profile("a", patch=container(A="1", B="1"))
    later = profile("b", patch=container(B="2", C="2"))

    made = policy_of(earlier, later)

    assert made.overruled == (
        "spec.containers.[name=c].env.[name=B].value by profile b",
    )  # fmt: skip


def container(**env: str) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return {"spec": {"containers": [{"name": "c", "env": variables}]}}


@pytest.mark.parametrize(
    "items",
    [
        [{"image": "b"}],
        ["a"],
        [{"name": None}],
        [{"name": True}],
        [{"name": "a", "image": "b"}, {"name": "a", "image": "c"}],
    ],
    ids=["no key", "no object", "null", "no text", "a key twice"],
)
def test_a_patch_without_keys_is_named_and_the_rest_is_applied(items: list[Any]):
    patch = {"spec": {"containers": items}}

    made = policy_of(profile("a", qosClass="BE", patch=patch))

    [said] = made.not_applied
    assert said.startswith("patch: spec.patch.spec.containers")
    assert "qosClass" in expressions(made)


def test_another_profile_that_skips_resources_stops_the_translation():
    skips = parse_profile(
        {
            "metadata": {
                "name": "s",
                "annotations": {"config.koordinator.sh/skip-update-resources": "true"},
            },
            "spec": {"selector": {"matchLabels": {"skip": "1"}}},
        }
    )

    made = policy_of(profile("a"), skips)

    assert '|| (variables.labels[?"skip"] == optional.of("1")' in expressions(made)
    assert policy_of(skips).objects == ()


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ({"labels": {"a": "b"}}, "IfNeeded"),
        ({"labelSuffixes": {"a": "b"}}, "Never"),
        ({"labelKeysMapping": {"a": "b", "b": "c"}}, "Never"),
    ],
)
def test_what_cannot_be_done_twice_is_done_once(spec: Any, policy: str):
    [made, _] = policy_of(profile("a", **spec)).objects

    assert made["spec"]["reinvocationPolicy"] == policy


def test_texts_of_users_stay_texts():
    """No value ends its literal, whatever it holds."""
    assert literal('a"\\\n😀é') == '"a\\"\\\\\\u000a\\U0001f600\\u00e9"'
    assert literal({"a": [1, None, True, 0.5]}) == (
        '{"a": dyn([dyn(1), dyn(null), dyn(true), dyn(0.5)])}'
    )


def test_a_long_name_is_cut_and_stays_its_own():
    one, other = policy_name("a" * 253), policy_name("a" * 252 + "b")

    assert len(one) <= 253
    assert one != other


def wanted(*items: Any, **more: Any) -> Wanted:
    classes = {"koord-batch": PriorityClass(5500)}
    return wanted_objects(items, classes, MutationOptions(), mutating="v1", validating=(), **more)


def test_an_invalid_profile_keeps_its_policy_and_the_others_go_on():
    bad = {"metadata": {"name": "bad"}, "spec": {"qosClass": "FAST"}}
    lost = {"metadata": {"name": "lost"}, "spec": {"priorityClassName": "gone"}}

    found = wanted(bad, lost, FULL)

    assert set(found.problems) == {"bad", "lost"}
    assert found.kept == {"koord-manager-profile-bad", "koord-manager-profile-lost"}
    assert ("MutatingAdmissionPolicy", "koord-manager-profile-colocation-batch") in found.objects


def test_a_selector_of_everything_is_said():
    found = wanted({"metadata": {"name": "all"}, "spec": {"qosClass": "LS"}})

    assert found.notes["all"] == (("SelectsEverything", "it is for all pods of all namespaces"),)


def test_profiles_are_bounded():
    found = wanted(*({"metadata": {"name": f"p{i:04}"}} for i in range(300)))

    assert len(found.problems) == 44


def write() -> None:
    """Write the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    made = {
        "profile": policy_of(parse_profile(FULL)).objects,
        "devices": device_policy("v1beta1"),
        "extended-resource-spec": extended_spec_policy("v1beta1"),
        "rules": [*qos_policy(), *device_rules_policy()],
    }
    for name, objects in made.items():
        text = yaml.safe_dump_all(objects, sort_keys=False, width=110, allow_unicode=True)
        (GOLDEN / f"{name}.yaml").write_text(text)
