"""One job: its script, its launch, its next step, and its outcome. Never looks at other jobs.

arrays        convert between array texts such as '0-15:4,20%2' and sets of indices
constraint    read the expression of --constraint
containers    parse image and mounts, and write the line by which a job enters its container
dependencies  evaluate a dependency, given the states of the jobs that it names
enforcement   enforcement of a job's share of a GPU: memory limits, mount namespaces, compute time
filenames     expand %-patterns in the names of output, error and input files
jobscript     check the text of a job script, and read its header lines
jobvariables  variables of one job or step, which a job that is submitted inside must not inherit
launchspec    describe a launch as data: identity, environment, files, limits
mail          decide which mails are due when a job changes
mps           the jobs that use the Multi-Process Service, and the steps of its daemons
transitions   decide the next step of one job from its state and the observed processes
watchdog      decide what a query of the GPUs requires for one job: charge, warn, or end it
"""
