# The main loop of the spawner: read messages, fork, reap.
#
# Exports: serve.
# Needs: controller (Kept, controller_lives, keep_start, start_controller); message (fits_space, incoming,
#   parse); orphan (keeper, n_slots, n_taken, reap_all, tend_all); shepherd (shepherd); spare (remove_spares); state (Answer, Head,
#   Slot, answer, forked_at, now, resting, slot_at, tell, tick); watch (mark, obey).

cdef size_t have  # bytes in `incoming`

cdef packed struct Command:
    uint32_t magic, length
    uint64_t job
    uint32_t attempt
    int32_t value
    uint64_t spare


cdef int free_slot() noexcept nogil:
    global n_slots
    cdef int i
    for i in range(n_slots):
        if keeper[i] == 0:
            return i
    if n_slots == SLOTS:
        return -1
    n_slots += 1
    return n_slots - 1


cdef void refuse_message(const Head *head, int error) noexcept nogil:
    cdef Answer word
    memset(&word, 0, sizeof(word))
    word.magic = ANSWER_MAGIC
    word.attempt = head.attempt
    word.job = head.job
    word.error = error
    dprintf(2, b"fgspawn: job %lu: launch refused: %s\n", <unsigned long> head.job, strerrordesc_np(error))
    tell(&word)


cdef int choose() noexcept nogil:
    """Reserve a resting shepherd and return its index; -1 if there is none.

    The controller must live, checked after the rest was seen: it then knows the result of the last job, and no
    later controller, which may have adopted that job, waits for this shepherd to end.
    """
    cdef int i
    for i in range(n_slots):
        if fg_load(resting + i) == RESTING and keeper[i] > 0 and fg_swap(resting + i, RESTING, CHOSEN):
            if controller_lives():
                return i
            fg_store(resting + i, RESTING)
            return -1
    return -1


cdef void start_job(const char *message) noexcept nogil:
    """Start a job in a resting shepherd, or in a new one."""
    cdef const Head *head = <const Head *> message
    cdef int index = choose() if fits_space(head) else -1
    if index < 0:
        start_shepherd(message)
        return
    if parse(message, slot_at(index)):
        slot_at(index).phase = FORKED
        fg_store(resting + index, AT_WORK)
    else:
        slot_at(index).phase = STORED  # so that its end is not taken for a lost job
        refuse_message(head, EINVAL)
        fg_store(resting + index, RESTING)
    fg_wake(resting + index)


cdef void start_shepherd(const char *message) noexcept nogil:
    global forked_at
    cdef int index = free_slot()
    cdef Slot *slot
    cdef pid_t pid
    if index < 0:
        refuse_message(<const Head *> message, EAGAIN)
        return
    slot = slot_at(index)
    if not parse(message, slot):
        refuse_message(<const Head *> message, EINVAL)
        return
    slot.phase = FORKED
    fg_store(resting + index, AT_WORK)
    forked_at = tick()
    pid = fork()
    if pid == 0:
        shepherd(index)
    if pid < 0:
        answer(slot, 0, errno, 0)
        return
    keeper[index] = pid


cdef void pass_command(const Command *command) noexcept nogil:
    """Pass a command to a job that has no shepherd to signal."""
    cdef Slot *slot
    cdef int i
    reap_all()  # the sender may know of the shepherd's end before this process
    for i in range(n_slots):
        slot = slot_at(i)
        if keeper[i] == NO_KEEPER and slot.head.job == command.job and slot.head.attempt == command.attempt:
            obey(slot, command.value)


cdef void pass_order(uint32_t meant, int value) noexcept nogil:
    """Carry out a command that came as a signal, from a later controller without a socket to this spawner."""
    cdef int i
    if value & 0xff == VERB_CONTROLLER:
        start_controller()
        return
    reap_all()
    for i in range(n_slots):
        if keeper[i] == NO_KEEPER and mark(&slot_at(i).head) == meant:
            obey(slot_at(i), value)


