"""The host: paths, accounts, processes, cgroups, mounts and the directories of users' jobs.

capture       read the output of a program from a pipe, and keep a bounded part of it
cgroups       the cgroups in which host memory, processes and GPUs of jobs are limited
cleaner       remove directories that users could write to, never through links or mounts
containers    the container runtimes of this host, and the settings of podman
disk          each change of a durable file
earlysignals  keep signals that the controller cannot obey yet, because it is starting
generations   directories of the current queue and of earlier queues below the run directory
helper        helper processes: start, send lines, read, and start again after their end
helpermain    the program of helper processes: run `main` of a module
hostusers     accounts of the host, cached: names, homes and groups
inotify       watch directories for entries that are added or removed
locks         wait for a lock of a file, and name the process that holds it
logins        the resource limits of a user's login
mounts        find out whether jobs can have private mounts here
names         helper process that queries the name service, which may hang
nice          the controller's own resources: limits, descriptors, signals, CPU priority, OOM score
outputs       read the last lines of a job's output with the rights of the job's owner
ownhost       the host to which a queue belongs, and the mark of a controller that is starting
pam           helper process that opens PAM sessions, to find the limits of a login
paths         paths of the state, the run directory, the socket and the configuration
places        directories and files in places that others share, reached through descriptors
preloading    variables of the dynamic loader, and why a preloaded library is not in a process
process       identify processes by pid, start time and boot, and send signals to them
processfiles  files in /proc of other users' processes, read without waiting for them
runplace      decide where the run directory of a user's controller lies
safeopen      open only safe files, and become another user for good
sdnotify      notify the service manager: ready, still alive, stopping
spaces        a limited space for each user in the run directory, and a directory for TMPDIRs
unanswered    keys of submissions without an answer, for the command that repeats them
webplace      where the page of a user lies, and the orders of the command to its process
"""
