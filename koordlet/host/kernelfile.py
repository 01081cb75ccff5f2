"""A kernel file that a plugin declares as its own: a row beside those of the table."""

import json
from typing import Any, TypeVar, overload

from koord.util.errors import InvalidObject
from koordlet.host import declarable
from koordlet.host.resource import File, Resource, Root, Support
from koordlet.host.valueforms import AnyForm, NumberOrMax, OneWord, WholeNumber, form_of

T = TypeVar("T")

LONGEST_UNIT = 80  # characters
LONGEST_DEFINITION = 2048  # characters


class KernelFile(Resource[T]):
    """A kernel file of a plugin's own, which it may then claim like the values of the table.

    Two are equal when they are about the same file, whatever else they say of it.
    """

    __slots__ = ("form",)
    form: AnyForm

    @overload
    def __init__(
        self: "KernelFile[int]",
        file: str,
        unit: str,
        form: WholeNumber | NumberOrMax,
        needs: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: "KernelFile[str]", file: str, unit: str, form: OneWord, needs: str = ""
    ) -> None: ...
    @overload
    def __init__(
        self: "KernelFile[Any]", file: str, unit: str, form: AnyForm, needs: str = ""
    ) -> None: ...
    def __init__(self, file: str, unit: str, form: AnyForm, needs: str = "") -> None:
        """Check the declaration.

        file is the name of a cgroup's file ("pids.max"), of the same name on both cgroup versions
        as far as they have it, or the path of a sysctl ("/proc/sys/vm/swappiness"). unit is what
        its value is in, in a few words. needs is what provides it, for `koordletctl doctor`.

        Raises:
            InvalidObject: the table covers the file, it is none that a plugin may set, or another
                part is unusable.
        """
        if found := declarable.defect_of(file):
            wanted = "a setting of a cgroup controller, or a sysctl of vm/ or the scheduler"
            raise InvalidObject("kernel file", wanted=wanted, found=found)
        for text, what in ((unit, "unit"), (needs or "-", "needs")):
            fits = isinstance(text, str) and text.isprintable()
            if not fits or not 1 <= len(text) <= LONGEST_UNIT:
                wanted = f"a {what} of 1 to {LONGEST_UNIT} printable characters"
                raise InvalidObject(f"kernel file {file}", wanted=wanted, found=text)
        if type(form) not in (WholeNumber, NumberOrMax, OneWord):
            wanted = "a WholeNumber, NumberOrMax or OneWord as form"
            raise InvalidObject(f"kernel file {file}", wanted=wanted, found=form)
        super().__init__(file, unit, _files(file, form), needs)
        object.__setattr__(self, "form", form)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelFile) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"KernelFile({self.name})"

    @property
    def definition(self) -> str:
        """All that is needed to restore a value of the file without the plugin, as text."""
        facts = {"unit": self.unit, "form": self.form.kind, **self.form.facts()}
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def from_definition(cls, file: str, text: str) -> "KernelFile[Any]":
        """Return the row that has this definition, checked as a declaration is.

        Raises:
            InvalidObject: there is none, or a plugin could not have declared it.
        """
        try:
            facts = json.loads(text) if len(text) <= LONGEST_DEFINITION else None
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict) or not {"unit", "form"} <= facts.keys():
            wanted = "its definition as a JSON object with unit and form"
            raise InvalidObject("kernel file", wanted=wanted, found=text)
        unit, kind = facts.pop("unit"), facts.pop("form")
        return cls(file, unit, form_of(kind, facts))


def definition_of(resource: Resource[Any]) -> str:
    """Return the definition of a row that a plugin declared; "" for one of the table."""
    return resource.definition if isinstance(resource, KernelFile) else ""


def _files(name: str, form: AnyForm) -> dict[int, File[Any]]:
    is_sysctl = name.startswith(declarable.SYSCTL)
    return {
        version: File(
            name.removeprefix("/proc/"),
            form.parse,
            root=Root.PROC if is_sysctl else Root.CGROUP,
            controller=controller,
            support=Support.PER_GROUP,
            text=form.text(),
            validate=form.may_write,
            shows=form.may_show,
        )
        for version, controller in declarable.versions_of(name).items()
    }
