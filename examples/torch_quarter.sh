#!/bin/bash
# A training step of PyTorch on a quarter of a GPU. From the directory above this one:
#     fgsub examples/torch_quarter.sh
# PYTHON names an interpreter that has torch.
#FG --job-name=torch-quarter
#FG --gpus=0.25
#FG --time=10m

exec "${PYTHON:-python3}" examples/torch_quarter.py
