/* The table of open files. */
#define _GNU_SOURCE
#include "dualpar.h"
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { BUCKETS = 256 };

static struct file *table[BUCKETS];
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static struct file **bucket_of(MPI_File handle)
{
    uintptr_t number = (uintptr_t)handle;
    return &table[(number >> 4 ^ number >> 12) % BUCKETS];
}

static struct file *find(MPI_File handle, int users)
{
    if (!is_on())
        return NULL;
    pthread_rwlock_rdlock(&lock);
    struct file *file = *bucket_of(handle);
    while (file && file->handle != handle)
        file = file->below;
    if (file)
        atomic_fetch_add(&file->users, users);
    pthread_rwlock_unlock(&lock);
    return file;
}

struct file *file_of(MPI_File handle)
{
    return find(handle, 0);
}

struct file *file_hold(MPI_File handle)
{
    return find(handle, 1);
}

void file_let_go(struct file *file)
{
    if (!file || atomic_fetch_sub(&file->users, 1) != 1)
        return;
    pthread_mutex_destroy(&file->pointing);
    free(file);
}

struct file *pointer_hold(MPI_File handle)
{
    struct file *file = file_hold(handle);
    if (file && file->dualpar < 0) {
        file_let_go(file);
        return NULL;
    }
    if (file)
        pthread_mutex_lock(&file->pointing);
    return file;
}

void pointer_let_go(struct file *file)
{
    if (!file)
        return;
    pthread_mutex_unlock(&file->pointing);
    file_let_go(file);
}

struct file *file_closing(MPI_File handle)
{
    pthread_rwlock_wrlock(&lock);
    struct file **place = bucket_of(handle);
    while (*place && (*place)->handle != handle)
        place = &(*place)->below;
    struct file *file = *place;
    if (file)
        *place = file->below;
    pthread_rwlock_unlock(&lock);
    return file;
}

void file_count(struct file *file, bool is_write, int sort, int64_t bytes, int64_t nanoseconds)
{
    struct sluice_sort *counted = &file->sorts[(is_write ? SLUICE_SORTS / 2 : 0) + sort];
    counted->calls++;
    counted->bytes += bytes > 0 ? bytes : 0;
    counted->nanoseconds += nanoseconds;
}

static void report(struct file *file)
{
    const char *path = getenv("SLUICE_MPI_REPORT");
    if (path && *path && file->rank == 0) {
        if (file->decisions)
            sluice_last(file->decisions, file->elapsed);
        if (sluice_report(path, file->name, file->ranks, file->decisions, file->sorts, file->data_driven) != 0)
            fprintf(stderr, "sluice: %s: the report cannot be written there\n", path);
    }
}

/* Also says if the descriptor's end tells an error: file systems may tell those of earlier writes to whoever closes first. */
static int file_free(struct file *file)
{
    announce_close(file->descriptor, file->listens);
    int error = file->descriptor >= 0 && close(file->descriptor) != 0 && errno != EINTR ? errno : 0;
    if (file->hints != MPI_INFO_NULL)
        PMPI_Info_free(&file->hints);
    sluice_decisions_free(file->decisions);
    free(file->buffers);
    sluice_flat_free(file->type);
    free(file->name);
    file_let_go(file);
    return error;
}

int file_closed(struct file *file)
{
    if (!file)
        return 0;
    report(file);
    struct sluice_decisions **kept = file->owns_comm || !file->decisions ? NULL : kept_decisions(file->comm);
    if (kept) {
        sluice_decisions_free(*kept);
        *kept = file->decisions;
        file->decisions = NULL;
    }
    if (file->owns_comm)
        own_comm_free(&file->comm);
    return file_free(file);
}

/* A path may begin with the name of a file system driver: only plain ones are opened here. */
static const char *path_of(const char *name)
{
    return strncmp(name, "ufs:", 4) == 0 ? name + 4 : name;
}

/* Whether anybody holds locks (fcntl) of the file: those of the program go with the first descriptor of it that is closed. A new
 * descriptor has locks of its own kind (of its description, not of the process), with which those of this process collide, too. */
static bool has_locks(int descriptor)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(descriptor, F_OFD_GETLK, &lock) == 0)
        return lock.l_type != F_UNLCK;
    /* File systems without locks; else a kernel that cannot be asked. */
    return errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS;
}

