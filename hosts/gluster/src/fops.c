#include "translator.h"

#include <errno.h>
#include <fcntl.h>

/*
 * Each operation that is scheduled or ordered is a stub until its turn comes, then goes to the child, and whoever asked is
 * answered before the scheduler hears of the end: what that starts need not be waited for.
 *
 * The local is taken from the frame before it is unwound: the frame is gone then.
 */
#define TAKE(frame)                                                                                                    \
    struct call *call = (frame)->local;                                                                                \
    (frame)->local = NULL

#define CHILD_OF(this) FIRST_CHILD(this)

static int32_t readv_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error,
                         struct iovec *vector, int32_t count, struct iatt *stat, struct iobref *iobref, dict_t *xdata)
{
    TAKE(frame);
    (void)cookie;
    STACK_UNWIND_STRICT(readv, frame, result, error, vector, count, stat, iobref, xdata);
    ended(this, call, result, error);
    return 0;
}

static int32_t readv_wind(call_frame_t *frame, xlator_t *this, fd_t *fd, size_t size, off_t offset, uint32_t flags,
                          dict_t *xdata)
{
    STACK_WIND(frame, readv_cbk, CHILD_OF(this), CHILD_OF(this)->fops->readv, fd, size, offset, flags, xdata);
    return 0;
}

static int32_t sluice_readv(call_frame_t *frame, xlator_t *this, fd_t *fd, size_t size, off_t offset, uint32_t flags,
                            dict_t *xdata)
{
    call_stub_t *stub = fop_readv_stub(frame, readv_wind, fd, size, offset, flags, xdata);
    if (!stub)
        return default_readv_failure_cbk(frame, ENOMEM);
    schedule(frame, this, stub, fd->inode, (uint64_t)offset, size, SLUICE_READ, xdata);
    return 0;
}

static int32_t writev_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error,
                          struct iatt *before, struct iatt *after, dict_t *xdata)
{
    TAKE(frame);
    (void)cookie;
    STACK_UNWIND_STRICT(writev, frame, result, error, before, after, xdata);
    ended(this, call, result, error);
    return 0;
}

static int32_t writev_wind(call_frame_t *frame, xlator_t *this, fd_t *fd, struct iovec *vector, int32_t count,
                           off_t offset, uint32_t flags, struct iobref *iobref, dict_t *xdata)
{
    STACK_WIND(frame, writev_cbk, CHILD_OF(this), CHILD_OF(this)->fops->writev, fd, vector, count, offset, flags,
               iobref, xdata);
    return 0;
}

static int32_t sluice_writev(call_frame_t *frame, xlator_t *this, fd_t *fd, struct iovec *vector, int32_t count,
                             off_t offset, uint32_t flags, struct iobref *iobref, dict_t *xdata)
{
    call_stub_t *stub = fop_writev_stub(frame, writev_wind, fd, vector, count, offset, flags, iobref, xdata);
    if (!stub)
        return default_writev_failure_cbk(frame, ENOMEM);
    /* Where an append goes is not what its offset says: it keeps its place among all others. */
    if ((fd->flags | (int32_t)flags) & O_APPEND)
        order(frame, this, stub, fd->inode, ORDER_FENCE);
    else
        schedule(frame, this, stub, fd->inode, (uint64_t)offset, iov_length(vector, count), SLUICE_WRITE, xdata);
    return 0;
}

static int32_t flush_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error,
                         dict_t *xdata)
{
    TAKE(frame);
    (void)cookie;
    STACK_UNWIND_STRICT(flush, frame, result, error, xdata);
    ended(this, call, result, error);
    return 0;
}

static int32_t flush_wind(call_frame_t *frame, xlator_t *this, fd_t *fd, dict_t *xdata)
{
    STACK_WIND(frame, flush_cbk, CHILD_OF(this), CHILD_OF(this)->fops->flush, fd, xdata);
    return 0;
}

static int32_t sluice_flush(call_frame_t *frame, xlator_t *this, fd_t *fd, dict_t *xdata)
{
    call_stub_t *stub = fop_flush_stub(frame, flush_wind, fd, xdata);
    if (!stub)
        return default_flush_failure_cbk(frame, ENOMEM);
    order(frame, this, stub, fd->inode, ORDER_BARRIER);
    return 0;
}

