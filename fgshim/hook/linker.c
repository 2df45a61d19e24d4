#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include "call_table.h"
#include "linker.h"

struct link_map *fg_map_of(const void *address) {
    Dl_info info;
    struct link_map *map = NULL;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

int fg_compare(const char *name, const char *other) {
    while (*name && *name == *other) name++, other++;
    return (int)(unsigned char)*name - (int)(unsigned char)*other;
}

/* The pointer of one entry of a library's dynamic section. glibc relocates these entries, other linkers may not. */
static const char *fg_dynamic(const struct link_map *map, ElfW(Sxword) tag) {
    for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag)
            return (const char *)(d->d_un.d_ptr + (d->d_un.d_ptr < map->l_addr ? map->l_addr : 0));
    return NULL;
}

/* A look-up in the GNU hash table: buckets of chains, whose last element has its lowest bit set. */
void *fg_defined(const struct link_map *map, const char *name) {
    const uint32_t *hash = (const uint32_t *)fg_dynamic(map, DT_GNU_HASH);
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)fg_dynamic(map, DT_SYMTAB);
    const char *strings = fg_dynamic(map, DT_STRTAB);
    uint32_t value = 5381, at;
    if (!hash || !symbols || !strings || !hash[0]) return NULL;
    for (const char *c = name; *c; c++) value = value * 33 + (unsigned char)*c;
    const uint32_t *buckets = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / 4), *chain = buckets + hash[0] - hash[1];
    for (at = buckets[value % hash[0]]; at >= hash[1]; at++) {
        if ((chain[at] | 1) == (value | 1) && symbols[at].st_shndx && !fg_compare(strings + symbols[at].st_name, name))
            return (void *)(map->l_addr + symbols[at].st_value);
        if (chain[at] & 1) break;
    }
    return NULL;
}

void *fg_defined_next(const char *name) {
    struct link_map *own = fg_map_of(fg_calls), *map = own;
    void *found = NULL;
    while (map && !found && (map = map->l_next)) found = fg_defined(map, name);
    for (map = own; map && map->l_prev; ) map = map->l_prev;
    for (; map && map != own && !found; map = map->l_next) found = fg_defined(map, name);
    return found;
}

int fg_before(const struct link_map *map, const struct link_map *later) {
    while (map && map != later) map = map->l_next;
    return map != NULL;
}
