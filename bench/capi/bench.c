/* Requests a second through submit -> callback -> complete, by algorithm, number of files and requests queued.
 *   bench [--json] [--seconds S] [--policy NAME]
 * One thread keeps `window` requests outstanding, of which at most 8 batches of up to 16 are in flight: whenever some were
 * dispatched it completes them, oldest first, and submits as many new ones, so that the scheduler always has the rest of the
 * window to choose from. Reads of 4 KiB, one sequential stream in each file, the files in turn. The fastest of five rounds
 * through all cells counts: on a shared machine a neighbour slows things down, and nothing speeds them up. */
#define _GNU_SOURCE
#include <sluice.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5, IN_FLIGHT = 8, BATCH = 16, RING = 1 << 13, POLICIES_MAX = 32 };
static const uint32_t FILES[4] = {1, 64, 1024, 16384}, WINDOWS[2] = {64, 4096};
static const double BAR = 1e6, BAR_SPREAD = 4.0;

/* What was dispatched and is to be completed. The scheduler calls back one thread at a time, this program reads. */
static sluice_completion ring[RING];
static _Atomic size_t head;
static size_t tail;

static void start_batch(void *user, sluice *s, const sluice_part *parts, size_t count) {
    size_t at = atomic_load_explicit(&head, memory_order_relaxed);
    (void)user, (void)s;
    for (size_t i = 0; i < count; i++) ring[(at + i) % RING] = (sluice_completion){parts[i].id, parts[i].len, 0};
    atomic_store_explicit(&head, at + count, memory_order_release);
}

static void start(void *user, sluice *s, const sluice_part *part) {
    start_batch(user, s, part, 1);
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    (void)user, (void)s, (void)part, (void)error;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int code) {
    if (code == SLUICE_OK) return;
    fprintf(stderr, "bench: %s\n", sluice_last_error());
    exit(1);
}

static void submit(sluice *s, uint64_t n, uint32_t files) {
    sluice_request r = {.struct_size = sizeof r, .op = SLUICE_READ, .file = n % files, .app = (uint32_t)(n % 4),
                        .target = (uint32_t)(n % 4), .offset = n / files * 4096, .len = 4096, .cookie = n};
    must(sluice_submit(s, &r, NULL));
}

static double measure(const char *policy, uint32_t files, uint32_t window, double seconds) {
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    sluice *s;
    o.policy = policy, o.start = start, o.start_batch = start_batch, o.cancelled = cancelled;
    o.capacity = 2 * window, o.files_max = files < window ? files : window;
    o.in_flight_max = IN_FLIGHT, o.batch_requests_max = BATCH;
    must(sluice_create(&o, &s));
    uint64_t submitted = 0, done = 0;
    while (submitted < window) submit(s, submitted++, files);
    double begin = now(), end = begin;
    do {
        size_t until = atomic_load_explicit(&head, memory_order_acquire);
        for (int i = 0; tail < until && i < 64; i++, tail++, done++) {
            sluice_completion c = ring[tail % RING];
            must(sluice_complete(s, c.id, c.bytes, 0));
            submit(s, submitted++, files);
        }
        end = now();
    } while (end < begin + seconds);
    must(sluice_shutdown(s, 0));
    must(sluice_destroy(s));
    tail = atomic_load(&head);
    return (double)done / (end - begin);
}

static int waits(const char *policy) {
    return !strcmp(policy, "mlf") || !strcmp(policy, "aioli") || !strcmp(policy, "twins");
}

int main(int argc, char **argv) {
    static double best[POLICIES_MAX][4][2];
    const char *only = NULL, *name;
    double seconds = 0.05;
    int json = 0, misses = 0, first = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) json = 1;
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc) seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--policy") && i + 1 < argc) only = argv[++i];
        else return fprintf(stderr, "usage: bench [--json] [--seconds S] [--policy NAME]\n"), 2;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (size_t p = 0; p < POLICIES_MAX && (name = sluice_policy_name(p)); p++)
            for (int f = 0; f < 4 && (!only || !strcmp(only, name)); f++)
                for (int w = 0; w < 2; w++) {
                    double rate = measure(name, FILES[f], WINDOWS[w], seconds);
                    if (rate > best[p][f][w]) best[p][f][w] = rate;
                }
    if (json) printf("{\"cells\":[");
    else printf("thousand requests a second, one thread (fastest of %d rounds)\n\n%-8s %8s %10s %10s\n", ROUNDS, "policy", "files", "window 64", "4096");
    for (size_t p = 0; p < POLICIES_MAX && (name = sluice_policy_name(p)); p++)
        for (int f = 0; f < 4 && (!only || !strcmp(only, name)); f++) {
            if (!json) printf("%-8s %8u %10.0f %10.0f\n", name, FILES[f], best[p][f][0] / 1e3, best[p][f][1] / 1e3);
            for (int w = 0; json && w < 2; w++, first = 0)
                printf("%s{\"policy\":\"%s\",\"files\":%u,\"window\":%u,\"requests_per_s\":%.0f}", first ? "" : ",", name, FILES[f], WINDOWS[w], best[p][f][w]);
        }
    if (json) printf("],\"misses\":[");
    else printf("\nbars, for algorithms that do not wait: 1,000 k/s with one file and window 64; no cell 4 times slower than the\n"
                "algorithm's fastest. mlf and aioli wait for better aggregations, twins for its windows.\n");
    first = 1;
    for (size_t p = 0; p < POLICIES_MAX && (name = sluice_policy_name(p)); p++) {
        double fastest = 0;
        if (waits(name) || (only && strcmp(only, name))) continue;
        for (int c = 0; c < 8; c++) fastest = best[p][c / 2][c % 2] > fastest ? best[p][c / 2][c % 2] : fastest;
        for (int c = 0; c < 8; c++) {
            double rate = best[p][c / 2][c % 2];
            int slow = c == 0 && rate < BAR, spread = rate * BAR_SPREAD < fastest;
            if (!slow && !spread) continue;
            misses++;
            printf(json ? "%s\"%s, %u files, window %u: %.0f k/s\"" : "%smissed: %s, %u files, window %u: %.0f k/s\n", json && !first ? "," : "", name, FILES[c / 2], WINDOWS[c % 2], rate / 1e3);
            first = 0;
        }
    }
    if (json) puts("]}");
    else if (!misses) puts("all met");
    return 0;
}
