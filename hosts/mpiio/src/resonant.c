/* Collective calls in the order of the data servers: what crates/mpiio plans is done here. */
#define _GNU_SOURCE
#include "shim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>

enum { TRIALS = 3, TRIAL_BYTES = 32 << 10, TURN = 1 };

static int64_t hint(MPI_Info hints, const char *name)
{
    char value[32];
    int is_given = 0;
    if (hints == MPI_INFO_NULL || PMPI_Info_get(hints, name, sizeof value - 1, value, &is_given) != MPI_SUCCESS || !is_given)
        return 0;
    char *end;
    long long number = strtoll(value, &end, 10);
    return *end == '\0' && number > 0 ? number : 0;
}

/* Stripe, first server, servers: from the file system, else from the program's hints. */
static void find_layout(const struct file *file, int64_t numbers[3])
{
    static const struct {
        enum sluice_source source;
        const char *attribute;
    } sources[] = {
        {SLUICE_OWN, "user.sluice.layout"},
        {SLUICE_LUSTRE, "lustre.lov"},
        {SLUICE_GLUSTER, "glusterfs.pathinfo"},
        {SLUICE_GLUSTER, "trusted.glusterfs.pathinfo"},
    };
    uint8_t value[1 << 14];
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        ssize_t len = fgetxattr(file->descriptor, sources[i].attribute, value, sizeof value);
        if (len > 0 && sluice_layout_of(sources[i].source, value, (size_t)len, numbers))
            return;
    }
    numbers[0] = hint(file->hints, "striping_unit");
    numbers[1] = 0;
    numbers[2] = hint(file->hints, "striping_factor");
}

/* Seconds of a message and of a byte sent, of the slowest process. */
static bool measure(const struct file *file, double costs[2])
{
    size_t bytes = (size_t)file->ranks * TRIAL_BYTES;
    char *from = calloc(2, bytes), *to = from + bytes;
    int all = 0, mine = from != NULL;
    if (PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, file->comm) != MPI_SUCCESS || !all) {
        free(from);
        return false;
    }
    double best[2] = {1, 1};
    bool is_done = true;
    for (int trial = 0; trial < TRIALS && is_done; trial++) {
        int64_t begin = now();
        is_done = PMPI_Alltoall(from, 8, MPI_BYTE, to, 8, MPI_BYTE, file->comm) == MPI_SUCCESS;
        int64_t between = now();
        is_done = is_done && PMPI_Alltoall(from, TRIAL_BYTES, MPI_BYTE, to, TRIAL_BYTES, MPI_BYTE, file->comm) == MPI_SUCCESS;
        double message = (double)(between - begin) * 1e-9 / file->ranks, byte = (double)(now() - between) * 1e-9 / (double)bytes;
        best[0] = message < best[0] ? message : best[0];
        best[1] = byte < best[1] ? byte : best[1];
    }
    free(from);
    return is_done && PMPI_Allreduce(best, costs, 2, MPI_DOUBLE, MPI_MAX, file->comm) == MPI_SUCCESS;
}

bool resonant_begin(struct file *file, MPI_Comm comm)
{
    enum { SAID = 7 };
    const char *forced = getenv("SLUICE_MPI");
    int64_t word = 0, layout[3] = {0, 0, 0}, least[SAID];
    int rank = 0;
    forced = forced ? forced : "";
    memcpy(&word, forced, strnlen(forced, sizeof word));
    PMPI_Comm_rank(comm, &rank);
    if (rank == 0 && file && file->descriptor >= 0)
        find_layout(file, layout);
    /* All that has to be agreed on in one message: who has it open here, too, also of what the environment says, which may
     * differ; and the first process's layout. */
    int64_t said[SAID] = {file != NULL, file && file->descriptor >= 0, word, -word, INT64_MAX, INT64_MAX, INT64_MAX};
    if (rank == 0)
        memcpy(said + 4, layout, sizeof layout);
    if (PMPI_Allreduce(said, least, SAID, MPI_INT64_T, MPI_MIN, comm) != MPI_SUCCESS || !least[0])
        return false;
    file->comm = comm;
    file->rank = rank;
    PMPI_Comm_size(comm, &file->ranks);
    if (!least[1] || least[2] != -least[3] || least[4] <= 0 || least[6] <= 0)
        return true;
    struct sluice_decisions **kept = file->owns_comm ? NULL : kept_decisions(comm);
    if (kept && *kept) {
        file->decisions = sluice_decisions_next(*kept, least + 4, (const uint8_t *)forced, strlen(forced));
        *kept = NULL;
    }
    if (!file->decisions)
        file->decisions = sluice_decisions_new(least + 4, rank, (const uint8_t *)forced, strlen(forced));
    return true;
}

