"""What sampler, keeper and probe say to each other: one JSON object a line."""

import msgspec

from fgsched.domain.job import Gpu, Reading

INVENTORY = "inventory"
READING = "reading"
USE = "use"  # which process used how much of each card's time since the last such question
FENCE = "fence"  # whether the hook holds here; JSON follows
LIMIT = "limit"  # hold a cgroup to bytes of cards; JSON follows
WAKING = 5  # times its deadline that the very first answer may take: the driver has to wake the cards up


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The driver's answer to one question, or why there is none. On the wire nothing is chosen yet."""

    want: str
    gpus: tuple[Gpu, ...] = ()
    readings: dict[str, Reading] = msgspec.field(default_factory=dict)  # by UUID
    error: str = ""
    limits: bool = False  # the driver can limit a cgroup's device memory
    uses: dict[str, list[list[int]]] = msgspec.field(
        default_factory=dict
    )  # UUID -> pid, percent, from, to (µs)

    @property
    def trouble(self) -> str:
        """Why it says nothing about any card; empty when it does."""
        errors = [reading.error for reading in self.readings.values()]
        return self.error or (errors[0] if errors and all(errors) else "")


_decode = msgspec.json.Decoder(Report).decode


def dump(report: Report) -> bytes:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report) + b"\n"


def load(line: bytes) -> Report:
    """Return the report in a line. Raises ValueError if the line is not a report."""
    try:
        return _decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a report: {error}") from error
