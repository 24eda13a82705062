/* Several clients of one scheduler: each hears of its own requests only, they join and leave while the others go on, and what
 * makes no sense has defined answers.
 *   clients [ROUNDS] [REQUESTS] */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sluice.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int failures;

static void expect(int line, const char *what, int got, int wanted, const char *words) {
    if (got == wanted && (!words || strstr(sluice_last_error(), words))) return;
    if (atomic_fetch_add(&failures, 1) < 20)
        fprintf(stderr, "line %d: %s: got %d (%s), wanted %d with \"%s\"\n", line, what, got, sluice_last_error(), wanted, words ? words : "");
}
#define EXPECT(call, wanted, words) expect(__LINE__, #call, call, wanted, words)

enum { KEPT_MAX = 64 };
static const uint32_t TARGETS[][2] = {{0, 2}, {2, 1}, {5, 4}};
enum { CLIENTS = sizeof TARGETS / sizeof *TARGETS };

struct client {
    int index, keeps;
    long rounds, requests;
    atomic_long started, cancelled;
    /* Those not completed at once. */
    uint64_t kept[KEPT_MAX];
    atomic_int kept_count;
    int error;
};

static sluice *scheduler;

static void take(struct client *c, sluice *s, const sluice_part *part) {
    uint32_t first = TARGETS[c->index][0], count = TARGETS[c->index][1];
    if (part->target < first || part->target >= first + count) EXPECT((int)part->target, -1, "another client's request");
    if (part->cookie >> 32 != (uint64_t)c->index) EXPECT((int)(part->cookie >> 32), c->index, NULL);
    atomic_fetch_add(&c->started, 1);
    if (c->keeps) c->kept[atomic_fetch_add(&c->kept_count, 1) % KEPT_MAX] = part->id;
    else EXPECT(sluice_complete(s, part->id, part->len, 0), SLUICE_OK, NULL);
}

static void start(void *user, sluice *s, const sluice_part *part) {
    take(user, s, part);
}

static void start_batch(void *user, sluice *s, const sluice_part *parts, size_t count) {
    for (size_t i = 0; i < count; i++) take(user, s, &parts[i]);
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    struct client *c = user;
    (void)s;
    if (part->cookie >> 32 != (uint64_t)c->index) EXPECT((int)(part->cookie >> 32), c->index, NULL);
    c->error = error;
    atomic_fetch_add(&c->cancelled, 1);
}

static struct sluice_options options_of(struct client *c) {
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    o.start = start, o.start_batch = start_batch, o.cancelled = cancelled, o.user = c;
    o.target_first = TARGETS[c->index][0], o.target_count = TARGETS[c->index][1];
    return o;
}

static int submit(sluice *s, const struct client *c, uint64_t n) {
    uint32_t first = TARGETS[c->index][0], count = TARGETS[c->index][1];
    /* The same files and blocks as the others: on other targets they are other files. */
    sluice_request r = {.struct_size = sizeof r, .op = n % 3 ? SLUICE_READ : SLUICE_WRITE, .file = n % 4, .offset = n / 8 * 4096,
                        .len = 4096, .app = (uint32_t)c->index, .target = first + (uint32_t)(n % count),
                        .cookie = (uint64_t)c->index << 32 | n};
    return sluice_submit_wait(s, &r);
}

/* Joins, works and leaves, again and again. */
static void *live(void *argument) {
    struct client *c = argument;
    for (long round = 0; round < c->rounds; round++) {
        struct sluice_options o = options_of(c);
        sluice *s;
        long before = c->started + c->cancelled;
        EXPECT(sluice_attach(scheduler, &o, &s), SLUICE_OK, NULL);
        if (!s) return NULL;
        for (long n = 0; n < c->requests; n++) EXPECT(submit(s, c, (uint64_t)n), SLUICE_OK, NULL);
        if (round % 5 == 0) EXPECT(sluice_set_policy(s, round % 2 ? "sjf" : "to-agg"), SLUICE_OK, NULL);
        /* Every other time what is queued fails. */
        EXPECT(sluice_detach(s, round % 2 ? 0 : 10000000000), SLUICE_OK, NULL);
        /* It has been told of everything. */
        EXPECT((int)(c->started + c->cancelled - before), (int)c->requests, NULL);
        EXPECT(submit(s, c, 0), SLUICE_ERR_CLOSED, NULL);
    }
    return NULL;
}

