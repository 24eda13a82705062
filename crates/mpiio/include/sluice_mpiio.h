/* What hosts/mpiio asks crates/mpiio; documented in crates/mpiio/src/calls.rs. Licence: MIT OR Apache-2.0. */
#ifndef SLUICE_MPIIO_H
#define SLUICE_MPIIO_H

#include <stddef.h>
#include <stdint.h>

struct sluice_flat;
struct sluice_ranges;

struct sluice_range {
    int64_t offset, len;
};

struct sluice_told {
    int64_t size, lower, extent, true_lower, true_extent;
};

/* In the order of flat::Combiner. */
enum sluice_combiner {
    SLUICE_DUP,
    SLUICE_CONTIGUOUS,
    SLUICE_VECTOR,
    SLUICE_HVECTOR,
    SLUICE_INDEXED,
    SLUICE_HINDEXED,
    SLUICE_INDEXED_BLOCK,
    SLUICE_HINDEXED_BLOCK,
    SLUICE_STRUCT,
    SLUICE_SUBARRAY,
    SLUICE_DARRAY,
    SLUICE_RESIZED,
};

struct sluice_flat *sluice_flat_basic(int64_t size);
struct sluice_flat *sluice_flat_compose(enum sluice_combiner combiner, const int64_t *numbers, size_t number_count,
                                        const struct sluice_flat *const *kids, size_t kid_count,
                                        const struct sluice_told *told);
struct sluice_flat *sluice_flat_copy(const struct sluice_flat *flat);
void sluice_flat_free(struct sluice_flat *flat);
int32_t sluice_flat_is_ascending(const struct sluice_flat *flat);
int64_t sluice_flat_size(const struct sluice_flat *flat);

struct sluice_ranges *sluice_ranges_of(const struct sluice_flat *flat, int64_t base, int64_t from, int64_t len);
const struct sluice_range *sluice_ranges_list(const struct sluice_ranges *ranges, size_t *count);
void sluice_ranges_free(struct sluice_ranges *ranges);

#endif
