/*
 * Random views x types x calls: the same calls go by MPI_* to one file and by PMPI_*, past whatever was loaded, to another one.
 * Results, statuses, file pointers, buffers and files must be the same.
 *
 *   generate DIRECTORY SEED CASES      prints `cases N mismatches M`; fails if M is not 0
 *
 * The strategy is another one for each file (SLUICE_MPI), unless the environment says one.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 16, MAX_ELEMENTS = 96, MAX_TYPES = 64, BEGIN_LARGE = 200000 };

static int rank, ranks, mismatches;
static uint64_t seed, state, own_state;
static char what[256];

static uint64_t next(uint64_t *s)
{
    *s += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *s;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The same on all processes. */
static int pick(int n) { return (int)(next(&state) % (uint64_t)n); }
/* This process's own. */
static int own(int n) { return (int)(next(&own_state) % (uint64_t)n); }

__attribute__((format(printf, 1, 2))) static void differs(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "DIFFERS: seed %llu rank %d: %s: ", (unsigned long long)seed, rank, what);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    mismatches++;
}

/* Types made for a case, freed at its end. */
static MPI_Datatype made[MAX_TYPES];
static int made_count;

static MPI_Datatype keep(MPI_Datatype type)
{
    MPI_Type_commit(&type);
    made[made_count++] = type;
    return type;
}

static MPI_Datatype element(void)
{
    MPI_Datatype type;
    switch (pick(5)) {
    case 0: return MPI_BYTE;
    case 1: return MPI_INT;
    case 2: return MPI_DOUBLE;
    case 3: MPI_Type_contiguous(3, MPI_SHORT, &type); return keep(type);
    default: MPI_Type_dup(MPI_FLOAT, &type); return keep(type);
    }
}

static int size_of(MPI_Datatype type)
{
    int size;
    MPI_Type_size(type, &size);
    return size;
}

/* `count` elements at `places`, by one of the constructors that can; the extent is `extent` elements. */
static MPI_Datatype listed(MPI_Datatype etype, int how, int count, const int *places, int extent)
{
    int lens[MAX_ELEMENTS], starts[MAX_ELEMENTS], runs = 0, size = size_of(etype);
    MPI_Aint bytes[MAX_ELEMENTS];
    MPI_Datatype type, kids[MAX_ELEMENTS], resized;
    for (int i = 0; i < count; i++) {
        if (how < 3 && runs > 0 && starts[runs - 1] + lens[runs - 1] == places[i]) {
            lens[runs - 1]++;
            continue;
        }
        starts[runs] = places[i];
        bytes[runs] = (MPI_Aint)places[i] * size;
        kids[runs] = etype;
        lens[runs++] = 1;
    }
    switch (how) {
    case 0: MPI_Type_indexed(runs, lens, starts, etype, &type); break;
    case 1: MPI_Type_create_hindexed(runs, lens, bytes, etype, &type); break;
    case 2: MPI_Type_create_struct(runs, lens, bytes, kids, &type); break;
    case 3: MPI_Type_create_indexed_block(runs, 1, starts, etype, &type); break;
    default: MPI_Type_create_hindexed_block(runs, 1, bytes, etype, &type);
    }
    keep(type);
    MPI_Type_create_resized(type, 0, (MPI_Aint)extent * size, &resized);
    return keep(resized);
}

