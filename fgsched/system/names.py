"""Helper process that queries the host's name service, which may hang; the controller then kills it.

It runs as a script without the rest of fgsched, to stay small. It reads a uid per packet from descriptor 0
and answers with a packet for `fgsched.system.hostusers`. It exits when the other end is closed.
"""

import grp
import os
import pwd
from collections.abc import Callable

_MAX_QUESTION = 64  # bytes


def answer(uid: int) -> bytes:
    """Return uid, gid, groups, name, home and group names of an account; only the uid if there is none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return b"%d" % uid
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    texts = [entry.pw_name, entry.pw_dir, *map(_name, groups)]
    encoded = b" ".join(text.encode(errors="surrogateescape").hex().encode() or b"-" for text in texts)
    return b"%d %d %s %s" % (uid, entry.pw_gid, ",".join(map(str, groups)).encode(), encoded)


def _name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


def main(reply_to: Callable[[int], bytes] = answer) -> None:
    """Answer until the other end is closed; send nothing when the name service fails."""
    while question := os.read(0, _MAX_QUESTION):
        try:
            reply = reply_to(int(question))
        except OSError:
            continue
        try:
            os.write(0, reply)
        except OSError:  # longer than a packet may be, or the other end is closed
            continue


if __name__ == "__main__":
    main()
