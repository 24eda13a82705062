/* What programs may do and tools seldom think of: each went wrong once under data-driven execution or at opening.
 *   strange FILE        on two processes; the first one wants several threads */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 1024, PIECES = 2000, RECORDS = 20000, FILES = 60, DESCRIPTORS = 110, SIZES = 256, TOGETHER = 1100 };

static int wrong;

static void expect(int holds, const char *what)
{
    if (!holds && wrong++ < 10)
        fprintf(stderr, "WRONG: %s\n", what);
}

static long size_of(const char *path)
{
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    fclose(file);
    return size;
}

/* What a process has written by another kind of call it reads, also where it has read ahead. */
static void own_writes_are_read(const char *path)
{
    static char all[PIECE * PIECES];
    char read[PIECE], written[PIECE];
    MPI_File file;
    memset(all, 'a', sizeof all);
    memset(written, 'b', sizeof written);
    FILE *plain = fopen(path, "wb");
    fwrite(all, 1, sizeof all, plain);
    fclose(plain);
    /* Files that have just changed are left alone. */
    usleep(200000);
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    for (int at = 0; at + 1 < PIECES; at++) {
        MPI_File_read_at(file, (MPI_Offset)at * PIECE, read, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
        if (at % 100 != (at / 100 * 7) % 90)
            continue;
        MPI_Offset next = (MPI_Offset)(at + 1) * PIECE;
        MPI_File_read_at(file, next, read, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
        MPI_File_write_at_all(file, next, written, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
        MPI_File_read_at(file, next, read, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
        expect(memcmp(read, written, PIECE) == 0, "a process does not read what it has just written");
    }
    MPI_File_close(&file);
}

/* A tool, or Fortran, sets a view that was not seen being set. */
static void an_unseen_view_counts(const char *path)
{
    int numbers[64];
    MPI_File file;
    MPI_Datatype every_other;
    memset(numbers, 1, sizeof numbers);
    unlink(path);
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    MPI_Type_vector(64, 1, 2, MPI_INT, &every_other);
    MPI_Type_commit(&every_other);
    PMPI_File_set_view(file, 0, MPI_INT, every_other, "native", MPI_INFO_NULL);
    MPI_File_write_at(file, 0, numbers, 64, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    MPI_Type_free(&every_other);
    expect(size_of(path) == 127 * (long)sizeof(int), "a view that was set unseen is ignored");
}

/* The later one of two writes stays, though the second handle has a name that only the MPI library understands. */
static void writes_keep_their_order(const char *path)
{
    char name[4096], read[5] = "";
    MPI_File one, two;
    unlink(path);
    snprintf(name, sizeof name, "nfs:%s", path);
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &one);
    if (MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDWR, MPI_INFO_NULL, &two) == MPI_SUCCESS) {
        for (int times = 0; times < 2; times++)
            MPI_File_write_at(one, 0, "old.", 4, MPI_BYTE, MPI_STATUS_IGNORE);
        int result = MPI_File_write(two, "new.", 4, MPI_BYTE, MPI_STATUS_IGNORE);
        MPI_File_close(&two);
        MPI_File_close(&one);
        FILE *plain = fopen(path, "rb");
        expect(fread(read, 1, 4, plain) == 4 && (result != MPI_SUCCESS || strcmp(read, "new.") == 0),
               "a write that was collected overwrites a later one");
        fclose(plain);
    } else {
        MPI_File_close(&one);
    }
}

struct writer {
    MPI_File file;
    int number;
};

static void *write_records(void *argument)
{
    struct writer *writer = argument;
    for (int record = 0; record < RECORDS; record++) {
        int text[2] = {writer->number, record};
        MPI_File_write(writer->file, text, 2, MPI_INT, MPI_STATUS_IGNORE);
    }
    return NULL;
}

/* Calls of two threads come out as if one had been made after the other, also if both move the file pointer. */
static void threads_share_a_pointer(const char *path)
{
    struct writer writers[2];
    pthread_t threads[2];
    int text[2], seen[2][RECORDS] = {{0}};
    MPI_File file;
    unlink(path);
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    for (int i = 0; i < 2; i++) {
        writers[i] = (struct writer){file, i};
        pthread_create(&threads[i], NULL, write_records, &writers[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    MPI_File_close(&file);
    expect(size_of(path) == 2 * RECORDS * (long)sizeof text, "threads have written over each other");
    FILE *plain = fopen(path, "rb");
    while (fread(text, sizeof text, 1, plain) == 1)
        expect((text[0] | 1) == 1 && text[1] >= 0 && text[1] < RECORDS && seen[text[0]][text[1]]++ == 0, "a record is there twice");
    fclose(plain);
}

static unsigned char *blocks[SIZES];

/* Whatever has been the file's memory may be the program's now. */
static void close_at_once(MPI_File *file, int *error, ...)
{
    (void)error;
    MPI_File copy = *file;
    MPI_File_close(&copy);
    for (int i = 0; i < SIZES; i++) {
        blocks[i] = malloc((size_t)(i + 1) * 16);
        memset(blocks[i], 0, (size_t)(i + 1) * 16);
    }
}

static void a_handler_may_close_the_file(const char *path)
{
    MPI_File file;
    MPI_Errhandler handler;
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
    MPI_File_create_errhandler(close_at_once, &handler);
    MPI_File_set_errhandler(file, handler);
    int result = MPI_File_write_at(file, 0, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE);
    expect(result != MPI_SUCCESS && blocks[0], "a file that is read only was written");
    for (int i = 0; i < SIZES && blocks[0]; i++) {
        for (int j = 0; j < (i + 1) * 16; j++)
            expect(blocks[i][j] == 0, "memory of the program is changed");
        free(blocks[i]);
    }
    MPI_Errhandler_free(&handler);
}

/* A program that has as many descriptors as it needs by itself. */
static void descriptors_are_the_programs(const char *path)
{
    MPI_File files[FILES];
    struct rlimit before, few;
    char byte;
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = DESCRIPTORS;
    setrlimit(RLIMIT_NOFILE, &few);
    for (int i = 0; i < FILES; i++) {
        int result = MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &files[i]);
        expect(result == MPI_SUCCESS, "there are too few descriptors");
        if (result != MPI_SUCCESS)
            files[i] = MPI_FILE_NULL;
        else
            MPI_File_read_at(files[i], i, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    setrlimit(RLIMIT_NOFILE, &before);
    for (int i = 0; i < FILES; i++)
        if (files[i] != MPI_FILE_NULL)
            MPI_File_close(&files[i]);
}

/* Locks that the program has on a file stay when it is opened once more. */
static void locks_stay(const char *path)
{
    MPI_File file;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int descriptor = open(path, O_RDWR), status = 0;
    fcntl(descriptor, F_SETLK, &lock);
    MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    pid_t other = fork();
    if (other == 0)
        _exit(fcntl(descriptor, F_SETLK, &lock) == 0);
    waitpid(other, &status, 0);
    expect(status == 0, "a lock is gone");
    MPI_File_close(&file);
    close(descriptor);
}

/* As many as there are communicators for, if nobody else wants any: MPICH has 2048. */
static void many_files_are_open(const char *path)
{
    static MPI_File files[TOGETHER];
    struct rlimit before, wide;
    int is_wide, all, opened = 0;
    getrlimit(RLIMIT_NOFILE, &before);
    wide = before;
    wide.rlim_cur = before.rlim_max;
    is_wide = before.rlim_max > 2 * TOGETHER && setrlimit(RLIMIT_NOFILE, &wide) == 0;
    MPI_Allreduce(&is_wide, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    while (all && opened < TOGETHER &&
           MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR, MPI_INFO_NULL, &files[opened]) == MPI_SUCCESS)
        opened++;
    expect(!all || opened == TOGETHER, "there are too few communicators");
    while (opened > 0)
        MPI_File_close(&files[--opened]);
    setrlimit(RLIMIT_NOFILE, &before);
}

int main(int argc, char **argv)
{
    const char *place = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");
    int rank, level;
    MPI_File file;
    if (place && atoi(place) == 0)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    else
        MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    /* Opened by processes that may and may not use threads: all of them go on. */
    MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    MPI_File_close(&file);
    if (rank == 0) {
        own_writes_are_read(argv[1]);
        an_unseen_view_counts(argv[1]);
        writes_keep_their_order(argv[1]);
        threads_share_a_pointer(argv[1]);
        descriptors_are_the_programs(argv[1]);
        locks_stay(argv[1]);
    }
    many_files_are_open(argv[1]);
    /* With several threads MPICH waits for itself. */
    if (rank == 1)
        a_handler_may_close_the_file(argv[1]);
    MPI_Finalize();
    return wrong > 0;
}
