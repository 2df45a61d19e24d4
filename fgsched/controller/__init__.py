"""The controller: take in events, decide, commit, and then carry out the effects.

__main__          the program of the controller, which a command or systemd starts
audit             write the audit log: who changed the jobs of another user or the host
bookkeeping       send ended jobs and samples to the accountant
caller            the user who sends a request, and the rights of this user
clients           client connections: reading requests, the order of service
containment       contain unexpected exceptions: record them
daemon            run the controller process: take the lock, start spawner and helper processes
decisionlog       log each decision as one line of `key=value`, after its commit
enforcementcheck  check or set the enforcement of a job with GPUs before its launch
engine            make turns: take in events, plan, commit, and then carry out the effects
eventloop         the event loop: wait for events, collect them for a turn, and send the answers
fencing           the watcher of one fence: make the fence
gpumonitor        monitor the GPUs: query them, assign their processes to jobs
gpustate          the state of the host's GPUs: readings, marks of operators
gputime           tell the arbiter which jobs share GPUs, lend idle time
hooking           run the prolog of a job before its launch and the epilog after its end
jobtable          keep all open jobs in memory
mailing           create the mails of jobs, and put each into the queue of mails exactly once
moving            move ended jobs from the queue to the accounts, and look up moved jobs
mpsdaemons        the MPS daemons of users: their steps in a turn, and their processes
sampling          add each look at the GPUs to the samples, and send completed records to the accountant
service           run the controller: build its parts
sitepolicy        manage the policy of the site: the configuration, operators' changes of partitions
starting          start jobs: update the eligibility of pending jobs, start what fits, preempt, resume
turn              a turn as data: the events that it takes in, its effects
upkeep            work between turns: check and prune the queue, repair the run directory
usage             charge GPU time to accounts and users, and order the queue by it
handlers          handlers of requests
"""

import sys
from importlib import import_module

if "typing_extensions" not in sys.modules:
    # If it is installed, msgspec imports it for names that typing has too: 0.7 MiB, with `inspect`.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import_module("msgspec")
    del sys.modules["typing_extensions"]
