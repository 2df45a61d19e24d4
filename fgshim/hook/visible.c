#include <string.h>
#include "visible.h"

#define NAME "CUDA_VISIBLE_DEVICES="
#define ROOM 4096         /* of the variable with its name; longer lists are left as they are */
enum { NO_NUMBER = -1 };

extern char **environ;
static char shown[ROOM];  /* the variable while the driver reads it; it stays valid for a thread that has found it */
static char *hidden;      /* the variable of the program meanwhile; NULL: it has none */
static char **copy, **before;   /* of the environment, if the program has no variable; never freed: a thread may read it */
static int is_shown;
/* No setenv: it could free the environment that another thread reads. */

void fg_uuid_text(const uint8_t *uuid, int is_instance, char *text) {
    const char *digits = "0123456789abcdef";
    memcpy(text, is_instance ? "MIG-" : "GPU-", 4);
    text += 4;
    for (int at = 0; at < 16; at++) {
        if (at == 4 || at == 6 || at == 8 || at == 10) *text++ = '-';
        *text++ = digits[uuid[at] >> 4];
        *text++ = digits[uuid[at] & 15];
    }
    *text = 0;
}

static size_t size_of(const char *word) {
    size_t size = 0;
    while (word[size] && word[size] != ',') size++;
    return size;
}
static int is_blank(char c) { return c == ' ' || c == '\t'; }

/* Return the number that a word is. CUDA ignores the blanks around it. */
static int number_of(const char *word, size_t size) {
    int number = NO_NUMBER;
    while (size && is_blank(*word)) word++, size--;
    while (size && is_blank(word[size - 1])) size--;
    if (size > 4) return NO_NUMBER;
    for (size_t at = 0; at < size; at++) {
        if (word[at] < '0' || word[at] > '9') return NO_NUMBER;
        number = (number == NO_NUMBER ? 0 : number * 10) + (word[at] - '0');
    }
    return number;
}
static int is_uuid(const char *word) {
    while (is_blank(*word)) word++;
    return !strncmp(word, "GPU-", 4) || !strncmp(word, "MIG-", 4);
}

/* Write the list with UUIDs in the place of numbers. As in CUDA, it ends before the first word that selects no GPU. Return
 * whether it differs and fits. */
static int translate(const char *list, const fg_job *job, char *to, const char *end) {
    int differs = 0, number;
    char uuid[48];
    for (size_t size = 0;; list += size + 1) {
        const char *word = list;
        size_t length = size = size_of(list);
        if (!is_uuid(list)) {
            differs = 1;
            number = number_of(list, size);
            if (number == NO_NUMBER || number >= (int)job->cards) break;
            fg_uuid_text(job->card[number].uuid, job->card[number].is_instance, uuid);
            word = uuid;
            length = strlen(uuid);
        }
        if (to + length + 2 > end) return 0;
        memcpy(to, word, length);
        to += length;
        *to++ = ',';
        if (!list[size]) break;
    }
    *to = 0;
    return differs;
}

/* Write all GPUs of the job. */
static void list_all(const fg_job *job, char *to) {
    for (uint32_t at = 0; at < job->cards; at++) {
        fg_uuid_text(job->card[at].uuid, job->card[at].is_instance, to);
        to += strlen(to);
        *to++ = ',';
    }
    *to = 0;
}

/* Return the place of the variable in the environment, or of the NULL at its end. */
static char **place(void) {
    char **at = environ;
    while (*at && strncmp(*at, NAME, sizeof NAME - 1)) at++;
    return at;
}

/* Show the variable in a copy of the environment that has one more. */
static int show_in_copy(char **end) {
    size_t count = (size_t)(end - environ);
    if (!(copy = fg_pages((count + 2) * sizeof *copy))) return 0;
    memcpy(copy, environ, count * sizeof *copy);
    copy[count] = shown;
    before = environ;
    __atomic_store_n(&environ, copy, __ATOMIC_RELEASE);
    return 1;
}

int fg_show_uuids(const fg_job *job) {
    const size_t name = sizeof NAME - 1;
    if (!environ || is_shown) return 0;
    char **at = place();
    memcpy(shown, NAME, name);
    if (!*at) {
        list_all(job, shown + name);
        return is_shown = show_in_copy(at);
    }
    if (!translate(*at + name, job, shown + name, shown + ROOM)) return 0;
    hidden = *at;
    __atomic_store_n(at, shown, __ATOMIC_RELEASE);
    return is_shown = 1;
}

void fg_restore_numbers(void) {
    char **at = place();
    if (environ == copy) __atomic_store_n(&environ, before, __ATOMIC_RELEASE);
    else if (*at == shown && hidden) __atomic_store_n(at, hidden, __ATOMIC_RELEASE);
    else if (*at == shown)   /* another thread's setenv has copied the copy */
        for (; *at; at++) __atomic_store_n(at, at[1], __ATOMIC_RELEASE);
    copy = NULL;
    hidden = NULL;
    is_shown = 0;
}
