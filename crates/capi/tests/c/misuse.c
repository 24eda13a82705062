/* Every misuse has a defined answer. Prints what differs and exits with 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(int line, const char *what, int got, int wanted, const char *words) {
    if (got != wanted || (words && !strstr(sluice_last_error(), words))) {
        fprintf(stderr, "line %d: %s: got %d (%s), wanted %d with \"%s\"\n", line, what, got, sluice_last_error(), wanted,
                words ? words : "");
        failures++;
    }
}
#define EXPECT(call, wanted, words) expect(__LINE__, #call, call, wanted, words)

/* Notes what it is given; completes nothing by itself. */
struct host {
    uint64_t ids[64];
    unsigned started, cancelled;
    int error, nested[7];
    sem_t *block, *blocked;
};

static void start(void *user, sluice *s, const sluice_part *part) {
    struct host *h = user;
    sluice_request r = {.struct_size = sizeof r, .len = 1};
    sluice_counters c = {.struct_size = sizeof c};
    if (h->started < 64) h->ids[h->started] = part->id;
    h->started++;
    if (part->cookie == 77) { /* all but the first is allowed in here */
        uint64_t id;
        h->nested[0] = sluice_destroy(s);
        h->nested[1] = sluice_set_policy(s, "to");
        h->nested[2] = sluice_stats(s, SLUICE_TOTAL, &c);
        h->nested[3] = sluice_submit(s, &r, &id);
        h->nested[4] = sluice_cancel(s, part->id);
        h->nested[5] = sluice_complete(s, part->id, 1, 0);
        h->nested[6] = sluice_shutdown(s, 0);
    }
    if (h->block) {
        sem_post(h->blocked);
        sem_wait(h->block);
    }
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    struct host *h = user;
    (void)s, (void)part;
    h->cancelled++;
    h->error = error;
}

static struct sluice_options options_of(struct host *h) {
    struct sluice_options o = SLUICE_OPTIONS_INIT;
    memset(h, 0, sizeof *h);
    o.start = start, o.cancelled = cancelled, o.user = h, o.policy = "to", o.capacity = 8, o.in_flight_max = 1;
    return o;
}

static int submit(sluice *s, uint64_t offset, uint64_t cookie) {
    sluice_request r = {.struct_size = sizeof r, .op = SLUICE_READ, .file = 1, .offset = offset, .len = 4096, .cookie = cookie};
    return sluice_submit(s, &r, NULL);
}

static void creation(void) {
    struct host h;
    struct sluice_options good = options_of(&h), o;
    sluice *s = (sluice *)&h;
    EXPECT(sluice_create(NULL, &s), SLUICE_ERR_INVALID, "NULL");
    EXPECT(s != NULL, 0, NULL);
    EXPECT(sluice_create(&good, NULL), SLUICE_ERR_INVALID, "out is NULL");
    o = good, o.struct_size = 0;
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_INVALID, "sizeof(struct sluice_options)");
    o = good, o.start = NULL;
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_INVALID, "required");
    o = good, o.flags = 1u << 31;
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_INVALID, "unknown flags 0x80000000");
    o = good, o.policy = "magic";
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG, "there are noop");
    o = good, o.policy = "mlf quantum";
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG, "key=value");
    o = good, o.policy = "mlf quantum=none";
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG, "quantum");
    o = good, o.policy = "\xff";
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_INVALID, "UTF-8");
    o = good, o.capacity = 1u << 31;
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG, "capacity");
    o = good, o.shards = 65;
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG, "1 to 64");
    o = good, o.shards = 2, o.policy = "twins";
    EXPECT(sluice_create(&o, &s), SLUICE_ERR_CONFIG, "shards must be 1");
    /* A program compiled with a later header, which has more fields. */
    struct { struct sluice_options o; uint64_t later; } later = {good, 0};
    later.o.struct_size = sizeof later;
    EXPECT(sluice_create(&later.o, &s), SLUICE_OK, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
    later.later = 1;
    EXPECT(sluice_create(&later.o, &s), SLUICE_ERR_INVALID, "does not know");
    EXPECT(strcmp(sluice_strerror(SLUICE_ERR_FULL), "the queue is full"), 0, NULL);
    EXPECT(strcmp(sluice_strerror(12345), "unknown error code"), 0, NULL);
    EXPECT(strcmp(sluice_policy_name(0), "noop"), 0, NULL);
    EXPECT(sluice_policy_name(1000) != NULL, 0, NULL);
    EXPECT((int)(sluice_version() != SLUICE_VERSION_MAJOR * 1000000 + SLUICE_VERSION_MINOR * 1000 + SLUICE_VERSION_PATCH), 0, NULL);
}

