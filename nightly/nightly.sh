#!/usr/bin/env bash
# One night: doctor, run, gate, report and history, collected in one folder. For cron, Slurm and CI; see --help.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: nightly/nightly.sh --history DIR [OPTIONS] [-- RUN OPTIONS]

Measure tonight, compare it with the nights before, and keep it for the nights to come:

  1. bench doctor    what would spoil the measurement; a problem ends the night here
  2. bench run       --profile nightly --wait, and the RUN OPTIONS behind '--'
  3. bench gate      tonight against the history
  4.                 the sealed run is copied into the history, also where it regressed (the gate does not take
                     such a night as a base until 'bench accept' says so); one that is not sealed is not kept
  5. bench report    page, tables and plots of tonight
  6. bench history   page and plots of all nights

options (each has an environment variable):
  --history DIR         NIGHTLY_HISTORY       the nights, one folder each. It has to be there: a disk that is not
                                              mounted must not look like a first night. Make it once.
  --out DIR             NIGHTLY_OUT           what this night leaves (default: reports/nightly of the checkout).
                                              Emptied at the start if an earlier night wrote it, else refused.
  --interpreter PATH    NIGHTLY_INTERPRETER   the Python that runs bench (default: .venv/bin/python of the checkout
                                              where there is one, else python3)
  --thresholds OPTIONS  NIGHTLY_THRESHOLDS    for gate and history, as their --help has them, such as '--threshold 2%'
  --stop-at LEVEL       NIGHTLY_STOP_AT       which finding of the doctor ends the night: problem (default), warning
                                              or never. What it says of GPUs that --gpus leaves out does not count.
  --allow-inconclusive  NIGHTLY_ALLOW_INCONCLUSIVE=1
                                              0 instead of 11, for schedulers that know only good and bad
  --no-keep             NIGHTLY_NO_KEEP=1     compare and do not keep: a trial with other scenarios or a local change
  --help

What is left in --out, also when the night ends early:
  summary.md (for a CI page)  gate.md  gate.json  junit.xml  doctor.json  history.json  night.log
  results/RUN/  report/index.html  history/history.html

exit codes:
  0    no regression found
  10   regressed            11  inconclusive; the first night, with nothing to compare with, is one
  12   missing or not comparable
  1    a launch failed, or bench or a step of this script did      2  the request is wrong
  3    the doctor found what spoils a measurement                  4  another night with this history is running
  130  interrupted
The gate's code comes before those of the steps after it.

cron (every night at 1:30; the disk of the history is /srv):
  30 1 * * * /opt/bench/nightly/nightly.sh --history /srv/bench-history -- --device cuda

Slurm (a file for sbatch; scrontab takes the last line with the options on #SCRON lines):
  #!/bin/bash
  #SBATCH --job-name=bench-nightly --gpus-per-node=4 --exclusive --time=03:00:00 --signal=B:TERM@120
  exec /opt/bench/nightly/nightly.sh --history /srv/bench-history -- --device cuda
TEXT
}

# ---- what was asked for

refuse() { # OPTION: PROBLEM; REMEDY
    printf 'nightly: error: %s\n' "$1" >&2
    exit 2
}

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname -- "$here")
history=${NIGHTLY_HISTORY:-}
out=${NIGHTLY_OUT:-$root/reports/nightly}
interpreter=${NIGHTLY_INTERPRETER:-}
thresholds=${NIGHTLY_THRESHOLDS:-}
stop_at=${NIGHTLY_STOP_AT:-problem}
allow_inconclusive=${NIGHTLY_ALLOW_INCONCLUSIVE:-}
no_keep=${NIGHTLY_NO_KEEP:-}

while (($#)); do
    case $1 in
        --history | --out | --interpreter | --thresholds | --stop-at)
            (($# > 1)) || refuse "$1: it needs a value; see 'nightly.sh --help'"
            name=${1#--}
            printf -v "${name//-/_}" '%s' "$2"
            shift 2
            ;;
        --allow-inconclusive) allow_inconclusive=1 && shift ;;
        --no-keep) no_keep=1 && shift ;;
        -h | --help)
            usage
            exit 0
            ;;
        --) shift && break ;;
        *) refuse "$1: there is no such option; options of 'bench run' stand behind '--', see 'nightly.sh --help'" ;;
    esac
done
run_options=("$@")

if [[ -z $interpreter ]]; then
    interpreter=python3
    [[ ! -x $root/.venv/bin/python ]] || interpreter=$root/.venv/bin/python
fi
[[ -n $history ]] || refuse "--history: no folder is named; make one for all nights and give it here, or in NIGHTLY_HISTORY"
[[ -d $history ]] || refuse "--history: $history is not there; mount its disk, or for a first night: mkdir -p '$history'"
[[ -w $history ]] || refuse "--history: $history cannot be written; change its owner, or name another"
case $stop_at in
    problem | warning | never) ;;
    *) refuse "--stop-at: '$stop_at' is no level; choose problem, warning or never" ;;
