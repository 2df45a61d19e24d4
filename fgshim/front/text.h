/* A text that grows, and JSON strings in it. */
#ifndef FG_FRONT_TEXT_H
#define FG_FRONT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
    char *data; /* ends with a NUL */
    size_t size, room;
    bool is_full; /* there was no memory: the text is not whole */
};

void put_bytes(struct text *out, const char *data, size_t size);
void put(struct text *out, const char *data);
void put_format(struct text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append a JSON string. Bytes that are not UTF-8 are escaped as the controller reads them: NUL and two digits. */
void put_quoted(struct text *out, const char *data, size_t size);

/* Append a member of an object: a list of JSON strings, of which NULL is the end. */
void put_list(struct text *out, const char *name, char *const *items);

/* Append the text of the JSON string at `at`; return what follows it, or NULL. */
const char *get_quoted(struct text *out, const char *at);

/* Return what follows the first occurrence of `member`, or NULL. Within strings quotes are escaped. */
const char *after(const struct text *line, const char *member);

#endif
