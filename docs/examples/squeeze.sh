#!/bin/sh
# Best-effort pods are squeezed and released, without Kubernetes: koordlet with a NodeSLO file, a
# best-effort pod that would take every CPU, and a latency-sensitive pod that comes and goes.
# Needs root, cgroup v1 or v2, and .venv (make run sets it up). All of it happens in a cgroup tree of
# its own, beside the pods that the host may have. ^C restores the quota and removes the tree.
#
# environment: see own-tree.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=squeeze controllers="cpu memory"
. "$here/own-tree.sh"

quota=$CGROUP_ROOT/cpu/kubepods/besteffort/cpu.cfs_quota_us
[ -d "$CGROUP_ROOT/cpu" ] || quota=$CGROUP_ROOT/kubepods/besteffort/cpu.max
show_quota() { echo "${quota#"$CGROUP_ROOT"/}: $(cat "$quota")"; }
show_end() { show_quota; }

cat >"$run/nodeslo.yaml" <<END
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
spec:
  resourceUsedThresholdWithBE:
    enable: true
    cpuSuppressPolicy: cfsQuota
    cpuSuppressThresholdPercent: 65
END

say "A best-effort pod with a busy process for each CPU. Nothing limits it:"
start_pod besteffort "$(nproc)"
until [ -e "$quota" ]; do
  kill -0 "$pod" 2>/dev/null || fail "the best-effort pod ended"
  sleep 0.1
done
show_quota

say "koordlet starts; all together may use 65 % of the node's CPU:"
start_koordlet
for _ in 1 2 3 4 5; do sleep "$pause"; done
ctl top --once
show_quota

while :; do
  say "A latency-sensitive pod wants a core. The best-effort pod gives way within half a second:"
  start_pod burstable 1
  for _ in 1 2 3 4; do
    sleep "$pause"
    show_quota
  done
  ctl top --once
  ctl explain kubepods/besteffort

  say "It is gone. The best-effort pod gets a tenth of the node's CPU more each second:"
  end_pod "$pod"
  for _ in 1 2 3 4 5 6; do
    sleep "$pause"
    show_quota
  done
  echo "(^C ends it)"
done
