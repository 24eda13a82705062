/* Cancelling: what is queued can be taken back and is never processed; what was handed over cannot. */
#define _GNU_SOURCE
#include <agios.h>
#include <semaphore.h>
#include <stdio.h>

static sem_t entered, go;
static int64_t processed[8], count;
static int list_sizes[8], lists, failures;

static void *one(int64_t id) {
    processed[count++ % 8] = id;
    if (id == 0) {
        sem_post(&entered);
        sem_wait(&go);
        agios_exit(); /* refused in here, with a message */
    }
    agios_release_request((char *)"f", RT_READ, 10, id * 10);
    return 0;
}

static void *many(int64_t *ids, int32_t n) {
    list_sizes[lists++ % 8] = n;
    for (int i = 0; i < n; i++) one(ids[i]);
    return 0;
}

#define EXPECT(condition) \
    do { \
        if (!(condition)) fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition), failures++; \
    } while (0)

int main(int argc, char **argv) {
    sem_init(&entered, 0, 0), sem_init(&go, 0, 0);
    if (!agios_init(one, many, argc > 1 ? argv[1] : NULL, 0)) return 1;
    EXPECT(agios_add_request((char *)"f", RT_READ, 0, 10, 0, 0));
    sem_wait(&entered); /* the scheduler is busy with request 0 */
    for (int id = 1; id <= 5; id++) EXPECT(agios_add_request((char *)"f", RT_READ, id * 10, 10, id, 0));
    EXPECT(agios_cancel_request((char *)"f", RT_READ, 10, 30));
    EXPECT(!agios_cancel_request((char *)"f", RT_READ, 10, 30));
    EXPECT(!agios_cancel_request((char *)"f", RT_READ, 10, 0));
    EXPECT(!agios_release_request((char *)"f", RT_READ, 10, 40));
    sem_post(&go);
    agios_exit();
    EXPECT(count == 5);
    for (int i = 0; i < count; i++) EXPECT(processed[i] != 3);
    /* 1, 2 and 4, 5 are contiguous; 2 and 4 are not, now that 3 is gone. */
    EXPECT(lists == 2 && list_sizes[0] == 2 && list_sizes[1] == 2);
    EXPECT(!agios_add_request((char *)"f", RT_READ, 0, 10, 0, 0));
    return failures != 0;
}
