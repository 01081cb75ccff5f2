"""The index of the site names each page; the build of the site would fail without, but later."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_page_is_in_the_index() -> None:
    """Once, and each name of the index is a page."""
    text = (ROOT / "docs/index.md").read_text()
    lists = re.findall(r"^```{toctree}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    entries = [
        line for each in lists for line in each.splitlines() if line and not line.startswith(":")
    ]
    written = {
        str(page.relative_to(ROOT / "docs").with_suffix(""))
        for pattern in ("*.md", "decisions/*.md", "start/*.md", "api/*.rst")
        for page in (ROOT / "docs").glob(pattern)
    }

    assert sorted({"index", *entries} - written) == [
        "../CONTRIBUTING", "../README", "../benchmarks/bed/README",
    ]  # fmt: skip
    assert written - {"index"} <= set(entries), "name the page in docs/index.md"
    assert len(entries) == len(set(entries))