static int open_again(const char *path, int amode)
{
    /* Where open files keep a name when they are removed, their directory could not be. */
    if (amode & MPI_MODE_DELETE_ON_CLOSE)
        return -1;
    int how = amode & MPI_MODE_RDWR ? O_RDWR : amode & MPI_MODE_WRONLY ? O_WRONLY : O_RDONLY;
    int descriptor = open(path, how | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat stat;
    struct statfs system;
    if (descriptor < 0)
        return -1;
    /* MPI libraries lock around what they do on NFS, which keeps its caches right. */
    bool is_nfs = fstatfs(descriptor, &system) == 0 && system.f_type == 0x6969;
    bool is_suitable = !is_nfs && fstat(descriptor, &stat) == 0 && S_ISREG(stat.st_mode);
    /* Closing one is a message to the server in some file systems. */
    if (is_suitable && (sluice_dualpar_may_stay(descriptor) || has_locks(descriptor)))
        return descriptor;
    int own = is_suitable ? sluice_dualpar_descriptor(descriptor) : -1;
    close(descriptor);
    return own;
}

static struct file *make(const char *name, int amode, MPI_Info hints, MPI_File handle)
{
    struct file *file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&file->pointing, &recursive);
    pthread_mutexattr_destroy(&recursive);
    atomic_init(&file->users, 1);
    file->handle = handle;
    file->amode = amode;
    file->comm = MPI_COMM_NULL;
    file->hints = MPI_INFO_NULL;
    file->ranks = 1;
    file->dualpar = -1;
    file->name = strdup(path_of(name));
    file->type = sluice_flat_basic(1);
    file->etype_size = 1;
    file->descriptor = file->name ? open_again(file->name, amode) : -1;
    file->listens = announce_open(file->descriptor);
    if (hints != MPI_INFO_NULL && PMPI_Info_dup(hints, &file->hints) != MPI_SUCCESS)
        file->hints = MPI_INFO_NULL;
    if (amode & MPI_MODE_SEQUENTIAL) {
        sluice_flat_free(file->type);
        file->type = NULL;
    }
    if (!file->name) {
        if (file->hints != MPI_INFO_NULL)
            PMPI_Info_free(&file->hints);
        sluice_flat_free(file->type);
        free(file);
        return NULL;
    }
    return file;
}

void file_opened(MPI_Comm comm, const char *name, int amode, MPI_Info hints, int result, MPI_File handle)
{
    int class = MPI_SUCCESS, ranks = 0;
    if (!is_on() || comm == MPI_COMM_NULL)
        return;
    /* What is no communicator cannot be agreed over. */
    if (result != MPI_SUCCESS && (PMPI_Error_class(result, &class) != MPI_SUCCESS || class == MPI_ERR_COMM))
        return;
    PMPI_Comm_size(comm, &ranks);
    struct file *file = result == MPI_SUCCESS ? make(name, amode, hints, handle) : NULL;
    if (ranks > 1) {
        /* Also those that could not open it, lest the others wait for them. */
        bool owns = false;
        MPI_Comm made = own_comm(comm, &owns);
        if (file)
            file->owns_comm = owns;
        if (made != MPI_COMM_NULL && !resonant_begin(file, made)) {
            if (file)
                file->owns_comm = false;
            if (owns)
                own_comm_free(&made);
        }
    }
    if (!file)
        return;
    dualpar_open(file);
    pthread_rwlock_wrlock(&lock);
    struct file **place = bucket_of(handle);
    file->below = *place;
    *place = file;
    pthread_rwlock_unlock(&lock);
}

void file_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype type, const char *representation)
{
    struct file *file = file_of(handle);
    if (!file)
        return;
    sluice_flat_free(file->type);
    file->type = NULL;
    MPI_Count size = 0;
    if (displacement < 0 || file->amode & MPI_MODE_SEQUENTIAL || type == MPI_DATATYPE_NULL || strcmp(representation, "native") != 0)
        return;
    if (PMPI_Type_size_x(etype, &size) != MPI_SUCCESS || size <= 0)
        return;
    struct sluice_flat *flat = flatten(type);
    if (flat && sluice_flat_is_ascending(flat) && sluice_flat_size(flat) > 0 && sluice_flat_size(flat) % size == 0) {
        file->displacement = displacement;
        file->etype_size = size;
        file->type = flat;
    } else {
        sluice_flat_free(flat);
    }
}

void file_note(MPI_File handle, bool is_write, bool is_collective)
{
    struct file *file = file_of(handle);
    dualpar_other(file);
    if (!file)
        return;
    file_count(file, is_write, 3, 0, 0);
    if (is_collective)
        atomic_store(&file->is_busy, true);
}

void files_end(void)
{
    for (int i = 0; i < BUCKETS; i++) {
        while (table[i]) {
            struct file *file = file_closing(table[i]->handle);
            dualpar_close(file);
            report(file);
            file_free(file);
        }
    }
}
