#include "translator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t fnv1a(uint64_t hash, const void *bytes, size_t len)
{
    /* FNV-1a. */
    const unsigned char *at = bytes;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ at[i]) * 0x100000001b3ULL;
    return hash;
}

/* How much of what a client says of itself is the same at all data servers: all before the name of its connection. */
static size_t client_length(const char *client)
{
    const char *connection = strstr(client, "-PC_NAME:");
    return connection ? (size_t)(connection - client) : strlen(client);
}

/* Whatever a client sent: nobody promises that it ends with a zero. */
static const data_t *job_in(dict_t *xdata)
{
    const data_t *job = xdata ? dict_get_sizen(xdata, JOB_KEY) : NULL;
    return job && job->data && job->len > 0 ? job : NULL;
}

/* Who asks, the same at all data servers: a user's job, on whichever clients it runs, or a user on a client. Users cannot pose as each
 * other. */
uint32_t application(const client_t *client, uint32_t uid, dict_t *xdata)
{
    const data_t *job = job_in(xdata);
    uint32_t told = 0;
    if (job && !dict_get_uint32(xdata, UID_KEY, &told))
        uid = told;
    uint64_t who = fnv1a(HASH_NOTHING, &uid, sizeof(uid));
    if (job)
        who = fnv1a(who, job->data, strnlen(job->data, (size_t)job->len));
    else if (client && client->client_uid)
        who = fnv1a(who, client->client_uid, client_length(client->client_uid));
    return (uint32_t)(who ^ who >> 32);
}

static uint64_t number_of(const uuid_t gfid)
{
    uint64_t halves[2];
    memcpy(halves, gfid, sizeof(halves));
    return halves[0] ^ halves[1];
}

#define SHARDS "/.shard/"
#define UUID_LEN 36

/* A piece of a file is called /.shard/GFID.N, and holds what begins at N times the size of a piece. */
static void look_at_name(const char *path, uint64_t shard_bytes, uint64_t *number, uint64_t *begin)
{
    char text[UUID_LEN + 1] = "";
    uuid_t base;
    char *end = NULL;
    if (!path || strncmp(path, SHARDS, strlen(SHARDS)) || strlen(path) < strlen(SHARDS) + UUID_LEN + 2)
        return;
    const char *name = path + strlen(SHARDS);
    memcpy(text, name, UUID_LEN);
    errno = 0;
    uint64_t piece = strtoull(name + UUID_LEN + 1, &end, 10);
    if (name[UUID_LEN] != '.' || errno || *end || gf_uuid_parse(text, base) || piece > INT64_MAX / shard_bytes)
        return;
    *number = number_of(base);
    *begin = piece * shard_bytes;
}

/* What the scheduler is to take an inode for. */
static void identify(xlator_t *this, inode_t *inode, uint64_t *number, uint64_t *begin)
{
    struct translator *translator = this->private;
    char *path = NULL;
    *begin = 0;
    /* It has no number before it was looked up. */
    *number = gf_uuid_is_null(inode->gfid) ? (uint64_t)(uintptr_t)inode : number_of(inode->gfid);
    if (translator->shard_bytes && inode_path(inode, NULL, &path) > 0)
        look_at_name(path, translator->shard_bytes, number, begin);
    GF_FREE(path);
}

