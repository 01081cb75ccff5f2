"""The table of koordletctl top: order, figures, and whether it fits."""

import json
from datetime import UTC, datetime

import pytest
from rich.console import ConsoleDimensions

from koord.component.terminal import console, plain
from koord.util.clock import stamp
from koord.util.errors import KoordError
from koordlet.cli.ctl.arguments import SORTS
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.top import (
    ORDERS,
    LiveView,
    PodDetails,
    headline,
    pod_view,
    rows,
    sort_pods,
    sparkline,
    watch,
)
from koordlet.metriccache.kinds import (
    CONTAINER_CPU_USAGE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_PSI,
    POD_CPU_THROTTLED,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    POD_NETWORK_RECEIVE,
    POD_NETWORK_TRANSMIT,
    POD_PSI,
    QOS_CPU_USAGE,
    Sample,
)

FIGURES = {
    "cpu_cores": None,
    "memory_bytes": None,
    "cpu_pressure": None,
    "memory_pressure": None,
    "io_pressure": None,
    "throttled_ratio": None,
    "receive_bytes_per_second": None,
    "transmit_bytes_per_second": None,
}
FULL = {
    "cpu_cores": 123.456,
    "memory_bytes": 999 * 2**30,
    "cpu_pressure": 99.9,
    "memory_pressure": 10.0,
    "io_pressure": 40.0,
    "throttled_ratio": 1.0,
    "receive_bytes_per_second": 1.24e9,
    "transmit_bytes_per_second": 999e6,
}


def pod(name, **figures):
    return {"name": name, "uid": name, "qos": "LSR", "cpu_limit_cores": None, **FIGURES, **figures}


def answer(*pods, **node):
    return {
        "measured": "2026-01-02T03:04:05Z",
        "capacity": {"cpu_cores": 4.0, "memory_bytes": 8 * 2**30},
        "node": {"name": "worker", **FIGURES, **node},
        "qos": [{"name": "besteffort", "cpu_limit_cores": None, **FIGURES}],
        "pods": list(pods),
    }


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("cpu", ["busy", "stalled", "idle", "unknown/x"]),
        ("memory", ["idle", "busy", "stalled", "unknown/x"]),
        ("pressure", ["stalled", "busy", "idle", "unknown/x"]),
        ("throttling", ["busy", "stalled", "idle", "unknown/x"]),
        ("network", ["idle", "busy", "stalled", "unknown/x"]),
    ],
)
def test_orders(order, names):
    """Largest first; the worst of three pressures counts, in and out are added; unknown is last."""
    pods = [
        pod("unknown/x"),
        pod("idle", cpu_cores=0.0, memory_bytes=9, transmit_bytes_per_second=30.0),
        pod("stalled", cpu_cores=0.5, io_pressure=80.0, memory_bytes=1, throttled_ratio=0.1),
        pod(
            "busy",
            cpu_cores=2.0,
            memory_bytes=5,
            cpu_pressure=50.0,
            memory_pressure=50.0,
            throttled_ratio=0.9,
            receive_bytes_per_second=20.0,
            transmit_bytes_per_second=9.0,
        ),
    ]

    assert [row["name"] for row in sort_pods(pods, order)] == names


def test_each_order_has_a_key_of_its_own():
    """The first letter; and the command line offers the same orders."""
    assert tuple(ORDERS) == SORTS
    assert sorted(order[0] for order in ORDERS) == sorted("cmptn")


def test_equal_pods_keep_their_places():
    """Rows that jump cannot be read."""
    pods = [pod("b", cpu_cores=0.0), pod("a", cpu_cores=0.0)]

    assert [row["name"] for row in sort_pods(pods, "cpu")] == ["a", "b"]


