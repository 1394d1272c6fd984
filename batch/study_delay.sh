#!/bin/sh
# What a slow network costs, with and without accumulation: delay.png and runs.csv in
# logs/study-delay/.
#
#   sh batch/study_delay.sh                        # a laptop; started again, it goes on
#   sbatch batch/study_delay.sh                    # Slurm, one job per run; --array=1-10%1: in turn
#   DEVICE=cuda sbatch --gpus-per-node=2 batch/study_delay.sh
#
# Larger: DATA=multi30k STEPS=1000 STUDY=my-study sh batch/study_delay.sh --layers 3 --d-model 256
# DELAYS="0 100" tries other delays, in ms; PROCESSES=2 is a setting too.
# As root, where the kernel has netem, the two processes are two nodes on a slow network (netem.sh).
# Elsewhere, or with NETEM=no, --delay-ms makes each process wait before each exchange. A study goes
# on only in the way it was started. With --accumulate 4 a step is four micro-batches of the same
# size and one exchange of gradients: a quarter of the waiting for the same sentences.
#SBATCH --job-name=study-delay
#SBATCH --array=1-10
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2         # EDIT: cores for all processes of a run
#SBATCH --time=04:00:00           # EDIT; add partition and account if the cluster needs them
#SBATCH --output=logs/%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
[ -f batch/study.sh ] || cd "$(dirname "$0")/.."   # sbatch starts a copy of this file elsewhere
STUDY=${STUDY:-study-delay}
. batch/study.sh
n=${PROCESSES:-2} netem=''
if [ "$DEVICE $n ${NETEM:-yes}" = "cpu 2 yes" ] && sh batch/netem.sh 0 works 2>/dev/null; then
    netem=--netem
fi
for parts in 1 4; do                               # STEPS counts micro-batches of 2,048 tokens
    for delay in ${DELAYS:-0 1 10 50 100}; do
        if [ "$netem" ]; then under="sh batch/netem.sh $delay"; fi
        run "delay-$delay-accumulate-$parts" ddp "$n" --delay-ms "$delay" $netem \
            --accumulate "$parts" --batch-tokens $((2048 * parts)) \
            --steps $(((${STEPS:-80} + parts - 1) / parts)) --log-every $((8 / parts)) \
            $(shape 2 128 512) --average-checkpoints 1 "$@"
    done
done
picture
