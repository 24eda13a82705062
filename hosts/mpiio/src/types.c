/* Derived types, flattened by what MPI itself tells of them, and what accesses cover. */
#include "shim.h"

#include <pthread.h>
#include <stdlib.h>

/* Flattening costs as much as a type has blocks, so a type keeps the result as an attribute, which goes when it goes. */
static int keyval = MPI_KEYVAL_INVALID;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The attribute of a type that is not understood. */
static char not_understood;

enum { MAX_DEPTH = 64, MAX_NUMBERS = 1 << 21 };

static int forget(MPI_Datatype type, int key, void *value, void *extra)
{
    (void)type, (void)key, (void)extra;
    if (value != &not_understood)
        sluice_flat_free(value);
    return MPI_SUCCESS;
}

static bool has_keyval(void)
{
    pthread_mutex_lock(&lock);
    if (keyval == MPI_KEYVAL_INVALID && PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &keyval, NULL) != MPI_SUCCESS)
        keyval = MPI_KEYVAL_INVALID;
    pthread_mutex_unlock(&lock);
    return keyval != MPI_KEYVAL_INVALID;
}

static bool tell(MPI_Datatype type, struct sluice_told *told)
{
    MPI_Count size, lower, extent, true_lower, true_extent;
    if (PMPI_Type_size_x(type, &size) != MPI_SUCCESS || PMPI_Type_get_extent_x(type, &lower, &extent) != MPI_SUCCESS ||
        PMPI_Type_get_true_extent_x(type, &true_lower, &true_extent) != MPI_SUCCESS)
        return false;
    *told = (struct sluice_told){size, lower, extent, true_lower, true_extent};
    return size >= 0;
}

static int combiner_of(int combiner)
{
    switch (combiner) {
    case MPI_COMBINER_DUP: return SLUICE_DUP;
    case MPI_COMBINER_CONTIGUOUS: return SLUICE_CONTIGUOUS;
    case MPI_COMBINER_VECTOR: return SLUICE_VECTOR;
    case MPI_COMBINER_HVECTOR: return SLUICE_HVECTOR;
    case MPI_COMBINER_INDEXED: return SLUICE_INDEXED;
    case MPI_COMBINER_HINDEXED: return SLUICE_HINDEXED;
    case MPI_COMBINER_INDEXED_BLOCK: return SLUICE_INDEXED_BLOCK;
    case MPI_COMBINER_HINDEXED_BLOCK: return SLUICE_HINDEXED_BLOCK;
    case MPI_COMBINER_STRUCT: return SLUICE_STRUCT;
    case MPI_COMBINER_SUBARRAY: return SLUICE_SUBARRAY;
    case MPI_COMBINER_DARRAY: return SLUICE_DARRAY;
    case MPI_COMBINER_RESIZED: return SLUICE_RESIZED;
    default: return -1;
    }
}

/* The constants of an array's constructor as numbers that mean the same in every MPI library. */
static bool neutral_order(int64_t *order)
{
    bool known = *order == MPI_ORDER_C || *order == MPI_ORDER_FORTRAN;
    *order = *order == MPI_ORDER_FORTRAN;
    return known;
}

static bool neutral_array(int combiner, int64_t *numbers, size_t count)
{
    if (combiner == MPI_COMBINER_SUBARRAY)
        return count > 0 && neutral_order(&numbers[count - 1]);
    if (combiner != MPI_COMBINER_DARRAY)
        return true;
    size_t dims = count >= 4 ? (size_t)numbers[2] : 0;
    if (count != 4 + 4 * dims || !neutral_order(&numbers[count - 1]))
        return false;
    for (size_t dim = 0; dim < dims; dim++) {
        int64_t *kind = &numbers[3 + dims + dim], *argument = &numbers[3 + 2 * dims + dim];
        if (*kind != MPI_DISTRIBUTE_NONE && *kind != MPI_DISTRIBUTE_BLOCK && *kind != MPI_DISTRIBUTE_CYCLIC)
            return false;
        *kind = *kind == MPI_DISTRIBUTE_NONE ? 0 : *kind == MPI_DISTRIBUTE_BLOCK ? 1 : 2;
        if (*argument == MPI_DISTRIBUTE_DFLT_DARG)
            *argument = -1;
    }
    return true;
}

/* MPI_COMBINER_NAMED also where MPI cannot tell. */
static int constructor_of(MPI_Datatype type)
{
    int combiner = MPI_COMBINER_NAMED;
#if MPI_VERSION >= 4
    MPI_Count many;
    PMPI_Type_get_envelope_c(type, &many, &many, &many, &many, &combiner);
#else
    int many;
    PMPI_Type_get_envelope(type, &many, &many, &many, &combiner);
#endif
    return combiner;
}

static bool is_predefined(int combiner)
{
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX ||
           combiner == MPI_COMBINER_F90_INTEGER;
}

/* Everything that a constructor was given. */
struct contents {
    int kids;
    int64_t *numbers;
    size_t count;
    MPI_Datatype *types;
};

