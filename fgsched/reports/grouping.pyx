# cython: boundscheck=False, wraparound=False
"""Group the rows of a query by key, and order numbers.

SQLite sorts the rows that it groups. For the reports on a year of jobs that took as long as everything else.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcpy, memset

cdef enum:
    MOST = 12  # columns that a grouping sums up or compares
    FEW = 512  # numbers that qsort orders as fast


cdef class Numbers:
    """A sequence of floating-point numbers, in 8 bytes each."""

    cdef double *_first
    cdef Py_ssize_t _size, _room

    def __init__(self, values=()):
        for value in values:
            self.push(value)

    def __dealloc__(self):
        free(self._first)

    def __len__(self):
        return self._size

    def __getitem__(self, Py_ssize_t index):
        if index < 0:
            index += self._size
        if not 0 <= index < self._size:
            raise IndexError("index out of range")
        return self._first[index]

    cdef int reserve(self, Py_ssize_t room) except -1:
        cdef double *first
        if room > self._room:
            first = <double *>realloc(self._first, room * sizeof(double))
            if first == NULL:
                raise MemoryError
            self._first, self._room = first, room
        return 0

    cdef int push(self, double value) except -1:
        if self._size == self._room:
            self.reserve(self._room * 2 if self._room else 4)
        self._first[self._size] = value
        self._size += 1
        return 0


# -- order -----------------------------------------------------------------------------------------------


cdef int compare(const void *one, const void *other) noexcept nogil:
    cdef double a = (<const double *>one)[0], b = (<const double *>other)[0]
    return (a > b) - (a < b)


cdef int radix(uint64_t *values, uint64_t *spare, Py_ssize_t size) noexcept nogil:
    """Order the bits of doubles, byte by byte; bytes that all values share are skipped."""
    cdef Py_ssize_t counts[8][256]
    cdef Py_ssize_t at, begin, count
    cdef uint64_t bits, top = <uint64_t>1 << 63
    cdef uint64_t *swap
    cdef int byte, digit, moved = 0
    memset(counts, 0, sizeof(counts))
    for at in range(size):
        bits = values[at]
        bits = ~bits if bits & top else bits | top  # as integers they have the order of the numbers
        values[at] = bits
        for byte in range(8):
            counts[byte][bits >> (8 * byte) & 255] += 1
    for byte in range(8):
        if counts[byte][values[0] >> (8 * byte) & 255] == size:
            continue
        begin = 0
        for digit in range(256):
            count = counts[byte][digit]
            counts[byte][digit] = begin
            begin += count
        for at in range(size):
            digit = values[at] >> (8 * byte) & 255
            spare[counts[byte][digit]] = values[at]
            counts[byte][digit] += 1
        swap, values, spare, moved = spare, spare, values, 1 - moved
    for at in range(size):
        bits = values[at]
        values[at] = bits & ~top if bits & top else ~bits
    return moved


def ordered(parts):
    """Return the numbers of several `Numbers` in ascending order."""
    cdef Numbers found = Numbers(), one
    cdef double *spare
    cdef Py_ssize_t size = 0
    parts = list(parts)
    for one in parts:
        size += one._size
    found.reserve(size)
    for one in parts:
        if one._size:
            memcpy(found._first + found._size, one._first, one._size * sizeof(double))
            found._size += one._size
    if size < FEW:
        qsort(found._first, size, sizeof(double), compare)
        return found
    spare = <double *>calloc(size, sizeof(double))
    if spare == NULL:
        raise MemoryError
    if radix(<uint64_t *>found._first, <uint64_t *>spare, size):
        found._first, spare, found._room = spare, found._first, size
    free(spare)
    return found


# -- groups ----------------------------------------------------------------------------------------------


cdef class Group:
    """The rows with one key."""

    cdef readonly tuple key
    cdef readonly Py_ssize_t rows
    cdef readonly Numbers values  # of the collected column, in the order of the rows
    cdef double results[MOST]
    cdef unsigned int known  # bit of each result that had a value

    def __getitem__(self, int index):
        """Return a sum, maximum or minimum, by its position in `columns`; None: all values were None."""
        if not 0 <= index < MOST:
            raise IndexError("index out of range")
        return self.results[index] if self.known >> index & 1 else None


cdef class Grouping:
    """Groups of rows by the columns `key` (first, beyond the last).

    Args:
        columns: ("sum", "max" or "min", position of a column) of each result.
        collected: position of the column whose values are kept; -1: none.
        least: smaller values are kept as this one.
        required: position of a column; rows with None there are left out; -1: none.
        most: groups; rows of further ones set `is_full`.
    """

    cdef dict _groups
    cdef int _begin, _end, _collected, _required, _size
    cdef int _kinds[MOST]
    cdef int _columns[MOST]
    cdef Py_ssize_t _most, _widest
    cdef double _least
    cdef readonly bint is_full

    def __init__(
        self,
        key,
        columns,
        *,
        int collected=-1,
        int required=-1,
        Py_ssize_t most=1 << 62,
        double least=-INFINITY,
    ):
        self._groups, self._most, self._least = {}, most, least
        self._widest = max(key[1], collected + 1, required + 1, *(column + 1 for _, column in columns))
        self._begin, self._end = key
        self._collected, self._required, self._size = collected, required, len(columns)
        if self._size > MOST:
            raise ValueError(f"at most {MOST} columns")
        for at, (kind, column) in enumerate(columns):
            self._kinds[at] = ("sum", "max", "min").index(kind)
            self._columns[at] = column

    def groups(self):
        """Return the groups in the order of their first rows."""
        return list(self._groups.values())

    cdef int add(self, tuple row) except -1:
        cdef Group group
        cdef tuple key
        if len(row) < self._widest:
            raise ValueError("a row has too few columns")
        if self._required >= 0 and row[self._required] is None:
            return 0
        key = row[self._begin : self._end]
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= self._most:
                self.is_full = True
                return 0
            group = Group()
            group.key, group.values = key, Numbers()
            self._groups[key] = group
        else:
            group = <Group>found
        group.rows += 1
        if self._collected >= 0:
            value = row[self._collected]
            if value is not None:
                group.values.push(max(<double>value, self._least))
        return self.update(group, row)

    cdef int update(self, Group group, tuple row) except -1:
        cdef int at, kind
        cdef double value, before
        for at in range(self._size):
            given = row[self._columns[at]]
            if given is None:
                continue
            value, before, kind = given, group.results[at], self._kinds[at]
            if not group.known >> at & 1:
                group.results[at] = value
                group.known |= 1u << at
            elif kind == 0:
                group.results[at] = before + value
            elif (value > before) if kind == 1 else (value < before):
                group.results[at] = value
        return 0


def group(rows, *groupings):
    """Add rows, which are tuples, to groupings; stop when one of them is full."""
    cdef Grouping one
    for row in rows:
        for one in groupings:
            one.add(row)
            if one.is_full:
                return
