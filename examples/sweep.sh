#!/bin/bash
# Submit one job for each learning rate and seed with one request; four of them share a GPU.
# This script is not a job. Run it with: bash examples/sweep.sh [fgsub options for all jobs]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

for rate in 0.1 0.01 0.001; do
    for seed in 1 2; do
        # Each line has the arguments of one fgsub command. They override the options given with --batch.
        echo "--job-name=sweep-$rate-$seed '$here/hello.sh' --rate $rate --seed $seed"
    done
done | fgsub --batch=- --gpus=0.25 --output='sweep-%j.out' "$@"
