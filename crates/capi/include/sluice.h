/*
 * sluice.h: schedule the file I/O requests of a server.
 *
 * Fill a struct sluice_options, sluice_create() a scheduler, sluice_submit() each request. The scheduler calls you back with
 * what goes next, alone or as a batch of contiguous requests; do the I/O on any thread and report each end with
 * sluice_complete(). sluice_destroy() when done. All functions may be called from any thread; docs/embedding.md has the
 * rules for callbacks and a first program.
 *
 * Every function that can fail returns SLUICE_OK (0) or a negative code; sluice_last_error() has a sentence about it.
 *
 * Generated from crates/capi/src. Licence: MIT OR Apache-2.0.
 */

#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>
#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

#ifndef __cplusplus
// All defaults: struct sluice_options options = SLUICE_OPTIONS_INIT;
#define SLUICE_OPTIONS_INIT {.struct_size = (uint32_t)sizeof(struct sluice_options)}
#endif


// Done.
#define SLUICE_OK 0

// An argument is missing or makes no sense.
#define SLUICE_ERR_INVALID -1

// As many requests as the scheduler holds are outstanding. Try again after a completion, or use sluice_submit_wait().
#define SLUICE_ERR_FULL -2

// The scheduler was shut down or destroyed.
#define SLUICE_ERR_CLOSED -3

// No such request: it never was, was completed, or was cancelled.
#define SLUICE_ERR_STALE -4

// The request was dispatched already and cannot be cancelled any more.
#define SLUICE_ERR_IN_FLIGHT -5

// Not allowed from inside a callback, where it could wait for the end of that callback.
#define SLUICE_ERR_IN_CALLBACK -6

// The scheduler belongs to the parent process; its threads do not exist in this one. Create one after fork().
#define SLUICE_ERR_FORKED -7

// No such algorithm or parameter, or a value out of range.
#define SLUICE_ERR_CONFIG -8

// The system refused a thread or memory.
#define SLUICE_ERR_SYSTEM -9

// The time given was too short.
#define SLUICE_ERR_TIMEOUT -10

// A bug in the library. The scheduler may be unusable.
#define SLUICE_ERR_INTERNAL -11

// Reads bytes.
#define SLUICE_READ 0

// Writes bytes.
#define SLUICE_WRITE 1

// Callbacks run on a thread of the scheduler, never inside a call of yours. Costs a hand-over between threads; right for
// callbacks that may take long. Without it they run on whichever thread calls the library, or on one of its own after many in
// one call or when an algorithm has waited; on several at a time. A callback must not wait, by a
// lock or a condition of its own, for one that is to run on the same thread, nor two of two schedulers for each other.
#define SLUICE_OWN_THREAD 1

// Requests that overlap may be reordered: for hosts that order conflicting requests themselves.
#define SLUICE_UNORDERED 2

// The scheduler has no client of its own: all join it with sluice_attach(). Callbacks and targets are NULL and 0 then.
#define SLUICE_SHARED 4

// Its clock counts from 1970, so that schedulers of several processes and machines agree about the windows of `twins`, as
// far as the machines' clocks do. Without it a clock begins with its scheduler.
#define SLUICE_REALTIME 8

// In `max_wait_ns`: a request may wait for ever.
#define SLUICE_WAIT_UNBOUNDED UINT64_MAX

// Which counters: since the start.
#define SLUICE_TOTAL 0

// Which counters: of the last window (1 s, or `window_ns`) that has ended.
#define SLUICE_LAST_WINDOW 1

// In `struct sluice_slice`: all applications that no other slice names.
#define SLUICE_OTHERS UINT32_MAX

// A scheduler. Opaque; created by sluice_create().
typedef struct sluice sluice;

// A dispatched request. This struct never changes its size.
typedef struct sluice_part {
  // What to complete it by.
  uint64_t id;
  // As submitted.
  uint64_t cookie;
  // As submitted.
  uint64_t file;
  // As submitted. In a batch, where the part before ends.
  uint64_t offset;
  // As submitted.
  uint32_t len;
  // SLUICE_READ or SLUICE_WRITE.
  uint32_t op;
  // As submitted.
  uint32_t app;
  // As submitted.
  uint32_t target;
} sluice_part;

// Called with a request that goes next. Must not throw or longjmp; see docs/embedding.md for what it may call.
typedef void (*sluice_start_fn)(void *user, struct sluice *s, const struct sluice_part *part);

