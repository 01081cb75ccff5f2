"""The page of the chart."""

from reference.chart.files import VALUES
from reference.chart.values import values_table
from reference.markdown import codes, page, table


def chart_page() -> str:
    """docs/chart.md."""
    koordinators = table(
        ("Koordinator's chart", "Here"),
        [(codes(theirs), ours) for theirs, ours in KOORDINATORS],
    )
    return page(
        "Helm chart",
        _LIFE,
        "## From Koordinator's chart",
        _NAMES,
        koordinators,
        "## Values",
        values_table(VALUES),
    )


KOORDINATORS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "crds.managed",
            "installation.namespace",
            "imageRepositoryHost",
            "serviceAccount.annotations",
            "koordlet.image.repository",
            "koordlet.image.tag",
            "koordlet.log.level",
            "koordlet.resources",
            "koordlet.nodeAffinity",
            "scheduler.replicas",
            "scheduler.featureGates",
            "descheduler.nodeSelector",
            "descheduler.tolerations",
        ),
        "The same, for each daemon. `koordlet.nodeAffinity` is the whole affinity of the pods",
    ),
    (
        ("koordlet.features",),
        "The same, but empty is the gates that are on by default. There it is also `BECPUEvict`, "
        "`BEMemoryEvict`, `CgroupReconcile` and `Accelerators`: name them, with the components "
        "`koordlet.components.evictions` and `koordlet.components.devices`",
    ),
    (("imagePullSecrets",), "A list, as pods have it"),
    (("koordlet.enableServiceMonitor",), "`koordlet.components.podMonitor`"),
    (("koordlet.runtimeClassName",), "`koordlet.components.nvidia`"),
    (
        ("koordlet.hostDirs", "koordlet.metrics.port"),
        "None: the directories are those of each component, the port is 9316",
    ),
    (
        ("scheduler.port", "descheduler.port"),
        "None: 10251. The configuration is `scheduler.config` and `descheduler.config`",
    ),
    (
        ("scheduler.hostNetwork", "descheduler.hostNetwork"),
        "None: they need nothing of their node",
    ),
    (
        ("manager.replicas", "manager.resources", "manager.nodeSelector", "manager.tolerations"),
        "The same, of the [manager](manager.md) here; its webhook is `manager.components.webhook`",
    ),
    (
        ("featureGates", "manager.webhook", "webhookConfiguration", "koordYarnCopilotAgent"),
        "None: they stay with Koordinator's release. Without any koord-manager: "
        "`koordlet.components.managerDuties`",
    ),
)
"""Values of Koordinator's chart 1.6, and what stands for them."""

_LIFE = """
`deploy/chart` installs what `kubectl apply -k deploy` does, with Helm 3.14 or later. Both are made
from the same files: each component of [deploy](operations.md#components) is a value here.

```sh
helm install koordlet deploy/chart --set koordlet.image.repository=registry.example/koordlet
```

Objects go into `installation.namespace`, which is a part of the release; Helm's record of it is in
the namespace of the command. For one namespace for both, make it first, with the label that lets
the agents' pods in:

```sh
kubectl create namespace koordlet-system
kubectl label namespace koordlet-system pod-security.kubernetes.io/enforce=privileged
helm install koordlet deploy/chart -n koordlet-system --set installation.createNamespace=false
```

**It begins in dry-run**: each plugin decides and explains, and no kernel value is changed on any
node. Look at what it would do (`koordletctl explain`, `koordletctl top`), then let it act:

```sh
helm upgrade koordlet deploy/chart --reset-then-reuse-values --set koordlet.dryRun=false
```

To go back, set `koordlet.dryRun=true`: each agent restores what it changed, and its successor only
looks. A gate is switched by `koordlet.features`; a right that it needs by its component. The agents
are replaced a tenth at a time.

**A new version** of the chart is one command. Values that you set stay, others are those of the new
version. With `--reuse-values` instead, values that are new would be missing.

```sh
helm upgrade koordlet deploy/chart --reset-then-reuse-values --set koordlet.image.tag=0.2.0
```

**Uninstalling** restores the kernel values before the agents' pods end. Each agent gets SIGTERM,
ends its plugins within 15 s and restores what they changed within 10 s; its pod has 30 s. No right
and no API server is needed for that, so it does not matter what Helm deletes first.

```sh
helm uninstall koordlet --wait
```

The command waits for the pods, as their namespace is a part of the release. Where it is not
(`installation.createNamespace=false`), add `--cascade foreground`. What stays:

* The custom resource definitions, with their objects. They belong to the release that made them:
  install again by the same name, or with `crds.managed=false`. The same holds for definitions that
  kustomize or Koordinator installed.
* `/var/run/koordlet` on each node until it boots again: what was measured, and the journal, which
  is empty when all is restored. An agent that was killed before it could restore leaves its journal
  there: [`koordletctl restore`](koordletctl.md#restore), or a boot.
* The policies that koord-manager keeps for profiles and pods, which stay in force, and what nodes
  offer to batch and mid pods: [how to remove both](manager.md#start).
* Without the namespace in the release: the Lease of each control plane daemon, and the
  descheduler's [ledger](ledger.md).

Cluster roles and the admission policy have fixed names, so a cluster has one release. Where some
nodes need other rights, such as those with GPUs, take kustomize
([operations](operations.md#components)).
"""

_NAMES = """
Values have the names of Koordinator's chart where they mean the same. A value that is not there is
refused, as is one of another form, so its values file does not pass unread.
"""
