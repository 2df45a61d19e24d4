"""Makes the queue of the present version anew while its schema is not released; those of earlier ones stay.

python tests/data/make_queue.py
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from builders import BOOT, GIB, a_demand, a_gpu, new_jobs  # noqa: E402
from fgsched.domain.job import Ended, Hold  # noqa: E402
from fgsched.domain.states import JobState  # noqa: E402
from fgsched.store import Allocation, Store  # noqa: E402
from fgsched.store.schema import VERSION  # noqa: E402


def make(path: Path) -> None:
    beside = [path.with_name(f"queue.{name}") for name in ("initialised", "commits", "sums")]
    for old in (path, *beside):
        old.unlink(missing_ok=True)
    store = Store(path)
    with store.write():
        store.put_cards([a_gpu(0)])
        first, _ = store.submit(
            new_jobs([a_demand(5000), a_demand(2500)]), key="key-of-16-letters", who=(1, 1, "ann"), now=5.0
        )
        hold = Hold(gpu=0, share=5000, memory=GIB)
        begun = first.advance(JobState.STARTING, attempt=1, holds=(hold,), boot=BOOT, started_at=6.0)
        store.start(first, begun, (Allocation(0, "GPU-0", "Simulated", 5000, GIB, 5000),))
        runs = begun.advance(JobState.RUNNING)
        store.run(begun, runs, now=7.0)
        over = runs.advance(JobState.COMPLETED, holds=(), ended_at=8.0, ended=Ended(status=0))
        store.save(runs, over, now=8.0)
    store.close()
    for made in beside:
        made.unlink()


if __name__ == "__main__":
    make(HERE / f"queue-v{VERSION}.db")