esac
command -v -- "$interpreter" >/dev/null || refuse "--interpreter: there is no $interpreter; give a Python that has torch"
history=$(realpath -- "$history")
out=$(realpath -m -- "$out")
[[ $history/ != "$out"/* ]] || refuse "--out: the history lies in $out, which is emptied; give another folder"
marker=.bench-night
if [[ -e $out && (! -d $out || -n $(ls -A -- "$out") && ! -e $out/$marker) ]]; then
    refuse "--out: $out holds what no night has written; give a new or an empty folder"
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
read -ra gate_options <<<"$thresholds"
problem=$("$interpreter" -m bench gate "${gate_options[@]}" --help 2>&1 >/dev/null) ||
    refuse "--thresholds: ${problem#*error: }"

# ---- how it is done

child=
interrupted=
trap 'interrupted=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' INT TERM HUP

bench() { # as 'python -m bench', and a signal to this script ends it the way bench wants to be ended: 130
    local code
    [[ -z $interrupted ]] || return 130
    "$interpreter" -m bench "$@" &
    child=$!
    [[ -z $interrupted ]] || kill -TERM "$child" # the signal was there before it
    while true; do
        code=0
        wait "$child" || code=$?
        kill -0 "$child" 2>/dev/null || break # else a signal ended the waiting, and not the child
    done
    child=
    [[ -z $interrupted ]] || return 130
    return "$code"
}

say() {
    printf 'nightly: %s\n' "$1"
}

fail() { # CODE LINE
    say "error: $2"
    exit "$1"
}

option_of_run() { # NAME: prints the value that the RUN OPTIONS give it last; fails where they do not
    local value='' found=1 index
    for index in "${!run_options[@]}"; do
        case ${run_options[index]} in
            "$1") value=${run_options[index + 1]:-} found=0 ;;
            "$1="*) value=${run_options[index]#*=} found=0 ;;
        esac
    done
    printf '%s' "$value"
    return "$found"
}

has_runs() { # FOLDER
    local file
    for file in "$1"/*/run.json; do
        [[ ! -e $file ]] || return 0
    done
    return 1
}

worse() { # CODE: of a step behind the gate, whose own code stands if it has one
    ((code)) || code=$1
}

# shellcheck disable=SC2329  # the trap calls it
finish() { # on every way out: the log is whole, and the summary says how far the night came
    local code=$?
    trap '' INT TERM HUP
    exec >&3 2>&4
    wait "$log" || true
    rm -rf -- "$history/.incoming"
    "$interpreter" "$here/summary.py" write "$out" --code "$code" --gate "$gate" --history "$history" \
        --kept "$kept" >&2 || printf 'nightly: error: the summary could not be written\n' >&2
    exit "$code"
}

for name in --out --resume --find-batch; do
    [[ " ${run_options[*]} " != *" $name"[=\ ]* ]] || refuse "$name: a night decides that for 'bench run'; leave it out"
done

# ---- the night

exec 9>"$history/.nightly.lock"
if ! flock -n 9; then
    printf 'nightly: error: another night with the history %s is running; wait for its end\n' "$history" >&2
    exit 4
fi
rm -rf -- "$history/.incoming" # of a night that was killed
mkdir -p -- "$out"
find "$out" -mindepth 1 -delete
touch -- "$out/$marker"

code=0
gate=none
kept=no
exec 3>&1 4>&2
exec > >(trap '' INT TERM HUP && exec tee -- "$out/night.log") 2>&1
log=$!
trap finish EXIT

doctor_options=()
for name in --apex --python; do
    ! value=$(option_of_run "$name") || doctor_options+=("$name" "$value")
done
gpus=$(option_of_run --gpus) || true
bench doctor --json "${doctor_options[@]}" >"$out/doctor.json"
"$interpreter" "$here/summary.py" doctor "$out/doctor.json" --stop-at "$stop_at" --gpus "$gpus"

bench run --out "$out/results" --profile nightly --wait "${run_options[@]}" || code=$?
((code != 130)) || exit 130
has_runs "$out/results" || fail "$((code ? code : 1))" "there is no run: nothing is compared and nothing kept"
for run in "$out"/results/*/; do run=${run%/}; done
id=$(basename -- "$run")

mkdir -- "$history/.incoming"
cp -R -- "$run" "$history/.incoming/$id" || fail 1 "$id cannot be copied to $history: see night.log"
"$interpreter" "$here/summary.py" sealed "$history/.incoming/$id" ||
    fail "$((code ? code : 1))" "$id is neither compared nor kept"
sync -f -- "$history"

gate_files=(--junit "$out/junit.xml" --markdown "$out/gate.md")
gate=0
bench gate "$run" --history "$history" "${gate_options[@]}" "${gate_files[@]}" --json >"$out/gate.json" || gate=$?
((gate != 130)) || exit 130
case $gate in
    0) ;;
    11) [[ -n $allow_inconclusive ]] || code=11 ;;
    *) code=$gate ;;
esac

if [[ -z $no_keep ]]; then
    mv -T -- "$history/.incoming/$id" "$history/$id"
    kept=yes
    say "kept as $history/$id"
fi

bench report "$run" --out "$out/report" || worse $?
if has_runs "$history"; then
    bench history "$history" --out "$out/history" "${gate_options[@]}" --json >"$out/history.json" || worse $?
fi
exit "$code"
