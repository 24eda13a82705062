/*
 * agios.h: the calls of AGIOS v2, served by Sluicegate, so that a program written for AGIOS compiles and links unchanged.
 *
 * Differences that a program may notice:
 *  - agios_add_request() waits while 131,072 requests are outstanding (inside a callback it returns false instead).
 *  - agios_exit() dispatches what is queued first; nothing is dropped. The callbacks may so be called during agios_exit().
 *  - A request never waits longer than 500 ms for others to go first, whatever the algorithm.
 *  - Requests that overlap, at least one of them a write, keep their order: release those you are done with.
 * With NOOP none of this applies: as with AGIOS, the callback runs inside agios_add_request(), on the thread that calls it, and
 * nothing is ever queued.
 * New programs should use sluice.h, which tells requests apart by number rather than by their attributes.
 *
 * Licence: MIT OR Apache-2.0.
 */
#ifndef SLUICE_AGIOS_H
#define SLUICE_AGIOS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a request does. */
enum { RT_READ = 0, RT_WRITE = 1 };

/*
 * Starts the scheduler. One in a process at a time.
 *
 * process_request   called with the identifier of a request that goes next. Required.
 * process_requests  called with those of several requests that are contiguous, in offset order, instead; may be NULL.
 * config_file       see docs/embedding.md; NULL or "": /etc/agios.conf if there is one, otherwise defaults.
 * max_queue_id      the largest queue_id that will be used: servers (TWINS) or applications (WFQ, SW).
 *
 * The callbacks run on the scheduler's thread, with NOOP on the one that adds the request. They may call
 * agios_release_request(), agios_add_request() and agios_cancel_request(). What they return is ignored. False on failure, with the reason on stderr.
 */
bool agios_init(void *process_request(int64_t identifier), void *process_requests(int64_t *identifiers, int32_t count),
                char *config_file, int32_t max_queue_id);

/* Stops it, when everything queued was dispatched and released, but after a second at the latest. A callback that is
 * running is waited for as long as it takes. */
void agios_exit(void);

/* Gives it a request. False if an argument makes no sense, or it is not running. */
bool agios_add_request(char *file_id, int32_t type, int64_t offset, int64_t len, int64_t identifier, int32_t queue_id);

/* A request that was handed to a callback is done. False if there is none like it. */
bool agios_release_request(char *file_id, int32_t type, int64_t len, int64_t offset);

/* Takes back a request that was not handed to a callback yet. False if there is none like it. */
bool agios_cancel_request(char *file_id, int32_t type, int64_t len, int64_t offset);

#ifdef __cplusplus
}
#endif

#endif