/* What this process has to do in a call. */
struct part {
    struct sluice_ranges *ranges, *memory;
    struct sluice_summary summary;
};

static struct part part_of(const struct file *file, const struct access *access)
{
    struct part part = {.summary = {.elapsed = file->elapsed, .looked = file->looked, .skipped = file->skipped}};
    struct stat stat;
    int is_atomic = 1;
    int refused = access->is_write ? MPI_MODE_RDONLY : MPI_MODE_WRONLY;
    if (atomic_load(&file->is_busy) || file->amode & refused || PMPI_File_get_atomicity(access->file, &is_atomic) != MPI_SUCCESS ||
        is_atomic || fstat(file->descriptor, &stat) != 0)
        return part;
    int64_t bytes = access_bytes(access), from = access_from(file, access);
    part.ranges = access_ranges(file, access, from, bytes);
    part.memory = part.ranges ? access_memory(access, bytes) : NULL;
    if (!part.memory)
        return part;
    size_t count;
    const struct sluice_range *list = sluice_ranges_list(part.ranges, &count);
    int64_t end = count > 0 ? list[count - 1].offset + list[count - 1].len : 0;
    part.summary.can = 1;
    part.summary.ranges = (int64_t)count;
    part.summary.bytes = bytes;
    part.summary.end = end;
    part.summary.size = stat.st_size;
    memcpy(part.summary.first, list, (count < SLUICE_INLINE ? count : SLUICE_INLINE) * sizeof *list);
    return part;
}

/* The plan of a call, NULL for the library's own; takes the memory of `part`. From `told` on it was this process's own doing. */
static struct sluice_plan *plan_of(struct file *file, bool is_write, struct part *part, int64_t *told)
{
    size_t ranks = (size_t)file->ranks;
    struct sluice_summary *all = malloc(ranks * sizeof *all);
    struct sluice_range *ranges = NULL;
    struct sluice_plan *plan = NULL;
    int64_t *counts = malloc(ranks * sizeof *counts);
    int *sizes = malloc(2 * ranks * sizeof *sizes);
    /* Without memory for these there is none for the MPI library either. */
    if (!all || !counts || !sizes)
        abort();
    if (PMPI_Allgather(&part->summary, sizeof *all, MPI_BYTE, all, sizeof *all, MPI_BYTE, file->comm) != MPI_SUCCESS)
        goto end;
    *told = now();
    if (!sluice_call(file->decisions, is_write, all, ranks))
        goto end;
    size_t total = 0, count;
    int64_t most = 0;
    file->call_bytes = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        sizes[rank] = (int)((size_t)all[rank].ranges * sizeof *ranges);
        sizes[ranks + rank] = (int)(total * sizeof *ranges);
        counts[rank] = all[rank].ranges;
        most = counts[rank] > most ? counts[rank] : most;
        file->call_bytes += all[rank].bytes;
        total += (size_t)all[rank].ranges;
    }
    const struct sluice_range *list = sluice_ranges_list(part->ranges, &count);
    ranges = malloc(total * sizeof *ranges);
    if (!ranges)
        abort();
    if (most <= SLUICE_INLINE) {
        for (size_t rank = 0, at = 0; rank < ranks; at += (size_t)counts[rank++])
            memcpy(ranges + at, all[rank].first, (size_t)counts[rank] * sizeof *ranges);
    } else if (PMPI_Allgatherv(list, sizes[file->rank], MPI_BYTE, ranges, sizes, sizes + ranks, MPI_BYTE, file->comm) !=
               MPI_SUCCESS) {
        goto end;
    }
    double costs[2];
    if (sluice_wants_costs(file->decisions) && measure(file, costs)) {
        sluice_costs(file->decisions, costs[0], costs[1]);
        *told = now();
    }
    plan = sluice_plan_new(file->decisions, ranges, counts, ranks, part->memory);
    part->memory = NULL;
end:
    free(all);
    free(ranges);
    free(counts);
    free(sizes);
    return plan;
}

