#!/usr/bin/env bash
# Sets up the machine and builds: scripts/build.sh builds everything in build/; the other scripts source this file for its functions.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
meson_options=()
build_kind='' # cold or incremental, once build_targets has run
build_seconds=''

# Microseconds of the clock.
now() { echo "${EPOCHREALTIME//[.,]/}"; }

# Seconds since the given now(), with one decimal.
since() {
  local tenths=$((($(now) - $1 + 50000) / 100000))
  echo "$((tenths / 10)).$((tenths % 10))"
}

# Ninja in the build folder; off a terminal it prints only what failed.
run_ninja() {
  if [[ -t 1 ]]; then
    ninja -C "$build" "$@"
  else
    ninja -C "$build" --quiet "$@" | { grep -vx 'ninja: no work to do.' || true; }
  fi
}

# The linked programs whose path in the build folder matches an extended regular expression, by Ninja's own account: no stale file is listed.
programs_like() {
  ninja -C "$build" -t targets all | sed -nE 's#^([^:]+): cpp_LINKER.*#\1#p' | grep -E "^($1)\$" | sort -V || true
}

# Makes the build folder, with meson_options, or brings it up to date with the meson.build files.
configure() {
  local command=(ninja -C "$build" build.ninja)
  build_kind=incremental
  if [[ ! -f $build/build.ninja ]]; then
    build_kind=cold
    mkdir -p "$build"
    command=(meson setup "$build" "$root" "${meson_options[@]}")
  fi
  if ! CXX=${CXX:-clang++-19} "${command[@]}" >"$build/configure.txt" 2>&1 </dev/null; then
    cat "$build/configure.txt" >&2
    return 1
  fi
}

# build_targets [target...]: everything by default; then brings compile_commands.json up to date.
build_targets() {
  local start
  start=$(now)
  run_ninja "$@" || return 1
  if [[ ! $build/.compdb -nt $build/build.ninja ]]; then
    python3 "$root/scripts/compdb.py" "$build" >/dev/null || return 1
    touch "$build/.compdb"
  fi
  build_seconds=$(since "$start")
}

# report_budgets TIER: what the build took beside its budgets on 2 cores; after a cold build and in the tier full also what an edited op row costs.
report_budgets() {
  local start object line
  start=$(now)
  ninja -C "$build" >/dev/null
  line="build: $build_kind $build_seconds s"
  [[ $build_kind == cold ]] && line+=' (budget 300 s)'
  line+="; nothing to do $(since "$start") s (budget 1 s)"
  object=$(ninja -C "$build" -t targets all | sed -nE 's#^(modules/libir\.a\.p/ir_ops_[^:]+\.o): .*#\1#p' | head -n 1)
  if [[ -n $object && ($build_kind == cold || $1 == full) ]]; then
    rm -f "$build/$object" # as an edit of that source would
    start=$(now)
    run_ninja tests/ir_test
    line+="; edited op row to ir_test $(since "$start") s (budget 15 s)"
    run_ninja
  fi
  echo "$line"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  "$root/scripts/setup.sh"
  configure
  build_targets "$@"
  report_budgets default
fi
