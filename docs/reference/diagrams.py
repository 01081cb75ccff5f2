"""docs/images: the drawings of the pages, as SVG without scripts or references."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from xml.sax.saxutils import escape

_CHARACTER = 7.2  # pixels, at most, of the font
_LINE = 18  # pixels from one line of text to the next
_EDGE = 10  # pixels around the drawing
_STYLE = """
svg { background: #fff; font: 13px system-ui, sans-serif; }
.back { fill: #fff; } .box { fill: #eef3fa; stroke: #44618a; }
.outside { fill: #f4f4f4; stroke: #777; }
text { fill: #1b1b1b; text-anchor: middle; } .first { font-weight: 600; } .label { fill: #444; }
.halo { stroke: #fff; stroke-width: 5px; paint-order: stroke; }
line { stroke: #44618a; stroke-width: 1.5; } .tip { fill: #44618a; }
@media (prefers-color-scheme: dark) {
.back { fill: #16191d; } .box { fill: #1f2b3a; stroke: #8fb1dd; }
.outside { fill: #24272b; stroke: #999; }
text { fill: #eee; } .label { fill: #ccc; } .halo { stroke: #16191d; }
line { stroke: #8fb1dd; } .tip { fill: #8fb1dd; } }
"""


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text, in pixels; outside: no part of this project."""

    x: int
    y: int
    width: int
    height: int
    text: str
    outside: bool = False

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


@dataclass(frozen=True)
class Arrow:
    """Straight, from one box to another that is beside, above or below it."""

    start: str
    end: str
    label: str = ""


@dataclass(frozen=True)
class Drawing:
    """Boxes by name, and what goes between them; about is for those who cannot see it."""

    about: str
    boxes: Mapping[str, Box]
    arrows: Sequence[Arrow]

    @property
    def size(self) -> tuple[int, int]:
        right = max(box.x + box.width for box in self.boxes.values())
        bottom = max(box.y + box.height for box in self.boxes.values())
        return right + _EDGE, bottom + _EDGE


LOOP = Drawing(
    "koordlet reports NodeMetrics; koord-descheduler and koord-scheduler decide by them; a pod "
    "that is evicted is made anew and placed on another node.",
    {
        "node": Box(10, 10, 200, 60, "koordlet\non every node"),
        "api": Box(
            330, 10, 200, 230, "API server\nNodeMetrics, pods,\nmigration jobs", outside=True
        ),
        "descheduler": Box(
            650, 10, 250, 60, "koord-descheduler\nwhich pods should leave hot nodes"
        ),
        "scheduler": Box(650, 180, 250, 60, "koord-scheduler\nwhere a pod is best placed"),
        "workload": Box(10, 180, 200, 60, "controllers of workloads\nmake pods anew", outside=True),
    },
    [
        Arrow("node", "api", "NodeMetric"),
        Arrow("descheduler", "api", "evictions"),
        Arrow("scheduler", "api", "bindings"),
        Arrow("workload", "api", "new pods"),
    ],
)

AGENT = Drawing(
    "Data goes one way round: the kernel is read in one pass into the metric cache; plugins decide "
    "by the cache and by states; the executor alone writes to the kernel.",
    {
        "kernel": Box(10, 10, 320, 45, "kernel\ncgroupfs, /proc, PSI, rtnetlink", outside=True),
        "sources": Box(
            540, 10, 380, 45, "API server, kubelet, object files, cgroup tree", outside=True
        ),
        "pass": Box(
            10, 110, 320, 60, "sampling pass: collectors\nhost: tables, parsers, held descriptors"
        ),
        "states": Box(540, 110, 380, 60, "statesinformer\nNode, pods, NodeSLO, report spec"),
        "cache": Box(10, 230, 320, 60, "metriccache\nmemory-mapped rings of samples"),
        "plugins": Box(540, 230, 380, 60, "QoS plugins\nsupervised by qosmanager"),
        "server": Box(10, 350, 150, 60, "server, koordletctl\n/metrics, /healthz"),
        "reporter": Box(180, 350, 150, 60, "reporter\nwith prediction"),
        "executor": Box(540, 350, 380, 60, "executor\njournal, explain, metrics, audit"),
        "report": Box(180, 465, 150, 45, "NodeMetric", outside=True),
        "written": Box(540, 465, 180, 45, "kernel", outside=True),
        "evictions": Box(740, 465, 180, 45, "API server", outside=True),
    },
    [
        Arrow("kernel", "pass", "each file once per tick"),
        Arrow("sources", "states"),
        Arrow("states", "pass", "pods, NodeSLO"),
        Arrow("pass", "cache", "samples of one tick"),
        Arrow("cache", "plugins", "queries"),
        Arrow("states", "plugins", "callbacks"),
        Arrow("cache", "server"),
        Arrow("cache", "reporter"),
        Arrow("plugins", "executor", "claims: value, reason"),
        Arrow("executor", "written", "writes, restores"),
        Arrow("executor", "evictions", "evictions"),
        Arrow("reporter", "report"),
    ],
)

CONTROL_PLANE = Drawing(
    "The API server's lists and watches become a ClusterState of columns; plugins of profiles look "
    "at a view of it; their evictions pass the evictor proxy, filters, ledger and limits.",
    {
        "api": Box(10, 10, 130, 190, "API server", outside=True),
        "feed": Box(270, 10, 130, 60, "clusterfeed\ndecodes bytes"),
        "state": Box(450, 10, 130, 60, "ClusterState\ncolumns"),
        "view": Box(630, 10, 90, 60, "view\nimmutable"),
        "plugins": Box(770, 10, 150, 60, "plugins\nof profiles"),
        "evict": Box(270, 140, 130, 60, "evict plugin"),
        "filters": Box(450, 140, 270, 60, "filters, ledger, limits\nreports, pods"),
        "proxy": Box(770, 140, 150, 60, "evictor proxy"),
    },
    [
        Arrow("api", "feed", "lists, watches"),
        Arrow("feed", "state"),
        Arrow("state", "view"),
        Arrow("view", "plugins"),
        Arrow("state", "filters"),
        Arrow("plugins", "proxy", "decisions"),
        Arrow("proxy", "filters"),
        Arrow("filters", "evict"),
        Arrow("evict", "api", "evictions, jobs"),
    ],
)

DRAWINGS = {"loop": LOOP, "agent": AGENT, "control-plane": CONTROL_PLANE}


def diagram_files() -> Mapping[str, Callable[[], str]]:
    """Each file by its path, and what makes its text."""
    return {f"docs/images/{name}.svg": partial(svg, each) for name, each in DRAWINGS.items()}


def svg(drawing: Drawing) -> str:
    """Return the drawing as SVG, light or dark as the reader's system is."""
    width, height = drawing.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(drawing.about)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
    ]
    for box in drawing.boxes.values():
        parts += _box(box)
    for arrow in drawing.arrows:
        parts += _arrow(drawing.boxes[arrow.start], drawing.boxes[arrow.end], arrow.label)
    return "\n".join([*parts, "</svg>"]) + "\n"


def fits(box: Box) -> bool:
    """Whether the text of a box is inside it."""
    widest = max(len(line) for line in box.lines) * _CHARACTER
    return widest <= box.width and len(box.lines) * _LINE <= box.height


def _box(box: Box) -> list[str]:
    kind = "outside" if box.outside else "box"
    middle = box.x + box.width // 2
    top = box.y + (box.height - _LINE * len(box.lines)) // 2 + 13
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"'
    texts = [
        f'<text class="{"first" if number == 0 else "label"}" x="{middle}" '
        f'y="{top + number * _LINE}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    ]
    return [f'<rect class="{kind}" {place}/>', *texts]


def _arrow(start: Box, end: Box, label: str) -> list[str]:
    """From edge to edge, in the middle of what the two boxes have beside each other.

    Raises:
        ValueError: they have nothing beside each other.
    """
    low, high = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
    left, right = max(start.y, end.y), min(start.y + start.height, end.y + end.height)
    if low < high:
        x = (low + high) // 2
        down = start.y < end.y
        y1, y2 = (start.y + start.height, end.y) if down else (start.y, end.y + end.height)
        tip = y2 - 8 if down else y2 + 8
        line, points = (x, y1, x, tip), f"{x},{y2} {x - 5},{tip} {x + 5},{tip}"
    elif left < right:
        y = (left + right) // 2
        on = start.x < end.x
        x1, x2 = (start.x + start.width, end.x) if on else (start.x, end.x + end.width)
        tip = x2 - 8 if on else x2 + 8
        line, points = (x1, y, tip, y), f"{x2},{y} {tip},{y - 5} {tip},{y + 5}"
    else:
        raise ValueError(f"no straight arrow from {start.text!r} to {end.text!r}")
    parts = ['<line x1="{}" y1="{}" x2="{}" y2="{}"/>'.format(*line)]
    parts.append(f'<polygon class="tip" points="{points}"/>')
    if label:
        x, y = (line[0] + line[2]) // 2, (line[1] + line[3]) // 2
        y += 4 if low < high else -7
        parts.append(f'<text class="label halo" x="{x}" y="{y}">{escape(label)}</text>')
    return parts
