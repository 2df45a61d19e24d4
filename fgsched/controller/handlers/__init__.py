"""Handlers of requests. Handlers that write run within the transaction of a turn.

about         describe the controller: version, host, directories, enforcement and log of decisions
accounts      backups, archives, and reports for users who may not read the accounts
adopt         which processes use the GPUs; a process from outside becomes a job
dependencies  dependencies and times of requests, and the conditions of a job that are not met
dispatch      authenticate a request and dispatch it to its handler
events        keep the latest events for readers, and answer readers
explain       explanations and forecasts of pending jobs and of trial submissions
fields        the attributes of `protocol.JobInfo`, which clients receive about a job
jobref        resolve references to jobs: job or array 12, task '12_3', tasks '12_[1-5,8]'
jobs          requests that change jobs and GPUs: cancel, signal, hold, release, requeue, update, drain
longorder     split an order about very many jobs into parts, one for each turn
partitions    changes of the configuration at run time: reread the file, and change partitions
priority      the order of jobs: partitions, priorities, shares; and `top`
query         requests that only read: queue, jobs, history, GPUs
registration  register handlers: a method names the request that it handles, and how it is called
reservations  reservations, which are stored beside the queue
submission    submissions: read the command line, ask the filter of the site, check, and store jobs
wait          answer clients that wait for jobs to end
"""
