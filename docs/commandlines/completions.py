"""Shell completions of the installed programs, made from their parsers when they are installed."""

import argparse
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import shtab

from commandlines.parsers import parser_of, subcommands
from koord.component.completion import PROGRAMS, SHELLS

_PLACES = {  # below --share, where each shell looks
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
_MODE = 0o644


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the completions; a program that cannot run here has none."""
    options = _parser().parse_args(arguments)
    for program in PROGRAMS:
        try:
            scripts = completions_of(program)
        except ModuleNotFoundError as err:
            print(f"{program}: no completions, as there is no module {err.name}", file=sys.stderr)
            continue
        for shell, text in scripts.items():
            _write(options.directory / f"{program}.{shell}", text)
            if options.share is not None:
                _write(options.share / _PLACES[shell].format(program), text)
    return 0


def completions_of(program: str) -> dict[str, str]:
    """Return the script of each shell; errors as those of parser_of."""
    scripts = {}
    for shell in SHELLS:
        parser = parser_of(program)  # shtab changes it
        _shorten(parser)
        text = shtab.complete(parser, shell=shell)
        scripts[shell] = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    return scripts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -P -m commandlines", description=__doc__)
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(str(files("koord.component"))) / "completions",
        help="where `koordletctl completion` reads them (%(default)s)",
    )
    parser.add_argument(
        "--share", type=Path, help="where shells look, too: /usr/local/share, for example"
    )
    return parser


def _shorten(parser: argparse.ArgumentParser) -> None:
    """A command is described by a line, not by the paragraphs of its own help."""
    for _, summary, command in subcommands(parser):
        command.description = summary
        _shorten(command)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(_MODE)
