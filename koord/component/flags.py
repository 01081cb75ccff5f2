"""Flags and feature gates of a command line, as Go's flag package and Kubernetes have them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from koord.component import flag_values
from koord.component.flag_values import FlagType
from koord.util.errors import KoordError, OptionError
from koord.util.text import nearest

T = TypeVar("T")
Check = Callable[[T], str]
"""Returns what to write instead of an unusable value; "" when the value is fine."""

# Inside FlagSet these names are its methods.
_Bool: TypeAlias = bool
_Int: TypeAlias = int
_Float: TypeAlias = float

_HELP = frozenset({"h", "help"})


class HelpRequested(KoordError):
    """The user asked for help; the message is the usage text."""


class Flag(Generic[T]):
    """One flag. Its value comes from the command line, else the config file, else the default.

    A map of bool is joined from command line and config file: the command line wins per entry.
    """

    def __init__(
        self,
        name: str,
        kind: FlagType[T],
        default: T,
        help: str,
        owner: str,
        check: Check[T] | None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.help = help
        self.owner = owner
        self.inert = False  # True: accepted for compatibility, without any effect here
        self._check = check
        self._command_line: T | None = None
        self._config: T | None = None

    @property
    def value(self) -> T:
        given, configured = self._command_line, self._config
        if given is None:
            return self.default if configured is None else configured
        if configured is None or self.kind is not flag_values.BOOL_MAP:
            return given
        return self.kind.merge(configured, given)

    @property
    def is_set(self) -> bool:
        """Whether the command line or the config file gave a value."""
        return self._command_line is not None or self._config is not None

    @property
    def default_text(self) -> str:
        return self.kind.write(self.default)

    def is_like(self, kind: FlagType[Any], default: object, help: str) -> bool:
        """Whether another definition means the same flag."""
        return (self.kind, self.default, self.help) == (kind, default, help)

    def set_text(self, text: str) -> None:
        """Take one occurrence on the command line.

        Raises:
            OptionError: the text is no value of this flag.
        """
        value = self._checked(
            self._convert(self.kind.read, text, f"--{self.name}"), f"--{self.name}"
        )
        earlier = self._command_line
        self._command_line = value if earlier is None else self.kind.merge(earlier, value)

    def from_yaml(self, value: object, option: str) -> T:
        """Return a config file's value as one of this flag, without setting it.

        Raises:
            OptionError: it is none; the message begins with option.
        """
        return self._checked(self._convert(self.kind.from_yaml, value, option), option)

    def configure(self, value: T | None) -> None:
        """Set, or with None remove, the config file's value."""
        self._config = value

    def _convert(self, convert: Callable[[Any], T], value: object, option: str) -> T:
        try:
            return convert(value)
        except ValueError as err:
            raise OptionError(option, value, str(err)) from err

    def _checked(self, value: T, option: str) -> T:
        hint = self._check(value) if self._check else ""
        if hint:
            raise OptionError(option, value, hint)
        return value


@dataclass(frozen=True, slots=True)
class FlagRow:
    """A row of the flags reference."""

    name: str
    kind: str
    default: str
    help: str
    owner: str
    inert: bool


