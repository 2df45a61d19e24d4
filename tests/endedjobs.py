"""Ended jobs for the accounts, made from columns of the queue's row and fields of JobAccount."""

from msgspec.structs import replace

from fgsched.accounting.records import JobAccount

_FIELDS = set(JobAccount.__struct_fields__)


def an_ended_job(**fields: object) -> JobAccount:
    """Return the account of a job; fields that JobAccount does not have are columns of its row."""
    own, row = _sorted(fields)
    return JobAccount(**own, row={"uid": own["owner"].uid, "user": own["owner"].user, **row})


def changed(job: JobAccount, **fields: object) -> JobAccount:
    """Return an account with other values of these fields."""
    own, row = _sorted(fields)
    if "owner" in own:
        row |= {"uid": own["owner"].uid, "user": own["owner"].user}
    return replace(job, **own, row=job.row | row)


def _sorted(fields: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    own = {name: value for name, value in fields.items() if name in _FIELDS}
    return own, {name: value for name, value in fields.items() if name not in _FIELDS and value is not None}