// Called with two or more requests for the same file and operation, each beginning where the one before ends. The array
// is valid during the call only.
typedef void (*sluice_start_batch_fn)(void *user,
                                      struct sluice *s,
                                      const struct sluice_part *parts,
                                      size_t count);

// Called with a request that was accepted but will never be started (its id is 0), and the errno to fail it with.
typedef void (*sluice_cancelled_fn)(void *user, struct sluice *s, const struct sluice_part *part, int error);

// How to create a scheduler. Everything that is 0 has its default. Make it with SLUICE_OPTIONS_INIT or by zeroing it and
// setting `struct_size`.
typedef struct sluice_options {
  // sizeof(struct sluice_options).
  uint32_t struct_size;
  // SLUICE_OWN_THREAD, SLUICE_UNORDERED, SLUICE_SHARED, SLUICE_REALTIME.
  uint32_t flags;
  // Algorithm and parameters, like "sjf" or "mlf wait_time=500us quantum=16K". NULL: "hbrr".
  const char *policy;
  // Required.
  sluice_start_fn start;
  // NULL: `start` is called for each part of a batch, in offset order.
  sluice_start_batch_fn start_batch;
  // Required.
  sluice_cancelled_fn cancelled;
  // Handed to the callbacks.
  void *user;
  // Number of engines, 1 to 64; requests go to the one of their target. 0: 1. `twins` needs 1.
  uint32_t shards;
  // Most requests outstanding in a shard, 1 to 67,108,862. 0: 32,768.
  uint32_t capacity;
  // Most files with outstanding requests in a shard. 0: 2,048, but not more than `capacity`.
  uint32_t files_max;
  // Most batches in flight in a shard at a time: the host's parallelism. 0: no limit, so that nothing is ever held back.
  uint32_t in_flight_max;
  // Most bytes in a batch of more than one request. 0: 1 MiB.
  uint64_t batch_bytes_max;
  // Most requests in a batch. 0: 256.
  uint32_t batch_requests_max;
  // Applications counted separately. 0: 64.
  uint32_t apps_max;
  // A request that waits longer goes next whatever the algorithm prefers. 0: 500 ms. Or SLUICE_WAIT_UNBOUNDED.
  uint64_t max_wait_ns;
  // Length of the windows of the statistics. 0: 1 s, with a selector 100 ms.
  uint64_t window_ns;
  // The first target of this client, where several share the scheduler: a target belongs to one client.
  uint32_t target_first;
  // Number of its targets. 0: all, so that it is the only client.
  uint32_t target_count;
  // What it costs the device to read from another place rather than go on where it is, of a hard disk about 8 ms: it is
  // then kept idle for a moment where waiting for the next read of the stream it serves costs less. 0: never.
  uint64_t positioning_ns;
  // Who chooses the algorithm, and whether to wait as `positioning_ns` says, while the scheduler is in use. NULL or "fixed":
  // nobody. "bandit": what serves each kind of workload best is tried out (docs/selection.md); "tree": a model that comes with the
  // library says it; "tree+bandit": what that says is begun with. With `positioning_ns` 0 nothing is known of the device, and of those the
  // model says nothing. On a thread of the library that runs no callbacks. `policy` is where it begins; NULL: with what was best before, else
  // noop, or hbrr if `positioning_ns` is set. Anything else is SLUICE_ERR_CONFIG. See sluice_explain().
  const char *selector;
  // A file in which the selector keeps what it has learned from run to run, every 30 s and at the end. NULL: nowhere. What is damaged
  // there, or about devices of another kind, is renamed to *.damaged-SECONDS. SLUICE_ERR_INVALID without a selector.
  const char *selector_state;
} sluice_options;

// A request, as submitted.
typedef struct sluice_request {
  // sizeof(struct sluice_request).
  uint32_t struct_size;
  // SLUICE_READ or SLUICE_WRITE.
  uint32_t op;
  // The file, by a number of yours.
  uint64_t file;
  // First byte.
  uint64_t offset;
  // Bytes; may be 0.
  uint32_t len;
  // Who asks: a job, a program, a user.
  uint32_t app;
  // Which data server holds the bytes; chooses the shard (target modulo shards). 0 where there is one.
  uint32_t target;
  // 0.
  uint32_t reserved;
  // Yours; given back with the request.
  uint64_t cookie;
} sluice_request;

