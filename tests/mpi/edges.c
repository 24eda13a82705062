/*
 * What programs do beside reading and writing: errors and their handlers, threads, communicators of some processes, files that are
 * open at the end. By MPI_* and by PMPI_*, which must come to the same.
 *
 *   edges DIRECTORY [threads]
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 5000, NOTES = 200 };

static int rank, ranks, failed;
static int notes[2][NOTES], note_count[2];
static int handled[2], which_now;
static const char *directory;

#define F(which, name, ...) ((which) ? PMPI_File_##name(__VA_ARGS__) : MPI_File_##name(__VA_ARGS__))

static void note(int which, int value)
{
    if (note_count[which] < NOTES)
        notes[which][note_count[which]++] = value;
}

/* The class of a result, as programs look at it. */
static void note_result(int which, int result)
{
    int class = -1;
    MPI_Error_class(result, &class);
    note(which, class);
}

static void handler(MPI_File *file, int *code, ...)
{
    (void)file, (void)code;
    handled[which_now]++;
}

static MPI_Info hints(void)
{
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "striping_unit", "1000");
    MPI_Info_set(info, "striping_factor", "3");
    return info;
}

static void path(char out[512], const char *name, int which, int number)
{
    snprintf(out, 512, "%s/%s.%d.%s", directory, name, number, which ? "plain" : "with");
}

