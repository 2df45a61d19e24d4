"""What a job has of the file system for itself: an /etc/ld.so.preload with the hook, other GPUs' nodes shut.

Programs that clear their environment or become another user keep a hook that is preloaded so.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field

from fgsched.domain.errors import Refused

PRELOAD, DEVICES = "preload", "devices"
WORDS = ("auto", "namespace", "environment")  # of the setting


class MountPlan(Struct, frozen=True, kw_only=True, gc=False):
    """What this host can give to jobs."""

    how: str = ""  # whose mount namespaces: "root", "user"; "": none
    note: str = ""  # why none
    is_required: bool = False  # every job with the hook has one, or does not start
    nodes: Sequence[str] = ()  # of all cards of the host
    node_of: Mapping[str, str] = field(default_factory=dict)  # UUID -> node

    @property
    def word(self) -> str:
        return "namespace" if self.how else "environment"

    @property
    def others(self) -> str:
        """Whether a job can open the nodes of GPUs that it was not given."""
        return "closed" if self.how and self.node_of else "open"

    def of(self, uuids: Collection[str], *, hooked: bool) -> str:
        """What a job with these cards has of its own.

        One without cards holds no device memory that could get away: unless it
        must, it is spared the namespace, which costs short jobs a tenth of their rate.
        """
        if not self.how or not (uuids or self.is_required):
            return ""
        known = self.node_of and all(uuid in self.node_of for uuid in uuids)
        return ",".join([PRELOAD] * hooked + [DEVICES] * bool(known))

    def closed(self, uuids: Collection[str]) -> tuple[str, ...]:
        """The nodes that a job with these cards is not to open."""
        own = {self.node_of[uuid] for uuid in uuids}
        return tuple(node for node in self.nodes if node not in own)

    def check(self, *, hooked: bool) -> None:
        """Refuse a job whose hook must stay, where it would not."""
        if self.is_required and hooked and not self.how:
            raise Refused(
                f'its hook could be lost, and preload = "namespace" is set: {self.note}',
                'preload = "auto" in [fence] of the settings starts jobs all the same.',
            )


def preload_of(mounts: str, *, hooked: bool) -> str:
    """How a job's programs come by the hook, in a word."""
    if PRELOAD in mounts.split(","):
        return "namespace"
    return "environment" if hooked else "none"


def others_of(mounts: str) -> str:
    """Whether a job could open the nodes of GPUs that it was not given."""
    return "closed" if DEVICES in mounts.split(",") else "open"
