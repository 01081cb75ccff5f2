#!/bin/sh
# A best-effort pod sends slowly, and fast again, without Kubernetes: koordlet with a NodeSLO file that
# limits the class, and a best-effort pod that floods another machine. Node, pod and the other machine
# are network namespaces of this script, so the host's network is not touched. Needs root, ip, unshare,
# nsenter, the kernel's modules veth, sch_htb and cls_u32, cgroup v1 or v2, and .venv (make run sets it
# up). ^C restores the interface and removes everything.
#
# environment: see own-tree.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${NODE_OF_ITS_OWN:-}" ]; then # pid 1 and its network are the node's, as koordlet sees it
  export NODE_OF_ITS_OWN=1
  unshare --net --pid --fork --mount-proc --kill-child "$0" &
  node=$!
  # A shell's background process is deaf to INT.
  trap 'kill -TERM $(cat "/proc/$node/task/$node/children")' INT TERM
  until wait "$node"; status=$?; ! kill -0 "$node" 2>/dev/null; do :; done
  exit "$status"
fi
name=slow-network controllers="cpu memory"
. "$here/own-tree.sh"

# In a group of its own, as a node that is itself a container tells its agent from its pid 1.
groups=
for hierarchy in "$CGROUP_ROOT" "$CGROUP_ROOT"/*; do
  [ -e "$hierarchy/cgroup.procs" ] || continue
  mkdir "$hierarchy/agent"
  groups="$groups $hierarchy/agent"
  [ "$hierarchy" != "$CGROUP_ROOT" ] || break
done
programs=$bin bin=$run/bin
mkdir "$bin" "$run/var-run"
cat >"$bin/koordlet" <<END
#!/bin/sh
for group in $groups; do echo \$\$ >"\$group/cgroup.procs" 2>/dev/null || true; done
exec "$programs/\${0##*/}" "\$@"
END
chmod +x "$bin/koordlet"
ln -s koordlet "$bin/koordletctl"

unshare --net sleep 1000000 &
machine=$!
record=/var/run/koordlet-network # of `koordletctl restore`, which knows no other place
[ ! -e $record ] || record=
free() { # the helper of traffic classes ends some seconds after koordlet
  kill "$machine" 2>/dev/null || true
  [ -z "$record" ] || rm -rf "$record"
  for group in $groups; do
    for each in "${group%agent}koordlet-network" "$group"; do
      looks=0
      until [ ! -d "$each" ] || rmdir "$each" 2>/dev/null || [ "$looks" -ge 200 ]; do
        looks=$((looks + 1))
        sleep 0.1
      done
    done
  done
}

sent() { # bytes that the node's interface has sent
  awk '$1 == "node:" { print $10 }' /proc/1/net/dev
}

show_speed() { # of a pause
  from=$(sent) began=$(date +%s%N)
  sleep "$pause"
  to=$(sent) now=$(date +%s%N)
  echo "sent $(((to - from) * 8000 / ((now - began) / 1000))) kbit/s"
}

show_end() {
  ip -brief link show dev node
  tc qdisc show dev node 2>/dev/null || true
  show_speed
}

on() { # runs a command in the network of a process
  of=$1
  shift
  nsenter --target "$of" --net "$@"
}

until [ "$(readlink "/proc/$machine/ns/net")" != "$(readlink /proc/1/ns/net)" ]; do sleep 0.1; done
ip link set lo up
ip link add node type veth peer name eth0 netns "$machine"
ip addr add 10.0.0.1/24 dev node
ip link set node up
on "$machine" ip addr add 10.0.0.2/24 dev eth0
on "$machine" ip link set eth0 up
on "$machine" ip route add 10.1.0.0/24 via 10.0.0.1
ip route add default via 10.0.0.2
echo 1 >/proc/sys/net/ipv4/ip_forward

cat >"$run/nodeslo.yaml" <<END
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
spec:
  systemStrategy: {totalNetworkBandwidth: 20M}
  resourceQOSStrategy:
    beClass: {networkQOS: {enable: true, egressRequest: 5, egressLimit: 20}}
END
cat >"$run/pods.yaml" <<END
apiVersion: v1
kind: PodList
items:
  - metadata:
      name: batch
      namespace: default
      uid: 11111111-2222-3333-4444-555555555555
      labels: {koordinator.sh/qosClass: BE}
    spec: {containers: [{name: main}]}
    status:
      phase: Running
      qosClass: BestEffort
      podIPs: [{ip: 10.1.0.2}]
      containerStatuses:
        - {name: main, containerID: "containerd://busy", state: {running: {}}}
END
cat >"$run/flood.py" <<END
import socket, time
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for _ in range(200):  # every 50 ms: 45 Mbit/s
        try:
            to.sendto(bytes(1400), ("10.0.0.2", 9))
        except OSError:  # nothing listens there
            pass
    time.sleep(0.05)
END

say "A best-effort pod sends as fast as it can. Nothing limits it:"
export WORK="exec unshare --net sh -c 'echo \$\$ >$run/pod.new; mv $run/pod.new $run/pod
  until ip route add default via 10.1.0.1 2>/dev/null; do sleep 0.1; done
  exec $programs/python $run/flood.py'"
start_pod besteffort
until [ -e "$run/pod" ]; do
  kill -0 "$pod" 2>/dev/null || fail "the best-effort pod ended"
  sleep 0.1
done
process=$(cat "$run/pod")
ip link add batch type veth peer name eth0 netns "$process"
ip addr add 10.1.0.1/24 dev batch
ip link set batch up
on "$process" ip addr add 10.1.0.2/24 dev eth0
on "$process" ip link set eth0 up
until [ "$(sent)" -gt 1000000 ]; do sleep 0.1; done
for _ in 1 2 3; do show_speed; done

say "koordlet starts; best-effort pods may send 20 % of 20 Mbit/s:"
start_koordlet --feature-gates=TCNetworkQoS=true --pods-file="$run/pods.yaml" \
  --var-run-root-dir="$run/var-run"
looks=0
until ctl explain 2>/dev/null | grep -q "in.force"; do
  kill -0 "$daemon" 2>/dev/null || fail "koordlet ended"
  looks=$((looks + 1))
  [ "$looks" -lt 300 ] || fail "no classes after 30 s: $(ctl explain)"
  sleep 0.1
done
ctl explain

while :; do
  for _ in 1 2 3 4 5; do show_speed; done
  echo "(^C ends it)"
done
