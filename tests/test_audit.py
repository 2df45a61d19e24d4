"""The audit log: who changed the jobs of another user or the host, and who was refused."""

import os
import re
import stat
from collections.abc import Iterator

from builders import a_job
from fgsched import protocol
from fgsched.controller.audit import ACTIONS as RECORDED
from fgsched.controller.audit import Audit, file_writer
from fgsched.controller.caller import Caller
from fgsched.domain.errors import NotPermitted
from fgsched.protocol import Outcome, Outcomes, Problem
from live_host import living

CAROL = Caller(3, 3, "carol", is_operator=True)
BOB = Caller(2, 2, "bob", is_operator=False)
DENIED = NotPermitted("job 7 belongs to another user", "Only its owner or an operator may.")


def lines_of(caller, call, answer, *, times=1, now=0.0):
    """The lines about requests for the jobs 7, 8 (array) and 9, of which ann owns the first two."""
    jobs = {number: a_job(number) for number in (7, 8)} | {9: a_job(9, uid=caller.uid, user=caller.name)}
    lines = []
    audit = Audit(lines.append, jobs.get)
    for _ in range(times):
        told = audit.witness(caller, 4242, call, now)
        if told is not None:
            told(answer)
    return lines


def test_a_line_names_caller_action_jobs_and_owner():
    call = protocol.Cancel(ids=[7, "8_3", 9, 99], reason="secret words")
    answer = Outcomes(jobs=[Outcome(id=name, outcome="cancelled") for name in call.ids])
    assert lines_of(CAROL, call, answer) == [
        "uid=3 user=carol pid=4242 action=cancel jobs=7,8_3 owner=ann result=done"
    ]


def test_a_long_request_gets_as_many_lines_as_name_all_jobs():
    names = [f"8_{task}" for task in range(45)]
    answer = Outcomes(jobs=[Outcome(id=name, outcome="held") for name in names])
    lines = lines_of(CAROL, protocol.HoldJobs(ids=[8]), answer)
    assert [len(re.search(r"jobs=(\S+)", line)[1].split(",")) for line in lines] == [20, 20, 5]


def test_a_task_that_is_named_by_the_id_of_its_row_is_recorded_under_its_name():
    row, lines = a_job(8, array=3, task=2), []
    told = Audit(lines.append, {8: row}.get).witness(CAROL, 4242, protocol.HoldJobs(ids=[8]), 0.0)
    told(Outcomes(jobs=[Outcome(id="3_2", outcome="held")]))
    assert lines == ["uid=3 user=carol pid=4242 action=hold jobs=3_2 owner=ann result=done"]


def test_an_update_names_its_fields_and_no_value():
    call = protocol.Update(id=7, changes=protocol.JobChanges(comment="secret", time_limit=5))
    assert lines_of(CAROL, call, Outcome(id=7)) == [
        "uid=3 user=carol pid=4242 action=update jobs=7 owner=ann changes=comment,time_limit result=done"
    ]


def test_a_refusal_is_recorded_and_a_user_cannot_fill_the_log_with_them():
    call = protocol.Cancel(ids=[7])
    answer = Outcomes(jobs=[Outcome(id=7, error=Problem.of(DENIED))])
    line = "uid=2 user=bob pid=4242 action=cancel jobs=7 owner=ann result=refused"
    assert lines_of(BOB, call, answer) == [line]
    assert lines_of(BOB, protocol.DrainGpu(gpu=0, reason="x"), DENIED) == [
        "uid=2 user=bob pid=4242 action=drain-gpu gpu=0 result=refused"
    ]
    lines = lines_of(BOB, call, answer, times=1000)
    assert lines == [line] * 60 + ['uid=2 note="further refusals of this user are not listed for an hour"']


def test_all_uids_without_an_account_have_the_lines_of_one_user_together():
    lines = []
    audit = Audit(lines.append, {}.get)
    for uid in range(165_536, 165_636):
        stranger = Caller(uid, uid, str(uid), is_operator=False, has_account=False)
        audit.witness(stranger, 4242, protocol.DrainGpu(gpu=0, reason="x"), 0.0)(DENIED)
    assert len(lines) == 61
    assert lines[-1].startswith('uid=165596 note="further refusals of uids without an account are not listed')


def test_an_adoption_names_the_process():
    call = protocol.Adopt(key="k" * 16, pid=77)
    line = "uid=3 user=carol pid=4242 action=adopt process=77 result=done"
    assert lines_of(CAROL, call, protocol.Adopted(job=1, gpus=[0], share=1, memory=1)) == [line]


def test_what_users_do_to_their_own_jobs_is_not_recorded():
    answer = Outcomes(jobs=[Outcome(id=9, outcome="cancelled")])
    assert lines_of(BOB, protocol.Cancel(ids=[9]), answer) == []


def leaves(kind: type) -> Iterator[type]:
    """The calls of the protocol below a class."""
    below = [one for one in kind.__subclasses__() if one.__module__ == "fgsched.protocol"]
    yield from (found for one in below for found in leaves(one))
    if not below:
        yield kind


def test_every_request_that_changes_something_is_recorded_or_left_out_on_purpose():
    left_out = {one.__name__ for one in leaves(protocol.Call) if not one.only_reads and one not in RECORDED}
    assert left_out == {"Submit", "SubmitLine", "NoteWarning"}


def test_only_the_user_of_the_controller_can_read_the_file(tmp_path):
    path = tmp_path / "audit.log"
    old = os.umask(0)
    write = file_writer(path, lambda: 0.0)
    write("uid=0 action=stop result=done")
    os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.fullmatch(r"\S+ info uid=0 action=stop result=done\n", path.read_text())


def test_a_line_that_cannot_be_written_is_in_the_log_of_the_controller(tmp_path, caplog):
    path = tmp_path / "audit.log"
    os.mkfifo(path)  # nobody reads it: it neither holds up the controller nor takes the line
    write = file_writer(path, lambda: 0.0)
    write("uid=0 action=stop result=done")
    path.unlink()
    write("uid=0 action=reconfigure result=done")
    assert [one.message for one in caplog.records] == [
        "audit.log cannot be written (No such device or address): uid=0 action=stop result=done"
    ]
    assert re.fullmatch(r"\S+ info uid=0 action=reconfigure result=done\n", path.read_text())


def test_a_controller_records_acts_of_its_operators(tmp_path):
    with living(tmp_path / "home") as home:
        assert home.run("fgctl", "drain", "gpu=0", "reason=fan").status == 0
        assert home.run("fgctl", "reconfigure").status == 0
        log = (home.path / "audit.log").read_text()
    assert re.findall(r"action=\S+.*", log) == [
        "action=drain-gpu gpu=0 result=done",
        "action=reconfigure result=done",
    ]
    assert f"uid={os.geteuid()} " in log
