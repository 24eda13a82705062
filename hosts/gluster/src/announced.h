/*
 * What the processes of a mount say of themselves: which job they are part of, and what they do. `sluice mpirun` has MPI programs
 * do so (hosts/mpiio/src/announce.c); mounts of Sluicegate hear the same (hosts/fuse/src/announced.rs).
 *
 * Requests come with the number of a thread. Only on the machine where it runs can anybody tell of which process that is, and when
 * the process has ended: so this is for clients, and servers are told the job with each request. What a process says ends with it.
 *
 * Nothing here knows GlusterFS. All functions may be called by several threads.
 */
#ifndef SLUICE_ANNOUNCED_H
#define SLUICE_ANNOUNCED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a job's name. */
#define ANNOUNCED_NAME 96

struct announced;

/* What the processes of a user's job do that have not ended. */
struct announced_program {
    char job[ANNOUNCED_NAME + 1];
    uint32_t uid;
    uint32_t computing;
    uint32_t in_io;
    uint32_t in_batch;
    /* Batches that they have announced, and bytes in them. */
    uint64_t batches;
    uint64_t batch_bytes;
};

/* Of at most so many processes at a time. `proc` is where the system tells of processes (/proc). NULL: no memory. */
struct announced *announced_new(const char *proc, size_t most);
void announced_free(struct announced *announced);

/*
 * A thread names the job of its process, 1 to 96 bytes of printable ASCII without spaces. 0; EINVAL: that is no name, or nobody can
 * say which process that is; ENOSPC: too many have spoken that have not ended; ENOMEM.
 */
int announced_job(struct announced *announced, uint32_t thread, uint32_t uid, const char *name, size_t len);

/* What a program does by what one of its processes has said. */
struct announced_news {
    /* It is something else than before, or the first that is known of it. */
    bool is_news;
    /* All of its processes that have not ended compute; else some do I/O. */
    bool computes;
    char job[ANNOUNCED_NAME + 1];
    uint32_t uid;
    /* Later news have higher numbers. */
    uint64_t number;
};

/* A thread says what its process does: `io`, `compute`, `batch BYTES` or `batch end`. 0; EINVAL: it is nothing of that, or the process
 * has named no job. */
int announced_phase(struct announced *announced, uint32_t thread, const char *text, size_t len, struct announced_news *news);

/*
 * Whether the process of a thread has named a job, and which. What is known of a thread is looked up anew after two seconds, or when
 * anybody names a job. Costs nothing until somebody has.
 */
bool announced_job_of(struct announced *announced, uint32_t thread, char job[ANNOUNCED_NAME + 1]);

/* Sorted by user and name, to be freed with free(); NULL: there are none, or no memory. */
struct announced_program *announced_programs(struct announced *announced, size_t *count);

#endif
