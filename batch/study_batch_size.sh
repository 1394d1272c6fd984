#!/bin/sh
# What the batch size does to loss, BLEU and speed: logs/study-batch-size/batch_size.png and runs.csv.
#
#   sh batch/study_batch_size.sh                           # a laptop; started again it goes on where it stopped
#   sbatch batch/study_batch_size.sh                       # Slurm, a job a run
#   DEVICE=cuda sbatch --gpus-per-node=2 batch/study_batch_size.sh
#
# Larger: DATA=multi30k TOKENS=9000000 STUDY=my-study sh batch/study_batch_size.sh --layers 3 --d-model 256
# --batch-tokens counts a step of both processes, sentences times the longest: with the phrasebook's 11 tokens a
# sentence, 32, 96 and 384 are about 1, 4 and 16 sentences a process. All runs may see as many tokens (TOKENS a side,
# padding included). As a larger batch has less noise, the learning rate goes with its root; a quarter is warm-up.
#SBATCH --job-name=study-batch-size
#SBATCH --array=1-5
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: for all processes of a run
#SBATCH --time=04:00:00           # EDIT; partition and account too, where the cluster asks for them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."           # sbatch starts a copy of this file from elsewhere
STUDY=${STUDY:-study-batch-size}
. batch/study.sh

seen=${TOKENS:-160000}
for tokens in ${BATCHES:-32 96 384 1024 4096}; do
    lr=$(LC_ALL=C awk "BEGIN { printf \"%.2g\", 0.004 * sqrt($tokens / 4096) }")
    run "tokens-$tokens" "$MODE" "${PROCESSES:-2}" --batch-tokens "$tokens" --steps $((seen / tokens)) --lr "$lr" \
        --warmup $((seen / 4 / tokens)) --eval-every $((seen / 4 / tokens)) --log-every $((seen / 40 / tokens + 1)) \
        --layers 1 --d-model 128 --d-ff 256 --average 1 "$@"
done
picture
rm -f "logs/$STUDY/learning_rate.png"                      # the rates go with the batch sizes
