"""koord/component/completions: what shells complete the installed programs by."""

import argparse
from collections.abc import Callable, Mapping
from functools import cache, partial

import shtab

from koord.component.completion import PROGRAMS, SHELLS
from reference.programs import programs, subcommands


def completion_files() -> Mapping[str, Callable[[], str]]:
    """Each file by its path, and what makes its text."""
    return {
        f"koord/component/completions/{program}.{shell}": partial(_text, program, shell)
        for program in PROGRAMS
        for shell in SHELLS
    }


def _text(program: str, shell: str) -> str:
    parser = _programs()[program]
    _shorten(parser)
    text = shtab.complete(parser, shell=shell)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _shorten(parser: argparse.ArgumentParser) -> None:
    """A command is described by a line, not by the paragraphs of its own help."""
    for _, summary, command in subcommands(parser):
        command.description = summary
        _shorten(command)


_programs = cache(programs)
