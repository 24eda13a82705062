/* Programs whose independent requests data-driven execution takes over, in one: what each process reads goes to a file of its own, so
 * that runs can be compared. Usage: dualpar KIND FILE OUTPUT CALLS */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TINY = 40, SEGMENT = 16 << 10, COLUMN = 8, ROWS = 64 };

static int rank, ranks, calls;
static const char *kind;
static MPI_File file;
static FILE *output;
static char *data;

static int is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void check(int result, const char *what)
{
    if (result == MPI_SUCCESS)
        return;
    fprintf(stderr, "%s failed: %d\n", what, result);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void keep(const void *bytes, size_t len)
{
    fwrite(bytes, 1, len, output);
}

static void keep_status(const MPI_Status *status)
{
    int count = -1;
    MPI_Get_count(status, MPI_BYTE, &count);
    keep(&count, sizeof count);
}

/* What a process that has not really read what it has asked for may do. Files have no zero bytes. */
static void run_wild(void)
{
    if (data[0] != 0)
        return;
    if (is("ghost-abort"))
        abort();
    if (is("ghost-exit"))
        exit(3);
    if (is("ghost-mpi-abort"))
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (is("ghost-loop"))
        for (volatile int i = 0;; i++)
            ;
    if (is("ghost-memory"))
        for (;;)
            memset(malloc(1 << 20), 1, 1 << 20);
    if (is("ghost-segv"))
        *(volatile int *)NULL = 1;
    if (is("ghost-program"))
        exit(system("touch ghost-was-here"));
    if (is("ghost-file"))
        fclose(fopen("ghost-was-here", "w"));
    if (is("ghost-write")) {
        MPI_File_write_at(file, 0, "harm", 4, MPI_BYTE, MPI_STATUS_IGNORE);
        fprintf(stderr, "harm\n");
        printf("harm\n");
        fprintf(output, "harm");
        fflush(NULL);
    }
    if (is("ghost-send")) {
        /* Past what stands between the program and its library. */
        char byte = 'x';
        PMPI_Send(&byte, 1, MPI_BYTE, (rank + 1) % ranks, 99, MPI_COMM_WORLD);
        PMPI_Barrier(MPI_COMM_WORLD);
    }
}

/* BTIO's simple mode: tiny pieces, interleaved between processes. */
static void tiny(void)
{
    for (int i = 0; i < calls; i++) {
        MPI_Status status;
        memset(data, 0, TINY);
        check(MPI_File_read_at(file, (MPI_Offset)(i * ranks + rank) * TINY, data, TINY, MPI_BYTE, &status), "read_at");
        run_wild();
        /* Also in the middle of a batch of the other processes, at times. */
        if (is("killed") && rank == ranks - 1 && i == calls / 2 && data[0] != 0)
            raise(SIGKILL);
        keep(data, TINY);
        keep_status(&status);
    }
}

/* mpi-io-test: segments in turn, and a barrier after each. */
static void segments(void)
{
    for (int i = 0; i < calls; i++) {
        check(MPI_File_read_at(file, (MPI_Offset)(i * ranks + rank) * SEGMENT, data, SEGMENT, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
        keep(data, SEGMENT);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* noncontig: a column of a matrix, noncontiguous in memory, too; by the individual file pointer, to the end of the file. */
static void column(void)
{
    MPI_Datatype column, memory;
    MPI_Type_vector(ROWS, COLUMN, COLUMN * ranks, MPI_INT, &column);
    MPI_Type_vector(ROWS, COLUMN, COLUMN + 2, MPI_INT, &memory);
    MPI_Type_commit(&column);
    MPI_Type_commit(&memory);
    MPI_File_set_view(file, (MPI_Offset)rank * COLUMN * sizeof(int), MPI_INT, column, "native", MPI_INFO_NULL);
    for (int i = 0; i < calls; i++) {
        MPI_Status status;
        MPI_Offset at;
        memset(data, 7, ROWS * (COLUMN + 2) * sizeof(int));
        check(MPI_File_read(file, data, 1, memory, &status), "read");
        keep(data, ROWS * (COLUMN + 2) * sizeof(int));
        keep_status(&status);
        MPI_File_get_position(file, &at);
        keep(&at, sizeof at);
    }
    MPI_Type_free(&column);
    MPI_Type_free(&memory);
}

/* Where the next request is, only the data of this one tells. */
static void dependent(void)
{
    MPI_Offset size, at = (MPI_Offset)rank * 4096;
    MPI_File_get_size(file, &size);
    for (int i = 0; i < calls; i++) {
        check(MPI_File_read_at(file, at, data, 4096, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
        keep(data, 4096);
        uint64_t hash = 14695981039346656037u;
        for (int j = 0; j < 16; j++)
            hash = (hash ^ (unsigned char)data[j]) * 1099511628211u;
        at = (MPI_Offset)((hash ^ hash >> 32) % (uint64_t)(size / 4096 - 1)) * 4096 + (MPI_Offset)(i % 7);
    }
}

/* One process changes what the others read, with nothing between but a barrier: more than MPI promises, but file systems do. */
static void changing(void)
{
    for (int i = 0; i < calls; i++) {
        MPI_Offset at = (MPI_Offset)(i % 50) * 1000;
        if (rank == i % ranks) {
            memset(data, 1 + i % 200, 1000);
            check(MPI_File_write_at(file, at, data, 1000, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int j = 0; j < 5; j++) {
            check(MPI_File_read_at(file, (at + 1000 * j) % 50000, data, 1000, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
            keep(data, 1000);
        }
        if (i % 20 == 0)
            usleep(60000);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Writes in the way of tiny(), some twice, some read back; then all of it by one process. */
static void writing(void)
{
    for (int i = 0; i < calls; i++) {
        MPI_Offset at = (MPI_Offset)(i * ranks + rank) * TINY;
        memset(data, 1 + (i + rank) % 250, TINY);
        if (i % 10 == 9 && at > 3 * TINY)
            at -= 3; /* over its neighbour's end: only what that one never writes at the same time */
        if (i % 10 == 9)
            check(MPI_File_write_at(file, at + 3, data, TINY - 3, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
        else
            check(MPI_File_write_at(file, at, data, TINY, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
        if (i % 101 == 100 && is("writing")) {
            check(MPI_File_write_at(file, at, "again", 5, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
            check(MPI_File_read_at(file, at - 2 * ranks * TINY, data, TINY, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
            keep(data, TINY);
        }
    }
    MPI_Offset size = 0;
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_sync(file);
    MPI_File_get_size(file, &size);
    keep(&size, sizeof size);
    if (rank == 0) {
        check(MPI_File_read_at(file, 0, data, 10000, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
        keep(data, 10000);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Once more, and left to the close. */
    memset(data, 'c', TINY);
    for (int i = 0; i < 50; i++)
        check(MPI_File_write_at(file, (MPI_Offset)(2 * i * ranks + rank) * TINY, data, TINY, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
}

int main(int argc, char **argv)
{
    char name[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5)
        MPI_Abort(MPI_COMM_WORLD, 2);
    kind = argv[1];
    calls = atoi(argv[4]);
    snprintf(name, sizeof name, "%s.%d", argv[3], rank);
    output = fopen(name, "w");
    data = calloc(1, 1 << 20);
    if (!output || !data)
        MPI_Abort(MPI_COMM_WORLD, 2);
    int amode = is("writing") || is("only-writing") || is("changing") || is("ghost-write") ? MPI_MODE_RDWR | MPI_MODE_CREATE : MPI_MODE_RDONLY;
    check(MPI_File_open(MPI_COMM_WORLD, argv[2], amode, MPI_INFO_NULL, &file), "open");
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    if (is("segments"))
        segments();
    else if (is("column"))
        column();
    else if (is("dependent"))
        dependent();
    else if (is("changing"))
        changing();
    else if (is("writing") || is("only-writing"))
        writing();
    else
        tiny();
    check(MPI_File_close(&file), "close");
    double mine = MPI_Wtime() - begin, longest;
    MPI_Reduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        fprintf(stderr, "%s: %.3f s\n", kind, longest);
    fclose(output);
    MPI_Finalize();
    return 0;
}
