"""The pages keep to the words of the project and to sentences that can be read once."""

import ast
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
    r"companions?|rivals?|census|crowds?|probation|wish(?:es)?": "the term of docs/glossary.md",
}
NAMES = {  # parts of the names of classes, functions, variables and attributes
    "beside": "nominated, unreserved, alongside",
    "together": "fused, joined, combination",
    "rivals": "nominated pods",
    "crowd": "pod overlay",
    "census": "classification, pod counts",
    "meant": "matching",
    "wish": "affinity term",
    "wishes": "affinity terms",
    "opposition": "existing anti-affinity",
    "minds": "depends on",
    "worth": "requeue decision",
    "happened": "on_cluster_event",
    "came": "incoming",
    "patience": "attempt timeouts",
    "leads": "is_leader",
    "asking": "query client",
    "refusal": "reject reason",
    "refusals": "reject reasons",
    "usual": "default",
    "duty": "manager role",
    "medium": "object writer",
    "probation": "commit-confirm",
    "situation": "inputs",
    "shortage": "insufficient resources",
    "shortages": "insufficient resources",
    "told": "recorded, exported, found",
    "somebody": "owner, caller, another agent",
    "house": "daemon",
    "companion": "daemon",
}
MOST = 45  # words of a sentence
MOST_IN_A_CELL = 40  # words; a longer text is a paragraph below the table

MODULES = sorted(
    path
    for package in [*ROOT.glob("koord*"), *(ROOT / "plugins").glob("koord*_plugins")]
    for path in package.rglob("*.py")
)

_HUMP = re.compile(r"([a-z0-9])([A-Z])")
_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:;])\s+")
_BAR = re.compile(r"(?<!\\)\|")


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


def long_cells(text: str) -> list[str]:
    """Return the table cells of a page that have more than MOST_IN_A_CELL words."""
    lines = _TARGET.sub("]", _BLOCK.sub("", text)).splitlines()
    cells = [cell for line in lines if line.startswith("|") for cell in _BAR.split(line)]
    return [cell for cell in cells if len(cell.split()) > MOST_IN_A_CELL]


@pytest.mark.parametrize("page", [*PAGES, *(name for name in FILES if name.endswith(".md"))])
def test_a_cell_of_a_table_is_short(page: str) -> None:
    """Generated pages too: a narrow column is read with difficulty."""
    assert not long_cells((ROOT / page).read_text())


def test_a_long_cell_is_found() -> None:
    """A bar in a cell does not end it, and the target of a link has no words."""
    words = " ".join(["w"] * (MOST_IN_A_CELL - 1))
    assert long_cells(f"| a | {words} \\| w |\n{words} w w") == [f" {words} \\| w "]
    assert not long_cells(f"| a | {words} [w](x y) |")


def test_a_word_of_another_tongue_and_a_long_sentence_are_found() -> None:
    """In prose, not in code."""
    assert sentences("a b.\n```\nc. d\n```\n| e. f |\ng h [i](j k). l") == [
        "a b.", "", "g h [i].", "l",
    ]  # fmt: skip
    assert re.search(rf"\b(?:{'|'.join(SAY)})\b", "it is put back")


def names(source: str) -> set[str]:
    """Return what a module names: classes, functions, arguments, variables and attributes."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def parts(name: str) -> list[str]:
    """Return the words of a name in snake case or camel case."""
    return _HUMP.sub(r"\1_\2", name).lower().split("_")


def test_names_are_standard_terms() -> None:
    """A reader who knows Kubernetes need not learn a dialect."""
    found = [
        f"{path.relative_to(ROOT)}: {name}: say {NAMES[word]}"
        for path in MODULES
        for name in sorted(names(path.read_text()))
        for word in parts(name)
        if word in NAMES
    ]
    assert found == []


def test_the_words_of_a_name_are_found() -> None:
    """Whatever it names."""
    source = "class TheCrowd:\n  x: int\n  def of(self, wish):\n    self._came = 1"
    assert names(source) == {"TheCrowd", "x", "of", "self", "wish", "_came"}
    assert parts("TheCrowd") == ["the", "crowd"]
    assert parts("_came") == ["", "came"]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    """A reader need not wait for the subject of a summary line."""
    late = re.compile(r'"""(?:What\b|Who\b|Whom\b|Have |Of |As [A-Z]\w+\.)[^\n]*')
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in MODULES
        for text in late.findall(path.read_text())
    ]
    assert found == []
