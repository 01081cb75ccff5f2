#!/bin/sh
# Best-effort pods are squeezed and released, without Kubernetes: koordlet with a NodeSLO file, a
# best-effort pod that would take every CPU, and a latency-sensitive pod that comes and goes.
# Needs root, cgroup v1 or v2, and .venv (make run sets it up). ^C puts everything back.
#
# environment: PAUSE, seconds between two looks (default 1)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../.venv/bin
pause=${PAUSE:-1}
run=$(mktemp -d /run/koordlet-squeeze.XXXXXX)
daemon= best_effort= sensitive=

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  quota=/sys/fs/cgroup/kubepods/besteffort/cpu.max
else
  quota=/sys/fs/cgroup/cpu/kubepods/besteffort/cpu.cfs_quota_us
fi

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show_quota() { echo "${quota#/sys/fs/cgroup/}: $(cat "$quota")"; }
ctl() { "$bin/koordletctl" --run-dir "$run" "$@"; }

end_pod() { # TERM, as a shell starts its background processes deaf to INT
  [ -z "$1" ] || { kill -TERM "$1" && wait "$1"; } 2>/dev/null || true
}

end() {
  trap '' INT TERM
  if [ "$daemon" ]; then
    say "koordlet ends and puts the quota back:"
    kill -TERM "$daemon" && wait "$daemon" || true
    show_quota
  fi
  end_pod "$sensitive"
  end_pod "$best_effort"
  rm -rf "$run"
  exit 0
}
trap end INT TERM

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
setsid "$here/busy-pod.sh" besteffort "$(nproc)" >/dev/null &
best_effort=$!
until [ -e "$quota" ]; do sleep 0.1; done
show_quota

say "koordlet starts; all together may use 65 % of the node's CPU:"
setsid "$bin/koordlet" --standalone --addr=127.0.0.1:0 --run-dir="$run" --log-level=warning \
  --nodeslo-file="$run/nodeslo.yaml" &
daemon=$!
until ctl status >"$run/status" 2>/dev/null; do
  kill -0 "$daemon" 2>/dev/null || { echo "squeeze: koordlet ended" >&2; daemon=; end; }
  sleep 0.2
done
cat "$run/status"
for _ in 1 2 3 4 5; do sleep "$pause"; done
ctl top --once
show_quota

while :; do
  say "A latency-sensitive pod wants a core. The best-effort pod gives way within half a second:"
  setsid "$here/busy-pod.sh" burstable 1 >/dev/null &
  sensitive=$!
  for _ in 1 2 3 4; do
    sleep "$pause"
    show_quota
  done
  ctl top --once
  ctl explain kubepods/besteffort

  say "It is gone. The best-effort pod gets a tenth of the node's CPU more each second:"
  end_pod "$sensitive"
  sensitive=
  for _ in 1 2 3 4 5 6; do
    sleep "$pause"
    show_quota
  done
  echo "(^C ends it)"
done
