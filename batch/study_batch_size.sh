#!/bin/sh
# What the batch size does to loss, figures and speed: batch_size.png, runs.csv in logs/$STUDY/.
#
#   sh batch/study_batch_size.sh                   # a laptop; started again, it goes on
#   sbatch batch/study_batch_size.sh               # Slurm, one job per run
#   DEVICE=cuda sbatch --gpus-per-node=2 batch/study_batch_size.sh
#
# Larger: DATA=multi30k TOKENS=9000000 STUDY=my-study sh batch/study_batch_size.sh --layers 3
# A classifier, in examples: DATA=agnews INIT=FOLDER EXAMPLES=16000 sh batch/study_batch_size.sh
# BATCHES="32 128" PROCESSES=2 are settings too.
# --batch-tokens is the size of the whole step: sentences times the longest of them. A sentence of
# the phrasebook has 11 tokens, so 32, 96 and 384 are about 1, 4 and 16 sentences for each of two
# processes. All runs see as many tokens (TOKENS a side, padding included). A larger batch has less
# noise, so the learning rate grows with the root of its size. A quarter of each run is warm-up.
#SBATCH --job-name=study-batch-size
#SBATCH --array=1-5
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: cores for all processes of a run
#SBATCH --time=04:00:00           # EDIT; add partition and account if the cluster needs them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."   # sbatch starts a copy of this file elsewhere
STUDY=${STUDY:-study-batch-size}
. batch/study.sh
# `peak` is the learning rate of a step of `at` tokens, or of `at` examples.
count=tokens seen=${TOKENS:-160000} sizes=${BATCHES:-32 96 384 1024 4096} peak=0.004 at=4096
if classifies "$@"; then
    count=size seen=${EXAMPLES:-16000} sizes=${BATCHES:-2 8 16 32 128} peak=0.001 at=64
fi
if [ "${INIT:-}" ]; then peak=0.00005 at=32; fi
for size in $sizes; do
    lr=$(LC_ALL=C awk "BEGIN { printf \"%.2g\", $peak * sqrt($size / $at) }")
    quarter=$((seen / 4 / size + (seen / 4 < size)))       # at least 1
    run "$count-$size" "$MODE" "${PROCESSES:-2}" "--batch-$count" "$size" --lr "$lr" \
        --steps $((seen / size + (seen < size))) --warmup "$quarter" --eval-every "$quarter" \
        --average-checkpoints 1 --log-every $((seen / 40 / size + 1)) $(shape 1 128 256) "$@"
done
picture && rm -f "logs/$STUDY/learning_rate.png"   # it would show the same as batch_size.png
