"""How a plugin declares its arguments: a frozen dataclass, its defaults, and optional methods.

    @dataclass(frozen=True, kw_only=True, slots=True)
    class QuietNodesArgs:
        quiet_below: float = 20.0  # percent of CPU; "quietBelow" in the file
        wait: Seconds = 60.0

        def validate(self) -> Iterator[Fault]:
            if not 0 <= self.quiet_below <= 100:
                yield invalid(("quietBelow",), self.quiet_below, "wanted 0 to 100 percent")

    @takes_args(QuietNodesArgs)
    class QuietNodes(BalancePlugin):
        def __init__(self, args: QuietNodesArgs, handle: Handle) -> None: ...

A complete method returns the object with the defaults that depend on other fields.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from koord.component.config.componentconfig import Reader, Rejected
from koord.component.config.field_errors import FieldError, FieldPath, independent, invalid
from koord.util.errors import error_text

_A = TypeVar("_A")
_F = TypeVar("_F", bound=Callable[..., object])

_DECLARED = "__plugin_args__"


@runtime_checkable
class Validated(Protocol):
    """Arguments with rules. Paths of faults begin at the arguments."""

    def validate(self) -> Iterable[FieldError]:
        """Return the faults, and warnings."""
        ...


@runtime_checkable
class Completed(Protocol):
    """Arguments with defaults that depend on other fields."""

    def complete(self) -> Self:
        """Return the arguments with all defaults; a second time nothing changes."""
        ...


@dataclass(frozen=True, slots=True)
class ArgsType:
    """The type of a plugin's arguments."""

    cls: type[Any]
    strict: bool = True  # False: unknown fields are warnings, and the case of keys does not matter
    kind: str = ""  # "LowNodeLoadArgs": apiVersion and kind may be given, and are checked
    group_version: str = ""  # that apiVersion

    def read(self, value: object, path: FieldPath) -> "tuple[Any, list[FieldError]]":
        """Return the arguments of a pluginConfig entry and their faults; without errors if None.

        value None: there are none given. The arguments are None if they have an error.
        """
        reader = Reader()
        fields, faults = self._without_kind({} if value is None else value, path)
        try:
            found = reader.read(self.cls, fields, path, strict=self.strict)
        except Rejected:
            return None, faults + reader.faults
        faults += reader.faults
        try:
            found = _completed(found)
            rules = [fault.below(path) for fault in _validated(found)]
        except Exception as err:  # the methods of a third party's class
            rules = [invalid(path, value, f"checking it failed: {error_text(err)}")]
        faults += independent(rules, reader.faults)
        return (None if _has_errors(faults) else found), faults

    def _without_kind(self, value: object, path: FieldPath) -> tuple[object, list[FieldError]]:
        """The arguments without apiVersion and kind, which must be those of this type."""
        if not isinstance(value, dict):
            return value, []
        wanted = {"apiVersion": self.group_version, "kind": self.kind}
        rest = {key: item for key, item in value.items() if key not in wanted}
        faults = [
            invalid((*path, key), value[key], f'wanted "{text}"')
            for key, text in wanted.items()
            if self.kind and value.get(key) not in (None, "", text)
        ]
        return rest, faults


def takes_args(
    cls: type[Any], *, strict: bool = True, group_version: str = ""
) -> Callable[[_F], _F]:
    """Declare the type of the arguments that a factory takes, which may be a plugin's class.

    Not strict: unknown fields are warnings, and the case of keys does not matter.
    With group_version, apiVersion and kind may be given and are checked.
    """
    kind = cls.__name__ if group_version else ""

    def declare(factory: _F) -> _F:
        setattr(
            factory, _DECLARED, ArgsType(cls, strict=strict, kind=kind, group_version=group_version)
        )
        return factory

    return declare


def args_type_of(factory: object) -> ArgsType | None:
    """Return what a factory has declared; None: it takes any object."""
    found = getattr(factory, _DECLARED, None)
    return found if isinstance(found, ArgsType) else None


def _completed(args: _A) -> _A:
    return args.complete() if isinstance(args, Completed) else args


def _validated(args: object) -> list[FieldError]:
    return list(args.validate()) if isinstance(args, Validated) else []


def _has_errors(faults: Iterable[FieldError]) -> bool:
    return any(not fault.is_warning for fault in faults)
