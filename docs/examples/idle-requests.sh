#!/bin/sh
# What a pod has asked for and does not use, and others may therefore have, without Kubernetes:
# koordlet with a file of pods, one of which asks for the whole node, and learns what it uses. Needs
# root, cgroup v1 or v2, and .venv (make run sets it up). All of it happens in a cgroup tree of its
# own. ^C removes the tree and what was learnt.
#
# environment: see own-tree.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=idle-requests controllers="cpu memory"
. "$here/own-tree.sh"

memory=$(awk '/^MemTotal:/ { print int($2 / 1048576) }' /proc/meminfo)Gi
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
echo 'apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO' >"$run/nodeslo.yaml"
cat >"$run/pods.yaml" <<END
apiVersion: v1
kind: PodList
items:
  - metadata:
      name: shop
      namespace: default
      uid: 66666666-7777-8888-9999-aaaaaaaaaaaa
      labels: {koordinator.sh/qosClass: LS}
    spec:
      priority: 9000 # of the class koord-prod
      containers:
        - name: main
          resources: {requests: {cpu: "$(nproc)", memory: $memory}}
    status:
      phase: Running
      qosClass: Burstable
      startTime: $began
      containerStatuses:
        - {name: main, containerID: "containerd://busy", state: {running: {}}}
END

learnt() { find "$run/prediction-checkpoints" -type f 2>/dev/null | wc -l; }
show_reclaimable() { ctl nodemetric | grep -E '^ *(USE|node|system|prod) '; }
show_end() { echo "models on disk, with which the next start goes on: $(learnt)"; }

say "A pod asks for $(nproc) CPUs and $memory, all that the node has. It uses some of it:"
export WORK='held=$(head -c 67108864 /dev/zero | tr "\0" x)
while :; do timeout 0.1 sh -c "while :; do :; done" || sleep 0.3; done'
start_pod burstable

say "koordlet starts. It looks for 5 s at a time, and, other than usual, not for a day first:"
start_koordlet --pods-file="$run/pods.yaml" --report-interval=5s \
  --prediction-training-interval=5s --prediction-cold-start-duration=0s
looks=0
until ctl nodemetric 2>/dev/null | grep -q '^ *prod peak '; do
  kill -0 "$daemon" 2>/dev/null || fail "koordlet ended"
  looks=$((looks + 1))
  [ "$looks" -lt 120 ] || fail "nothing was predicted after a minute"
  sleep 0.5
done

while :; do
  say "What prod pods have asked for and others may have is in the report, as prod reclaimable:"
  show_reclaimable
  for _ in 1 2 3 4 5; do sleep "$pause"; done
  echo "(^C ends it)"
done
