/* Symbol look-up in the libraries that are already loaded, without the dynamic linker's own dlsym.
 *
 * dlsym and dlvsym are hooked, and a versioned reference to them is bound to the hook as well. The hook therefore finds
 * the real ones by walking the linker's list of libraries behind its own entry, as RTLD_NEXT would. */
#ifndef FG_LINKER_H
#define FG_LINKER_H
#include <link.h>

#pragma GCC visibility push(hidden)
/* Return the library that contains an address; NULL if there is none. */
struct link_map *fg_map_of(const void *address);
/* Return 1 if a library has this file name or this own name (DT_SONAME). */
int fg_has_name(const struct link_map *map, const char *name);
/* Return the hook's own entry in the list of libraries. */
struct link_map *fg_own_map(void);
/* Return 1 if a driver library contains this address. It is known by its file name or its own name (DT_SONAME). A copy
 * in a namespace of dlmopen is not the driver that the hook calls. */
int fg_is_in_driver(const void *address);
/* Return the address of a symbol that a library defines; NULL if it does not. */
void *fg_defined(const struct link_map *map, const char *name);
/* Return the first definition in the libraries after the hook, then in those before it. */
void *fg_defined_next(const char *name);
/* Return 1 if `later` comes after `map` in the order of loading, or is the same. */
int fg_before(const struct link_map *map, const struct link_map *later);
/* Set each weak reference to a function of CUDA that the driver lacks to NULL, as it is without the hook. */
void fg_clear_weak(void);
/* strcmp without a call. A program may define strcmp, and a sanitizer's cannot be called while its runtime starts and
 * calls dlsym. */
int fg_compare(const char *name, const char *other);
#pragma GCC visibility pop
#endif
