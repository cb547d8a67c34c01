#!/usr/bin/env bash
# Checks the format of every source and lints what changed: scripts/lint.sh [--all]
# Changed means against the main branch, uncommitted edits included; --all lints every source. The status is 1 if anything was found.
set -euo pipefail
# shellcheck source=scripts/build.sh
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

if (($# > 1)) || [[ ${1:---all} != --all ]]; then
  echo 'usage: scripts/lint.sh [--all]' >&2
  exit 2
fi
cd "$root"

status=0
mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.cppm' '*.h' '*.cu')
clang-format-19 --dry-run -Werror "${sources[@]}" || status=1

if [[ ${1:-} != --all ]]; then
  base=HEAD
  for branch in origin/main main; do
    if git rev-parse --quiet --verify "$branch" >/dev/null; then
      base=$(git merge-base HEAD "$branch")
      break
    fi
  done
  mapfile -t sources < <({ git diff --name-only --diff-filter=d "$base" && git ls-files --others --exclude-standard; } | sort -u)
fi

configure
build_targets # clang-tidy reads the built module interfaces, under the paths of compile_commands.json
mapfile -t sources < <(python3 - "$build" "${sources[@]}" <<'PYTHON'
import json, pathlib, sys
build = pathlib.Path(sys.argv[1])
compiled = {(build / entry["file"]).resolve() for entry in json.loads((build / "compile_commands.json").read_text())}
print("\n".join(name for name in sys.argv[2:] if pathlib.Path(name).resolve() in compiled))
PYTHON
)
if [[ -n ${sources[*]} ]]; then
  printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-19 --quiet -p "$build" 2>/dev/null || status=1
fi
exit "$status"