@pytest.mark.parametrize(("limit", "qos"), [(None, "LSR"), (0.71, "LSR ≤0.71")])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits(width, limit, qos):
    """Names give way, figures never; on a wide terminal nothing is cut."""
    name = "a-namespace-of-some-length/web-frontend-7d9c5b8f6-abcde"
    held = pod(name, **FULL) | {"cpu_limit_cores": limit}
    screen = console(width=width, height=20, color_system=None)

    with screen.capture() as captured:
        screen.print(rows(answer(held, **FULL), [held], "cpu", width=width))

    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines[-1].split()[1:]) == f"{qos} 123 999Gi 100 10 40 100 1.2G 999M"
    assert lines[-1].split()[0].endswith("abcde")
    assert (name in lines[-1]) == (width > 120)


def test_the_headline_compares_with_capacity():
    """As far as either is known."""
    known = headline(answer(cpu_cores=1.0, memory_bytes=2**30)).plain
    unknown = headline({**answer(cpu_cores=1.0), "measured": None, "capacity": FIGURES}).plain

    assert "cpu 1.00 of 4 (25%)   memory 1.0Gi of 8.0Gi (12%)   0 pods" in known
    assert unknown == "worker   nothing measured yet   cpu 1.00   memory -   0 pods"


def test_a_pod_known_by_its_cgroup_alone_goes_by_its_uid():
    """Its namespace is a placeholder."""
    text = plain([rows(answer(), [pod("unknown/4711")], "cpu")])

    assert text.splitlines()[-1].startswith("4711 ")


def test_top_once(ctl, daemon):
    """All pods, in the order asked for, in the table as in JSON."""
    psi = ("cpu", "10", "some")
    daemon.cache.append(
        stamp(daemon.clock),
        [
            Sample(NODE_CPU_USAGE, 1.0),
            Sample(NODE_MEMORY_USAGE, 2**30),
            Sample(NODE_PSI, 12.5, psi),
            Sample(QOS_CPU_USAGE, 0.25, ("burstable",)),
            Sample(POD_CPU_USAGE, 0.25, ("uid-web",)),
            Sample(POD_CPU_USAGE, 0.125, ("uid-batch",)),
            Sample(POD_MEMORY_USAGE, 2**20, ("uid-web",)),
            Sample(POD_MEMORY_USAGE, 2**21, ("uid-batch",)),
            Sample(POD_PSI, 0.5, ("uid-web", *psi)),
            Sample(POD_CPU_THROTTLED, 0.5, ("uid-batch",)),
            Sample(POD_NETWORK_RECEIVE, 1500.0, ("uid-web",)),
            Sample(POD_NETWORK_TRANSMIT, 2.0, ("uid-web",)),
        ],
    )

    code, out, _ = ctl("top", "--once")
    by_memory = json.loads(ctl("top", "--sort=memory", "--output=json")[1])

    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()[4:] if line] == [
        "worker 1.00 1.0Gi 12 - - - - -",
        "burstable 0.25 - - - - - 1.5k 2",
        "default/web LS 0.25 1.0Mi 0.5 - - - 1.5k 2",
        "default/batch BE 0.12 2.0Mi - - - 50 - -",
    ]
    assert [row["name"] for row in by_memory["pods"]] == ["default/batch", "default/web"]


def test_the_live_view_does_not_begin_without_a_daemon(tmp_path):
    """An error in one line is better than a screen that says it."""
    with pytest.raises(KoordError, match=r"no ctl\.sock"):
        watch(CtlClient([tmp_path]), order="cpu", interval=1.0)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (80, 5), (20, 3)])
def test_a_picture_is_as_high_as_the_terminal(daemon, size):
    """Pods that find no place are counted; the keys stay in the last line."""
    width, height = size
    view = LiveView(CtlClient([daemon.run_dir]), "cpu")
    screen = console(width=width, height=height, color_system=None)
    pods = [pod(f"default/pod-{number}", cpu_cores=1.0) for number in range(100)]
    view._response["pods"] = pods

    with screen.capture() as captured:
        screen.print(view.frame(ConsoleDimensions(width, height)))

    lines = captured.get().splitlines()
    shown = sum("/pod-" in line for line in lines)
    if height > 10:
        assert len(lines) == height
        assert lines[-1].endswith(f"{shown} of 100")
        assert shown == height - 9
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ((), ""),
        ((None, None), "  "),
        ((0.0, 0.0), "▁▁"),
        ((1.0, None, 8.0, 4.5), "▂ █▅"),
        ((0.01,) * 3, "███"),
    ],
)
def test_a_sparkline_has_gaps_where_nothing_was_measured(values, bars):
    """Its scale is its own: how a small pod changes is seen, too."""
    assert sparkline(values).plain == bars


