# What of packages/debian.txt is on this machine, found by looking and not by asking a package manager. Sourced.
# shellcheck shell=bash

# The lines of a list without comments.
list_lines() { grep -vE '^[[:space:]]*(#|$)' "$1"; }

has_header() {
  if command -v g++ >/dev/null; then
    printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | g++ -E -x c++ - >/dev/null 2>&1
  else
    [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]
  fi
}

# probed WHAT: true when it is here. cmd:NAME, header:PATH, file:PATH, python:headers, python:venv
probed() {
  local what=${1#*:}
  case $1 in
    cmd:*) command -v "$what" >/dev/null ;;
    header:*) has_header "$what" ;;
    file:*) [[ -e $what ]] ;;
    python:headers) python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ;;
    python:venv) python3 -c 'import venv' 2>/dev/null ;;
    *) fail "packages list: unknown probe $1" ;;
  esac
}

# programs_present LIST [build]: true when its programs are here ("build": only those that the build needs).
# Takes no time, and notices a machine that was replaced under the same folder.
programs_present() {
  local package probe need
  while read -r package probe need; do
    [[ $probe != cmd:* || $need != "${2:-$need}" ]] || probed "$probe" || return 1
  done < <(list_lines "$1")
}

# report_missing LIST: says what is missing and what is lost by it; false when the build cannot go on.
report_missing() {
  local package probe need line needed=() lost=()
  while read -r package probe need; do
    probed "$probe" && continue
    line=$(printf '  %-20s %s' "$package" "${probe#*:}")
    if [[ $need == build ]]; then needed+=("$line"); else lost+=("$line: $need"); fi
  done < <(list_lines "$1")
  if ((${#lost[@]})); then
    echo "Left out, because this machine has no (Debian's name, what was looked for, what needs it):"
    printf '%s\n' "${lost[@]}"
  fi
  if ((${#needed[@]})); then
    echo "Missing, and the build needs it (Debian's name, what was looked for). Install these your distribution's way, then make again:"
    printf '%s\n' "${needed[@]}"
    return 1
  fi
}