/* A file type of this process; those of all processes do not overlap. */
static MPI_Datatype file_type(MPI_Datatype etype, bool is_dense, MPI_Offset *displacement)
{
    MPI_Datatype type, other;
    int kind = pick(is_dense ? 4 : 7), block = 1 + pick(40), size = size_of(etype);
    *displacement = is_dense ? 0 : pick(3) * 20;
    switch (kind) {
    case 0: /* blocks of all processes in turn */
    case 1: {
        int count = 1 + pick(5);
        *displacement += (MPI_Offset)rank * block * size;
        if (kind == 0) {
            MPI_Type_vector(count, block, block * ranks, etype, &other);
            keep(other);
        } else {
            MPI_Type_create_hvector(count, block, (MPI_Aint)block * ranks * size, etype, &other);
            keep(other);
        }
        MPI_Type_create_resized(other, 0, (MPI_Aint)count * block * ranks * size, &type);
        return keep(type);
    }
    case 2: { /* a block of an array */
        int dims = 1 + pick(3), sizes[3], subsizes[3], starts[3];
        for (int d = 0; d < dims; d++) {
            sizes[d] = subsizes[d] = 1 + pick(9);
            starts[d] = 0;
        }
        int cut = pick(dims);
        sizes[cut] = subsizes[cut] * ranks;
        starts[cut] = subsizes[cut] * rank;
        MPI_Type_create_subarray(dims, sizes, subsizes, starts, pick(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, etype, &type);
        return keep(type);
    }
    case 3: { /* a distributed array */
        int sizes[2] = {ranks * (1 + pick(5)) + pick(2), 1 + pick(9)}, grid[2] = {ranks, 1};
        int kinds[2] = {pick(2) ? MPI_DISTRIBUTE_CYCLIC : MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_NONE};
        int arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG};
        if (kinds[0] == MPI_DISTRIBUTE_CYCLIC) {
            arguments[0] = 1 + pick(2);
            sizes[0] = arguments[0] * ranks * (1 + pick(3));
        }
        /* Block sizes are rounded up; every process is to have something. */
        if (kinds[0] == MPI_DISTRIBUTE_BLOCK)
            sizes[0] -= sizes[0] % ranks;
        MPI_Type_create_darray(ranks, rank, 2, sizes, kinds, arguments, grid, pick(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, etype,
                               &type);
        return keep(type);
    }
    case 4: /* none */
        *displacement = 0;
        return etype;
    default: { /* elements dealt at random */
        int extent = ranks + pick(MAX_ELEMENTS - ranks), places[MAX_ELEMENTS], count = 0, how = pick(5), gaps = pick(2);
        for (int i = 0; i < extent; i++) {
            int owner = i < ranks ? i : pick(ranks + gaps);
            if (owner == rank)
                places[count++] = i;
        }
        type = listed(etype, how, count, places, extent);
        if (pick(3) == 0) {
            MPI_Type_contiguous(1 + pick(3), type, &other);
            type = keep(other);
        }
        if (pick(3) == 0) {
            MPI_Type_dup(type, &other);
            type = keep(other);
        }
        return type;
    }
    }
}

/* Memory for `count` elements, with or without gaps; `*units` of the type returned. */
static MPI_Datatype memory_type(MPI_Datatype etype, int count, int *units)
{
    MPI_Datatype type;
    int places[MAX_ELEMENTS];
    *units = count;
    switch (own(4)) {
    case 0: return etype;
    case 1:
        if (count % 3 == 0 && count > 0) {
            MPI_Type_vector(3, count / 3, count / 3 + 2, etype, &type);
            *units = 1;
            return keep(type);
        }
        return etype;
    case 2:
        if (count > 0 && count <= MAX_ELEMENTS / 2) {
            for (int i = 0, at = 0; i < count; i++, at += 1 + own(2))
                places[i] = at;
            *units = 1;
            return listed(etype, own(5), count, places, MAX_ELEMENTS);
        }
        return etype;
    default: MPI_Type_create_resized(etype, 0, (MPI_Aint)size_of(etype) + own(2) * 8, &type); return keep(type);
    }
}

static MPI_File files[2];
static char *buffers[2];

/* Calls of both; which is 1 for the plain one. */
#define BOTH(which, name, ...) ((which) ? PMPI_File_##name(__VA_ARGS__) : MPI_File_##name(__VA_ARGS__))

static int later(int result, MPI_Request *request, MPI_Status *status)
{
    return result == MPI_SUCCESS ? MPI_Wait(request, status) : result;
}

enum { CALLS = 28 };

static int one(int which, int call, MPI_Offset offset, int count, MPI_Datatype type, MPI_Status *status)
{
    MPI_File f = files[which];
    void *b = buffers[which];
    MPI_Request r;
    int result;
    switch (call) {
    case 0: case 1: return BOTH(which, write_at_all, f, offset, b, count, type, status);
    case 2: case 3: return BOTH(which, write_all, f, b, count, type, status);
    case 4: case 5: return BOTH(which, read_at_all, f, offset, b, count, type, status);
    case 6: case 7: return BOTH(which, read_all, f, b, count, type, status);
    case 8: return BOTH(which, write_at, f, offset, b, count, type, status);
    case 9: return BOTH(which, write, f, b, count, type, status);
    case 10: return BOTH(which, read_at, f, offset, b, count, type, status);
    case 11: return BOTH(which, read, f, b, count, type, status);
    case 12: return later(BOTH(which, iwrite_at, f, offset, b, count, type, &r), &r, status);
    case 13: return later(BOTH(which, iread_at, f, offset, b, count, type, &r), &r, status);
    case 14: return later(BOTH(which, iwrite, f, b, count, type, &r), &r, status);
    case 15: return later(BOTH(which, iread, f, b, count, type, &r), &r, status);
    case 16: return later(BOTH(which, iwrite_at_all, f, offset, b, count, type, &r), &r, status);
    case 17: return later(BOTH(which, iread_at_all, f, offset, b, count, type, &r), &r, status);
    case 18: return later(BOTH(which, iwrite_all, f, b, count, type, &r), &r, status);
    case 19: return later(BOTH(which, iread_all, f, b, count, type, &r), &r, status);
    case 20:
        result = BOTH(which, write_at_all_begin, f, offset, b, count, type);
        return result == MPI_SUCCESS ? BOTH(which, write_at_all_end, f, b, status) : result;
    case 21:
        result = BOTH(which, read_at_all_begin, f, offset, b, count, type);
        return result == MPI_SUCCESS ? BOTH(which, read_at_all_end, f, b, status) : result;
    case 22:
        result = BOTH(which, write_all_begin, f, b, count, type);
        return result == MPI_SUCCESS ? BOTH(which, write_all_end, f, b, status) : result;
    case 23:
        result = BOTH(which, read_all_begin, f, b, count, type);
        return result == MPI_SUCCESS ? BOTH(which, read_all_end, f, b, status) : result;
#if MPI_VERSION >= 4
    case 24: return BOTH(which, write_at_all_c, f, offset, b, count, type, status);
    case 25: return BOTH(which, read_all_c, f, b, count, type, status);
    case 26: return BOTH(which, write_c, f, b, count, type, status);
    case 27: return later(BOTH(which, iread_at_all_c, f, offset, b, count, type, &r), &r, status);
#endif
    default: return BOTH(which, read_at_all, f, offset, b, count, type, status);
    }
}

static bool reads(int call)
{
    return (call >= 4 && call <= 7) || call == 10 || call == 11 || call == 13 || call == 15 || call == 17 || call == 19 ||
           call == 21 || call == 23 || call == 25 || call >= 27;
}

static bool goes_on(int call)
{
    return call >= 12 && call < 20 && call != 12 && call != 13;
}

/* Up to here files were always whole: behind, what nobody has written may hold anything. */
static MPI_Offset whole;
/* Everything is written, one tile of the view after the other. */
static bool is_dense;
static MPI_Offset dense_at;

static void steps(MPI_Datatype etype, MPI_Datatype view, int most)
{
    bool is_viewed = view != etype;
    MPI_Count tile;
    MPI_Type_size_x(view, &tile);
    for (int step = 0; step < most; step++) {
        /* Mostly blocking collective calls; such as go on in the background seldom, as the file is left alone then. */
        int call = pick(4) ? pick(12) : pick(CALLS), size = size_of(etype);
        if (goes_on(call) && pick(3))
            call = pick(8);
        int length = 1 + pick(60), count = own(4) ? length : own(length);
#ifdef OPEN_MPI
        /* Its calls that go on in the background never end where a file ends early (4.1.4, also without anything loaded). */
        if (call >= 12 && whole < BEGIN_LARGE)
            call = pick(12);
#endif
        MPI_Offset offset = is_viewed ? own(40) : (MPI_Offset)rank * 64 + pick(3) * 64 * ranks;
        if (is_dense) {
            static const int writes[] = {0, 2, 8, 9};
            call = writes[pick(4)];
            offset = dense_at;
            count = (int)(tile / size) * (1 + pick(2));
            if (count * size > MAX_BYTES / 3)
                return;
            dense_at += count;
        }
        int units;
        MPI_Datatype type = memory_type(etype, count, &units);
        snprintf(what, sizeof what, "step %d call %d offset %lld count %d of %d bytes", step, call, (long long)offset, count, size);
        bool is_atomic = pick(12) == 0, is_seeking = pick(2) || is_dense, is_cutting = !is_dense && call < 12 && pick(12) == 0;
        MPI_Offset cut = pick(4000), seek = is_dense ? offset : is_viewed ? own(20) : (MPI_Offset)rank * 64;
        whole = is_cutting && cut < whole ? cut : whole;
        uint64_t before = own_state;
        MPI_Status statuses[2];
        MPI_Offset positions[2];
        int results[2], counts[2], elements[2];
        bool is_there = true;
        for (int which = 0; which < 2; which++) {
            own_state = before;
            for (int i = 0; i < MAX_BYTES; i++)
                buffers[which][i] = (char)next(&own_state);
            if (is_atomic)
                BOTH(which, set_atomicity, files[which], 1);
            if (is_cutting)
                BOTH(which, set_size, files[which], cut);
            if (is_seeking || !is_viewed)
                BOTH(which, seek, files[which], seek, MPI_SEEK_SET);
            /* What lies behind the end of the file, or was never written, may come as anything. */
            MPI_Offset size_now, first, end;
            PMPI_File_get_position(files[which], &first);
            PMPI_File_get_size(files[which], &size_now);
            PMPI_File_get_byte_offset(files[which], (first > offset ? first : offset) + count, &end);
            is_there = is_there && end <= size_now && end <= whole;
            MPI_Barrier(MPI_COMM_WORLD);
            results[which] = one(which, call, offset, units, type, &statuses[which]);
            MPI_Barrier(MPI_COMM_WORLD);
            if (is_atomic)
                BOTH(which, set_atomicity, files[which], 0);
            BOTH(which, get_position, files[which], &positions[which]);
            counts[which] = elements[which] = -7;
            if (results[which] == MPI_SUCCESS) {
                MPI_Get_count(&statuses[which], etype, &counts[which]);
                MPI_Get_elements(&statuses[which], MPI_BYTE, &elements[which]);
            }
        }
        if (results[0] != results[1])
            differs("returns %d, plain %d", results[0], results[1]);
        if (counts[0] != counts[1] || elements[0] != elements[1])
            differs("counts %d (%d bytes), plain %d (%d)", counts[0], elements[0], counts[1], elements[1]);
        if (positions[0] != positions[1])
            differs("then at %lld, plain %lld", (long long)positions[0], (long long)positions[1]);
        if ((is_there || !reads(call)) && memcmp(buffers[0], buffers[1], MAX_BYTES) != 0) {
            int at = 0;
            while (buffers[0][at] == buffers[1][at])
                at++;
            differs("buffers from byte %d on%s", at, reads(call) ? "" : ", which a write may not change");
        }
    }
}

static void compare(const char names[2][512])
{
    static char content[2][1 << 20];
    size_t sizes[2];
    for (int which = 0; which < 2; which++) {
        FILE *file = fopen(names[which], "rb");
        sizes[which] = file ? fread(content[which], 1, sizeof content[which], file) : 0;
        if (file)
            fclose(file);
        remove(names[which]);
    }
    if (sizes[0] != sizes[1])
        differs("the file has %zu bytes, plain %zu", sizes[0], sizes[1]);
    size_t both = sizes[0] < sizes[1] ? sizes[0] : sizes[1], at = 0;
    both = (size_t)whole < both ? (size_t)whole : both;
    while (at < both && content[0][at] == content[1][at])
        at++;
    if (at < both)
        differs("files differ from byte %zu of %zu on", at, both);
}

static void one_case(const char *directory, uint64_t number, bool is_free)
{
    static const char *strategies[] = {"agents", "early", "timed", "agents", "auto"};
    seed = state = number;
    own_state = number * 1000003 + (uint64_t)rank;
    if (is_free)
        setenv("SLUICE_MPI", strategies[pick(5)], 1);
    char names[2][512], text[32];
    MPI_Info hints;
    MPI_Info_create(&hints);
    snprintf(text, sizeof text, "%d", 1 + pick(300));
    MPI_Info_set(hints, "striping_unit", text);
    snprintf(text, sizeof text, "%d", 1 + pick(5));
    MPI_Info_set(hints, "striping_factor", text);
    is_dense = pick(4) == 0;
    dense_at = 0;
    int begin = is_dense ? 0 : pick(4) ? BEGIN_LARGE : pick(8000);
    whole = is_dense ? 1 << 20 : begin;
    for (int which = 0; which < 2; which++) {
        snprintf(names[which], sizeof names[which], "%s/%llu.%s", directory, (unsigned long long)number, which ? "plain" : "with");
        if (rank == 0) {
            FILE *file = fopen(names[which], "wb");
            for (int i = 0; file && i < begin; i++)
                fputc((i * 7 + i / 251) & 255, file);
            if (!file || fclose(file) != 0)
                MPI_Abort(MPI_COMM_WORLD, 3);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(what, sizeof what, "opening");
    for (int which = 0; which < 2; which++) {
        int result = BOTH(which, open, MPI_COMM_WORLD, names[which], MPI_MODE_RDWR, hints, &files[which]);
        if (result != MPI_SUCCESS)
            MPI_Abort(MPI_COMM_WORLD, 4);
    }
    MPI_Info_free(&hints);
    int views = is_dense ? 1 : 1 + pick(2);
    for (int view = 0; view < views; view++) {
        MPI_Datatype etype = element();
        MPI_Offset displacement;
        MPI_Datatype type = file_type(etype, is_dense, &displacement);
        snprintf(what, sizeof what, "view %d", view);
        for (int which = 0; which < 2; which++)
            if (BOTH(which, set_view, files[which], displacement, etype, type, "native", MPI_INFO_NULL) != MPI_SUCCESS)
                differs("the view cannot be set");
        steps(etype, type, 1 + pick(4));
    }
    for (int which = 0; which < 2; which++)
        BOTH(which, close, &files[which]);
    while (made_count > 0)
        MPI_Type_free(&made[--made_count]);
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(what, sizeof what, "at the end");
    if (rank == 0)
        compare((const char(*)[512])names);
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int which = 0; which < 2; which++)
        buffers[which] = malloc(MAX_BYTES);
    uint64_t first = strtoull(argv[2], NULL, 10);
    int cases = atoi(argv[3]), all;
    bool is_free = getenv("SLUICE_MPI") == NULL;
    for (int i = 0; i < cases; i++)
        one_case(argv[1], first + (uint64_t)i, is_free);
    MPI_Allreduce(&mismatches, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("cases %d mismatches %d\n", cases, all);
    MPI_Finalize();
    return all != 0;
}
