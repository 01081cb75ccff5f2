"""Measure a scheduler or a descheduler on the bed; one line of JSON a run.

scheduler [options] -- COMMAND...    pods/s, CPU per pod, peak RSS, requests per pod
descheduler [options] -- COMMAND...  time and CPU of a LowNodeLoad round in dry run, peak RSS

In COMMAND, {kubeconfig}, {config} (the config file written for it) and {dir} are filled in.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from typing import Any

from benchmarks.bed.configs import (
    TEMPLATES,
    descheduler_config,
    pending_pod,
    scheduler_config,
)
from benchmarks.bed.machine import cpu_seconds, load, machine_cpu_seconds, peak_mib, speed_ms, tree
from benchmarks.bed.rounds import follow
from benchmarks.bed.running import Bed

Json = dict[str, Any]

_TRAILING = 3  # seconds in which events come after the pods that they are about
_STUCK = 90  # seconds without a pod more


def main() -> int:
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    args = _parser().parse_args(argv[:cut])
    args.command = argv[cut + 1 :]
    if args.pods_per_node is None:
        args.pods_per_node = 10 if args.what == "scheduler" else 30
    binary = {"port": args.port, "cores": args.bed_procs, "binary": args.bed, "keep": args.keep}
    with Bed(**binary) as bed:
        found = scheduler(bed, args) if args.what == "scheduler" else descheduler(bed, args)
    line = json.dumps({"run": args.name, "nodes": args.nodes, **found})
    print(line)
    if args.out:
        with open(args.out, "a") as file:
            file.write(line + "\n")
    return 0


def scheduler(bed: Bed, args: argparse.Namespace) -> Json:
    """Create pods, and see how fast they are bound."""
    seeded = bed.seed(args.nodes, args.pods_per_node, args.refresh)
    bed.run(args.command, scheduler_config(args.profile, str(bed.kubeconfig), args.percent))
    ready = bed.logged(args.ready) if args.ready else bed.idle(["pods", "nodes"])
    started = cpu_seconds(tree(bed.program.pid))
    bed.call("/bed/reset", {})
    name = args.scheduler_name or ("koord" if args.profile == "koord" else "default") + "-scheduler"
    body = {
        "count": args.pods,
        "perApp": 50,
        "zones": 3,
        "perSecond": args.rate,
        "object": pending_pod(args.template, name),
    }
    load_before, speed_before = load(), speed_ms()
    begun, machine = time.time(), machine_cpu_seconds()
    used, bed_used = cpu_seconds(tree(bed.program.pid)), bed.stats()["cpu_s"]
    maker = threading.Thread(target=lambda: bed.call("/bed/pods", body, timeout=900))
    maker.start()
    bound = _until_bound(bed, args.pods, args.limit)
    wall = time.time() - begun
    used_then, bed_then = cpu_seconds(tree(bed.program.pid)) - used, bed.stats()["cpu_s"] - bed_used
    machine = machine_cpu_seconds() - machine
    time.sleep(_TRAILING)
    used = cpu_seconds(tree(bed.program.pid)) - used
    stats = bed.stats()
    maker.join(5)
    count = bound["count"]
    found: Json = {
        "running": seeded["pods"],
        "template": args.template,
        "profile": args.profile,
        "percent": args.percent,
        "pods": args.pods,
        "bound": count,
        "load": load_before,
        "speed_ms": [speed_before, speed_ms()],
        "ready_s": ready,
        "ready_cpu_s": round(started, 1),
    }
    if count <= 20:
        return found
    return {
        **found,
        **_pace(bound),
        "cpu_ms_pod": round(1000 * used / count, 2),
        "prog_cores": round(used_then / wall, 2),
        "bed_cores": round(bed_then / wall, 2),
        "other_cores": round((machine - used_then - bed_then) / wall, 2),
        "rss_mib": peak_mib(tree(bed.program.pid)),
        "bed_rss_mib": peak_mib([bed.bed.pid]),
        **_requests(stats, count),
    }


def descheduler(bed: Bed, args: argparse.Namespace) -> Json:
    """Follow the rounds in the log."""
    seeded = bed.seed(args.nodes, args.pods_per_node, args.refresh)
    config = descheduler_config(
        str(bed.kubeconfig), args.interval, dry_run=not args.evict, node_fit=not args.no_node_fit
    )
    bed.run(args.command, config)
    load_before, speed_before, machine = load(), speed_ms(), machine_cpu_seconds()
    rounds = follow(bed, args.rounds, begin=args.begin, patterns=[args.pattern], limit=args.limit)
    wall, pids = time.time() - bed.started, tree(bed.program.pid)
    machine = machine_cpu_seconds() - machine
    used, stats = cpu_seconds(pids), bed.stats()
    evictions = stats["requests"].get("create pods/eviction", {})
    return {
        "pods": seeded["pods"],
        "load": load_before,
        "speed_ms": [speed_before, speed_ms()],
        "rounds": len(rounds),
        "round_wall_s": statistics.median([one.wall_seconds for one in rounds] or [0.0]),
        "round_cpu_s": statistics.median([one.cpu_seconds for one in rounds] or [0.0]),
        "walls": [round(one.wall_seconds, 2) for one in rounds],
        "cpus": [round(one.cpu_seconds, 2) for one in rounds],
        "lines": [len(one.lines) for one in rounds],
        "rss_mib": peak_mib(pids),
        "total_cpu_s": round(used, 1),
        "bed_cpu_s": round(stats["cpu_s"], 1),
        "other_cores": round((machine - used - stats["cpu_s"]) / wall, 2),
        "evict_requests": evictions.get("count", 0),
        "requests": {
            name: entry["count"]
            for name, entry in sorted(stats["requests"].items())
            if not name.startswith("get disc")
        },
    }


def _until_bound(bed: Bed, pods: int, limit: float) -> Json:
    """Wait for the pods, and return what the bed says of them."""
    end, moved, found = time.time() + limit, time.time(), {"count": 0}
    while time.time() < end and found["count"] < pods and time.time() - moved < _STUCK:
        time.sleep(0.5)
        if bed.program.poll() is not None:
            break
        now = bed.call("/bed/bound")
        if now["count"] > found["count"]:
            moved = time.time()
        found = now
    return found


def _pace(bound: Json) -> Json:
    count, at, wait = bound["count"], bound["at"], bound["wait_s"]

    def rate(share: float, first: int, last: int) -> float:
        return round(float(share * count / max(1e-9, at[last] - at[first])), 1)

    return {
        "pods_s": rate(0.95, 5, 100),
        "first_tenth_s": rate(0.1, 0, 10),
        "last_tenth_s": rate(0.1, 90, 100),
        "wait_p50_s": round(wait[50], 2),
        "wait_p99_s": round(wait[99], 2),
        "nodes_used": bound["nodes_used"],
        "most_on_one_node": bound["most_on_one_node"],
    }


def _requests(stats: Json, pods: int) -> Json:
    requests = sorted(stats["requests"].items())
    return {
        "requests_pod": {
            name: round(entry["count"] / pods, 2)
            for name, entry in requests
            if entry["count"] > pods / 50
        },
        "mean_us": {
            name: entry["mean_us"] for name, entry in requests if entry["count"] > pods / 2
        },
        "events_pod": round(stats["events_sent"] / pods, 2),
        "errors": sum(entry["errors"] for _, entry in requests),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bed.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", choices=["scheduler", "descheduler"])
    add("--name", default="", help="of the run, for the output line")
    add("--nodes", type=int, default=1000)
    add("--pods-per-node", type=int, help="running ones (scheduler 10, descheduler 30)")
    add("--pods", type=int, default=5000, help="pending ones")
    add("--template", choices=TEMPLATES, default="basic")
    add("--profile", choices=["koord", "kube"], default="koord")
    add("--scheduler-name")
    add("--percent", type=int, default=0, help="percentageOfNodesToScore; 0: the default")
    add("--rate", type=float, default=0, help="pods created a second; 0: all at once")
    add("--refresh", type=float, default=60, help="seconds between NodeMetrics; 0: never again")
    add("--ready", default="", help="what a scheduler logs when it is ready; else: it is idle")
    add("--limit", type=float, default=300, help="seconds a run may take")
    add("--interval", type=int, default=10, help="descheduling interval")
    add("--rounds", type=int, default=3)
    add("--evict", action="store_true", help="no dry run")
    add("--no-node-fit", action="store_true", help="LowNodeLoad's nodeFit off")
    add("--begin", default="cycle.started", help="what a round logs first")
    add("--pattern", default="cycle.ended", help="what its lines of interest have")
    add("--bed", default="", help="the bed's binary; else it is built")
    add("--bed-procs", type=int, default=1, help="GOMAXPROCS of the bed")
    add("--port", type=int, default=29000)
    add("--keep", action="store_true", help="keep the directory with the logs")
    add("--out", help="append the line to this file too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
