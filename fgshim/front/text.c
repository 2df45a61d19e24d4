#include "text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void put_bytes(struct text *out, const char *data, size_t size)
{
    if (out->size + size >= out->room) {
        size_t room = 2 * (out->size + size) + 4096;
        char *larger = out->is_full ? NULL : realloc(out->data, room);
        if (!larger) {
            out->is_full = true;
            return;
        }
        out->data = larger;
        out->room = room;
    }
    memcpy(out->data + out->size, data, size);
    out->size += size;
    out->data[out->size] = '\0';
}

void put(struct text *out, const char *data)
{
    put_bytes(out, data, strlen(data));
}

void put_format(struct text *out, const char *format, ...)
{
    char text[256];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (size < 0 || (size_t)size >= sizeof text)
        out->is_full = true;
    else
        put_bytes(out, text, (size_t)size);
}

/* Return the length of the UTF-8 character at `at`, of which `left` bytes exist; 0: it is none. */
static size_t character(const unsigned char *at, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    if (size < 2 || size > left)
        return size == 1;
    uint32_t code = at[0] & (0x7fu >> size);
    for (size_t each = 1; each < size; each++) {
        if (at[each] >> 6 != 2)
            return 0;
        code = code << 6 | (at[each] & 0x3f);
    }
    bool is_half = code >= 0xd800 && code < 0xe000; /* of a surrogate pair */
    return code < least[size] || code > 0x10ffff || is_half ? 0 : size;
}

void put_quoted(struct text *out, const char *data, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)data;
    put(out, "\"");
    for (size_t at = 0; at < size;) {
        size_t length = character(bytes + at, size - at);
        if (!length)
            put_format(out, "\\u0000%02x", bytes[at]);
        else if (bytes[at] < 0x20 || bytes[at] == '"' || bytes[at] == '\\')
            put_format(out, "\\u%04x", bytes[at]);
        else
            put_bytes(out, data + at, length);
        at += length ? length : 1;
    }
    put(out, "\"");
}

void put_list(struct text *out, const char *name, char *const *items)
{
    put(out, ",\"");
    put(out, name);
    put(out, "\":[");
    for (size_t at = 0; items[at]; at++) {
        put(out, at ? "," : "");
        put_quoted(out, items[at], strlen(items[at]));
    }
    put(out, "]");
}

/* Read `count` hexadecimal digits; -1: there are fewer. */
static int hexadecimal(const char *at, int count)
{
    int value = 0;
    for (int each = 0; each < count; each++) {
        const char *digits = "0123456789abcdef";
        const char *found = at[each] ? strchr(digits, at[each] | 0x20) : NULL;
        if (!found)
            return -1;
        value = value << 4 | (int)(found - digits);
    }
    return value;
}

/* Append an escaped character; return what follows it, or NULL. */
static const char *get_escaped(struct text *out, const char *at)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found = *at ? strchr(from, *at) : NULL;
    if (found) {
        put_bytes(out, &to[found - from], 1);
        return at + 1;
    }
    int code = *at == 'u' ? hexadecimal(at + 1, 4) : -1;
    if (code < 0 || code > 0x7f)
        return NULL; /* the controller escapes control characters only */
    int byte = code ? code : hexadecimal(at + 5, 2); /* a byte that is not UTF-8 */
    if (byte < 0)
        return NULL;
    put_bytes(out, &(char){(char)byte}, 1);
    return at + (code ? 5 : 7);
}

const char *get_quoted(struct text *out, const char *at)
{
    if (*at++ != '"')
        return NULL;
    put(out, "");
    while (at && *at && *at != '"') {
        size_t size = strcspn(at, "\"\\");
        put_bytes(out, at, size);
        at += size;
        if (*at == '\\')
            at = get_escaped(out, at + 1);
    }
    return at && *at == '"' ? at + 1 : NULL;
}

const char *after(const struct text *line, const char *member)
{
    const char *found = line->data && !line->is_full ? strstr(line->data, member) : NULL;
    return found ? found + strlen(member) : NULL;
}
