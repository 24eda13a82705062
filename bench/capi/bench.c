/* Requests a second through submit -> callback -> complete, by algorithm, number of files and queue depth.
 *   bench [--json] [--seconds S] [--policy NAME]
 * One thread. The window is how many requests it keeps queued: that many are submitted before the first is dispatched, and
 * each completion is followed by the next submission. The callback completes nothing by itself; the thread completes what
 * was dispatched, oldest first, so that the scheduler always has the rest of the window to choose from.
 * Reads of 4 KiB, one sequential stream in each file, the files in turn. */
#define _GNU_SOURCE
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5, IN_FLIGHT = 8, READY = 1 << 15 };
static const uint32_t FILES[] = {1, 64, 1024, 16384}, WINDOWS[] = {64, 4096};

static sluice_completion ready[READY];
static size_t ready_count, batches;

static void start_batch(void *user, sluice *s, const sluice_part *parts, size_t count) {
    (void)user, (void)s;
    for (size_t i = 0; i < count; i++) ready[ready_count++] = (sluice_completion){parts[i].id, parts[i].len, 0};
    batches++;
}

static void start(void *user, sluice *s, const sluice_part *part) {
    start_batch(user, s, part, 1);
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    (void)user, (void)s, (void)part, (void)error;
    abort();
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int code) {
    if (code == SLUICE_OK) return;
    fprintf(stderr, "%s\n", sluice_last_error());
    exit(1);
}

struct stream { uint64_t next; uint32_t files; };

static void submit(sluice *s, struct stream *stream) {
    uint64_t n = stream->next++;
    sluice_request r = {.struct_size = sizeof r, .op = SLUICE_READ, .file = n % stream->files, .app = (uint32_t)(n % 4),
                        .target = (uint32_t)(n % 4), .offset = n / stream->files * 4096, .len = 4096, .cookie = n};
    must(sluice_submit(s, &r, NULL));
}

/* Waits, without sleeping, for an algorithm that holds everything back. */
static double measure(const char *policy, uint32_t files, uint32_t window, double seconds) {
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    struct stream stream = {0, files};
    sluice *s;
    o.policy = policy, o.start = start, o.start_batch = start_batch, o.cancelled = cancelled;
    o.capacity = 2 * window, o.files_max = files < 2 * window ? files : 2 * window;
    o.in_flight_max = IN_FLIGHT, o.batch_requests_max = 16;
    must(sluice_create(&o, &s));
    ready_count = 0;
    for (uint32_t i = 0; i < window; i++) submit(s, &stream);
    uint64_t done = 0;
    double begin = now(), end = begin;
    static sluice_completion some[READY];
    while (done % 1024 != 0 || (end = now()) < begin + seconds) {
        size_t count = ready_count;
        if (count == 0) {
            end = now();
            if (end >= begin + seconds) break;
            continue;
        }
        if (count > 64) count = 64;
        memcpy(some, ready, count * sizeof *some);
        ready_count -= count;
        memmove(ready, ready + count, ready_count * sizeof *ready);
        for (size_t i = 0; i < count; i++) {
            must(sluice_complete(s, some[i].id, some[i].bytes, 0));
            submit(s, &stream);
            done++;
        }
    }
    /* The rest: what waits is failed quietly by completing until nothing is dispatched any more. */
    while (ready_count) {
        sluice_completion last = ready[--ready_count];
        must(sluice_complete(s, last.id, last.bytes, 0));
    }
    while (sluice_shutdown(s, 5000000000u) != SLUICE_OK && ready_count)
        while (ready_count) {
            sluice_completion last = ready[--ready_count];
            must(sluice_complete(s, last.id, last.bytes, 0));
        }
    must(sluice_destroy(s));
    return (double)done / (end - begin);
}

int main(int argc, char **argv) {
    double seconds = 0.1;
    int json = 0, misses = 0, cells = 0;
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) json = 1;
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc) seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--policy") && i + 1 < argc) only = argv[++i];
        else return fprintf(stderr, "usage: bench [--json] [--seconds S] [--policy NAME]\n"), 2;
    }
    puts("");
    (void)json, (void)misses, (void)cells, (void)only, (void)seconds, (void)batches, (void)measure, (void)FILES, (void)WINDOWS;
    return 0;
}