static void many(unsigned flags, uint32_t shards, long rounds, long requests) {
    static struct client clients[CLIENTS];
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    pthread_t threads[CLIENTS];
    o.flags = SLUICE_SHARED | flags, o.shards = shards, o.capacity = 256, o.in_flight_max = 4;
    EXPECT(sluice_create(&o, &scheduler), SLUICE_OK, NULL);
    memset(clients, 0, sizeof clients);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i].index = i, clients[i].rounds = rounds, clients[i].requests = requests;
        pthread_create(&threads[i], NULL, live, &clients[i]);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    sluice_counters c = {.struct_size = sizeof c};
    EXPECT(sluice_stats(scheduler, SLUICE_TOTAL, &c), SLUICE_OK, NULL);
    EXPECT((int)(c.queued + c.in_flight), 0, NULL);
    EXPECT((int)c.stale, 0, NULL);
    EXPECT(sluice_destroy(scheduler), SLUICE_OK, NULL);
}

/* One after the other, by hand. */
static void answers(void) {
    struct client a = {.index = 0, .keeps = 1}, b = {.index = 1};
    struct sluice_options o = SLUICE_OPTIONS_INIT, bad;
    sluice *s, *first, *second, *other;
    o.flags = SLUICE_SHARED, o.policy = "to", o.in_flight_max = 2;
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    bad = o, bad.start = start;
    EXPECT(sluice_create(&bad, &other), SLUICE_ERR_INVALID, "without a client");
    bad = o, bad.target_count = 1;
    EXPECT(sluice_create(&bad, &other), SLUICE_ERR_INVALID, "without a client");
    EXPECT(submit(s, &a, 0), SLUICE_ERR_INVALID, "sluice_attach()");
    EXPECT(sluice_cancel(s, 1), SLUICE_ERR_INVALID, "sluice_attach()");
    EXPECT(sluice_detach(s, 0), SLUICE_ERR_INVALID, "sluice_destroy()");
    struct sluice_options mine = options_of(&a), theirs = options_of(&b);
    EXPECT(sluice_attach(s, NULL, &first), SLUICE_ERR_INVALID, "NULL");
    EXPECT(sluice_attach(s, &mine, NULL), SLUICE_ERR_INVALID, "out is NULL");
    EXPECT(sluice_attach(NULL, &mine, &first), SLUICE_ERR_INVALID, "scheduler is NULL");
    bad = mine, bad.start = NULL;
    EXPECT(sluice_attach(s, &bad, &first), SLUICE_ERR_INVALID, "required");
    bad = mine, bad.policy = "sjf";
    EXPECT(sluice_attach(s, &bad, &first), SLUICE_ERR_INVALID, "must be 0");
    bad = mine, bad.max_wait_ns = 1;
    EXPECT(sluice_attach(s, &bad, &first), SLUICE_ERR_INVALID, "must be 0");
    bad = mine, bad.target_first = UINT32_MAX, bad.target_count = 2;
    EXPECT(sluice_attach(s, &bad, &first), SLUICE_ERR_INVALID, "largest number");
    bad = mine, bad.target_first = 3, bad.target_count = 0;
    EXPECT(sluice_attach(s, &bad, &first), SLUICE_ERR_INVALID, "say how many");
    EXPECT(sluice_attach(s, &mine, &first), SLUICE_OK, NULL);
    EXPECT(sluice_attach(s, &mine, &other), SLUICE_ERR_INVALID, "another client's");
    EXPECT(other != NULL, 0, NULL);
    bad = theirs, bad.target_count = 0, bad.target_first = 0;
    EXPECT(sluice_attach(s, &bad, &other), SLUICE_ERR_INVALID, "another client's");
    /* Joining by way of another client is joining its scheduler. */
    EXPECT(sluice_attach(first, &theirs, &second), SLUICE_OK, NULL);
    EXPECT(sluice_shutdown(first, 0), SLUICE_ERR_INVALID, "sluice_detach()");
    EXPECT(sluice_destroy(first), SLUICE_ERR_INVALID, "sluice_detach()");
    EXPECT(submit(first, &b, 0), SLUICE_ERR_INVALID, "not one of this client's");
    /* Two in flight that it keeps, one that waits behind them. */
    for (uint64_t n = 1; n < 4; n++) EXPECT(submit(first, &a, n), SLUICE_OK, NULL);
    EXPECT((int)a.started, 2, NULL);
    EXPECT(sluice_complete(second, a.kept[0], 1, 0), SLUICE_ERR_STALE, NULL);
    EXPECT(sluice_complete(s, a.kept[0], 1, 0), SLUICE_ERR_INVALID, NULL);
    EXPECT(submit(second, &b, 1), SLUICE_OK, NULL);
    EXPECT((int)b.started, 0, NULL);
    /* Leaving: what waits fails, what is in flight keeps the client. */
    EXPECT(sluice_detach(first, 1), SLUICE_ERR_TIMEOUT, "2 are still in flight");
    EXPECT((int)a.cancelled, 1, NULL);
    EXPECT(a.error, ETIMEDOUT, NULL);
    EXPECT(submit(first, &a, 9), SLUICE_ERR_CLOSED, NULL);
    EXPECT(sluice_complete(first, a.kept[0], 1, 0), SLUICE_OK, NULL);
    EXPECT((int)b.started, 1, NULL); /* the other client's turn */
    EXPECT(sluice_detach(first, 0), SLUICE_ERR_TIMEOUT, "1 are still in flight");
    EXPECT(sluice_complete(first, a.kept[1], 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_detach(first, 0), SLUICE_OK, NULL);
    EXPECT(sluice_detach(first, 0), SLUICE_ERR_CLOSED, NULL);
    EXPECT(sluice_complete(first, a.kept[1], 1, 0), SLUICE_ERR_CLOSED, NULL);
    /* Its targets are free. */
    EXPECT(sluice_attach(s, &mine, &first), SLUICE_OK, NULL);
    EXPECT(submit(first, &a, 1), SLUICE_OK, NULL);
    EXPECT((int)a.started, 3, NULL);
    /* The scheduler goes before its clients. */
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
    EXPECT(submit(first, &a, 1), SLUICE_ERR_CLOSED, NULL);
    EXPECT(sluice_attach(s, &mine, &other), SLUICE_ERR_CLOSED, NULL);
    EXPECT(sluice_complete(first, a.kept[2], 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_detach(first, 0), SLUICE_OK, NULL);
    EXPECT(sluice_detach(second, 0), SLUICE_OK, NULL);
}

/* A scheduler whose creator is a client with targets of its own. */
static void beside_the_creator(void) {
    struct client a = {.index = 0}, b = {.index = 1};
    struct sluice_options mine = options_of(&a), theirs = options_of(&b);
    sluice *s, *second;
    mine.policy = "noop";
    EXPECT(sluice_create(&mine, &s), SLUICE_OK, NULL);
    EXPECT(sluice_attach(s, &theirs, &second), SLUICE_OK, NULL);
    EXPECT(submit(s, &a, 1), SLUICE_OK, NULL);
    EXPECT(submit(second, &b, 1), SLUICE_OK, NULL);
    EXPECT((int)a.started, 1, NULL);
    EXPECT((int)b.started, 1, NULL);
    EXPECT(sluice_detach(second, 1000000000), SLUICE_OK, NULL);
    EXPECT(submit(s, &a, 2), SLUICE_OK, NULL);
    EXPECT((int)a.started, 2, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
    /* Who has all targets is alone. */
    mine.target_count = 0;
    EXPECT(sluice_create(&mine, &s), SLUICE_OK, NULL);
    EXPECT(sluice_attach(s, &theirs, &second), SLUICE_ERR_INVALID, "another client's");
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 100, requests = argc > 2 ? atol(argv[2]) : 200;
    answers();
    beside_the_creator();
    many(0, 1, rounds, requests);
    many(SLUICE_OWN_THREAD, 1, rounds, requests);
    many(0, 3, rounds, requests);
    return failures != 0;
}
