#!/bin/bash
# Plain machines, by ssh: the same command on each, in the folder that this one is started in.
#
#     HOSTS="10.0.0.4 10.0.0.5" deploy/ssh.sh python train.py --epochs 3
#
# Node 0 comes first. All nodes have the folder, and ssh needs no password. These variables change the rest:
#
#   FLAGS     of `launcher run`, such as "--restarts 20 --spares 1"
#   LAUNCHER  where it is on the nodes (launcher)
#   SSH       another ssh, or more options for it
#   CHECK=0   starts without the check of the nodes
#
# Ctrl-C and SIGTERM end the job on all nodes.
# The status is 75 if a node says that trying again can help, else that of the first node in the list that failed.
set -u
read -rd '' -a hosts <<<"${HOSTS:?the nodes, node 0 first}"
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes}"
if ((${#hosts[@]} == 0)); then
  echo "ssh.sh: HOSTS is empty: expected the nodes, node 0 first" >&2
  exit 64
fi
launcher=${LAUNCHER:-launcher}
list=$(IFS=,; echo "${hosts[*]}")
words=$(printf '%q ' "$@")
# The token is that of this job. It goes through a pipe: a command line can be read by all users of a machine.
make_token() {
  od -An -N32 -tx1 /dev/urandom || openssl rand -hex 32 ||
    python3 -I -c 'import secrets; print(secrets.token_hex(32))'
}
token=$(make_token 2>/dev/null | tr -d ' \n')
if ! [[ $token =~ ^[0-9a-f]{64}$ ]]; then
  echo "ssh.sh: no token: od, openssl and python3 do not work here; install one of them" >&2
  exit 69
fi
folder=$(mktemp -d) || exit 73
trap 'rm -rf "$folder"' EXIT

# The pipes stay open while the nodes work: a node whose pipe ends stops what it runs.
pipes=()
stop() {
  local pipe
  for pipe in "${pipes[@]}"; do exec {pipe}>&-; done
  pipes=()
}
trap stop INT TERM HUP

# on_all COMMAND [BEFORE AFTER]: runs it on all nodes, each with the token in LAUNCHER_TOKEN.
on_all() {
  local host pid pipe pids=() status=0 ended
  for host in "${hosts[@]}"; do
    mkfifo "$folder/pipe"
    "${ssh[@]}" "$host" "IFS= read -r LAUNCHER_TOKEN; export LAUNCHER_TOKEN; cd $(printf %q "$PWD") || exit
      ${2:-:} || exit 73; exec 3<&0; $1 & job=\$!; { read -r end <&3; kill \$job; } 2>/dev/null & reader=\$!
      wait \$job; status=\$?; kill \$reader; ${3:-:} || exit 73; exit \$status" <"$folder/pipe" &
    pids+=($!)
    exec {pipe}>"$folder/pipe"
    pipes+=("$pipe")
    rm "$folder/pipe"
    echo "$token" >&"$pipe"
  done
  for pid in "${pids[@]}"; do
    while # a signal interrupts wait
      wait "$pid"
      ended=$?
      kill -0 "$pid" 2>/dev/null
    do :; done
    if ((ended == 75 || (status == 0 && ended != 0))); then status=$ended; fi
  done
  stop
  return "$status"
}

# A JSON object for each node in check-HOST.json. A node with a problem ends all with 69 before the job starts.
# In a folder that others can write to, `>` would follow their link; a new name and mv do not.
if [[ ${CHECK:-1} != 0 ]]; then
  # shellcheck disable=SC2016 # the nodes expand it
  on_all "$launcher check --strict --format json --hosts $list -- $words >\$file" \
    'file=$(mktemp ./check.XXXXXX)' 'mv -fT "$file" "check-$(hostname).json"' || {
    status=$?
    echo "launcher check: see check-*.json in $PWD on the nodes (or CHECK=0)" >&2
    exit "$status"
  }
fi
on_all "$launcher run --hosts $list ${FLAGS:-} -- $words"
