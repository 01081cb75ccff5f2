#!/bin/sh
# Best-effort pods are squeezed and released, without Kubernetes: koordlet with a NodeSLO file, a
# best-effort pod that would take every CPU, and a latency-sensitive pod that comes and goes.
# Needs root, cgroup v1 or v2, and .venv (make run sets it up). All of it happens in a cgroup tree of
# its own, beside the pods that the host may have. ^C restores the quota and removes the tree.
#
# environment: PAUSE, seconds between two looks (default 1)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../.venv/bin
pause=${PAUSE:-1}
run=$(mktemp -d /run/koordlet-squeeze.XXXXXX)
tree=${run##*/}
daemon= best_effort= sensitive= made= enabled=

make_tree() { # sets CGROUP_ROOT, a cgroup file system that has nothing but this
  cgroups=/sys/fs/cgroup
  if [ -e $cgroups/cgroup.controllers ]; then
    for controller in cpu memory; do
      case " $(cat $cgroups/cgroup.subtree_control) " in
        *" $controller "*) ;;
        *) echo "+$controller" >$cgroups/cgroup.subtree_control
          enabled="$enabled -$controller" ;;
      esac
    done
    mkdir "$cgroups/$tree"
    made=$cgroups/$tree CGROUP_ROOT=$cgroups/$tree
    quota=$CGROUP_ROOT/kubepods/besteffort/cpu.max
    return
  fi
  CGROUP_ROOT=$run/cgroup # a directory per controller, as in /sys/fs/cgroup
  mkdir "$CGROUP_ROOT"
  for controller in cpu cpuacct memory; do
    [ -d "$cgroups/$controller/$tree" ] || mkdir "$cgroups/$controller/$tree" # cpu,cpuacct are one
    made="$made $cgroups/$controller/$tree"
    ln -s "$cgroups/$controller/$tree" "$CGROUP_ROOT/$controller"
  done
  quota=$CGROUP_ROOT/cpu/kubepods/besteffort/cpu.cfs_quota_us
}

remove_tree() { # its pods have removed themselves
  for group in $made; do
    [ ! -d "$group" ] || rmdir "$group" || true
  done
  for change in $enabled; do
    echo "$change" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
  done
  rm -rf "$run"
}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show_quota() { echo "${quota#"$CGROUP_ROOT"/}: $(cat "$quota")"; }
ctl() { "$bin/koordletctl" --run-dir "$run" "$@"; }

end_pod() { # TERM, as a shell starts its background processes deaf to INT
  [ -z "$1" ] || { kill -TERM "$1" && wait "$1"; } 2>/dev/null || true
}

end() {
  trap '' INT TERM EXIT
  if [ "$daemon" ]; then
    say "koordlet ends and restores the quota:"
    kill -TERM "$daemon" && wait "$daemon" || true
    show_quota || true
  fi
  end_pod "$sensitive"
  end_pod "$best_effort"
  remove_tree
  exit "$1"
}
trap 'end 0' INT TERM
trap 'end 1' EXIT # something went wrong
make_tree
export CGROUP_ROOT

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
until [ -e "$quota" ]; do
  kill -0 "$best_effort" 2>/dev/null || { echo "squeeze: the best-effort pod ended" >&2; exit 1; }
  sleep 0.1
done
show_quota

say "koordlet starts; all together may use 65 % of the node's CPU:"
setsid "$bin/koordlet" --standalone --addr=127.0.0.1:0 --run-dir="$run" --log-level=warning \
  --cgroup-root-dir="$CGROUP_ROOT" --nodeslo-file="$run/nodeslo.yaml" &
daemon=$!
until ctl status >"$run/status" 2>/dev/null; do
  kill -0 "$daemon" 2>/dev/null || { echo "squeeze: koordlet ended" >&2; daemon=; exit 1; }
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
