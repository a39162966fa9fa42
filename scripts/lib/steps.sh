# One line per step with its seconds, the rest in .setup/NAME.log; stamps that say what is already done. Sourced.
# The sourcing script sets steps_total.
# shellcheck shell=bash disable=SC2154
step=0

fail() {
  echo "ddip: $*" >&2
  exit 1
}

# run_step TITLE NAME COMMAND...: runs it with its output in .setup/NAME.log; when it fails, shows the end of that log and stops.
run_step() {
  local title="[$((++step))/$steps_total] $1 …" log=.setup/$2.log start=$SECONDS status=0 ticker=
  shift 2
  if [[ -t 1 ]]; then
    (while sleep 1; do printf '\r%s %d s' "$title" $((SECONDS - start)); done) &
    ticker=$!
    trap 'kill "$ticker" 2>/dev/null' EXIT
  fi
  printf '%s' "$title"
  # A subshell with errexit of its own: "command || status=$?" would switch it off inside the function.
  set +e
  (set -e; "$@") >"$log" 2>&1 </dev/null
  status=$?
  set -e
  if [[ -n $ticker ]]; then
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null || true
    trap - EXIT
    printf '\r%s' "$title"
  fi
  printf ' %d s\n' $((SECONDS - start))
  ((status == 0)) && return
  echo "--- the last lines of $log"
  tail -n 20 "$log"
  fail "this step failed (exit $status); all of its output is in $log"
}

# A step that had nothing to do.
step_done() { echo "[$((++step))/$steps_total] $1"; }

hash_of() { cat "$@" | sha256sum | cut -c1-16; }
stamp_is() { [[ -f .setup/$1 && $(<".setup/$1") == "$2" ]]; }
write_stamp() { echo "$2" >".setup/$1"; }
