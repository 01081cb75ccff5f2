"""The completions of the installed programs, which are written from their parsers beforehand."""

from importlib.resources import files

PROGRAMS = ("koordletctl", "koordlet", "koord-descheduler", "koord-scheduler")
SHELLS = ("bash", "zsh", "fish")


def completion(program: str, shell: str) -> str:
    """What that shell reads to complete command lines of that program."""
    return files("koord.component").joinpath("completions", f"{program}.{shell}").read_text()
