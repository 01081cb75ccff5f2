"""The service accounts of our daemons with the rights that ship, and tokens for them."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koord.kube.client import ACCESS_REVIEWS, NODES, ApiClient, Resource
from tests.support.deploy.overlay import overlay
from tests.support.real_apiserver.kubectl import Kubectl
from tests.support.real_apiserver.served import TIMEOUT

SYSTEM = "koordlet-system"
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts")
_NAMESPACE = "Namespace"
_RIGHTS = (
    _NAMESPACE, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
)  # fmt: skip
_POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
Object = dict[str, Any]


class Accounts:
    """Installs the manifests' rights and admission policies, and removes them at the end."""

    def __init__(
        self, directory: Path, render: Callable[[Path], list[Object]], kubectl: Kubectl,
        client: ApiClient, prefix: str,
    ) -> None:  # fmt: skip
        """prefix: of all names, so that nobody waits for what the test before has removed."""
        self._directory, self._render, self._kubectl = directory, render, kubectl
        self._client, self._prefix = client, prefix
        self._numbers = itertools.count()
        self._installed: list[Object] = []

    async def agent(self, node: str, *components: str, policies: bool = True) -> str:
        """Return a token for koordlet on a node that exists, as its pod there would have it.

        policies: whether the admission policies are installed, too.
        """
        found = await self._client.get(NODES.object(node))
        bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
        return await self._install("koordlet", components, bound, policies=policies)

    async def descheduler(self, *components: str) -> str:
        """Return a token for koord-descheduler."""
        return await self._install("koord-descheduler", ("descheduler", *components))

    async def scheduler(self, *components: str) -> str:
        """Return a token for koord-scheduler."""
        return await self._install("koord-scheduler", ("scheduler", *components))

    async def _install(
        self,
        name: str,
        components: tuple[str, ...],
        bound: Object | None = None,
        *,
        policies: bool = True,
    ) -> str:
        number = next(self._numbers)
        directory = self._directory / f"{name}-{number}"
        directory.mkdir()
        prefix = f"{self._prefix}-{number}-"
        made = self._render(overlay(directory, *components, namePrefix=prefix))
        kinds = (*_RIGHTS, *_POLICIES) if policies else _RIGHTS
        objects = [each for each in made if each["kind"] in kinds]
        self._installed += [each for each in objects if each["kind"] != _NAMESPACE]
        await asyncio.to_thread(self._kubectl.apply, objects)
        account = f"{prefix}{name}"
        await self._until_held(account, objects)
        body = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound} if bound else {},
        }  # fmt: skip
        path = SERVICE_ACCOUNTS.object(account, namespace=SYSTEM, subresource="token")
        token: str = (await self._client.post(path, body))["status"]["token"]
        return token

    async def _until_held(self, account: str, objects: list[Object]) -> None:
        """Wait until the API server knows all roles of an account: it reads them by watches."""
        [*roles] = [
            each
            for each in objects
            if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"] == account
        ]
        async with asyncio.timeout(TIMEOUT):
            for role in roles:
                rule = role["rules"][-1]
                asked = {
                    "verb": rule["verbs"][0], "group": rule["apiGroups"][0],
                    "namespace": role["metadata"].get("namespace", ""),
                    "name": rule.get("resourceNames", [""])[0],
                }  # fmt: skip
                asked["resource"], _, asked["subresource"] = rule["resources"][0].partition("/")
                body = {
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                    "spec": {
                        "user": f"system:serviceaccount:{SYSTEM}:{account}",
                        "resourceAttributes": asked,
                    },
                }  # fmt: skip
                while True:
                    answer = await self._client.post(ACCESS_REVIEWS.collection(), body)
                    if answer["status"]["allowed"]:
                        break
                    await asyncio.sleep(0.05)

    async def remove(self) -> None:
        """Leave nothing but the namespace."""
        if self._installed:
            await asyncio.to_thread(self._kubectl.delete, self._installed)
