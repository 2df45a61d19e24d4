/* Find the controller, connect to it, and exchange lines with it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "front.h"

extern char **environ;

enum { PATIENCE = 2000 }; /* ms; then the Python command waits for the answer */

static bool is_absolute(const char *text)
{
    return text && text[0] == '/';
}

/* Tell whether the queue of a state directory was last used since another boot: by another host, perhaps. */
static bool is_of_another_boot(const char *state)
{
    char path[4096 + sizeof "/host"], owner[4096], boot[37] = "";
    snprintf(path, sizeof path, "%s/host", state);
    ssize_t size = readlink(path, owner, sizeof owner - 1);
    if (size < 0)
        return false;
    owner[size] = '\0';
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    bool is_known = fd >= 0 && read(fd, boot, 36) == 36;
    if (fd >= 0)
        close(fd);
    return !is_known || !strstr(owner, boot);
}

/* Write where the run directory of a state directory is: `run`, or where that link of the user leads. */
static bool run_of(const char *state, char *run, size_t room)
{
    char path[4096];
    struct stat found;
    int size = snprintf(path, sizeof path, "%s/run", state);
    if (size < 0 || (size_t)size >= sizeof path || strstr(state, "..") || lstat(path, &found) != 0)
        return false;
    if (S_ISLNK(found.st_mode)) {
        ssize_t length = found.st_uid == geteuid() ? readlink(path, run, room - 1) : -1;
        if (length <= 0 || (size_t)length >= room - 1)
            return false;
        run[length] = '\0';
        return is_absolute(run) && !strstr(run, "..");
    }
    return (size_t)snprintf(run, room, "%s", path) < room;
}

/* Write the state directory of a user's controller: FG_HOME, or that of XDG. */
static bool state_of(char *state, size_t room)
{
    const char *named = getenv("FG_HOME"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int size;
    if (named && *named)
        size = is_absolute(named) ? snprintf(state, room, "%s", named) : -1;
    else if (is_absolute(xdg))
        size = snprintf(state, room, "%s/fgsched", xdg);
    else
        size = is_absolute(home) ? snprintf(state, room, "%s/.local/state/fgsched", home) : -1;
    return size > 0 && (size_t)size < room;
}

bool own_run(char *run, size_t room)
{
    char state[4096];
    return state_of(state, sizeof state) && run_of(state, run, room) && !is_of_another_boot(state);
}

bool find_controller(struct controller *it)
{
    const char *home = getenv("FG_HOME");
    size_t room = sizeof it->run - sizeof "/socket";
    it->owner = geteuid();
    if (!(home && *home) &&
        (access("/run/fgsched/socket", F_OK) == 0 || access("/etc/fgsched/initialised", F_OK) == 0)) {
        strcpy(it->run, "/run/fgsched");
        it->owner = 0;
        return true;
    }
    return own_run(it->run, room);
}

/* Tell whether the run directory belongs to the controller, and no other user can write to it. */
static bool is_safe(const struct controller *it)
{
    struct stat found;
    return !strpbrk(it->run, ": \t\n") && lstat(it->run, &found) == 0 && S_ISDIR(found.st_mode) &&
           found.st_uid == it->owner && !(found.st_mode & 022);
}

int dial(const struct controller *it)
{
    if (!is_safe(it))
        return -1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof peer;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", it->run);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == it->owner)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool send_all(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t done = send(fd, data, size, MSG_NOSIGNAL);
        if (done < 0)
            return false;
        data += done;
        size -= (size_t)done;
    }
    return true;
}

bool receive_line(int fd, struct text *line)
{
    char data[65536];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (poll(&wait, 1, PATIENCE) > 0) {
        ssize_t size = recv(fd, data, sizeof data, 0);
        if (size <= 0)
            return false;
        put_bytes(line, data, (size_t)size);
        if (data[size - 1] == '\n')
            return !line->is_full;
    }
    return false;
}

bool has_variables(const char *prefix, const char *except)
{
    for (char **at = environ; *at; at++) {
        size_t size = strcspn(*at, "=");
        bool is_excepted = except && strlen(except) == size && strncmp(*at, except, size) == 0;
        if (strncmp(*at, prefix, strlen(prefix)) == 0 && !is_excepted)
            return true;
    }
    return false;
}

bool are_streams_open(void)
{
    return fcntl(0, F_GETFD) >= 0 && fcntl(1, F_GETFD) >= 0 && fcntl(2, F_GETFD) >= 0;
}

bool write_all(int fd, const struct text *text)
{
    size_t done = 0;
    while (done < text->size) {
        ssize_t size = write(fd, text->data + done, text->size - done);
        if (size < 0)
            return false;
        done += (size_t)size;
    }
    return true;
}
