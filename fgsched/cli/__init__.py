"""The commands, and what they share.

batch           read `fgsub --batch`: a list of submissions, one command line of fgsub in each line
changes         `fgctl update`: changes of a request, a partition or this host from KEY=VALUE words
command         what all commands share: options, help, version, errors with cause and remedy, exit codes
completing      complete values that the controller or a table knows: job ids, partitions, states, fields
cron            the reports and policies that run regularly, as lines of a crontab or as systemd timers
doctor          the checks of `fgsched doctor`: each is OK, a warning, or a failure with a remedy
effsheet        write the efficiency of jobs as text of 78 columns, and as JSON
enforcement     `fgsched doctor --enforcement`: run jobs that try to exceed their share
fgacct          fgacct: show accounting data of jobs, as sacct does
fgcancel        fgcancel: cancel jobs, or send them a signal
fgctl           fgctl: show and change jobs, GPUs, partitions and reservations, as scontrol does
fgeff           fgeff: show how well jobs used what they asked for, as seff does
fgfence         fgfence: run a command with a part of a GPU, without a queue
fginfo          fginfo: show partitions and GPUs, as sinfo shows partitions and nodes
fgprio          fgprio: show the priority of pending jobs and its factors, as sprio does
fgq             fgq: show the queue, as squeue does
fgreport        fgreport: report the use of the GPUs, by user, and waste
fgrun           fgrun: run a command as a job in the foreground
fgsched         fgsched: start, stop and check the controller
fgshare         fgshare: show fair-share shares, usage and the fair-share factor, as sshare does
fgstat          fgstat: show what running jobs use now, as sstat does
fgsub           fgsub: submit a script or a list of submissions, and print the ids
fgtail          fgtail: print and follow the output of a job with the rights of the caller
fgtop           fgtop: watch GPUs and jobs, full screen
fgwait          fgwait: wait for jobs at a terminal, with their progress, and exit as they did
hint            tell a person at the submission that earlier runs used much less GPU memory
logs            print the controller's log: from files or the journal (`fgsched logs`)
pages           `fgsched help`: the pages that the installation has, and the manual
policy          carry out the policies of the site: on jobs that do not use their GPUs
posting         send a report by mail, as the options --to and --subject of fgreport ask
processes       `fgctl pidinfo` and `fgctl adopt`: processes of jobs, and a process that becomes a job
prospects       show reasons, remedies and expected starts of pending jobs: fgq --why and --start
reporting       make the report that a command line asks for, and write it to the terminal or to a folder
reservation     translate KEY=VALUE words into requests about reservations, and format reservations
restart         restart the controller, also with a version that was just installed
runningjob      verbs of fgctl about a running job: wait until it runs, follow events, attach to it
shells          the completions of the commands for bash, zsh and fish
show            `fgctl show`: all data of a job, a GPU, a partition, a reservation or the configuration
simulating      fgsched simulate: replay jobs on this host or another one in virtual time
start           start a command as a program
statuspage      write the present state of the host: as a report, as a page for a wall screen
steps           steps of jobs, with names such as 12.batch and 12_3.0: rows of fgacct
stopping        stop the controller
terminal        fit tables to the width of a terminal, and colour states and reasons
usageerrors     say what is wrong with a command line that click refuses
web             start, find and end the process of the user's page (`fgsched web`)
install         the parts of `fgsched init`, `fgsched uninstall` and `fgsched slurm-names`
top             the parts of fgtop
"""
