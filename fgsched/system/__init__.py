"""The host: paths, accounts, processes, cgroups, mounts and the directories of users' jobs."""
