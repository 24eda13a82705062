#include "announced.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 1024
/* Threads that asked last; neighbours in number do not collide. */
#define CALLERS 1024
/* Seconds for which is believed what is known of a thread, and between two looks at who has ended. */
#define FRESH_S 2
/* Processes before anybody looks which of them have ended. */
#define LOOK_AT 64

enum phase { COMPUTES, IN_IO, IN_BATCH };

/* Which process: a number that is used again is told from it by when that began, in ticks since the system was started. */
struct identity {
    uint32_t process;
    uint64_t began;
};

struct process {
    struct process *next;
    struct identity who;
    uint32_t uid;
    enum phase phase;
    /* It has said what it does. */
    bool has_said;
    uint64_t batches;
    uint64_t batch_bytes;
    char job[ANNOUNCED_NAME + 1];
};

struct caller {
    uint32_t thread;
    uint64_t era;
    int64_t checked_s;
    /* "": none. */
    char job[ANNOUNCED_NAME + 1];
};

struct announced {
    const char *proc;
    size_t most;
    pthread_mutex_t lock;
    /* Also read without the lock: whether anybody has spoken. */
    atomic_size_t count;
    size_t look_at;
    int64_t looked_s;
    /* Counts the jobs that were named: what was known of threads before is not believed any more. */
    uint64_t era;
    uint64_t news;
    struct process *buckets[BUCKETS];
    struct caller callers[CALLERS];
};

static int64_t now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec;
}

/* The beginning of a file of the system's about a process or thread. */
static bool read_about(const char *proc, uint32_t number, const char *file, char *text, size_t room)
{
    char path[512];
    if (snprintf(path, sizeof(path), "%s/%u/%s", proc, number, file) >= (int)sizeof(path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, room - 1);
    close(fd);
    text[len > 0 ? len : 0] = 0;
    return len > 0;
}

static bool began(const char *proc, uint32_t process, uint64_t *ticks)
{
    char text[2048];
    if (!read_about(proc, process, "stat", text, sizeof(text)))
        return false;
    /* Behind the name, which may have anything in it, the twentieth field. */
    char *at = strrchr(text, ')');
    for (int field = 0; at && field < 20; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return false;
    *ticks = strtoull(at + 1, NULL, 10);
    return true;
}

static bool identify(const char *proc, uint32_t thread, struct identity *who)
{
    char text[4096];
    if (!thread || !read_about(proc, thread, "status", text, sizeof(text)))
        return false;
    const char *line = strstr(text, "\nTgid:");
    who->process = line ? (uint32_t)strtoul(line + strlen("\nTgid:"), NULL, 10) : 0;
    return who->process && began(proc, who->process, &who->began);
}

static bool is_alive(const struct announced *announced, const struct process *process)
{
    uint64_t ticks;
    return began(announced->proc, process->who.process, &ticks) && ticks == process->who.began;
}

static struct process **place_of(struct announced *announced, uint32_t process)
{
    struct process **at = &announced->buckets[process % BUCKETS];
    while (*at && (*at)->who.process != process)
        at = &(*at)->next;
    return at;
}

static struct process *find(struct announced *announced, const struct identity *who)
{
    struct process *process = *place_of(announced, who->process);
    return process && process->who.began == who->began ? process : NULL;
}

/* With the lock. */
static void forget_ended(struct announced *announced)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct process **at = &announced->buckets[i];
        while (*at) {
            struct process *process = *at;
            if (is_alive(announced, process)) {
                at = &process->next;
            } else {
                *at = process->next;
                free(process);
                atomic_fetch_sub(&announced->count, 1);
            }
        }
    }
    size_t twice = 2 * atomic_load(&announced->count);
    announced->look_at = twice < LOOK_AT ? LOOK_AT : twice;
    announced->looked_s = now_s();
}

struct announced *announced_new(const char *proc, size_t most)
{
    struct announced *announced = calloc(1, sizeof(*announced));
    if (!announced)
        return NULL;
    announced->proc = proc;
    announced->most = most;
    announced->look_at = LOOK_AT;
    announced->looked_s = -FRESH_S;
    pthread_mutex_init(&announced->lock, NULL);
    return announced;
}

void announced_free(struct announced *announced)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        while (announced->buckets[i]) {
            struct process *process = announced->buckets[i];
            announced->buckets[i] = process->next;
            free(process);
        }
    }
    pthread_mutex_destroy(&announced->lock);
    free(announced);
}

static bool is_name(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return false;
    return len > 0 && len <= ANNOUNCED_NAME;
}

/* A place for a process that has not spoken yet. With the lock. */
static int add(struct announced *announced, const struct identity *who, struct process **added)
{
    size_t count = atomic_load(&announced->count);
    /* Not each time: somebody may keep it full. */
    if (count >= announced->most || count >= announced->look_at)
        if (now_s() - announced->looked_s >= FRESH_S)
            forget_ended(announced);
    if (atomic_load(&announced->count) >= announced->most)
        return ENOSPC;
    struct process *process = calloc(1, sizeof(*process));
    if (!process)
        return ENOMEM;
    struct process **bucket = &announced->buckets[who->process % BUCKETS];
    process->next = *bucket;
    *bucket = process;
    *added = process;
    atomic_fetch_add(&announced->count, 1);
    return 0;
}

int announced_job(struct announced *announced, uint32_t thread, uint32_t uid, const char *name, size_t len)
{
    struct identity who;
    int error = 0;
    if (!is_name(name, len) || !identify(announced->proc, thread, &who))
        return EINVAL;
    pthread_mutex_lock(&announced->lock);
    struct process *process = *place_of(announced, who.process);
    if (!process)
        error = add(announced, &who, &process);
    if (!error) {
        /* What another process with this number has said, or this one of another job, is over. */
        struct process *next = process->next;
        *process = (struct process){.next = next, .who = who, .uid = uid};
        memcpy(process->job, name, len);
    }
    announced->era++;
    pthread_mutex_unlock(&announced->lock);
    return error;
}

