/* Blocking reads and writes. */
#include "dualpar.h"
#include "shim.h"

#include <time.h>

int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int data_call(const struct access *access)
{
    struct file *file = file_hold(access->file);
    bool is_own = file && !access->is_collective && access->pointer != SHARED;
    struct file *pointing = is_own && access->pointer == INDIVIDUAL ? pointer_hold(access->file) : NULL;
    if (!is_own)
        dualpar_other(file);
    if (!file)
        return access->pass(access);
    int64_t begin = now();
    int result;
    if (is_own)
        result = dualpar_call(file, access);
    else if (access->pointer != SHARED && file->decisions)
        result = resonant_call(file, access);
    else
        result = access->pass(access);
    int sort = access->pointer == SHARED ? 2 : access->is_collective;
    file_count(file, access->is_write, sort, result == MPI_SUCCESS ? access_bytes(access) : 0, now() - begin);
    pointer_let_go(pointing);
    file_let_go(file);
    return result;
}

int64_t access_bytes(const struct access *access)
{
    MPI_Count size;
    int64_t bytes;
    if (access->count < 0 || access->type == MPI_DATATYPE_NULL || PMPI_Type_size_x(access->type, &size) != MPI_SUCCESS ||
        size < 0 || __builtin_mul_overflow((int64_t)access->count, (int64_t)size, &bytes))
        return -1;
    return bytes;
}

int64_t access_from(const struct file *file, const struct access *access)
{
    MPI_Offset offset = access->offset;
    int64_t from;
    if (access->pointer == SHARED || file->type == NULL)
        return -1;
    if (access->pointer == INDIVIDUAL && PMPI_File_get_position(access->file, &offset) != MPI_SUCCESS)
        return -1;
    return offset < 0 || __builtin_mul_overflow((int64_t)offset, file->etype_size, &from) ? -1 : from;
}

struct sluice_ranges *access_ranges(const struct file *file, const struct access *access, int64_t from, int64_t bytes)
{
    if (file->type == NULL || from < 0 || bytes < 0 || bytes % file->etype_size != 0)
        return NULL;
    struct sluice_ranges *ranges = sluice_ranges_of(file->type, file->displacement, from, bytes);
    size_t count = 0;
    const struct sluice_range *list = ranges ? sluice_ranges_list(ranges, &count) : NULL;
    MPI_Offset told = 0, told_last = 0;
    /* A view that was set unseen (Fortran's calls need not come by here) is another one. */
    if (count > 0 && (PMPI_File_get_byte_offset(access->file, from / file->etype_size, &told) != MPI_SUCCESS ||
                      PMPI_File_get_byte_offset(access->file, (from + bytes) / file->etype_size - 1, &told_last) != MPI_SUCCESS ||
                      told != list[0].offset ||
                      told_last != list[count - 1].offset + list[count - 1].len - file->etype_size)) {
        sluice_ranges_free(ranges);
        return NULL;
    }
    return ranges;
}

struct sluice_ranges *access_memory(const struct access *access, int64_t bytes)
{
    struct sluice_flat *flat = flatten(access->type);
    struct sluice_ranges *ranges = sluice_ranges_of(flat, (int64_t)(intptr_t)access->buffer, 0, bytes);
    sluice_flat_free(flat);
    return ranges;
}

int access_served(const struct file *file, const struct access *access, int64_t bytes)
{
    if (access->pointer == INDIVIDUAL)
        PMPI_File_seek(access->file, bytes / file->etype_size, MPI_SEEK_CUR);
    if (access->status != MPI_STATUS_IGNORE) {
        PMPI_Status_set_elements_x(access->status, MPI_BYTE, bytes);
        PMPI_Status_set_cancelled(access->status, 0);
    }
    return MPI_SUCCESS;
}
