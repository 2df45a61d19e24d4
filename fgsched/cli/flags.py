"""The options of fgsub that concern the command, not the job."""

from collections.abc import Mapping

from msgspec import Struct

from fgsched.cli.options import Setting


class Flags(Struct, frozen=True, kw_only=True):
    """What to do with a submission, and what to print."""

    parsable: bool = False
    quiet: bool = False
    json: bool = False
    wait: bool = False
    explain: bool = False
    test: bool = False


def flags_of(settings: Mapping[str, Setting]) -> Flags:
    return Flags(
        parsable=is_on(settings, "parsable"),
        quiet=is_on(settings, "quiet"),
        json=is_on(settings, "json"),
        wait=is_on(settings, "wait"),
        explain=is_on(settings, "explain-options"),
        test=is_on(settings, "test-only"),
    )


def is_on(settings: Mapping[str, Setting], slot: str) -> bool:
    return slot in settings and bool(settings[slot].value)
