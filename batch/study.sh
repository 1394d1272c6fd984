# What the four studies share. A study sets STUDY and sources this; then `run` for each run, and at the end `picture`.
# Ctrl-C, a failure or a time limit ends it; started again it goes on, and no finished run is done twice.
DATA=${DATA:-phrasebook} DEVICE=${DEVICE:-cpu}
if [ "$DEVICE" = cuda ]; then MODE=ddp; else MODE=cpu; fi        # for studies that are not about the mode
if [ -f .venv/bin/activate ]; then . .venv/bin/activate; fi      # EDIT: or module load, conda activate
case " $* " in *" --help "* | *" -h "*) sed -n '/^# What/,/^#S/{/^#S/!s/^# \{0,1\}//p;}' "$0"; exit ;; esac
again="started again as before, $STUDY goes on where it stopped"
number=0 folders='' child='' under=''

# quit MESSAGE STATUS
quit() { echo "$STUDY: $1" >&2; exit "$2"; }

# run NAME MODE PROCESSES FLAG…: train_MODE.py with those flags, as logs/$STUDY/NAME, unless that is finished.
# In a Slurm array each task does the run of its number. `under` is put before the command.
run() {
    name=$1 mode=$2 processes=$3 folder=logs/$STUDY/$1 number=$((number + 1))
    shift 3
    set -- --data "$DATA" "$@"
    folders="$folders $folder"
    if [ -f "$folder/config.json" ] && [ "$mode $processes $*" != "$(cat "$folder/flags")" ]; then
        quit "error: $folder was started as: $(cat "$folder/flags"); STUDY=NAME keeps studies apart" 2
    fi
    if [ -f "$folder/summary.json" ]; then return; fi
    if [ "${SLURM_ARRAY_TASK_ID:-$number}" != "$number" ]; then return; fi
    mkdir -p "$folder" && echo "$mode $processes $*" > "$folder/flags" || quit "error: $folder cannot be written" 2
    if [ -f "$folder/last.pt" ]; then set -- --resume "$folder" "$@"; else set -- --name "$STUDY/$name" "$@"; fi
    if [ "$mode" = cpu ]; then
        set -- python train_cpu.py --procs "$processes" "$@"
    else
        set -- torchrun --standalone --nproc-per-node "$processes" "train_$mode.py" --device "$DEVICE" "$@"
    fi
    printf '\n%s, run %s: %s\n' "$STUDY" "$number" "$*"
    $under "$@" &
    child=$!                                                     # not in front: there a shell would hear no signal
    wait "$child" || quit "error: run $number, $name, ended with status $?; $again" 1
    child=''
}

# picture: when all runs are there, their table logs/$STUDY/runs.csv and what plot.py draws of them.
picture() {
    if [ "${SLURM_ARRAY_TASK_ID:-1}" -gt "$number" ]; then quit "error: there are only $number runs" 2; fi
    finished=0                                                   # by now: other tasks of the array may have ended
    for folder in $folders; do if [ -f "$folder/summary.json" ]; then finished=$((finished + 1)); fi; done
    if [ "$finished" -lt "$number" ]; then
        echo "$STUDY: $finished of $number runs are finished; the last one makes the picture"
    else
        python plot.py --out "logs/$STUDY" $folders
    fi
}

# stop SIGNAL STATUS: the run saves and leaves; a job near its time limit (USR1) goes back into the queue.
stop() {
    trap '' INT TERM USR1
    if [ "$child" ]; then kill "$child" 2>/dev/null; wait "$child"; fi
    if [ "$1" = USR1 ] && [ "${SLURM_JOB_ID:-}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
    quit "stopped; $again" "$2"
}
trap 'stop INT 130' INT
trap 'stop TERM 143' TERM
trap 'stop USR1 138' USR1
