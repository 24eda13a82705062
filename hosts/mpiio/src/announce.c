/* What file systems of Sluicegate are told of this process: its job, and what it does (hosts/fuse/src/announced.rs). Others do not know
 * the attribute that is read first, and are told nothing. */
#define _GNU_SOURCE
#include "shim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum { MOUNTS = 16 };

/* Mounts that know the job, and how many files are open there. Threads may open files at the same time; the worst that comes of that
 * is a phase that is told late. */
static _Atomic dev_t known[MOUNTS];
static atomic_int open_files[MOUNTS];

static int place_of(dev_t device)
{
    for (int i = 0; i < MOUNTS; i++)
        if (atomic_load(&known[i]) == device)
            return i;
    return -1;
}

static bool say(int descriptor, const char *name, const char *text)
{
    return fsetxattr(descriptor, name, text, strlen(text), 0) == 0;
}

bool announce_open(int descriptor)
{
    const char *job = getenv("SLUICE_MPI_JOB");
    char app[256];
    struct stat stat;
    if (descriptor < 0 || !job || !*job || fstat(descriptor, &stat) != 0)
        return false;
    int place = place_of(stat.st_dev);
    if (place < 0) {
        if (fgetxattr(descriptor, "system.sluice.app", app, sizeof app) <= 0 || !say(descriptor, "system.sluice.job", job))
            return false;
        /* It was heard if this process is served as that job now. */
        ssize_t len = fgetxattr(descriptor, "system.sluice.app", app, sizeof app - 1);
        size_t job_len = strlen(job);
        if (len < (ssize_t)job_len + 5 || memcmp(app, "job=", 4) != 0 || memcmp(app + 4, job, job_len) != 0 || app[4 + job_len] != ' ')
            return false;
        place = place_of(0);
        if (place < 0)
            return false;
        atomic_store(&known[place], stat.st_dev);
    }
    if (atomic_fetch_add(&open_files[place], 1) == 0)
        say(descriptor, "system.sluice.phase", "io");
    return true;
}

void announce_close(int descriptor, bool listens)
{
    struct stat stat;
    int place = listens && fstat(descriptor, &stat) == 0 ? place_of(stat.st_dev) : -1;
    if (place >= 0 && atomic_fetch_sub(&open_files[place], 1) == 1)
        say(descriptor, "system.sluice.phase", "compute");
}
