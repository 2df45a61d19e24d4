/* The addresses of all mappings, in order: to find those within a range, or the one that contains an address, without a
 * walk through the table of entries. Under fg_own_lock. */
#ifndef FG_ADDRESS_INDEX_H
#define FG_ADDRESS_INDEX_H
#include <stdint.h>

#pragma GCC visibility push(hidden)
/* Add an address. Return 0 if there is no memory for it. */
int fg_index_add(uint64_t address);
void fg_index_remove(uint64_t address);
/* Return the lowest address that is not below this one; UINT64_MAX if there is none. */
uint64_t fg_index_from(uint64_t address);
/* Return the highest address that is not above this one; UINT64_MAX if there is none. */
uint64_t fg_index_until(uint64_t address);
/* Forget all, in the child of a fork. */
void fg_index_clear(void);
#pragma GCC visibility pop
#endif
