#!/usr/bin/env bash
# Builds one C++ source against the built modules and runs it: scripts/try.sh FILE.cpp [ARGUMENT...]
# The file may import any module (import std; import tenon;). The exit status is the program's, or 1 if it does not build.
set -euo pipefail
# shellcheck source=scripts/build.sh
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

if (($# == 0)) || [[ ! -f $1 ]]; then
  echo 'usage: scripts/try.sh FILE.cpp [ARGUMENT...]' >&2
  exit 2
fi
source_file=$(realpath "$1")
shift

if [[ ! -f $build/build.ninja ]]; then
  "$root/scripts/setup.sh" >&2
fi
configure
build_targets try >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Ninja's own commands for the program `try`, with the user's source, object and program in place of its own.
commands=$(ninja -C "$build" -t commands try)
compile=$(grep -F 'scripts/try.cpp' <<<"$commands")
compile=${compile/-fcolor-diagnostics /} # Clang sees by itself whether this is a terminal
stub=${compile##* -c }
object=$(sed -E 's/.* -o ([^ ]+) .*/\1/' <<<"$compile")
compile=${compile//"$object"/"$work/program.o"}
compile=${compile/%"$stub"/"$(printf %q "$source_file")"}
link=$(tail -n 1 <<<"$commands")
link=${link//"$object"/"$work/program.o"}
link=${link/ -o try / -o "$work/program" }

(cd "$build" && eval "$compile" && eval "$link") || exit 1
status=0
"$work/program" "$@" || status=$?
exit "$status"
