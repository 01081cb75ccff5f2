"""Rules of pods as ValidatingAdmissionPolicies.

A pod that is updated is asked only about what may not change: one that broke another rule before
the policy was there must still lose its finalizers. Texts are those of Koordinator's webhook.

Source: Koordinator, pkg/webhook/pod/validating.
"""

from typing import Any

from koord.api.qos import PRIORITY_CLASS_LABEL, QOS_LABEL, KoordPriorityClass, QoSClass
from koord_manager_plugins.profiles.cel import literal, literal_texts
from koord_manager_plugins.profiles.mutation import (
    BATCH,
    CONTAINERS,
    GPU,
    GPU_CORE,
    GPU_RATIO,
    GPU_SHARED,
)
from koord_manager_plugins.profiles.policies import (
    BANDS,
    Object,
    constraints,
    managed,
)
from koord_manager_plugins.profiles.profile import SUB_PRIORITY

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
QOS, DEVICES = "koord-manager-pod-qos", "koord-manager-pod-devices"
VERSION = "v1"
RESERVE_POD = "scheduling.koordinator.sh/reserve-pod"  # the mark of the scheduler's own objects
_MEMORY, _NPU = "koordinator.sh/gpu-memory", "huawei.com/npu-core"
_CREATED = 'request.operation != "CREATE" || '
_UPDATED = 'request.operation != "UPDATE" || '


def qos_policy(*, sub_priority_is_fixed: bool = True) -> list[Object]:
    """Return the policy of QoS, priority and batch resources, and its binding.

    sub_priority_is_fixed: not with the gate ColocationProfileSkipValidatingPriority.
    """
    old = "(oldObject == null ? object : oldObject)"
    variables = {
        "labels": "object.metadata.?labels.orValue({})",
        "oldLabels": f"{old}.metadata.?labels.orValue({{}})",
        "qos": _raw_qos("variables.labels"),
        "oldQos": _raw_qos("variables.oldLabels"),
        "class": _raw_class("variables.labels", "object"),
        "oldClass": _raw_class("variables.oldLabels", old),
        "containers": "object.spec.containers + object.spec.?initContainers.orValue([])",
        "holdsBatch": f"variables.containers.exists(c, {_holds_batch('c.?resources.?requests')})"
        f" || {_holds_batch('object.spec.?overhead')}",
        "cpu": _cpu(),
    }
    fixed = "field is immutable"
    sub = _label(SUB_PRIORITY)
    pair = '"Pod: Forbidden: koordinator.sh/qosClass=" + variables.qos + " and priorityClass="'
    pair += ' + variables.class + " cannot be used in combination"'
    validations = [
        _rule(
            f"{_CREATED}!({_label(RESERVE_POD)} in object.metadata.?annotations.orValue({{}}))",
            literal(f"annotations.{RESERVE_POD}: cannot set in annotations"),
        ),
        _rule(
            f"{_UPDATED}variables.qos == variables.oldQos",
            _invalid(f"labels.{QOS_LABEL}", "variables.qos", fixed),
        ),
        _rule(
            f"{_UPDATED}variables.class == variables.oldClass",
            _invalid("spec.priority", "variables.class", fixed),
        ),
        _rule(
            f'{_CREATED}!variables.holdsBatch || variables.qos == "BE"',
            literal(
                f"labels.{QOS_LABEL}: Required value: must specify koordinator QoS BE with "
                "koordinator colocation resources"
            ),
        ),
        _rule(
            f'{_CREATED}variables.qos != "BE" || !(variables.class in'
            f" {literal_texts(['', KoordPriorityClass.PROD])})",
            pair,
        ),
        _rule(
            f'{_CREATED}variables.qos != "LSR" || variables.class =='
            f" {literal(str(KoordPriorityClass.PROD))}",
            pair,
        ),
        _rule(
            f'{_CREATED}!(variables.qos in ["LSR", "LSE"]) || variables.cpu > 0',
            'variables.qos + " Pod must declare the requested CPUs"',
        ),
        _rule(
            f'{_CREATED}!(variables.qos in ["LSR", "LSE"]) || variables.cpu % 1000 == 0',
            'variables.qos + " Pod: the requested CPUs must be integer"',
        ),
    ]
    if sub_priority_is_fixed:
        rule = _rule(
            f"{_UPDATED}variables.labels[?{sub}] == variables.oldLabels[?{sub}]",
            _invalid(f"labels.{SUB_PRIORITY}", f'variables.labels[?{sub}].orValue("")', fixed),
        )
        validations.insert(3, rule)
    return _policy(QOS, variables, validations, ["CREATE", "UPDATE"])


