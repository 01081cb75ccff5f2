"""Versions of KubeSchedulerConfiguration that are not served any more, and what to do about them.

Source: Kubernetes, "Scheduler Configuration" and the changelogs of 1.22 to 1.29.
"""

from collections.abc import Mapping

from koord_scheduler.config.v1 import GROUP, GROUP_VERSION

_WEIGHTS = "TaintToleration now weighs 3, NodeAffinity and InterPodAffinity 2"
_ADDRESSES = "healthzBindAddress and metricsBindAddress are the flags --address and --port"
_SPREAD = "SelectorSpread is PodTopologySpread's default constraints"
_FIT = (
    "NodeResourcesLeastAllocated, NodeResourcesMostAllocated and RequestedToCapacityRatio are "
    "scoringStrategy of NodeResourcesFitArgs"
)
_CHANGES: Mapping[str, tuple[str, ...]] = {
    "v1beta3": (_SPREAD,),
    "v1beta2": (_ADDRESSES, _WEIGHTS, _SPREAD),
    "v1beta1": (_ADDRESSES, _FIT, _WEIGHTS, _SPREAD),
    "v1alpha2": (_ADDRESSES, _FIT, _WEIGHTS, _SPREAD),
    "v1alpha1": (_ADDRESSES, _FIT, _WEIGHTS, _SPREAD),
}


def version_hint(found: object) -> str:
    """Return what to do about an apiVersion that is not served; "": it never was."""
    group, _, version = str(found).partition("/")
    if group != GROUP or version not in _CHANGES:
        return ""
    return (
        f"{version} is gone since Kubernetes 1.29 or earlier: write {GROUP_VERSION} here and in "
        f"the args of plugins, and see to this: {'; '.join(_CHANGES[version])}"
    )
