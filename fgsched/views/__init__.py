"""Show jobs: each value once (`job`), its columns, keys and pairs in one row (`fields`), and their engines.

- `job`: the derived values of a job, with the attributes that each reads; None is unknown
- `fields`: the table of values: every column, key of a document and pair of a layout, and their orders
- `listing`: the table engine: columns as data, formats, delimiters
- `columns`: formats and sort keys of fgq and squeue, fgacct and sacct, read from a user's text
- `documents`: the JSON document of a job, Slurm's documents, and Key=Value pairs of fgctl and scontrol show
- `slurmtext`: Slurm's documents as JSON and YAML
- `wording`: sentences on why a job does not run
- `options`: the options of all commands; `getopt`: the reader of all command lines
- `query`, `choices`: options that choose jobs and columns
- `host`: GPUs, partitions and the node: values, layouts and documents
- `display`: texts in terminal columns, and the frame of documents
"""
