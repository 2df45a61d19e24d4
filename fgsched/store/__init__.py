"""Store the queue and the accounting data in one SQLite file, used by one process through one connection.

The accountant and the reporter use `wal` and `schema` without the rest.

blobs        store each script and environment once, even if jobs share it
connection   the connection to the queue file, its prepared statements and its checkpoints
files        the small files beside queue and accounts: marker, damaged pages, number of commits, checksums
opening      open the queue file: create a new one, migrate an old one, refuse one that cannot be trusted
recovering   `fgsched doctor --recover`: create a new queue from the readable rows of a damaged one
rows         rows of the table `job` <-> the records of the domain
schema       the schema of the queue: columns derived from the fields of a job, statements
store        read and write the queue: jobs, arrays, submissions, mails that are due, ended jobs
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
    globals()[name] = value = getattr(import_module("fgsched.store.store"), name)
    return value
