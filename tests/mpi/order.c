/* What a process has written by itself is there before anything else that it does with the file, by whatever call, and before it tells
 * anybody anything, by whatever call: as without data-driven execution, which collects such writes.
 *   order FILE        on two processes */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LEN = 8 };

static int rank, wrong;
static const char *path;
static MPI_File file;
static MPI_Win window;
static MPI_Comm ring;
static MPI_Request persistent;
static char byte, room[2];

static void expect(const char *what, int number, const char *is, const char *wanted)
{
    if (memcmp(is, wanted, LEN) != 0 && wrong++ < 20)
        fprintf(stderr, "WRONG: %s %d: %.*s instead of %s\n", what, number, LEN, is, wanted);
}

static void in_file(const char *what, int number, const char *wanted)
{
    char is[LEN + 1] = "nothing.";
    int descriptor = open(path, O_RDONLY);
    if (pread(descriptor, is, LEN, 0) < 0)
        is[0] = '?';
    close(descriptor);
    expect(what, number, is, wanted);
}

static void done(MPI_Request request) { MPI_Wait(&request, MPI_STATUS_IGNORE); }

/* Writes `data` where the file begins, by another call than those that are collected. On all processes, collective or not. */
static int write_by(int how, const char *data)
{
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    int count = rank == 0 ? LEN : 0;
    MPI_Offset zero = 0;
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    if (how >= 6)
        MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
    MPI_File_write_at(file, zero, rank == 0 ? "old old " : "", count, MPI_BYTE, MPI_STATUS_IGNORE);
    switch (how) {
    case 0: MPI_File_iwrite_at(file, zero, data, count, MPI_BYTE, &request); break;
    case 1: MPI_File_iwrite(file, data, count, MPI_BYTE, &request); break;
    case 2: MPI_File_iwrite_at_all(file, zero, data, count, MPI_BYTE, &request); break;
    case 3: MPI_File_iwrite_all(file, data, count, MPI_BYTE, &request); break;
    case 4: MPI_File_write_at_all_begin(file, zero, data, count, MPI_BYTE), MPI_File_write_at_all_end(file, data, &status); break;
    case 5: MPI_File_write_all_begin(file, data, count, MPI_BYTE), MPI_File_write_all_end(file, data, &status); break;
    case 6: MPI_File_iwrite_shared(file, data, count, MPI_BYTE, &request); break;
    case 7: MPI_File_write_shared(file, data, count, MPI_BYTE, &status); break;
    case 8: MPI_File_write_ordered(file, data, count, MPI_BYTE, &status); break;
    case 9: MPI_File_write_ordered_begin(file, data, count, MPI_BYTE), MPI_File_write_ordered_end(file, data, &status); break;
    case 10: MPI_File_write_at_all(file, zero, data, count, MPI_BYTE, &status); break;
    default: return 0;
    }
    done(request);
    return 1;
}

static int read_by(int how, char *data)
{
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    if (how >= 6)
        MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
    int count = rank == 0 ? LEN : 0;
    if (rank == 0)
        MPI_File_write_at(file, 0, "freshly ", LEN, MPI_BYTE, MPI_STATUS_IGNORE);
    switch (how) {
    case 0: MPI_File_iread_at(file, 0, data, count, MPI_BYTE, &request); break;
    case 1: MPI_File_iread(file, data, count, MPI_BYTE, &request); break;
    case 2: MPI_File_iread_at_all(file, 0, data, count, MPI_BYTE, &request); break;
    case 3: MPI_File_iread_all(file, data, count, MPI_BYTE, &request); break;
    case 4: MPI_File_read_at_all_begin(file, 0, data, count, MPI_BYTE), MPI_File_read_at_all_end(file, data, &status); break;
    case 5: MPI_File_read_all_begin(file, data, count, MPI_BYTE), MPI_File_read_all_end(file, data, &status); break;
    case 6: MPI_File_iread_shared(file, data, count, MPI_BYTE, &request); break;
    case 7: MPI_File_read_shared(file, data, count, MPI_BYTE, &status); break;
    case 8: MPI_File_read_ordered(file, data, count, MPI_BYTE, &status); break;
    case 9: MPI_File_read_ordered_begin(file, data, count, MPI_BYTE), MPI_File_read_ordered_end(file, data, &status); break;
    default: return 0;
    }
    done(request);
    return 1;
}

/* The first process tells the second one something. */
static int tell_by(int how)
{
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm made;
    int one = 1, sum;
    switch (how) {
    case 0: MPI_Bcast(&byte, 1, MPI_BYTE, 0, MPI_COMM_WORLD); break;
    case 1: MPI_Ibarrier(MPI_COMM_WORLD, &request); break;
    case 2: MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request); break;
    case 3: MPI_Neighbor_allgather(&byte, 1, MPI_BYTE, room, 1, MPI_BYTE, ring); break;
    case 4: MPI_Ineighbor_alltoall(room, 1, MPI_BYTE, room + 1, 1, MPI_BYTE, ring, &request); break;
    case 5: MPI_Comm_dup(MPI_COMM_WORLD, &made), MPI_Comm_free(&made); break;
    case 6: MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &made), MPI_Comm_free(&made); break;
    case 7: MPI_Win_fence(0, window); break;
    case 8: MPI_Start(&persistent), MPI_Wait(&persistent, MPI_STATUS_IGNORE); break;
    case 9: MPI_Ireduce_scatter_block(room, &byte, 1, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD, &request); break;
    case 10: MPI_Iscan(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request); break;
    case 11: MPI_Scatter(room, 1, MPI_BYTE, &byte, 1, MPI_BYTE, 0, MPI_COMM_WORLD); break;
    default: return 0;
    }
    done(request);
    return 1;
}

int main(int argc, char **argv)
{
    static const int period = 1;
    char data[LEN + 1];
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    path = argv[1];
    MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &period, 0, &ring);
    MPI_Win_create(room, sizeof room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    if (rank == 0)
        MPI_Send_init(&byte, 1, MPI_BYTE, 1, 5, MPI_COMM_WORLD, &persistent);
    else
        MPI_Recv_init(&byte, 1, MPI_BYTE, 0, 5, MPI_COMM_WORLD, &persistent);
    MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    for (int how = 0; write_by(how, "new new "); how++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            in_file("a later write by call", how, "new new ");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int how = 0; memset(data, 'x', LEN), read_by(how, data); how++) {
        if (rank == 0)
            expect("a later read by call", how, data, "freshly ");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int how = 0, more = 1; more; how++) {
        char text[LEN + 1];
        snprintf(text, sizeof text, "told %02d.", how % 100);
        if (rank == 0)
            MPI_File_write_at(file, 0, text, LEN, MPI_BYTE, MPI_STATUS_IGNORE);
        more = tell_by(how);
        if (rank == 1 && more)
            in_file("what was told by call", how, text);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_File_close(&file);
    MPI_Request_free(&persistent);
    MPI_Win_free(&window);
    MPI_Comm_free(&ring);
    MPI_Finalize();
    return wrong > 0;
}
