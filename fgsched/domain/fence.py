"""The request for a fence around programs that are no jobs, and the reply."""

from collections.abc import Mapping

from msgspec import Struct

from fgsched.domain.job import Demand

FENCE_DIR = "FG_FENCE_DIR"  # variable of the programs in a fence


class FenceRequest(Struct, frozen=True, kw_only=True):
    """What fgfence asks for."""

    demand: Demand
    pid: int  # the fence lasts at least as long as this process
    follows: bool  # the descendants of this process are in the fence
    run: str  # the user's run directory
    gpus: str = ""  # GPUs to choose from, as a list of indices; "": as the environment says
    compute: str = "none"  # how launches are paced: none or hard


class FenceReply(Struct, frozen=True, kw_only=True):
    """The variables of the programs in a fence, or why there is no fence."""

    environment: Mapping[str, str] = {}
    cause: str = ""
    remedy: str = ""
