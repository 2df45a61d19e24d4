/* The page that the processes of one job share with the arbiter for one GPU, and the words on the socket between them.
 *
 * The arbiter makes the page (a sealed memfd, so that it cannot be cut short) and gives it to each process that connects
 * to the socket `turns` in the job's directory. No job of another user has it. Each side takes any content of it as valid. */
#ifndef FG_TURN_PAGE_H
#define FG_TURN_PAGE_H
#include <stdint.h>

#define FG_TURN_SOCKET "turns"
#define FG_TURN_SOCKET_OF_HOST "host/turns"   /* in a container that shows the job's directory there */
#define FG_TURN_MAGIC 0x31524754u     /* "TGR1" */
#define FG_TURN_SEATS 100             /* processes of a job; a further one is held to its budget alone */
#define FG_TURN_GPUS 16
#define FG_TURN_PAGE_SIZE 4096

typedef struct {                      /* of one process */
    uint64_t wants;                   /* since when a launch waits; 0: none does */
    uint64_t until;                   /* see arbiter.h */
    uint64_t had;
    uint64_t unused;
} fg_turn_seat;

typedef struct {
    uint32_t word;                    /* a futex: FG_TURN_NONE, … */
    uint32_t resumed;                 /* set by the job with its change from FG_TURN_PARKED to FG_TURN_HELD */
    uint32_t is_contended;            /* other jobs wait: an empty queue is worth a message */
    uint32_t guests;                  /* counts when jobs begin and end to launch beside each other: odd while they do */
    uint64_t ahead;                   /* the most work, in ns, that a process may queue */
    uint32_t launcher;                /* a futex: the seat + 1 of the only process that may launch; see launcher.h */
    uint32_t window;                  /* of the job, if the arbiter has ended: ten-thousandths of a period; see pace.h. 0: none */
    uint64_t beat;                    /* the arbiter's last step; 0: an arbiter of an earlier release */
    uint32_t window_from;
    uint32_t may_be_deep;             /* a process whose launches wake late may queue more than `ahead` */
    uint64_t room[2];
    fg_turn_seat seat[FG_TURN_SEATS];
} fg_turn_page;
_Static_assert(sizeof(fg_turn_page) <= FG_TURN_PAGE_SIZE, "the page is too small");

/* What the arbiter sends to a process that has connected, with a descriptor of the page of each GPU that has one. Then
   each byte from the process means: look at the pages of the job. The end of the connection is the end of the process. */
typedef struct {
    uint32_t magic, seat;             /* seat: its index in all pages of the job */
    uint32_t pages;                   /* number of descriptors */
    uint32_t position[FG_TURN_GPUS];  /* of each page's GPU in the region */
} fg_turn_welcome;
#endif
