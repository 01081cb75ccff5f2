"""The drawings of the pages can be read and ask no other server."""

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from reference.diagrams import DRAWINGS, Arrow, Box, Drawing, fits, svg

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_readable(name: str) -> None:
    """Text is inside its box, no two boxes overlap, all arrows are drawn."""
    drawing = DRAWINGS[name]
    for box in drawing.boxes.values():
        assert fits(box), box.text
    for one, other in combinations(drawing.boxes.values(), 2):
        beside = one.x + one.width <= other.x or other.x + other.width <= one.x
        above = one.y + one.height <= other.y or other.y + other.height <= one.y
        assert beside or above, (one.text, other.text)

    root = ElementTree.fromstring(svg(drawing))

    assert len(root.findall(f"{SVG}line")) == len(drawing.arrows)
    assert root.findtext(f"{SVG}title") == drawing.about


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_asks_no_other_server(name: str) -> None:
    """No script, link, font or image; the name of the format is the only address."""
    text = svg(DRAWINGS[name])
    assert re.findall(r"https?:[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(script|image|use|a|foreignObject)\b|href|url\(|@import", text)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_on_a_page(name: str) -> None:
    """With a text for those who cannot see it."""
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert re.search(rf"!\[[^\]]{{20,}}\]\((?:\.\./)?images/{name}\.svg\)", pages)


def test_markup_in_a_text_stays_text() -> None:
    """And an arrow that would not be straight is an error."""
    boxes = {"a": Box(0, 0, 90, 30, "<b>&"), "b": Box(200, 200, 90, 30, "b")}
    assert "&lt;b&gt;&amp;" in svg(Drawing("<i>", boxes, []))
    with pytest.raises(ValueError, match="no straight arrow"):
        svg(Drawing("", boxes, [Arrow("a", "b")]))
