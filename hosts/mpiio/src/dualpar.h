/* Data-driven execution of independent reads and writes: what hosts/mpiio asks crates/dualpar (documented in its calls.rs), and what
 * the other files here ask dualpar.c. */
#ifndef SLUICE_DUALPAR_H
#define SLUICE_DUALPAR_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sluice_range;

int32_t sluice_dualpar_start(const char *path, size_t place, size_t places, const char *servers, uint64_t run, bool is_forced,
                             const char *no_ghosts);
int32_t sluice_dualpar_is_complete(void);
void sluice_dualpar_stop(void);
int32_t sluice_dualpar_open(int32_t descriptor, bool is_readable, bool is_writable, bool is_shared, bool listens);
int32_t sluice_dualpar_descriptor(int32_t descriptor);
bool sluice_dualpar_may_stay(int32_t descriptor);
void sluice_dualpar_make_room(void);
int32_t sluice_dualpar_close(int32_t file, char *room, size_t len);
int32_t sluice_dualpar_sync(int32_t file);
int32_t sluice_dualpar_is_idle(int32_t file);
void sluice_dualpar_other(int32_t file);
void sluice_dualpar_message(void);
int32_t sluice_dualpar_read(int32_t file, const struct sluice_range *ranges, size_t range_count, const struct sluice_range *memory,
                            size_t memory_count, uint64_t *bytes);
int32_t sluice_dualpar_write(int32_t file, const struct sluice_range *ranges, size_t range_count,
                             const struct sluice_range *memory, size_t memory_count, uint64_t *bytes);
void sluice_dualpar_passed(int32_t file, const struct sluice_range *ranges, size_t range_count, bool is_write);
int32_t sluice_dualpar_is_ghost(void);
void sluice_dualpar_end_ghost(void);
int32_t sluice_dualpar_complaint(char *room, size_t len);

struct file;
struct access;

/* Collective over `world`, all processes of the program. */
void dualpar_begin(MPI_Comm world);
void dualpar_end(void);
void dualpar_open(struct file *file);
/* Before it is closed. An error of MPI if what was collected could not be written; NULL is nothing to do. */
int dualpar_close(struct file *file);
/* The error of MPI that an error number is, for the handler of the file's errors, too (MPI_FILE_NULL: that of all). */
int failed(MPI_File handle, int error);
/* An independent blocking read or write. */
int dualpar_call(struct file *file, const struct access *access);
/* Before anything else that has to do with a file's data (NULL: with that of one that is not known). */
void dualpar_other(struct file *file);
/* Before calls that no ghost makes. */
void dualpar_end_ghost(void);
/* Before a message is sent, or received. */
void dualpar_message(void);

#endif
