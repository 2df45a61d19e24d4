/* fakecards FILE NAME UUID-IN-HEX TOTAL RESERVED CONTEXT PROCESSORS THREADS PARENT GI CI …: makes the card state.
   fakecards only COUNT: the driver of FAKE_CUDA_STATE knows no more than its first cards.
   fakecards set INDEX FIELD VALUE: changes a figure of a card of FAKE_CUDA_STATE.
   fakecards: says of each card of FAKE_CUDA_STATE what is in use, and the most that ever was. */
#include "fake.h"

static int show(void) {
    for (uint32_t i = 0; fake_state() && i < fake_state()->cards; i++)
        printf("%llu %llu\n", (unsigned long long)fake_used((int)i), (unsigned long long)fake_state()->card[i].high);
    return 0;
}

static int set(uint32_t index, const char *what, uint32_t value) {
    card *c = fake_state() && index < fake_state()->cards ? &fake_state()->card[index] : NULL;
    if (!c) return 1;
    struct { const char *name; uint32_t *at; } fields[] = {
        {"ecc", &c->ecc}, {"pending", &c->pending}, {"failed", &c->failed}, {"lost", &c->lost},
        {"utilization", &c->utilization}, {"temperature", &c->temperature}, {"power", &c->power},
        {"energy", &c->energy}, {"clock", &c->clock}, {"throttle", &c->throttle}, {"sm", &c->sm}, {"mute", &c->mute},
        {"mig", &c->mig}, {"gone", &c->gone},
    };
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(what, fields[i].name)) return *fields[i].at = value, 0;
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 1) return show();
    if (argc == 3 && !strcmp(argv[1], "only")) return fake_state() ? (fake_state()->cards = (uint32_t)atoi(argv[2]), 0) : 1;
    if (argc == 5 && !strcmp(argv[1], "set")) return set((uint32_t)atoi(argv[2]), argv[3], (uint32_t)atoi(argv[4]));
    state *s = calloc(1, sizeof *s);
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->lock, &how);
    memcpy(s->magic, "fakecard", 8);
    for (int i = 2; i + 9 < argc && s->cards < MAX_CARDS; i += 10) {
        card *c = &s->card[s->cards++];
        snprintf(c->name, sizeof c->name, "%s", argv[i]);
        for (int b = 0; b < 16; b++) sscanf(argv[i + 1] + 2 * b, "%2hhx", &c->uuid[b]);
        c->total = strtoull(argv[i + 2], NULL, 10);
        c->reserved = strtoull(argv[i + 3], NULL, 10);
        c->context = strtoull(argv[i + 4], NULL, 10);
        c->processors = (uint32_t)atoi(argv[i + 5]);
        c->threads = (uint32_t)atoi(argv[i + 6]);
        c->parent = (uint32_t)atoi(argv[i + 7]);
        c->gi = (uint32_t)atoi(argv[i + 8]);
        c->ci = (uint32_t)atoi(argv[i + 9]);
        if (c->parent) s->card[c->parent - 1].mig = 1;
        c->temperature = 40;
        c->sm = 10;
    }
    FILE *file = fopen(argv[1], "w");
    return !file || fwrite(s, sizeof *s, 1, file) != 1 || fclose(file);
}