// How a dispatched request ended. This struct never changes its size.
typedef struct sluice_completion {
  // From the part.
  uint64_t id;
  // Bytes read or written; may be less than asked for.
  uint32_t bytes;
  // 0, or the errno.
  int32_t error;
} sluice_completion;

// Whose turn it is in each window, and for how long. This struct never changes its size.
typedef struct sluice_slice {
  // How long, in nanoseconds; at least 1.
  uint64_t len_ns;
  // The application, or SLUICE_OTHERS.
  uint32_t app;
  // 0.
  uint32_t reserved;
} sluice_slice;

// Counters over some stretch of time, all shards together. Indices: SLUICE_READ, SLUICE_WRITE. Times in nanoseconds.
typedef struct sluice_counters {
  // sizeof(struct sluice_counters).
  uint32_t struct_size;
  // Largest batch in requests.
  uint32_t batch_requests_max;
  // Length of the stretch.
  uint64_t span_ns;
  // Requests submitted.
  uint64_t submitted[2];
  // Requests completed.
  uint64_t completed[2];
  // Of those, with an error.
  uint64_t errors[2];
  // Bytes that they moved.
  uint64_t bytes[2];
  // Batches dispatched.
  uint64_t batches;
  // Requests in them; divided by `batches`: the mean aggregation.
  uint64_t batched_requests;
  // Requests cancelled.
  uint64_t cancelled;
  // Requests that an earlier overlapping one blocked.
  uint64_t blocked;
  // Batches that went because something in them had waited `max_wait_ns`.
  uint64_t expired;
  // Completions refused with SLUICE_ERR_STALE since the start.
  uint64_t stale;
  // Requests that wait now.
  uint32_t queued;
  // Requests in flight now.
  uint32_t in_flight;
  // From submission to dispatch: median.
  uint64_t wait_p50_ns;
  // 99th percentile.
  uint64_t wait_p99_ns;
  // Largest.
  uint64_t wait_max_ns;
  // From dispatch to completion: median.
  uint64_t service_p50_ns;
  // 99th percentile.
  uint64_t service_p99_ns;
  // Largest.
  uint64_t service_max_ns;
} sluice_counters;

// Counters of one application. This struct never changes its size.
typedef struct sluice_app {
  // The application; UINT64_MAX collects all beyond `apps_max`.
  uint64_t app;
  // Requests completed.
  uint64_t completed;
  // Bytes that they moved.
  uint64_t bytes;
  // From submission to completion, in nanoseconds: median.
  uint64_t latency_p50_ns;
  // 99th percentile.
  uint64_t latency_p99_ns;
  // Largest.
  uint64_t latency_max_ns;
} sluice_app;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library: major * 1,000,000 + minor * 1,000 + patch.
uint32_t sluice_version(void);

// A few words about a code. Never NULL.
const char *sluice_strerror(int code);

// A sentence about the last call on this thread that failed; valid until the next one that does. Never NULL.
const char *sluice_last_error(void);

// The name of an algorithm, counted from 0; NULL beyond the last.
const char *sluice_policy_name(size_t index);

// Creates a scheduler and starts its thread. `*out` is NULL on failure.
//
// The handle is also that of a client, which has the callbacks given here and submits and completes with it; unless
// SLUICE_SHARED says that clients join later.
int sluice_create(const struct sluice_options *options,
                  struct sluice **out);

// Lets a further client join a scheduler, at any time. Of the options it has the callbacks, `user`, and the targets, which
// must be no other client's; all else must be 0. `*out` is the client, NULL on failure: it submits, completes and cancels
// its own requests, and hears of those only. Everything else concerns the whole scheduler, whichever handle it is called
// with.
int sluice_attach(struct sluice *s,
                  const struct sluice_options *options,
                  struct sluice **out);

// Lets a client leave: it accepts no more requests and waits until those accepted have been dispatched and completed. What
// is still queued after `timeout_ns` fails (`cancelled` is called with ETIMEDOUT; with 0 at once, with ECANCELED). Other
// clients go on. When it has left its callbacks are not called any more, and calls with `client` answer
// SLUICE_ERR_CLOSED. SLUICE_ERR_TIMEOUT: it has not left yet, as some of its requests are in flight; complete them and call
// again. A client is to be detached also when its scheduler was destroyed. Not from inside a callback.
int sluice_detach(struct sluice *client,
                  uint64_t timeout_ns);

