/*
 * The GlusterFS translator `sluice`: reads and writes go through a scheduler of libsluice.
 *
 * In a data server it stands above the storage, in an I/O node there is one above each protocol/client. Translators of one
 * process that name the same `scheduler` share it, each with a target of its own.
 */
#ifndef SLUICE_TRANSLATOR_H
#define SLUICE_TRANSLATOR_H

#include <glusterfs/xlator.h>
#include <glusterfs/call-stub.h>
#include <glusterfs/defaults.h>
#include <glusterfs/logging.h>
#include <sluice.h>

#include <stdatomic.h>

#include "order.h"

enum memory_types {
    MEMORY_TRANSLATOR = gf_common_mt_end + 1,
    MEMORY_CALL,
    MEMORY_FILE,
    MEMORY_BATCH,
    MEMORY_GROUP,
    MEMORY_WORKERS,
    MEMORY_LOOKUP,
    MEMORY_END,
};

/* What the options say. */
struct settings {
    char *policy;
    char *parameters;
    char *scheduler;
    char *profile;
    char *predict;
    char *learn;
    char *trace;
    char *selector;
    char *selector_state;
    char *coordinator;
    char *coordinator_name;
    char *coordinator_token;
    char *metrics;
    /* Of a client's graph: what it says of itself, and whether programs may. */
    char *job;
    gf_boolean_t announce;
    /* -1: any that is free. */
    int32_t target;
    uint32_t in_flight;
    uint32_t shards;
    uint32_t capacity;
    uint64_t batch_bytes;
    /* Of pieces of files; 0: there are none, or they are files of their own. */
    uint64_t shard_bytes;
    uint32_t max_wait_ms;
    uint32_t positioning_us;
    gf_boolean_t merge;
};

struct group;

/* Requests that a scheduler has no room for: a thread waits for room for each, in order. */
struct room {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct order_ready waiting;
    /* Whether others have to wait behind some: read without the lock. */
    atomic_bool is_short;
    bool ends;
    bool has_thread;
    pthread_t thread;
};

/* One translator. */
struct translator {
    xlator_t *this;
    struct group *group;
    /* What it submits and completes by. */
    struct sluice *client;
    uint32_t target;
    struct room *room;
    struct workers *workers;
    gf_boolean_t merge;
    uint64_t shard_bytes;
    /* In a client's graph: reads and writes are marked with their job, and nothing is scheduled. */
    bool marks;
    /* The job of those whose programs have named none; NULL: none. */
    char *job;
    /* Calls that have not ended; the end of the translator waits for them. */
    atomic_size_t calls;
    /* Operations that were ordered among reads and writes, batches that went down as one, requests in them. */
    gf_atomic_t ordered;
    gf_atomic_t merged;
    gf_atomic_t merged_requests;
};

/* What a client says of the job that a request is of. */
#define JOB_KEY "sluice.job"
/* And of whose job: translators in between may make requests root's (features/shard does so with writes). */
#define UID_KEY "sluice.uid"

/* Attributes by which programs say something of themselves. */
#define ANNOUNCE_PREFIX "system.sluice."
#define PHASE_NAME ANNOUNCE_PREFIX "phase"

/* What is known of a file: kept with its inode. */
struct file {
    struct order order;
    uint64_t number;
    /* Of a piece of a file: where it begins there. */
    uint64_t begin;
};

/* An operation on its way: the local of its frame. */
struct call {
    struct order_item item; /* first */
    xlator_t *this;
    call_stub_t *stub;
    /* Kept, so that its end does not take what is used after the answer along. */
    client_t *client;
    inode_t *inode;
    struct file *file;
    /* Of reads and writes. */
    uint64_t id;
    uint64_t offset;
    uint32_t len;
    uint32_t op;
    uint32_t app;
    /* Of copy_file_range between two files: its place at the other one, which comes first. */
    struct call *other;
};

/* group.c: schedulers that translators of this process share */

/* The scheduler that the settings name, which others may have created, joined by this translator. 0, or a logged failure. */
int group_join(struct translator *translator, const struct settings *settings);
/* Takes over what can be changed while running; nothing, if something cannot be. */
int group_change(struct translator *translator, const struct settings *settings);
/* What is queued fails; waits until all calls of the translator have ended. */
void group_leave(struct translator *translator);
/* Its name; "" if nobody else can join. */
const char *group_name(const struct group *group);

/* schedule.c: from arrival to end */

#define HASH_NOTHING 0xcbf29ce484222325ULL
uint64_t fnv1a(uint64_t hash, const void *bytes, size_t len);
/* The number of the application that a request is of. */
uint32_t application(const client_t *client, uint32_t uid, dict_t *xdata);

struct file *file_of(xlator_t *this, inode_t *inode);
void file_forget(struct file *file);
/* Brings a read or write into the order of its file, and then to the scheduler. Takes the stub. */
void schedule(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *inode, uint64_t offset, size_t len,
              uint32_t op, dict_t *xdata);
/* Brings another operation into the order of a file. Takes the stub. */
void order(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *inode, enum order_kind kind);
/* The same of one that reads one file and changes another. */
void order_both(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *from, inode_t *to);
/* An operation has ended and its frame is gone: what waited for it goes on. */
void ended(xlator_t *this, struct call *call, int32_t result, int32_t error);

/* For requests that find no room. */
void room_init(struct room *room);
void room_end(struct room *room);
/* Fails those of a translator that wait for room. */
void room_leave(struct room *room, struct translator *translator);

void on_start(void *user, struct sluice *s, const struct sluice_part *part);
void on_start_batch(void *user, struct sluice *s, const struct sluice_part *parts, size_t count);
void on_cancelled(void *user, struct sluice *s, const struct sluice_part *part, int error);

/* Carries out what was chosen: one part, or several that belong together. */
void start_parts(struct translator *translator, const struct sluice_part *parts, size_t count);

/* workers.c: threads for what the scheduler's own thread starts */

struct workers *workers_new(struct translator *translator);
/* False: no memory and no thread. */
bool workers_take(struct workers *workers, const struct sluice_part *parts, size_t count);
/* Nothing may come any more. */
void workers_free(struct workers *workers);

/* merge.c: batches that go down as one operation */

/* True if it did; false: nothing was done, and each part goes by itself. */
bool merge_start(struct translator *translator, const struct sluice_part *parts, size_t count);

/* lookup.c: names that others are just giving to files */

/* Looks up a name at a data server; in an I/O node's graph. */
void lookup_start(call_frame_t *frame, xlator_t *this, loc_t *loc, dict_t *xdata);

/* fops.c */
extern struct xlator_fops sluice_fops;
bool is_announced_name(const char *name);
/* Whether attributes that are to be set are such. */
bool is_announcement(dict_t *words);

/* phases.c: what programs do, on its way from clients to data servers */

struct announced_news;
/* To all data servers, without waiting for them; whatever inode of the mount. */
void phase_tell(xlator_t *this, inode_t *inode, const struct announced_news *news);
/* What arrives at a data server. 0; EOPNOTSUPP: no client's translator has sent it. */
int phase_hear(xlator_t *this, dict_t *words, dict_t *xdata);

/* mark.c: what is said of requests in a client's graph */

/* Makes this a translator that schedules nothing and tells others the job: everything else passes. 0; -1: no memory. */
int mark_only(xlator_t *this);
/* What programs have said, into the dump of GlusterFS's state. */
void mark_dump(void);

#endif
