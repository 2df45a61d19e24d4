"""The user who sends a request, and the rights of this user."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from fgsched.config.schema import Config
from fgsched.domain.errors import NoSuchJob, NotPermitted
from fgsched.domain.job import Job
from fgsched.domain.policy import Policy
from fgsched.scheduling.admission import Submitter
from fgsched.system.hostusers import HostUser


class Owned(Protocol):
    """What belongs to a user."""

    @property
    def uid(self) -> int: ...

    @property
    def user(self) -> str: ...


class Caller(Struct, frozen=True):
    """The user at the other end of a connection, as stated by the kernel."""

    uid: int
    gid: int
    name: str
    is_operator: bool
    groups: tuple[str, ...] = ()  # names; queried only if the policy uses groups
    is_confined: bool = False  # True: the site shows this user no jobs of other users
    has_account: bool = True  # False: the user database does not list the uid, as that of a user namespace

    @property
    def submitter(self) -> Submitter:
        return Submitter(user=self.name, groups=self.groups, is_operator=self.is_operator)

    def owns(self, job: Owned) -> bool:
        """Tell whether the user submitted the job.

        A uid can be given to another account later, so the name must be that of the submission, too.
        """
        return self.uid == job.uid and (self.is_operator or self.name == job.user)

    def may_see(self, job: Owned) -> bool:
        """Tell whether the user may know that the job exists."""
        return not self.is_confined or self.owns(job)

    def may_see_secrets(self, job: Job) -> bool:
        """Tell whether the user may see script, environment and arguments: owner or operator."""
        return self.is_operator or self.owns(job)

    def must_own(self, job: Job) -> None:
        """Check that the job belongs to the caller, or the caller is an operator.

        Raises:
            NotPermitted: it belongs to another user.
            NoSuchJob: the site hides it from the caller.
        """
        if not self.may_see(job):
            raise no_such_job(job.id)
        if not self.is_operator and not self.owns(job):
            raise NotPermitted(f"job {job.id} belongs to another user", "Only its owner or an operator may.")

    def must_have_account(self) -> None:
        """Check that the user database lists the uid: quotas, limits and turns are those of accounts.

        Raises:
            NotPermitted: it has none, as each of the 65,536 subordinate uids that a user can take.
        """
        if not self.has_account:
            raise NotPermitted(
                f"uid {self.uid} has no account on this host: it owns no jobs, and gets no reports",
                "Run the command as yourself, outside of user namespaces with subordinate uids.",
            )

    def may_own_jobs(self, least_uid: int) -> None:
        """Check that the caller may own jobs on this host.

        Raises:
            NotPermitted: a system user, or a uid without an account.
        """
        self.must_have_account()
        if self.uid < least_uid:
            raise NotPermitted(
                f"{self.name} (uid {self.uid}) may not own jobs",
                "Submit as yourself. With [jobs] allow_root_jobs = true, root and system users may.",
            )

    def must_operate(self, action: str) -> None:
        """Check that the caller is an operator. Raises NotPermitted."""
        if not self.is_operator:
            raise NotPermitted(
                f"only an operator may {action}", "Operators are root and those in [operators]."
            )


def is_operator(config: Config, uid: int, name: str, groups: Iterable[str], *, own_uid: int) -> bool:
    """Tell whether a user is an operator of the controller of user `own_uid`.

    Args:
        groups: the names of the user's groups.
    """
    if uid in {0, own_uid} or name in config.operators:
        return True
    return any(group in config.operator_groups for group in groups)


_MOST = 256  # users that are remembered


class Callers:
    """The callers by user, each made once for a user of the host, a configuration and a policy.

    A change of one of the three replaces its object: they are compared by identity.
    """

    def __init__(self, own_uid: int) -> None:
        """`own_uid`: the uid of the controller."""
        self._own_uid = own_uid
        self._cache: dict[tuple[int, int], tuple[Caller, HostUser | None, Config, Policy]] = {}

    def of(self, uid: int, gid: int, host_user: HostUser | None, config: Config, policy: Policy) -> Caller:
        """Return the user with this uid; `gid` is the group of the calling process."""
        entry = self._cache.get((uid, gid))
        if entry and entry[1] is host_user and entry[2] is config and entry[3] is policy:
            return entry[0]
        if len(self._cache) >= _MOST:
            self._cache.clear()
        caller = self._made(uid, gid, host_user, config, policy)
        self._cache[uid, gid] = caller, host_user, config, policy
        return caller

    def _made(self, uid: int, gid: int, host_user: HostUser | None, config: Config, policy: Policy) -> Caller:
        name = host_user.name if host_user else str(uid)
        if host_user and gid not in host_user.groups:  # the group of newgrp and sg counts for members only
            gid = host_user.gid
        groups = host_user.named if host_user else ()
        may = is_operator(config, uid, name, groups, own_uid=self._own_uid)
        named = groups if policy.uses_groups else ()
        is_confined = config.private_data and not may
        has_account = host_user is not None or uid in {0, self._own_uid}
        return Caller(uid, gid, name, may, named, is_confined=is_confined, has_account=has_account)


def no_such_job(job_id: int | str) -> NoSuchJob:
    return NoSuchJob(f"Invalid job id specified: {job_id}", "fgq lists open jobs, fgacct ended ones.")
