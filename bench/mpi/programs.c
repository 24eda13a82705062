/*
 * Access patterns of the programs that Resonant I/O was measured with, written anew (Zhang 2012, sections 4.1 and 4.3):
 *
 *   mpi-io-test   in each call the processes access segments that follow each other by rank
 *   noncontig     each process has a column of a matrix: a vector view
 *   demo          four segments of each process in a call, dealt in turn
 *
 *   programs PROGRAM read|write plain|collective SEGMENT-BYTES CALL-BYTES BYTES FILE
 *   programs random SEED FIRST FILE
 *
 * The second one is a random program, and the same calls by PMPI_*, past whatever was loaded: FIRST is 0 if these come first, else 1.
 * Prints what it is, and the seconds by MPI_* and by PMPI_*, from opening to closing, of the slowest process.
 *
 * CALL-BYTES: of all processes together. Prints MB/s of all processes, and how many counts and segments that were read were wrong.
 * Hints: SLUICE_BENCH_HINTS="name=value ...".
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

/* What the file holds repeats; from a table, since making and checking it is not to take the program's time. */
enum { PERIOD = 1 << 20 };
static char contents[2 * PERIOD];

static void make_contents(void)
{
    for (int64_t offset = 0; offset < 2 * PERIOD; offset++)
        contents[offset] = (char)(offset * 31 + (offset >> 12) * 17);
}

/* Puts what the file is to hold at an offset, or says whether a buffer has it. */
static bool piece(char *buffer, int64_t offset, int64_t len, bool is_read)
{
    bool is_right = true;
    for (int64_t done = 0; done < len;) {
        int64_t n = len - done < PERIOD ? len - done : PERIOD;
        char *there = contents + (offset + done) % PERIOD;
        if (is_read)
            is_right &= memcmp(buffer + done, there, (size_t)n) == 0;
        else
            memcpy(buffer + done, there, (size_t)n);
        done += n;
    }
    return is_right;
}

static int rank, ranks;
static uint64_t state;

static int64_t pick(int64_t n)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

/* Of a random program: where its processes' data is. DEPENDENT: where the data says, which nobody can foresee. */
enum pattern { IN_TURN, COLUMNS, SPARSE, DEPENDENT, PATTERNS };

struct program {
    enum pattern pattern;
    bool is_read, is_collective;
    int64_t segment, segments, calls, files;
    uint64_t places; /* seed of those of SPARSE */
};

#define F(past, name, ...) ((past) ? PMPI_File_##name(__VA_ARGS__) : MPI_File_##name(__VA_ARGS__))

/* Segments of all processes in turn, some left out: a type that repeats every call. */
static MPI_Datatype view_of(const struct program *p, int64_t *period)
{
    MPI_Datatype blocks, type;
    int *places = malloc((size_t)p->segments * sizeof *places);
    uint64_t before = state;
    int64_t slot = 0;
    state = p->places;
    for (int64_t i = 0; i < p->segments; i++) {
        slot += p->pattern == SPARSE ? pick(3) : 0;
        places[i] = (int)((slot++ * ranks + rank) * p->segment);
    }
    state = before;
    *period = slot * ranks * p->segment;
    MPI_Type_create_indexed_block((int)p->segments, (int)p->segment, places, MPI_BYTE, &blocks);
    MPI_Type_create_resized(blocks, 0, *period, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&blocks);
    free(places);
    return type;
}

