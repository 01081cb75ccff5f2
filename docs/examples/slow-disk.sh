#!/bin/sh
# Best-effort pods are slow on a disk, and fast again, without Kubernetes: koordlet with a NodeSLO
# file that limits the class on a loop device, and a best-effort pod that writes to it and reads from
# it, past the page cache. Needs root, losetup, cgroup v1 or v2, and .venv (make run sets it up). All
# of it happens in a cgroup tree of its own. ^C restores the limits and removes tree and device.
#
# environment: see own-tree.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=slow-disk controllers="cpu memory io"
. "$here/own-tree.sh"

truncate -s 64M "$run/image"
disk=$(losetup --find --show "$run/image")
number=$(cat "/sys/block/${disk##*/}/dev")
free() { losetup --detach "$disk"; }

if [ -d "$CGROUP_ROOT/blkio" ]; then # the kernel limits the processes of a group itself
  limits=$CGROUP_ROOT/blkio/kubepods/besteffort/pod*/busy/blkio.throttle.write_bps_device
else # it limits all below
  limits=$CGROUP_ROOT/kubepods/besteffort/io.max
fi

counted() { # bytes that the disk has read and written since it was bound
  read -r _ _ sectors_read _ _ _ sectors_written _ <"/sys/block/${disk##*/}/stat"
  now=$(date +%s%N)
}

show_speed() { # of a pause
  counted
  began=$now from_read=$sectors_read from_written=$sectors_written
  sleep "$pause"
  counted
  per_ms=$(((now - began) / 1000000))
  echo "read $(((sectors_read - from_read) * 500 / per_ms)) KiB/s," \
    "written $(((sectors_written - from_written) * 500 / per_ms)) KiB/s"
}

show_limits() { # shellcheck disable=SC2086 # a pattern
  for file in $limits; do
    echo "${file#"$CGROUP_ROOT"/}: $(cat "$file")"
  done
}

show_end() {
  show_limits
  show_speed
}

cat >"$run/nodeslo.yaml" <<END
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
spec:
  resourceQOSStrategy:
    beClass:
      blkioQOS:
        enable: true
        blocks:
          - name: $disk
            type: device
            ioCfg: {readBPS: 1048576, writeBPS: 1048576}
END

say "A best-effort pod writes to $disk ($number) and reads from it. Nothing limits it:"
export WORK="while :; do
  dd if=/dev/zero of=$disk bs=64k count=16 oflag=direct conv=notrunc status=none
  dd if=$disk of=/dev/null bs=64k count=16 iflag=direct status=none
done"
start_pod besteffort
for _ in 1 2 3; do show_speed; done
kill -0 "$pod" 2>/dev/null || fail "the best-effort pod ended"

say "koordlet starts; best-effort pods may read 1 MiB a second there, and write 1 MiB:"
start_koordlet --feature-gates=BlkIOReconcile=true
# shellcheck disable=SC2086 # a pattern
looks=0
until grep -q "^$number " $limits; do
  kill -0 "$daemon" 2>/dev/null || fail "koordlet ended"
  looks=$((looks + 1))
  [ "$looks" -lt 300 ] || fail "no limit after 30 s"
  sleep 0.1
done
show_limits
ctl explain kubepods/besteffort

while :; do
  for _ in 1 2 3 4 5; do show_speed; done
  echo "(^C ends it)"
done
