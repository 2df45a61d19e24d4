#!/bin/bash
# One job for each learning rate and seed, four at a time on a GPU, all queued by one request.
# Not a job itself:    bash examples/sweep.sh [options of fgsub for all of them]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

for rate in 0.1 0.01 0.001; do
    for seed in 1 2; do
        # Each line is what would follow fgsub; its options win over those beside --batch.
        echo "--job-name=sweep-$rate-$seed '$here/hello.sh' --rate $rate --seed $seed"
    done
done | fgsub --batch=- --gpus=0.25 --output='sweep-%j.out' "$@"
