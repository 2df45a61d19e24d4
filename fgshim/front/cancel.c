/* scancel of jobs by number: send the request, which says all, and print nothing if every job is cancelled.
 *
 * The Python command reads all other lines. It also repeats a request that fails, and reports why: to cancel a job
 * twice changes nothing.
 */
#include <string.h>

#include "front.h"

enum {
    LONGEST = 18, /* digits */
    MOST = 1000,  /* jobs */
};

/* Tell whether a word is the number of a job, as the controller writes it. */
static bool is_number(const char *word)
{
    size_t size = strspn(word, "0123456789");
    return size > 0 && size <= LONGEST && !word[size] && word[0] != '0';
}

static bool put_request(struct text *out, char *const *words)
{
    int count = 0;
    put_format(out, "{\"v\":%d,\"op\":\"cancel\",\"ids\":[", FG_PROTOCOL);
    for (; words[count]; count++) {
        if (count == MOST || !is_number(words[count]))
            return false;
        put(out, count ? "," : "");
        put(out, words[count]);
    }
    put(out, "]}\n");
    return count > 0 && !out->is_full;
}

int cancel(struct command *command)
{
    struct controller controller;
    struct text request = {0}, line = {0};
    if (has_variables("SCANCEL_", NULL) || !put_request(&request, command->words) || !find_controller(&controller))
        return -1;
    int fd = dial(&controller);
    bool is_answered = fd >= 0 && send_all(fd, request.data, request.size) && receive_line(fd, &line);
    bool is_done = is_answered && after(&line, "\"ok\":{\"jobs\":[") && !after(&line, "\"error\":");
    return is_done ? 0 : -1;
}