/* The operations below answer with the attributes before and after. */
#define ORDERED(fop, kind, inode_of, parameters, arguments)                                                            \
    static int32_t fop##_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error,         \
                             struct iatt *before, struct iatt *after, dict_t *xdata)                                   \
    {                                                                                                                  \
        TAKE(frame);                                                                                                   \
        (void)cookie;                                                                                                  \
        STACK_UNWIND_STRICT(fop, frame, result, error, before, after, xdata);                                          \
        ended(this, call, result, error);                                                                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static int32_t fop##_wind parameters                                                                               \
    {                                                                                                                  \
        STACK_WIND(frame, fop##_cbk, CHILD_OF(this), CHILD_OF(this)->fops->fop, arguments);                            \
        return 0;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static int32_t sluice_##fop parameters                                                                             \
    {                                                                                                                  \
        call_stub_t *stub = fop_##fop##_stub(frame, fop##_wind, arguments);                                            \
        if (!stub)                                                                                                     \
            return default_##fop##_failure_cbk(frame, ENOMEM);                                                         \
        order(frame, this, stub, inode_of, kind);                                                                      \
        return 0;                                                                                                      \
    }

#define ARGUMENTS(...) __VA_ARGS__

ORDERED(fsync, ORDER_BARRIER, fd->inode, (call_frame_t * frame, xlator_t *this, fd_t *fd, int32_t datasync, dict_t *xdata),
        ARGUMENTS(fd, datasync, xdata))
ORDERED(truncate, ORDER_FENCE, loc->inode, (call_frame_t * frame, xlator_t *this, loc_t *loc, off_t size, dict_t *xdata),
        ARGUMENTS(loc, size, xdata))
ORDERED(ftruncate, ORDER_FENCE, fd->inode, (call_frame_t * frame, xlator_t *this, fd_t *fd, off_t size, dict_t *xdata),
        ARGUMENTS(fd, size, xdata))
ORDERED(fallocate, ORDER_FENCE, fd->inode,
        (call_frame_t * frame, xlator_t *this, fd_t *fd, int32_t mode, off_t offset, size_t len, dict_t *xdata),
        ARGUMENTS(fd, mode, offset, len, xdata))
ORDERED(discard, ORDER_FENCE, fd->inode,
        (call_frame_t * frame, xlator_t *this, fd_t *fd, off_t offset, size_t len, dict_t *xdata),
        ARGUMENTS(fd, offset, len, xdata))
ORDERED(zerofill, ORDER_FENCE, fd->inode,
        (call_frame_t * frame, xlator_t *this, fd_t *fd, off_t offset, off_t len, dict_t *xdata),
        ARGUMENTS(fd, offset, len, xdata))

static int32_t copy_file_range_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error,
                                   struct iatt *stat, struct iatt *before, struct iatt *after, dict_t *xdata)
{
    TAKE(frame);
    (void)cookie;
    STACK_UNWIND_STRICT(copy_file_range, frame, result, error, stat, before, after, xdata);
    ended(this, call, result, error);
    return 0;
}

static int32_t copy_file_range_wind(call_frame_t *frame, xlator_t *this, fd_t *from, off64_t from_offset, fd_t *to,
                                    off64_t to_offset, size_t len, uint32_t flags, dict_t *xdata)
{
    STACK_WIND(frame, copy_file_range_cbk, CHILD_OF(this), CHILD_OF(this)->fops->copy_file_range, from, from_offset,
               to, to_offset, len, flags, xdata);
    return 0;
}

static int32_t sluice_copy_file_range(call_frame_t *frame, xlator_t *this, fd_t *from, off64_t from_offset, fd_t *to,
                                      off64_t to_offset, size_t len, uint32_t flags, dict_t *xdata)
{
    call_stub_t *stub =
        fop_copy_file_range_stub(frame, copy_file_range_wind, from, from_offset, to, to_offset, len, flags, xdata);
    if (!stub)
        return default_copy_file_range_failure_cbk(frame, ENOMEM);
    order_both(frame, this, stub, from->inode, to->inode);
    return 0;
}

/* Above, features/shard makes the pieces of a file with what a write has with it, and the storage would keep that as an attribute. */
static int32_t sluice_mknod(call_frame_t *frame, xlator_t *this, loc_t *loc, mode_t mode, dev_t device, mode_t umask,
                            dict_t *xdata)
{
    if (xdata)
        dict_del_sizen(xdata, JOB_KEY);
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->mknod, loc, mode, device, umask, xdata);
    return 0;
}

/* A client's word for its job, beside what is there already. */
static dict_t *marked(const xlator_t *this, dict_t *xdata)
{
    const struct translator *translator = this->private;
    dict_t *words = xdata ? dict_ref(xdata) : dict_new();
    /* Without memory for it the request is of no job. */
    if (words && dict_set_dynstr_with_alloc(words, JOB_KEY, translator->job))
        gf_log(this->name, GF_LOG_DEBUG, "no memory for the job's name");
    return words;
}

static void unmark(dict_t *words)
{
    if (words)
        dict_unref(words);
}

static int32_t mark_readv(call_frame_t *frame, xlator_t *this, fd_t *fd, size_t size, off_t offset, uint32_t flags,
                          dict_t *xdata)
{
    dict_t *words = marked(this, xdata);
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->readv, fd, size, offset, flags, words);
    unmark(words);
    return 0;
}

static int32_t mark_writev(call_frame_t *frame, xlator_t *this, fd_t *fd, struct iovec *vector, int32_t count,
                           off_t offset, uint32_t flags, struct iobref *iobref, dict_t *xdata)
{
    dict_t *words = marked(this, xdata);
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->writev, fd, vector, count, offset, flags, iobref,
                    words);
    unmark(words);
    return 0;
}

/* The same in all graphs of a process; what is not here GlusterFS has filled in. */
static struct xlator_fops marking;

/* Once: a graph that is being replaced uses them while the next one begins. */
static void make_marking(void)
{
    struct xlator_fops fops = sluice_fops;
    fops.readv = mark_readv;
    fops.writev = mark_writev;
    fops.flush = default_flush;
    fops.fsync = default_fsync;
    fops.truncate = default_truncate;
    fops.ftruncate = default_ftruncate;
    fops.fallocate = default_fallocate;
    fops.discard = default_discard;
    fops.zerofill = default_zerofill;
    fops.copy_file_range = default_copy_file_range;
    marking = fops;
}

void mark_only(xlator_t *this)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_marking);
    this->fops = &marking;
}

struct xlator_fops sluice_fops = {
    .readv = sluice_readv,
    .writev = sluice_writev,
    .flush = sluice_flush,
    .fsync = sluice_fsync,
    .truncate = sluice_truncate,
    .ftruncate = sluice_ftruncate,
    .fallocate = sluice_fallocate,
    .discard = sluice_discard,
    .zerofill = sluice_zerofill,
    .copy_file_range = sluice_copy_file_range,
    .mknod = sluice_mknod,
};
