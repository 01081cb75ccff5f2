"""The pages keep to the words of the project and to sentences that can be read once."""

import re
from pathlib import Path

import pytest
from generate import FILES

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if str(page.relative_to(ROOT)) not in FILES
)
SAY = {
    r"put(?:s|ting)? back": "restore",
    r"what was there before": "the restored value",
    r"tells|told": "record, export, notify, or say that it is so",
    r"pretend\w*": "dry-run",
    r"somebody(?: else)?": "owner, caller, another agent",
    r"who wants": "owner, caller, another agent",
}
MOST = 45  # words of a sentence

_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:;])\s+")


def sentences(text: str) -> list[str]:
    """The sentences of a page, without tables and fenced blocks; a clause after `:` or `;` counts
    as one."""
    prose = _TARGET.sub("]", _BLOCK.sub("", text))
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    return [each for line in lines for each in _END.split(line)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_to_the_words(page: str) -> None:
    """One thing has one word everywhere."""
    text = _BLOCK.sub("", (ROOT / page).read_text())
    for words, instead in SAY.items():
        found = re.search(rf"[^\n]*\b(?:{words})\b[^\n]*", text, re.IGNORECASE)
        assert not found, f"{page}: say {instead}: {found[0][:200] if found else ''}"


@pytest.mark.parametrize("page", PAGES)
def test_a_sentence_can_be_read_once(page: str) -> None:
    """No clause has more than MOST words."""
    for sentence in sentences((ROOT / page).read_text()):
        assert len(sentence.split()) <= MOST, f"{page}: {sentence}"


def test_a_word_of_another_tongue_and_a_long_sentence_are_found() -> None:
    """In prose, not in code."""
    assert sentences("a b.\n```\nc. d\n```\n| e. f |\ng h [i](j k). l") == [
        "a b.", "", "g h [i].", "l",
    ]  # fmt: skip
    assert re.search(rf"\b(?:{'|'.join(SAY)})\b", "it is put back")
