"""Say in Slurm's words why a submission was refused: programs compare them."""

import re

_PHRASES = (
    (r"invalid account: .*|\S+ may not charge account .*|.* is not for account .*",
     "Invalid account or account/partition combination specified"),
    (r"invalid quality of service: .*|\S+ may not use --qos=.*", "Invalid qos specification"),
    (r"invalid partition: .*", "Invalid partition name specified"),
    (r"invalid reservation: .*", "Requested reservation is invalid"),
)  # fmt: skip


def in_slurms_words(cause: str) -> str:
    """Replace the reason in the cause of an error by Slurm's text for it; other causes stay."""
    before, colon, reason = cause.rpartition("submission failed: ")
    for pattern, phrase in _PHRASES:
        if re.fullmatch(pattern, reason):
            return f"{before}{colon}{phrase}"
    return cause
