/* The cards, shared by all processes through the file that the variable FAKE_CUDA_STATE names, or that was named when this
   was compiled. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "fake.h"

#ifndef FAKE_CUDA_STATE
#define FAKE_CUDA_STATE NULL
#endif

static state *shared;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* A system call is what a benchmark of the hook must not see, so the kernel is asked once in each process. */
static uint32_t own_pid;
static void in_child(void) { own_pid = (uint32_t)getpid(); }
uint32_t fake_pid(void) {
    if (!own_pid) {
        pthread_atfork(NULL, NULL, in_child);
        own_pid = (uint32_t)getpid();
    }
    return own_pid;
}

static const char *state_path(void) {
    const char *path = getenv("FAKE_CUDA_STATE");
    return path ? path : FAKE_CUDA_STATE;
}

state *fake_state(void) {
    const char *path = state_path();
    pthread_mutex_lock(&opening);
    if (!shared && path) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (at != MAP_FAILED && !memcmp(((state *)at)->magic, "fakecard", 8)) shared = at;
    }
    pthread_mutex_unlock(&opening);
    return shared;
}

static void lock(void) {
    if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD) pthread_mutex_consistent(&shared->lock);
}

/* A process holds memory as long as it maps the card state: exec and death both end that.
   The mapping's inode is looked for, since a path can be written in many ways. */
static int alive(uint32_t pid) {
    const char *where = state_path();
    char path[64], line[4600];
    struct stat about;
    int found = 0;
    if (pid == fake_pid()) return 1;
    if (!where || stat(where, &about)) return 1;
    snprintf(path, sizeof path, "/proc/%u/maps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps) return 0;
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long inode = 0;
        if (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1) found = inode == (unsigned long)about.st_ino;
    }
    fclose(maps);
    return found;
}

static void bury_shared(void);
static void bury(void) {
    for (int i = 0; i < MAX_PROCESSES; i++) {
        holder *h = &shared->holder[i];
        if (h->pid && !alive(h->pid)) h->pid = 0;
    }
    bury_shared();
}

/* Who of those that share memory is gone has it no more. */
static void bury_shared(void) {
    for (shared_block *b = shared->block; b < shared->block + shared->blocks; b++) {
        int left = 0;
        for (int i = 0; b->id && i < 16; i++) {
            if (b->pid[i] && !alive(b->pid[i])) b->pid[i] = 0;
            left += b->pid[i] != 0;
        }
        if (!left) b->id = 0;
    }
}

static uint64_t sum(int card) {
    uint64_t used = 0;
    for (shared_block *b = shared->block; b < shared->block + shared->blocks; b++)
        if (b->id && b->card == card) used += b->bytes;
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (shared->holder[i].pid) used += shared->holder[i].bytes[card];
    return used;
}

/* This process's own row. What an earlier program of the same pid held is forgotten. */
static holder *mine(void) {
    static holder *own;
    static uint32_t owner;
    if (own && owner == fake_pid()) return own;
    own = NULL;
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (shared->holder[i].pid == fake_pid()) shared->holder[i].pid = 0;
    for (int i = 0; i < MAX_PROCESSES && !own; i++)
        if (!shared->holder[i].pid) own = &shared->holder[i];
    if (!own) abort();
    memset(own, 0, sizeof *own);
    own->pid = owner = fake_pid();
    return own;
}

limit *fake_limit(int card, const char *path, int make) {
    limit *spare = NULL;
    for (int i = 0; i < MAX_LIMITS; i++) {
        limit *l = &shared->limit[i];
        if (l->path[0] && l->card == (uint32_t)card && !strcmp(l->path, path)) return l;
        if (!l->path[0] && !spare) spare = l;
    }
    if (!make || !spare || strlen(path) >= sizeof spare->path) return NULL;
    spare->card = (uint32_t)card;
    return strcpy(spare->path, path), spare;
}

/* Whether a process is in the cgroup of this directory. */
static int is_in(uint32_t pid, const char *path) {
    char name[64], line[512];
    int found = 0;
    snprintf(name, sizeof name, "/proc/%u/cgroup", pid);
    FILE *file = fopen(name, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        size_t whole = strlen(path), end = strlen(line) > 3 ? strlen(line + 3) : 0;
        found = !strncmp(line, "0::/", 4) && end > 1 && end <= whole && !strcmp(path + whole - end, line + 3);
    }
    if (file) fclose(file);
    return found;
}

/* Whether the cgroup that this process is in may hold so much more. Under the lock. */
static int cgroup_allows(int card, uint64_t bytes) {
    for (int i = 0; i < MAX_LIMITS; i++) {
        limit *l = &shared->limit[i];
        uint64_t used = bytes;
        if (!l->path[0] || l->card != (uint32_t)card || !is_in(fake_pid(), l->path)) continue;
        bury();
        for (int at = 0; at < MAX_PROCESSES; at++)
            if (shared->holder[at].pid && is_in(shared->holder[at].pid, l->path)) used += shared->holder[at].bytes[card];
        return used >= bytes && used <= l->hard;
    }
    return 1;
}

