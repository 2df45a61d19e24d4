"""Who asks, and what they may do to which job."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fgsched.domain.errors import BadUsage, NoSuchJob, NotPermitted
from fgsched.domain.job import Job
from fgsched.scheduling.admission import Submitter


@dataclass(frozen=True, slots=True)
class Caller:
    """The user at the other end of a connection, as the kernel says."""

    uid: int
    gid: int
    name: str
    is_operator: bool
    groups: tuple[str, ...] = ()  # names; looked up only where the site goes by groups

    @property
    def submitter(self) -> Submitter:
        return Submitter(user=self.name, groups=self.groups, is_operator=self.is_operator)

    def may_see_secrets(self, job: Job) -> bool:
        """Script, environment and arguments are the owner's."""
        return self.is_operator or self.uid == job.uid

    def must_own(self, job: Job) -> None:
        """NotPermitted unless the job is the caller's, or the caller is an operator."""
        if not self.is_operator and self.uid != job.uid:
            raise NotPermitted(f"job {job.id} belongs to another user", "Only its owner or an operator may.")

    def may_own_jobs(self, least_uid: int) -> None:
        """NotPermitted for root and system users of a host that keeps them from having jobs."""
        if self.uid < least_uid:
            raise NotPermitted(
                f"{self.name} (uid {self.uid}) may not own jobs",
                "Submit as yourself. With [jobs] allow_root_jobs = true, root and system users may.",
            )

    def must_operate(self, what: str) -> None:
        if not self.is_operator:
            raise NotPermitted(f"only an operator may {what}", "Operators are root and [operators] users.")


def operators(names: Collection[str], uid: int, name: str, *, own: int) -> bool:
    """Whether a user operates the controller of user `own`; `names` are those of the configuration."""
    return uid in {0, own} or name in names


def refuse_claims(arguments: Mapping[str, Any]) -> None:
    """Who asks is what the kernel says; a message that says it is wrong or a forgery."""
    if claimed := arguments.keys() & {"uid", "gid", "user"}:
        raise BadUsage(f"a request does not name its {min(claimed)}: the kernel tells who asks")


def no_such_job(job_id: int | str) -> NoSuchJob:
    return NoSuchJob(
        f"Invalid job id specified: {job_id}", "fgq lists the jobs there are, fgacct those ended."
    )
