/* fgq: let the controller read the options and make the rows, and print them.
 *
 * The Python command prints what depends on the reader: times, colours, a table that fits the terminal, text that
 * is not ASCII. It also reports errors, and repeats the request if there is no answer.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"

enum { CANNOT_WRITE = 6 }; /* exit status */

static bool put_request(struct text *out, const struct command *command)
{
    const char *usual = getenv("SQUEUE_FORMAT");
    put_format(out, "{\"v\":%d,\"op\":\"queue_line\",\"name\":\"%s\"", FG_PROTOCOL, command->name);
    put_list(out, "words", command->words);
    put(out, ",\"usual\":");
    put_quoted(out, usual ? usual : "", usual ? strlen(usual) : 0);
    put(out, "}\n");
    return !out->is_full;
}

static bool is_ascii(const struct text *text)
{
    for (size_t at = 0; at < text->size; at++)
        if ((unsigned char)text->data[at] > 0x7f)
            return false;
    return true;
}

/* Join the texts of the answer; false: it is no list of ASCII texts, or the Python command has to read the line. */
static bool join(struct text *out, const struct text *line)
{
    const char *at = after(line, "\"ok\":{\"lines\":[");
    while (at && *at == '"') {
        at = get_quoted(out, at);
        at += at && *at == ',';
    }
    bool is_whole = at && strcmp(at, "],\"elsewhere\":false}}\n") == 0;
    return is_whole && !out->is_full && is_ascii(out) && strlen(out->data ? out->data : "") == out->size;
}

static bool ask(struct text *out, const struct command *command)
{
    struct controller controller;
    struct text request = {0}, line = {0};
    int fd = find_controller(&controller) && put_request(&request, command) ? dial(&controller) : -1;
    return fd >= 0 && send_all(fd, request.data, request.size) && receive_line(fd, &line) && join(out, &line);
}

int show_queue(struct command *command)
{
    struct text rows = {0};
    bool is_squeue = strcmp(command->name, "squeue") == 0;
    if (is_squeue && has_variables("SQUEUE_", "SQUEUE_FORMAT")) /* options */
        return -1;
    if (isatty(1) || !ask(&rows, command))
        return -1;
    if (write_all(1, &rows))
        return 0;
    fprintf(stderr, "%s: error: cannot write the output: %s\n", command->name, strerror(errno));
    return CANNOT_WRITE;
}
