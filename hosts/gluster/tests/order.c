/*
 * The order of a file's operations against a naive model: after every arrival and every end exactly those operations have
 * been let go that the rules allow.
 *
 * Usage: order [SEED [ROUNDS]]; it prints the seed if it fails.
 */
#include "../src/order.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { OPERATIONS = 200 };

struct operation {
    struct order_item item; /* first */
    bool went;
    bool ended;
};

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    /* SplitMix64. */
    uint64_t z = state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return (uint32_t)((z ^ z >> 31) % below);
}

static bool may_go(const struct operation *all, int at)
{
    for (int i = 0; i < at; i++) {
        bool earlier_ended = all[i].item.kind == ORDER_BARRIER ? all[i].went : all[i].ended;
        bool matters = all[at].item.kind != ORDER_IO || all[i].item.kind == ORDER_FENCE;
        if (matters && !earlier_ended)
            return false;
    }
    return true;
}

static void go(struct operation *operation, uint64_t seed)
{
    if (operation->went) {
        fprintf(stderr, "seed %" PRIu64 ": an operation was let go twice\n", seed);
        exit(1);
    }
    operation->went = true;
}

static void check(const struct operation *all, int count, uint64_t seed)
{
    for (int i = 0; i < count; i++) {
        if (all[i].went != may_go(all, i)) {
            fprintf(stderr, "seed %" PRIu64 ": operation %d of %d (kind %d) %s\n", seed, i, count,
                    (int)all[i].item.kind, all[i].went ? "went too early" : "is held though nothing is before it");
            exit(1);
        }
    }
}

static void round_of(uint64_t seed)
{
    static struct operation all[OPERATIONS];
    struct order order;
    int count = 0, ended = 0;
    state = seed;
    uint32_t special = 1 + draw(8);
    order_init(&order);
    while (ended < OPERATIONS) {
        if (count < OPERATIONS && draw(2)) {
            struct operation *arriving = &all[count++];
            *arriving = (struct operation){0};
            arriving->item.kind = draw(special) ? ORDER_IO : draw(2) ? ORDER_BARRIER : ORDER_FENCE;
            if (order_enter(&order, &arriving->item) == 1)
                go(arriving, seed);
        } else {
            int at = count ? (int)draw((uint32_t)count) : 0;
            if (!count || !all[at].went || all[at].ended)
                continue;
            all[at].ended = true;
            ended++;
            for (struct order_item *item = order_leave(&order, &all[at].item); item; item = item->next)
                go((struct operation *)item, seed);
        }
        check(all, count, seed);
    }
    if (!order_is_idle(&order)) {
        fprintf(stderr, "seed %" PRIu64 ": all have ended, and something is left\n", seed);
        exit(1);
    }
    order_destroy(&order);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 2000;
    for (uint64_t i = 0; i < rounds; i++)
        round_of(seed + i);
    printf("%" PRIu64 " rounds of %d operations from seed %" PRIu64 ": in order\n", rounds, OPERATIONS, seed);
    return 0;
}
