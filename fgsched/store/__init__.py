"""The queue and the accounts in one SQLite file, opened by one process through one connection."""

from sqlite3 import OperationalError as DiskError

from fgsched.store.rows import Allocation, JobRecord, NewJob
from fgsched.store.store import StorageBroken, Store, is_fatal

__all__ = ["Allocation", "DiskError", "JobRecord", "NewJob", "StorageBroken", "Store", "is_fatal"]