static void requests(void) {
    struct host h;
    struct sluice_options o = options_of(&h);
    sluice *s;
    sluice_request r = {.struct_size = sizeof r, .len = 1};
    uint64_t id = 0, other = 0;
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    EXPECT(sluice_submit(NULL, &r, NULL), SLUICE_ERR_INVALID, "scheduler is NULL");
    EXPECT(sluice_submit(s, NULL, NULL), SLUICE_ERR_INVALID, "NULL");
    r.struct_size = 4;
    EXPECT(sluice_submit(s, &r, NULL), SLUICE_ERR_INVALID, "struct_size of the sluice_request is 4");
    r.struct_size = sizeof r, r.op = 2;
    EXPECT(sluice_submit(s, &r, NULL), SLUICE_ERR_INVALID, "SLUICE_READ");
    r.op = 0, r.reserved = 1;
    EXPECT(sluice_submit(s, &r, NULL), SLUICE_ERR_INVALID, "reserved");
    r.reserved = 0, r.offset = UINT64_MAX;
    EXPECT(sluice_submit(s, &r, NULL), SLUICE_ERR_INVALID, "largest offset");
    r.offset = 0;
    EXPECT(sluice_submit(s, &r, &id), SLUICE_OK, NULL); /* goes at once: one may be in flight */
    EXPECT((int)h.started, 1, NULL);
    EXPECT(id != h.ids[0], 0, NULL);
    EXPECT(sluice_cancel(s, id), SLUICE_ERR_IN_FLIGHT, "dispatched already");
    r.offset = 1;
    EXPECT(sluice_submit(s, &r, &other), SLUICE_OK, NULL); /* waits */
    EXPECT(sluice_complete(s, other, 1, 0), SLUICE_ERR_STALE, "no such request");
    EXPECT(sluice_cancel(s, other), SLUICE_OK, NULL);
    EXPECT(sluice_cancel(s, other), SLUICE_ERR_STALE, NULL);
    for (int i = 0; i < 7; i++) EXPECT(submit(s, 8192u * (i + 1u), 0), SLUICE_OK, NULL);
    EXPECT(submit(s, 0, 0), SLUICE_ERR_FULL, "the queue is full");
    size_t accepted = 9;
    EXPECT(sluice_submit_list(s, NULL, 1, &accepted), SLUICE_ERR_INVALID, "NULL");
    EXPECT((int)accepted, 0, NULL);
    EXPECT(sluice_submit_list(s, NULL, 0, NULL), SLUICE_OK, NULL);
    sluice_request list[2] = {{.struct_size = sizeof *list}, {.struct_size = sizeof *list}};
    list[0].len = list[1].len = 1;
    list[1].op = 9;
    EXPECT(sluice_submit_list(s, list, 2, &accepted), SLUICE_ERR_INVALID, "SLUICE_READ");
    list[1].op = SLUICE_READ;
    list[1].struct_size += 8;
    EXPECT(sluice_submit_list(s, list, 2, &accepted), SLUICE_ERR_INVALID, "of another one");
    list[1].struct_size = list[0].struct_size;
    EXPECT(sluice_submit_list(s, list, 2, &accepted), SLUICE_ERR_FULL, "the queue is full");
    EXPECT((int)accepted, 0, NULL);
    /* A length that was negative. */
    EXPECT(sluice_submit_list(s, list, (size_t)-1, &accepted), SLUICE_ERR_INVALID, "no memory for so many");
    EXPECT((int)accepted, 0, NULL);
    sluice_completion never = {UINT64_MAX, 1, 0};
    EXPECT(sluice_complete_all(s, &never, (size_t)-1), SLUICE_ERR_INVALID, "no memory for so many");
    const char *trace = "";
    EXPECT(sluice_predict_load(s, &trace, (size_t)-1), SLUICE_ERR_INVALID, "no memory for so many");
    /* Completing: once, twice, what never was. */
    EXPECT(sluice_complete(s, id, 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_complete(s, id, 1, 0), SLUICE_ERR_STALE, "completed before");
    EXPECT(sluice_complete(s, UINT64_MAX, 1, 0), SLUICE_ERR_STALE, NULL);
    EXPECT(sluice_complete(s, 0x7fffffff00000000u, 1, 0), SLUICE_ERR_STALE, NULL);
    EXPECT(sluice_cancel(s, UINT64_MAX), SLUICE_ERR_STALE, NULL);
    sluice_completion two[2] = {{id, 1, 0}, {h.ids[1], 4096, 0}};
    EXPECT(sluice_complete_all(s, two, 2), SLUICE_ERR_STALE, NULL); /* the second one counted */
    EXPECT(sluice_complete_all(s, NULL, 1), SLUICE_ERR_INVALID, "NULL");
    EXPECT((int)h.started, 3, NULL);
    sluice_counters c = {.struct_size = sizeof c};
    EXPECT(sluice_stats(s, SLUICE_TOTAL, &c), SLUICE_OK, NULL);
    EXPECT((int)c.completed[SLUICE_READ], 2, NULL);
    EXPECT((int)c.stale, 5, NULL);
    EXPECT((int)c.queued, 5, NULL);
    EXPECT((int)c.in_flight, 1, NULL);
    EXPECT((int)c.cancelled, 1, NULL);
    EXPECT(sluice_stats(s, 7, &c), SLUICE_ERR_INVALID, "SLUICE_TOTAL");
    EXPECT(sluice_stats(s, SLUICE_TOTAL, NULL), SLUICE_ERR_INVALID, "NULL");
    sluice_app apps[2];
    size_t count = 2;
    EXPECT(sluice_app_stats(s, SLUICE_TOTAL, apps, &count), SLUICE_OK, NULL);
    EXPECT((int)count, 1, NULL);
    EXPECT((int)(apps[0].app == 0 && apps[0].bytes == 4097), 1, NULL);
    char policy[256];
    EXPECT(sluice_set_policy(s, "mlf quantum=16K"), SLUICE_OK, NULL);
    EXPECT(sluice_get_policy(s, policy, 4), SLUICE_ERR_INVALID, "bytes are needed");
    EXPECT(sluice_get_policy(s, policy, sizeof policy), SLUICE_OK, NULL);
    EXPECT(strncmp(policy, "mlf ", 4) || !strstr(policy, "quantum=16K"), 0, NULL);
    EXPECT(sluice_set_policy(s, policy), SLUICE_OK, NULL);
    EXPECT(sluice_set_policy(s, "magic"), SLUICE_ERR_CONFIG, "magic");
    EXPECT(sluice_set_policy(s, NULL), SLUICE_ERR_INVALID, "NULL");
    /* The end: what is queued is cancelled, what is in flight may be completed, and then nothing goes any more. */
    EXPECT(sluice_shutdown(s, 0), SLUICE_OK, NULL);
    EXPECT((int)h.cancelled, 5, NULL);
    EXPECT(h.error, ECANCELED, NULL);
    EXPECT(submit(s, 0, 0), SLUICE_ERR_CLOSED, "shut down");
    EXPECT(sluice_complete(s, h.ids[2], 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
    EXPECT(sluice_destroy(s), SLUICE_ERR_CLOSED, NULL);
    EXPECT(submit(s, 0, 0), SLUICE_ERR_CLOSED, NULL);
    EXPECT(sluice_complete(s, h.ids[2], 1, 0), SLUICE_ERR_CLOSED, NULL);
    EXPECT(sluice_stats(s, SLUICE_TOTAL, &c), SLUICE_ERR_CLOSED, NULL);
}

static void nesting(void) {
    struct host h;
    struct sluice_options o = options_of(&h);
    sluice *s;
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    EXPECT(submit(s, 0, 77), SLUICE_OK, NULL);
    static const int ANSWERS[7] = {SLUICE_ERR_IN_CALLBACK, 0, 0, 0, SLUICE_ERR_IN_FLIGHT, 0, SLUICE_ERR_IN_CALLBACK};
    for (int i = 0; i < 7; i++) EXPECT(h.nested[i], ANSWERS[i], NULL);
    EXPECT((int)h.started, 2, NULL); /* the one submitted in there */
    EXPECT(sluice_complete(s, h.ids[1], 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_shutdown(s, 1000000000), SLUICE_OK, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
}

/* While a callback blocks, others can submit; only what waits for it waits. */
static void blocking(void) {
    struct host h;
    struct sluice_options o = options_of(&h);
    sem_t block, blocked;
    sluice *s;
    sem_init(&block, 0, 0), sem_init(&blocked, 0, 0);
    o.flags = SLUICE_OWN_THREAD;
    h.block = &block, h.blocked = &blocked;
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    EXPECT(submit(s, 0, 0), SLUICE_OK, NULL);
    sem_wait(&blocked);
    for (int i = 1; i < 8; i++) EXPECT(submit(s, 8192u * (unsigned)i, 0), SLUICE_OK, NULL);
    EXPECT(submit(s, 0, 0), SLUICE_ERR_FULL, NULL);
    EXPECT(sluice_complete(s, h.ids[0], 1, 0), SLUICE_OK, NULL);
    for (int i = 0; i < 16; i++) sem_post(&block);
    EXPECT(sluice_shutdown(s, 1), SLUICE_ERR_TIMEOUT, "requests were failed");
    EXPECT((int)(h.started + h.cancelled), 8, NULL);
    EXPECT(h.cancelled > 0 ? h.error : ETIMEDOUT, ETIMEDOUT, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
}

static void forking(void) {
    struct host h;
    struct sluice_options o = options_of(&h);
    sluice *s, *own;
    int status = 0;
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    EXPECT(submit(s, 0, 0), SLUICE_OK, NULL);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        EXPECT(submit(s, 0, 0), SLUICE_ERR_FORKED, "parent process");
        EXPECT(sluice_complete(s, h.ids[0], 1, 0), SLUICE_ERR_FORKED, NULL);
        EXPECT(sluice_destroy(s), SLUICE_ERR_FORKED, NULL);
        EXPECT(sluice_create(&o, &own), SLUICE_OK, NULL);
        EXPECT(submit(own, 0, 77), SLUICE_OK, NULL);
        EXPECT(sluice_destroy(own), SLUICE_OK, NULL);
        _exit(failures != 0);
    }
    /* Under valgrind the child may end with its code for leaks: what the parent's threads own is lost to a child. */
    EXPECT(waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 1, 0, NULL);
    EXPECT(sluice_complete(s, h.ids[0], 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
}

/* Settings change while running, others do not; a trace is a file with what was submitted. */
static void live_settings(void) {
    struct host h = {0};
    sluice *s;
    sluice_options o = SLUICE_OPTIONS_INIT, limits = SLUICE_OPTIONS_INIT;
    sluice_request r = {.struct_size = sizeof r, .len = 10};
    char path[64];
    char head[8] = {0};
    o.start = start, o.cancelled = cancelled, o.user = &h, o.policy = "to", o.in_flight_max = 1, o.flags = SLUICE_REALTIME;
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    EXPECT(sluice_trace_stop(s), SLUICE_ERR_INVALID, NULL);
    EXPECT(sluice_trace_start(s, NULL), SLUICE_ERR_INVALID, "NULL");
    EXPECT(sluice_trace_start(s, "/nowhere/trace"), SLUICE_ERR_INVALID, "/nowhere/trace");
    snprintf(path, sizeof path, "/tmp/sluice-misuse-%d", (int)getpid());
    EXPECT(sluice_trace_start(s, path), SLUICE_OK, NULL);
    EXPECT(sluice_trace_start(s, path), SLUICE_ERR_INVALID, NULL);
    for (int i = 0; i < 3; i++) r.file = (uint64_t)i, EXPECT(sluice_submit(s, &r, NULL), SLUICE_OK, NULL);
    if (h.started != 1) failures++, fprintf(stderr, "%u of 3 started with in_flight_max = 1\n", h.started);
    limits.in_flight_max = 3;
    EXPECT(sluice_set_limits(s, &limits), SLUICE_OK, NULL);
    EXPECT(sluice_set_limits(s, NULL), SLUICE_ERR_INVALID, NULL);
    struct sluice_slice slices[2] = {{1000000, 1, 0}, {1000000, SLUICE_OTHERS, 0}};
    EXPECT(sluice_set_gate(s, slices, 2, 5, 3600000000000, 0), SLUICE_OK, NULL);
    EXPECT(sluice_set_gate(s, slices, 1, 5, 3600000000000, 0), SLUICE_ERR_INVALID, "2 to 16");
    EXPECT(sluice_set_gate(s, NULL, 2, 5, 3600000000000, 0), SLUICE_ERR_INVALID, "2 to 16");
    slices[1].app = 1;
    EXPECT(sluice_set_gate(s, slices, 2, 5, 3600000000000, 0), SLUICE_ERR_INVALID, "all others");
    slices[1].reserved = 1;
    EXPECT(sluice_set_gate(s, slices, 2, 5, 3600000000000, 0), SLUICE_ERR_INVALID, "reserved");
    EXPECT(sluice_set_gate(s, NULL, 0, 0, 0, 0), SLUICE_OK, NULL);
    limits.capacity = 9;
    EXPECT(sluice_set_limits(s, &limits), SLUICE_ERR_INVALID, "can be changed");
    if (h.started != 3) failures++, fprintf(stderr, "%u of 3 started with in_flight_max = 3\n", h.started);
    for (int i = 0; i < 3; i++) EXPECT(sluice_complete(s, h.ids[i], 10, 0), SLUICE_OK, NULL);
    EXPECT(sluice_trace_stop(s), SLUICE_OK, NULL);
    EXPECT(sluice_trace_start(s, path), SLUICE_ERR_INVALID, "exists");
    FILE *trace = fopen(path, "rb");
    if (!trace || fread(head, 1, 4, trace) != 4) failures++, fprintf(stderr, "there is no trace\n");
    if (trace) fclose(trace);
    unlink(path);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
}

/* A coordinator that is not there, and what is none; metrics. */
static void network(void) {
    struct host h = {0};
    sluice *s;
    sluice_options o = SLUICE_OPTIONS_INIT;
    char text[1024];
    o.start = start, o.cancelled = cancelled, o.user = &h, o.policy = "twins";
    EXPECT(sluice_create(&o, &s), SLUICE_OK, NULL);
    EXPECT(sluice_coordination(s, text, sizeof text), SLUICE_ERR_INVALID, "sluice_coordinate");
    EXPECT(sluice_coordinate(s, "nowhere", "n", NULL), SLUICE_ERR_INVALID, "HOST:PORT");
    EXPECT(sluice_coordinate(s, "127.0.0.1:1", NULL, NULL), SLUICE_ERR_INVALID, "NULL");
    EXPECT(sluice_coordinate(s, "127.0.0.1:1", "no name", NULL), SLUICE_ERR_INVALID, "no name");
    EXPECT(sluice_coordinate(s, "127.0.0.1:1", "n", "/nowhere/token"), SLUICE_ERR_INVALID, "/nowhere/token");
    EXPECT(sluice_coordinate(s, "127.0.0.1:1", "n", NULL), SLUICE_OK, NULL);
    EXPECT(sluice_activity(s, 7, 1, 1, 0), SLUICE_OK, NULL);
    EXPECT(sluice_activity(NULL, 7, 1, 1, 0), SLUICE_ERR_INVALID, "NULL");
    EXPECT(sluice_coordination(s, text, 3), SLUICE_ERR_INVALID, "bytes are needed");
    EXPECT(sluice_coordination(s, text, sizeof text), SLUICE_OK, NULL);
    if (!strstr(text, "\"is_connected\":false")) failures++, fprintf(stderr, "nobody is there: %s\n", text);
    /* What is wrong changes nothing. */
    EXPECT(sluice_coordinate(s, "127.0.0.1:2", "no name", NULL), SLUICE_ERR_INVALID, "no name");
    EXPECT(sluice_coordinate(s, "127.0.0.1:2", "n", "/nowhere/token"), SLUICE_ERR_INVALID, "/nowhere/token");
    EXPECT(sluice_coordination(s, text, sizeof text), SLUICE_OK, NULL);
    if (!strstr(text, "127.0.0.1:1\"")) failures++, fprintf(stderr, "it listens to somebody else: %s\n", text);
    EXPECT(sluice_coordinate(s, NULL, NULL, NULL), SLUICE_OK, NULL);
    EXPECT(sluice_coordination(s, text, sizeof text), SLUICE_ERR_INVALID, "sluice_coordinate");
    EXPECT(sluice_metrics(s, "127.0.0.1"), SLUICE_ERR_INVALID, "127.0.0.1:9464");
    EXPECT(sluice_metrics(s, "127.0.0.1:0"), SLUICE_OK, NULL);
    EXPECT(sluice_coordinate(s, "127.0.0.1:1", "n", NULL), SLUICE_OK, NULL);
    EXPECT(sluice_destroy(s), SLUICE_OK, NULL);
}

int main(void) {
    live_settings();
    network();
    creation();
    requests();
    nesting();
    blocking();
    forking();
    return failures != 0;
}
