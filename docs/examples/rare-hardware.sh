#!/bin/sh
# What koordlet has for hardware and kernels that few have, without Kubernetes and without changing
# anything: what of them this host has; how a pod is counted by performance counters; and in dry-run
# the control groups of resctrl (cache and memory bandwidth) for the pods of two classes. What the
# host lacks is shown by what comes nearest, and named as such: software events instead of cycles and
# instructions, made files instead of resctrl, a made description of a GPU. Needs root, cgroup v1 or
# v2, and .venv (make run sets it up). All of it happens in a cgroup tree of its own. ^C removes it.
#
# environment: see own-tree.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=rare-hardware controllers="cpu memory perf_event"
. "$here/own-tree.sh"

rare='(resctrl|cpu: (cache|hardware|core)|process: core|node: idle page|cgroup: cold|device):? '

say "What this host has of it, and what would provide it:"
ctl doctor >"$run/doctor" 2>/dev/null || true # what it lacks is no failure here
grep -E "^[A-Z][a-z]|^  $rare" "$run/doctor" | cut -c -160

say "A best-effort pod that is busy, and what the kernel counts of it in a second:"
start_pod besteffort
pod_group=kubepods/besteffort/pod11111111-2222-3333-4444-555555555555/busy
counted=$CGROUP_ROOT/$pod_group
[ ! -d "$CGROUP_ROOT/perf_event" ] || counted=$CGROUP_ROOT/perf_event/$pod_group
until [ "$(cat "$counted/cgroup.procs" 2>/dev/null)" ]; do
  kill -0 "$pod" 2>/dev/null || fail "the best-effort pod ended"
  sleep 0.1
done
"$bin/python" - "$counted" <<'END'
import os, sys, time
from pathlib import Path
from koord.util.errors import KoordError
from koordlet.host.perf import CYCLES, INSTRUCTIONS, GroupCounters, PerfEvent

def count(what, *events):
    counters = GroupCounters(Path(sys.argv[1]), cpus, events, grouped=True)
    time.sleep(1)
    print(what.format(*counters.read()))
    counters.close()

cpus = sorted(os.sched_getaffinity(0))
try:
    count("{0:.0f} cycles, {1:.0f} instructions", CYCLES, INSTRUCTIONS)
except KoordError as err:
    print(f"cycles and instructions: {err}")
    print("so the same counters with events that every kernel has:")
    count("{0:.0f} ns of CPU time, {1:.0f} context switches", PerfEvent(1, 1), PerfEvent(1, 3))
END

system=/sys/fs
if [ ! -d $system/resctrl/info ]; then
  system=$run/made
  mkdir -p "$system/resctrl/info/L3"
  echo 7ff >"$system/resctrl/info/L3/cbm_mask"
  echo 1 >"$system/resctrl/info/L3/min_cbm_bits"
  echo 16 >"$system/resctrl/info/L3/num_closids"
  full=100 # percent of the bandwidth, and on AMD 256 GB/s in eighths
  ! grep -q AuthenticAMD /proc/cpuinfo || full=2048
  printf '    MB:0=%s\n    L3:0=7ff\n' "$full" >"$system/resctrl/schemata"
  say "This host has no resctrl. Made instead, as files of a CPU with 11 ways of cache:"
  (cd "$system" && grep -r . resctrl)
fi
say "A GPU of another vendor, as its agent would describe it in a file. It is made, too:"
mkdir "$run/xpu-device-infos"
tee "$run/xpu-device-infos/made.json" <<'END'
[{"vendor": "example", "model": "E1", "uuid": "E-0", "minor": 0,
  "resources": {"gpu-core": "100", "gpu-memory": "16Gi"}, "status": {"healthy": true}}]
END

cat >"$run/nodeslo.yaml" <<'END'
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
spec:
  resourceQOSStrategy:
    lsClass:
      resctrlQOS: {enable: true, catRangeStartPercent: 0, catRangeEndPercent: 100, mbaPercent: 100}
    beClass:
      resctrlQOS: {enable: true, catRangeStartPercent: 0, catRangeEndPercent: 30, mbaPercent: 30}
END
say "koordlet in dry-run, with the gates of all this:"
start_koordlet --dry-run=true --sys-fs-root-dir="$system" --feature-gates=Resctrl=true,\
CoreSched=true,ColdPageCollector=true,CPICollector=true,Accelerators=true,RDMADevices=true
address=$(sed -n 's/^address  *//p' "$run/status")
looks=0
until ctl explain BE >"$run/explained" && grep -q '^resctrl_mb ' "$run/explained"; do
  kill -0 "$daemon" 2>/dev/null || fail "koordlet ended"
  looks=$((looks + 1))
  [ "$looks" -lt 60 ] || fail "nothing was decided about the group BE after 30 s"
  sleep 0.5
done

while :; do
  say "Pods of the class BE would have 30 % of the cache, rounded up to whole ways, and of its bandwidth:"
  ctl explain BE
  say "Devices in /metrics:"
  "$bin/python" -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())' \
    "http://$address/metrics" | grep -E '^koordlet_(xpu|rdma)' || echo "none yet"
  for _ in 1 2 3 4 5; do sleep "$pause"; done
  echo "(^C ends it)"
done