class FlagSet:
    """All flags of the process, or one owner's view of them."""

    def __init__(self, program: str = "daemon", *, underscores: _Bool = False) -> None:
        """program names the daemon in the usage text and as owner of its flags.

        underscores: --log_level is --log-level, as in programs of Kubernetes.
        """
        self._program = self._owner = program
        self._underscores = underscores
        self._shares = False
        self._flags: dict[str, Flag[Any]] = {}
        self._expected: dict[str, str] = {}  # owners of undefined flags, by first word

    def owned_by(self, owner: str) -> "FlagSet":
        """Return a view of the same flags; what is defined through it belongs to the owner."""
        view = FlagSet(self._program, underscores=self._underscores)
        view._owner = owner
        view._flags, view._expected = self._flags, self._expected
        return view

    def shared(self) -> "FlagSet":
        """Return a view through which several owners may define the same flag, each alike."""
        view = self.owned_by(self._owner)
        view._shares = True
        return view

    def bool(self, name: str, default: _Bool, help: str) -> Flag[_Bool]:
        """A switch; the bare --name means true."""
        return self.define(name, flag_values.BOOL, default, help)

    def int(
        self, name: str, default: _Int, help: str, *, check: Check[_Int] | None = None
    ) -> Flag[_Int]:
        """A whole number. check returns what to write instead of an unusable value."""
        return self.define(name, flag_values.INT, default, help, check=check)

    def float(
        self, name: str, default: _Float, help: str, *, check: Check[_Float] | None = None
    ) -> Flag[_Float]:
        """A number; check as with int."""
        return self.define(name, flag_values.FLOAT, default, help, check=check)

    def string(
        self, name: str, default: str, help: str, *, check: Check[str] | None = None
    ) -> Flag[str]:
        """A text; check as with int."""
        return self.define(name, flag_values.STRING, default, help, check=check)

    def duration(
        self, name: str, default: _Float, help: str, *, check: Check[_Float] | None = None
    ) -> Flag[_Float]:
        """A duration in seconds, written like 1h30m."""
        return self.define(name, flag_values.DURATION, default, help, check=check)

    def bool_map(
        self, name: str, default: Mapping[str, _Bool], help: str
    ) -> Flag[Mapping[str, _Bool]]:
        """Written like A=true,B=false; occurrences add up, the first replaces the default."""
        return self.define(name, flag_values.BOOL_MAP, default, help)

    def string_list(self, name: str, default: Sequence[str], help: str) -> Flag[tuple[str, ...]]:
        """One element per occurrence, commas included; the first replaces the default."""
        return self.define(name, flag_values.STRING_LIST, cast("tuple[str, ...]", default), help)

    def define(
        self,
        name: str,
        kind: FlagType[T],
        default: T,
        help: str,
        *,
        check: Check[T] | None = None,
        inert: _Bool = False,
    ) -> Flag[T]:
        """Add a flag.

        Raises:
            OptionError: the name is taken (the message names both owners), or is no flag name, or
                the default is of another kind.
        """
        if not name or name.startswith("-") or "=" in name or name in _HELP:
            raise OptionError(f"--{name}", name, f"not a flag name; {self._owner} defines it")
        try:
            default = kind.default(default)
        except ValueError as err:
            hint = f"{err}, as the default of a {kind.name}; {self._owner} defines it"
            raise OptionError(f"--{name}", default, hint) from err
        taken = self._flags.get(name)
        if taken is not None and self._shares and taken.is_like(kind, default, help):
            taken.owner = f"{taken.owner}, {self._owner}"
            return taken
        if taken is not None:
            hint = f"flag of {taken.owner}; {self._owner} must choose another name"
            raise OptionError(f"--{name}", name, hint)
        flag = Flag(name, kind, default, help, self._owner, check)
        flag.inert = inert
        self._flags[name] = flag
        return flag

    def expect(self, stem: str, owner: str) -> None:
        """Take any text for flags called stem or stem-..., which their owner could not define.

        They are inert, and begin to exist when they are set.
        """
        if stem:
            self._expected[stem] = owner

    def __getitem__(self, name: str) -> Flag[Any]:
        return self._flags[name]

    def __contains__(self, name: str) -> _Bool:
        return name in self._flags

    def __iter__(self) -> Iterator[Flag[Any]]:
        return iter(self._flags.values())

    def parse(self, args: Sequence[str]) -> list[str]:
        """Take the flags of a command line; return what follows the last one.

        Raises:
            OptionError: a flag is unknown (the message names the nearest) or has a bad value.
            HelpRequested: -h or --help was among the flags.
        """
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            arg = rest.pop(0)
            if arg == "--":
                break
            name, equals, text = arg.removeprefix("-").removeprefix("-").partition("=")
            flag = self._find(name, arg)
            if equals:
                flag.set_text(text)
            elif flag.kind is flag_values.ANY_TEXT:
                flag.set_text(rest.pop(0) if rest and not rest[0].startswith("-") else "")
            elif not flag.kind.needs_value:
                flag.set_text("true")
            elif rest:
                flag.set_text(rest.pop(0))
            else:
                raise OptionError(f"--{name}", arg, f"flag needs an argument: --{name}=VALUE")
        return rest

    def set_from_config(
        self, values: Mapping[str, object], where: Callable[[str], str] = "{}".format
    ) -> None:
        """Make these the config file's values, all or none; earlier ones are forgotten.

        where gives the place of a key for messages, for example "/etc/daemon.yaml:3: addr".

        Raises:
            OptionError: a key is no flag (the message names the nearest) or has a bad value.
        """
        parsed = {name: self._configured(name, value, where) for name, value in values.items()}
        for flag in self:
            flag.configure(parsed.get(flag.name))

    def describe(self) -> list[FlagRow]:
        """Rows of the flags reference, sorted by name."""
        return [
            FlagRow(flag.name, flag.kind.name, flag.default_text, flag.help, flag.owner, flag.inert)
            for flag in sorted(self, key=lambda flag: flag.name)
        ]

    def usage(self) -> str:
        """The text that --help prints."""
        lines = [f"Usage: {self._program} [flags]", ""]
        for row in self.describe():
            lines += [f"  --{row.name} {row.kind}", f"        {row.help} (default {row.default!r})"]
        return "\n".join(lines)

    def inert_set(self) -> list[str]:
        """Flags the user set although they do nothing here."""
        return sorted(flag.name for flag in self if flag.inert and flag.is_set)

    def _find(self, name: str, arg: str) -> Flag[Any]:
        flag = self._known(name)
        if flag is not None:
            return flag
        if name in _HELP:
            raise HelpRequested(self.usage())
        if not name or name.startswith("-"):
            raise OptionError(arg, arg, "bad flag syntax; write it like --name=value")
        raise OptionError(f"--{name}", arg, f"unknown flag; the nearest is --{self._nearest(name)}")

    def _configured(self, name: str, value: object, where: Callable[[str], str]) -> Any:
        flag = self._known(name)
        if flag is None:
            hint = f"no flag of this name; the nearest is {self._nearest(str(name))}"
            raise OptionError(where(name), name, hint)
        return flag.from_yaml(value, where(name))

    def _known(self, name: str) -> Flag[Any] | None:
        """The flag of that name, if there is or should be one."""
        if self._underscores:
            name = name.replace("_", "-")
        flag = self._flags.get(name)
        if flag is None:
            for stem, owner in self._expected.items():
                if name == stem or name.startswith(f"{stem}-"):
                    help = f"Unknown: {owner} could not be loaded."
                    view = self.owned_by(owner)
                    return view.define(name, flag_values.ANY_TEXT, "", help, inert=True)
        return flag

    def _nearest(self, name: str) -> str:
        return nearest(name, self._flags)


