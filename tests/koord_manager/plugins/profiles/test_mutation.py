"""The plain mutation, by the worked cases of Koordinator's webhook (W, X and D of the contract)."""

import json
from typing import Any

import pytest

from koord.plugin import InvalidObject
from koord_manager_plugins.profiles.mutation import MutationOptions, PriorityClass, mutate
from koord_manager_plugins.profiles.profile import parse_profile

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
CLASSES = {"koord-batch": PriorityClass(5999, "Never"), "koord-prod": PriorityClass(9999)}
EXTENDED = "node.koordinator.sh/extended-resource-spec"


def profile(name: str = "p", meta_annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    meta = {"name": name, "annotations": meta_annotations or {}}
    return parse_profile({"metadata": meta, "spec": spec})


def amounts(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


def pod(*containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> Any:
    made = [{"name": f"c{i}", "resources": one} for i, one in enumerate(containers)]
    return {"metadata": {"name": "a", "labels": labels or {}}, "spec": {"containers": made, **spec}}


def mutated(
    submitted: Any, *profiles: Any, draw: int = 0, options: MutationOptions | None = None
) -> Any:
    return mutate(submitted, {}, profiles, CLASSES, lambda: draw, options or MutationOptions())


def resources(found: Any, index: int = 0) -> Any:
    return found["spec"]["containers"][index]["resources"]


P = profile(
    labels={"testLabelA": "valueA"},
    annotations={"testAnnotationA": "valueA"},
    schedulerName="koord-scheduler",
    qosClass="BE",
    priorityClassName="koord-batch",
    koordinatorPriority=1111,
    patch={"metadata": {"labels": {"test-patch-label": "patch-a"}}},
)


def test_w1_all_fields_are_set_and_all_containers_translated():
    """Of init containers too; the overhead stays, as the API server compares it."""
    both = {"requests": amounts("1", "4Gi"), "limits": amounts("1", "4Gi")}
    init = {"requests": amounts("500m", "1Gi"), "limits": amounts("500m", "1Gi")}
    submitted = pod(both, priority=5999, overhead=amounts("1", "2Gi"),
                    initContainers=[{"name": "i", "resources": init}])  # fmt: skip

    found = mutated(submitted, P)

    batch = {BATCH_CPU: "1k", BATCH_MEMORY: "4Gi"}
    assert resources(found) == {"requests": batch, "limits": batch}
    small = {BATCH_CPU: "500", BATCH_MEMORY: "1Gi"}
    assert found["spec"]["initContainers"][0]["resources"] == {"requests": small, "limits": small}
    assert found["spec"]["overhead"] == amounts("1", "2Gi")
    assert found["metadata"]["labels"] == {
        "testLabelA": "valueA",
        "test-patch-label": "patch-a",
        "koordinator.sh/qosClass": "BE",
        "koordinator.sh/priority": "1111",
    }
    assert found["metadata"]["annotations"]["testAnnotationA"] == "valueA"
    spec = found["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("koord-batch", 5999)
    assert (spec["preemptionPolicy"], spec["schedulerName"]) == ("Never", "koord-scheduler")
    assert submitted["spec"]["priority"] == 5999
    assert "cpu" in submitted["spec"]["containers"][0]["resources"]["requests"]


def test_w2_limits_alone_make_requests():
    found = mutated(pod({"limits": amounts("1", "4Gi")}, priority=5999), P)

    batch = {BATCH_CPU: "1k", BATCH_MEMORY: "4Gi"}
    assert resources(found) == {"requests": batch, "limits": batch}


def test_w3_requests_alone_stay_without_limits():
    found = mutated(pod({"requests": amounts("1", "4Gi")}, priority=5999), P)

    assert resources(found) == {"requests": {BATCH_CPU: "1k", BATCH_MEMORY: "4Gi"}}


def test_w4_a_probability_of_0_sets_nothing_and_translates():
    found = mutated(pod({"requests": amounts("1", "4Gi")}, priority=5999),
                    profile(labels={"a": "b"}, probability=0))  # fmt: skip

    assert found["metadata"]["labels"] == {}
    assert resources(found)["requests"] == {BATCH_CPU: "1k", BATCH_MEMORY: "4Gi"}


@pytest.mark.parametrize(("draw", "is_set"), [(70, False), (50, False), (49, True), (30, True)])
def test_w5_half_of_the_pods(draw: int, is_set: bool):
    """Exactly p percent: Koordinator applies p + 1."""
    found = mutated(pod({}), profile(labels={"a": "b"}, probability="50%"), draw=draw)

    assert ("a" in found["metadata"]["labels"]) == is_set


def test_w6_resources_are_skipped_by_annotation_or_gate():
    submitted = pod({"requests": amounts("1", "4Gi")}, priority=5999)
    skips = profile("q", {"config.koordinator.sh/skip-update-resources": ""}, labels={"a": "b"})

    assert resources(mutated(submitted, P, skips))["requests"] == amounts("1", "4Gi")
    gate = MutationOptions(translate=False)
    found = mutated(submitted, P, options=gate)
    assert resources(found)["requests"] == amounts("1", "4Gi")
    assert found["metadata"]["labels"]["testLabelA"] == "valueA"


def test_w7_w8_keys_are_mapped_and_suffixes_appended():
    found = mutated(
        pod({}, labels={"load": "test-label-value", "label-key-1": "label-value-1"}),
        profile(
            labelKeysMapping={"load": "store", "absent": "store2"},
            labelSuffixes={"label-key-1": "suffix", "store": "suffix-0", "unknown": "x"},
        ),
    )

    assert found["metadata"]["labels"] == {
        "load": "test-label-value",
        "label-key-1": "label-value-1suffix",
        "store": "test-label-valuesuffix-0",
        "store2": "",
    }


@pytest.mark.parametrize(
    ("priority", "names"),
    [
        (7500, ("kubernetes.io/mid-cpu", "kubernetes.io/mid-memory")),
        (3500, ("cpu", "memory")),
        (9500, ("cpu", "memory")),
        (0, ("cpu", "memory")),
    ],
)
def test_w9_w10_only_mid_and_batch_are_translated(priority: int, names: tuple[str, ...]):
    found = mutated(pod({"requests": amounts("1", "4Gi")}, priority=priority), profile())

    assert tuple(resources(found)["requests"]) == names


def test_w11_without_a_profile_nothing_is_translated():
    """A pod of class batch that no profile matches keeps its requests."""
    other = profile(selector={"matchLabels": {"a": "b"}}, labels={"x": "y"})

    found = mutated(pod({"requests": amounts("1", "4Gi")}, priority=5500), other)

    assert resources(found)["requests"] == amounts("1", "4Gi")
    assert "x" not in found["metadata"]["labels"]


def test_the_later_name_wins_and_labels_as_submitted_decide():
    first = profile("a", labels={"team": "blue", "k": "a"}, selector={"matchLabels": {"k": "v"}})
    second = profile("b", labels={"team": "red"}, selector={"matchLabels": {"k": "v"}})

    found = mutated(pod({}, labels={"k": "v"}), second, first)

    assert found["metadata"]["labels"] == {"k": "a", "team": "red"}


def test_a_class_that_there_is_not_is_an_error():
    with pytest.raises(InvalidObject, match="PriorityClass"):
        mutated(pod({}), profile(priorityClassName="none"))


def test_x1_the_annotation_has_batch_resources_only():
    amount = {BATCH_CPU: "1000", BATCH_MEMORY: "4Gi", "unknown": "1"}

    found = mutated(pod({"requests": amount, "limits": amount}))

    batch = {BATCH_CPU: "1k", BATCH_MEMORY: "4Gi"}
    assert json.loads(found["metadata"]["annotations"][EXTENDED]) == {
        "containers": {"c0": {"limits": batch, "requests": batch}}
    }


@pytest.mark.parametrize("text", ["not JSON", '{"containers":{}}'])
def test_a_stale_annotation_is_replaced(text: str):
    """Koordinator refuses the pod when it is not JSON."""
    submitted = pod({})
    submitted["metadata"]["annotations"] = {EXTENDED: text}

    assert mutated(submitted)["metadata"]["annotations"] == {EXTENDED: "{}"}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (
            {"gpu-core": "100", "gpu-memory": "4000", "gpu-memory-ratio": "50"},
            {
                "gpu-core": "100",
                "gpu-memory": "4000",
                "gpu-memory-ratio": "50",
                "gpu.shared": "1",
            },
        ),
        (
            {"gpu-core": "100", "gpu-memory-ratio": "200"},
            {"gpu-core": "100", "gpu-memory-ratio": "200", "gpu.shared": "2"},
        ),
        ({"gpu": "200"}, {"gpu-core": "200", "gpu-memory-ratio": "200", "gpu.shared": "2"}),
        ({"gpu-core": "300"}, {"gpu-core": "300", "gpu.shared": "3"}),
        ({"gpu.shared": "4", "gpu-core": "200"}, {"gpu.shared": "4", "gpu-core": "200"}),
    ],
)
@pytest.mark.parametrize("has_limits", [True, False])
def test_shorthands_of_gpus(asked: dict[str, str], wanted: dict[str, str], has_limits: bool):
    """Without limits Koordinator's webhook fails (D10)."""
    named = {f"koordinator.sh/{name}": amount for name, amount in asked.items()}
    given = {"requests": named, "limits": named} if has_limits else {"requests": named}

    found = resources(mutated(pod(given)))

    assert found["requests"] == {f"koordinator.sh/{name}": one for name, one in wanted.items()}
    if has_limits:
        assert found["limits"] == found["requests"]


def test_a_patch_is_strategic():
    """Objects are merged, lists with a key by it, others replaced; null removes."""
    submitted = pod({}, tolerations=[{"key": "x"}], hostname="h", securityContext={"fsGroup": 1})
    patch = {
        "spec": {
            "containers": [{"name": "c0", "env": [{"name": "A", "value": "1"}]}, {"name": "new"}],
            "tolerations": [{"key": "y"}],
            "securityContext": {"runAsUser": 2},
            "hostname": None,
        }
    }

    spec = mutated(submitted, profile(patch=patch))["spec"]

    assert [one["name"] for one in spec["containers"]] == ["c0", "new"]
    assert spec["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    assert spec["tolerations"] == [{"key": "y"}]
    assert spec["securityContext"] == {"fsGroup": 1, "runAsUser": 2}
    assert "hostname" not in spec


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"probability": "half"}, "probability"),
        ({"qosClass": "FAST"}, "qosClass"),
        ({"koordinatorPriority": 2**31}, "koordinatorPriority"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"labels": {"a": "é"}}, "labels"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labelSuffixes": {"a": "/"}}, "labelSuffixes"),
        ({"annotations": {"": "c"}}, "annotations"),
        ({"schedulerName": "A_B"}, "schedulerName"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, "selector"),
        ({"namespaceSelector": []}, "namespaceSelector"),
        ({"patch": []}, "patch"),
        ({"patch": {"status": {}}}, "patch.status"),
        ({"patch": {"metadata": {"name": "x"}}}, "patch.metadata.name"),
        ({"patch": {"spec": {"nodeName": "x"}}}, "patch.spec.nodeName"),
        ({"patch": {"spec": {"x": {"$patch": "delete"}}}}, r"patch.spec.x.\$patch"),
        ({"labels": {f"l{i}": "" for i in range(129)}}, "labels"),
    ],
)
def test_a_profile_that_no_pod_could_have_is_rejected(spec: dict[str, Any], field: str):
    with pytest.raises(InvalidObject, match=f"spec.{field}"):
        profile(**spec)


def test_a_patch_is_bounded():
    deep: Any = "x"
    for _ in range(40):
        deep = {"a": deep}
    for patch in ({"spec": deep}, {"spec": {"hostname": "x" * 70_000}}):
        with pytest.raises(InvalidObject, match=r"spec\.patch"):
            profile(patch=patch)
