/*
 * Access patterns of the programs that Resonant I/O was measured with, written anew (Zhang 2012, sections 4.1 and 4.3):
 *
 *   mpi-io-test   in each call the processes access segments that follow each other by rank
 *   noncontig     each process has a column of a matrix: a vector view
 *   demo          four segments of each process in a call, dealt in turn
 *
 *   programs PROGRAM read|write plain|collective SEGMENT-BYTES CALL-BYTES BYTES FILE
 *
 * CALL-BYTES: of all processes together. Prints MB/s of all processes and a hash of what was read (of writes of the file, by who
 * reads it). Hints: SLUICE_BENCH_HINTS="name=value ...".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int result, const char *what)
{
    if (result == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int len;
    MPI_Error_string(result, text, &len);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_Info hints(void)
{
    MPI_Info info;
    MPI_Info_create(&info);
    char *text = getenv("SLUICE_BENCH_HINTS"), *rest = NULL;
    text = strdup(text ? text : "");
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (value) {
            *value = '\0';
            MPI_Info_set(info, word, value + 1);
        }
    }
    free(text);
    return info;
}

/* What the file holds at an offset. */
static char byte_at(int64_t offset)
{
    return (char)(offset * 31 + (offset >> 12) * 17);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 8) {
        fprintf(stderr, "usage: %s PROGRAM read|write plain|collective SEGMENT-BYTES CALL-BYTES BYTES FILE\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *program = argv[1], *name = argv[7];
    bool is_read = strcmp(argv[2], "read") == 0, is_collective = strcmp(argv[3], "collective") == 0;
    int64_t segment = atoll(argv[4]), bytes = atoll(argv[6]);
    int64_t segments = strcmp(program, "mpi-io-test") == 0 ? 1 : strcmp(program, "demo") == 0 ? 4 : atoll(argv[5]) / ranks / segment;
    segments = segments < 1 ? 1 : segments;
    int64_t part = segments * segment, calls = bytes / (part * ranks);
    char *buffer = malloc((size_t)part);
    MPI_Info info = hints();
    MPI_File file;
    int amode = is_read ? MPI_MODE_RDONLY : MPI_MODE_CREATE | MPI_MODE_RDWR;
    check(MPI_File_open(MPI_COMM_WORLD, name, amode, info, &file), name);
    if (segments > 1) {
        MPI_Datatype block, column;
        MPI_Type_vector((int)segments, (int)segment, (int)(segment * ranks), MPI_BYTE, &block);
        MPI_Type_create_resized(block, 0, part * ranks, &column);
        MPI_Type_commit(&column);
        check(MPI_File_set_view(file, rank * segment, MPI_BYTE, column, "native", info), "the view");
        MPI_Type_free(&block);
        MPI_Type_free(&column);
    }
    /* Nothing of it is to come from this machine's memory. */
    int descriptor = open(name, O_RDONLY);
    if (is_read && descriptor >= 0)
        posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    if (descriptor >= 0)
        close(descriptor);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), seconds, slowest;
    int64_t wrong = 0, all;
    for (int64_t call = 0; call < calls; call++) {
        int64_t at = segments > 1 ? call * part : (call * ranks + rank) * segment;
        for (int64_t i = 0; i < part; i++) {
            int64_t offset = call * part * ranks + i / segment * segment * ranks + rank * segment + i % segment;
            if (!is_read)
                buffer[i] = byte_at(offset);
        }
        MPI_Status status;
        int count, result;
        if (is_read)
            result = is_collective ? MPI_File_read_at_all(file, at, buffer, (int)part, MPI_BYTE, &status)
                                   : MPI_File_read_at(file, at, buffer, (int)part, MPI_BYTE, &status);
        else
            result = is_collective ? MPI_File_write_at_all(file, at, buffer, (int)part, MPI_BYTE, &status)
                                   : MPI_File_write_at(file, at, buffer, (int)part, MPI_BYTE, &status);
        check(result, name);
        MPI_Get_count(&status, MPI_BYTE, &count);
        wrong += count != part;
        for (int64_t i = 0; is_read && i < part; i++) {
            int64_t offset = call * part * ranks + i / segment * segment * ranks + rank * segment + i % segment;
            wrong += buffer[i] != byte_at(offset);
        }
    }
    if (!is_read)
        MPI_File_sync(file);
    seconds = MPI_Wtime() - begin;
    check(MPI_File_close(&file), name);
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%.2f MB/s wrong %lld\n", (double)(calls * part * ranks) / slowest / 1e6, (long long)all);
    MPI_Info_free(&info);
    free(buffer);
    MPI_Finalize();
    return 0;
}
