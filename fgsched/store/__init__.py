"""The queue and the accounts in one SQLite file, opened by one process through one connection."""

from fgsched.store.rows import Allocation, Past
from fgsched.store.store import NewJob, StorageBroken, Store

__all__ = ["Allocation", "NewJob", "Past", "StorageBroken", "Store"]
