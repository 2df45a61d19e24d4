"""Store the queue and the accounting data in one SQLite file, used by one process through one connection.

The accountant and the reporter use `wal` and `schema` without the rest.

blobs        store each script and environment once, even if jobs share it
commits      store the number of the last commit of a file of SQLite beside it, to detect lost commits
connection   the connection to the queue file, its prepared statements and its checkpoints
files        write small files beside the queue atomically: its marker, and the list of its damaged pages
moved        the interface to ended jobs that have moved from the queue to the accounts
opening      open the queue file: create a new one, migrate an old one, refuse one that cannot be trusted
outbox       mails that a transaction makes due
recovering   `fgsched doctor --recover`: create a new queue from the readable rows of a damaged one
rows         rows of the table `job` <-> the records of the domain
schema       the schema of the queue: columns derived from the fields of a job, statements
settled      find the ended jobs that can leave the queue
store        read and write the queue file
submissions  find earlier submissions by their keys
sums         keep checksums of the pages of a file of SQLite, queue or accounts, in a file beside it
tasks        rows of an array: one for its pending tasks, and one for each started task
wal          read the write-ahead log of SQLite: which pages its frames contain
"""

from importlib import import_module
from sqlite3 import OperationalError as DiskError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fgsched.store.rows import GpuAllocation, JobRecord, NewJob
    from fgsched.store.store import StorageBroken, Store, is_fatal

__all__ = [
    "DiskError",
    "GpuAllocation",
    "JobRecord",
    "NewJob",
    "StorageBroken",
    "Store",
    "is_fatal",
]


def __getattr__(name: str) -> object:
    """Import a name of `__all__` when it is used for the first time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module("fgsched.store.store"), name)
    return found
