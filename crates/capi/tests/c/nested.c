/* Callbacks that submit, with and without a number, complete, cancel, change the algorithm and look at the counters, of their
 * own scheduler and of another one, three calls deep, on several threads. Every request is started or cancelled, once.
 *   nested [THREADS] [ROOTS_EACH] [SEED] */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <sluice.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 3, SCHEDULERS = 3, OWN_THREAD = 2, NUMBERS = 1 << 20 };

static sluice *schedulers[SCHEDULERS];
/* By the number in its cookie: how often a request ended, plus NEVER if it was not accepted. */
static atomic_uchar *ends;
enum { NEVER = 100 };
static atomic_long numbers, outstanding, wrong, taken_back;
static atomic_ullong random_state = 1;
/* A thread of this program, not of a scheduler. */
static _Thread_local int is_ours;
static sem_t all_done;

static unsigned draw(unsigned below) {
    unsigned long long x = atomic_fetch_add(&random_state, 0x9e3779b97f4a7c15ull);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull, x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (unsigned)((x ^ x >> 31) % below);
}

static void unexpected(int line, const char *what, int got) {
    if (atomic_fetch_add(&wrong, 1) < 10) fprintf(stderr, "line %d: %s: %d (%s)\n", line, what, got, sluice_last_error());
}
#define MUST(call) do { int got = call; if (got != SLUICE_OK) unexpected(__LINE__, #call, got); } while (0)

static void one_ended(void) {
    if (atomic_fetch_sub(&outstanding, 1) == 1) sem_post(&all_done);
}

/* Half of the requests are to the same few blocks, some of those writes, so that some wait for others to complete. */
static void submit(sluice *s, unsigned depth, uint64_t *id) {
    long number = atomic_fetch_add(&numbers, 1);
    if (number >= NUMBERS) exit((fprintf(stderr, "too many requests\n"), 1));
    sluice_request r = {.struct_size = sizeof r, .file = draw(4), .app = draw(3), .len = 4096};
    r.offset = draw(2) ? 4096u * draw(8) : 4096u * (uint64_t)(100 + number);
    r.op = draw(4) ? SLUICE_READ : SLUICE_WRITE;
    r.cookie = (uint64_t)number << 8 | depth;
    atomic_fetch_add(&outstanding, 1);
    int got = sluice_submit(s, &r, id);
    if (got == SLUICE_OK) return;
    if (got != SLUICE_ERR_FULL) unexpected(__LINE__, "sluice_submit", got);
    atomic_store(&ends[number], NEVER);
    if (id) *id = 0;
    one_ended();
}

static void do_all(sluice *s, unsigned depth) {
    static const char *const POLICIES[] = {"noop", "to-agg", "sjf", "hbrr", "wfq"};
    sluice_counters c = {.struct_size = sizeof c};
    uint64_t id = 0;
    submit(s, depth, NULL);
    submit(s, depth, &id);
    if (id && draw(2)) {
        int got = sluice_cancel(s, id);
        if (got == SLUICE_OK) atomic_fetch_add(&taken_back, 1), one_ended();
        else if (got != SLUICE_ERR_IN_FLIGHT && got != SLUICE_ERR_STALE) unexpected(__LINE__, "sluice_cancel", got);
    }
    if (draw(8) == 0) MUST(sluice_set_policy(s, POLICIES[draw(5)]));
    if (draw(4) == 0) MUST(sluice_stats(s, SLUICE_TOTAL, &c));
}

static void start(void *user, sluice *s, const sluice_part *part) {
    unsigned depth = part->cookie & 255;
    int first = draw(2);
    (void)user;
    if (s == schedulers[OWN_THREAD] && is_ours) unexpected(__LINE__, "a callback inside a call, although it has its own thread", 0);
    if (atomic_fetch_add(&ends[part->cookie >> 8], 1)) unexpected(__LINE__, "started twice, or after its end", 0);
    /* Some are reported before the nested calls, some after. */
    if (first) MUST(sluice_complete(s, part->id, part->len, 0));
    if (depth < DEPTH) {
        do_all(s, depth + 1);
        do_all(schedulers[draw(SCHEDULERS)], depth + 1);
    }
    if (!first) MUST(sluice_complete(s, part->id, part->len, 0));
    one_ended();
}

static void start_batch(void *user, sluice *s, const sluice_part *parts, size_t count) {
    for (size_t i = 0; i < count; i++) start(user, s, &parts[i]);
}

