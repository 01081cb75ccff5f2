"""Quotas of profiles (worked example 57)."""

import pytest

from koord.api.elasticquota import IS_ROOT, TREE_ID, read_elastic_quota, read_elastic_quota_profile
from koord_scheduler_plugins.elastic_quota.profile import ProfileNode, root_quota, tree_id

NODES = [
    ProfileNode({"pool": "x"}, {"cpu": 10_000}),
    ProfileNode({"pool": "x"}, {"cpu": 20_000}, schedulable=False),
    ProfileNode({"pool": "y"}, {"cpu": 99_000}),
]


def profile(ratio: str = "", **labels: str):
    return read_elastic_quota_profile(
        {
            "metadata": {"namespace": "ns", "name": "p", "labels": labels},
            "spec": {
                "quotaName": "q",
                "resourceRatio": ratio,
                "nodeSelector": {"matchLabels": {"pool": "x"}},
            },
        }
    )


def test_the_quota_of_a_profile():
    """Example 57."""
    item = root_quota(profile("0.9"), NODES)
    quota = read_elastic_quota(item)

    assert item["spec"] == {
        "min": {"cpu": "27", "memory": "0"},
        "max": {"cpu": "4611686018427387", "memory": "4611686018427387"},
    }
    assert quota.total == {"cpu": 27_000}
    annotations = item["metadata"]["annotations"]
    assert annotations["quota.scheduling.koordinator.sh/unschedulable-resource"] == '{"cpu":"18"}'
    assert (quota.key, quota.is_root, quota.tree) == ("ns/q", True, tree_id(profile()))
    assert item["metadata"]["labels"][IS_ROOT] == "true"


@pytest.mark.parametrize("ratio", ["", ".", "x", "0", "-1", "1.1", "1e99", "1e999999999", "NaN"])
def test_a_ratio_that_makes_no_sense_is_one(ratio):
    assert read_elastic_quota(root_quota(profile(ratio), NODES)).total == {"cpu": 30_000}


def test_the_id_of_a_tree_is_the_one_of_the_profile_or_a_hash():
    assert tree_id(profile(**{TREE_ID: "mine"})) == "mine"
    # echo -n ns/p | FNV-1a, 64 bits
    assert tree_id(profile()) == str(_fnv1a(b"ns/p"))


def _fnv1a(data: bytes) -> int:
    found = 14695981039346656037
    for byte in data:
        found = ((found ^ byte) * 1099511628211) & (2**64 - 1)
    return found
