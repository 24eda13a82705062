/* Messages of programs, for what messages.awk makes of mpi.h. They may tell others that something was written, and this process that
 * files have changed; and a ghost, which has no peers, goes on without those whose result nobody sees, and ends at the others. What the
 * MPI library's Fortran interface calls by other names cannot harm in a ghost, which has nothing to send with; and what it
 * may tell is noticed within the time that prefetched bytes are trusted. */
#ifndef SLUICE_MESSAGES_H
#define SLUICE_MESSAGES_H

#include "dualpar.h"
#include "shim.h"

/* Where `is_unseen`, a ghost goes on; where `ends`, it does not come further. A program may have an older library of the same kind,
 * which does not have all of them. */
#define MESSAGE(name, is_unseen, ends, parameters, arguments)                                                                  \
    _Pragma(WEAK(name)) SHOWN int MPI_##name parameters                                                                        \
    {                                                                                                                          \
        if (sluice_dualpar_is_ghost()) {                                                                                       \
            if (is_unseen)                                                                                                     \
                return MPI_SUCCESS;                                                                                            \
            if (ends)                                                                                                          \
                dualpar_end_ghost();                                                                                           \
        }                                                                                                                      \
        dualpar_message();                                                                                                     \
        return NEXT(MPI_##name) arguments;                                                                                     \
    }
#define WEAK(name) TEXT(weak PMPI_##name)
#define TEXT(text) #text

static inline bool is_other(MPI_Comm comm, int root)
{
    int rank = root;
    return PMPI_Comm_rank(comm, &rank) == MPI_SUCCESS && rank != root;
}

/* Is completed at once in a ghost. */
static inline bool is_started(MPI_Request *request)
{
    *request = MPI_REQUEST_NULL;
    return true;
}

static inline bool are_done(int count, const MPI_Request *requests)
{
    for (int i = 0; i < count; i++) {
        if (requests[i] != MPI_REQUEST_NULL)
            return false;
    }
    return true;
}

#endif
