#!/bin/sh
# A pod without Kubernetes: cgroups as a kubelet makes them, with processes that are busy and hold
# 64 MiB of memory each. Needs root, cgroup v1 or v2. ^C ends it and removes the cgroups.
#
# usage: busy-pod.sh [besteffort|burstable [PROCESSES]]
set -eu

class=${1:-besteffort}
processes=${2:-1}
case $class in
  besteffort) uid=11111111-2222-3333-4444-555555555555 ;;
  burstable) uid=66666666-7777-8888-9999-aaaaaaaaaaaa ;;
  *) echo "busy-pod: wanted besteffort or burstable, found $class" >&2; exit 2 ;;
esac

root=/sys/fs/cgroup
pod=kubepods/$class/pod$uid
path="kubepods kubepods/$class $pod $pod/busy"
if [ -e $root/cgroup.controllers ]; then
  hierarchies=$root
  echo '+cpu +memory' >$root/cgroup.subtree_control
else
  hierarchies="$root/cpu $root/cpuacct $root/memory"
fi

make_groups() {
  for hierarchy in $hierarchies; do
    for part in $path; do
      mkdir -p "$hierarchy/$part"
      if [ "$hierarchy" = $root ] && [ "$part" != "$pod/busy" ]; then
        echo '+cpu +memory' >"$root/$part/cgroup.subtree_control"
      fi
    done
  done
}

remove_groups() { # the deepest first; a kubepods with other pods in it stays
  for hierarchy in $hierarchies; do
    for part in "$pod/busy" "$pod" "kubepods/$class" kubepods; do
      rmdir "$hierarchy/$part" 2>/dev/null || true
    done
  done
}

# In the groups from the start, so that its memory is charged to them.
# shellcheck disable=SC2016 # expands in the shell that runs it
work='for group; do echo $$ >"$group/cgroup.procs"; done
echo "process $$ is busy in ${group#/sys/fs/cgroup/}"
held=$(head -c 67108864 /dev/zero | tr "\0" x)
while :; do :; done'

end() {
  trap '' INT TERM
  for group in $groups; do
    while pids=$(cat "$group/cgroup.procs") && [ "$pids" ]; do
      # shellcheck disable=SC2086 # one word per process
      kill -KILL $pids 2>/dev/null || true
      sleep 0.1
    done
  done
  remove_groups
  exit 0
}

make_groups
groups=$(for hierarchy in $hierarchies; do echo "$hierarchy/$pod/busy"; done)
while [ "$processes" -gt 0 ]; do
  # shellcheck disable=SC2086 # one word per group
  sh -c "$work" busy-pod $groups &
  processes=$((processes - 1))
done
trap end INT TERM
wait