/* What a scheduler was told was cancelled. */
struct told { int requests, never_here; };

/* Called while it shuts down: everything is answered, nothing waits. */
static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    sluice_request r = {.struct_size = sizeof r, .len = 1};
    sluice_counters c = {.struct_size = sizeof c};
    uint64_t id;
    struct told *told = user;
    (void)part, (void)error;
    if (told->never_here && is_ours) unexpected(__LINE__, "told inside a call, although it has its own thread", 0);
    int got = sluice_submit(s, &r, NULL);
    if (got != SLUICE_ERR_CLOSED) unexpected(__LINE__, "sluice_submit", got);
    got = sluice_submit(s, &r, &id);
    if (got != SLUICE_ERR_CLOSED) unexpected(__LINE__, "sluice_submit with a number", got);
    got = sluice_cancel(s, 1);
    if (got != SLUICE_ERR_STALE) unexpected(__LINE__, "sluice_cancel", got);
    MUST(sluice_set_policy(s, "to"));
    MUST(sluice_stats(s, SLUICE_TOTAL, &c));
    told->requests++;
}

static void *roots(void *each) {
    is_ours = 1;
    for (long i = 0; i < (long)(intptr_t)each; i++) do_all(schedulers[draw(SCHEDULERS)], 1);
    return NULL;
}

/* Keeps what it is given. */
static void keep(void *user, sluice *s, const sluice_part *part) {
    (void)user, (void)s, (void)part;
}

/* What is queued behind a request that is never reported fails at the end; its callback may call anything, too. */
static void ending(unsigned flags) {
    enum { REQUESTS = 10 };
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    struct told told = {0, flags == SLUICE_OWN_THREAD};
    sluice *s;
    o.start = keep, o.cancelled = cancelled, o.user = &told, o.in_flight_max = 1, o.policy = "to", o.flags = flags;
    MUST(sluice_create(&o, &s));
    for (uint64_t i = 0; i < REQUESTS; i++) {
        sluice_request r = {.struct_size = sizeof r, .file = i, .len = 4096};
        MUST(sluice_submit(s, &r, NULL));
    }
    sluice_counters c = {.struct_size = sizeof c};
    MUST(sluice_stats(s, SLUICE_TOTAL, &c));
    MUST(sluice_shutdown(s, 0));
    if (told.requests != REQUESTS - 1) unexpected(__LINE__, "requests that were told of", told.requests);
    MUST(sluice_destroy(s));
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    long each = argc > 2 ? atol(argv[2]) : 200;
    if (argc > 3) random_state = strtoull(argv[3], NULL, 10);
    pthread_t ids[64];
    struct told told = {0, 0};
    is_ours = 1;
    ends = calloc(NUMBERS, sizeof *ends);
    if (!ends || threads > 64) return perror("nested"), 1;
    sem_init(&all_done, 0, 0);
    for (int i = 0; i < SCHEDULERS; i++) {
        struct sluice_options o = SLUICE_OPTIONS_INIT;
        o.start = start, o.start_batch = i ? start_batch : NULL, o.cancelled = cancelled, o.user = &told;
        /* One driven by its callers, one with a bound on what is in flight, one with a thread of its own. */
        o.in_flight_max = i == 1 ? 2 : 0, o.flags = i == OWN_THREAD ? SLUICE_OWN_THREAD : 0, o.policy = "sjf";
        MUST(sluice_create(&o, &schedulers[i]));
    }
    atomic_fetch_add(&outstanding, 1);
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, roots, (void *)(intptr_t)each);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    one_ended();
    sem_wait(&all_done);
    long started = 0, never = 0, none = 0;
    for (long i = 0; i < numbers; i++) started += ends[i] == 1, never += ends[i] == NEVER, none += ends[i] == 0;
    if (started + never + none != numbers || none != taken_back) unexpected(__LINE__, "requests neither started nor cancelled", (int)(none - taken_back));
    for (int i = 0; i < SCHEDULERS; i++) {
        MUST(sluice_shutdown(schedulers[i], 1000000000));
        MUST(sluice_destroy(schedulers[i]));
    }
    ending(0), ending(SLUICE_OWN_THREAD);
    printf("%ld requests, %ld started, %ld cancelled, %ld not accepted, %ld wrong\n", (long)numbers, started, (long)taken_back, never, (long)wrong);
    free((void *)ends);
    return wrong != 0;
}
