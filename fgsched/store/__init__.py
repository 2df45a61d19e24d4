"""Store the queue and the accounting data in one SQLite file, used by one process through one connection.

The accountant and the reporter use `wal` and `schema` without the rest.
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
