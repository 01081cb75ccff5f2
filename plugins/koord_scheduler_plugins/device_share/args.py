"""Arguments of DeviceShare, and the formula of its scores.

Source: Koordinator, pkg/scheduler/apis/config (DeviceShareArgs), plugins/deviceshare (scoring.go).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from koord.api.devices.allocation import DeviceScorer, with_both
from koord.api.devices.layout import (
    FPGA_SHARE,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA_SHARE,
    Amounts,
    DeviceTable,
)
from koord.api.devices.requests import NPU_CORE
from koord.api.fields import Fields
from koord.api.gojson import wire
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject, decode_document
from koord.plugin.args import FieldError, Int32, Key, invalid


def node_score(
    scorer: DeviceScorer,
    table: DeviceTable,
    wanted: Mapping[str, tuple[Amounts, int]],
    only: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> int:
    """Return the score of a node, 0 to HIGHEST: the mean over the types of what is requested.

    wanted: by type the request of each device, and the number of devices. only: the minors of
    those types of which not all devices count.
    """
    scores = []
    for kind, (each, count) in wanted.items():
        total, free = table.sums(kind, only.get(kind))
        request: Amounts = each
        if kind == GPU:
            request = with_both(each, next(filter(None, table.total(kind).values()), {}))
        whole = {name: amount * count for name, amount in request.items()}
        scores.append(scorer.score(total, free, whole))
    return sum(scores) // len(scores) if scores else 0


LEAST, MOST = "LeastAllocated", "MostAllocated"
MAX_WEIGHT = 100
_DEFAULT = (GPU_MEMORY_RATIO, GPU_MEMORY, RDMA_SHARE, FPGA_SHARE)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedResource:
    """A resource of devices that counts, and how much."""

    name: str
    weight: Int32 = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceScoringStrategy:
    """How nodes and devices are scored."""

    type: str = LEAST
    resources: tuple[WeightedResource, ...] = tuple(
        WeightedResource(name=name) for name in _DEFAULT
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel:
    """A model of GPUs; both as in the labels of the Node."""

    vendor: str = ""
    model: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplatesConfig:
    """Which shares of GPUs must have a template.

    They are read from the ConfigMap of this name, unless the arguments have some of the model.
    """

    config_map_namespace: str = "koordinator-system"
    config_map_name: str = "gpu-shared-resource-templates"
    matched_resources: tuple[str, ...] = (NPU_CORE,)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceShareArgs:
    """How devices are scored, and where they are shared."""

    scoring_strategy: DeviceScoringStrategy = DeviceScoringStrategy()
    disable_device_numa_topology_alignment: bool = wire("disableDeviceNUMATopologyAlignment", False)
    gpu_shared_resource_templates_config: TemplatesConfig = TemplatesConfig()
    gpu_shared_resource_templates: Mapping[str, Mapping[str, Mapping[str, object]]] = field(
        default_factory=dict
    )
    """Amounts by vendor-model, by name of the template, by resource; before those of the
    ConfigMap."""
    gpu_share_unsupported_models: tuple[GpuModel, ...] = ()
    require_devices: bool = False  # nodes without a Device object get no pods that request some
    allocator: str = ""  # accepted; it has no meaning any more

    def validate(self) -> Iterator[FieldError]:
        strategy = self.scoring_strategy
        if strategy.type not in (LEAST, MOST):
            text = f"scoring strategy {strategy.type} is not supported"
            yield invalid(("scoringStrategy", "type"), strategy.type, text)
        for at, one in enumerate(strategy.resources):
            if not 1 <= one.weight <= MAX_WEIGHT:
                text = f"resource weight of {one.name} not in valid range (0, 100]"
                yield invalid(("scoringStrategy", "resources", at, "weight"), one.weight, text)
        for model, name, found in self._templates():
            try:
                template_amounts(found)
            except ValueError as err:
                path = "gpuSharedResourceTemplates", Key(model), Key(name)
                yield invalid(path, dict(found), str(err))

    @property
    def scorer(self) -> DeviceScorer:
        """The formula of the strategy."""
        strategy = self.scoring_strategy
        weights = tuple((one.name, one.weight) for one in strategy.resources)
        return DeviceScorer(strategy.type == MOST, weights)

    @property
    def templates(self) -> "Templates":
        """The templates in the arguments."""
        found: dict[str, dict[str, Amounts]] = {}
        for model, name, each in self._templates():
            found.setdefault(model, {})[name] = template_amounts(each)
        return found

    def _templates(self) -> Iterator[tuple[str, str, Mapping[str, object]]]:
        for model, templates in self.gpu_shared_resource_templates.items():
            for name, each in templates.items():
                yield model, name, each


def template_amounts(found: Mapping[str, object]) -> Amounts:
    """Return the amounts of a template. Raises ValueError: one is no quantity."""
    return {name: Quantity.parse(value).integer for name, value in found.items()}


Templates = Mapping[str, Mapping[str, Amounts]]
"""Amounts of shares by vendor-model, by name of the template, by resource."""

TEMPLATES_KEY = "data.yaml"  # of the ConfigMap
MAX_MODELS, MAX_TEMPLATES, MAX_AMOUNTS = 256, 256, 32  # each of those above it
_MAX_NAME = 253


def read_templates(found: Mapping[str, object], namespace: str, name: str) -> Templates | None:
    """Return the templates of a ConfigMap; None: it is another one.

    Raises:
        InvalidObject: its data is malformed, or there are too many.
    """
    meta = Fields(found.get("metadata") or {}, "metadata")
    if (meta.text("namespace"), meta.text("name")) != (namespace, name):
        return None
    where = f"ConfigMap {namespace}/{name}: {TEMPLATES_KEY}"
    text = Fields(found.get("data") or {}, "data").text(TEMPLATES_KEY)
    if not text.strip():
        return {}
    models = _bounded(decode_document(text.encode(), where), where, MAX_MODELS)
    templates: dict[str, dict[str, Amounts]] = {}
    for model, of_model in models.items():
        place = f"{where}: {model}"
        for name_of, each in _bounded(of_model, place, MAX_TEMPLATES).items():
            amounts = _bounded(each, f"{place}.{name_of}", MAX_AMOUNTS)
            try:
                templates.setdefault(model, {})[name_of] = template_amounts(amounts)
            except ValueError as err:
                wanted = "quantities by resource"
                raise InvalidObject(f"{place}.{name_of}", wanted=wanted, found=str(err)) from err
    return templates


def _bounded(found: object, where: str, most: int) -> Mapping[str, object]:
    """An object with at most so many keys, none of them long. Raises InvalidObject."""
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidObject(where, wanted="an object", found=found)
    if len(found) > most or any(len(str(key)) > _MAX_NAME for key in found):
        wanted = f"at most {most} names of {_MAX_NAME} characters"
        raise InvalidObject(where, wanted=wanted, found=f"{len(found)} names")
    return {str(key): value for key, value in found.items()}


def templates_for(templates: Templates, request: Amounts) -> Mapping[str, str]:
    """Return by vendor and model the template that is exactly a request of one card.

    Of several equal ones the first by name.
    """
    found: dict[str, str] = {}
    for model, of_model in templates.items():
        names = [name for name, each in of_model.items() if each == request]
        if names:
            found[model] = min(names)
    return found
