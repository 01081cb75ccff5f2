"""Arguments of DeviceShare, and the formula of its scores.

Source: Koordinator, pkg/scheduler/apis/config (DeviceShareArgs), plugins/deviceshare (scoring.go).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from koord.api.gojson import wire
from koord.api.quantity import Quantity
from koord.plugin.args import FieldError, Int32, Key, invalid
from koord_scheduler_plugins.device_share.devices import (
    FPGA_SHARE,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA_SHARE,
    WHOLE,
    Amounts,
    DeviceTable,
)
from koord_scheduler_plugins.device_share.requests import NPU_CORE

HIGHEST = 100


@dataclass(frozen=True, slots=True)
class DeviceScorer:
    """A formula: the weighted mean over resources, of devices that have them."""

    most: bool  # the more is requested, the better
    weights: tuple[tuple[str, int], ...]  # 1 to 100 each

    def score(self, total: Amounts, free: Amounts, request: Amounts) -> int:
        """Return the score of a device, or of a sum of devices, 0 to HIGHEST."""
        sum_of_scores = weights = 0
        for name, weight in self.weights:
            has = total.get(name, 0)
            if not has:
                continue
            taken = has - min(free.get(name, 0), has) + request.get(name, 0)
            if self.most:
                score = min(taken, has) * HIGHEST // has
            else:
                score = max(has - taken, 0) * HIGHEST // has
            sum_of_scores += score * weight
            weights += weight
        return sum_of_scores // weights if weights else 0


def with_both(request: Amounts, total: Amounts) -> Amounts:
    """Return a request of GPU memory both in bytes and in percent of a card, rounded up."""
    memory, ratio, has = (
        request.get(GPU_MEMORY),
        request.get(GPU_MEMORY_RATIO),
        total.get(GPU_MEMORY),
    )
    if not has or (memory is None) == (ratio is None):
        return request
    if memory is None:
        assert ratio is not None  # noqa: S101 - one of the two is there
        return {**request, GPU_MEMORY: ratio * has // WHOLE}
    return {**request, GPU_MEMORY_RATIO: -(-memory * WHOLE // has)}


def node_score(
    scorer: DeviceScorer,
    table: DeviceTable,
    wanted: Mapping[str, tuple[Amounts, int]],
) -> int:
    """Return the score of a node, 0 to HIGHEST: the mean over the types of what is requested.

    wanted: by type the request of each device, and the number of devices.
    """
    scores = []
    for kind, (each, count) in wanted.items():
        total, free = table.sums(kind)
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

    Koordinator reads the templates from the ConfigMap of this name; see DeviceShareArgs.
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
    """Amounts by vendor-model, by name of the template, by resource."""
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

    def templates_for(self, request: Amounts) -> Mapping[str, str]:
        """Return by vendor and model the template that is exactly a request of one card.

        Of several equal ones the first by name.
        """
        found: dict[str, str] = {}
        for model, name, each in self._templates():
            if template_amounts(each) == request and name < found.get(model, "\U0010ffff"):
                found[model] = name
        return found

    def _templates(self) -> Iterator[tuple[str, str, Mapping[str, object]]]:
        for model, templates in self.gpu_shared_resource_templates.items():
            for name, each in templates.items():
                yield model, name, each


def template_amounts(found: Mapping[str, object]) -> Amounts:
    """Return the amounts of a template. Raises ValueError: one is no quantity."""
    return {name: Quantity.parse(value).integer for name, value in found.items()}
