# Text formatting without printf, whose pages every shepherd would have to map.
#
# Exports: clean, put, put_field, put_number, work_path.
# Needs: nothing.

cdef char work_path[4096 + 128]  # the current path; a child reads it until it executes


cdef char *put(char *at, const char *text) noexcept nogil:
    """Copy a string and return its end, so that more can follow."""
    while text[0]:
        at[0] = text[0]
        at += 1
        text += 1
    at[0] = 0
    return at


cdef char *put_number(char *at, int64_t number) noexcept nogil:
    cdef char digits[24]
    cdef char *first = digits + 23
    cdef uint64_t left = <uint64_t> number
    if number < 0:
        at = put(at, b"-")
        left = 0 - left
    first[0] = 0
    while True:
        first -= 1
        first[0] = <char> (c'0' + left % 10)
        left = left // 10
        if left == 0:
            return put(at, first)


cdef char *put_field(char *at, int64_t number) noexcept nogil:
    """Write a blank and a number. Return the end."""
    return put_number(put(at, b" "), number)


cdef int character_at(const unsigned char *at) noexcept nogil:
    """Return the length in bytes of the well-formed UTF-8 character that begins here; 0 if there is none."""
    cdef unsigned char first = at[0], second
    cdef int length, i
    if first < 0x80:
        return 1
    if first < 0xc2 or first > 0xf4:
        return 0
    length = 2 if first < 0xe0 else 3 if first < 0xf0 else 4
    for i in range(1, length):
        if at[i] & 0xc0 != 0x80:  # true at the end of the string, too
            return 0
    second = at[1]
    if (first == 0xe0 and second < 0xa0) or (first == 0xed and second > 0x9f):
        return 0
    if (first == 0xf0 and second < 0x90) or (first == 0xf4 and second > 0x8f):
        return 0
    return length


cdef int is_control(const unsigned char *at) noexcept nogil:
    return at[0] < 32 or at[0] == 127 or (at[0] == 0xc2 and at[1] < 0xa0)


cdef void clean(char *text, size_t most) noexcept nogil:
    """Cut to whole UTF-8 characters of at most `most` bytes; replace every other byte by '?'."""
    cdef unsigned char *at = <unsigned char *> text
    cdef int length, i
    while at[0]:
        length = character_at(at)
        if length == 0 or is_control(at):
            length = length if length else 1
            for i in range(length):
                at[i] = c'?'
        if <size_t> (at - <unsigned char *> text) + <size_t> length > most:
            at[0] = 0
            return
        at += length
