"""The parts of `fgsched init`, `fgsched uninstall` and `fgsched slurm-names`.

plan    what must be there, what is there, and the actions that follow: values only
wanted  what this host needs: files, links and commands
host    find out what this host has, and check it with a job
carry   carry out the actions, and keep the manifest of what was made
slurmnames  the names of Slurm in a directory of PATH, and their completions
run     the commands: plan, carry out, start, check, and say what was done
"""
