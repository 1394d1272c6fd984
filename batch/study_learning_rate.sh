#!/bin/sh
# What the peak learning rate does to loss and BLEU: logs/study-learning-rate/learning_rate.png and runs.csv.
#
#   sh batch/study_learning_rate.sh                        # a laptop; started again it goes on where it stopped
#   sbatch batch/study_learning_rate.sh                    # Slurm, a job a run
#   DEVICE=cuda sbatch --gpus-per-node=2 batch/study_learning_rate.sh
#
# Larger: DATA=multi30k EPOCHS=25 STUDY=my-study sh batch/study_learning_rate.sh --layers 3 --d-model 256
# curves.png there has loss and BLEU after each epoch. RATES="0.001 0.002" for others.
#SBATCH --job-name=study-learning-rate
#SBATCH --array=1-4
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: for all processes of a run
#SBATCH --time=04:00:00           # EDIT; partition and account too, where the cluster asks for them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."           # sbatch starts a copy of this file from elsewhere
STUDY=${STUDY:-study-learning-rate}
. batch/study.sh

for lr in ${RATES:-0.0003 0.002 0.01 0.05}; do
    run "lr-$lr" "$MODE" "${PROCESSES:-2}" --epochs "${EPOCHS:-5}" --lr "$lr" --batch-tokens 2048 --warmup 100 \
        --layers 1 --d-model 128 --d-ff 256 --average 1 "$@"
done
picture
