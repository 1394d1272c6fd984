#!/bin/sh
# How fast each mode is with 1, 2 and 4 processes or GPUs: scaling.png and runs.csv in
# logs/study-processes/.
#
#   sh batch/study_processes.sh                    # a laptop; started again, it goes on
#   sbatch batch/study_processes.sh                # Slurm, one job per run; --array=1-9%1: in turn
#   DEVICE=cuda sbatch --array=1-6 --gpus-per-node=4 batch/study_processes.sh
#
# Larger: DATA=multi30k STEPS=500 STUDY=my-study \
#             sh batch/study_processes.sh --layers 3 --d-model 256
# PROCESSES="1 2" tries other numbers. The step is the same for all runs, so more processes mean
# fewer tokens for each. On CPUs each process gets one core.
#SBATCH --job-name=study-processes
#SBATCH --array=1-9
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: cores for all processes of a run
#SBATCH --time=04:00:00           # EDIT; add partition and account if the cluster needs them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."   # sbatch starts a copy of this file elsewhere
STUDY=${STUDY:-study-processes}
. batch/study.sh

cores() { python -c "import os; print(*sorted(os.sched_getaffinity(0))[:$1], sep=',')"; }
MODES="ddp fsdp cpu"
if [ "$DEVICE" = cuda ]; then MODES="ddp fsdp"; fi
for mode in $MODES; do
    for n in ${PROCESSES:-1 2 4}; do
        if [ "$DEVICE" = cpu ] && command -v taskset >/dev/null; then
            under="taskset -c $(cores "$n")"
        fi
        run "$mode-$n" "$mode" "$n" --steps "${STEPS:-60}" $(shape 2 128 512) \
            --batch-tokens 4096 --log-every 5 --average-checkpoints 1 "$@"
    done
done
picture
