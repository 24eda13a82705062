/* Calls from where a thread, or the program, ends: destructors of what threads keep, and atexit(). */
#define _GNU_SOURCE
#include <agios.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

static char *config;
static sem_t handed_over;
static pthread_key_t key;
static int ended, failures;

#define EXPECT(condition) \
    do { \
        if (!(condition)) fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition), failures++; \
    } while (0)

static void *one(int64_t id) {
    (void)id;
    sem_post(&handed_over);
    return 0;
}

static void add(int64_t id) {
    EXPECT(agios_add_request((char *)"f", RT_WRITE, 0, 10, id, 0));
}

/* Where the program releases what it was given, and ends the scheduler. The second request overlaps the first. */
static void release_and_exit(void) {
    sem_wait(&handed_over);
    EXPECT(agios_release_request((char *)"f", RT_WRITE, 10, 0));
    sem_wait(&handed_over);
    EXPECT(agios_release_request((char *)"f", RT_WRITE, 10, 0));
    EXPECT(!agios_release_request((char *)"f", RT_WRITE, 10, 0));
    agios_exit();
}

/* Only in the third round of destructors: in the second one languages take away what their threads have. */
static void at_end_of_thread(void *unused) {
    static int rounds;
    if (++rounds < 3) {
        pthread_setspecific(key, unused);
        return;
    }
    release_and_exit();
    ended = 1;
}

static void start(void) {
    EXPECT(agios_init(one, NULL, config, 0));
    add(0), add(1);
}

static void *thread(void *unused) {
    (void)unused;
    /* All calls have been made on this thread before, so that the library has what it keeps for it. */
    start();
    release_and_exit();
    pthread_key_create(&key, at_end_of_thread);
    pthread_setspecific(key, &key);
    start();
    return 0;
}

static void at_end_of_program(void) {
    release_and_exit();
    if (failures) _Exit(1);
}

int main(int argc, char **argv) {
    config = argc > 1 ? argv[1] : NULL;
    sem_init(&handed_over, 0, 0);
    pthread_t other;
    if (pthread_create(&other, NULL, thread, NULL)) return 1;
    pthread_join(other, NULL);
    EXPECT(ended);
    /* Refused if the thread could not end its scheduler. */
    start();
    atexit(at_end_of_program);
    return failures != 0;
}
