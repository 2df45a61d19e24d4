# Cython declarations of include/owner.h.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "owner.h" nogil:
    ctypedef struct fg_owner:
        uint64_t start
        uint64_t image
    int fg_owner_read(uint32_t pid, fg_owner *owner)
    int fg_owner_lives(uint32_t pid, uint64_t start, uint64_t image)
    uint64_t fg_owner_namespace()
    bint fg_owner_sees_its_namespace()
