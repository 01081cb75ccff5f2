"""Feature gates by the rules of Kubernetes' component-base."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from koord.util.errors import OptionError
from koord.util.text import nearest


class Stage(StrEnum):
    """The maturity of a feature."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = "GA"


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A gate's default and stage; a locked one accepts nothing but its default."""

    default: bool = False
    stage: Stage = Stage.ALPHA
    locked: bool = False


ALL_OF_STAGE: Mapping[str, Stage] = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
"""Names that stand for each gate of their stage that has no value of its own."""

Listener = Callable[[frozenset[str]], None]


class FeatureGates:
    """A gate table and its present values.

    Values are swapped as a whole, so enabled() may be asked from any thread; everything else
    belongs to one thread.
    """

    def __init__(self, table: Mapping[str, FeatureSpec], owner: str) -> None:
        """owner names the daemon whose gates these are, in messages."""
        whole_stages = {name: FeatureSpec(stage=stage) for name, stage in ALL_OF_STAGE.items()}
        self._specs = {**table, **whole_stages}
        self._owners = dict.fromkeys(self._specs, owner)
        self._built: set[str] = set(ALL_OF_STAGE)
        self._explicit: dict[str, bool] = {}
        self._values = self._settle({})
        self._listeners: list[Listener] = []

    def add(self, name: str, spec: FeatureSpec, owner: str) -> None:
        """Let a feature from elsewhere join the table.

        Raises:
            OptionError: the name is taken; the message names both owners.
        """
        if name in self._specs:
            hint = f"gate of {self._owners[name]}; {owner} must choose another name"
            raise OptionError("feature gate", name, hint)
        self._specs[name] = spec
        self._owners[name] = owner
        self._values = self._settle(self._explicit)

    def enabled(self, name: str) -> bool:
        """Whether the feature is on. A name outside the table is a KeyError: a bug, not input."""
        return self._values[name]

    def set_from_map(self, values: Mapping[str, bool]) -> frozenset[str]:
        """Add to the explicit values; see replace_map."""
        return self.replace_map({**self._explicit, **values})

    def replace_map(self, values: Mapping[str, bool]) -> frozenset[str]:
        """Make these the explicit values, all or none; return the gates that changed.

        AllAlpha and AllBeta set the gates of their stage that have no value of their own.

        Raises:
            OptionError: a name is unknown, or a locked gate would leave its default.
        """
        for name, value in values.items():
            self._check(name, value)
        before, self._explicit = self._values, dict(values)
        self._values = self._settle(values)
        changed = frozenset(name for name, value in self._values.items() if before[name] != value)
        if changed:
            for listener in list(self._listeners):
                listener(changed)
        return changed

    def subscribe(self, listener: Listener) -> None:
        """Call the listener on each change, with the names of the gates that it switched."""
        self._listeners.append(listener)

    def mark_built(self, names: Iterable[str]) -> None:
        """Declare that these features exist in this build; called by the part that serves them."""
        self._built.update(names)

    def not_built(self) -> list[str]:
        """Gates that were switched on by the user although no part of this build serves them."""
        asked = (name for name, value in self._settle(self._explicit).items() if value)
        return sorted(name for name in asked if name not in self._built and self._is_asked(name))

    def working(self) -> list[str]:
        """Gates that are on and whose feature is in this build, sorted."""
        return sorted(name for name, value in self._values.items() if value and name in self._built)

    def names(self) -> list[str]:
        """All gates of the table, sorted."""
        return sorted(self._specs)

    def spec(self, name: str) -> FeatureSpec:
        return self._specs[name]

    def known(self) -> list[str]:
        """Lines for the help text; gates that are generally available are not worth one."""
        return [
            f"{name}=true|false ({spec.stage} - default={str(spec.default).lower()})"
            for name, spec in sorted(self._specs.items())
            if spec.stage is not Stage.GA
        ]

    def _check(self, name: str, value: bool) -> None:
        spec = self._specs.get(name)
        if spec is None:
            hint = f"unrecognized feature gate: {name}; the nearest is {nearest(name, self._specs)}"
            raise OptionError("feature-gates", name, hint)
        if spec.locked and value != spec.default:
            hint = (
                f"cannot set feature gate {name} to {str(value).lower()}, "
                f"feature is locked to {str(spec.default).lower()}"
            )
            raise OptionError("feature-gates", f"{name}={str(value).lower()}", hint)

    def _settle(self, explicit: Mapping[str, bool]) -> dict[str, bool]:
        """Values of all gates that follow from the explicit ones."""
        stages = ALL_OF_STAGE
        by_stage = {stage: explicit[name] for name, stage in stages.items() if name in explicit}
        values = {
            name: spec.default if spec.locked else by_stage.get(spec.stage, spec.default)
            for name, spec in self._specs.items()
        }
        return values | dict.fromkeys(ALL_OF_STAGE, False) | dict(explicit)

    def _is_asked(self, name: str) -> bool:
        return name in self._explicit or not self._specs[name].default
