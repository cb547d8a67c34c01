#!/usr/bin/env bash
# Measures: scripts/bench.sh [case...] builds and runs the benchmarks whose group holds one of the words (all by default), prints a table
# and writes build/report/bench.json. Times are processor time; they compare within one run, not between machines.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"
for word in "$@"; do
  if [[ $word == -* && $word != --json ]]; then
    sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
  fi
done
"$root/scripts/setup.sh" >&2
configure
build_targets tests/bench/bench >&2
mkdir -p "$build/report"
words=()
for word in "$@"; do [[ $word == --json ]] || words+=("$word"); done
"$build/tests/bench/bench" "${words[@]}" --json "$build/report/bench.json"
