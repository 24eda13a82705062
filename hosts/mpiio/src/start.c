/* Whether anything is done in this process, and its communicators. */
#define _GNU_SOURCE
#include "dualpar.h"
#include "shim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the environment wants, and what all processes have agreed on when MPI began. It does not change after that: the others
 * would wait for who no longer takes part. */
static bool is_wanted = true;
static atomic_bool is_agreed;


void *next_function(const char *name, void *of_library)
{
    void *next = dlsym(RTLD_NEXT, name);
    return next ? next : of_library;
}

void step_aside(const char *why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr, "sluice: MPI I/O goes on without Sluicegate: %s\n", why);
}

bool is_on(void)
{
    return atomic_load(&is_agreed);
}

/* A program of another MPI library, in which this one must not be: what programs call has other types there. Starts it again
 * without. Its arguments are those that the loader gives to constructors. */
__attribute__((constructor)) static void begin(int argc, char **argv, char **environment)
{
    (void)argc;
    const char *setting = getenv("SLUICE_MPI");
    is_wanted = !setting || strcmp(setting, "off") != 0;
#ifdef OPEN_MPI
    bool is_other = dlsym(RTLD_DEFAULT, "MPIR_Dup_fn") != NULL;
#else
    bool is_other = dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") != NULL;
#endif
    if (!is_other || !getenv("LD_PRELOAD"))
        return;
    fprintf(stderr, "sluice: %s uses another MPI library than the one that Sluicegate was loaded for; it runs without\n", argv[0]);
    unsetenv("LD_PRELOAD");
    (void)environment;
    extern char **environ;
    execve("/proc/self/exe", argv, environ);
    fprintf(stderr, "sluice: could not start %s again: %s\n", argv[0], strerror(errno));
}

struct own {
    MPI_Group group;
    MPI_Comm comm;
    struct sluice_decisions *decisions;
    struct own *below;
};
/* Used by one thread at a time. */
static struct own *owns_list;
/* Errors of calls on it are returned, whatever the program wants of those on its own ones. */
static MPI_Comm world = MPI_COMM_NULL;
/* Some process may call MPI from several threads. */
static bool has_threads;

static void initialised(bool can)
{
    int all = 0, mine = can, level = MPI_THREAD_SINGLE, several;
    MPI_Group group;
    if (!is_wanted)
        return;
    /* Attributes of the program are not to be copied: that would call it. */
    if (PMPI_Comm_group(MPI_COMM_WORLD, &group) != MPI_SUCCESS)
        return;
    if (PMPI_Comm_create(MPI_COMM_WORLD, group, &world) != MPI_SUCCESS) {
        PMPI_Group_free(&group);
        world = MPI_COMM_NULL;
        step_aside("no communicator could be made");
        return;
    }
    PMPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    atomic_store(&is_agreed, PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, world) == MPI_SUCCESS && all);
    /* Processes may have different levels; what is collective they do all the same. */
    several = PMPI_Query_thread(&level) == MPI_SUCCESS && level == MPI_THREAD_MULTIPLE;
    if (PMPI_Allreduce(MPI_IN_PLACE, &several, 1, MPI_INT, MPI_LOR, world) != MPI_SUCCESS)
        atomic_store(&is_agreed, false);
    has_threads = several;
    /* Most programs open files as a whole, and need not wait for another one then. */
    struct own *whole = malloc(sizeof *whole);
    all = whole != NULL;
    if (PMPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, world) == MPI_SUCCESS && all) {
        *whole = (struct own){group, world, NULL, NULL};
        owns_list = whole;
    } else {
        free(whole);
        PMPI_Group_free(&group);
    }
    if (is_on())
        dualpar_begin(world);
}

/* As long as a process has one thread, a longer table of descriptors is not waited for. */
static void before_threads(void)
{
    if (is_wanted)
        sluice_dualpar_make_room();
}

SHOWN int MPI_Init(int *argc, char ***argv)
{
    before_threads();
    int result = NEXT(MPI_Init)(argc, argv);
    if (result == MPI_SUCCESS)
        initialised(true);
    return result;
}

SHOWN int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided)
{
    before_threads();
    int result = NEXT(MPI_Init_thread)(argc, argv, wanted, provided);
    if (result == MPI_SUCCESS)
        initialised(true);
    return result;
}

