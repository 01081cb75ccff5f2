# For the examples here, which read it: a cgroup tree of their own beside the pods that the host may
# have, a koordlet that sees nothing else, and an end that leaves nothing behind.
# shellcheck shell=sh
#
# Before: `here`, the directory of the examples; `name`, of the example; `controllers`, as v2 calls
# them. show_end, after koordlet has ended, and free, at the very end, may be defined anew.
#
# environment: PAUSE, seconds between two looks (default 1)
#              WAY_TO_END, the signal that ends koordlet (default TERM); after another one, as KILL,
#              `koordletctl restore` restores from its journal

bin=$here/../../.venv/bin
pause=${PAUSE:-1}
run=$(mktemp -d "/run/koordlet-$name.XXXXXX")
tree=${run##*/}
daemon= pods= made= enabled= mounted=

make_tree() { # sets CGROUP_ROOT, a cgroup file system that has nothing but this
  cgroups=/sys/fs/cgroup
  if [ -e $cgroups/cgroup.controllers ]; then
    for controller in $controllers; do
      case " perf_event $(cat $cgroups/cgroup.subtree_control) " in # perf_event is always on
        *" $controller "*) ;;
        *) echo "+$controller" >$cgroups/cgroup.subtree_control
          enabled="$enabled -$controller" ;;
      esac
    done
    mkdir "$cgroups/$tree"
    made=$cgroups/$tree CGROUP_ROOT=$cgroups/$tree
    return
  fi
  CGROUP_ROOT=$run/cgroup # a directory per controller, as in /sys/fs/cgroup
  mkdir "$CGROUP_ROOT"
  for controller in $controllers; do
    case $controller in
      cpu) make_hierarchy cpu && make_hierarchy cpuacct ;; # cpu,cpuacct are one
      io) make_hierarchy blkio ;;
      *) make_hierarchy "$controller" ;;
    esac
  done
}

make_hierarchy() { # of cgroup v1; not every host has each mounted
  hierarchy=$cgroups/$1
  if [ ! -d "$hierarchy" ]; then
    hierarchy=$run/$1
    mkdir "$hierarchy"
    mount -t cgroup -o "$1" none "$hierarchy"
    mounted="$hierarchy $mounted"
  fi
  [ -d "$hierarchy/$tree" ] || mkdir "$hierarchy/$tree"
  made="$made $hierarchy/$tree"
  ln -s "$hierarchy/$tree" "$CGROUP_ROOT/$1"
}

remove_tree() { # its pods have removed themselves
  for group in $made; do
    [ ! -d "$group" ] || rmdir "$group" || true
  done
  for hierarchy in $mounted; do
    umount "$hierarchy" || true
  done
  for change in $enabled; do
    echo "$change" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
  done
  rm -rf --one-file-system "$run"
}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
ctl() { "$bin/koordletctl" --run-dir "$run" "$@"; }
fail() { echo "$name: $*" >&2; exit 1; }

start_pod() { # sets pod, a process; arguments as busy-pod.sh
  CONTROLLERS=$controllers setsid "$here/busy-pod.sh" "$@" >/dev/null &
  pod=$!
  pods="$pod $pods" # the latest ends first: the first one made what is above both
}

end_pod() { # TERM, as a shell starts its background processes deaf to INT
  { kill -TERM "$1" && wait "$1"; } 2>/dev/null || true
}

start_koordlet() { # flags; $run/nodeslo.yaml is there. Shows its status
  setsid "$bin/koordlet" --standalone --addr=127.0.0.1:0 --run-dir="$run" --log-level=warning \
    --cgroup-root-dir="$CGROUP_ROOT" --nodeslo-file="$run/nodeslo.yaml" "$@" &
  daemon=$!
  until ctl status >"$run/status" 2>/dev/null; do
    kill -0 "$daemon" 2>/dev/null || { daemon=; fail "koordlet ended"; }
    sleep 0.2
  done
  cat "$run/status"
}

show_end() { :; }
free() { :; }

end() {
  trap '' INT TERM EXIT
  if [ "$daemon" ]; then
    way=${WAY_TO_END:-TERM}
    say "koordlet ends ($way), and what it changed is restored:"
    kill "-$way" "$daemon" && wait "$daemon" || true
    [ "$way" = TERM ] || ctl restore --cgroup-root-dir="$CGROUP_ROOT" || true
    show_end || true
  fi
  for pod in $pods; do
    end_pod "$pod"
  done
  free || true
  remove_tree
  exit "$1"
}
trap 'end 0' INT TERM
trap 'end 1' EXIT # something went wrong
make_tree
export CGROUP_ROOT