/* Room for what any process may have to hold in a round of this call, which all know: they only ask each other where it grows. */
static bool has_room(struct file *file)
{
    size_t wanted = (size_t)file->call_bytes, most = (size_t)file->ranks * SLUICE_ROUND_BYTES;
    wanted = wanted < most ? wanted : most;
    if (wanted <= file->room)
        return true;
    size_t room = file->room ? file->room : 1 << 20;
    while (room < wanted)
        room *= 2;
    free(file->buffers);
    file->buffers = malloc(2 * room);
    int all = 0, mine = file->buffers != NULL;
    bool agreed = PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, file->comm) == MPI_SUCCESS && all;
    file->room = agreed ? room : 0;
    return agreed;
}

/* Agents access, data is exchanged. Whether this process's part succeeded; all of them do all messages. */
static bool exchange(struct file *file, const struct sluice_plan *plan, bool is_write)
{
    size_t rounds = sluice_plan_rounds(plan);
    bool is_done = has_room(file), is_whole = is_done;
    uint8_t *own = file->buffers, *agent = file->buffers + file->room;
    struct sluice_exchange e;
    for (size_t round = 0; round < rounds && is_whole; round++) {
        sluice_plan_round(plan, round, &e);
        if (is_write) {
            sluice_plan_copy(plan, round, own);
            is_done &= PMPI_Alltoallv(own, e.own_counts, e.own_places, MPI_BYTE, agent, e.agent_counts, e.agent_places, MPI_BYTE,
                                      file->comm) == MPI_SUCCESS;
            is_done = is_done && sluice_plan_access(plan, round, file->descriptor, agent) == 0;
        } else {
            is_done = is_done && sluice_plan_access(plan, round, file->descriptor, agent) == 0;
            is_done &= PMPI_Alltoallv(agent, e.agent_counts, e.agent_places, MPI_BYTE, own, e.own_counts, e.own_places, MPI_BYTE,
                                      file->comm) == MPI_SUCCESS;
            sluice_plan_copy(plan, round, own);
        }
    }
    return is_done;
}

/* Every process accesses its own data when it is its turn. */
static bool in_turn(struct file *file, const struct sluice_plan *plan, bool is_write)
{
    int before, after;
    bool is_done = true;
    sluice_plan_turn(plan, &before, &after);
    if (before >= 0)
        is_done = PMPI_Recv(NULL, 0, MPI_BYTE, before, TURN, file->comm, MPI_STATUS_IGNORE) == MPI_SUCCESS;
    if (is_write)
        is_done &= sluice_plan_own(plan, file->descriptor) == 0;
    else
        sluice_plan_ask(plan, file->descriptor);
    if (after >= 0) {
        if (!is_write)
            nanosleep(&(struct timespec){.tv_nsec = SLUICE_TURN_NANOSECONDS}, NULL);
        is_done &= PMPI_Send(NULL, 0, MPI_BYTE, after, TURN, file->comm) == MPI_SUCCESS;
    }
    if (!is_write)
        is_done &= sluice_plan_own(plan, file->descriptor) == 0;
    return is_done;
}

int resonant_call(struct file *file, const struct access *access)
{
    int64_t began = now(), asked, told;
    int result = MPI_SUCCESS, all = 0;
    if (sluice_skips(file->decisions)) {
        result = access->pass(access);
        file->skipped += now() - began;
        return result;
    }
    struct part part = part_of(file, access);
    int64_t bytes = part.summary.bytes;
    told = asked = now();
    struct sluice_plan *plan = plan_of(file, access->is_write, &part, &told);
    int64_t planned = now();
    file->looked = asked - began + planned - told;
    file->skipped = 0;
    if (plan) {
        bool is_done = true;
        switch (sluice_plan_strategy(plan)) {
        case SLUICE_AGENTS: is_done = exchange(file, plan, access->is_write); break;
        case SLUICE_TIMED: is_done = in_turn(file, plan, access->is_write); break;
        default:
            sluice_plan_ask(plan, file->descriptor);
            is_done = PMPI_Barrier(file->comm) == MPI_SUCCESS;
            is_done &= sluice_plan_own(plan, file->descriptor) == 0;
        }
        /* What failed anywhere is done again by the library, whose errors the program knows. */
        int mine = is_done;
        if (PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, file->comm) != MPI_SUCCESS)
            all = 0;
    }
    result = all ? access_served(file, access, bytes) : access->pass(access);
    file->elapsed = now() - planned;
    sluice_plan_free(plan);
    sluice_ranges_free(part.ranges);
    sluice_ranges_free(part.memory);
    return result;
}
