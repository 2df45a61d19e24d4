# Texts are put together here and not by printf, whose pages every shepherd would have to map.

cdef char work_path[4096 + 128]  # the path at hand; a child that is about to execute still reads it


cdef char *put(char *at, const char *text) noexcept nogil:
    """Copy a string; where it ended, so that more can follow."""
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
    """A number and the blank before it."""
    return put_number(put(at, b" "), number)
