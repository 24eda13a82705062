/* Data-driven execution (DualPar): what crates/dualpar decides, between the program and its MPI library. */
#define _GNU_SOURCE
#include "dualpar.h"
#include "shim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { PASS, SERVED, GHOST };

/* The process that has begun; 0 if none has. Its own children, when it forks, have nothing to do here. */
static pid_t owner;

static bool is_running(void)
{
    return owner != 0 && (owner == getpid() || sluice_dualpar_is_ghost());
}

/* Whether all processes say so; errors count as no. */
static bool all_of(MPI_Comm comm, bool mine)
{
    int said = mine, all = 0;
    return PMPI_Allreduce(&said, &all, 1, MPI_INT, MPI_LAND, comm) == MPI_SUCCESS && all;
}

/* The memory that the processes of a node share has a name only until all have it. */
static bool share(MPI_Comm node, bool is_forced, uint64_t run)
{
    int place = 0, places = 1;
    uint64_t own = run;
    char path[64];
    PMPI_Comm_rank(node, &place);
    PMPI_Comm_size(node, &places);
    /* Of the node's first process: other nodes' may see the same directory. */
    if (place == 0 && getrandom(&own, sizeof own, GRND_NONBLOCK) != sizeof own)
        own ^= (uint64_t)getpid() << 32;
    if (PMPI_Bcast(&own, sizeof own, MPI_BYTE, 0, node) != MPI_SUCCESS)
        return false;
    snprintf(path, sizeof path, "/dev/shm/sluice-%016llx", (unsigned long long)own);
    const char *servers = getenv("SLUICE_MEMCACHED");
    bool is_made = place == 0 && sluice_dualpar_start(path, 0, (size_t)places, servers, run, is_forced, NULL);
    if (PMPI_Barrier(node) == MPI_SUCCESS && place != 0)
        is_made = sluice_dualpar_start(path, (size_t)place, (size_t)places, servers, run, is_forced, NULL);
    bool all = all_of(node, is_made);
    if (place == 0)
        unlink(path);
    return all_of(node, all && sluice_dualpar_is_complete());
}

void dualpar_begin(MPI_Comm world)
{
    /* The processes may have different environments; what is collective they do all the same. */
    const char *mode = getenv("SLUICE_DUALPAR");
    /* Only for those who ask for it: what is collected is seen by others later than they are used to. */
    bool is_off = !mode || strcmp(mode, "off") == 0, is_forced = mode && strcmp(mode, "always") == 0;
    uint64_t run = 0;
    MPI_Comm node;
    if (getrandom(&run, sizeof run, GRND_NONBLOCK) != sizeof run)
        run = (uint64_t)getpid();
    if (PMPI_Bcast(&run, sizeof run, MPI_BYTE, 0, world) != MPI_SUCCESS)
        return;
    if (!all_of(world, !is_off) || PMPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return;
    PMPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN);
    if (share(node, is_forced, run))
        owner = getpid();
    else
        sluice_dualpar_stop();
    PMPI_Comm_free(&node);
}

void dualpar_end(void)
{
    dualpar_end_ghost();
    if (!is_running())
        return;
    sluice_dualpar_stop();
    owner = 0;
}

/* A program that leaves without MPI_Finalize; what it has collected is its own all the same. */
__attribute__((destructor)) static void leave(void)
{
    if (owner != 0 && owner == getpid())
        sluice_dualpar_stop();
}

void dualpar_open(struct file *file)
{
    file->dualpar = -1;
    if (!is_running() || file->descriptor < 0 || file->amode & MPI_MODE_SEQUENTIAL)
        return;
    /* Appending is done at the end of a file, wherever that is by then. */
    bool is_writable = !(file->amode & (MPI_MODE_RDONLY | MPI_MODE_APPEND));
    file->dualpar = sluice_dualpar_open(file->descriptor, !(file->amode & MPI_MODE_WRONLY), is_writable, file->ranks > 1,
                                         file->listens);
}

/* As the MPI library would say it, to the handler of the file's errors, too. */
int failed(MPI_File handle, int error)
{
    if (error == 0)
        return MPI_SUCCESS;
    int class = error == ENOSPC ? MPI_ERR_NO_SPACE : error == EDQUOT ? MPI_ERR_QUOTA : MPI_ERR_IO;
    PMPI_File_call_errhandler(handle, class);
    return class;
}

int dualpar_close(struct file *file)
{
    dualpar_end_ghost();
    if (!file || file->dualpar < 0 || !is_running())
        return MPI_SUCCESS;
    int number = file->dualpar;
    file->dualpar = -1;
    return failed(file->handle, sluice_dualpar_close(number, file->data_driven, sizeof file->data_driven));
}

void dualpar_end_ghost(void)
{
    if (owner != 0 && sluice_dualpar_is_ghost())
        sluice_dualpar_end_ghost();
}