#ifdef OPEN_MPI
/* Its Fortran interface does not come by the calls of C: a process that begins here has views and messages that nobody sees. It tells
 * the others, so that all of them do without, rather than wait for it. */
#define FORTRAN(name, parameters, arguments)                                                                                   \
    void name parameters;                                                                                                      \
    SHOWN void name parameters                                                                                                 \
    {                                                                                                                          \
        void(*next) parameters = (__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name);                                        \
        if (!next) {                                                                                                           \
            *error = MPI_ERR_INTERN;                                                                                           \
            return;                                                                                                            \
        }                                                                                                                      \
        next arguments;                                                                                                        \
        if (*error == MPI_SUCCESS)                                                                                             \
            initialised(false);                                                                                                \
    }
FORTRAN(mpi_init_, (MPI_Fint * error), (error))
FORTRAN(mpi_init_thread_, (MPI_Fint * wanted, MPI_Fint *provided, MPI_Fint *error), (wanted, provided, error))
/* Of the module mpi_f08. */
FORTRAN(ompi_init_f, (MPI_Fint * error), (error))
FORTRAN(ompi_init_thread_f, (MPI_Fint * wanted, MPI_Fint *provided, MPI_Fint *error), (wanted, provided, error))
#endif

/* Not if there are processes that were started by others of these: no communicator of ours has both. All of them see that. */
static bool is_in_world(MPI_Group group)
{
    MPI_Group all, both;
    int same = MPI_UNEQUAL;
    if (PMPI_Comm_group(world, &all) != MPI_SUCCESS)
        return false;
    if (PMPI_Group_intersection(group, all, &both) == MPI_SUCCESS) {
        PMPI_Group_compare(group, both, &same);
        PMPI_Group_free(&both);
    }
    PMPI_Group_free(&all);
    return same == MPI_IDENT;
}

/* MPI libraries have as few as 2000 communicators, which are the program's: so many can be ours. */
enum { OWN_COMMS = 128 };
static atomic_int own_comms;

/* Whether all processes of the program's communicator may have one more. */
static bool is_room(MPI_Comm comm)
{
    int mine = atomic_load(&own_comms) < OWN_COMMS, all = 0;
    return PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm) == MPI_SUCCESS && all;
}

void own_comm_free(MPI_Comm *comm)
{
    PMPI_Comm_free(comm);
    atomic_fetch_sub(&own_comms, 1);
}

MPI_Comm own_comm(MPI_Comm comm, bool *owns)
{
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Group group;
    *owns = false;
    if (world == MPI_COMM_NULL || PMPI_Comm_group(comm, &group) != MPI_SUCCESS)
        return made;
    if (!is_in_world(group)) {
        PMPI_Group_free(&group);
        return made;
    }
    if (has_threads) {
        PMPI_Group_free(&group);
        /* Several threads may open files at the same time, and talk of them at the same time. */
        if (!is_room(comm) || PMPI_Comm_split(comm, 0, 0, &made) != MPI_SUCCESS)
            return MPI_COMM_NULL;
        atomic_fetch_add(&own_comms, 1);
        *owns = true;
        PMPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
        return made;
    }
    for (struct own *own = owns_list; own; own = own->below) {
        int same = MPI_UNEQUAL;
        if (PMPI_Group_compare(group, own->group, &same) == MPI_SUCCESS && same == MPI_IDENT) {
            PMPI_Group_free(&group);
            return own->comm;
        }
    }
    struct own *own = malloc(sizeof *own);
    if (!is_room(comm) || PMPI_Comm_create_group(world, group, 0, &made) != MPI_SUCCESS)
        made = MPI_COMM_NULL;
    else
        atomic_fetch_add(&own_comms, 1);
    if (!own) {
        /* Shared or not is to be the same everywhere; without memory little else matters. */
        PMPI_Group_free(&group);
        return made;
    }
    *own = (struct own){group, made, NULL, owns_list};
    owns_list = own;
    return made;
}

struct sluice_decisions **kept_decisions(MPI_Comm comm)
{
    for (struct own *own = owns_list; own; own = own->below)
        if (own->comm == comm)
            return &own->decisions;
    return NULL;
}
