#!/bin/bash
# A Slurm script; fgsub reads its #SBATCH lines. Submit with: fgsub examples/slurm_job.sh
#SBATCH --job-name=from-slurm
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=200M
#SBATCH --gres=gpu:1
#SBATCH --time=00:05:00
#SBATCH --output=slurm-%j.out

echo "job $SLURM_JOB_ID ($SLURM_JOB_NAME) on $SLURM_JOB_NODELIST"
echo "GPUs $CUDA_VISIBLE_DEVICES, $SLURM_CPUS_PER_TASK CPU"
