#!/usr/bin/env bash
# Runs libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer on a reader of text: scripts/fuzz.sh TARGET [SECONDS]
#
# TARGET is own, fx, fx_code, stablehlo or hlo; 60 s unless SECONDS says otherwise. It builds in build-fuzz and keeps what it found interesting
# in build-fuzz/corpus/TARGET; a text that breaks something is left in build-fuzz/found and the status is not 0.
set -euo pipefail
# shellcheck source=scripts/build.sh
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

target=${1:-}
seconds=${2:-60}
if [[ ! $target =~ ^(own|fx|fx_code|stablehlo|hlo)$ || ! $seconds =~ ^[0-9]+$ || $# -gt 2 ]]; then
  echo 'usage: scripts/fuzz.sh own|fx|fx_code|stablehlo|hlo [SECONDS]' >&2
  exit 2
fi
build=$root/build-fuzz
meson_options=('-Db_sanitize=address,undefined' '-Dfuzz=true')
"$root/scripts/setup.sh"
configure
run_ninja "tests/fuzz_$target"
mkdir -p "$build/corpus/$target" "$build/found"
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
cd "$root" # where the targets find their golden texts
exec "$build/tests/fuzz_$target" -max_total_time="$seconds" -max_len=16384 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
  -artifact_prefix="$build/found/$target-" "$build/corpus/$target"
