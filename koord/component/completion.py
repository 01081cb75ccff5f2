"""The completions of the installed programs, which are written from their parsers beforehand."""

from importlib.resources import files

PROGRAMS = ("koordletctl", "koordlet", "koord-descheduler", "koord-scheduler")
SHELLS = ("bash", "zsh", "fish")


def completion(program: str, shell: str) -> str:
    """Return the script with which a shell completes the program's command lines."""
    return files("koord.component").joinpath("completions", f"{program}.{shell}").read_text()
