"""The host's accounts: believed for a while, and not for ever."""

import os
import pwd

from fgsched.host.accounts import Account, Accounts, look_up

ANN = Account(name="ann", gid=7, home="/home/ann", groups=(7, 8))


class People:
    """Accounts that change, a clock that is set, and a count of the look-ups."""

    def __init__(self):
        self.now, self.asked, self.there = 100.0, 0, {7: ANN}
        self.accounts = Accounts(self.find, lambda: self.now)

    def find(self, uid):
        self.asked += 1
        return self.there.get(uid)


def test_an_account_is_looked_up_once_for_many_starts():
    people = People()
    assert [people.accounts.of(7) for _ in range(100)] == [ANN] * 100
    assert people.asked == 1


def test_an_account_that_changes_is_seen_within_five_seconds():
    people = People()
    people.accounts.of(7)
    people.there.clear()
    people.now += 4.9
    assert people.accounts.of(7) == ANN
    people.now += 0.1
    assert people.accounts.of(7) is None


def test_an_account_that_comes_is_seen_too():
    people = People()
    assert people.accounts.of(9) is None
    people.there[9] = ANN
    people.now += 5
    assert people.accounts.of(9) == ANN


def test_what_the_host_says_of_somebody_is_what_is_found():
    entry = pwd.getpwall()[0]
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    expected = Account(name=entry.pw_name, gid=entry.pw_gid, home=entry.pw_dir, groups=groups)
    assert look_up(entry.pw_uid) == expected
    assert look_up(3_999_999_999) is None
