"""The Reservation of a migration, as it is created."""

from koord_descheduler_plugins.migration.jobs import reservation_body
from tests.support.descheduler.migration import T0, make_job, pod_json

ELSEWHERE = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def test_a_pod_of_a_controller() -> None:
    """Name, owner, time to live, labels, and a template of the pod without its node."""
    job, pod = make_job("j"), pod_json(labels={"app": "web"}, priority=9)
    body = reservation_body(job, pod, "5m0s", T0)

    assert body["metadata"] == {
        "name": "uid-j",
        "labels": {
            "app.kubernetes.io/created-by": "koord-descheduler",
            "scheduling.koordinator.sh/reservation-order": str(int(T0 * 1000)),
        },
        "ownerReferences": [
            {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob",
             "name": "j", "uid": "uid-j"}
        ],
    }  # fmt: skip
    assert body["spec"]["owners"] == [
        {"controller": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs",
                        "uid": "uid-rs", "controller": True, "namespace": "default"}}
    ]  # fmt: skip
    assert body["spec"]["allocateOnce"] is True
    assert body["spec"]["ttl"] == "5m0s"
    template = body["spec"]["template"]
    assert template["metadata"]["labels"] == {"app": "web"}
    assert "nodeName" not in template["spec"]
    assert template["spec"]["priority"] == 9
    assert template["spec"]["affinity"]["nodeAffinity"][REQUIRED] == {
        "nodeSelectorTerms": [{"matchFields": [ELSEWHERE]}]
    }
    assert pod["spec"]["nodeName"] == "n1"  # what was given is as it was


def test_every_term_of_a_node_affinity_gets_the_rule() -> None:
    """Terms are alternatives: one without it would lead back."""
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]},
    ]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}, "podAffinity": {}}
    body = reservation_body(make_job(), pod_json(affinity=affinity), "5m0s", T0)
    found = body["spec"]["template"]["spec"]["affinity"]

    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {**terms[0], "matchFields": [ELSEWHERE]},
        {"matchFields": [*terms[1]["matchFields"], ELSEWHERE]},
    ]
    assert found["podAffinity"] == {}
    assert "matchFields" not in terms[0]


def test_a_pod_without_a_node_is_its_own_owner() -> None:
    """It waits for the scheduler; its Reservation is for itself."""
    body = reservation_body(make_job(), pod_json(node=""), "5m0s", T0)

    assert body["spec"]["owners"] == [
        {"object": {"kind": "Pod", "name": "web-1", "namespace": "default",
                    "uid": "uid-default-web-1"}}
    ]  # fmt: skip
    assert "affinity" not in body["spec"]["template"]["spec"]


def test_a_template_of_the_job_names_it_and_wins() -> None:
    """Its ttl, expires and owners count; what it does not say comes from the pod."""
    template = {"metadata": {"name": "mine", "labels": {"a": "b"}}, "spec": {"expires": "soon"}}
    body = reservation_body(make_job(template=template), pod_json(), "5m0s", T0)

    assert body["metadata"]["name"] == "mine"
    assert body["metadata"]["labels"]["a"] == "b"
    assert (body["spec"]["expires"], body["spec"].get("ttl")) == ("soon", None)
    assert body["spec"]["owners"][0]["controller"]["uid"] == "uid-rs"
    assert template == {"metadata": {"name": "mine", "labels": {"a": "b"}},
                        "spec": {"expires": "soon"}}  # fmt: skip


def test_what_only_the_server_writes_is_left_out() -> None:
    """A template has no version and no managed fields."""
    pod = pod_json()
    pod["metadata"] |= {"resourceVersion": "7", "managedFields": [{}], "generation": 2}
    metadata = reservation_body(make_job(), pod, "0s", T0)["spec"]["template"]["metadata"]

    assert not {"resourceVersion", "managedFields", "generation", "creationTimestamp"} & set(
        metadata
    )
