#include "translator.h"

#include <errno.h>
#include <string.h>

/* What a client says of the job that a request is of. */
#define JOB_KEY "sluice.job"

static uint64_t hash(uint64_t hash, const void *bytes, size_t len)
{
    /* FNV-1a. */
    const unsigned char *at = bytes;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ at[i]) * 0x100000001b3ULL;
    return hash;
}

/* Who asks: a user's job on a client. Users cannot pose as each other, clients neither. */
static uint32_t application(call_frame_t *frame, dict_t *xdata)
{
    uint64_t who = 0xcbf29ce484222325ULL;
    char *job = NULL;
    who = hash(who, &frame->root->uid, sizeof(frame->root->uid));
    if (frame->root->client && frame->root->client->client_uid)
        who = hash(who, frame->root->client->client_uid, strlen(frame->root->client->client_uid));
    if (xdata && !dict_get_str_sizen(xdata, JOB_KEY, &job))
        who = hash(who, job, strlen(job));
    return (uint32_t)(who ^ who >> 32);
}

static uint64_t number_of(inode_t *inode)
{
    uint64_t halves[2];
    /* It has none before it was looked up. */
    if (gf_uuid_is_null(inode->gfid))
        return (uint64_t)(uintptr_t)inode;
    memcpy(halves, inode->gfid, sizeof(halves));
    return halves[0] ^ halves[1];
}

struct file *file_of(xlator_t *this, inode_t *inode)
{
    uint64_t known = 0;
    LOCK(&inode->lock);
    {
        if (__inode_ctx_get(inode, this, &known) || !known) {
            struct file *file = GF_CALLOC(1, sizeof(*file), MEMORY_FILE);
            if (file) {
                order_init(&file->order);
                file->number = number_of(inode);
                known = (uint64_t)(uintptr_t)file;
                if (__inode_ctx_set(inode, this, &known)) {
                    order_destroy(&file->order);
                    GF_FREE(file);
                    known = 0;
                }
            }
        }
    }
    UNLOCK(&inode->lock);
    return (struct file *)(uintptr_t)known;
}

void file_forget(struct file *file)
{
    order_destroy(&file->order);
    GF_FREE(file);
}

static struct call *call_new(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *inode,
                             enum order_kind kind)
{
    struct file *file = stub ? file_of(this, inode) : NULL;
    struct call *call = file ? GF_CALLOC(1, sizeof(*call), MEMORY_CALL) : NULL;
    if (!call)
        return NULL;
    call->item.kind = kind;
    call->stub = stub;
    call->inode = inode_ref(inode);
    call->file = file;
    frame->local = call;
    return call;
}

static void call_free(struct call *call)
{
    inode_unref(call->inode);
    GF_FREE(call);
}

/* Takes the local away, so that it outlives its frame. */
static void fail(call_stub_t *stub, int error)
{
    stub->frame->local = NULL;
    call_unwind_error(stub, -1, error);
}

/* This thread is in a call of libsluice: what is started now is started on one of GlusterFS's threads, or a worker. */
static __thread unsigned inside;

static int submit(struct translator *translator, struct call *call)
{
    struct sluice_request request = {
        .struct_size = sizeof(request),
        .op = call->op,
        .file = call->file->number,
        .offset = call->offset,
        .len = call->len,
        .app = call->app,
        .target = translator->target,
        .cookie = (uint64_t)(uintptr_t)call,
    };
    inside++;
    int code = sluice_submit(translator->client, &request, NULL);
    inside--;
    return code;
}

static void carry_out(xlator_t *this, struct order_item *item);

/* A read or write that will not be carried out. */
static void refuse(xlator_t *this, struct call *call, int error)
{
    fail(call->stub, error);
    struct order_item *ready = order_leave(&call->file->order, &call->item);
    call_free(call);
    carry_out(this, ready);
}

static struct translator *translator_of(const struct call *call)
{
    return call->stub->frame->this->private;
}

static struct call *room_first(struct room *room)
{
    struct order_item *item = room->waiting.first;
    if (!item)
        return NULL;
    room->waiting.first = item->next;
    if (!item->next)
        room->waiting.end = &room->waiting.first;
    return (struct call *)item;
}

static void room_back(struct room *room, struct call *call)
{
    call->item.next = room->waiting.first;
    if (!call->item.next)
        room->waiting.end = &call->item.next;
    room->waiting.first = &call->item;
}

/* Submits what waits for room, until there is none. One thread at a time, so that none overtakes another. */
static void fill(struct room *room)
{
    struct call *call;
    pthread_mutex_lock(&room->lock);
    if (room->filling) {
        room->again = true;
        pthread_mutex_unlock(&room->lock);
        return;
    }
    room->filling = true;
    room->again = false;
    while ((call = room_first(room))) {
        struct translator *translator = translator_of(call);
        xlator_t *this = translator->this;
        pthread_mutex_unlock(&room->lock);
        int code = submit(translator, call);
        if (code != SLUICE_OK && code != SLUICE_ERR_FULL)
            refuse(this, call, EIO);
        pthread_mutex_lock(&room->lock);
        if (code != SLUICE_ERR_FULL)
            continue;
        room_back(room, call);
        if (!room->again)
            break;
        room->again = false;
    }
    room->filling = false;
    atomic_store(&room->is_short, room->waiting.first != NULL);
    pthread_mutex_unlock(&room->lock);
}

