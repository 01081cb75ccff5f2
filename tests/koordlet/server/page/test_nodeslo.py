"""The effective NodeSLO with the origin of each value."""

from hypothesis import given
from hypothesis import strategies as st

from koord.api.nodeslo import merge_nodeslo
from koordlet.server.page import MAX_VALUES, effective


def values(slo):
    return {v["path"]: (v["value"], v["origin"]) for v in effective(slo)["values"]}


def slo_of(spec, previous=None):
    obj = {"spec": spec}
    return (merge_nodeslo(obj) if previous is None else merge_nodeslo(obj, previous))[0]


def test_what_the_nodeslo_does_not_say_is_a_default():
    found = values(slo_of({"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 55}}))
    here = "resourceUsedThresholdWithBE."
    assert found[f"{here}cpuSuppressThresholdPercent"] == (55, "NodeSLO")
    assert found[f"{here}memoryEvictThresholdPercent"] == (70, "default")
    assert found["cpuBurstStrategy.policy"] == ("none", "default")


def test_a_value_in_a_block_that_is_not_enabled_is_off():
    found = values(
        slo_of(
            {
                "resourceQOSStrategy": {
                    "beClass": {"cpuQOS": {"enable": False, "groupIdentity": -1}},
                    "lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 1}},
                }
            }
        )
    )
    here = "resourceQOSStrategy."
    assert found[f"{here}beClass.cpuQOS.groupIdentity"] == (0, "block is off")
    assert found[f"{here}beClass.cpuQOS.enable"] == (False, "NodeSLO")
    assert found[f"{here}lsClass.cpuQOS.groupIdentity"] == (1, "NodeSLO")


def test_a_section_with_a_mistake_is_the_last_good_one_and_says_what_is_wrong():
    good = slo_of({"cpuBurstStrategy": {"policy": "auto"}})
    bad = slo_of({"cpuBurstStrategy": {"policy": 3}}, good)
    assert values(bad)["cpuBurstStrategy.policy"] == ("auto", "last good NodeSLO")
    [problem] = effective(bad)["problems"]
    assert "cpuBurstStrategy.policy" in problem
    assert values(bad)["resourceUsedThresholdWithBE.enable"] == (False, "default")


def test_no_nodeslo_is_known_as_such():
    assert effective(None) == {"known": False, "values": [], "problems": []}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=400),
    lambda inner: st.dictionaries(
        st.sampled_from(["beClass", "cpuQOS", "enable", "policy", "groupIdentity", "<b>"]), inner
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["resourceUsedThresholdWithBE", "resourceQOSStrategy", "cpuBurstStrategy"]),
        _JSON,
    )
)
def test_no_spec_is_too_strange(spec):
    found = effective(slo_of(spec))
    assert 0 < len(found["values"]) <= MAX_VALUES
    assert all(len(str(each["value"])) <= 300 for each in found["values"])
