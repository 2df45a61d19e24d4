/* fakecards FILE NAME UUID-IN-HEX TOTAL RESERVED CONTEXT …: makes the card state.
   fakecards: says of each card of FAKE_CUDA_STATE what is in use, and the most that ever was. */
#include "fake.h"

static int show(void) {
    for (uint32_t i = 0; fake_state() && i < fake_state()->cards; i++)
        printf("%llu %llu\n", (unsigned long long)fake_used((int)i), (unsigned long long)fake_state()->card[i].high);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 1) return show();
    state *s = calloc(1, sizeof *s);
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->lock, &how);
    memcpy(s->magic, "fakecard", 8);
    for (int i = 2; i + 4 < argc && s->cards < MAX_CARDS; i += 5) {
        card *c = &s->card[s->cards++];
        snprintf(c->name, sizeof c->name, "%s", argv[i]);
        for (int b = 0; b < 16; b++) sscanf(argv[i + 1] + 2 * b, "%2hhx", &c->uuid[b]);
        c->total = strtoull(argv[i + 2], NULL, 10);
        c->reserved = strtoull(argv[i + 3], NULL, 10);
        c->context = strtoull(argv[i + 4], NULL, 10);
        c->temperature = 40;
    }
    FILE *file = fopen(argv[1], "w");
    return !file || fwrite(s, sizeof *s, 1, file) != 1 || fclose(file);
}
