/*
 * Batches that go down as one operation.
 *
 * What the scheduler puts together was asked for in pieces: one operation of the child instead of many is one message to
 * a data server, one system call at it. Requests are merged if nothing could tell the difference: through one open file, with
 * the same flags, by the same asker and with the same additional words, none of which asks about this one request. If the
 * whole does not succeed, what it did not do is done again piece by piece, so that each has the result that it would have had
 * alone.
 */
#include "translator.h"

#include <string.h>

/* Pieces of memory in a message of GlusterFS's transport. */
#define PIECES_MAX (MAX_IOVEC / 2)
#define REQUESTS_MAX 64

struct batch {
    size_t count;
    struct call *calls[REQUESTS_MAX];
};

static bool same_words(dict_t *one, dict_t *two)
{
    return one == two || (one && two && are_dicts_equal(one, two, NULL, NULL));
}

/* Replication asks whether this write was behind the end of the file. */
static bool asks_about_itself(dict_t *words)
{
    return words && dict_get_sizen(words, GLUSTERFS_WRITE_IS_APPEND);
}

static bool is_alike(const default_args_t *one, const default_args_t *two)
{
    return one->fd == two->fd && one->flags == two->flags && same_words(one->xdata, two->xdata);
}

/* Locks and permissions are checked by who asks. */
static bool same_asker(const call_stack_t *one, const call_stack_t *two)
{
    return one->client == two->client && one->uid == two->uid && one->gid == two->gid && one->pid == two->pid &&
           !memcmp(&one->lk_owner, &two->lk_owner, sizeof(gf_lkowner_t));
}

static struct call *call_of(const struct sluice_part *part)
{
    return (struct call *)(uintptr_t)part->cookie;
}

static bool may_merge(const struct sluice_part *parts, size_t count)
{
    int pieces = 0;
    const default_args_t *first = &call_of(&parts[0])->stub->args;
    if (count > REQUESTS_MAX || asks_about_itself(first->xdata))
        return false;
    for (size_t i = 0; i < count; i++) {
        const call_stub_t *stub = call_of(&parts[i])->stub;
        if (!is_alike(first, &stub->args) || parts[i].len == 0)
            return false;
        if (!same_asker(stub->frame->root, call_of(&parts[0])->stub->frame->root))
            return false;
        pieces += parts[i].op == SLUICE_WRITE ? stub->args.count : 1;
    }
    return pieces <= PIECES_MAX;
}

/* A part goes by itself. */
static void resume(struct call *call)
{
    call_stub_t *stub = call->stub;
    call->stub = NULL;
    call_resume(stub);
}

/* Its own result for a part of which all is done. */
static void answer_read(struct call *call, int32_t result, int32_t error, struct iovec *vector, int32_t count,
                        struct iatt *stat, struct iobref *iobref, dict_t *xdata)
{
    call_stub_t *stub = call->stub;
    call_frame_t *frame = stub->frame;
    xlator_t *this = frame->this;
    call->stub = NULL;
    frame->local = NULL;
    STACK_UNWIND_STRICT(readv, frame, result, error, vector, count, stat, iobref, xdata);
    call_stub_destroy(stub);
    ended(this, call, result, 0);
}

static int32_t merged_readv_cbk(call_frame_t *merged, void *cookie, xlator_t *this, int32_t result, int32_t error,
                                struct iovec *vector, int32_t count, struct iatt *stat, struct iobref *iobref,
                                dict_t *xdata)
{
    struct batch *batch = merged->local;
    uint32_t start = 0;
    (void)cookie;
    (void)this;
    merged->local = NULL;
    for (size_t i = 0; i < batch->count; i++) {
        struct call *call = batch->calls[i];
        uint32_t left = result > 0 && (uint32_t)result > start ? (uint32_t)result - start : 0;
        struct iovec pieces[PIECES_MAX + 2];
        struct iovec *own = pieces;
        int got = -1;
        /* What is short is asked for again: at the end of the file it stays short. */
        if (left >= call->len)
            got = iov_subset(vector, count, start, call->len, &own, PIECES_MAX + 2);
        start += call->len;
        if (got > 0)
            /* The storage tells the end of the file by an error beside a good result: it is the last part's. */
            answer_read(call, (int32_t)call->len, i + 1 == batch->count ? error : 0, own, got, stat, iobref, xdata);
        else
            resume(call);
    }
    GF_FREE(batch);
    STACK_DESTROY(merged->root);
    return 0;
}

