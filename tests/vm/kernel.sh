#!/usr/bin/env bash
# Builds a kernel of Debian's source with what Debian's own lacks: core scheduling, idle page tracking
# and io.latency (kernel.config). It is kept in .vm/kernels, by the content of that file and of this.
# Takes some 15 minutes of CPU the first time. Prints the path of the image.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { echo "vm-kernel: $*" >&2; exit 1; }

packages="linux-source-6.1 gcc make flex bison bc libelf-dev libssl-dev xz-utils kmod cpio"
source=/usr/src/linux-source-6.1.tar.xz
key=$(cat tests/vm/kernel.sh tests/vm/kernel.config requirements/vm.txt | sha256sum | cut -c1-16)
image=$PWD/.vm/kernels/$key/bzImage
if [ -e "$image" ]; then
  echo "$image"
  exit
fi
[ -e $source ] && command -v flex bison bc >/dev/null ||
  fail "wanted $source and what builds it, found at least one missing;" \
       "run: apt-get update && apt-get install -y --no-install-recommends $packages"

work=$(mktemp -d "$PWD/.vm/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
{
  tar -xf $source -C "$work" --strip-components=1
  cd "$work"
  virtme-configkernel --allnoconfig --custom "$OLDPWD/tests/vm/kernel.config" </dev/null
  for option in SCHED_CORE IDLE_PAGE_TRACKING BLK_CGROUP_IOLATENCY EXT4_FS BLK_DEV_LOOP MEMCG CPUSETS \
      NET_9P_VIRTIO VIRTIO_PCI OVERLAY_FS PSI; do
    grep -q "^CONFIG_$option=y" .config || fail "wanted CONFIG_$option, which the source refuses"
  done
  make -s -j"$(nproc)" bzImage
} >&2
mkdir -p "${image%/*}"
cp arch/x86/boot/bzImage "$image.new"
mv "$image.new" "$image"
echo "$image"
