"""The completions of the installed programs, which the installation makes from their parsers."""

from importlib.resources import files
from importlib.resources.abc import Traversable

from koord.util.errors import Unavailable

PROGRAMS = ("koordletctl", "koordlet", "koord-descheduler", "koord-manager", "koord-scheduler")
SHELLS = ("bash", "zsh", "fish")
DIRECTORY = files("koord.component") / "completions"


def completion(program: str, shell: str, directory: Traversable = DIRECTORY) -> str:
    """Return the script with which a shell completes the program's command lines.

    Raises:
        Unavailable: the installation made none.
    """
    try:
        return directory.joinpath(f"{program}.{shell}").read_text()
    except FileNotFoundError as err:
        raise Unavailable(
            f"no completions of {program} were made here; `make install-systemd` and the images "
            "make them for what they install: PYTHONPATH=docs python -P -m commandlines"
        ) from err
