/* Threads add requests and take some of them back at once, while they are being handed over; a thread of the program releases
 * what was. Each ends in one way, once.
 *   race CONFIG THREADS REQUESTS_EACH */
#define _GNU_SOURCE
#include <agios.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define LEN 4096
static int threads, each;
/* How often a request was processed. */
static atomic_uchar *seen;
static atomic_long processed, cancelled, wrong;
/* Those handed over, in order: identifiers and one, so that what was not written yet is 0. */
static atomic_long *handed;
static atomic_long count;
static sem_t waiting;

/* Neighbours belong to different threads, and some requests have the same attributes as others. */
static int64_t offset_of(int64_t id) {
    return id / 2 * LEN;
}

static void *one(int64_t id) {
    if (atomic_fetch_add(&seen[id], 1)) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&processed, 1);
    handed[atomic_fetch_add(&count, 1)] = id + 1;
    sem_post(&waiting);
    return NULL;
}

static void *add(void *number) {
    for (int64_t i = 0; i < each; i++) {
        int64_t id = i * threads + (int64_t)(intptr_t)number;
        if (!agios_add_request((char *)"file", RT_READ, offset_of(id), LEN, id, (int32_t)(id % 3))) atomic_fetch_add(&wrong, 1);
        if (id % 3 == 0 && agios_cancel_request((char *)"file", RT_READ, LEN, offset_of(id))) atomic_fetch_add(&cancelled, 1);
    }
    return NULL;
}

/* Until it is woken up although nothing more was handed over. */
static void *release(void *ignored) {
    for (long at = 0;; at++) {
        sem_wait(&waiting);
        if (at == atomic_load(&count)) return ignored;
        while (!handed[at]) {}
        int64_t id = handed[at] - 1;
        if (!agios_release_request((char *)"file", RT_READ, LEN, offset_of(id))) atomic_fetch_add(&wrong, 1);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: race CONFIG THREADS REQUESTS_EACH\n"), 2;
    threads = atoi(argv[2]), each = atoi(argv[3]);
    pthread_t ids[64], releaser;
    seen = calloc((size_t)threads * (size_t)each, sizeof *seen), handed = calloc((size_t)threads * (size_t)each, sizeof *handed);
    if (!seen || !handed || threads > 64) return perror("race"), 1;
    sem_init(&waiting, 0, 0);
    if (!agios_init(one, NULL, argv[1], 3)) return 1;
    pthread_create(&releaser, NULL, release, NULL);
    for (long t = 0; t < threads; t++) pthread_create(&ids[t], NULL, add, (void *)t);
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    agios_exit(); /* hands over what is queued, and waits for the releases */
    sem_post(&waiting);
    pthread_join(releaser, NULL);
    long all = (long)threads * each;
    printf("%ld requests, %ld processed, %ld cancelled, %ld wrong\n", all, (long)processed, (long)cancelled, (long)wrong);
    free((void *)seen), free((void *)handed);
    return wrong || processed + cancelled != all;
}