/* Seconds of the slowest process. */
static double carry_out(const struct program *p, bool is_read, bool past, const char *name, char *buffer)
{
    int64_t part = p->segment * p->segments, period;
    double seconds = 0, slowest;
    MPI_Datatype type = view_of(p, &period);
    for (int64_t round = 0; round < p->files; round++) {
        MPI_File file;
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        check(F(past, open, MPI_COMM_WORLD, name, is_read ? MPI_MODE_RDONLY : MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file),
              name);
        if (p->pattern == COLUMNS || p->pattern == SPARSE)
            check(F(past, set_view, file, 0, MPI_BYTE, type, "native", MPI_INFO_NULL), "the view");
        for (int64_t call = 0; call < p->calls; call++) {
            int64_t at = call * part;
            if (p->pattern == IN_TURN)
                at = (call * ranks + rank) * part;
            else if (p->pattern == DEPENDENT && is_read)
                at = (((unsigned char)buffer[0] * 131 + call * 7919 + rank) % (p->calls * ranks)) * part;
            else if (p->pattern == DEPENDENT)
                at = (call * ranks + rank) * part;
            int result;
            if (is_read)
                result = p->is_collective ? F(past, read_at_all, file, at, buffer, (int)part, MPI_BYTE, MPI_STATUS_IGNORE)
                                          : F(past, read_at, file, at, buffer, (int)part, MPI_BYTE, MPI_STATUS_IGNORE);
            else
                result = p->is_collective ? F(past, write_at_all, file, at, buffer, (int)part, MPI_BYTE, MPI_STATUS_IGNORE)
                                          : F(past, write_at, file, at, buffer, (int)part, MPI_BYTE, MPI_STATUS_IGNORE);
            check(result, name);
        }
        check(F(past, close, &file), name);
        seconds += MPI_Wtime() - begin;
    }
    MPI_Type_free(&type);
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int random_program(char **argv)
{
    static const char *const names[PATTERNS] = {"in turn", "columns", "sparse columns", "dependent"};
    state = strtoull(argv[2], NULL, 10);
    bool is_other_first = strcmp(argv[3], "0") != 0;
    const char *name = argv[4];
    struct program p = {.is_read = pick(2), .is_collective = pick(10) < 7, .segment = (int64_t)512 << pick(9)};
    p.pattern = (enum pattern)pick(p.is_collective || !p.is_read ? DEPENDENT : PATTERNS);
    int64_t call = (int64_t)16384 << pick(9), bytes = (int64_t)2 << 20 << pick(4);
    p.segments = p.pattern == IN_TURN || p.pattern == DEPENDENT ? 1 : call / ranks / p.segment;
    p.segments = p.segments < 1 ? 1 : p.segments;
    p.calls = bytes / (p.segment * p.segments * ranks);
    /* Little data takes long in tiny pieces. */
    int64_t most = p.pattern == DEPENDENT ? 400 : 300 / p.segments + 20;
    p.calls = p.calls < 1 ? 1 : p.calls > most ? most : p.calls;
    p.files = 1 + pick(3) / 2;
    p.places = (uint64_t)pick(INT64_MAX);
    size_t part = (size_t)(p.segment * p.segments);
    char *buffer = malloc(part);
    for (size_t i = 0; i < part; i++)
        buffer[i] = (char)pick(256);
    carry_out(&p, false, true, name, buffer);
    double seconds[2];
    for (int turn = 0; turn < 2; turn++) {
        bool past = (turn == 0) != is_other_first;
        seconds[past] = carry_out(&p, p.is_read, past, name, buffer);
    }
    if (rank == 0)
        printf("%s%s, %s, %lld x %lld x %lld B%s: %.6f s with %.6f s without\n", p.is_collective ? "collective " : "",
               p.is_read ? "read" : "write", names[p.pattern], (long long)p.calls, (long long)p.segments, (long long)p.segment,
               p.files > 1 ? ", two files" : "", seconds[0], seconds[1]);
    free(buffer);
    MPI_Finalize();
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc == 5 && strcmp(argv[1], "random") == 0)
        return random_program(argv);
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
    make_contents();
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
        int64_t first = call * part * ranks + rank * segment;
        for (int64_t i = 0; !is_read && i < segments; i++)
            piece(buffer + i * segment, first + i * segment * ranks, segment, false);
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
        for (int64_t i = 0; is_read && i < segments; i++)
            wrong += !piece(buffer + i * segment, first + i * segment * ranks, segment, true);
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
