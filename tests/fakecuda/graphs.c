/* libcuda.so.1: graphs with memory. The driver keeps what launched graphs took, for each card, until it is trimmed.

   Graphs on one stream follow each other and use the same memory; on different streams they run side by side,
   until these are waited for. What a graph takes and does not free lives until somebody frees it by its address. */
#include "fake.h"

enum { CHILD = 4, TAKE = 10, GIVE = 11, NODES = 64 };
typedef struct graph graph;
typedef struct { int kind, card; uint64_t address, size; graph *child; } node;
struct graph { int nodes; node node[NODES]; };
typedef struct exec { uint64_t passing, staying; int card, nodes; node node[NODES]; struct exec *next; } exec;
typedef struct lane { stream *on; int card; uint64_t most; struct lane *next; } lane;
typedef struct { int32_t type, handles, where, id; void *win32; uint64_t most; uint8_t rest[56]; const void *access; uint64_t accesses, size, address; } taken;

static graph *growing;
static exec *execs;
static lane *lanes;
static uint64_t reserved[MAX_CARDS], staying[MAX_CARDS];

void fake_begin_capture(void) { growing = calloc(1, sizeof *growing); }
void *fake_end_capture(void) { return growing ? growing : calloc(1, sizeof *growing); }
void fake_capture_node(int kind, uint64_t address, uint64_t size, int card) {
    if (growing && growing->nodes < NODES) growing->node[growing->nodes++] = (node){kind, card, address, GRAINS(size), NULL};
}
DRIVER(cuGraphCreate, (graph **out, unsigned flags), (out, flags)) { (void)flags; return *out = calloc(1, sizeof **out), OK; }
DRIVER(cuGraphAddChildGraphNode, (node **out, graph *g, const void *after, size_t count, graph *child), (out, g, after, count, child)) {
    (void)after; (void)count;
    if (g->nodes == NODES) return INVALID_VALUE;
    *out = &g->node[g->nodes++];
    **out = (node){CHILD, 0, 0, 0, child};
    return OK;
}
DRIVER(cuGraphDestroy, (graph *g), (g)) { return g ? (free(g), OK) : INVALID_VALUE; }
DRIVER(cuGraphGetNodes, (graph *g, node **into, size_t *count), (g, into, count)) {
    for (int i = 0; into && i < g->nodes && i < (int)*count; i++) into[i] = &g->node[i];
    return *count = (size_t)g->nodes, OK;
}
DRIVER(cuGraphNodeGetType, (node *n, int *kind), (n, kind)) { return *kind = n->kind, OK; }
DRIVER(cuGraphChildGraphNodeGetGraph, (node *n, graph **out), (n, out)) {
    return n->kind == CHILD ? (*out = n->child, OK) : INVALID_VALUE;
}
DRIVER(cuGraphMemAllocNodeGetParams, (node *n, taken *out), (n, out)) {
    int device = 0;
    if (n->kind != TAKE) return INVALID_VALUE;
    while (fake_card(device) != n->card) device++;
    *out = (taken){.type = 1, .where = 1, .id = device, .size = n->size, .address = n->address};
    return OK;
}

