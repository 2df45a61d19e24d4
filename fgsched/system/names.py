"""The process that asks the host's name service. It may hang in it, and is then killed by who started it.

It is run as a script, without the rest of fgsched, so that it stays small. One packet in on descriptor 0, a
uid; one packet out, which `fgsched.system.accounts` reads. It ends when nobody can ask any more.
"""

import grp
import os
import pwd

_LONGEST = 64  # bytes of a question


def answer(uid: int) -> bytes:
    """Return uid, gid, groups, name, home, names of groups of an account; only the uid if there is none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return b"%d" % uid
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    texts = [entry.pw_name, entry.pw_dir, *map(_name, groups)]
    coded = b" ".join(text.encode(errors="surrogateescape").hex().encode() or b"-" for text in texts)
    return b"%d %d %s %s" % (uid, entry.pw_gid, ",".join(map(str, groups)).encode(), coded)


def _name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


def main() -> None:
    """Answer until the other end is closed. A failing service is no answer: silence counts as that."""
    while question := os.read(0, _LONGEST):
        try:
            said = answer(int(question))
        except OSError:
            continue
        try:
            os.write(0, said)
        except OSError:  # longer than a packet may be, or nobody is there
            continue


if __name__ == "__main__":
    main()
