#!/usr/bin/env bash
# Measures: scripts/bench.sh [case...] [--peer] builds and runs the benchmarks whose group holds one of the words (all by default), prints a table
# and writes build/report/bench.json. With --peer the words name cases of the peers' table, which PyTorch, JAX and Tenon run by turns; the first time
# it makes a virtual environment under build/peer (5.5 GB). Times compare within one run, not between machines.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"
words=()
peer=
for word in "$@"; do
  case $word in
  --peer) peer=1 ;;
  --json) ;;
  -*)
    sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
  *) words+=("$word") ;;
  esac
done
"$root/scripts/setup.sh" >&2
configure
build_targets tests/bench/bench >&2
mkdir -p "$build/report"
if [[ ! $peer ]]; then
  exec "$build/tests/bench/bench" "${words[@]}" --json "$build/report/bench.json"
fi
if [[ ! -f $build/peer/ready ]]; then
  echo "bench: installing PyTorch 2.15.0 and JAX under $build/peer" >&2
  if ! { python3 -m venv "$build/peer" && "$build/peer/bin/pip" install -q torch==2.15.0 "jax[cpu]"; } >"$build/peer.log" 2>&1; then
    echo "bench: the peers cannot be installed: $(tail -n 1 "$build/peer.log")" >&2
    exit 1
  fi
  touch "$build/peer/ready"
fi
rm -f "$build/report/bench.json"
exec python3 "$root/scripts/peer/compare.py" "$build/report/bench.json" "$build/tests/bench/bench" "$build/peer/bin/python" "${words[@]}"
