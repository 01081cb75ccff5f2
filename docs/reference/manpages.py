"""docs/man: the manual pages of the installed programs."""

from collections.abc import Callable, Mapping
from functools import cache, partial

from argparse_manpage.manpage import Manpage
from commandlines.parsers import programs

import koordlet

_SECTIONS = {
    "koordletctl": 1,
    "kubectl-koordlet": 1,
    "koordlet": 8,
    "koord-descheduler": 8,
    "koord-manager": 8,
    "koord-scheduler": 8,
}
_USAGE = {
    "koordlet": "koordlet [--FLAG=VALUE]...",
    "koord-descheduler": "koord-descheduler [--FLAG=VALUE]... | COMMAND ...",
    "koord-manager": "koord-manager [--FLAG=VALUE]... | COMMAND ...",
    "koord-scheduler": "koord-scheduler [--FLAG=VALUE]... | COMMAND ...",
}
_SYNTAX = (
    "Flags have Go's syntax: --name=value, --name value or -name=value; a bool may stand alone, or "
    "have a value (--name=false). Durations are 300ms, 10s, 1h30m."
)
_EXIT = {
    "koordletctl": "0: done. 1: failed. 2: the command line or the question is wrong.",
    "kubectl-koordlet": "That of koordletctl. 1 also: there is no one pod to ask. 2 also: the "
    "command line is wrong.",
    "koordlet": "0: stopped by a signal. 1: the start failed. 2: a flag, gate or the config file "
    "cannot be used; the message names the nearest name.",
    "koord-descheduler": "0: stopped by a signal. 1: the lease was lost, or the start failed. 2: a "
    "flag or the file cannot be used.",
    "koord-manager": "0: stopped by a signal. 1: the lease was lost, or the start failed. 2: a "
    "flag or the file cannot be used.",
    "koord-scheduler": "0: stopped by a signal. 1: the lease was lost, or the start failed. 2: a "
    "flag or the file cannot be used.",
}


def manual_files() -> Mapping[str, Callable[[], str]]:
    """Each page by its path, and what makes its text."""
    return {
        f"docs/man/{name}.{section}": partial(_page, name, section)
        for name, section in _SECTIONS.items()
    }


def _page(name: str, section: int) -> str:
    parser = _programs()[name]
    parser.epilog = None
    about = (parser.description or "").partition("\n")[0].partition(". ")[0].rstrip(".")
    if name in _USAGE:
        parser.usage = _USAGE[name]
        parser.description = f"{about}. {_SYNTAX}"
    page = Manpage(parser)
    page.prog = name
    page.section, page.date, page.manual = section, "", "koordlet"
    page.source = f"koordlet {koordlet.__version__}"
    page.description = about[:1].lower() + about[1:]
    page.add_section("exit status", "=", _EXIT[name])
    others = (f".BR {other} ({number})" for other, number in _SECTIONS.items() if other != name)
    page.add_section("see also", "=", ",\n".join(others))
    return "\n".join(line.rstrip() for line in str(page).splitlines()) + "\n"


_programs = cache(programs)