def test_a_wide_terminal_has_the_last_minute(daemon):
    """As means of five seconds each; a daemon of before does not say it."""
    for second in range(60):
        cores = 1.0 if second < 29 else 2.0
        daemon.cache.append(
            stamp(daemon.clock),
            [Sample(NODE_CPU_USAGE, 1.0), Sample(POD_CPU_USAGE, cores, ("uid-web",))],
        )
        daemon.clock.tick(1)
    found = CtlClient([daemon.run_dir]).get("top")
    before = [{key: value for key, value in row.items() if key != "cpu_history"}
              for row in found["pods"]]  # fmt: skip

    wide = plain([rows(found, found["pods"], "cpu", width=120)])

    web = next(line for line in wide.splitlines() if line.startswith("default/web"))
    assert web.split()[-1] == "▅▅▅▅▅▅██████"
    assert "▅" not in plain([rows(found, found["pods"], "cpu", width=80)])
    assert "▅" not in plain([rows(found, before, "cpu", width=120)])


def test_a_pod_is_chosen_opened_and_left(daemon):
    """Up and down stay within the picture; the mark follows the pod, not the row."""
    daemon.cache.append(
        stamp(daemon.clock),
        [
            Sample(POD_CPU_USAGE, 0.25, ("uid-web",)),
            Sample(POD_CPU_USAGE, 0.125, ("uid-batch",)),
            Sample(CONTAINER_CPU_USAGE, 0.25, ("containerd://web",)),
        ],
    )
    view = LiveView(CtlClient([daemon.run_dir]), "cpu")

    def shown():
        return plain([view.frame(ConsoleDimensions(100, 40))])

    shown()
    for key in ("up", "down", "down", "up", "up", "enter"):
        view.press(key)
        picture = shown()
    opened = picture
    view.press("back")
    closed = shown()

    assert "default/web" in opened
    assert "default/batch" not in opened
    assert "Containers" in opened
    assert "app" in opened
    assert "dry-run" in opened
    assert "default/batch" in closed


def test_a_pod_that_has_ended_is_not_shown_any_more(daemon):
    """The view goes back to all pods."""
    view = LiveView(CtlClient([daemon.run_dir]), "cpu")
    view.frame(ConsoleDimensions(100, 40))
    view.press("down")
    view.press("enter")
    daemon.states.set_pods([pod for pod in daemon.states.pods() if pod.uid != "uid-batch"])
    view.look()

    picture = plain([view.frame(ConsoleDimensions(100, 40))])

    assert "default/web" in picture
    assert "Containers" not in picture


def test_a_name_with_markup_is_only_text(daemon):
    """In the detailed view, too."""
    row = pod("shop/[bold]\x1b[2J", cpu_cores=1.0)
    nothing = {"values": [], "decisions": [], "dryRun": False, "observeOnly": "",
               "evictionBudget": {"used": 0, "perHour": 20}}  # fmt: skip
    details = PodDetails(row, {"x": {"name": "[red]c", "cpu": 1.0}}, nothing, datetime.now(UTC))

    text = plain(pod_view(answer(row), details, ConsoleDimensions(100, 40)))

    assert "shop/[bold]\\x1b[2J" in text
    assert "[red]c" in text


def test_no_color_is_heeded(daemon, monkeypatch):
    """https://no-color.org: on a terminal that could have colours."""
    found = answer(pod("a", cpu_pressure=99.0))

    def printed(**environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        screen = console(width=100, force_terminal=True, color_system="standard")
        with screen.capture() as captured:
            screen.print(rows(found, found["pods"], "cpu"))
        return captured.get()

    assert "\x1b[1;31m" in printed()
    assert "\x1b[1;31m" not in printed(NO_COLOR="1")
