#!/usr/bin/env bash
# Sets up, builds and runs every sample, the tour first: scripts/run.sh [--section X.Y]
#
# Prints each sample's prose (the modules' experiments m_* come last), the table of claims and verdicts, the path of the report
# (build/report/claims.json) and, last, "samples: N/N ok". --section 2.3 runs the samples of that section (samples/s2_3_*.cpp) alone.
# The status is 1 if a sample failed: it exited with another status than 0, ran longer than 10 minutes, or wrote no valid rows to the
# file that --json=FILE names.
set -euo pipefail
# shellcheck source=scripts/build.sh
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

usage() {
  echo 'usage: scripts/run.sh [--section X.Y]' >&2
  exit 2
}

selected='.*'
while (($#)); do
  case $1 in
    --section)
      [[ ${2:-} =~ ^[0-9]+(\.[0-9]+)*$ ]] || usage
      selected="s${2//./_}(_.*)?"
      shift
      ;;
    *) usage ;;
  esac
  shift
done

"$root/scripts/setup.sh"
configure
build_targets
budgets=$(report_budgets default)

if [[ $selected != '.*' && -z $(programs_like "samples/$selected") ]]; then
  echo 'no sample has that section; there are:' >&2
  programs_like 'samples/.*' | sed 's#^samples/#  #' >&2
  exit 2
fi
report=$build/report
rm -rf "$report"
mkdir -p "$report"
tour='samples/s0_tour'
cd "$root"
for program in $(programs_like "$tour") $(programs_like 'samples/s.*' | grep -vx "$tour") $(programs_like 'samples/[^s].*'); do
  name=${program#samples/}
  [[ $name =~ ^($selected)$ ]] || continue
  printf '\n══ %s ══\n' "$name"
  start=$(now)
  status=0
  timeout --kill-after=10 600 "$build/$program" --json="$report/$name.json" 2>&1 </dev/null | tee "$report/$name.txt" || status=$?
  seconds=$(since "$start")
  [[ $program != "$tour" ]] || budgets+=$'\n'"tour: $seconds s (budget 20 s)"
  echo "$name $status $seconds" >>"$report/runs.txt"
done

echo
echo "$budgets"
python3 scripts/report.py "$report"
