/*
 * Sluicegate between programs and their MPI library's I/O.
 *
 * Calls of programs come in by the names of MPI (calls.c); what is behind is the next library that has these names, which may be
 * another tool's, in the end the MPI library. Blocking reads and writes pass data_call(); everything else goes on untouched, and
 * is only noted where it changes what is known of a file (files.c). What is not understood is left to the MPI library, and own
 * failures end own doing, never the program's.
 */
#ifndef SLUICE_SHIM_H
#define SLUICE_SHIM_H

#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sluice_mpiio.h"

#define SHOWN __attribute__((visibility("default")))

/* The function behind ours. */
#define NEXT(name)                                                                                                             \
    (__extension__({                                                                                                           \
        static void *_Atomic known;                                                                                            \
        void *next = atomic_load_explicit(&known, memory_order_relaxed);                                                       \
        if (!next)                                                                                                             \
            atomic_store_explicit(&known, next = next_function(#name, (void *)P##name), memory_order_relaxed);                 \
        (__typeof__(&name))next;                                                                                               \
    }))
void *next_function(const char *name, void *of_library);

/* What is known of an open file. Its table is locked; a file itself is only used by calls on its handle, which MPI does not
 * allow while it is being closed, but for a handler of errors that closes it within the call that has failed. */
struct file {
    MPI_File handle;
    atomic_int users; /* calls that go on, and the table: memory of those that are closed stays until they end */
    /* The individual pointer of a file whose calls are data-driven is asked for and set by several calls. Recursive, as a handler of
     * errors may come back. */
    pthread_mutex_t pointing;
    char *name; /* without the prefix that names a file system driver */
    int amode;
    /* Ours, of the same processes in the same order, errors returned; MPI_COMM_NULL if there is no agreement with them. */
    MPI_Comm comm;
    bool owns_comm; /* it is of no other file */
    int rank, ranks;
    int descriptor; /* own, or -1 */
    MPI_Info hints; /* a copy of those given, or MPI_INFO_NULL */
    /* The view; `type` is NULL where it is not understood. */
    MPI_Offset displacement;
    int64_t etype_size;
    struct sluice_flat *type;
    /* Of collective calls, the same on all processes; NULL where these are left to the library. */
    struct sluice_decisions *decisions;
    /* Of the last collective call that was looked at, in nanoseconds: itself, the look; of those since. */
    int64_t elapsed, looked, skipped;
    int64_t call_bytes;     /* of all processes in the call that goes on */
    uint8_t *buffers;       /* two of `room` bytes */
    size_t room;
    struct sluice_sort sorts[SLUICE_SORTS]; /* of this process, for the report; racy, as counters may be */
    /* Collective calls that may go on behind the program's back have begun: decisions are no longer safe. */
    atomic_bool is_busy;
    int64_t watching, watched; /* looking at independent calls, and those calls, in nanoseconds; racy, as counters may be */
    bool listens;  /* its file system is told what the process does */
    int dualpar; /* its number for data-driven execution, or -1 (dualpar.c) */
    char data_driven[512]; /* what that did, as JSON, or empty */
    struct file *below;
};

enum pointer { EXPLICIT, INDIVIDUAL, SHARED };

/* A blocking read or write. */
struct access {
    const char *call;
    MPI_File file;
    enum pointer pointer;
    bool is_write, is_collective;
    MPI_Offset offset; /* in etypes, if EXPLICIT */
    void *buffer;
    MPI_Count count;
    MPI_Datatype type;
    MPI_Status *status;
    /* Leaves the call to who is next. */
    int (*pass)(const struct access *access);
};

/* The one door of blocking reads and writes (access.c). */
int data_call(const struct access *access);

/* Bytes of an access, or -1 if that is not understood. */
int64_t access_bytes(const struct access *access);
/* Where in the view it begins, in bytes of the view's data; -1 if that is not understood. */
int64_t access_from(const struct file *file, const struct access *access);
/* The file's ranges of it, in the order of the data; NULL if not understood. The MPI library was asked where it begins, so that a
 * view that was set unseen is noticed. */
struct sluice_ranges *access_ranges(const struct file *file, const struct access *access, int64_t from, int64_t bytes);
/* The memory's ranges of it, absolute; NULL if not understood. */
struct sluice_ranges *access_memory(const struct access *access, int64_t bytes);
/* Ends a call that was served here, all bytes of it: file pointer and status. */
int access_served(const struct file *file, const struct access *access, int64_t bytes);

/* resonant.c: what the processes of `comm` agree on when they open a file (NULL: this one could not), all in one message: whether
 * all have it here, too, and `comm` is its own then; and whether collective calls on it can be served here. And such a call, which
 * it serves or passes on. */
bool resonant_begin(struct file *file, MPI_Comm comm);
int resonant_call(struct file *file, const struct access *access);

/* Flattened type, NULL if not understood; to be freed (types.c). */
struct sluice_flat *flatten(MPI_Datatype type);

/* announce.c: file systems of Sluicegate are told of which job this process is, when it opens the first file there, and then what it
 * does. Whether the file's one listens. */
bool announce_open(int descriptor);
void announce_close(int descriptor, bool listens);

/* files.c */
void file_opened(MPI_Comm comm, const char *name, int amode, MPI_Info hints, int result, MPI_File handle);
/* Takes it out of the table, before the handle means something else. */
struct file *file_closing(MPI_File handle);
/* 0, or an error number of what was still to be written. */
int file_closed(struct file *file);
struct file *file_of(MPI_File handle);
/* As file_of(); stays until it is let go, whatever happens to the handle. */
struct file *file_hold(MPI_File handle);
void file_let_go(struct file *file);
/* Between these no other thread moves the file's individual pointer, should that matter (NULL: of a file that is not known). */
struct file *pointer_hold(MPI_File handle);
void pointer_let_go(struct file *file);
void file_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype type, const char *representation);
/* What others than blocking calls do: a write through `handle`, collective calls that go on after returning. */
void file_note(MPI_File handle, bool is_write, bool is_collective);
/* Counts a call; of which sort: is_write, and 0 alone, 1 collective, 2 shared, 3 later. */
void file_count(struct file *file, bool is_write, int sort, int64_t bytes, int64_t nanoseconds);
int64_t now(void);
void files_end(void);

/* start.c */
bool is_on(void);
/* One line on stderr, once in a process. */
void step_aside(const char *why);
/* A communicator of our own of the processes of `comm`; shared by those who ask for the same processes, unless `owns` says
 * otherwise. MPI_COMM_NULL if there is none. Collective. */
MPI_Comm own_comm(MPI_Comm comm, bool *owns);
/* Ends one that it owns. */
void own_comm_free(MPI_Comm *comm);
/* Where decisions for the last file of a shared communicator are kept for the next one; NULL if it is not shared. */
struct sluice_decisions **kept_decisions(MPI_Comm own);

#endif
