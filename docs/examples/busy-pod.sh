#!/bin/sh
# A pod without Kubernetes: cgroups as a kubelet makes them, with processes that are busy and hold
# 64 MiB of memory each. Needs root, cgroup v1 or v2. ^C ends it and removes the cgroups it made; a
# kubelet's own, and pods in them, are left as they are.
#
# usage: busy-pod.sh [besteffort|burstable [PROCESSES]]
# environment: CGROUP_ROOT, the cgroup file system, or a tree within it (default /sys/fs/cgroup)
#              CONTROLLERS, as cgroup v2 calls them (default "cpu memory")
#              POD_UID, of the pod (default: one for each class)
#              WORK, a command for each process to run instead
set -eu

class=${1:-besteffort}
processes=${2:-1}
case $class in
  besteffort) uid=${POD_UID:-11111111-2222-3333-4444-555555555555} ;;
  burstable) uid=${POD_UID:-66666666-7777-8888-9999-aaaaaaaaaaaa} ;;
  *) echo "busy-pod: wanted besteffort or burstable, found $class" >&2; exit 2 ;;
esac

root=${CGROUP_ROOT:-/sys/fs/cgroup}
controllers=${CONTROLLERS:-cpu memory}
if [ -e "$root/cgroup.controllers" ]; then
  version=2 hierarchies=$root
else
  version=1 # two controllers may share a hierarchy
  hierarchies=$(for controller in $controllers; do
    case $controller in
      cpu) readlink -f "$root/cpu" "$root/cpuacct" ;;
      io) readlink -f "$root/blkio" ;;
      *) readlink -f "$root/$controller" ;;
    esac
  done | sort -u)
fi
if [ -d "$root/kubepods.slice" ] || [ -d "$root/memory/kubepods.slice" ]; then # systemd's names
  slice=kubepods.slice/kubepods-$class.slice
  pod=$slice/kubepods-$class-pod$(echo "$uid" | tr - _).slice
  parents="kubepods.slice $slice"
else
  pod=kubepods/$class/pod$uid
  parents="kubepods kubepods/$class"
fi

groups= # those with the processes
made= # all that are new, the last one first
enabled= # "DIRECTORY/cgroup.subtree_control -CONTROLLER", as above

enable() { # lets the groups below $1 have the controllers
  [ $version = 2 ] || return 0
  for controller in $controllers; do
    case " perf_event $(cat "$1/cgroup.subtree_control") " in # perf_event is always on
      *" $controller "*) ;;
      *) echo "+$controller" >"$1/cgroup.subtree_control"
        enabled="$1/cgroup.subtree_control -$controller $enabled" ;;
    esac
  done
}

make_group() {
  mkdir "$1"
  made="$1 $made"
}

make_groups() {
  for hierarchy in $hierarchies; do
    enable "$hierarchy"
    for part in $parents; do
      [ -d "$hierarchy/$part" ] || make_group "$hierarchy/$part"
      enable "$hierarchy/$part"
    done
    make_group "$hierarchy/$pod" # not one that is there: it is another one's
    enable "$hierarchy/$pod"
    make_group "$hierarchy/$pod/busy"
    groups="$groups $hierarchy/$pod/busy"
  done
}

remove_groups() { # what others have used meanwhile stays
  for group in $made; do
    rmdir "$group" 2>/dev/null || true
  done
  # shellcheck disable=SC2086 # two words per entry
  set -- $enabled
  while [ $# -gt 0 ]; do
    [ ! -e "$1" ] || echo "$2" >"$1" 2>/dev/null || true
    shift 2
  done
}

# In the groups from the start, so that its memory is charged to them.
# shellcheck disable=SC2016 # expands in the shell that runs it
work='for group; do echo $$ >"$group/cgroup.procs"; done
echo "process $$ is busy in ${group#/sys/fs/cgroup/}"
[ -z "${WORK:-}" ] || eval "$WORK"
held=$(head -c 67108864 /dev/zero | tr "\0" x)
while :; do :; done'

end() {
  trap '' INT TERM EXIT
  for group in $groups; do
    while pids=$(cat "$group/cgroup.procs") && [ "$pids" ]; do
      # shellcheck disable=SC2086 # one word per process
      kill -KILL $pids 2>/dev/null || true
      sleep 0.1
    done
  done
  remove_groups
  exit "$1"
}

trap 'end 0' INT TERM
trap 'end 1' EXIT # something went wrong
make_groups
while [ "$processes" -gt 0 ]; do
  # shellcheck disable=SC2086 # one word per group
  sh -c "$work" busy-pod $groups &
  processes=$((processes - 1))
done
wait