struct file *file_of(xlator_t *this, inode_t *inode)
{
    uint64_t known = 0;
    uint64_t number = 0;
    uint64_t begin = 0;
    if (!inode_ctx_get(inode, this, &known) && known)
        return (struct file *)(uintptr_t)known;
    /* Names are behind a lock that is taken before that of the inode. */
    identify(this, inode, &number, &begin);
    LOCK(&inode->lock);
    {
        if (__inode_ctx_get(inode, this, &known) || !known) {
            struct file *file = GF_CALLOC(1, sizeof(*file), MEMORY_FILE);
            if (file) {
                order_init(&file->order);
                file->number = number;
                file->begin = begin;
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
    struct translator *translator = this->private;
    atomic_fetch_add(&translator->calls, 1);
    call->item.kind = kind;
    call->this = this;
    call->stub = stub;
    call->client = frame->root->client;
    if (call->client)
        gf_client_ref(call->client);
    call->inode = inode_ref(inode);
    call->file = file;
    frame->local = call;
    return call;
}

/* Afterwards neither the file nor the translator may be there. */
static void call_free(struct call *call)
{
    struct translator *translator = call->this->private;
    client_t *client = call->client;
    inode_unref(call->inode);
    GF_FREE(call);
    atomic_fetch_sub(&translator->calls, 1);
    if (client)
        gf_client_unref(client);
}

/* Takes the local away, so that it outlives its frame. */
static void fail(call_stub_t *stub, int error)
{
    stub->frame->local = NULL;
    call_unwind_error(stub, -1, error);
}

/* This thread is in a call of libsluice: what is started now is started on one of GlusterFS's threads, or a worker. */
static __thread unsigned inside;

static struct sluice_request request_of(const struct translator *translator, const struct call *call)
{
    return (struct sluice_request){
        .struct_size = sizeof(struct sluice_request),
        .op = call->op,
        .file = call->file->number,
        .offset = call->offset + call->file->begin,
        .len = call->len,
        .app = call->app,
        .target = translator->target,
        .cookie = (uint64_t)(uintptr_t)call,
    };
}

static int submit(struct translator *translator, struct call *call)
{
    struct sluice_request request = request_of(translator, call);
    inside++;
    int code = sluice_submit(translator->client, &request, NULL);
    inside--;
    return code;
}

static void carry_out(struct order_item *item);

/* A read or write that will not be carried out. */
static void refuse(struct call *call, int error)
{
    fail(call->stub, error);
    carry_out(order_leave(&call->file->order, &call->item));
    call_free(call);
}

/* What the scheduler says, as whoever asked would have heard it from the storage. */
static int errno_of(int code)
{
    switch (code) {
    case SLUICE_ERR_INVALID:
        return EINVAL; /* beyond the largest offset */
    case SLUICE_ERR_CLOSED:
        return ECANCELED;
    default:
        return EIO;
    }
}

static void refused(struct call *call, int code)
{
    if (errno_of(code) == EIO)
        gf_log(call->this->name, GF_LOG_ERROR, "request refused: %s", sluice_last_error());
    refuse(call, errno_of(code));
}

static void append(struct order_ready *list, struct order_item *item)
{
    item->next = NULL;
    *list->end = item;
    list->end = &item->next;
}

static struct order_item *take(struct order_ready *list)
{
    struct order_item *item = list->first;
    if (item) {
        list->first = item->next;
        if (!item->next)
            list->end = &list->first;
    }
    return item;
}

/* Waits for room for one after the other: the library knows when there is some, also if it is another client's doing. */
static void *wait_for_rooms(void *argument)
{
    struct room *room = argument;
    pthread_mutex_lock(&room->lock);
    while (!room->ends) {
        struct call *call = (struct call *)take(&room->waiting);
        if (!call) {
            atomic_store(&room->is_short, false);
            pthread_cond_wait(&room->changed, &room->lock);
            continue;
        }
        pthread_mutex_unlock(&room->lock);
        THIS = call->this;
        struct translator *translator = call->this->private;
        struct sluice_request request = request_of(translator, call);
        /* Not `inside`: this thread must not be kept by what it starts. */
        int code = sluice_submit_wait(translator->client, &request);
        if (code != SLUICE_OK)
            refused(call, code);
        pthread_mutex_lock(&room->lock);
    }
    pthread_mutex_unlock(&room->lock);
    return NULL;
}

void room_init(struct room *room)
{
    pthread_mutex_init(&room->lock, NULL);
    pthread_cond_init(&room->changed, NULL);
    room->waiting.end = &room->waiting.first;
}

void room_end(struct room *room)
{
    pthread_mutex_lock(&room->lock);
    room->ends = true;
    pthread_cond_broadcast(&room->changed);
    pthread_mutex_unlock(&room->lock);
    if (room->has_thread)
        pthread_join(room->thread, NULL);
    pthread_cond_destroy(&room->changed);
    pthread_mutex_destroy(&room->lock);
}

void room_leave(struct room *room, struct translator *translator)
{
    struct order_ready all, gone;
    struct order_item *item;
    all.end = &all.first;
    gone.end = &gone.first;
    all.first = gone.first = NULL;
    pthread_mutex_lock(&room->lock);
    while ((item = take(&room->waiting)))
        append(((struct call *)item)->this == translator->this ? &gone : &all, item);
    while ((item = take(&all)))
        append(&room->waiting, item);
    pthread_mutex_unlock(&room->lock);
    while ((item = take(&gone)))
        refuse((struct call *)item, ECANCELED);
}

static void wait_for_room(struct room *room, struct call *call)
{
    bool waits = true;
    pthread_mutex_lock(&room->lock);
    if (!room->has_thread)
        waits = room->has_thread = !gf_thread_create(&room->thread, NULL, wait_for_rooms, room, "sluiceroom");
    if (waits) {
        atomic_store(&room->is_short, true);
        append(&room->waiting, &call->item);
        pthread_cond_signal(&room->changed);
    }
    pthread_mutex_unlock(&room->lock);
    if (!waits)
        refuse(call, ENOMEM);
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
        refused(call, code);
    }
}

/* copy_file_range has its place at one file and needs that at the other. */
static void next_place(struct call *call)
{
    struct call *last = call->other;
    int goes = order_enter(&last->file->order, &last->item);
    if (goes < 0) {
        fail(last->stub, -goes);
        call_free(last);
        carry_out(order_leave(&call->file->order, &call->item));
        call_free(call);
    } else if (goes) {
        call_resume(last->stub);
    }
}

/* An operation whose turn has come. */
static void carry_out_one(struct call *call)
{
    if (call->item.kind == ORDER_IO)
        to_scheduler(call->this->private, call);
    else if (call->other && !call->stub)
        next_place(call);
    else
        call_resume(call->stub);
}

/* So deep operations let others go inside their own calls. */
#define DEPTH_MAX 8

/*
 * Operations whose turn has come. Where the child answers at once each ends inside this call, and lets others go. They go
 * at once, as the scheduler may keep the operation that lets them go for long, starting what others ask for. Only those that
 * come deeper than DEPTH_MAX are left to the innermost call, so that many in a row need no stack.
 */
static void carry_out(struct order_item *item)
{
    static __thread struct order_ready *innermost;
    static __thread unsigned depth;
    struct order_ready list = {.first = NULL, .end = &list.first};
    struct order_ready *to = innermost ? innermost : &list;
    while (item) {
        struct order_item *next = item->next;
        append(to, item);
        item = next;
    }
    if (innermost)
        return;
    if (++depth == DEPTH_MAX)
        innermost = &list;
    while ((item = take(&list)))
        carry_out_one((struct call *)item);
    depth--;
    innermost = NULL;
}

/* An operation arrives at the order of its file. */
static void enter(struct call *call)
{
    int goes = order_enter(&call->file->order, &call->item);
    if (goes < 0) {
        fail(call->stub, -goes);
        call_free(call);
    } else if (goes) {
        call->item.next = NULL;
        carry_out(&call->item);
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
    call->app = application(frame->root->client, frame->root->uid, xdata);
    enter(call);
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
    enter(call);
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
        carry_out(&call->item);
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
    }
    carry_out(order_leave(&call->file->order, &call->item));
    call_free(call);
    if (other) {
        carry_out(order_leave(&other->file->order, &other->item));
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
    if (!inside && workers_take(translator->workers, parts, count))
        return;
    xlator_t *before = THIS;
    THIS = translator->this;
    start_parts(translator, parts, count);
    THIS = before;
}

void on_start(void *user, struct sluice *s, const struct sluice_part *part)
{
    on_start_batch(user, s, part, 1);
}

void on_cancelled(void *user, struct sluice *s, const struct sluice_part *part, int error)
{
    struct translator *translator = user;
    xlator_t *before = THIS;
    (void)s;
    THIS = translator->this;
    refuse((struct call *)(uintptr_t)part->cookie, error);
    THIS = before;
}
