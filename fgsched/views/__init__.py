"""Show jobs: each value once (`job`), and the tables that name and format values.

- `job`: the derived values of a job, with the attributes that each reads; None is unknown
- `listing`: the table engine: columns as data, formats, delimiters
- `columns`: the columns of jobs for fgq and squeue, fgacct and sacct
- `layouts`: the Key=Value layouts of fgctl show job and scontrol show job
- `documents`: the JSON document of a job, and Slurm's documents
- `wording`: sentences on why a job does not run
- `query`, `table`, `choices`: options that choose jobs and columns
- `display`, `gres`: texts of cells; the GPUs of the host in Slurm's form
"""
