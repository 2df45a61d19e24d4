"""The pages: each module makes the context of a template from what was read and the request; pure.

array   one array: its tasks as a grid of states
ended   a job that has ended: what happened, and the line for the next run
gpu     one GPU: its jobs, its last 24 hours, its health, processes outside of jobs
gpubars the bars of GPUs to scale, and bars of an amount of a request
helping the help: keys, words, how to end
icon    the icon of the tab: a bar of the use of the host
job     one job that runs, waits or has ended
now     the first page: the user's jobs, the GPUs, who starts next
pending why a job waits, and the changes that would start it
queue   the open jobs and the jobs of today that have ended, in pages of 100 rows
reports the reports of fgreport as text
submit  the form that makes a command, and when its job would start
words   the words that several pages share: states, times, amounts
"""
