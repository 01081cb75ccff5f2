"""The NetworkPolicy fits the DaemonSet, and its documented patch fits the policy."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def test_it_is_about_the_agents_and_their_port() -> None:
    """Nothing else is closed, and nothing else of them is open."""
    policy, daemonset = load("networkpolicy/networkpolicy.yaml"), load("daemonset.yaml")
    template = daemonset["spec"]["template"]
    [container] = template["spec"]["containers"]
    [rule] = policy["spec"]["ingress"]

    assert policy["metadata"]["namespace"] == daemonset["metadata"]["namespace"]
    assert template["metadata"]["labels"].items() >= (
        policy["spec"]["podSelector"]["matchLabels"].items()
    )
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert [port["port"] for port in rule["ports"]] == [
        port["containerPort"] for port in container["ports"]
    ]


def test_each_who_is_let_in_is_one_kind_of_pod_in_one_namespace() -> None:
    """A pod that only carries the label, in a namespace of its own, is not let in."""
    policy = load("networkpolicy/networkpolicy.yaml")
    [rule] = policy["spec"]["ingress"]
    own = {"matchLabels": {"kubernetes.io/metadata.name": policy["metadata"]["namespace"]}}

    admitted = {
        (
            each.get("namespaceSelector", own)["matchLabels"]["kubernetes.io/metadata.name"],
            *each["podSelector"]["matchLabels"].items(),
        )
        for each in rule["from"]
    }

    assert admitted == {
        ("monitoring", ("app.kubernetes.io/name", "prometheus")),
        ("koordinator-system", ("koord-app", "koord-scheduler")),
        ("koordlet-system", ("app.kubernetes.io/name", "koord-scheduler")),
    }


def test_the_documented_patch_adds_to_what_is_there() -> None:
    """Its path is the list of who is let in."""
    text = (ROOT / "docs/operations.md").read_text()
    [patch] = re.findall(r"target: \{kind: NetworkPolicy.*?\n  patch: \|\n((?:    .*\n)+)", text)
    [operation] = yaml.safe_load(patch)
    found = load("networkpolicy/networkpolicy.yaml")
    *way, end = operation["path"].strip("/").split("/")
    for key in way:
        found = found[int(key) if key.isdecimal() else key]

    assert (operation["op"], end) == ("add", "-")
    assert isinstance(found, list)
    assert operation["value"].keys() == {"namespaceSelector", "podSelector"}