static int32_t merged_writev_cbk(call_frame_t *merged, void *cookie, xlator_t *this, int32_t result, int32_t error,
                                 struct iatt *before, struct iatt *after, dict_t *xdata)
{
    struct batch *batch = merged->local;
    int64_t whole = 0;
    (void)cookie;
    (void)error;
    merged->local = NULL;
    for (size_t i = 0; i < batch->count; i++)
        whole += batch->calls[i]->len;
    for (size_t i = 0; i < batch->count; i++) {
        struct call *call = batch->calls[i];
        /* Of a short write nobody knows which bytes are where: the storage goes on behind a piece that was cut short. */
        if (result != whole) {
            resume(call);
            continue;
        }
        call_stub_t *stub = call->stub;
        call_frame_t *frame = stub->frame;
        call->stub = NULL;
        frame->local = NULL;
        /* What changed is told once: some above add up what each write has made of a file. */
        STACK_UNWIND_STRICT(writev, frame, (int32_t)call->len, 0, i == 0 ? before : after, after, xdata);
        call_stub_destroy(stub);
        ended(this, call, (int32_t)call->len, 0);
    }
    GF_FREE(batch);
    STACK_DESTROY(merged->root);
    return 0;
}

static void wind_read(call_frame_t *merged, xlator_t *child, const default_args_t *first, size_t size)
{
    /* The answer may come within the call and ends the parts; what a call is given has to live until it returns. */
    fd_t *fd = fd_ref(first->fd);
    dict_t *words = first->xdata ? dict_ref(first->xdata) : NULL;
    STACK_WIND(merged, merged_readv_cbk, child, child->fops->readv, fd, size, first->offset, first->flags, words);
    fd_unref(fd);
    if (words)
        dict_unref(words);
}

/* False: no memory; nothing was done. */
static bool wind_write(call_frame_t *merged, xlator_t *child, const struct batch *batch)
{
    const default_args_t *first = &batch->calls[0]->stub->args;
    struct iovec vector[PIECES_MAX];
    int32_t pieces = 0;
    struct iobref *iobref = iobref_new();
    if (!iobref)
        return false;
    for (size_t i = 0; i < batch->count; i++) {
        const default_args_t *args = &batch->calls[i]->stub->args;
        if (args->iobref && iobref_merge(iobref, args->iobref)) {
            iobref_unref(iobref);
            return false;
        }
        memcpy(&vector[pieces], args->vector, (size_t)args->count * sizeof(*vector));
        pieces += args->count;
    }
    fd_t *fd = fd_ref(first->fd);
    dict_t *words = first->xdata ? dict_ref(first->xdata) : NULL;
    STACK_WIND(merged, merged_writev_cbk, child, child->fops->writev, fd, vector, pieces, first->offset, first->flags,
               iobref, words);
    iobref_unref(iobref);
    fd_unref(fd);
    if (words)
        dict_unref(words);
    return true;
}

bool merge_start(struct translator *translator, const struct sluice_part *parts, size_t count)
{
    xlator_t *child = FIRST_CHILD(translator->this);
    if (!translator->merge || !may_merge(parts, count))
        return false;
    call_frame_t *merged = copy_frame(call_of(&parts[0])->stub->frame);
    struct batch *batch = merged ? GF_CALLOC(1, sizeof(*batch), MEMORY_BATCH) : NULL;
    if (!batch) {
        if (merged)
            STACK_DESTROY(merged->root);
        return false;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct call *call = call_of(&parts[i]);
        call->id = parts[i].id;
        batch->calls[batch->count++] = call;
        bytes += call->len;
    }
    merged->local = batch;
    /* copy_frame() leaves it out; the parts keep it. */
    merged->root->client = call_of(&parts[0])->stub->frame->root->client;
    bool is_read = parts[0].op == SLUICE_READ;
    /* Once it is wound the batch may be gone. */
    if (is_read) {
        wind_read(merged, child, &batch->calls[0]->stub->args, bytes);
    } else if (!wind_write(merged, child, batch)) {
        merged->local = NULL;
        GF_FREE(batch);
        STACK_DESTROY(merged->root);
        return false;
    }
    GF_ATOMIC_INC(translator->merged);
    GF_ATOMIC_ADD(translator->merged_requests, count);
    return true;
}