void dualpar_other(struct file *file)
{
    dualpar_end_ghost();
    if (!is_running())
        return;
    if (file && file->dualpar >= 0)
        sluice_dualpar_other(file->dualpar);
    else
        sluice_dualpar_message();
}

void dualpar_message(void)
{
    if (is_running())
        sluice_dualpar_message();
}

static void complain(void)
{
    static bool has_complained;
    char text[256];
    if (has_complained || !sluice_dualpar_complaint(text, sizeof text))
        return;
    has_complained = true;
    fprintf(stderr, "sluice: what processes will read is not found out ahead: %s\n", text);
}

/* Whether only this process can tell when others see what it writes, and the call is one that the file allows. */
static bool may_serve(const struct file *file, const struct access *access)
{
    int refused = access->is_write ? MPI_MODE_RDONLY : MPI_MODE_WRONLY, is_atomic = 1;
    return !(file->amode & refused) && PMPI_File_get_atomicity(access->file, &is_atomic) == MPI_SUCCESS && !is_atomic;
}

/* What looking at calls may take of the time of those that are left to the library: one in so many. */
enum { WATCHING = 100 };

int dualpar_call(struct file *file, const struct access *access)
{
    int64_t begin = now(), asked, passed;
    if (file->dualpar < 0 || !is_running()) {
        /* What was collected through another handle of the same file is older than this. */
        dualpar_other(file);
        return access->pass(access);
    }
    if (file->watching * WATCHING > file->watched && sluice_dualpar_is_idle(file->dualpar)) {
        dualpar_other(file);
        int result = access->pass(access);
        file->watched += now() - begin;
        return result;
    }
    int64_t bytes = access_bytes(access), from = access_from(file, access);
    struct sluice_ranges *ranges = may_serve(file, access) ? access_ranges(file, access, from, bytes) : NULL;
    struct sluice_ranges *memory = ranges ? access_memory(access, bytes) : NULL;
    if (!memory) {
        sluice_ranges_free(ranges);
        dualpar_other(file);
        return access->pass(access);
    }
    size_t range_count, memory_count;
    const struct sluice_range *list = sluice_ranges_list(ranges, &range_count), *places = sluice_ranges_list(memory, &memory_count);
    uint64_t moved = (uint64_t)bytes;
    int (*ask)(int32_t, const struct sluice_range *, size_t, const struct sluice_range *, size_t, uint64_t *) =
        access->is_write ? sluice_dualpar_write : sluice_dualpar_read;
    int result = MPI_SUCCESS;
    switch (ask(file->dualpar, list, range_count, places, memory_count, &moved)) {
    case SERVED:
    case GHOST: result = access_served(file, access, (int64_t)moved); break;
    default:
        asked = now();
        result = access->pass(access);
        passed = now();
        sluice_dualpar_passed(file->dualpar, list, range_count, access->is_write);
        complain();
        file->watching += asked - begin + now() - passed;
        file->watched += passed - asked;
    }
    sluice_ranges_free(ranges);
    sluice_ranges_free(memory);
    return result;
}

/* What else has to do with a file's bytes or size. In a ghost nothing is written, so nothing has to be synchronised either. */
SHOWN int MPI_File_sync(MPI_File handle)
{
    if (owner != 0 && sluice_dualpar_is_ghost())
        return MPI_SUCCESS;
    struct file *file = is_running() ? file_of(handle) : NULL;
    int lost = file && file->dualpar >= 0 ? sluice_dualpar_sync(file->dualpar) : 0;
    int result = NEXT(MPI_File_sync)(handle);
    dualpar_message();
    /* Last, as the library does: the handler may close the file. */
    return result == MPI_SUCCESS ? failed(handle, lost) : result;
}

#define BEFORE(name, parameters, arguments)                                                                                    \
    SHOWN int MPI_File_##name parameters                                                                                       \
    {                                                                                                                          \
        dualpar_other(file_of(file));                                                                                          \
        return NEXT(MPI_File_##name) arguments;                                                                                \
    }

BEFORE(set_size, (MPI_File file, MPI_Offset size), (file, size))
BEFORE(preallocate, (MPI_File file, MPI_Offset size), (file, size))
BEFORE(get_size, (MPI_File file, MPI_Offset *size), (file, size))
BEFORE(set_atomicity, (MPI_File file, int flag), (file, flag))
BEFORE(seek_shared, (MPI_File file, MPI_Offset offset, int whence), (file, offset, whence))

SHOWN int MPI_File_seek(MPI_File file, MPI_Offset offset, int whence)
{
    if (whence == MPI_SEEK_END)
        dualpar_other(file_of(file));
    struct file *pointing = pointer_hold(file);
    int result = NEXT(MPI_File_seek)(file, offset, whence);
    pointer_let_go(pointing);
    return result;
}
