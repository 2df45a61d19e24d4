"""The made histories hold what the accounts promise, so that reports may be tested on them."""

from collections import defaultdict

import pytest

import history
from fgsched.accounting.ledger import LedgerReader
from fgsched.domain.times import DAY, HOUR

PLANS = {"fortnight": history.FORTNIGHT, "one card": history.ONE_CARD, "empty": history.EMPTY}


@pytest.fixture(params=PLANS, scope="module")
def reader(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "accounts.db"
    history.write(PLANS[request.param], path)
    reader = LedgerReader(path)
    yield reader
    reader.close()


@pytest.mark.parametrize("span", [HOUR, DAY])
def test_the_six_classes_of_a_made_history_add_up_to_the_time_sampled(reader, span):
    uses = list(reader.gpu_uses(span, 0, 2e9))
    assert uses
    for use in uses:
        parts = (use.active, use.held, use.empty, use.free, use.external, use.down)
        assert min(parts) >= -1e-6
        assert abs(sum(parts) - use.sampled) < 1e-6


def test_what_owners_are_charged_in_a_made_history_is_what_their_gpus_were(reader):
    charged = defaultdict(float)
    for use in reader.owner_uses(HOUR, 0, 2e9):
        charged[use.at, use.uuid] += use.charged
    for use in reader.gpu_uses(HOUR, 0, 2e9):
        assert abs(charged[use.at, use.uuid] - use.active - use.held - use.empty) < 1e-6