static int charge_now(int card, uint64_t bytes) {
    lock();
    holder *me = mine();
    uint64_t room = shared->card[card].total - shared->card[card].reserved;
    if (bytes > room || sum(card) > room - bytes) bury();
    int fits = bytes <= room && sum(card) <= room - bytes && cgroup_allows(card, bytes);
    if (fits) me->bytes[card] += bytes;
    if (sum(card) > shared->card[card].high) {   /* only of the living */
        bury();
        if (sum(card) > shared->card[card].high) shared->card[card].high = sum(card);
    }
    pthread_mutex_unlock(&shared->lock);
    return fits ? OK : OUT_OF_MEMORY;
}

/* A full card gives way: managed memory of the process moves to the host. */
int fake_charge(int card, uint64_t bytes) {
    int status = charge_now(card, bytes);
    return status && fake_evict && fake_evict(card, bytes) ? charge_now(card, bytes) : status;
}

void fake_release(int card, uint64_t bytes) {
    lock();
    mine()->bytes[card] -= bytes;
    pthread_mutex_unlock(&shared->lock);
}

static int own_place(shared_block *b) {
    int free = -1;
    for (int i = 15; i >= 0; i--) {
        if (b->pid[i] == fake_pid()) return i;
        if (!b->pid[i]) free = i;
    }
    return free;
}
uint64_t fake_share(int card, uint64_t bytes) {
    uint64_t id = 0;
    lock();
    for (shared_block *b = shared->block; b < shared->block + MAX_SHARED && !id; b++) {
        if (b->id) continue;
        memset(b, 0, sizeof *b);
        *b = (shared_block){.id = id = ++shared->ids, .bytes = bytes, .card = card, .owner = fake_pid()};
        b->pid[0] = fake_pid();
        if (b >= shared->block + shared->blocks) shared->blocks = (uint32_t)(b - shared->block) + 1;
        mine()->bytes[card] -= bytes;
    }
    pthread_mutex_unlock(&shared->lock);
    return id;
}
static shared_block *of_id(uint64_t id) {
    for (shared_block *b = shared->block; b < shared->block + shared->blocks; b++)
        if (id && b->id == id) return b;
    return NULL;
}
int fake_join(uint64_t id, int *card, uint64_t *bytes) {
    lock();
    bury();
    shared_block *b = of_id(id);
    if (b && own_place(b) >= 0) {
        b->pid[own_place(b)] = fake_pid();
        *card = b->card;
        *bytes = b->bytes;
    }
    pthread_mutex_unlock(&shared->lock);
    return b ? OK : INVALID_VALUE;
}
void fake_part(uint64_t id) {
    lock();
    shared_block *b = of_id(id);
    if (b && own_place(b) >= 0) b->pid[own_place(b)] = 0;
    bury_shared();
    pthread_mutex_unlock(&shared->lock);
}

uint64_t fake_own(int card) {
    lock();
    uint64_t bytes = mine()->bytes[card];
    pthread_mutex_unlock(&shared->lock);
    return bytes;
}
uint64_t fake_room(int card) {
    uint64_t used = fake_used(card), room = shared->card[card].total - shared->card[card].reserved;
    return used < room ? room - used : 0;
}
uint64_t fake_used(int card) {
    lock();
    if (!getenv("FAKE_CUDA_NO_PROC")) bury();   /* reads /proc, which would hide whether the hook does */
    uint64_t used = sum(card);
    pthread_mutex_unlock(&shared->lock);
    return used;
}

/* In whose figure it is: the owner's while he has it, then his who is alone with it; of others it is a duplicate. */
static uint32_t shown_of(const shared_block *b) {
    uint32_t only = 0;
    int count = 0;
    for (int i = 0; i < 16; i++) {
        if (b->pid[i] == b->owner && b->pid[i]) return b->owner;
        if (b->pid[i]) only = b->pid[i], count++;
    }
    return count == 1 ? only : 0;
}
static uint64_t shown_shared(int card, uint32_t pid) {
    uint64_t bytes = 0;
    for (shared_block *b = shared->block; b < shared->block + shared->blocks; b++)
        if (b->id && b->card == card && shown_of(b) == pid) bytes += b->bytes;
    return bytes;
}
int fake_holders(int card, holder *into, int room) {
    int found = 0;
    lock();
    bury();
    for (int i = 0; i < MAX_PROCESSES && found < room; i++) {
        if (!shared->holder[i].pid) continue;
        into[found] = shared->holder[i];
        into[found].bytes[card] += shown_shared(card, into[found].pid);
        found += into[found].bytes[card] != 0;
    }
    pthread_mutex_unlock(&shared->lock);
    return found;
}

void fake_uuid_text(const uint8_t *uuid, char *text) {
    int is_instance = 0;
    for (uint32_t i = 0; fake_state() && i < fake_state()->cards; i++)
        is_instance |= fake_state()->card[i].parent && !memcmp(fake_state()->card[i].uuid, uuid, 16);
    text += sprintf(text, is_instance ? "MIG-" : "GPU-");
    for (int i = 0; i < 16; i++)
        text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}
