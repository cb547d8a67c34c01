#!/usr/bin/env bash
# Installs what the build and the tests need and is missing, and says which of CUDA, NCCL and MPI it found: scripts/setup.sh [--full]
# --full adds what the tests of --full alone need.
# As root it installs; otherwise it prints the one line to run and exits with 1. Debian 12; Ubuntu 24.04 is untested.
set -euo pipefail

packages=(
  clang-19 clang-tools-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev llvm-19 lld-19 libc++-19-dev libc++abi-19-dev # compiler, sanitizers, checks
  meson ninja-build pkgconf cmake python3                                                                          # build; cmake only finds doctest and range-v3
  libeigen3-dev librange-v3-dev doctest-dev nlohmann-json3-dev libcli11-dev libssl-dev                             # libraries
  libopenmpi-dev openmpi-bin                                                                                       # ranks across processes
  graphviz strace                                                                                                  # pictures, system call tests
)

case $* in
  '') ;;
  --full) packages+=(chromium) ;; # opens the page of explain
  *)
    echo 'usage: scripts/setup.sh [--full]' >&2
    exit 2
    ;;
esac

say() { printf 'setup: %s\n' "$*"; }

install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    say "this script knows Debian 12 and Ubuntu 24.04; install what these packages hold: ${packages[*]}" >&2
    return 1
  fi
  local installed missing=() package
  installed=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ $installed == *" installed:$package "* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local system
  # shellcheck source=/dev/null
  system=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
  [[ $system == 'debian 12' ]] || say "tried on Debian 12; $system is untested"

  local line="apt-get install -y --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    local as_root='su -c'
    command -v sudo >/dev/null && as_root='sudo sh -c'
    say 'packages are missing; run this line, then the same command again:' >&2
    echo "$as_root 'apt-get update && $line'"
    return 1
  fi
  say "installing ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line -qq; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    say "apt-get failed; its whole output is in $log" >&2
    return 1
  fi
  rm -f "$log"
}

# Prints the first of the given files that exists.
first_of() {
  local file
  for file in "$@"; do
    if [[ -e $file ]]; then
      echo "$file"
      return
    fi
  done
}

report_optional() {
  local nvcc header mpi cuda='no CUDA' nccl='no NCCL' ranks='no MPI'
  nvcc=$(first_of "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc)
  if [[ -n $nvcc ]]; then
    cuda="CUDA $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') ($nvcc)"
  fi
  header=$(first_of "${CUDA_HOME:-/usr/local/cuda}/include/nccl.h" /usr/include/nccl.h /usr/local/include/nccl.h)
  if [[ -n $header ]]; then
    nccl="NCCL $(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) *//p' "$header" | paste -sd.) ($header)"
  fi
  mpi=$(command -v mpirun || true)
  if [[ -n $mpi ]]; then
    ranks="$("$mpi" --version 2>/dev/null | sed -n '1s/^.*(Open MPI) */Open MPI /p') ($mpi)"
  fi
  say "$cuda, $nccl, $ranks"
}

install_missing
report_optional
