#include "translator.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

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
    if (xdata) {
        dict_del_sizen(xdata, JOB_KEY);
        dict_del_sizen(xdata, UID_KEY);
    }
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->mknod, loc, mode, device, umask, xdata);
    return 0;
}

bool is_announced_name(const char *name)
{
    return name && !strncmp(name, ANNOUNCE_PREFIX, strlen(ANNOUNCE_PREFIX));
}

static gf_boolean_t is_announced(dict_t *words, char *name, data_t *value, void *data)
{
    (void)words;
    (void)value;
    (void)data;
    return is_announced_name(name);
}

bool is_announcement(dict_t *words)
{
    return words && dict_foreach_match(words, is_announced, NULL, dict_null_foreach_fn, NULL) > 0;
}

/* Whether data servers come behind it: it is in an I/O node. */
static bool forwards(const xlator_t *this)
{
    return !strcmp(CHILD_OF(this)->type, "protocol/client");
}

/*
 * What programs say of themselves ends here: a storage that is a mount of Sluicegate would take it for what this process says. What is not
 * a translator's word of what they do comes from a client without one, which nobody hears.
 */
static int32_t sluice_setxattr(call_frame_t *frame, xlator_t *this, loc_t *loc, dict_t *words, int32_t flags, dict_t *xdata)
{
    bool is_said = is_announcement(words);
    if (is_said && !(forwards(this) && xdata && dict_get_sizen(xdata, JOB_KEY))) {
        int error = phase_hear(this, words, xdata);
        int32_t result = error ? -1 : 0;
        STACK_UNWIND_STRICT(setxattr, frame, result, error, NULL);
        return 0;
    }
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->setxattr, loc, words, flags, xdata);
    return 0;
}

static int32_t sluice_fsetxattr(call_frame_t *frame, xlator_t *this, fd_t *fd, dict_t *words, int32_t flags, dict_t *xdata)
{
    if (is_announcement(words))
        return default_fsetxattr_failure_cbk(frame, EOPNOTSUPP);
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->fsetxattr, fd, words, flags, xdata);
    return 0;
}

static int32_t sluice_getxattr(call_frame_t *frame, xlator_t *this, loc_t *loc, const char *name, dict_t *xdata)
{
    if (is_announced_name(name))
        return default_getxattr_failure_cbk(frame, EOPNOTSUPP);
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->getxattr, loc, name, xdata);
    return 0;
}

static int32_t sluice_fgetxattr(call_frame_t *frame, xlator_t *this, fd_t *fd, const char *name, dict_t *xdata)
{
    if (is_announced_name(name))
        return default_fgetxattr_failure_cbk(frame, EOPNOTSUPP);
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->fgetxattr, fd, name, xdata);
    return 0;
}

static int32_t sluice_lookup(call_frame_t *frame, xlator_t *this, loc_t *loc, dict_t *xdata)
{
    if (forwards(this) && loc->name) {
        lookup_start(frame, this, loc, xdata);
        return 0;
    }
    STACK_WIND_TAIL(frame, CHILD_OF(this), CHILD_OF(this)->fops->lookup, loc, xdata);
    return 0;
}

struct xlator_fops sluice_fops = {
    .lookup = sluice_lookup,
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
    .setxattr = sluice_setxattr,
    .fsetxattr = sluice_fsetxattr,
    .getxattr = sluice_getxattr,
    .fgetxattr = sluice_fgetxattr,
};
