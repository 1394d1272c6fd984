#!/bin/sh
# What the peak learning rate does to loss and figures: learning_rate.png, curves.png and runs.csv
# in logs/study-learning-rate/.
#
#   sh batch/study_learning_rate.sh                # a laptop; started again, it goes on
#   sbatch batch/study_learning_rate.sh            # Slurm, one job per run
#   DEVICE=cuda sbatch --gpus-per-node=2 batch/study_learning_rate.sh
#
# Larger: DATA=multi30k EPOCHS=25 STUDY=my-study \
#             sh batch/study_learning_rate.sh --layers 3 --d-model 256
# RATES="0.001 0.002" tries other rates; PROCESSES=2 is a setting too. curves.png shows the loss and
# the figures (BLEU, or accuracy and F1) after each epoch.
#SBATCH --job-name=study-learning-rate
#SBATCH --array=1-4
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: cores for all processes of a run
#SBATCH --time=04:00:00           # EDIT; add partition and account if the cluster needs them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."   # sbatch starts a copy of this file elsewhere
STUDY=${STUDY:-study-learning-rate}
. batch/study.sh

rates='0.0003 0.002 0.01 0.05'
if [ "${INIT:-}" ]; then rates='0.00002 0.00005 0.0001 0.0003'; fi
for lr in ${RATES:-$rates}; do
    run "lr-$lr" "$MODE" "${PROCESSES:-2}" --epochs "${EPOCHS:-5}" --lr "$lr" --warmup 100 \
        --batch-tokens 2048 $(shape 1 128 256) --average-checkpoints 1 "$@"
done
picture
