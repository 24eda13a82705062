#include "order.h"

#include <errno.h>
#include <stdlib.h>

static void ready_init(struct order_ready *ready)
{
    ready->first = NULL;
    ready->end = &ready->first;
}

static void ready_add(struct order_ready *ready, struct order_item *item)
{
    item->next = NULL;
    *ready->end = item;
    ready->end = &item->next;
}

static void ready_move(struct order_ready *to, struct order_ready *from)
{
    if (!from->first)
        return;
    *to->end = from->first;
    to->end = from->end;
    ready_init(from);
}

static void turn_init(struct order_turn *turn, bool open)
{
    *turn = (struct order_turn){.open = open};
    ready_init(&turn->held);
}

void order_init(struct order *order)
{
    pthread_mutex_init(&order->lock, NULL);
    turn_init(&order->first, true);
    order->head = order->tail = &order->first;
}

static void turn_free(struct order *order, struct order_turn *turn)
{
    if (turn != &order->first)
        free(turn);
}

void order_destroy(struct order *order)
{
    while (order->head) {
        struct order_turn *next = order->head->next;
        turn_free(order, order->head);
        order->head = next;
    }
    pthread_mutex_destroy(&order->lock);
}

static bool is_idle(const struct order *order)
{
    return order->head == order->tail && !order->head->outstanding;
}

bool order_is_idle(struct order *order)
{
    pthread_mutex_lock(&order->lock);
    bool idle = is_idle(order);
    pthread_mutex_unlock(&order->lock);
    return idle;
}

/* The last turn ends with `item`, and another begins. NULL: no memory. */
static struct order_turn *append(struct order *order, struct order_item *item)
{
    struct order_turn *turn = malloc(sizeof(*turn));
    if (!turn)
        return NULL;
    turn_init(turn, item->kind == ORDER_BARRIER && order->tail->open);
    order->tail->ended_by = item;
    order->tail->next = turn;
    order->tail = turn;
    return turn;
}

static int enter_io(struct order *order, struct order_item *item)
{
    struct order_turn *turn = order->tail;
    item->turn = turn;
    turn->outstanding++;
    if (turn->open)
        return 1;
    ready_add(&turn->held, item);
    return 0;
}

static int enter_barrier(struct order *order, struct order_item *item)
{
    struct order_turn *turn = order->tail;
    bool goes = is_idle(order);
    item->turn = NULL;
    if (goes && item->kind == ORDER_BARRIER)
        return 1;
    if (!append(order, item))
        return -ENOMEM;
    item->turn = turn;
    turn->fencing = goes;
    return goes;
}

int order_enter(struct order *order, struct order_item *item)
{
    pthread_mutex_lock(&order->lock);
    int goes = item->kind == ORDER_IO ? enter_io(order, item) : enter_barrier(order, item);
    pthread_mutex_unlock(&order->lock);
    return goes;
}

/* The first turn is over. */
static void pop(struct order *order)
{
    struct order_turn *turn = order->head;
    order->head = turn->next;
    turn_free(order, turn);
}

/* The first turn, and those that only barriers part from it, may go on. */
static void open_turns(struct order *order, struct order_ready *ready)
{
    for (struct order_turn *turn = order->head; turn; turn = turn->next) {
        turn->open = true;
        ready_move(ready, &turn->held);
        if (turn->ended_by && turn->ended_by->kind == ORDER_FENCE)
            break;
    }
}

/* Barriers and fences that nothing is before any more. */
static void advance(struct order *order, struct order_ready *ready)
{
    struct order_turn *turn;
    while ((turn = order->head)->open && !turn->outstanding && turn->ended_by && !turn->fencing) {
        struct order_item *item = turn->ended_by;
        ready_add(ready, item);
        if (item->kind == ORDER_FENCE) {
            turn->fencing = true;
            return;
        }
        item->turn = NULL;
        pop(order);
    }
}

struct order_item *order_leave(struct order *order, struct order_item *item)
{
    struct order_ready ready;
    ready_init(&ready);
    pthread_mutex_lock(&order->lock);
    if (item->kind == ORDER_IO) {
        item->turn->outstanding--;
        advance(order, &ready);
    } else if (item->kind == ORDER_FENCE) {
        pop(order);
        open_turns(order, &ready);
        advance(order, &ready);
    }
    pthread_mutex_unlock(&order->lock);
    return ready.first;
}