cdef void hear(int signals) noexcept nogil:
    """Read the pending signals. Each command is a signal; of children, the fact is enough."""
    cdef signalfd_siginfo heard[8]
    cdef ssize_t got = read(signals, heard, sizeof(heard))
    cdef int i
    for i in range(<int> (got // <ssize_t> sizeof(signalfd_siginfo)) if got > 0 else 0):
        if heard[i].ssi_signo == <uint32_t> fg_command_signal():
            pass_order(<uint32_t> (heard[i].ssi_ptr >> 32), <int> heard[i].ssi_ptr)


cdef long next_message(const char *at, size_t left) noexcept nogil:
    """Carry out one message. Return its length; 0 if it is incomplete; -1 if this is no message."""
    cdef const Head *head = <const Head *> at
    if left < 8:
        return 0
    if head.magic == COMMAND_MAGIC and head.length == COMMAND_SIZE:
        if left >= COMMAND_SIZE:
            pass_command(<const Command *> at)
    elif head.magic == KEPT_MAGIC and sizeof(Kept) <= head.length <= KEPT_ROOM:
        if left >= head.length:
            keep_start(<const Kept *> at)
    elif head.magic == LAUNCH_MAGIC and sizeof(Head) <= head.length <= MESSAGE_ROOM:
        if left >= head.length:
            start_job(at)
    else:
        return -1
    return head.length if left >= head.length else 0


cdef void hang_up() noexcept nogil:
    """Close the socket, and let resting shepherds end."""
    global channel
    cdef int i
    close(channel)
    channel = -1
    for i in range(n_slots):
        if fg_swap(resting + i, RESTING, LEAVING):
            fg_wake(resting + i)


cdef int takes_more() noexcept nogil:
    """Return whether the controller accepts more words without blocking, or is gone."""
    cdef pollfd socket
    socket.fd = channel
    socket.events = <short> POLLOUT
    socket.revents = 0
    return channel < 0 or poll(&socket, 1, 0) > 0


cdef void pass_on(int told) noexcept nogil:
    """Pass the words of shepherds to the controller. Each word is written at once, so it is complete."""
    cdef char words[4096]
    cdef ssize_t got = read(told, words, sizeof(words)), done = 0, sent
    while channel >= 0 and done < got:
        sent = send(channel, words + done, <size_t> (got - done), MSG_NOSIGNAL)
        if sent < 0 and errno != EINTR:
            return
        done += sent if sent > 0 else 0


cdef void receive() noexcept nogil:
    """Read from the socket and carry out every complete message."""
    global have
    cdef long length = 1
    cdef size_t at = 0, most
    cdef ssize_t got = recv(channel, incoming + have, MESSAGE_ROOM - have, MSG_DONTWAIT)
    if got <= 0:
        if got == 0 or (errno != EAGAIN and errno != EINTR):
            hang_up()
        return
    have += <size_t> got
    most = have
    while length > 0:
        length = next_message(incoming + at, have - at)
        at += <size_t> length if length > 0 else 0
    if length < 0:
        dprintf(2, b"fgspawn: what came over the socket is no message; listening no more\n")
        hang_up()
        return
    have -= at
    memmove(incoming, incoming + at, have)
    if have == 0 and most > 262144:  # a fork copies touched pages
        madvise(<void *> ((<size_t> incoming + 4095) & ~<size_t> 4095), MESSAGE_ROOM - 4096, MADV_DONTNEED)


cdef void serve(int signals, int told) noexcept nogil:
    """Serve until the controller has closed the socket and no child is left."""
    cdef pollfd awaited[3]
    cdef timespec wait
    cdef int64_t due, left
    cdef int full = 0  # 1: the controller must read first; words wait in the pipe
    while reap_all() or channel >= 0 or n_taken:
        due = tend_all()
        left = due - now() if due else 0
        left = left if left > 0 else 0
        wait.tv_sec = left // 1000
        wait.tv_nsec = left % 1000 * 1000000
        awaited[0].fd = channel  # poll ignores -1
        awaited[1].fd = signals
        awaited[2].fd = -1 if full else told
        awaited[1].events = awaited[2].events = <short> POLLIN
        awaited[0].events = <short> (POLLIN | POLLOUT if full else POLLIN)
        awaited[0].revents = awaited[1].revents = awaited[2].revents = 0
        ppoll(awaited, 3, &wait if due else NULL, NULL)
        if awaited[1].revents:
            hear(signals)
        if awaited[2].revents or full:
            full = not takes_more()
            if not full:
                pass_on(told)
        if awaited[0].revents & ~POLLOUT:
            receive()
    remove_spares(n_slots)
