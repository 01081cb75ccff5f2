"""Sets objects of the kernel that are no files, by kind: the media beside files.

Claims, plans, journal, dry-run, explain, conflicts, sweep and restore know values as texts only, so
they work for all of them. To add a kind:

1. `koordlet.host.resource.Root`: a member, also in `_OBJECTS`.
2. `koordlet.host.objects`: a module whose `reader(paths)` returns an `ObjectReader`: what is there
   now, as bytes; ABSENT for nothing.
3. `koordlet.host.resources`: a row for each value, whose `File` has that root, a parser, a `Text`
   (`or_absent(...)`, so that what was made can be deleted) and `validate`, which judges what
   plugins claim and, unless there is `shows`, what a journal may have restored.
4. Here: a module whose `medium(host)` returns a `Medium`: how a text is brought about.
5. `koordlet.executor.claims.target`: the `Level` of its targets where no existing one fits, with a
   rule for sound places, and `Target`'s constructor for it.

A journal may be hostile: a place is checked by its level's rule, an original by `File.may_restore`.
What passes both is all that a medium is ever asked to set in a restore.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from koordlet.executor.claims.claim import Key
from koordlet.host.host import Host
from koordlet.host.resource import Root


class Medium(Protocol):
    """Sets the objects of one kind. For one thread, that of the writer."""

    def identity(self, key: Key) -> int:
        """Return what tells apart two things of one name that hold the value, one after the other.

        The number of an inode or a network interface, say; 0 where the target tells them apart, or
        nothing does. It must not change when the value becomes absent, or is made.

        Raises:
            OSError: ENOENT, ENODEV or ESRCH mean that the target has ended.
        """

    def write(self, key: Key, identity: int, content: str) -> None:
        """Bring about a content: what the row's Text makes of the text; ABSENT: delete the object.

        Either all of it is in force on return, or what was there before. It is read back after.

        Raises:
            OSError: the kernel refuses; ENOENT, ENODEV or ESRCH: the target has ended, or what is
                there has another identity.
            KernelFileError: the same, with words of its own.
        """


MakeMedium = Callable[[Host], Medium]

_MODULES: Mapping[Root, str] = {
    Root.RESCTRL_GROUP: "koordlet.executor.kernel.resctrlgroups",
    Root.RESCTRL_TASKS: "koordlet.executor.kernel.resctrltasks",
    Root.COOKIE: "koordlet.executor.kernel.cookies",
    Root.TRAFFIC: "koordlet.executor.kernel.trafficclasses",
    Root.TERWAY: "koordlet.executor.kernel.terwayfiles",
}


def make_medium(root: Root, host: Host) -> Medium:
    """Return what sets the objects of a kind; its module is imported now, and not before."""
    make: MakeMedium = import_module(_MODULES[root]).medium
    return make(host)
