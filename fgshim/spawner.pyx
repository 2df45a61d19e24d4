# fgspawn: the spawner. It forks a shepherd for each job, and outlives the controller.
#
# Run as root, it is the only program in which jobs become their users. It is therefore small and free of Python: no
# module body runs, all statics start at zero, no memory is allocated after the start, and there are no threads.
# docs/design/native.md has its protocol.
#
# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False

include "spawner/libc.pxi"
include "spawner/text.pxi"
include "spawner/state.pxi"
include "spawner/message.pxi"
include "spawner/files.pxi"
include "spawner/spare.pxi"
include "spawner/cgroup.pxi"
include "spawner/user.pxi"
include "spawner/mounts.pxi"
include "spawner/prove.pxi"
include "spawner/priority.pxi"
include "spawner/child.pxi"
include "spawner/join.pxi"
include "spawner/tree.pxi"
include "spawner/result.pxi"
include "spawner/sweep.pxi"
include "spawner/watch.pxi"
include "spawner/shepherd.pxi"
include "spawner/orphan.pxi"
include "spawner/controller.pxi"
include "spawner/serve.pxi"
include "spawner/start.pxi"
