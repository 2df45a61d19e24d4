"""What operators change of the site: all of one turn counts, and nothing of a turn that is undone."""

import json

import pytest
from msgspec.structs import replace

from asking import carried_out
from builders import ROOT, World, a_demand, a_gpu, full_disk
from fgsched.config.load import Config
from fgsched.config.schema import PartitionSettings
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.turn import ClientRequest, SendReply
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState


class SiteWorld(World):
    """A world with the handlers of partitions, and a configuration file."""

    def furnish(self):
        self.file = Config(cpus=8, partitions={"night": PartitionSettings(state="down")})
        self.obeyed = []
        self.engine.site.configure(self.file)
        self.handlers = PartitionHandlers(self.engine, ConfigActions(lambda: self.file, self.obeyed.append))

    def together(self, *requests):
        """Several requests in one turn; the errors of those that were refused."""
        refused, answers = [], []

        def asked(name, arguments):
            def act(now):
                answer = carried_out([self.handlers], name, ROOT, arguments, now)
                return SendReply(answers.append, answer)

            return ClientRequest(act, refused.append)

        self.turn(*(asked(name, arguments) for name, arguments in requests))
        return refused

    def names(self):
        return [one.name for one in self.engine.policy.partitions]


@pytest.fixture
def site():
    return SiteWorld([a_gpu(0)])


def named(name, **values):
    return {"name": name, "values": values}


def test_of_two_changes_of_partitions_in_one_turn_both_last(site):
    site.together(
        ("create_partition", named("one")),
        ("create_partition", named("two", max_time="60")),
        ("update_partition", named("one", state="drain")),
        ("update_partition", named("night", state="up")),
    )
    assert site.names() == ["night", "one", "two", "main"]
    for _ in ("now", "after a restart"):
        policy = site.engine.policy
        assert policy.partition("one").state == "drain"
        assert policy.partition("night").state == "up"
        assert policy.partition("two").most.time == 3600
        site.start()


def test_a_partition_that_is_removed_and_made_again_in_one_turn_is_there(site):
    site.together(("create_partition", named("one", state="down")))
    site.together(("delete_partition", {"name": "one"}), ("create_partition", named("one")))
    assert site.engine.policy.partition("one").state == "up"


def test_the_file_read_anew_and_a_change_in_the_same_turn_both_count(site):
    site.file = replace(site.file, share_step=100)
    site.together(("reconfigure", {}), ("create_partition", named("one")))
    site.together(("create_partition", named("two")), ("reconfigure", {}))
    assert site.names() == ["night", "one", "two", "main"]
    assert site.engine.limits.share_step == 100
    assert [config.share_step for config in site.obeyed] == [100, 100]


def test_a_job_starts_in_the_turn_that_opens_its_partition(site):
    site.submit([a_demand(WHOLE)], partition="night")
    site.settle()
    assert site.job(1).state is JobState.PENDING
    site.together(("update_partition", named("night", state="up")))
    assert site.host.runs == [1]


def test_a_change_that_could_not_be_stored_is_refused_and_not_obeyed(site):
    site.together(("create_partition", named("one")))
    before = site.engine.policy
    site.file = replace(site.file, share_step=100, partitions={})
    with full_disk(site):
        refused = site.together(
            ("reconfigure", {}),
            ("update_partition", named("one", state="down")),
            ("create_partition", named("two")),
        )
    assert [error.exit_code for error in refused] == [6, 6, 6]
    assert site.engine.policy == before
    assert site.engine.limits.share_step == 1
    assert site.obeyed == []
    site.together(("update_partition", named("one", max_time="60")))
    assert site.names() == ["night", "one", "main"]


def changed(site, **values):
    """The answer to a change of the partition night."""
    answers = []

    def act(now):
        answer = carried_out([site.handlers], "update_partition", ROOT, named("night", **values), now)
        return SendReply(answers.append, answer)

    refused = []
    site.turn(ClientRequest(act, refused.append))
    return [answer.warnings for answer in answers], [error.cause for error in refused]


def test_a_change_of_a_partition_is_told_when_it_is_typed_that_it_makes_a_setting_useless(site):
    assert changed(site, max_mem="2G") == ([[]], [])
    assert changed(site, mem="4G") == ([["[partitions.night] mem = 4096M is above its max_mem = 2048M"]], [])
    assert changed(site, mem="", max_mem="", gpus="2") == (
        [["[partitions.night] gpus = 2, but jobs may use 1"]],
        [],
    )
    assert changed(site, gpus="", devices="7")[0][0][0].endswith("devices = 7: this host has no such GPU")


def test_a_stored_value_that_is_refused_now_costs_no_other_change_and_is_told(site, caplog):
    """An earlier version took 8 MiB, which nobody means, and stored it."""
    site.engine.store.kept.remember(
        "partitions", json.dumps({"night": {"max_mem": "8", "state": "up"}, "day": {"wall": "9"}})
    )
    site.engine.site.configure(site.file)
    night = site.engine.policy.partition("night")
    assert (night.state, night.most.memory) == ("up", 0)
    assert "max_mem=8 has no unit, and would be MiB; did you mean 8G? Else write 8M" in caplog.text
    assert "a partition has no wall; the stored value is not used" in caplog.text
    ((warning,),), refused = changed(site, max_time="60")
    assert (warning.endswith("did you mean 8G? Else write 8M; the stored value is not used"), refused) == (
        True,
        [],
    )
    assert site.engine.policy.partition("night").most.time == 3600
    assert changed(site, max_mem="8G") == ([[]], [])
