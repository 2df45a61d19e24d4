"""Decide which jobs start where, and in which order: pure functions of queue, GPUs and policy.

admission     check a request against the site's policy, and fill in partition, account and time limit
capacity      free and reserved capacity during one plan, and a place for a job class
explain       explain pending jobs with the planner: blockers, advice and forecasts, as data
limits        limits of running and pending jobs, and the usage that is compared with them
placement     choose the GPUs for one request, and measure fragmentation; or find why it does not fit
planner       decide which pending jobs start
preemption    choose the cheapest set of running jobs to preempt for a pending job
queue         order the eligible pending jobs: priorities, fair share, and the queue of job classes
reservations  capacity that is kept for later: reservations of operators and of backfill
runtimes      estimate run times from earlier runs of the same work by the same user
"""
