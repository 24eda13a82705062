/* Messages of programs. They may tell others that something was written, and this process that files have changed; and a ghost,
 * which has no peers, goes on without those whose result nobody sees, and ends at the others. What is not here (and what the
 * MPI library's Fortran interface calls by other names) cannot harm in a ghost, which has nothing to send with; and what it
 * may tell is noticed within the time that prefetched bytes are trusted. */
#include "dualpar.h"
#include "shim.h"

/* Asked for once: some of these take less time than asking. */
#define GO_ON(name, arguments)                                                                                                 \
    static _Atomic(__typeof__(&MPI_##name)) known;                                                                             \
    __typeof__(&MPI_##name) next = atomic_load_explicit(&known, memory_order_relaxed);                                         \
    if (!next)                                                                                                                 \
        atomic_store(&known, next = NEXT(MPI_##name));                                                                         \
    dualpar_message();                                                                                                         \
    return next arguments;

/* Where `is_unseen`, a ghost goes on. */
#define MESSAGE(name, is_unseen, parameters, arguments)                                                                        \
    SHOWN int MPI_##name parameters                                                                                            \
    {                                                                                                                          \
        if (is_unseen && sluice_dualpar_is_ghost())                                                                            \
            return MPI_SUCCESS;                                                                                                \
        dualpar_end_ghost();                                                                                                   \
        GO_ON(name, arguments)                                                                                                 \
    }

/* Is completed at once in a ghost. */
#define STARTED(name, parameters, arguments)                                                                                   \
    SHOWN int MPI_##name parameters                                                                                            \
    {                                                                                                                          \
        if (sluice_dualpar_is_ghost()) {                                                                                       \
            *request = MPI_REQUEST_NULL;                                                                                       \
            return MPI_SUCCESS;                                                                                                \
        }                                                                                                                      \
        GO_ON(name, arguments)                                                                                                 \
    }

static int is_other(MPI_Comm comm, int root)
{
    int rank = root;
    return PMPI_Comm_rank(comm, &rank) == MPI_SUCCESS && rank != root;
}

static int are_done(int count, const MPI_Request *requests)
{
    for (int i = 0; i < count; i++) {
        if (requests[i] != MPI_REQUEST_NULL)
            return 0;
    }
    return 1;
}

MESSAGE(Barrier, 1, (MPI_Comm comm), (comm))

#define SEND(name, counts)                                                                                                     \
    MESSAGE(name, 1, (const void *data, counts count, MPI_Datatype type, int to, int tag, MPI_Comm comm),                      \
            (data, count, type, to, tag, comm))
#define ISEND(name, counts)                                                                                                    \
    STARTED(name, (const void *data, counts count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request),   \
            (data, count, type, to, tag, comm, request))

#define ALL(c, counts)                                                                                                         \
    SEND(Send##c, counts)                                                                                                      \
    SEND(Bsend##c, counts)                                                                                                     \
    SEND(Ssend##c, counts)                                                                                                     \
    SEND(Rsend##c, counts)                                                                                                     \
    ISEND(Isend##c, counts)                                                                                                    \
    ISEND(Ibsend##c, counts)                                                                                                   \
    ISEND(Issend##c, counts)                                                                                                   \
    ISEND(Irsend##c, counts)                                                                                                   \
    MESSAGE(Recv##c, 0,                                                                                                        \
            (void *data, counts count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status),               \
            (data, count, type, from, tag, comm, status))                                                                      \
    MESSAGE(Irecv##c, 0,                                                                                                       \
            (void *data, counts count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request),             \
            (data, count, type, from, tag, comm, request))                                                                     \
    MESSAGE(Sendrecv##c, 0,                                                                                                    \
            (const void *data, counts count, MPI_Datatype type, int to, int tag, void *room, counts places,                    \
             MPI_Datatype place, int from, int from_tag, MPI_Comm comm, MPI_Status *status),                                   \
            (data, count, type, to, tag, room, places, place, from, from_tag, comm, status))                                   \
    MESSAGE(Bcast##c, !is_other(comm, root), (void *data, counts count, MPI_Datatype type, int root, MPI_Comm comm),           \
            (data, count, type, root, comm))                                                                                   \
    MESSAGE(Reduce##c, is_other(comm, root),                                                                                   \
            (const void *data, void *room, counts count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),               \
            (data, room, count, type, op, root, comm))                                                                         \
    MESSAGE(Allreduce##c, 0, (const void *data, void *room, counts count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),        \
            (data, room, count, type, op, comm))                                                                               \
    MESSAGE(Scan##c, 0, (const void *data, void *room, counts count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),             \
            (data, room, count, type, op, comm))                                                                               \
    MESSAGE(Exscan##c, 0, (const void *data, void *room, counts count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),           \
            (data, room, count, type, op, comm))                                                                               \
    MESSAGE(Gather##c, is_other(comm, root),                                                                                   \
            (const void *data, counts count, MPI_Datatype type, void *room, counts places, MPI_Datatype place, int root,       \
             MPI_Comm comm),                                                                                                   \
            (data, count, type, room, places, place, root, comm))                                                              \
    MESSAGE(Scatter##c, 0,                                                                                                     \
            (const void *data, counts count, MPI_Datatype type, void *room, counts places, MPI_Datatype place, int root,       \
             MPI_Comm comm),                                                                                                   \
            (data, count, type, room, places, place, root, comm))                                                              \
    MESSAGE(Allgather##c, 0,                                                                                                   \
            (const void *data, counts count, MPI_Datatype type, void *room, counts places, MPI_Datatype place, MPI_Comm comm), \
            (data, count, type, room, places, place, comm))                                                                    \
    MESSAGE(Alltoall##c, 0,                                                                                                    \
            (const void *data, counts count, MPI_Datatype type, void *room, counts places, MPI_Datatype place, MPI_Comm comm), \
            (data, count, type, room, places, place, comm))

ALL(, int)
#if MPI_VERSION >= 4
ALL(_c, MPI_Count)
#endif

MESSAGE(Gatherv, is_other(comm, root),
        (const void *data, int count, MPI_Datatype type, void *room, const int *counts, const int *places, MPI_Datatype place,
         int root, MPI_Comm comm),
        (data, count, type, room, counts, places, place, root, comm))
MESSAGE(Scatterv, 0,
        (const void *data, const int *counts, const int *places, MPI_Datatype type, void *room, int count, MPI_Datatype place,
         int root, MPI_Comm comm),
        (data, counts, places, type, room, count, place, root, comm))
MESSAGE(Allgatherv, 0,
        (const void *data, int count, MPI_Datatype type, void *room, const int *counts, const int *places, MPI_Datatype place,
         MPI_Comm comm),
        (data, count, type, room, counts, places, place, comm))
MESSAGE(Alltoallv, 0,
        (const void *data, const int *counts, const int *places, MPI_Datatype type, void *room, const int *room_counts,
         const int *room_places, MPI_Datatype place, MPI_Comm comm),
        (data, counts, places, type, room, room_counts, room_places, place, comm))
MESSAGE(Alltoallw, 0,
        (const void *data, const int *counts, const int *places, const MPI_Datatype *types, void *room, const int *room_counts,
         const int *room_places, const MPI_Datatype *room_types, MPI_Comm comm),
        (data, counts, places, types, room, room_counts, room_places, room_types, comm))
MESSAGE(Reduce_scatter, 0,
        (const void *data, void *room, const int *counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
        (data, room, counts, type, op, comm))
MESSAGE(Reduce_scatter_block, 0,
        (const void *data, void *room, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
        (data, room, count, type, op, comm))
MESSAGE(Sendrecv_replace, 0,
        (void *data, int count, MPI_Datatype type, int to, int tag, int from, int from_tag, MPI_Comm comm, MPI_Status *status),
        (data, count, type, to, tag, from, from_tag, comm, status))
MESSAGE(Mprobe, 0, (int from, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status),
        (from, tag, comm, message, status))
MESSAGE(Improbe, 0, (int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
        (from, tag, comm, flag, message, status))
MESSAGE(Mrecv, 0, (void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
        (data, count, type, message, status))
MESSAGE(Start, 0, (MPI_Request * request), (request))
MESSAGE(Startall, 0, (int count, MPI_Request *requests), (count, requests))

/* Collective, and completed by one of the calls below. */
#define ICOLLECTIVE(name)                                                                                                          MESSAGE(name, 0,                                                                                                                       (const void *data, int count, MPI_Datatype type, void *room, int places, MPI_Datatype place, MPI_Comm comm,                     MPI_Request *request),                                                                                                        (data, count, type, room, places, place, comm, request))
#define IROOTED(name)                                                                                                              MESSAGE(name, 0,                                                                                                                       (const void *data, int count, MPI_Datatype type, void *room, int places, MPI_Datatype place, int root,                          MPI_Comm comm, MPI_Request *request),                                                                                         (data, count, type, room, places, place, root, comm, request))
ICOLLECTIVE(Iallgather)
ICOLLECTIVE(Ialltoall)
IROOTED(Igather)
IROOTED(Iscatter)
MESSAGE(Ibcast, 0, (void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request),
        (data, count, type, root, comm, request))
MESSAGE(Ireduce, 0,
        (const void *data, void *room, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm, MPI_Request *request),
        (data, room, count, type, op, root, comm, request))
MESSAGE(Iallreduce, 0,
        (const void *data, void *room, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request),
        (data, room, count, type, op, comm, request))
MESSAGE(Ibarrier, 0, (MPI_Comm comm, MPI_Request *request), (comm, request))
MESSAGE(Probe, 0, (int from, int tag, MPI_Comm comm, MPI_Status *status), (from, tag, comm, status))
MESSAGE(Iprobe, 0, (int from, int tag, MPI_Comm comm, int *flag, MPI_Status *status), (from, tag, comm, flag, status))

/* Completion: of nothing, in a ghost, or it ends. */
#define DONE(name, count, requests, parameters, arguments)                                                                     \
    SHOWN int MPI_##name parameters                                                                                            \
    {                                                                                                                          \
        if (!are_done(count, requests))                                                                                        \
            dualpar_end_ghost();                                                                                               \
        GO_ON(name, arguments)                                                                                                 \
    }

DONE(Wait, 1, request, (MPI_Request * request, MPI_Status *status), (request, status))
DONE(Test, 1, request, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status))
DONE(Waitall, count, requests, (int count, MPI_Request *requests, MPI_Status *statuses), (count, requests, statuses))
DONE(Waitany, count, requests, (int count, MPI_Request *requests, int *index, MPI_Status *status),
     (count, requests, index, status))
DONE(Waitsome, count, requests, (int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses),
     (count, requests, done, indices, statuses))
DONE(Testall, count, requests, (int count, MPI_Request *requests, int *flag, MPI_Status *statuses),
     (count, requests, flag, statuses))
DONE(Testany, count, requests, (int count, MPI_Request *requests, int *index, int *flag, MPI_Status *status),
     (count, requests, index, flag, status))
DONE(Testsome, count, requests, (int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses),
     (count, requests, done, indices, statuses))

/* One-sided: what others see of a window they see by these at the latest. */
MESSAGE(Put, 0,
        (const void *data, int count, MPI_Datatype type, int rank, MPI_Aint at, int places, MPI_Datatype place, MPI_Win window),
        (data, count, type, rank, at, places, place, window))
MESSAGE(Get, 0,
        (void *data, int count, MPI_Datatype type, int rank, MPI_Aint at, int places, MPI_Datatype place, MPI_Win window),
        (data, count, type, rank, at, places, place, window))
MESSAGE(Accumulate, 0,
        (const void *data, int count, MPI_Datatype type, int rank, MPI_Aint at, int places, MPI_Datatype place, MPI_Op op,
         MPI_Win window),
        (data, count, type, rank, at, places, place, op, window))
MESSAGE(Fetch_and_op, 0,
        (const void *data, void *room, MPI_Datatype type, int rank, MPI_Aint at, MPI_Op op, MPI_Win window),
        (data, room, type, rank, at, op, window))
MESSAGE(Win_fence, 0, (int assertion, MPI_Win window), (assertion, window))
MESSAGE(Win_lock, 0, (int kind, int rank, int assertion, MPI_Win window), (kind, rank, assertion, window))
MESSAGE(Win_unlock, 0, (int rank, MPI_Win window), (rank, window))
MESSAGE(Win_lock_all, 0, (int assertion, MPI_Win window), (assertion, window))
MESSAGE(Win_unlock_all, 0, (MPI_Win window), (window))
MESSAGE(Win_flush, 0, (int rank, MPI_Win window), (rank, window))
MESSAGE(Win_flush_all, 0, (MPI_Win window), (window))
MESSAGE(Win_post, 0, (MPI_Group group, int assertion, MPI_Win window), (group, assertion, window))
MESSAGE(Win_start, 0, (MPI_Group group, int assertion, MPI_Win window), (group, assertion, window))
MESSAGE(Win_complete, 0, (MPI_Win window), (window))
MESSAGE(Win_wait, 0, (MPI_Win window), (window))
MESSAGE(Win_sync, 0, (MPI_Win window), (window))

MESSAGE(Abort, 0, (MPI_Comm comm, int code), (comm, code))
