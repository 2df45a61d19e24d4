"""Run Python functions as jobs: `fgsched.submit(train, "cfg.yaml", gpus=0.5)`.

    arrays      one call for each element of iterables: an array of the queue
    calls       the folders that hold calls and their results
    errors      what `result()` raises
    job         a handle of one job
    outcomes    the value or the error with which a job ended
    pickling    write a call as bytes, or name what cannot be written
    submission  options, request and submission of a call
    task        the program of the job: it needs only Python and cloudpickle
    waiting     one thread that learns from the controller which jobs have ended

`fgsched/__init__.py` exports the names lazily.
"""