@dataclass(frozen=True, slots=True)
class FlagSpec(Generic[T]):
    """One flag as a row of a table: of a FlagTable, or of flags that are accepted and ignored.

    A default of DURATION is in seconds.
    """

    name: str
    kind: FlagType[T]
    default: T
    help: str
    check: Check[T] | None = None  # returns what to write instead of an unusable value
    unit: str = ""  # of an INT or FLOAT that has an effect

    def define(self, flags: FlagSet, *, inert: bool = False) -> Flag[T]:
        """Add the flag to the set; errors as those of FlagSet.define."""
        return flags.define(
            self.name, self.kind, self.default, self.help, check=self.check, inert=inert
        )

    @overload
    def __get__(self, instance: None, owner: type) -> "FlagSpec[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> Flag[T]: ...
    def __get__(self, instance: object | None, owner: type) -> "FlagSpec[T] | Flag[T]":
        # Reached for a table's class only: an instance has the Flag itself under this name, and
        # Python finds that first, as there is no __set__.
        if instance is None:
            return self
        raise AttributeError(f"--{self.name} is not defined yet")


class FlagTable:
    """Flags as attributes, so that the type checker finds a mistyped name.

    A subclass has one FlagSpec an attribute; its instance has the Flag of each in its place.
    Values are checked when they are given, so a reader need not check them again.
    """

    def __init__(self, flags: FlagSet, rows: Mapping[str, FlagSpec[Any]] | None = None) -> None:
        """Define all rows, in their order; errors as those of FlagSet.define.

        rows: by attribute, in place of those of the class, where a default depends on the daemon.
        """
        instead = rows or {}
        for owner in reversed(type(self).__mro__):
            for attribute, row in vars(owner).items():
                if isinstance(row, FlagSpec):
                    vars(self)[attribute] = instead.get(attribute, row).define(flags)


def define_ignored_flags(flags: FlagSet, rows: Iterable[FlagSpec[Any]]) -> None:
    """Define flags that have no effect, with one warning each; their values are still checked."""
    for row in rows:
        row.define(flags, inert=True)


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
