#!/usr/bin/env bash
# Starts a simulated SGLang fleet and three kvgate nodes on this machine, says how to talk to them, and
# stops everything on Ctrl-C. The nodes' data is thrown away unless DIR is given.
#
#   deploy/cluster.sh            bin/kvgate and bin/enginesim must be built (make cluster does)
#   DIR=/var/tmp/kv deploy/cluster.sh
set -euo pipefail
cd "$(dirname "$0")/.."

base=${PORT:-7070}
keep=${DIR:-}
dir=${DIR:-$(mktemp -d)}
pids=()

stop() {
  trap - EXIT INT TERM
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  wait 2>/dev/null || true
  [ -n "$keep" ] || rm -rf "$dir"
}
trap stop EXIT
trap 'exit 0' INT TERM

peers=""
servers=""
for i in 1 2 3; do
  peers+="${peers:+,}n$i=127.0.0.1:$((base + 10 * i + 1))"
  servers+="${servers:+,}http://127.0.0.1:$((base + 10 * i))"
done

bin/enginesim --count 4 --listen "127.0.0.1:$((base + 101))" --router-listen "127.0.0.1:$((base + 100))" \
  --pool-tokens "${POOL_TOKENS:-60000}" --speed "${SPEED:-10}" --metrics-bytes 0 >"$dir/enginesim.log" 2>&1 &
pids+=($!)

router=http://127.0.0.1:$((base + 100))

# flags N sets args to the flags of node N.
flags() {
  args=(--node-id "n$1" --data-dir "$dir/n$1" --listen "127.0.0.1:$((base + 10 * $1))"
    --raft-listen "127.0.0.1:$((base + 10 * $1 + 1))" --bootstrap-expect 3 --peers "$peers" --router "$router")
}

for i in 1 2 3; do
  flags $i
  bin/kvgate serve "${args[@]}" >"$dir/n$i.log" 2>&1 &
  pids+=($!)
  eval "node$i=$!"
done

ready() { curl -fsS -o /dev/null "$1/readyz" 2>/dev/null; }
for i in 1 2 3; do
  url="http://127.0.0.1:$((base + 10 * i))"
  for _ in $(seq 100); do
    ready "$url" && break
    kill -0 "${pids[$i]}" 2>/dev/null || { echo "node n$i did not start:"; tail -5 "$dir/n$i.log"; exit 1; }
    sleep 0.1
  done
done

cat <<EOF
Three nodes are running, logs and data below $dir

  export KVGATE_SERVER=$servers
  bin/kvgate node status
  bin/kvgate acquire a:0 --prompt-tokens 9000 --max-new-tokens 1000
  bin/kvgate queue

  node   API                      process
  n1     http://127.0.0.1:$((base + 10))    $node1
  n2     http://127.0.0.1:$((base + 20))    $node2
  n3     http://127.0.0.1:$((base + 30))    $node3
  router $router

Let agents work meanwhile (go run ./integration/agents/cmd/agents --help):

  go run ./integration/agents/cmd/agents --router $router --speed ${SPEED:-10} --turns 20 --servers $servers

Kill any one of the nodes (kill -9 PID), and start it again with its line, in another terminal:

$(for i in 1 2 3; do flags $i; printf '  bin/kvgate serve'; printf ' %q' "${args[@]}" | sed 's/\\,/,/g'; echo; done)

Ctrl-C stops all.
EOF
wait
