#!/bin/bash
# Print the share that the job got. Submit with: fgsub examples/hello.sh [ARGUMENT]...
#FG --job-name=hello
#FG --gpus=0.25
#FG --time=5m

echo "job $FG_JOB_ID on $FG_JOB_NODELIST: $FG_GPU_FRACTION of GPU $FG_JOB_GPUS, $FG_GPU_MEM_MB MiB of its memory"
echo "arguments: $*"
