/*
 * Threads for what a scheduler's own thread starts.
 *
 * Most requests are started on a thread of GlusterFS, the one that submits or completes. Those whose time has come while
 * nothing happens are started by the scheduler's thread, which must not carry them out itself: right above storage/posix
 * the child returns when the disk has, and the next deadline would wait for that. They go to these threads, which are started
 * when they are needed first.
 */
#include "translator.h"

#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 16

struct job {
    struct job *next;
    size_t count;
    struct sluice_part parts[];
};

struct workers {
    struct translator *translator;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *first;
    struct job **end;
    unsigned threads;
    unsigned idle;
    unsigned queued;
    bool ends;
    pthread_t all[THREADS_MAX];
};

static void *work(void *argument)
{
    struct workers *workers = argument;
    THIS = workers->translator->this;
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        struct job *job = workers->first;
        if (!job && workers->ends)
            break;
        if (!job) {
            workers->idle++;
            pthread_cond_wait(&workers->changed, &workers->lock);
            workers->idle--;
            continue;
        }
        workers->first = job->next;
        workers->queued--;
        if (!job->next)
            workers->end = &workers->first;
        pthread_mutex_unlock(&workers->lock);
        start_parts(workers->translator, job->parts, job->count);
        free(job);
        pthread_mutex_lock(&workers->lock);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

struct workers *workers_new(struct translator *translator)
{
    struct workers *workers = GF_CALLOC(1, sizeof(*workers), MEMORY_WORKERS);
    if (!workers)
        return NULL;
    workers->translator = translator;
    workers->end = &workers->first;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->changed, NULL);
    return workers;
}

bool workers_take(struct workers *workers, const struct sluice_part *parts, size_t count)
{
    /* Not GF_MALLOC: the scheduler's thread is no translator's. */
    struct job *job = malloc(sizeof(*job) + count * sizeof(*parts));
    if (!job)
        return false;
    job->next = NULL;
    job->count = count;
    memcpy(job->parts, parts, count * sizeof(*parts));
    pthread_mutex_lock(&workers->lock);
    bool taken = workers->idle > workers->queued || workers->threads == THREADS_MAX;
    if (!taken) {
        taken = !gf_thread_create(&workers->all[workers->threads], NULL, work, workers, "sluice");
        workers->threads += taken;
        taken = workers->threads > 0;
    }
    if (taken) {
        workers->queued++;
        *workers->end = job;
        workers->end = &job->next;
        pthread_cond_signal(&workers->changed);
    }
    pthread_mutex_unlock(&workers->lock);
    if (!taken)
        free(job);
    return taken;
}

void workers_free(struct workers *workers)
{
    pthread_mutex_lock(&workers->lock);
    workers->ends = true;
    pthread_cond_broadcast(&workers->changed);
    pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->threads; i++)
        pthread_join(workers->all[i], NULL);
    pthread_cond_destroy(&workers->changed);
    pthread_mutex_destroy(&workers->lock);
    GF_FREE(workers);
}
