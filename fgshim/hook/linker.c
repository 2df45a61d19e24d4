#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "call_table.h"
#include "linker.h"
#include "old_libc.h"

/* The first library that dl_iterate_phdr lists is the program. Its DT_DEBUG leads to the list of all libraries. */
static int fg_first_map(struct dl_phdr_info *program, size_t size, void *found) {
    (void)size;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        if (program->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *d = (const ElfW(Dyn) *)(program->dlpi_addr + program->dlpi_phdr[i].p_vaddr);
        for (; d->d_tag != DT_NULL; d++)
            if (d->d_tag == DT_DEBUG && d->d_un.d_ptr) *(struct link_map **)found = ((struct r_debug *)d->d_un.d_ptr)->r_map;
    }
    return 1;
}

/* The library with this dynamic section, in the list of libraries. */
static struct link_map *fg_map_with(const void *dynamic) {
    struct link_map *map = NULL;
    if (dl_iterate_phdr) dl_iterate_phdr(fg_first_map, &map);
    while (map && map->l_ld != dynamic) map = map->l_next;
    return map;
}

typedef struct { uintptr_t address; const void *dynamic; } fg_place;
static int fg_find_place(struct dl_phdr_info *library, size_t size, void *data) {
    fg_place *place = data;
    const void *dynamic = NULL;
    int is_in = 0;
    (void)size;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        uintptr_t start = library->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_DYNAMIC) dynamic = (const void *)start;
        if (part->p_type == PT_LOAD && place->address - start < part->p_memsz) is_in = 1;
    }
    if (is_in) place->dynamic = dynamic;
    return is_in;
}

/* musl has no dladdr1, and before glibc 2.34 a program may have none. */
static struct link_map *fg_map_by_walking(const void *address) {
    fg_place place = {(uintptr_t)address, NULL};
    if (dl_iterate_phdr) dl_iterate_phdr(fg_find_place, &place);
    return place.dynamic ? fg_map_with(place.dynamic) : NULL;
}

struct link_map *fg_map_of(const void *address) {
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1) return fg_map_by_walking(address);
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

struct link_map *fg_own_map(void) { return fg_map_of(fg_calls); }

static const char *fg_file_name(const char *path) {
    const char *name = path;
    for (; *path; path++) if (*path == '/') name = path + 1;
    return name;
}
static int fg_begins_with(const char *name, const char *start) {
    while (*start && *name == *start) name++, start++;
    return !*start;
}
static int fg_is_driver_name(const char *name) {
    return fg_begins_with(name, "libcuda.so") || fg_begins_with(name, "libnvidia-ml.so");
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

/* The number of one entry of a library's dynamic section; 0: there is none. */
static uint64_t fg_amount(const struct link_map *map, ElfW(Sxword) tag) {
    for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag) return d->d_un.d_val;
    return 0;
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
    struct link_map *own = fg_own_map(), *map = own;
    void *found = NULL;
    while (map && !found && (map = map->l_next)) found = fg_defined(map, name);
    for (map = own; map && map->l_prev; ) map = map->l_prev;
    for (; map && map != own && !found; map = map->l_next) found = fg_defined(map, name);
    return found;
}

int fg_has_name(const struct link_map *map, const char *name) {
    const char *strings = fg_dynamic(map, DT_STRTAB);
    for (const ElfW(Dyn) *d = map->l_ld; strings && d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_SONAME && !fg_compare(strings + d->d_un.d_val, name)) return 1;
    return !fg_compare(fg_file_name(map->l_name), name);
}

int fg_is_in_driver(const void *address) {
    const struct link_map *map = fg_map_of(address), *first = fg_own_map();
    if (!map || !first) return 0;
    while (first->l_prev) first = first->l_prev;
    if (!fg_before(first, map)) return 0;
    const char *strings = fg_dynamic(map, DT_STRTAB);
    for (const ElfW(Dyn) *d = map->l_ld; strings && d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_SONAME && fg_is_driver_name(strings + d->d_un.d_val)) return 1;
    return fg_is_driver_name(fg_file_name(map->l_name));
}

/* The row of a hooked function of CUDA that the driver lacks; NULL: there is none of this name. */
static const fg_call *fg_lacking(const char *name) {
    for (int at = 0; name[0] == 'c' && name[1] == 'u' && at < FG_HOOKED; at++)
        if (fg_calls[at].library == FG_cuda && !fg_real[at] && !fg_compare(name, fg_calls[at].symbol)) return &fg_calls[at];
    return NULL;
}
/* Write to a page that may be read-only, as the linker's tables are once it has filled them. */
static void fg_overwrite(int memory, uintptr_t at, const void *value) {
    (void)!syscall(SYS_pwrite64, memory, &value, sizeof value, (long)at);
}
/* Set the weak references of a table of relocations to what they are without the hook. The first `relative` ones have no name. */
static void fg_clear_table(int memory, const struct link_map *map, const ElfW(Rela) *table, uint64_t bytes, uint64_t relative) {
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)fg_dynamic(map, DT_SYMTAB);
    const char *strings = fg_dynamic(map, DT_STRTAB);
    if (!table || !symbols || !strings) return;
    for (uint64_t i = relative; i < bytes / sizeof *table; i++) {
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(table[i].r_info)];
        if (!ELF64_R_SYM(table[i].r_info) || ELF64_ST_BIND(symbol->st_info) != STB_WEAK || symbol->st_shndx) continue;
        const fg_call *call = fg_lacking(strings + symbol->st_name);
        void *const *slot = (void *const *)(map->l_addr + table[i].r_offset);
        if (call && *slot == call->hook) fg_overwrite(memory, (uintptr_t)slot, NULL);
    }
}
void fg_clear_weak(void) {
    struct link_map *own = fg_own_map(), *map = own;
    int lacking = 0;
    for (int at = 0; at < FG_HOOKED; at++) lacking |= fg_calls[at].library == FG_cuda && !fg_real[at];
    if (!lacking) return;
    int memory = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mem", O_WRONLY | O_CLOEXEC);
    if (memory < 0) return;
    while (map && map->l_prev) map = map->l_prev;
    for (; map; map = map->l_next) {
        if (map == own) continue;
        fg_clear_table(memory, map, (const ElfW(Rela) *)fg_dynamic(map, DT_RELA), fg_amount(map, DT_RELASZ), fg_amount(map, DT_RELACOUNT));
        fg_clear_table(memory, map, (const ElfW(Rela) *)fg_dynamic(map, DT_JMPREL), fg_amount(map, DT_PLTRELSZ), 0);
    }
    syscall(SYS_close, memory);
}

int fg_before(const struct link_map *map, const struct link_map *later) {
    while (map && map != later) map = map->l_next;
    return map != NULL;
}