def device_rules_policy() -> list[Object]:
    """Return the policy of GPUs, and its binding."""
    amount = {name: f"int(quantity(string(r[?{_label(name)}].orValue(\"0\"))).asApproximateFloat())"
              for name in (GPU, GPU_SHARED, _MEMORY, GPU_CORE, GPU_RATIO, _NPU)}  # fmt: skip
    gpu, shared = amount[GPU], amount[GPU_SHARED]
    has_gpu, has_shared = f"{_label(GPU)} in r", f"{_label(GPU_SHARED)} in r"
    plain = f"!({has_shared}) || {amount[_NPU]} != 0 || "
    divides = " && ".join(f"{amount[name]} % {shared} == 0" for name in (GPU_CORE, GPU_RATIO))
    rules = {
        f"!({has_gpu} && {has_shared})": f"{GPU} and {GPU_SHARED} cannot be used together",
        f"!({has_gpu}) || ({gpu} > 0 && ({gpu} <= 100 || {gpu} % 100 == 0))": f"{GPU} must be "
        "positive, and above 100 a multiple of 100",
        f"!({has_shared}) || {shared} > 0": f"{GPU_SHARED} must be positive",
        f"{plain}({amount[_MEMORY]} != 0) != ({amount[GPU_RATIO]} != 0)": f"exactly one of "
        f"{_MEMORY} and {GPU_RATIO} must be set with {GPU_SHARED}",
        f"{plain}{shared} <= 0 || ({divides})": f"{GPU_CORE} and {GPU_RATIO} must be multiples of "
        f"{GPU_SHARED}",
    }
    variables = {"requests": "object.spec.containers.map(c, c.?resources.?requests.orValue({}))"}
    validations = [
        _rule(f"variables.requests.all(r, {rule})", literal(text)) for rule, text in rules.items()
    ]
    return _policy(DEVICES, variables, validations, ["CREATE"])


def _label(name: str) -> str:
    return literal(name)


def _raw_qos(labels: str) -> str:
    known = literal_texts(one for one in QoSClass if one)
    key = _label(QOS_LABEL)
    return f'{labels}[?{key}].orValue("") in {known} ? {labels}[?{key}].orValue("") : ""'


def _raw_class(labels: str, pod: str) -> str:
    key, priority = _label(PRIORITY_CLASS_LABEL), f"{pod}.spec.?priority.orValue(0)"
    known = literal_texts(one for one in KoordPriorityClass if one)
    band = " : ".join(
        f"{priority} >= {low} && {priority} <= {high} ? {literal(str(name))}"
        for name, low, high in BANDS
    )
    return (
        f'{key} in {labels} ? ({labels}[{key}] in {known} ? {labels}[{key}] : "") : ({band} : "")'
    )


def _holds_batch(amounts: str) -> str:
    return " || ".join(
        f'quantity(string({amounts}[?{_label(name)}].orValue("0"))).compareTo(quantity("0")) > 0'
        for name in BATCH
    )


def _cpu() -> str:
    """Return milli-cores that a pod asks for.

    A regular init container counts without the sidecars before it, whose number CEL before 1.34
    cannot say.
    """
    amount = _milli('c.?resources.?requests[?"cpu"]')
    sidecar = 'c.?restartPolicy.orValue("") == "Always"'
    first = f"object.spec.?{CONTAINERS[0]}.orValue([])"
    sidecars = f"{first}.filter(c, {sidecar}).map(c, {amount})"
    lasting = f"object.spec.containers.map(c, {amount}) + {sidecars}"
    initial = f"[0] + {first}.filter(c, !({sidecar})).map(c, {amount})"
    overhead = _milli('object.spec.?overhead[?"cpu"]')
    return f"[({lasting}).sum(), ({initial}).max()].max() + {overhead}"


def _milli(amount: str) -> str:
    return f'int(quantity(string({amount}.orValue("0"))).asApproximateFloat() * 1000.0 + 0.5)'


def _invalid(field: str, value: str, why: str) -> str:
    before, after = literal(f'{field}: Invalid value: "'), literal(f'": {why}')
    return f"{before} + {value} + {after}"


def _rule(expression: str, message: str) -> dict[str, Any]:
    return {"expression": expression, "messageExpression": message, "reason": "Invalid"}


def _policy(
    name: str, variables: dict[str, str], validations: list[Object], operations: list[str]
) -> list[Object]:
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints(operations),
        "variables": [{"name": key, "expression": one} for key, one in variables.items()],
        "validations": validations,
    }
    return [
        managed(POLICY, VERSION, name, spec),
        managed(BINDING, VERSION, name, {"policyName": name, "validationActions": ["Deny"]}),
    ]
