#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "deep.h"
#include "linker.h"

typedef struct { const char *bytes; uint64_t size; } fg_file;

/* The bytes at an offset of the file; NULL if they are not all in it. */
static const void *fg_bytes_at(const fg_file *file, uint64_t offset, uint64_t length) {
    return offset <= file->size && length <= file->size - offset ? file->bytes + offset : NULL;
}
static const ElfW(Phdr) *fg_parts(const fg_file *file, int *count) {
    const ElfW(Ehdr) *head = fg_bytes_at(file, 0, sizeof *head);
    if (!head || head->e_ident[EI_MAG1] != 'E' || head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_type != ET_DYN) return NULL;
    if (head->e_phentsize != sizeof(ElfW(Phdr)) || head->e_phoff % sizeof(uint64_t)) return NULL;
    *count = head->e_phnum;
    return fg_bytes_at(file, head->e_phoff, (uint64_t)head->e_phnum * sizeof(ElfW(Phdr)));
}
/* The bytes that lie at an address once the file is loaded. */
static const void *fg_loaded_at(const fg_file *file, uint64_t address, uint64_t length) {
    int count = 0;
    const ElfW(Phdr) *part = fg_parts(file, &count);
    for (; part && count; count--, part++)
        if (part->p_type == PT_LOAD && address - part->p_vaddr < part->p_filesz)
            return fg_bytes_at(file, part->p_offset + (address - part->p_vaddr), length);
    return NULL;
}
static const ElfW(Dyn) *fg_dynamic_of(const fg_file *file, uint64_t *entries) {
    int count = 0;
    const ElfW(Phdr) *part = fg_parts(file, &count);
    for (; part && count; count--, part++) {
        if (part->p_type != PT_DYNAMIC || part->p_offset % sizeof(uint64_t)) continue;
        *entries = part->p_filesz / sizeof(ElfW(Dyn));
        return fg_bytes_at(file, part->p_offset, part->p_filesz);
    }
    return NULL;
}
static uint64_t fg_tagged_value(const ElfW(Dyn) *entry, uint64_t entries, ElfW(Sxword) tag) {
    for (; entries && entry->d_tag != DT_NULL; entries--, entry++)
        if (entry->d_tag == tag) return entry->d_un.d_val;
    return 0;
}

static int fg_begins(const char *name, const char *start) {
    while (*start && *name == *start) name++, start++;
    return !*start;
}
/* Whether a name is one of CUDA, NVML or the dynamic linker's look-up. */
static int fg_concerns_hook(const char *name) {
    static const char *const linker[] = {"dlsym", "dlvsym", "dlopen", "dlmopen"};
    for (int i = 0; i < 4; i++) if (!fg_compare(name, linker[i])) return 1;
    return fg_begins(name, "nvml") || fg_begins(name, "cuda") || (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z');
}
/* Whether a library that is needed by this name is loaded, so that nothing else is loaded with the file. */
static int fg_is_loaded(const char *name) {
    const struct link_map *map = fg_own_map();
    while (map && map->l_prev) map = map->l_prev;
    for (; map; map = map->l_next)
        if (fg_has_name(map, name)) return 1;
    return 0;
}

/* Whether a table of names ends within the file, so that every name in it ends. */
static const char *fg_names_of(const fg_file *file, const ElfW(Dyn) *entry, uint64_t entries, uint64_t *room) {
    *room = fg_tagged_value(entry, entries, DT_STRSZ);
    const char *names = fg_loaded_at(file, fg_tagged_value(entry, entries, DT_STRTAB), *room);
    return names && *room && !names[*room - 1] ? names : NULL;
}

static int fg_is_unrelated(const fg_file *file) {
    uint64_t entries = 0, room = 0;
    const ElfW(Dyn) *entry = fg_dynamic_of(file, &entries);
    const char *names = entry ? fg_names_of(file, entry, entries, &room) : NULL;
    if (!names) return 0;
    for (uint64_t i = 0; i < entries && entry[i].d_tag != DT_NULL; i++)
        if (entry[i].d_tag == DT_NEEDED && (entry[i].d_un.d_val >= room || !fg_is_loaded(names + entry[i].d_un.d_val))) return 0;
    /* In the GNU hash table, the symbols before the first hashed one are those that the file needs. */
    const uint32_t *hash = fg_loaded_at(file, fg_tagged_value(entry, entries, DT_GNU_HASH), 16);
    uint64_t count = hash ? hash[1] : 0;
    const ElfW(Sym) *symbol = fg_loaded_at(file, fg_tagged_value(entry, entries, DT_SYMTAB), count * sizeof *symbol);
    if (!hash || !symbol) return 0;
    for (uint64_t i = 1; i < count; i++)
        if (symbol[i].st_name >= room || fg_concerns_hook(names + symbol[i].st_name)) return 0;
    return 1;
}

int fg_may_bind_deep(const char *path) {
    struct stat about;
    int unrelated = 0, has_slash = 0;
    for (const char *c = path; c && *c; c++) has_slash |= *c == '/';
    if (!has_slash) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return 0;
    if (!syscall(SYS_fstat, fd, &about) && S_ISREG(about.st_mode) && about.st_size > 0) {
        fg_file file = {NULL, (uint64_t)about.st_size};
        void *at = mmap(NULL, file.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at != MAP_FAILED) {
            file.bytes = at;
            unrelated = fg_is_unrelated(&file);
            munmap(at, file.size);
        }
    }
    syscall(SYS_close, fd);
    return unrelated;
}
