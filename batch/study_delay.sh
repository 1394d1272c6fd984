#!/bin/sh
# What a slow network costs, with and without accumulation: logs/study-delay/delay.png and runs.csv.
#
#   sh batch/study_delay.sh                                # a laptop; started again it goes on where it stopped
#   sbatch batch/study_delay.sh                            # Slurm, a job a run; --array=1-10%1: one at a time
#   DEVICE=cuda sbatch --gpus-per-node=2 batch/study_delay.sh
#
# Larger: DATA=multi30k STEPS=1000 STUDY=my-study sh batch/study_delay.sh --layers 3 --d-model 256
# As root, where the kernel has netem, the two processes are two nodes on a slow network (batch/netem.sh). Elsewhere,
# or with NETEM=no (to go on with such a study, too), train_ddp.py --delay-ms waits so long before each exchange of
# gradients. With --accumulate 4 a step is four micro-batches of the same size and one exchange: a quarter of the
# waiting for the same sentences.
#SBATCH --job-name=study-delay
#SBATCH --array=1-10
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: for all processes of a run
#SBATCH --time=04:00:00           # EDIT; partition and account too, where the cluster asks for them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."           # sbatch starts a copy of this file from elsewhere
STUDY=${STUDY:-study-delay}
. batch/study.sh

network=''
if [ "$DEVICE ${PROCESSES:-2} ${NETEM:-yes}" = "cpu 2 yes" ] && sh batch/netem.sh 0 works 2>/dev/null; then network=--netem; fi
steps=${STEPS:-80}                                        # of one micro-batch; of four, a quarter as many
for parts in 1 4; do
    for delay in ${DELAYS:-0 1 10 50 100}; do
        if [ "$network" ]; then under="sh batch/netem.sh $delay"; fi
        run "delay-$delay-accumulate-$parts" ddp "${PROCESSES:-2}" --delay-ms "$delay" $network --accumulate "$parts" \
            --batch-tokens $((2048 * parts)) --steps $((steps / parts)) --log-every $((8 / parts)) \
            --layers 2 --d-model 128 --d-ff 512 --average 1 "$@"
    done
done
picture
