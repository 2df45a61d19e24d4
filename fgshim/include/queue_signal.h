/* sigqueue(3) to a process known by a pidfd, so that a reused pid is never signalled. */
#ifndef FG_QUEUE_SIGNAL_H
#define FG_QUEUE_SIGNAL_H
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Queue signal `number` with a value of 64 bits. Return 0, or -1 with errno set. */
static inline int fg_queue_signal(int pidfd, int number, uint64_t value) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = number;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_ptr = (void *)(uintptr_t)value;
    return (int)syscall(SYS_pidfd_send_signal, pidfd, number, &info, 0);
}
#endif