/* What a text says; false: nothing. `bytes` stays what it is unless it says that a batch begins. */
static bool phase_in(const char *text, size_t len, enum phase *phase, int64_t *bytes)
{
    char said[32];
    char *end = NULL;
    if (len >= sizeof(said))
        return false;
    memcpy(said, text, len);
    said[len] = 0;
    if (strlen(said) != len)
        return false;
    *phase = !strcmp(said, "compute") ? COMPUTES : IN_IO;
    if (*phase == COMPUTES || !strcmp(said, "io") || !strcmp(said, "batch end"))
        return true;
    if (strncmp(said, "batch ", 6) || said[6] < '0' || said[6] > '9')
        return false;
    errno = 0;
    *bytes = strtoll(said + 6, &end, 10);
    *phase = IN_BATCH;
    return !errno && !*end;
}

/* Whether all other processes of a program compute that have not ended. With the lock. */
static bool others_compute(const struct announced *announced, const struct process *one)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        for (const struct process *other = announced->buckets[i]; other; other = other->next) {
            bool is_of_it = other != one && other->uid == one->uid && !strcmp(other->job, one->job);
            if (is_of_it && other->phase != COMPUTES && is_alive(announced, other))
                return false;
        }
    }
    return true;
}

/* A process says what it does from now on. With the lock. */
static void change(struct announced *announced, struct process *process, enum phase phase, struct announced_news *news)
{
    bool computed = process->phase == COMPUTES;
    news->computes = phase == COMPUTES;
    /* Where another one does I/O, the program does, whatever this one did and does. */
    news->is_news = (!process->has_said || computed != news->computes) && others_compute(announced, process);
    news->uid = process->uid;
    news->number = ++announced->news;
    memcpy(news->job, process->job, sizeof(news->job));
    process->phase = phase;
    process->has_said = true;
}

int announced_phase(struct announced *announced, uint32_t thread, const char *text, size_t len, struct announced_news *news)
{
    struct identity who;
    enum phase phase;
    int64_t bytes = -1;
    if (!phase_in(text, len, &phase, &bytes) || !identify(announced->proc, thread, &who))
        return EINVAL;
    pthread_mutex_lock(&announced->lock);
    struct process *process = find(announced, &who);
    if (process) {
        change(announced, process, phase, news);
        if (bytes >= 0) {
            process->batches++;
            process->batch_bytes += (uint64_t)bytes;
        }
    }
    pthread_mutex_unlock(&announced->lock);
    return process ? 0 : EINVAL;
}

bool announced_job_of(struct announced *announced, uint32_t thread, char job[ANNOUNCED_NAME + 1])
{
    struct identity who;
    *job = 0;
    if (!thread || !atomic_load(&announced->count))
        return false;
    struct caller *caller = &announced->callers[thread % CALLERS];
    int64_t now = now_s();
    pthread_mutex_lock(&announced->lock);
    uint64_t era = announced->era;
    bool is_known = caller->thread == thread && caller->era == era && now - caller->checked_s < FRESH_S;
    if (is_known)
        memcpy(job, caller->job, sizeof(caller->job));
    pthread_mutex_unlock(&announced->lock);
    if (is_known || !identify(announced->proc, thread, &who))
        return *job;
    pthread_mutex_lock(&announced->lock);
    const struct process *process = find(announced, &who);
    if (process)
        memcpy(job, process->job, sizeof(process->job));
    *caller = (struct caller){.thread = thread, .era = era, .checked_s = now};
    memcpy(caller->job, job, strlen(job));
    pthread_mutex_unlock(&announced->lock);
    return *job;
}

static int compare(const void *one, const void *two)
{
    const struct announced_program *a = one, *b = two;
    if (a->uid != b->uid)
        return a->uid < b->uid ? -1 : 1;
    return strcmp(a->job, b->job);
}

static struct announced_program program_of(const struct process *process)
{
    struct announced_program program = {
        .uid = process->uid,
        .computing = process->phase == COMPUTES,
        .in_io = process->phase == IN_IO,
        .in_batch = process->phase == IN_BATCH,
        .batches = process->batches,
        .batch_bytes = process->batch_bytes,
    };
    memcpy(program.job, process->job, sizeof(program.job));
    return program;
}

/* Those of the same job become one. */
static size_t join(struct announced_program *programs, size_t count)
{
    size_t joined = 0;
    qsort(programs, count, sizeof(*programs), compare);
    for (size_t i = 0; i < count; i++) {
        struct announced_program *last = joined ? &programs[joined - 1] : NULL;
        if (!last || compare(last, &programs[i])) {
            programs[joined++] = programs[i];
            continue;
        }
        last->computing += programs[i].computing;
        last->in_io += programs[i].in_io;
        last->in_batch += programs[i].in_batch;
        last->batches += programs[i].batches;
        last->batch_bytes += programs[i].batch_bytes;
    }
    return joined;
}

struct announced_program *announced_programs(struct announced *announced, size_t *count)
{
    struct announced_program *programs = NULL;
    *count = 0;
    pthread_mutex_lock(&announced->lock);
    forget_ended(announced);
    size_t room = atomic_load(&announced->count);
    if (room)
        programs = calloc(room, sizeof(*programs));
    for (size_t i = 0; programs && i < BUCKETS; i++)
        for (const struct process *process = announced->buckets[i]; process; process = process->next)
            programs[(*count)++] = program_of(process);
    pthread_mutex_unlock(&announced->lock);
    if (programs)
        *count = join(programs, *count);
    return programs;
}