/* Processes of `comm` write blocks in turn, read them shifted, and note whether that is right. */
static int round_trip(int which, MPI_Comm comm, const char *name, int amode)
{
    int me, all, wrong = 0;
    char *data = malloc(BLOCK), *back = malloc(BLOCK);
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    MPI_Info info = hints();
    MPI_File file;
    if (F(which, open, comm, name, amode | MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file) != MPI_SUCCESS)
        return -1;
    MPI_Info_free(&info);
    for (int turn = 0; turn < 6; turn++) {
        MPI_Status status;
        int count, from = (me + 1) % all;
        memset(data, me * 16 + turn, BLOCK);
        F(which, write_at_all, file, (MPI_Offset)(turn * all + me) * BLOCK, data, BLOCK, MPI_BYTE, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        wrong += count != BLOCK;
        F(which, sync, file);
        MPI_Barrier(comm);
        F(which, read_at_all, file, (MPI_Offset)(turn * all + from) * BLOCK, back, BLOCK, MPI_BYTE, &status);
        for (int i = 0; i < BLOCK; i++)
            wrong += back[i] != (char)(from * 16 + turn);
    }
    F(which, close, &file);
    free(data);
    free(back);
    return wrong;
}

static void errors(int which)
{
    char name[512], buffer[4096] = {0};
    MPI_File file;
    MPI_Info info = hints();
    MPI_Errhandler errhandler;
    path(name, "missing", which, 0);
    note_result(which, F(which, open, MPI_COMM_WORLD, name, MPI_MODE_RDONLY, info, &file));
    path(name, "errors", which, 0);
    note_result(which, F(which, open, MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_WRONLY, info, &file));
    note_result(which, F(which, write_at_all, file, rank * 4096, buffer, 4096, MPI_BYTE, MPI_STATUS_IGNORE));
#ifndef OPEN_MPI
    /* Where it notices that only when it accesses the file, some processes wait for ever (4.1.4, whatever is loaded). */
    note_result(which, F(which, read_at_all, file, 0, buffer, 4096, MPI_BYTE, MPI_STATUS_IGNORE));
#endif
    note_result(which, F(which, close, &file));
    note_result(which, F(which, open, MPI_COMM_WORLD, name, MPI_MODE_RDONLY, info, &file));
    MPI_File_create_errhandler(handler, &errhandler);
    which_now = which;
    MPI_File_set_errhandler(file, errhandler);
#ifndef OPEN_MPI
    note_result(which, F(which, write_at_all, file, 0, buffer, 4096, MPI_BYTE, MPI_STATUS_IGNORE));
    note_result(which, F(which, write_all, file, buffer, 10, MPI_INT, MPI_STATUS_IGNORE));
    note_result(which, F(which, read_at_all, file, -5, buffer, 10, MPI_INT, MPI_STATUS_IGNORE));
    note_result(which, F(which, read_all, file, buffer, -1, MPI_INT, MPI_STATUS_IGNORE));
    note_result(which, F(which, read_all, file, buffer, 1, MPI_DATATYPE_NULL, MPI_STATUS_IGNORE));
    note_result(which, F(which, set_view, file, -9, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
#endif
    /* And it still works. */
    MPI_Status status;
    int count;
    note_result(which, F(which, read_at_all, file, rank * 4096, buffer, 4096, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    note(which, count);
    /* Behind its end. */
#ifndef OPEN_MPI
    note_result(which, F(which, read_at_all, file, (MPI_Offset)ranks * 4096 + 100, buffer, 4096, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    note(which, count);
#endif
    note(which, handled[which]);
    MPI_Errhandler_free(&errhandler);
    note_result(which, F(which, close, &file));
    MPI_Info_free(&info);
}

static void memory(int which)
{
    char name[512];
    int one[500], two[500], back[1000];
    path(name, "memory", which, 0);
    for (int i = 0; i < 500; i++) {
        one[i] = rank * 1000 + i;
        two[i] = rank * 1000 + 500 + i;
    }
    int lens[2] = {500, 500};
    MPI_Aint places[2];
    MPI_Datatype types[2] = {MPI_INT, MPI_INT}, absolute, view;
    MPI_Get_address(one, &places[0]);
    MPI_Get_address(two, &places[1]);
    MPI_Type_create_struct(2, lens, places, types, &absolute);
    MPI_Type_commit(&absolute);
    MPI_Type_vector(10, 100, 100 * ranks, MPI_INT, &view);
    MPI_Type_commit(&view);
    MPI_File file;
    MPI_Info info = hints();
    note_result(which, F(which, open, MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, info, &file));
    MPI_Info_free(&info);
    note_result(which, F(which, set_view, file, (MPI_Offset)rank * 400, MPI_INT, view, "native", MPI_INFO_NULL));
    /* The file keeps what it needs of it. */
    MPI_Type_free(&view);
    note_result(which, F(which, write_all, file, MPI_BOTTOM, 1, absolute, MPI_STATUS_IGNORE));
    MPI_Type_free(&absolute);
    F(which, sync, file);
    MPI_Barrier(MPI_COMM_WORLD);
    note_result(which, F(which, read_at_all, file, 0, back, 1000, MPI_INT, MPI_STATUS_IGNORE));
    int wrong = 0;
    for (int i = 0; i < 1000; i++)
        wrong += back[i] != rank * 1000 + i;
    note(which, wrong);
    note_result(which, F(which, close, &file));
    FILE *gone = fopen(name, "rb");
    note(which, gone == NULL);
    if (gone)
        fclose(gone);
}

static void communicators(int which)
{
    char name[512];
    MPI_Comm half, turned;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, ranks - rank, &half);
    path(name, "half", which, rank % 2);
    note(which, round_trip(which, half, name, 0));
    path(name, "self", which, rank);
    note(which, round_trip(which, MPI_COMM_SELF, name, 0));
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
    path(name, "turned", which, 0);
    note(which, round_trip(which, turned, name, 0));
    MPI_Comm_free(&half);
    MPI_Comm_free(&turned);
}

struct job {
    MPI_File file;
    MPI_Comm comm;
    int which, number, wrong;
};

/* Collective calls, of one thread at a time: ROMIO holds a lock while it waits for other processes, whatever is loaded. */
static void *together(void *argument)
{
    struct job *job = argument;
    char name[512];
    path(name, "thread", job->which, job->number);
    job->wrong += round_trip(job->which, job->comm, name, 0);
    return NULL;
}

/* Both threads at the same time on one file. */
static void *alone(void *argument)
{
    struct job *job = argument;
    char data[96], back[96];
    MPI_Datatype type;
    for (int turn = 0; turn < 200; turn++) {
        MPI_Offset at = (MPI_Offset)((turn * 2 + job->number) * ranks + rank) * 32;
        memset(data, turn + rank, sizeof data);
        MPI_Type_vector(8, 4, 8, MPI_BYTE, &type);
        MPI_Type_commit(&type);
        F(job->which, write_at, job->file, at, data, 1, type, MPI_STATUS_IGNORE);
        F(job->which, read_at, job->file, at, back, 32, MPI_BYTE, MPI_STATUS_IGNORE);
        job->wrong += memcmp(data, back, 32) != 0;
        MPI_Type_free(&type);
    }
    return NULL;
}

static void threads(int which)
{
    struct job jobs[2];
    pthread_t ids[2];
    char name[512];
    path(name, "shared", which, 0);
    for (int i = 0; i < 2; i++) {
        jobs[i] = (struct job){.which = which, .number = i};
        MPI_Comm_dup(MPI_COMM_WORLD, &jobs[i].comm);
        pthread_create(&ids[i], NULL, together, &jobs[i]);
        pthread_join(ids[i], NULL);
        MPI_Comm_free(&jobs[i].comm);
    }
    MPI_File file;
    note_result(which, F(which, open, MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int i = 0; i < 2; i++) {
        jobs[i].file = file;
        pthread_create(&ids[i], NULL, alone, &jobs[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(ids[i], NULL);
        note(which, jobs[i].wrong);
    }
    note_result(which, F(which, close, &file));
}

int main(int argc, char **argv)
{
    bool with_threads = argc > 2 && strcmp(argv[2], "threads") == 0;
    int level, all;
    MPI_Init_thread(&argc, &argv, with_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    directory = argv[1];
    for (int which = 0; which < 2; which++) {
        errors(which);
        memory(which);
        communicators(which);
        if (with_threads && level == MPI_THREAD_MULTIPLE)
            threads(which);
    }
    failed = note_count[0] != note_count[1];
    for (int i = 0; i < note_count[0]; i++)
        if (notes[0][i] != notes[1][i]) {
            fprintf(stderr, "DIFFERS: rank %d: note %d is %d, plain %d\n", rank, i, notes[0][i], notes[1][i]);
            failed = 1;
        }
    MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d results %s\n", note_count[0], all ? "differ" : "are the same");
    /* Left open. */
    char name[512];
    MPI_File file;
    path(name, "open", 0, 0);
    MPI_Info info = hints();
    MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file);
    MPI_Info_free(&info);
    MPI_File_write_at_all(file, rank * 100, name, 100, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return all;
}
