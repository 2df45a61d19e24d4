"""Store the queue and the accounting data in one SQLite file, used by one process through one connection."""

from sqlite3 import OperationalError as DiskError

from fgsched.store.rows import Allocation, JobRecord, NewJob, PendingRow
from fgsched.store.store import StorageBroken, Store, is_fatal

__all__ = [
    "Allocation",
    "DiskError",
    "JobRecord",
    "NewJob",
    "PendingRow",
    "StorageBroken",
    "Store",
    "is_fatal",
]
