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

/* Collective calls: crates/mpiio/src/calls/collective.rs. */
struct sluice_decisions;
struct sluice_plan;

enum { SLUICE_INLINE = 4 };

struct sluice_summary {
    int64_t can, ranges, bytes, end, size, elapsed, looked, skipped;
    struct sluice_range first[SLUICE_INLINE];
};

struct sluice_exchange {
    const int32_t *own_counts, *own_places, *agent_counts, *agent_places;
    int64_t own_bytes, agent_bytes;
};

/* In the order of report::SORTS: reads, then writes, each alone, collective, shared, later. */
struct sluice_sort {
    int64_t calls, bytes, nanoseconds;
};
enum { SLUICE_SORTS = 8 };

enum sluice_source { SLUICE_OWN, SLUICE_LUSTRE, SLUICE_GLUSTER };
/* What all agents together hold at a time, of each: plan::ROUND_BYTES. */
#define SLUICE_ROUND_BYTES ((size_t)16 << 20)

/* Between the requests of processes that take turns: choose::DELAY. */
#define SLUICE_TURN_NANOSECONDS 200000

enum sluice_strategy { SLUICE_LIBRARY, SLUICE_AGENTS, SLUICE_EARLY, SLUICE_TIMED };

int32_t sluice_layout_of(enum sluice_source source, const uint8_t *value, size_t len, int64_t *numbers);
struct sluice_decisions *sluice_decisions_new(const int64_t *numbers, int32_t me, const uint8_t *forced, size_t forced_len);
struct sluice_decisions *sluice_decisions_next(struct sluice_decisions *decisions, const int64_t *numbers,
                                               const uint8_t *forced, size_t forced_len);
void sluice_decisions_free(struct sluice_decisions *decisions);
int32_t sluice_report(const char *path, const char *name, int32_t ranks, const struct sluice_decisions *decisions,
                      const struct sluice_sort *sorts, const char *data_driven);
void sluice_last(struct sluice_decisions *decisions, int64_t nanoseconds);
int32_t sluice_skips(struct sluice_decisions *decisions);
int32_t sluice_wants_costs(const struct sluice_decisions *decisions);
void sluice_costs(struct sluice_decisions *decisions, double message, double byte);
int32_t sluice_call(struct sluice_decisions *decisions, int32_t write, const struct sluice_summary *all, size_t ranks);
struct sluice_plan *sluice_plan_new(struct sluice_decisions *decisions, const struct sluice_range *ranges,
                                    const int64_t *counts, size_t ranks, struct sluice_ranges *memory);
void sluice_plan_free(struct sluice_plan *plan);
int32_t sluice_plan_strategy(const struct sluice_plan *plan);
void sluice_plan_turn(const struct sluice_plan *plan, int32_t *predecessor, int32_t *successor);
size_t sluice_plan_rounds(const struct sluice_plan *plan);
void sluice_plan_round(const struct sluice_plan *plan, size_t round, struct sluice_exchange *exchange);
void sluice_plan_copy(const struct sluice_plan *plan, size_t round, uint8_t *buffer);
int32_t sluice_plan_access(const struct sluice_plan *plan, size_t round, int32_t descriptor, uint8_t *buffer);
void sluice_plan_ask(const struct sluice_plan *plan, int32_t descriptor);
int32_t sluice_plan_own(const struct sluice_plan *plan, int32_t descriptor);

#endif
