/* Many threads submit to one scheduler, with and without a thread of its own, under changing algorithms; each request must
 * come back once. Completions come from the callback, from submitters, and from a pool.
 *   stress [THREADS [REQUESTS_EACH]] */
#define _GNU_SOURCE
#include <pthread.h>
#include <sluice.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { POOL = 2 };

static unsigned threads = 64, each = 500;
static sluice *scheduler;
static atomic_uchar *seen;
static atomic_ulong started, cancelled_count, wrong;

/* Dispatched requests that the pool completes. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    sluice_part *parts;
    size_t count, size;
    int end;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0, 0};

static void one(const sluice_part *part) {
    if (atomic_fetch_add(&seen[part->cookie], 1) != 0) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&started, 1);
    if (part->cookie % 2) {
        if (sluice_complete(scheduler, part->id, part->len, 0) != SLUICE_OK) atomic_fetch_add(&wrong, 1);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    pool.parts[pool.count++] = *part;
    pthread_cond_signal(&pool.filled);
    pthread_mutex_unlock(&pool.lock);
}

static void start(void *user, sluice *s, const sluice_part *part) {
    (void)user, (void)s;
    one(part);
}

static void start_batch(void *user, sluice *s, const sluice_part *parts, size_t count) {
    (void)user, (void)s;
    for (size_t i = 0; i < count; i++) {
        if (i && (parts[i].offset != parts[i - 1].offset + parts[i - 1].len || parts[i].file != parts[0].file)) atomic_fetch_add(&wrong, 1);
        one(&parts[i]);
    }
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    (void)user, (void)s, (void)part, (void)error;
    atomic_fetch_add(&cancelled_count, 1);
}

static void *complete(void *unused) {
    for (;;) {
        pthread_mutex_lock(&pool.lock);
        while (pool.count == 0 && !pool.end) pthread_cond_wait(&pool.filled, &pool.lock);
        if (pool.count == 0) break;
        sluice_part part = pool.parts[--pool.count];
        pthread_mutex_unlock(&pool.lock);
        if (sluice_complete(scheduler, part.id, part.len, 0) != SLUICE_OK) atomic_fetch_add(&wrong, 1);
    }
    pthread_mutex_unlock(&pool.lock);
    return unused;
}

static void *submit(void *number) {
    unsigned long me = (unsigned long)number;
    for (unsigned long i = 0; i < each; i++) {
        sluice_request r = {.struct_size = sizeof r, .op = i % 3 == 0, .file = i % 7, .offset = (i * threads + me) * 4096,
                            .len = 4096, .app = (uint32_t)me, .target = (uint32_t)(i % 4), .cookie = me * each + i};
        if (sluice_submit_wait(scheduler, &r) != SLUICE_OK) atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static int run(uint32_t flags, uint32_t shards) {
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    pthread_t ids[256], workers[POOL];
    o.start = start, o.start_batch = start_batch, o.cancelled = cancelled, o.flags = flags, o.shards = shards;
    o.capacity = 256, o.in_flight_max = 16;
    if (sluice_create(&o, &scheduler) != SLUICE_OK) return fprintf(stderr, "%s\n", sluice_last_error()), 1;
    pool.count = 0, pool.end = 0, started = 0;
    for (unsigned long i = 0; i < (unsigned long)threads * each; i++) seen[i] = 0;
    for (int i = 0; i < POOL; i++) pthread_create(&workers[i], NULL, complete, NULL);
    for (unsigned long t = 0; t < threads; t++) pthread_create(&ids[t], NULL, submit, (void *)t);
    for (unsigned i = 0; i < 40; i++) {
        const char *policy = sluice_policy_name(i % 10);
        int answer = sluice_set_policy(scheduler, policy);
        if (answer != SLUICE_OK && !(shards > 1 && answer == SLUICE_ERR_CONFIG)) atomic_fetch_add(&wrong, 1);
    }
    for (unsigned t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    if (sluice_shutdown(scheduler, 60000000000u) != SLUICE_OK) fprintf(stderr, "%s\n", sluice_last_error()), atomic_fetch_add(&wrong, 1);
    pthread_mutex_lock(&pool.lock);
    pool.end = 1;
    pthread_cond_broadcast(&pool.filled);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < POOL; i++) pthread_join(workers[i], NULL);
    if (sluice_destroy(scheduler) != SLUICE_OK) atomic_fetch_add(&wrong, 1);
    printf("flags %u, shards %u: %lu of %lu started, %lu cancelled, %lu wrong\n", flags, shards, (unsigned long)started,
           (unsigned long)threads * each, (unsigned long)cancelled_count, (unsigned long)wrong);
    return started != (unsigned long)threads * each || cancelled_count || wrong;
}

int main(int argc, char **argv) {
    if (argc > 1) threads = (unsigned)atoi(argv[1]);
    if (argc > 2) each = (unsigned)atoi(argv[2]);
    if (threads < 1 || threads > 256 || each < 1) return fprintf(stderr, "usage: stress [THREADS [REQUESTS_EACH]]\n"), 2;
    pool.size = 256 * 4;
    seen = calloc((size_t)threads * each, sizeof *seen);
    pool.parts = calloc(pool.size, sizeof *pool.parts);
    if (!seen || !pool.parts) return perror("stress"), 1;
    int failed = run(0, 1) | run(SLUICE_OWN_THREAD, 1) | run(0, 4);
    free(pool.parts), free((void *)seen);
    return failed;
}