// Submits a request. It may be dispatched, and callbacks may run, before this returns. If `id` is not NULL it receives a
// number to cancel the request by; that costs a little more. In a callback the request is dispatched after it, or inside
// this call, but no more than a few calls deep. `id` is written last, after callbacks that run meanwhile: it must not lie in
// what they free.
int sluice_submit(struct sluice *s,
                  const struct sluice_request *request,
                  uint64_t *id);

// As sluice_submit() without a number, but waits while the queue is full; in a callback it answers SLUICE_ERR_IN_CALLBACK
// then.
int sluice_submit_wait(struct sluice *s,
                       const struct sluice_request *request);

// Submits `count` requests that belong together, in order, as sluice_submit() does without a number. Requests that follow each
// other and go to the same shard are all queued before any of them is dispatched, so that neighbours go as one (unless another
// thread drives the shard just then, or SLUICE_OWN_THREAD was asked for). Stops at the first that is refused and answers why;
// `accepted`, if not NULL, receives how many came before it. All have the `struct_size` of the first. If `op`, `reserved` or the
// range of bytes of one of them is not valid none is accepted. `accepted` is written last, after callbacks that run meanwhile.
int sluice_submit_list(struct sluice *s,
                       const struct sluice_request *requests,
                       size_t count,
                       size_t *accepted);

// Reports that a dispatched request ended: bytes moved, and 0 or an errno. From any thread, also inside the callback. May
// dispatch, and run callbacks, on this thread.
int sluice_complete(struct sluice *s,
                    uint64_t id,
                    uint32_t bytes,
                    int error);

// Reports several ends. All that can be are reported; if any is refused, the code is that of the first such.
int sluice_complete_all(struct sluice *s, const struct sluice_completion *done, size_t count);

// Takes back a request that was not dispatched yet; its callbacks are not called then.
int sluice_cancel(struct sluice *s, uint64_t id);

// Changes the algorithm, with requests queued and in flight: "sjf", "mlf wait_time=500us". On an error nothing changes. A selector
// chooses no more then, until the name "adaptive" is given; where there is one this is not for callbacks.
int sluice_set_policy(struct sluice *s,
                      const char *policy);

// Changes settings with requests queued and in flight: in_flight_max, batch_bytes_max, batch_requests_max, max_wait_ns and
// positioning_ns, as sluice_create() takes them (0: the default). All else in the options must be 0. On an error nothing changes.
// SLUICE_ERR_INVALID also if a selector chooses. Not inside callbacks.
int sluice_set_limits(struct sluice *s,
                      const struct sluice_options *options);

// Serves one application after the other from now on, each in its slice of a window that repeats, in this order; requests of the
// others wait meanwhile. 2 to 16 slices, one of them for SLUICE_OTHERS. Windows begin at `epoch_ns` (since 1970, whatever clock
// the scheduler has), and each time that all slices have passed, so that schedulers that were told the same serve the same. It
// ends after `lasts_ns` unless it is set again, or with a `count` of 0. A slice whose application has had nothing outstanding for
// `idle_ns` is cut short; 0: never. A request that has waited for `max_wait_ns` and a window goes nevertheless. See
// docs/orchestration.md. On an error nothing changes. Not inside callbacks.
int sluice_set_gate(struct sluice *s,
                    const struct sluice_slice *slices,
                    size_t count,
                    uint64_t epoch_ns,
                    uint64_t lasts_ns,
                    uint64_t idle_ns);

// Records every request that is submitted from now on, in a new file that `sluice trace` reads; file N has the path "file N".
// SLUICE_ERR_INVALID if it cannot be written or is not empty, or a recording is running. Not inside callbacks.
int sluice_trace_start(struct sluice *s,
                       const char *path);

// Ends the recording: all that was submitted before is in the file then. SLUICE_ERR_INVALID if there was none, or the file
// is not complete. Not inside callbacks.
int sluice_trace_stop(struct sluice *s);

// Writes the algorithm and its parameters, as sluice_set_policy() reads them, into `text`; SLUICE_ERR_INVALID if it does
// not fit.
int sluice_get_policy(struct sluice *s,
                      char *text,
                      size_t size);

// Writes what the selector sees, what it chose, what it expected and got, and what else there was, as a JSON object into `text`:
// the fields of `selection` in docs/status.md, on one line. SLUICE_ERR_INVALID if it does not fit (8 KiB always do) or nobody
// chooses. Not inside callbacks.
int sluice_explain(struct sluice *s,
                   char *text,
                   size_t size);

