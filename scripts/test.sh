#!/usr/bin/env bash
# Sets up, builds and tests: scripts/test.sh [--quick|--full] [--sanitize address|thread] [MODULE...]
#
# --quick takes at most 90 s after the build, --full has the large counts; the programs read the tier from TENON_TIER (quick, default, full).
# --sanitize builds with AddressSanitizer and UndefinedBehaviorSanitizer in build-asan, or with ThreadSanitizer in build-tsan.
# With MODULEs, only their programs (build/tests/MODULE_test) are built and run.
# Beside the tier quick the tests of kernels run again as if the machine had less: another instruction set, another compiler or none, other numbers of
# threads; a few cases of them, in the tier full all.
# The last line counts test cases: "N passed, N failed", and ", N skipped" if any was. A test case that cannot run here prints
# "SKIP: its name: the reason" once. A program that dies, hangs or reports no cases counts as one failure. The status is 1 exactly when something failed.
set -euo pipefail
# shellcheck source=scripts/build.sh
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

usage() {
  echo 'usage: scripts/test.sh [--quick|--full] [--sanitize address|thread] [MODULE...]' >&2
  exit 2
}

tier=default
sanitize=''
modules=()
while (($#)); do
  case $1 in
    --quick) tier=quick ;;
    --full) tier=full ;;
    --sanitize)
      [[ ${2:-} == address || ${2:-} == thread ]] || usage
      sanitize=$2
      shift
      ;;
    -*) usage ;;
    *) modules+=("$1") ;;
  esac
  shift
done

case $sanitize in
  address)
    build=$root/build-asan
    meson_options=('-Db_sanitize=address,undefined')
    ;;
  thread)
    build=$root/build-tsan
    meson_options=(-Db_sanitize=thread)
    ;;
esac
export TENON_TIER=$tier
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_init_order=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1}
[[ -x /usr/bin/llvm-symbolizer-19 ]] && export {ASAN,MSAN,TSAN,UBSAN}_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19

# Test programs run one at a time: cases that measure time and ranks that use every core would disturb one another.
case $tier in
  quick) limit=90 ;;
  default) limit=900 ;;
  full) limit=14400 ;;
esac
[[ -z $sanitize ]] || limit=$((limit * 8))

selected='.*'
if ((${#modules[@]})); then
  selected=$(IFS='|' && echo "${modules[*]}")
fi

set_up_and_build() {
  local extra=()
  [[ $tier != full ]] || extra=(--full)
  "$root/scripts/setup.sh" "${extra[@]}" && configure || return 1
  local targets=() module
  for module in "${modules[@]}"; do
    if [[ -z $(programs_like "tests/${module}_test") ]]; then
      echo "no test program for '$module'; there are:" >&2
      programs_like 'tests/.*_test' | sed -E 's#^tests/(.*)_test$#  \1#' >&2
      return 1
    fi
    targets+=("tests/${module}_test")
  done
  build_targets "${targets[@]}" || return 1
  [[ -n $sanitize || ${#targets[@]} -gt 0 ]] || report_budgets "$tier"
}

passed=0 failed=0 skipped=0
summary() {
  local line="$passed passed, $failed failed"
  ((skipped == 0)) || line+=", $skipped skipped"
  echo "$line"
  ((failed == 0))
}

# run_program PROGRAM [LABEL [CASES [NAME=VALUE...]]]: runs one program, or the cases of it that match, adds them to the totals and prints one line; of a
# failure also the end of its output.
run_program() {
  local name=${1#tests/} log status=0 start counts cases_passed=0 cases_failed=0 cases_skipped=0 skips note=''
  local label=${2:-} cases=${3:-}
  name=${name%_test}${label:+ $label}
  log=$build/tests/${name// /.}.txt
  start=$(now)
  env "${@:4}" timeout --kill-after=10 "$limit" "$build/$1" --no-colors=true ${cases:+--test-case="$cases"} >"$log" 2>&1 </dev/null || status=$?
  [[ -z $cases ]] || sed -i -E 's/^(\[doctest\] test cases:.*\|) *[0-9]+ skipped/\1 0 skipped/' "$log" # cases that were not asked for
  counts=$(sed -nE 's/^\[doctest\] test cases: *[0-9]+ \| *([0-9]+) passed \| *([0-9]+) failed \| *([0-9]+) skipped.*/\1 \2 \3/p' "$log" | tail -n 1)
  [[ -z $counts ]] || read -r cases_passed cases_failed cases_skipped <<<"$counts"
  skips=$(grep -a '^SKIP: ' "$log" | sort -u || true)
  if [[ -n $skips ]]; then
    local count
    count=$(wc -l <<<"$skips")
    cases_passed=$((cases_passed - count))
    cases_skipped=$((cases_skipped + count))
  fi
  if ((status == 124 || status == 137)); then
    note="killed after $(since "$start") s (the limit is $limit s)"
  elif ((cases_failed == 0 && status != 0)); then
    note="exit status $status"
  elif [[ -z $counts || $counts == '0 0 0' ]]; then
    note='no test case ran'
  fi
  [[ -z $note ]] || ((cases_failed > 0)) || cases_failed=1
  passed=$((passed + cases_passed)) failed=$((failed + cases_failed)) skipped=$((skipped + cases_skipped))
  printf '%-22s %4d passed  %3d failed  %3d skipped  %6s s  %s\n' "$name" "$cases_passed" "$cases_failed" "$cases_skipped" "$(since "$start")" "$note"
  [[ -z $skips ]] || printf '  %s\n' "${skips//$'\n'/$'\n  '}"
  if ((cases_failed > 0)); then
    tail -n 60 "$log" | sed 's/^/  | /'
    echo "  whole output: $log"
  fi
}

if ! set_up_and_build; then
  echo 'the build did not succeed: no test was run' >&2
  failed=1
  summary
  exit 1
fi
cd "$root" # where tests find their data
for program in $(programs_like "tests/($selected)_test"); do
  run_program "$program"
done

# A row: what is forced, the variable that does it, and the programs that it matters to. gcc only where there is one.
variants=(
  'avx2 TENON_ISA=avx2 fusion device'
  'baseline TENON_ISA=baseline fusion device'
  'interpreter TENON_CC=none fusion'
  '1-thread TENON_THREADS=1 fusion'
  '5-threads TENON_THREADS=5 fusion'
)
! command -v gcc >/dev/null || variants+=('gcc TENON_CC=gcc fusion device')
short='random graphs*,*StableHLO and HLO programs*,golden ops through compiled*'
if [[ $tier != quick ]]; then
  for variant in "${variants[@]}"; do
    read -r label setting modules_forced <<<"$variant"
    for program in $(programs_like "tests/($selected)_test" | grep -Ex "tests/(${modules_forced// /|})_test"); do
      if [[ $tier == full ]]; then
        run_program "$program" "$label" '' "$setting" TENON_TIER=default
      elif [[ $program == tests/fusion_test ]]; then
        run_program "$program" "$label" "$short" "$setting" TENON_TIER=quick
      else
        run_program "$program" "$label" '' "$setting" TENON_TIER=quick
      fi
    done
  done
fi
summary
