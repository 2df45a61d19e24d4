"""Write a message to the error file of a running job."""

import os
import stat

from fgsched import protocol
from fgsched.client import Client, find_places
from fgsched.domain.errors import NotPermitted, Refused
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.views import job as view

_RUNS = {JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED}


def notify(job: int | str, message: str) -> None:
    """Append a line to the error file of a running job of the caller.

    Raises:
        NoSuchJob: there is no such job.
        NotPermitted: it is another user's job; only a process of its owner may write the file.
        Refused: the job does not run, or its error file cannot be written.
    """
    with Client(find_places()) as client:
        found = client.call(protocol.ShowJob(id=job))
    if found.state not in _RUNS:
        raise Refused(f"job {job} does not run", "A message is for a running job.")
    if found.uid != os.geteuid():
        raise NotPermitted(
            f"job {job} belongs to another user", "Only its owner can write into its error file."
        )
    _append(view.files(found).stderr, f"{clean(message)}\n")


def _append(path: str, line: str) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise Refused(f"the error file {path} is no regular file", "Write to the job in another way.")
            os.write(file, line.encode(errors="surrogateescape"))
        finally:
            os.close(file)
    except OSError as error:
        raise Refused(f"the error file {path}: {error.strerror}", "Check the path and the disk.") from None