// Listens to a coordinator (`sluice coordinate`) from now on, which chooses the algorithm: `address` is HOST:PORT, `name` names
// this scheduler among all that listen to it, `token_file` has the coordinator's secret in its first line (NULL: it has none).
// It may be there or not, come and go; a thread sees to that, and nothing waits for it. Create the scheduler with `twins` and the
// number of data servers if it forwards to some, and with short windows (window_ns), a quarter of a second: what it is goes by
// the algorithm that it was created with, or that sluice_set_policy() has set. `address` NULL: to none any more.
// SLUICE_ERR_INVALID if the address, name or file is no good, or a selector chooses: then whom it listened to before it still
// listens to. Not inside callbacks.
int sluice_coordinate(struct sluice *s,
                      const char *address,
                      const char *name,
                      const char *token_file);

// Writes how it is with the coordinator, as a JSON object into `text`: the fields of `coordinator` in docs/status.md, on one line.
// SLUICE_ERR_INVALID if it does not fit (1 KiB always does) or nobody is listened to. Not inside callbacks.
int sluice_coordination(struct sluice *s,
                        char *text,
                        size_t size);

// The processes of the application `app` for which `speaker` speaks (a machine, or whatever the host tells apart) say that all of them
// compute (`computes` is not 0), or that some do I/O: goes to the coordinator with the next report, if that orchestrates. Of a
// speaker's words the one with the highest number holds, for ten minutes, however late it comes. SLUICE_ERR_INVALID if the library
// was built without coordinators.
int sluice_activity(struct sluice *s,
                    uint32_t app,
                    uint64_t speaker,
                    uint64_t number,
                    int computes);

// Answers GET /metrics for Prometheus (OpenMetrics; docs/operation.md lists the names) at `address`, ADDRESS:PORT, from now on, in a
// thread of its own; NULL: nowhere any more. Whoever reaches the address can read it. SLUICE_ERR_INVALID if it is no address: what
// was before goes on then. SLUICE_ERR_SYSTEM if it cannot be listened at. Not inside callbacks.
int sluice_metrics(struct sluice *s,
                   const char *address);

// Reckons with this profile of the device, which `sluice profile` has measured, from the next call of
// sluice_predict_load(), sluice_predict_learn() or sluice_coordinate() on; NULL: the device is not known. Without a profile nothing is waited
// for. SLUICE_ERR_INVALID if it cannot be read.
int sluice_predict_profile(struct sluice *s,
                           const char *profile);

// Predicts requests from the traces of `n` earlier runs, in which file N has the path "file N"; with `n` = 0 nothing is
// predicted any more. Algorithms that aggregate hold batches for what is about to come, as long as that pays. Reads the
// traces before it returns; requests go on meanwhile. SLUICE_ERR_INVALID if one cannot be read: nothing changes then. Not
// inside callbacks.
int sluice_predict_load(struct sluice *s,
                        const char *const *paths,
                        size_t n);

// Learns what repeats, and predicts it. `state_path`: where what was learned is kept from run to run, which is read first if
// it exists; NULL: nowhere. Files whose numbers differ are taken as one series of files that are used in the same way. Not
// inside callbacks.
int sluice_predict_learn(struct sluice *s,
                         const char *state_path);

// Fills counters: SLUICE_TOTAL or SLUICE_LAST_WINDOW. `out->struct_size` must be set.
int sluice_stats(struct sluice *s, int which, struct sluice_counters *out);

// Fills the counters of applications, most bytes first. `*count`: in, the room in `out`; out, how many there are, which
// may be more than there was room for.
int sluice_app_stats(struct sluice *s,
                     int which,
                     struct sluice_app *out,
                     size_t *count);

// Accepts no more requests, and waits until those accepted have been dispatched and completed. What is still queued after
// `timeout_ns` fails: its `cancelled` is called with ETIMEDOUT, and the result is SLUICE_ERR_TIMEOUT. With 0, whatever is
// queued fails at once with ECANCELED. Requests in flight can be completed afterwards. Not from inside a callback.
int sluice_shutdown(struct sluice *s,
                    uint64_t timeout_ns);

// Shuts down as sluice_shutdown(s, 0) if that was not done, waits for calls that are under way on other threads, and
// frees the scheduler. Calls with `s` that come later answer SLUICE_ERR_CLOSED. Not from inside a callback.
int sluice_destroy(struct sluice *s);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_H */
