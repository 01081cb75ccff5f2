"""CPUNormalization and ResourceAmplification: the worked cases N1, N2 and A1 to A5."""

import pytest

from koord.api.slocontroller import CPU_BASIC_INFO, CPU_NORMALIZATION, RESOURCE_AMPLIFICATION
from tests.support.manager import calculate, config, facts, node, quantities, topology

WHOLE = quantities(cpu=100, memory="120G")
MODEL = {
    "baseRatio": 1.5,
    "turboEnabledRatio": 1.65,
    "hyperThreadEnabledRatio": 1.0,
    "hyperThreadTurboEnabledRatio": 1.1,
}
NORMALIZATION = {"enable": True, "ratioModel": {"m": MODEL}}
BASIC = '{"cpuModel":"m","hyperThreadEnabled":true,"turboEnabled":true}'


def normalized(strategy=NORMALIZATION, *, basic=BASIC, present=None, label=None):
    annotations = {} if present is None else {CPU_NORMALIZATION: present}
    labels = {} if label is None else {"node.koordinator.sh/cpu-normalization-enabled": label}
    found = facts(
        node(WHOLE, annotations=annotations, labels=labels),
        topology=topology(annotations={CPU_BASIC_INFO: basic} if basic else {}),
        cluster=config(cpu_normalization_config=strategy),
    )
    result = calculate(found, "CPUNormalization")
    return result.annotations.get(CPU_NORMALIZATION), result.problems


@pytest.mark.parametrize(
    ("basic", "ratio"),
    [
        (BASIC, "1.10"),
        ('{"cpuModel":"m","hyperThreadEnabled":true}', "1.00"),
        ('{"cpuModel":"m","turboEnabled":true}', "1.65"),
        ('{"cpuModel":"m"}', "1.50"),
    ],
)
def test_n1_the_ratio_is_that_of_model_and_modes(basic, ratio):
    assert normalized(basic=basic) == (ratio, ())


@pytest.mark.parametrize("ratio", [1.105, 1.11])
def test_n2_a_change_of_a_hundredth_is_not_written(ratio):
    strategy = {"enable": True, "ratioModel": {"m": {"hyperThreadTurboEnabledRatio": ratio}}}

    assert normalized(strategy, present="1.10") == ("1.10", ())


def test_a_larger_change_is_written():
    strategy = {"enable": True, "ratioModel": {"m": {"hyperThreadTurboEnabledRatio": 1.12}}}

    assert normalized(strategy, present="1.10") == ("1.12", ())


def test_disabled_is_a_ratio_of_one_and_the_label_wins():
    assert normalized({"enable": False}) == ("1.00", ())
    assert normalized(label="false") == ("1.00", ())
    assert normalized({**NORMALIZATION, "enable": False}, label="true") == ("1.10", ())


@pytest.mark.parametrize(
    ("strategy", "basic", "label"),
    [
        (NORMALIZATION, None, None),
        (NORMALIZATION, '{"cpuModel":"other"}', None),
        ({"enable": True, "defaultRatio": 5.1}, BASIC, None),
        (NORMALIZATION, BASIC, "maybe"),
    ],
    ids=["no model", "unknown model", "ratio too high", "label"],
)
def test_what_cannot_be_decided_leaves_the_annotation(strategy, basic, label):
    text, problems = normalized(strategy, basic=basic, label=label)

    assert text is None
    assert len(problems) == 1


def amplified(normalization=None, ratios=None):
    annotations = {} if normalization is None else {CPU_NORMALIZATION: normalization}
    strategy = {"enable": ratios is not None, "resourceAmplificationRatio": ratios or {}}
    found = facts(
        node(WHOLE, annotations=annotations), cluster=config(resource_amplification_config=strategy)
    )
    result = calculate(found, "ResourceAmplification")
    return result.annotations[RESOURCE_AMPLIFICATION], result.problems


@pytest.mark.parametrize(
    ("normalization", "ratios", "wanted"),
    [
        ("1.22", None, '{"cpu":1.22}'),
        (None, {"cpu": 1.1, "memory": 2.1}, '{"cpu":1.10,"memory":2.10}'),
        ("1.20", {"cpu": 1.5, "memory": 2.5}, '{"cpu":1.80,"memory":2.50}'),
        (
            "1.50",
            {"cpu": 0.8, "memory": 3.5, "storage": 1.8},
            '{"cpu":1.20,"memory":3.50,"storage":1.80}',
        ),
        ("1.00", None, None),
    ],
    ids=["A1", "A2", "A3", "A4", "nothing"],
)
def test_amplification_is_the_product(normalization, ratios, wanted):
    assert amplified(normalization, ratios) == (wanted, ())


@pytest.mark.parametrize("ratios", [{"cpu": 0.5}, {"memory": 0.9}])
def test_a5_a_ratio_below_one_removes_the_annotation(ratios):
    text, problems = amplified(None, ratios)

    assert text is None
    assert "wanted 1 or more" in problems[0]
