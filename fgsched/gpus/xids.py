"""The errors that the driver numbers (Xid), as it tells of them by events."""

from collections.abc import Iterable
from typing import Any

_AT_A_LOOK = 256  # events; a card that makes more tells the rest at the next


class Xids:
    """Listens from the start; `since_last` never waits. A driver without events tells nothing."""

    def __init__(self, nvml: Any, handles: Iterable[Any]) -> None:
        self._nvml, self._set = nvml, None
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for handle in handles:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            except nvml.NVMLError:
                continue  # this card has no such events

    def since_last(self) -> dict[str, tuple[int, ...]]:
        """By UUID, in their order."""
        found: dict[str, tuple[int, ...]] = {}
        nvml = self._nvml
        for _ in range(_AT_A_LOOK if self._set is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError:
                break  # there is no more, or a card is gone
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                found[uuid] = (*found.get(uuid, ()), int(event.eventData))
        return found
