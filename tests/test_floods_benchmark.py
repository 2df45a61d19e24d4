"""The benchmark of floods runs, everybody else is answered, and the controller's memory is bounded."""

import json
import subprocess
import sys

import pytest

from asking import DECODER
from fakehost import why_not
from fgsched import protocol
from fgsched.controller.handlers.fields import getters
from live_host import PATIENCE, ROOT

sys.path.append(str(ROOT / "scripts/bench"))
import flood

_WHY_NOT = why_not()
# Of each kind of flood one; scripts/bench/floods makes all.
SHORT = ["junk lines", "history", "never reads", "half sent"]
LONG = ["lists"]
SITE = ["filters"]
KINDS = [*SHORT, "scripts", *LONG, "classes", *SITE]


@pytest.mark.root
@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")
def test_everybody_else_is_answered_during_each_flood_and_memory_is_bounded():
    words = [word for kind in KINDS for word in ("--only", kind)]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/bench/floods", "--json", "--seconds", "0.5", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["flood"]: row for row in json.loads(done.stdout)}
    scenes = (
        ["none", *SHORT, "scripts"],
        ["no question", *LONG],
        ["many classes", "classes"],
        ["slow site", *SITE],
    )
    assert list(rows) == [kind for scene in scenes for kind in scene]
    assert [row["wrong"] for row in rows.values()] == [[]] * len(rows)
    assert all(row["submit"]["n"] and row["operator"]["n"] for row in rows.values())
    assert all(rows[kind]["sent"] > 0 for kind in KINDS), "nobody flooded"
    large = {"scripts"}  # up to two scripts of 4 MiB are in memory as request, text and bytes
    assert {
        kind: row["memory"] for kind, row in rows.items() if row["memory"] > 64 and kind not in large
    } == {}
    assert rows["scripts"]["memory"] < 128
    assert rows["scripts"]["queue"] < 256


@pytest.mark.parametrize("kind", sorted(flood.LONG | {"classes", "history", "ping", "queue"}))
def test_the_requests_of_a_flood_are_answered_and_not_refused(kind):
    for line in set(flood.KINDS[kind][1].splitlines()):
        call = DECODER.decode(line)
        if isinstance(call, (protocol.ListQueue, protocol.ListHistory)):
            assert getters(call.fields)
