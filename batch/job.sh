# What the SBATCH files share. They source it; then the job is in the folder of the project.
set -eo pipefail
cd "$SLURM_SUBMIT_DIR"
if [ -f .venv/bin/activate ]; then . .venv/bin/activate; fi   # EDIT: or module load, conda activate
container=()                    # EDIT: for a container: (apptainer exec --nv translator.sif)

# srun takes neither the cores from sbatch nor, after sbatch --export=NONE, the environment.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE} SLURM_EXPORT_ENV=ALL
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110         # how long torchrun waits for a run to save

# In an array the number is ARRAY_TASK.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}

# run COMMAND ...: runs a command on each node, and ends the job with its status.
run() {
    trap stop USR1
    srun --kill-on-bad-exit=1 "${container[@]}" "$@" &
    step=$!
    wait "$step" && exit
    status=$?
    # A job that is preempted with a grace time gets SIGTERM, which saves and ends the run, too.
    if [[ $(SLURM_TIME_FORMAT=standard scontrol show job "$job") == *PreemptTime=2* ]]; then scontrol requeue "$job"; fi
    exit "$status"
}

# Near the time limit the run saves and ends, and the job goes back into the queue. It keeps its
# number there, so that --name finds the run again and resumes it.
stop() {
    kill -USR1 "$step"
    if wait "$step"; then exit 0; fi
    scontrol requeue "$job"
    exit
}

# torchrun_on_all_nodes SCRIPT FLAGS ...: runs a training script with one process for each GPU.
torchrun_on_all_nodes() {
    # The processes meet on the first node, at a port that follows from the job's number.
    head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
    port=$((10000 + SLURM_JOB_ID % 20000))
    run torchrun \
        --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-gpu}" \
        --rdzv-backend c10d --rdzv-endpoint "$head:$port" \
        --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
        --max-restarts 3 --signals-to-handle SIGTERM,SIGINT,SIGUSR1,SIGUSR2,SIGXCPU \
        "$1" --name "slurm-$SLURM_JOB_ID" --device cuda "${@:2}"
}
