/* A selector: what is chosen is told as JSON, gives way to what is set by hand, and is remembered; every request is served.
 *   select DIR     writes DIR/learned */
#define _GNU_SOURCE
#include <sluice.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICE_NS = 1000000, ROOM = 1 << 16 };

static atomic_int wrong, stop;
static atomic_long submitted, served;

#define EXPECT(call, wanted) do { int got = call; if (got != (wanted)) { \
    fprintf(stderr, "line %d: %s: %d (%s)\n", __LINE__, #call, got, sluice_last_error()); atomic_fetch_add(&wrong, 1); } } while (0)
#define HOLDS(what) do { if (!(what)) { \
    fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what); atomic_fetch_add(&wrong, 1); } } while (0)

/* The device: one thread that serves a batch after the other, a millisecond each. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static uint64_t ids[ROOM];
static unsigned head, tail;

static void start(void *user, sluice *s, const sluice_part *part) {
    char text[64];
    (void)user;
    /* Not from inside: it may be the selector's own thread. */
    if (sluice_explain(s, text, sizeof text) == SLUICE_OK || sluice_set_policy(s, "sjf") == SLUICE_OK) atomic_fetch_add(&wrong, 1);
    pthread_mutex_lock(&lock);
    ids[tail++ % ROOM] = part->id;
    pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    (void)user, (void)s, (void)part, (void)error;
    atomic_fetch_add(&wrong, 1);
}

static void *device(void *s) {
    struct timespec moment = {0, DEVICE_NS};
    for (;;) {
        pthread_mutex_lock(&lock);
        while (head == tail && !atomic_load(&stop)) pthread_cond_wait(&news, &lock);
        int is_over = head == tail;
        uint64_t id = is_over ? 0 : ids[head++ % ROOM];
        pthread_mutex_unlock(&lock);
        if (is_over) return NULL;
        nanosleep(&moment, NULL);
        EXPECT(sluice_complete(s, id, 65536, 0), SLUICE_OK);
        atomic_fetch_add(&served, 1);
    }
}

/* Eight streams, each with one request at a time or so. */
static void work(sluice *s, int rounds) {
    for (int n = 0; n < rounds * 8; n++) {
        sluice_request r = {.struct_size = sizeof r, .file = 1 + n % 8, .op = SLUICE_READ, .len = 65536, .offset = (uint64_t)(n / 8) * 65536};
        struct timespec moment = {0, DEVICE_NS / 8};
        while (atomic_load(&submitted) - atomic_load(&served) > 16) nanosleep(&moment, NULL);
        atomic_fetch_add(&submitted, 1);
        EXPECT(sluice_submit_wait(s, &r), SLUICE_OK);
    }
}

static int says(sluice *s, const char *what) {
    static char text[65536];
    EXPECT(sluice_explain(s, text, sizeof text), SLUICE_OK);
    if (!strstr(text, what)) fprintf(stderr, "%s\n", text);
    return strstr(text, what) != NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    char state[4096], text[16];
    snprintf(state, sizeof state, "%s/learned", argv[1]);
    sluice_options o = {.struct_size = sizeof o, .start = start, .cancelled = cancelled, .in_flight_max = 4, .window_ns = 50000000};
    sluice *s = NULL;
    o.selector = "best";
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG);
    HOLDS(strstr(sluice_last_error(), "tree+bandit"));
    o.selector = "tree";
    EXPECT(sluice_create(&o, &s), SLUICE_OK);
    EXPECT(sluice_destroy(s), SLUICE_OK);
    o.selector = NULL, o.selector_state = state;
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_INVALID);
    o.selector_state = NULL, o.selector = "fixed";
    EXPECT(sluice_create(&o, &s), SLUICE_OK);
    EXPECT(sluice_explain(s, text, sizeof text), SLUICE_ERR_INVALID);
    EXPECT(sluice_set_policy(s, "adaptive"), SLUICE_ERR_INVALID);
    EXPECT(sluice_destroy(s), SLUICE_OK);

    o.selector = "bandit", o.selector_state = state;
    for (int run = 0; run < 2; run++) {
        pthread_t thread;
        head = tail = 0;
        atomic_store(&stop, 0), atomic_store(&submitted, 0), atomic_store(&served, 0);
        EXPECT(sluice_create(&o, &s), SLUICE_OK);
        if (!s) return 1;
        EXPECT(sluice_explain(s, text, sizeof text), SLUICE_ERR_INVALID);
        HOLDS(says(s, "\"schema\":1") && says(s, "\"selector\":\"bandit\""));
        HOLDS(run == 0 ? says(s, "\"arm\":\"noop\"") : !says(s, "\"contexts\":0,"));
        pthread_create(&thread, NULL, device, s);
        work(s, 120);
        HOLDS(says(s, "\"workload\":\"reads of 48K to 192K"));
        EXPECT(sluice_set_policy(s, "sjf"), SLUICE_OK);
        HOLDS(says(s, "\"paused\":true"));
        EXPECT(sluice_set_policy(s, "adaptive"), SLUICE_OK);
        HOLDS(says(s, "\"paused\":false"));
        work(s, 20);
        EXPECT(sluice_shutdown(s, 20ull * 1000 * 1000 * 1000), SLUICE_OK);
        atomic_store(&stop, 1);
        pthread_mutex_lock(&lock);
        pthread_cond_signal(&news);
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
        EXPECT(sluice_destroy(s), SLUICE_OK);
        EXPECT(sluice_explain(s, text, sizeof text), SLUICE_ERR_CLOSED);
        HOLDS(atomic_load(&served) == 140 * 8);
    }
    return atomic_load(&wrong) != 0;
}
