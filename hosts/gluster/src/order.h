/*
 * The order of the operations on one file.
 *
 * Reads and writes are scheduled, and the scheduler keeps overlapping ones in order. What it does not know must keep its
 * place among them: a *barrier* (fsync, flush) goes when all that came before it has ended; a *fence* (truncate, discard,
 * ...) also holds back what comes after it until it has ended itself.
 *
 * The operations of a file are a queue of *turns*: the reads and writes between two barriers or fences, each turn with the
 * barrier or fence that ends it. A turn is open if no fence before it is left; reads and writes of closed turns are held.
 *
 * Nothing here knows GlusterFS, waits or calls anybody: what may go now is returned, and the caller carries it out. All
 * functions are O(1) beside what they return; a barrier or fence costs an allocation where others are before it.
 */
#ifndef SLUICE_ORDER_H
#define SLUICE_ORDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum order_kind {
    /* A read or write. */
    ORDER_IO,
    /* Waits for what came before. */
    ORDER_BARRIER,
    /* That, and what comes later waits for it. */
    ORDER_FENCE,
};

struct order_turn;

/* An operation, embedded in what the caller knows of it. */
struct order_item {
    enum order_kind kind;
    struct order_item *next;
    struct order_turn *turn;
};

/* Operations that may go now, in order. */
struct order_ready {
    struct order_item *first;
    struct order_item **end;
};

struct order_turn {
    struct order_turn *next;
    /* Reads and writes that have not ended, held ones included. */
    size_t outstanding;
    struct order_ready held;
    /* What ends the turn; NULL for the last one. */
    struct order_item *ended_by;
    bool open;
    /* Its fence is under way. */
    bool fencing;
};

struct order {
    pthread_mutex_t lock;
    struct order_turn *head;
    struct order_turn *tail;
    /* The first turn, so that a file without barriers needs no other. */
    struct order_turn first;
};

void order_init(struct order *order);

/* Nothing may be outstanding. */
void order_destroy(struct order *order);

/* Whether operations wait or are under way. */
bool order_is_idle(struct order *order);

/*
 * An operation arrives. 1: it may go now; 0: it is held, and will be among what a later call returns; -ENOMEM.
 * `item->kind` says what it is. Each that may go must be given to order_leave() when it has ended.
 */
int order_enter(struct order *order, struct order_item *item);

/* An operation has ended. Returns what may go now. */
struct order_item *order_leave(struct order *order, struct order_item *item);

#endif
