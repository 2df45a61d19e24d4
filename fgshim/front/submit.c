/* fgsub: send the command line to the controller, which reads it and queues the job.
 *
 * The Python command does whatever is not an ordinary submission that succeeds at once: help, errors, lists, a
 * controller that does not run. It gets the key of a request without an answer, so that the job is queued once, and
 * keeps it for a repeated command before it does anything else.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "front.h"

enum {
    LONGEST_SCRIPT = 65536, /* bytes; the controller reads no longer ones */
    MOST_SCRIPTS = 8,       /* words that are looked at: only one is the script */
};

extern char **environ;

/* Tell whether an earlier submission has had no answer: the Python command may have to repeat its key. */
static bool has_unanswered(void)
{
    char path[160];
    errno = 0;
    if (!own_run(path, sizeof path - sizeof "/unanswered"))
        return errno != ENOENT;
    strcat(path, "/unanswered");
    DIR *folder = opendir(path);
    if (!folder)
        return errno != ENOENT;
    struct dirent *entry;
    bool has = false;
    while (!has && (entry = readdir(folder)))
        has = entry->d_name[0] != '.';
    closedir(folder);
    return has;
}

/* -- the request ------------------------------------------------------------------------------------ */

/* Write the text of a script as a member of `files`; nothing, if the word names no small script. */
static bool put_script(struct text *out, const char *word, bool is_first)
{
    static char data[LONGEST_SCRIPT + 1];
    struct stat found;
    if (word[0] == '-' || strncmp(word, "/dev/", 5) == 0 || strncmp(word, "/proc/", 6) == 0)
        return false;
    int fd = open(word, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t size = fstat(fd, &found) == 0 && S_ISREG(found.st_mode) ? read(fd, data, sizeof data) : -1;
    close(fd);
    if (size < 2 || size > LONGEST_SCRIPT || memcmp(data, "#!", 2) != 0 || memchr(data, 0, (size_t)size))
        return false;
    put(out, is_first ? "" : ",");
    put_quoted(out, word, strlen(word));
    put(out, ":");
    put_quoted(out, data, (size_t)size);
    return true;
}

static void put_scripts(struct text *out, char *const *words)
{
    int count = 0;
    put(out, ",\"files\":{");
    for (; *words && count < MOST_SCRIPTS; words++)
        count += put_script(out, *words, count == 0);
    put(out, "}");
}

static void put_limits(struct text *out)
{
    put(out, ",\"rlimits\":[");
    for (int each = 0; each < RLIM_NLIMITS; each++) {
        struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
        if (each == RLIMIT_LOCKS)
            continue; /* the kernel has no such limit any more */
        getrlimit(each, &limit);
        put(out, each ? "," : "");
        put_format(out, "[%d,%lld,%lld]", each, (long long)limit.rlim_cur, (long long)limit.rlim_max);
    }
    put(out, "]");
}

/* Write the request; false: leave it to the Python command. */
static bool put_request(struct text *out, const struct command *command, bool is_checked)
{
    char cwd[4096];
    mode_t mask = umask(077);
    umask(mask);
    if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/' || access(cwd, W_OK | X_OK) != 0)
        return false; /* the Python command warns of an output file that cannot be created there */
    put_format(out, "{\"v\":%d,\"op\":\"submit_line\",\"key\":\"%s\",\"cwd\":", FG_PROTOCOL, command->key);
    put_quoted(out, cwd, strlen(cwd));
    put_list(out, "words", command->words);
    put_list(out, "environ", environ);
    put_format(out, ",\"umask\":%u", (unsigned)mask);
    put_limits(out);
    put_scripts(out, command->words);
    put_format(out, ",\"terminal\":%s,\"checked\":%s,\"name\":\"%s\"}\n", isatty(2) ? "true" : "false",
               is_checked ? "true" : "false", strcmp(command->name, "sbatch") == 0 ? "sbatch" : "fgsub");
    return !out->is_full;
}

/* -- the answer ------------------------------------------------------------------------------------- */

/* Tell whether a file can be written, or created. */
static bool is_writable(const char *path)
{
    char directory[4096];
    const char *name = strrchr(path, '/');
    size_t length = name > path ? (size_t)(name - path) : 1; /* "/" */
    if (access(path, F_OK) == 0)
        return access(path, W_OK) == 0;
    if (!name || length >= sizeof directory)
        return false;
    memcpy(directory, path, length);
    directory[length] = '\0';
    return access(directory, W_OK | X_OK) == 0;
}

/* Check a path as the controller asked: "d": a directory; "x": can be entered; "f": not a directory; "w": a file that
   can be written. */
static bool holds(const char *check)
{
    struct stat found;
    const char *path = check + 1;
    if (check[0] == 'x')
        return access(path, X_OK) == 0;
    if (check[0] == 'w')
        return is_writable(path);
    bool is_directory = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    return (check[0] == 'd') == is_directory;
}

/* Check the paths of an answer; false: one is wrong, and the Python command says which. */
static bool all_hold(const struct text *line, bool *has_any)
{
    const char *at = after(line, "\"checks\":[");
    *has_any = at && *at == '"';
    while (at && *at == '"') {
        struct text path = {0};
        at = get_quoted(&path, at);
        if (!at || path.is_full || !holds(path.data))
            return false;
        at += *at == ',';
    }
    return at != NULL;
}

/* Write a text member of the answer to a descriptor. */
static bool show(const struct text *line, const char *member, int fd)
{
    struct text text = {0};
    const char *at = after(line, member);
    if (!at || !get_quoted(&text, at) || text.is_full)
        return false;
    return write_all(fd, &text);
}

/* Send the request and read the answer; false: leave it to the Python command. */
static bool ask(int fd, struct command *command, bool is_checked, struct text *line)
{
    struct text request = {0};
    if (!put_request(&request, command, is_checked))
        return false;
    command->is_sent = true;
    bool is_answered = send_all(fd, request.data, request.size) && receive_line(fd, line);
    command->is_sent = !is_answered;
    return is_answered && after(line, "\"ok\":{") && after(line, "\"elsewhere\":false");
}

/* Submit the line; false: leave it to the Python command. */
static bool send_line(int fd, struct command *command, struct text *line)
{
    bool has_checks;
    if (!ask(fd, command, false, line) || !all_hold(line, &has_checks))
        return false;
    if (!has_checks)
        return true;
    *line = (struct text){0};
    return ask(fd, command, true, line);
}

/* Print the answer; return the exit status. */
static int report(const struct command *command, const struct text *line)
{
    show(line, "\"err\":", 2);
    if (show(line, "\"out\":", 1))
        return 0;
    const char *first = after(line, "\"first\":");
    fprintf(stderr, "%s: error: submitted batch job %lu, and %s on stdout\n", command->name,
            first ? strtoul(first, NULL, 10) : 0, strerror(errno));
    return 6;
}

/* Make a key as `new_key` of fgsched/system/unanswered.py does: the milliseconds since the epoch, then 80 random bits. */
static void make_key(char key[KEY_SIZE])
{
    unsigned char bytes[10];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        abort();
    unsigned long long milliseconds = (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
    snprintf(key, KEY_SIZE, "t%011llx", milliseconds);
    for (size_t at = 0; at < sizeof bytes; at++)
        snprintf(key + 12 + 2 * at, 3, "%02x", bytes[at]);
}

/* Hold back Ctrl-C and its like until the answer: it is there in milliseconds, or the Python command waits.
 *
 * If the request has no answer, the signals stay blocked until the Python command has kept the key.
 */
static void hold_signals(sigset_t *before)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGHUP);
    sigprocmask(SIG_BLOCK, &held, before);
}

int submit(struct command *command)
{
    struct controller controller;
    struct text line = {0};
    sigset_t before;
    make_key(command->key);
    int fd = find_controller(&controller) && !has_unanswered() ? dial(&controller) : -1;
    hold_signals(&before);
    bool is_done = fd >= 0 && send_line(fd, command, &line);
    int status = is_done ? report(command, &line) : -1;
    if (!command->is_sent)
        sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
