"""Arguments of DeviceShare.

Source: Koordinator, pkg/scheduler/apis/config (DeviceShareArgs).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from koord.api.gojson import wire
from koord.api.quantity import Quantity
from koord.plugin.args import FieldError, Int32, Key, invalid
from koord_scheduler_plugins.device_share.devices import (
    FPGA_SHARE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA_SHARE,
    Amounts,
)
from koord_scheduler_plugins.device_share.requests import NPU_CORE
from koord_scheduler_plugins.device_share.scoring import DeviceScorer

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
