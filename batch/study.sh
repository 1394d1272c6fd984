# What the four studies share. DATA: the corpus; INIT: a folder of published weights to begin with.
# A study sets STUDY and sources this file, then calls `run` for each run and `picture` at the end.
# Ctrl-C, a failure or a time limit ends the study. Started again with the same flags, it goes on
# where it stopped and does not repeat finished runs.
DATA=${DATA:-phrasebook} DEVICE=${DEVICE:-cpu} STUDY=${STUDY#logs/}
if [ "$DEVICE" = cuda ]; then MODE=ddp; else MODE=cpu; fi     # unless the study compares modes
if [ -f .venv/bin/activate ]; then . .venv/bin/activate; fi   # EDIT: or module load, conda activate
case " $* " in *" --help "* | *" -h "*)
    sed -n '2,/^#S/{/^#S/!s/^# \{0,1\}//p;}' "$0"             # the comment at the top of the study
    exit ;;
esac
again="started again as before, $STUDY goes on where it stopped"
number=0 folders='' child='' under=''

# shape LAYERS WIDTH INNER: flags of a small model; none where INIT names published weights.
shape() { if [ -z "${INIT:-}" ]; then echo "--layers $1 --d-model $2 --d-ff $3"; fi; }

# classifies FLAG...: whether DATA, INIT and these flags are for a classifier.
classifies() {
    python -c 'import argparse, sys; from support.classification.labelled import is_labelled
parser = argparse.ArgumentParser(allow_abbrev=False)
for flag in ("--data", "--label", "--pretrained"): parser.add_argument(flag, default="")
args, _ = parser.parse_known_args()
sys.exit(not (args.pretrained or is_labelled(args.data, args.label)))' \
        --data "$DATA" --pretrained "${INIT:-}" "$@"
}

# quit MESSAGE STATUS
quit() { echo "$STUDY: $1" >&2; exit "$2"; }

# run NAME MODE PROCESSES FLAG...: train_MODE.py with these flags, as logs/$STUDY/NAME. A finished
# run is skipped. A task of a Slurm array does only the run of its own number. The command in
# $under, if any, starts the run.
run() {
    name=$1 mode=$2 processes=$3 folder=logs/$STUDY/$1 number=$((number + 1))
    shift 3
    set -- --data "$DATA" ${INIT:+--pretrained "$INIT"} "$@"
    folders="$folders $folder"
    flags="$mode $processes $*"
    if [ "$DEVICE" != cpu ]; then flags="$flags --device $DEVICE"; fi
    if [ -f "$folder/config.json" ] && [ "$flags" != "$(cat "$folder/flags")" ]; then
        before="$folder was started as: $(cat "$folder/flags")"
        quit "error: $before; STUDY=NAME keeps studies apart" 2
    fi
    if [ -f "$folder/summary.json" ]; then return; fi
    if [ "${SLURM_ARRAY_TASK_ID:-$number}" != "$number" ]; then return; fi
    if ! { mkdir -p "$folder" && echo "$flags" > "$folder/flags"; }; then
        quit "error: $folder cannot be written" 2
    fi
    set -- --name "$STUDY/$name" "$@"
    if [ "$mode" = cpu ]; then
        set -- python train_cpu.py --procs "$processes" "$@"
    else
        set -- "train_$mode.py" --device "$DEVICE" "$@"
        set -- torchrun --standalone --nproc-per-node "$processes" "$@"
    fi
    printf '\n%s, run %s: %s\n' "$STUDY" "$number" "$*"
    $under "$@" &                                      # in the background: a shell that waits for a
    child=$!                                           # command in the foreground runs no trap
    wait "$child" || quit "error: run $number, $name, ended with status $?; $again" 1
    child=''
}

# picture: once all runs are finished, writes the table logs/$STUDY/runs.csv and the pictures.
picture() {
    if [ "${SLURM_ARRAY_TASK_ID:-1}" -gt "$number" ]; then
        quit "error: there are only $number runs" 2
    fi
    finished=0                                         # counted now: other tasks may have ended
    for folder in $folders; do
        if [ -f "$folder/summary.json" ]; then finished=$((finished + 1)); fi
    done
    if [ "$finished" -lt "$number" ]; then
        echo "$STUDY: $finished of $number runs are finished; the last one makes the picture"
    else
        python plot.py --out "logs/$STUDY" $folders
    fi
}

# stop SIGNAL STATUS: the run saves and ends. USR1 means that the time limit is near: the job goes
# back into the queue.
stop() {
    trap '' INT TERM USR1
    if [ "$child" ]; then kill "$child" 2>/dev/null; wait "$child"; fi
    if [ "$1" = USR1 ] && [ "${SLURM_JOB_ID:-}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
    quit "stopped; $again" "$2"
}
trap 'stop INT 130' INT
trap 'stop TERM 143' TERM
trap 'stop USR1 138' USR1