static bool get_contents(MPI_Datatype type, int combiner, struct contents *c)
{
    int again;
#if MPI_VERSION >= 4
    MPI_Count integers, addresses, large, kids;
    if (PMPI_Type_get_envelope_c(type, &integers, &addresses, &large, &kids, &again) != MPI_SUCCESS)
        return false;
    if (integers + addresses + large > MAX_NUMBERS || kids > MAX_NUMBERS)
        return false;
    MPI_Aint *aints = calloc(addresses + 1, sizeof *aints);
    MPI_Count *counts = calloc(large + 1, sizeof *counts);
#else
    int integers, addresses, kids;
    if (PMPI_Type_get_envelope(type, &integers, &addresses, &kids, &again) != MPI_SUCCESS)
        return false;
    if (integers > MAX_NUMBERS || addresses > MAX_NUMBERS || kids > MAX_NUMBERS)
        return false;
    MPI_Aint *aints = calloc((size_t)addresses + 1, sizeof *aints);
#endif
    int *ints = calloc((size_t)integers + 1, sizeof *ints);
    c->types = calloc((size_t)kids + 1, sizeof *c->types);
    bool got = aints && ints && c->types;
#if MPI_VERSION >= 4
    got = got && counts &&
          PMPI_Type_get_contents_c(type, integers, addresses, large, kids, ints, aints, counts, c->types) == MPI_SUCCESS;
    c->count = (size_t)(integers + addresses + large);
#else
    got = got && PMPI_Type_get_contents(type, integers, addresses, kids, ints, aints, c->types) == MPI_SUCCESS;
    c->count = (size_t)integers + (size_t)addresses;
#endif
    c->kids = got ? (int)kids : 0;
    c->numbers = got ? calloc(c->count + 1, sizeof *c->numbers) : NULL;
    if (c->numbers) {
        size_t n = 0;
        for (int i = 0; i < integers; i++)
            c->numbers[n++] = ints[i];
        for (int i = 0; i < addresses; i++)
            c->numbers[n++] = aints[i];
#if MPI_VERSION >= 4
        /* Of arrays made with large counts the order is another one. */
        if (large > 0 && (combiner == MPI_COMBINER_SUBARRAY || combiner == MPI_COMBINER_DARRAY))
            got = false;
        for (int i = 0; i < large; i++)
            c->numbers[n++] = counts[i];
#endif
    }
#if MPI_VERSION >= 4
    free(counts);
#endif
    free(aints);
    free(ints);
    return got && c->numbers && neutral_array(combiner, c->numbers, c->count);
}

static struct sluice_flat *flatten_at(MPI_Datatype type, int depth);

static struct sluice_flat *compose(MPI_Datatype type, int combiner, int neutral, int depth)
{
    struct sluice_told told;
    struct contents c = {0};
    struct sluice_flat *flat = NULL;
    struct sluice_flat **kids = NULL;
    if (get_contents(type, combiner, &c) && tell(type, &told)) {
        kids = calloc((size_t)c.kids + 1, sizeof *kids);
        bool all = kids != NULL;
        for (int i = 0; i < c.kids && all; i++)
            all = (kids[i] = flatten_at(c.types[i], depth + 1)) != NULL;
        if (all)
            flat = sluice_flat_compose((enum sluice_combiner)neutral, c.numbers, c.count,
                                       (const struct sluice_flat *const *)kids, (size_t)c.kids, &told);
    }
    for (int i = 0; i < c.kids; i++) {
        if (kids)
            sluice_flat_free(kids[i]);
        if (!is_predefined(constructor_of(c.types[i])))
            PMPI_Type_free(&c.types[i]);
    }
    free(kids);
    free(c.types);
    free(c.numbers);
    return flat;
}

static struct sluice_flat *flatten_at(MPI_Datatype type, int depth)
{
    if (type == MPI_DATATYPE_NULL || depth > MAX_DEPTH)
        return NULL;
    int combiner = constructor_of(type);
    if (is_predefined(combiner)) {
        /* Pairs may have holes, and markers of bounds no data; only what has neither is a range. */
        struct sluice_told told;
        bool is_plain = tell(type, &told) && told.size > 0 && told.true_lower == 0 && told.true_extent == told.size &&
                        told.lower == 0 && told.extent == told.size;
        return is_plain ? sluice_flat_basic(told.size) : NULL;
    }
    int neutral = combiner_of(combiner);
    if (neutral < 0 || !has_keyval())
        return NULL;
    void *kept = NULL;
    int is_kept = 0;
    struct sluice_flat *flat = NULL;
    pthread_mutex_lock(&lock);
    bool asked = PMPI_Type_get_attr(type, keyval, &kept, &is_kept) == MPI_SUCCESS;
    if (asked && is_kept && kept != &not_understood)
        flat = sluice_flat_copy(kept);
    pthread_mutex_unlock(&lock);
    if (!asked || is_kept)
        return flat;
    flat = compose(type, combiner, neutral, depth);
    struct sluice_flat *copy = sluice_flat_copy(flat);
    pthread_mutex_lock(&lock);
    /* Another thread may have been faster. */
    asked = PMPI_Type_get_attr(type, keyval, &kept, &is_kept) == MPI_SUCCESS && !is_kept;
    if (!asked || PMPI_Type_set_attr(type, keyval, copy ? (void *)copy : &not_understood) != MPI_SUCCESS)
        sluice_flat_free(copy);
    pthread_mutex_unlock(&lock);
    return flat;
}

struct sluice_flat *flatten(MPI_Datatype type)
{
    return flatten_at(type, 0);
}
