"""Admission policies that a koord-manager keeps on a real API server, which outlive it."""

import contextlib

from koord.kube.client import ApiClient, Resource
from koord.kube.errors import NotFound

MUTATING = "admissionregistration.k8s.io/v1beta1"
VALIDATING = "admissionregistration.k8s.io/v1"
POLICIES = Resource(MUTATING, "mutatingadmissionpolicies")
BINDINGS = Resource(MUTATING, "mutatingadmissionpolicybindings")
RULES = Resource(VALIDATING, "validatingadmissionpolicies")
RULE_BINDINGS = Resource(VALIDATING, "validatingadmissionpolicybindings")
OURS = {"labelSelector": "app.kubernetes.io/managed-by=koord-manager"}


async def delete_policies(client: ApiClient) -> None:
    """Delete them all: rules that stay would refuse pods of tests that run later."""
    for each in (BINDINGS, POLICIES, RULE_BINDINGS, RULES):
        with contextlib.suppress(NotFound):  # MutatingAdmissionPolicy is served from 1.34 on
            for one in (await client.list(each.collection(), OURS)).items:
                await client.delete(each.object(one["metadata"]["name"]))