static void copy(exec *e, const graph *g) {
    for (int i = 0; i < g->nodes && e->nodes < NODES; i++) {
        if (g->node[i].kind == CHILD) copy(e, g->node[i].child);
        else e->node[e->nodes++] = g->node[i];
    }
}
static int instantiate(uint64_t *out, const graph *g) {
    exec *e = calloc(1, sizeof *e);
    copy(e, g);
    for (int i = 0; i < e->nodes; i++) {
        int stays = e->node[i].kind == TAKE;
        for (int j = 0; j < e->nodes; j++) stays &= e->node[j].kind != GIVE || e->node[j].address != e->node[i].address;
        if (e->node[i].kind == TAKE) e->card = e->node[i].card;
        if (!stays) e->passing += e->node[i].size;
        else e->staying += e->node[i].size;
    }
    pthread_mutex_lock(&fake_big);
    e->next = execs;
    execs = e;
    pthread_mutex_unlock(&fake_big);
    return *out = (uint64_t)e, OK;
}
typedef struct { uint64_t flags; stream *on; void *node; int result; } how;
DRIVER(cuGraphInstantiate, (uint64_t *out, graph *g, void **at, char *log, size_t room), (out, g, at, log, room)) { (void)at; (void)log; (void)room; return instantiate(out, g); }
DRIVER(cuGraphInstantiate_v2, (uint64_t *out, graph *g, void **at, char *log, size_t room), (out, g, at, log, room)) { (void)at; (void)log; (void)room; return instantiate(out, g); }
DRIVER(cuGraphInstantiateWithFlags, (uint64_t *out, graph *g, unsigned long long flags), (out, g, flags)) { (void)flags; return instantiate(out, g); }
static exec *known(uint64_t handle) {
    exec *e = execs;
    while (e && e != (exec *)handle) e = e->next;
    return e;
}
/* Under fake_big. */
static int grow(exec *e, stream *s) {
    uint64_t need = staying[e->card] + e->staying;
    lane *own = NULL;
    for (lane *l = lanes; l; l = l->next) {
        if (l->on == s && l->card == e->card) own = l;
        else if (l->card == e->card) need += l->most;
    }
    need += own && own->most > e->passing ? own->most : e->passing;
    if (need > reserved[e->card] && fake_charge(e->card, need - reserved[e->card])) return OUT_OF_MEMORY;
    if (need > reserved[e->card]) reserved[e->card] = need;
    if (!own) {
        own = calloc(1, sizeof *own);
        *own = (lane){s, e->card, 0, lanes};
        lanes = own;
    }
    if (own->most < e->passing) own->most = e->passing;
    return OK;
}
int fake_graph_memory(uint64_t handle, stream *s, uint64_t *takes) {
    pthread_mutex_lock(&fake_big);
    exec *e = known(handle);
    int status = e ? grow(e, s ? s : (stream *)1) : OK;
    if (e && !status) staying[e->card] += e->staying;
    pthread_mutex_unlock(&fake_big);
    *takes = e ? 0 : handle;
    return status;
}
static int upload(uint64_t handle, stream *s) {
    pthread_mutex_lock(&fake_big);
    exec *e = known(handle);
    int status = e ? grow(e, s ? s : (stream *)1) : INVALID_HANDLE;
    pthread_mutex_unlock(&fake_big);
    return status;
}
DRIVER(cuGraphUpload, (uint64_t e, stream *s), (e, s)) { return upload(e, s); }
DRIVER(cuGraphUpload_ptsz, (uint64_t e, stream *s), (e, s)) { return upload(e, s); }
DRIVER(cuGraphInstantiateWithParams, (uint64_t *out, graph *g, how *way), (out, g, way)) {
    int status = instantiate(out, g);
    return way->result = status, !status && way->flags & 2 ? upload(*out, way->on) : status;
}
DRIVER(cuGraphInstantiateWithParams_ptsz, (uint64_t *out, graph *g, how *way), (out, g, way)) { return in_cuGraphInstantiateWithParams(out, g, way); }
DRIVER(cuGraphExecDestroy, (uint64_t handle), (handle)) {
    pthread_mutex_lock(&fake_big);
    exec **at = &execs;
    while (*at && *at != (exec *)handle) at = &(*at)->next;
    exec *gone = *at;
    if (gone) *at = gone->next;
    pthread_mutex_unlock(&fake_big);
    return gone ? (free(gone), OK) : INVALID_HANDLE;
}
void fake_graphs_rest(stream *s) {
    pthread_mutex_lock(&fake_big);
    for (lane *l = lanes; l; l = l->next) if (!s || l->on == s) l->most = 0;
    pthread_mutex_unlock(&fake_big);
}
/* What a launched graph took and did not free. Its address stays the graph's, which can be launched again. */
int fake_graphs(piece *taken) {
    int status = INVALID_VALUE;
    pthread_mutex_lock(&fake_big);
    fake_give(taken);
    for (exec *e = execs; e && status; e = e->next)
        for (int i = 0; i < e->nodes && status; i++)
            if (e->node[i].kind == TAKE && e->node[i].address == taken->address && staying[e->card] >= e->node[i].size) {
                staying[e->card] -= e->node[i].size;
                status = OK;
            }
    pthread_mutex_unlock(&fake_big);
    return status;
}
DRIVER(cuDeviceGetGraphMemAttribute, (int device, int which, uint64_t *value), (device, which, value)) {
    if (fake_card(device) < 0) return INVALID_DEVICE;
    if (which < 0 || which > 3) return INVALID_VALUE;   /* used, its high mark, reserved, its high mark */
    return *value = which < 2 ? staying[fake_card(device)] : reserved[fake_card(device)], OK;
}
DRIVER(cuDeviceGraphMemTrim, (int device), (device)) {
    int card = fake_card(device);
    if (card < 0) return INVALID_DEVICE;
    pthread_mutex_lock(&fake_big);
    uint64_t used = staying[card];
    for (lane *l = lanes; l; l = l->next) used += l->card == card ? l->most : 0;
    if (reserved[card] > used) fake_release(card, reserved[card] - used);
    if (reserved[card] > used) reserved[card] = used;
    pthread_mutex_unlock(&fake_big);
    return OK;
}
