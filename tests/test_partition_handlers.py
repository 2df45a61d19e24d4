"""What operators change of the site: all of one turn counts, and nothing of a turn that is undone."""

import json

import pytest
from msgspec.structs import replace

from asking import carried_out
from builders import ROOT, Part, World, a_demand, a_gpu, full_disk
from fgsched.config.load import Config
from fgsched.config.schema import PartitionSettings
from fgsched.controller.decisionlog import text_of
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.turn import ClientRequest, SendReply
from fgsched.domain.errors import Refused
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState


class SiteFile(Part):
    """A configuration file, and the handlers of partitions."""

    def furnish(self):
        self.config = Config(cpus=8, partitions={"night": PartitionSettings(state="down")})
        self.obeyed = []
        self.world.engine.site.configure(self.config)
        actions = ConfigActions(lambda: self.config, self.obeyed.append)
        self.partitions = PartitionHandlers(self.world.engine, actions)

    def handlers(self):
        return [self.partitions]


def together(world, *requests):
    """Carry out several requests in one turn; return the errors of those that were refused."""
    refused, answers = [], []

    def asked(name, arguments):
        def act(now):
            answer = carried_out(world.handlers(), name, ROOT, arguments, now)
            return SendReply(answers.append, answer)

        return ClientRequest(act, refused.append)

    world.turn(*(asked(name, arguments) for name, arguments in requests))
    return refused


def names(world):
    return [partition.name for partition in world.engine.policy.partitions]


@pytest.fixture
def world():
    return World([a_gpu(0)], site=SiteFile())


def named(name, **values):
    return {"name": name, "values": values}


def test_of_two_changes_of_partitions_in_one_turn_both_last(world):
    together(
        world,
        ("create_partition", named("one")),
        ("create_partition", named("two", max_time="60")),
        ("update_partition", named("one", state="drain")),
        ("update_partition", named("night", state="up")),
    )
    assert names(world) == ["night", "one", "two", "main"]
    for _ in ("now", "after a restart"):
        policy = world.engine.policy
        assert policy.partition("one").state == "drain"
        assert policy.partition("night").state == "up"
        assert policy.partition("two").most.time == 3600
        world.start()


def test_a_partition_that_is_removed_and_made_again_in_one_turn_is_there(world):
    together(world, ("create_partition", named("one", state="down")))
    together(world, ("delete_partition", {"name": "one"}), ("create_partition", named("one")))
    assert world.engine.policy.partition("one").state == "up"


def test_the_file_read_anew_and_a_change_in_the_same_turn_both_count(world):
    world.site.config = replace(world.site.config, share_step=100)
    together(world, ("reconfigure", {}), ("create_partition", named("one")))
    together(world, ("create_partition", named("two")), ("reconfigure", {}))
    assert names(world) == ["night", "one", "two", "main"]
    assert world.engine.limits.share_step == 100
    assert [config.share_step for config in world.site.obeyed] == [100, 100]


def test_a_job_starts_in_the_turn_that_opens_its_partition(world):
    world.submit([a_demand(WHOLE)], partition="night")
    world.settle()
    assert world.job(1).state is JobState.PENDING
    together(world, ("update_partition", named("night", state="up")))
    assert world.host.runs == [1]


def test_a_change_that_could_not_be_stored_is_refused_and_not_obeyed(world):
    together(world, ("create_partition", named("one")))
    before = world.engine.policy
    world.site.config = replace(world.site.config, share_step=100, partitions={})
    with full_disk(world):
        refused = together(
            world,
            ("reconfigure", {}),
            ("update_partition", named("one", state="down")),
            ("create_partition", named("two")),
        )
    assert [error.exit_code for error in refused] == [6, 6, 6]
    assert world.engine.policy == before
    assert world.engine.limits.share_step == 1
    assert world.site.obeyed == []
    together(world, ("update_partition", named("one", max_time="60")))
    assert names(world) == ["night", "one", "main"]


def changed(world, **values):
    """The answer to a change of the partition night."""
    answers = []

    def act(now):
        answer = carried_out(world.handlers(), "update_partition", ROOT, named("night", **values), now)
        return SendReply(answers.append, answer)

    refused = []
    world.turn(ClientRequest(act, refused.append))
    return [answer.warnings for answer in answers], [error.cause for error in refused]


def test_a_change_of_a_partition_is_told_when_it_is_typed_that_it_makes_a_setting_useless(world):
    assert changed(world, max_mem="2G") == ([[]], [])
    assert changed(world, mem="4G") == ([["[partitions.night] mem = 4096M is above its max_mem = 2048M"]], [])
    assert changed(world, mem="", max_mem="", gpus="2") == (
        [["[partitions.night] gpus = 2, but jobs may use 1"]],
        [],
    )
    assert changed(world, gpus="", devices="7")[0][0][0].endswith("devices = 7: this host has no such GPU")


def test_a_stored_value_that_is_refused_now_costs_no_other_change_and_is_told(world, caplog):
    """An earlier version took 8 MiB, which nobody means, and stored it."""
    world.engine.store.kept.remember(
        "partitions", json.dumps({"night": {"max_mem": "8", "state": "up"}, "day": {"wall": "9"}})
    )
    world.engine.site.configure(world.site.config)
    night = world.engine.policy.partition("night")
    assert (night.state, night.most.memory) == ("up", 0)
    assert "max_mem=8 has no unit, and would be MiB; did you mean 8G? Else write 8M" in caplog.text
    assert "a partition has no wall; the stored value is not used" in caplog.text
    ((warning,),), refused = changed(world, max_time="60")
    assert (warning.endswith("did you mean 8G? Else write 8M; the stored value is not used"), refused) == (
        True,
        [],
    )
    assert world.engine.policy.partition("night").most.time == 3600
    assert changed(world, max_mem="8G") == ([[]], [])


def test_a_partition_that_does_not_exist_is_refused_with_the_names_of_those_that_do(world):
    with pytest.raises(Refused) as error:
        world.ask(ROOT, "update_partition", **named("day", state="up"))
    assert error.value.remedy == "This host has night, main."


def test_a_file_that_is_read_again_has_a_line_in_the_log_with_the_settings_that_changed(world):
    world.engine.log.recent_lines.clear()
    together(world, ("reconfigure", {}))
    assert text_of(world.engine.log.recent_lines) == "info event=reconfigure changed=nothing\n"
