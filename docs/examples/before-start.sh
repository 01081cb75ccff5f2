#!/bin/sh
# A container has its settings before it starts, without Kubernetes: koordlet answers a container
# runtime over NRI. The runtime is the reference's own side of NRI in a small Go program of the tests;
# it asks as containerd would, and starts nothing. Needs root, Go, cgroup v1 or v2, and .venv (make
# run sets it up). All of it happens in a cgroup tree of its own. ^C removes it.
#
# environment: see own-tree.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=before-start controllers="cpu memory"
. "$here/own-tree.sh"

uid=11111111-2222-3333-4444-555555555555
socket=$run/var-run/nri/nri.sock
checkout=$here/../..
runtime=
free() { [ -z "$runtime" ] || end_pod "$runtime"; }

say "The runtime's side of NRI is built (minutes, the first time):"
"$bin/python" -c "import sys; sys.path.insert(0, '$checkout')
from tests.support.programs import NRI_RUNTIME; print(NRI_RUNTIME.build())" | tee "$run/program"

cat >"$run/batch.json" <<'END'
{"containers": {"main": {
  "requests": {"kubernetes.io/batch-cpu": "1000"},
  "limits": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"}}}}
END
cat >"$run/pods.yaml" <<END
apiVersion: v1
kind: PodList
items:
  - metadata:
      name: batch
      namespace: jobs
      uid: $uid
      labels: {koordinator.sh/qosClass: BE}
      annotations: {node.koordinator.sh/extended-resource-spec: '$(cat "$run/batch.json")'}
    spec: {containers: [{name: main}]}
    status:
      phase: Running
      qosClass: BestEffort
      containerStatuses:
        - {name: main, containerID: "containerd://busy", state: {running: {}}}
END
echo 'apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO' >"$run/nodeslo.yaml"

say "A best-effort pod that may have two batch CPUs and 2 GiB, and a runtime that knows it:"
export WORK="exec sleep infinity"
start_pod besteffort
"$bin/python" -u - "$(cat "$run/program")" "$socket" "$checkout" "$run/batch.json" "$uid" \
  >"$run/asked" <<'END' &
import asyncio, json, sys
from pathlib import Path
program, socket, checkout, batch, uid = sys.argv[1:]
sys.path.insert(0, checkout)
from tests.support.real_runtime.nri_runtime import container, nri_runtime, sandbox

async def main():
    annotation = {"node.koordinator.sh/extended-resource-spec": Path(batch).read_text()}
    pod = sandbox(uid, f"kubepods/besteffort/pod{uid}", **annotation)
    async with nri_runtime(Path(program), Path(socket)) as runtime:
        await runtime.start()
        print("waits for plugins")
        await runtime.next("synchronized")
        new = container(uid, "new")
        made = await runtime.ask("create", pod=pod, container=new)
        print("the kubelet asks for", json.dumps(new["linux"]["resources"]))
        print("error" if made["error"] else "koordlet makes it",
              made["error"] or json.dumps(made["reply"]["adjust"]["linux"]["resources"]))
        print(f"answered after {made['micros'] / 1000:.1f} ms")
        await asyncio.Event().wait()

asyncio.run(main())
END
runtime=$!

await() { # until the runtime has said that
  looks=0
  until grep -q "$1" "$run/asked"; do
    kill -0 "$runtime" 2>/dev/null || { runtime=; fail "the runtime ended"; }
    looks=$((looks + 1))
    [ "$looks" -lt 600 ] || fail "no '$1' after a minute"
    sleep 0.1
  done
}
await "waits for plugins"

say "koordlet starts, connects, and is asked about a new container:"
start_koordlet --pods-file="$run/pods.yaml" --var-run-root-dir="$run/var-run" \
  --runtime-hooks-nri-backoff-duration=100ms
await "answered after"
cat "$run/asked"

while :; do
  say "Why:"
  ctl explain "$uid"
  for _ in 1 2 3 4 5; do sleep "$pause"; done
  echo "(^C ends it)"
done
