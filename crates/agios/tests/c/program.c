/* A program as written for AGIOS v2: threads add requests, the callbacks hand them to a worker that releases them.
 *   program CONFIG THREADS REQUESTS_EACH FILES [idle]
 * Prints the requests a second. Each identifier must come back once. With "idle" it then sleeps a second and prints the CPU
 * time that this took. */
#define _GNU_SOURCE
#include <agios.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEN 4096
static int threads, each, files;
static atomic_uchar *seen;
static atomic_long done, wrong, batches;

static void describe(int64_t id, char *name, int64_t *offset) {
    sprintf(name, "file.%d", (int)(id % files));
    *offset = id / files * LEN;
}

static void finish(int64_t id) {
    char name[32];
    int64_t offset;
    if (id < 0 || id >= (int64_t)threads * each || atomic_fetch_add(&seen[id], 1)) atomic_fetch_add(&wrong, 1);
    describe(id, name, &offset);
    if (!agios_release_request(name, id % 2 ? RT_WRITE : RT_READ, LEN, offset)) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&done, 1);
}

static void *process_request(int64_t id) {
    batches++;
    finish(id);
    return NULL;
}

static void *process_requests(int64_t *ids, int32_t count) {
    batches++;
    for (int32_t i = 0; i < count; i++) finish(ids[i]);
    return NULL;
}

static void *add(void *number) {
    char name[32];
    int64_t offset;
    for (int64_t i = 0; i < each; i++) {
        int64_t id = i * threads + (int64_t)(intptr_t)number;
        describe(id, name, &offset);
        if (!agios_add_request(name, id % 2 ? RT_WRITE : RT_READ, offset, LEN, id, (int32_t)(id % 4))) atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What has to be refused is. */
static void check_misuse(void) {
    if (agios_release_request((char *)"none", RT_READ, 1, 0)) wrong++;
    if (agios_cancel_request((char *)"none", RT_READ, 1, 0)) wrong++;
    if (agios_add_request(NULL, RT_READ, 0, 1, 0, 0)) wrong++;
    if (agios_add_request((char *)"x", 2, 0, 1, 0, 0)) wrong++;
    if (agios_add_request((char *)"x", RT_READ, -1, 1, 0, 0)) wrong++;
    if (agios_add_request((char *)"x", RT_READ, 0, -1, 0, 0)) wrong++;
    if (agios_add_request((char *)"x", RT_READ, 0, 1, 0, 4)) wrong++;
    if (agios_init(process_request, NULL, NULL, 3)) wrong++; /* it runs already */
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: program CONFIG THREADS REQUESTS_EACH FILES [idle]\n"), 2;
    threads = atoi(argv[2]), each = atoi(argv[3]), files = atoi(argv[4]);
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    seen = calloc((size_t)threads * (size_t)each, sizeof *seen);
    if (!ids || !seen) return perror("program"), 1;
    if (agios_add_request((char *)"x", RT_READ, 0, 1, 0, 0)) wrong++; /* not running yet */
    if (agios_init(process_request, process_requests, argv[1], -1)) wrong++;
    if (!agios_init(process_request, process_requests, argv[1], 3)) return 1;
    double start = seconds(CLOCK_MONOTONIC);
    for (long t = 0; t < threads; t++) pthread_create(&ids[t], NULL, add, (void *)t);
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    while (done < (long)threads * each && wrong == 0) {
        struct timespec moment = {0, 100000};
        nanosleep(&moment, NULL);
    }
    double took = seconds(CLOCK_MONOTONIC) - start;
    check_misuse();
    if (argc > 5 && !strcmp(argv[5], "idle")) {
        struct timespec second = {1, 0};
        double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
        nanosleep(&second, NULL);
        printf("idle: %.6f s of CPU time in a second\n", seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    }
    agios_exit();
    printf("%.0f requests/s, %ld requests, %ld calls back, %ld wrong\n", (double)done / took, (long)done, (long)batches, (long)wrong);
    free(ids), free((void *)seen);
    return done != (long)threads * each || wrong;
}
