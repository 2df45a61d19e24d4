"""The terms of fgsched: jobs, GPUs, policy, units and errors. They import nothing else of fgsched."""