static void wait_for_room(struct room *room, struct call *call)
{
    pthread_mutex_lock(&room->lock);
    call->item.next = NULL;
    *room->waiting.end = &call->item;
    room->waiting.end = &call->item.next;
    atomic_store(&room->is_short, true);
    pthread_mutex_unlock(&room->lock);
    /* What ended meanwhile has not seen it. */
    fill(room);
}

/* A read or write goes to the scheduler, or waits until there is room. */
static void to_scheduler(struct translator *translator, struct call *call)
{
    if (atomic_load(&translator->room->is_short)) {
        wait_for_room(translator->room, call);
        return;
    }
    int code = submit(translator, call);
    if (code == SLUICE_ERR_FULL) {
        wait_for_room(translator->room, call);
    } else if (code != SLUICE_OK) {
        gf_log(translator->this->name, GF_LOG_ERROR, "request refused: %s", sluice_last_error());
        refuse(translator->this, call, EIO);
    }
}

/* copy_file_range has its place at one file and needs that at the other. */
static void next_place(xlator_t *this, struct call *call)
{
    struct call *last = call->other;
    int goes = order_enter(&last->file->order, &last->item);
    if (goes < 0) {
        fail(last->stub, -goes);
        call_free(last);
        carry_out(this, order_leave(&call->file->order, &call->item));
        call_free(call);
    } else if (goes) {
        call_resume(last->stub);
    }
}

/* Operations whose turn has come. */
static void carry_out(xlator_t *this, struct order_item *item)
{
    while (item) {
        struct order_item *next = item->next;
        struct call *call = (struct call *)item;
        if (item->kind == ORDER_IO)
            to_scheduler(this->private, call);
        else if (call->other && !call->stub)
            next_place(this, call);
        else
            call_resume(call->stub);
        item = next;
    }
}

/* An operation arrives at the order of its file. */
static void enter(xlator_t *this, struct call *call)
{
    int goes = order_enter(&call->file->order, &call->item);
    if (goes < 0) {
        fail(call->stub, -goes);
        call_free(call);
    } else if (goes) {
        call->item.next = NULL;
        carry_out(this, &call->item);
    }
}

void schedule(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *inode, uint64_t offset, size_t len,
              uint32_t op, dict_t *xdata)
{
    /* The scheduler's requests are shorter: this one has no neighbours to be merged with. */
    if (len > UINT32_MAX) {
        order(frame, this, stub, inode, ORDER_FENCE);
        return;
    }
    struct call *call = call_new(frame, this, stub, inode, ORDER_IO);
    if (!call) {
        fail(stub, ENOMEM);
        return;
    }
    call->offset = offset;
    call->len = (uint32_t)len;
    call->op = op;
    call->app = application(frame, xdata);
    enter(this, call);
}

void order(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *inode, enum order_kind kind)
{
    struct translator *translator = this->private;
    struct call *call = call_new(frame, this, stub, inode, kind);
    if (!call) {
        fail(stub, ENOMEM);
        return;
    }
    GF_ATOMIC_INC(translator->ordered);
    enter(this, call);
}

void order_both(call_frame_t *frame, xlator_t *this, call_stub_t *stub, inode_t *from, inode_t *to)
{
    if (from == to) {
        order(frame, this, stub, from, ORDER_FENCE);
        return;
    }
    /* The same order of files for all, so that no two wait for each other. */
    inode_t *first = from < to ? from : to;
    struct call *call = call_new(frame, this, stub, first, ORDER_FENCE);
    struct call *other = call ? call_new(frame, this, stub, first == from ? to : from, ORDER_FENCE) : NULL;
    if (!other) {
        if (call)
            call_free(call);
        fail(stub, ENOMEM);
        return;
    }
    call->stub = NULL;
    call->other = other;
    other->other = call;
    int goes = order_enter(&call->file->order, &call->item);
    if (goes < 0) {
        call_free(call);
        call_free(other);
        fail(stub, -goes);
    } else if (goes) {
        call->item.next = NULL;
        carry_out(this, &call->item);
    }
}

void ended(xlator_t *this, struct call *call, int32_t result, int32_t error)
{
    struct translator *translator = this->private;
    struct call *other = call->other;
    if (call->item.kind == ORDER_IO) {
        inside++;
        sluice_complete(translator->client, call->id, result < 0 ? 0 : (uint32_t)result, result < 0 ? error : 0);
        inside--;
        if (atomic_load(&translator->room->is_short))
            fill(translator->room);
    }
    carry_out(this, order_leave(&call->file->order, &call->item));
    call_free(call);
    if (other) {
        carry_out(this, order_leave(&other->file->order, &other->item));
        call_free(other);
    }
}

void start_parts(struct translator *translator, const struct sluice_part *parts, size_t count)
{
    if (count > 1 && merge_start(translator, parts, count))
        return;
    for (size_t i = 0; i < count; i++) {
        struct call *call = (struct call *)(uintptr_t)parts[i].cookie;
        call_stub_t *stub = call->stub;
        call->id = parts[i].id;
        call->stub = NULL;
        call_resume(stub);
    }
}

void on_start_batch(void *user, struct sluice *s, const struct sluice_part *parts, size_t count)
{
    struct translator *translator = user;
    (void)s;
    if (inside || !workers_take(translator->workers, parts, count))
        start_parts(translator, parts, count);
}

void on_start(void *user, struct sluice *s, const struct sluice_part *part)
{
    on_start_batch(user, s, part, 1);
}

void on_cancelled(void *user, struct sluice *s, const struct sluice_part *part, int error)
{
    struct translator *translator = user;
    (void)s;
    refuse(translator->this, (struct call *)(uintptr_t)part->cookie, error);
}
