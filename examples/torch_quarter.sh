#!/bin/bash
# Run a PyTorch training step on a quarter of a GPU. Submit from the parent directory:
#     fgsub examples/torch_quarter.sh
# PYTHON selects an interpreter with torch.
#FG --job-name=torch-quarter
#FG --gpus=0.25
#FG --time=10m

exec "${PYTHON:-python3}" examples/torch_quarter.py
