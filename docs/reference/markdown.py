"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence

HEADER = "<!-- Written by `make docs` from the code; do not edit. -->"


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return "\n\n".join([HEADER, f"# {title}", *(part.strip() for part in parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell does not end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def code(text: str) -> str:
    """Text as code; nothing for an empty one."""
    return f"`{text}`" if text else ""


def codes(texts: Iterable[str]) -> str:
    return ", ".join(map(code, texts))


def sentence(text: str) -> str:
    """The text with a capital first and a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
