"""What the manifests of both daemons of the control plane have in common."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.deploy.component import DEPLOY

NAMESPACE = "koordlet-system"
ADMISSION = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding"} | ADMISSION


class Manifests:
    """The objects of a component and of the components below it."""

    def __init__(self, directory: str, name: str) -> None:
        self.directory = DEPLOY / directory
        self.name = name

    def objects(self) -> list[dict[str, Any]]:
        """All but definitions of kinds."""
        paths = [
            path
            for path in self.directory.rglob("*.yaml")
            if path.name != "kustomization.yaml" and path.parent.name != "crds"
        ]
        return [each for path in paths for each in yaml.safe_load_all(path.read_text())]

    def one(self, kind: str) -> dict[str, Any]:
        [found] = [each for each in self.objects() if each["kind"] == kind]
        return found

    @property
    def template(self) -> dict[str, Any]:
        """The pods."""
        found: dict[str, Any] = self.one("Deployment")["spec"]["template"]
        return found

    @property
    def container(self) -> dict[str, Any]:
        [found] = self.template["spec"]["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def config(self) -> tuple[Path, bytes]:
        """Name and content of the configuration file."""
        [(name, text)] = self.one("ConfigMap")["data"].items()
        return Path(name), text.encode()

    def arguments(self, directory: Path) -> list[str]:
        """The container's, with the file in a directory and the pods in the namespace "control"."""
        name, text = self.config
        (directory / name).write_bytes(text)
        return [
            argument.replace("/config/", f"{directory}/").replace("$(POD_NAMESPACE)", "control")
            for argument in self.container["args"]
        ]

    def check_names(self) -> None:
        """One name for all but the configuration and policies, which have more after it.

        The pods' account is the one with the rights.
        """
        for each in self.objects():
            name, own = each["metadata"]["name"], self.name
            if each["kind"] in ADMISSION:
                assert name.startswith(f"{own}-")
            else:
                assert name == (f"{own}-config" if each["kind"] == "ConfigMap" else own)
            wanted = None if each["kind"] in CLUSTER_WIDE else NAMESPACE
            assert each["metadata"].get("namespace") == wanted, each["kind"]
        account = {"kind": "ServiceAccount", "name": self.name, "namespace": NAMESPACE}
        for kind in ("Role", "ClusterRole"):
            binding = self.one(f"{kind}Binding")
            assert binding["roleRef"]["kind"] == kind
            assert binding["subjects"] == [account]

    def check_container(self) -> None:
        """The level "restricted" of Kubernetes, on a read-only root, without the host."""
        spec = self.template["spec"]
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert self.container["securityContext"] == {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()
        assert [volume.keys() - {"name"} for volume in spec["volumes"]] == [{"configMap"}]

    def check_replicas(self) -> None:
        """On different nodes where that is possible; a drain of both has to wait."""
        deployment, budget = self.one("Deployment")["spec"], self.one("PodDisruptionBudget")["spec"]
        labels = self.template["metadata"]["labels"]
        [term] = self.template["spec"]["affinity"]["podAntiAffinity"].values()
        assert deployment["replicas"] == 2
        assert budget["maxUnavailable"] == 1
        for selector in (
            deployment["selector"],
            budget["selector"],
            term[0]["podAffinityTerm"]["labelSelector"],
            self.one("NetworkPolicy")["spec"]["podSelector"],
            self.one("PodMonitor")["spec"]["selector"],
        ):
            assert selector["matchLabels"] == labels

    def check_config(self) -> None:
        """The mounted ConfigMap, whole: one that is mounted by file is never renewed."""
        [volume], [mounted] = self.template["spec"]["volumes"], self.container["volumeMounts"]
        assert volume["configMap"]["name"] == self.one("ConfigMap")["metadata"]["name"]
        assert mounted["name"] == volume["name"]
        assert "subPath" not in mounted
        assert f"--config={mounted['mountPath']}/{self.config[0]}" in self.container["args"]

    def check_ports(self) -> None:
        """What the container has open is what probes, Prometheus and the policy use."""
        [port] = self.container["ports"]
        for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            asked = self.container[probe]["httpGet"]
            assert (asked["path"], asked["port"]) == (path, port["name"])
        [rule] = self.one("NetworkPolicy")["spec"]["ingress"]
        assert [each["port"] for each in rule["ports"]] == [port["containerPort"]]
        [endpoint] = self.one("PodMonitor")["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == port["name"]

    def named_rights(self) -> dict[tuple[str, str], set[str]]:
        """Verbs by resource and name; what is not by name may only be created."""
        rules = self.one("Role")["rules"]
        others = [rule for rule in rules if "resourceNames" not in rule]
        assert all(rule["verbs"] == ["create"] for rule in others)
        return {
            (resource, rule["resourceNames"][0]): set(rule["verbs"])
            for rule in rules
            for resource in rule["resources"]
            if "resourceNames" in rule
        }

    def followed(self) -> set[tuple[str, str]]:
        """Group and resource of what may be listed and watched."""
        return {
            (group, resource)
            for rule in self.one("ClusterRole")["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            if {"list", "watch"} <= set(rule["verbs"])
        }

    def command(self, subcommand: str) -> str:
        """The line that has the container run a command."""
        pods = f"kubectl -n {NAMESPACE} exec deployment/{self.name}"
        return f"{pods} -- /{self.name} {subcommand}"


def group_of(api_version: str) -> str:
    """ "" of "v1", "apps" of "apps/v1"."""
    return api_version.rpartition("/")[0]
