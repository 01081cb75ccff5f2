#!/usr/bin/env bash
# Runs the cgroup v2 suite on a real kernel inside a virtual machine, in software emulation.
# The machine sees this host's files, and what it writes is gone with it.
#
# usage: tests/vm/run.sh [--numa | --own-kernel] [pytest arguments]
#   runs tests/cgroups and what else is for cgroup v2; with --numa test_numa.py alone, on a machine with
#   two NUMA nodes; with --own-kernel what Debian's lacks, on the kernel that kernel.sh builds and one core
#   with two threads
# environment: KOORDLET_VM_TIMEOUT, seconds after which a machine that does not end is killed
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { echo "vm-test: $*" >&2; exit 1; }

packages="qemu-system-x86 linux-image-amd64 busybox-static"
limit=${KOORDLET_VM_TIMEOUT:-2700}
machine=(--cpus 2 --memory 1G)
tests=(tests/cgroups tests/koordlet/host/test_cgroup_map.py)
kernel=
if [ "${1:-}" = --numa ]; then
  shift
  machine+=(--numa 512M,cpus=0 --numa 512M,cpus=1)
  tests=(tests/cgroups/v2/test_numa.py)
elif [ "${1:-}" = --own-kernel ]; then
  shift
  tests=(tests/cgroups/v2/test_own_kernel.py tests/cgroups/test_io_values.py tests/cgroups/test_block_io.py)
  kernel=own
fi
for argument; do
  if [ -e "${argument%%::*}" ]; then tests=(); fi
done
set -- "${tests[@]}" "$@"

[ -n "$kernel" ] || kernel=$(find /boot -maxdepth 1 -name 'vmlinuz-*' | sort -V | tail -n 1)
if [ -z "$kernel" ] || ! command -v qemu-system-x86_64 >/dev/null || ! command -v busybox >/dev/null; then
  fail "wanted qemu-system-x86_64, busybox and a kernel in /boot, found at least one missing;" \
       "run: apt-get update && apt-get install -y --no-install-recommends $packages"
fi
[ -x .venv/bin/pytest ] || fail "wanted pytest in .venv, found none; run: make vm-test"

venv=.vm/venv
if ! cmp -s requirements/vm.txt $venv/installed.txt; then
  python3 -m venv --clear $venv
  $venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/vm.txt
  cp requirements/vm.txt $venv/installed.txt
fi
PATH="$PWD/$venv/bin:$PATH"   # vng calls virtme-run by name
smt=
if [ "$kernel" = own ]; then
  kernel=$(tests/vm/kernel.sh)
  smt="-smp 2,sockets=1,cores=1,threads=2 -cpu max,vendor=GenuineIntel"
fi
.venv/bin/python -m compileall -q koord koordlet plugins   # 30 times slower in there

work=$(mktemp -d "$PWD/.vm/run.XXXXXX")
vm=
trap '[ -z "$vm" ] || kill "$vm" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The machine reads this host's files through 9p, uncached by its own choice, and so needs seconds to
# start Python: show it the same files again, cached, where Python and the checkout are.
cached="-fsdev local,id=cached,path=/,security_model=none,readonly=on,multidevs=remap
  -device virtio-9p-pci,fsdev=cached,mount_tag=cached"
python=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')

# A file, because the kernel's command line, on which vng passes commands, is short. The exit status
# travels in the output: a machine that dies has none.
cat >"$work/inside" <<END
mkdir /run/cached
mount -t 9p -o ro,version=9p2000.L,trans=virtio,access=any,msize=524288,cache=loose cached /run/cached
for directory in $(printf '%q ' "$python" "$PWD"); do
  mount --bind "/run/cached\$directory" "\$directory" || echo "vm-test: reads \$directory uncached"
done
cd $(printf '%q' "$PWD")
ip link set lo up
modprobe -a loop veth || true   # what lacks them is skipped, and says so
export PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis
.venv/bin/python -m pytest -p no:cacheprovider -rs $(printf '%q ' "$@")
echo vm-exit-status=\$?
END
mkfifo "$work/output"
sed -u 's/\r//' <"$work/output" | tee "$work/log" &
printer=$!
timeout "$limit" vng --disable-kvm --run "$kernel" --user root "${machine[@]}" \
  --qemu-opts="${cached//$'\n'/} $smt" -- bash "$work/inside" >"$work/output" 2>&1 &
vm=$!
machine_status=0
wait "$vm" || machine_status=$?
vm=
wait "$printer"

status=$(sed -n 's/^vm-exit-status=//p' "$work/log" | tail -n 1)
closing=$(grep -E '^=* ?([0-9]+ [a-z]+|no tests ran).* in [0-9.]+s' "$work/log" | tail -n 1 || true)
case "$status" in
  0) ;;
  5) fail "nothing ran: pytest found no test in: $*" ;;
  "") if [ "$machine_status" = 124 ]; then
        fail "no result within $limit s; set KOORDLET_VM_TIMEOUT if this host is that slow"
      fi
      fail "the machine ended before pytest did (vng's exit status $machine_status)" ;;
  *) fail "pytest failed with status $status: $closing" ;;
esac
case "$closing" in
  *" passed"*) echo "vm-test: $closing" ;;
  *) fail "nothing ran: $closing" ;;
esac
