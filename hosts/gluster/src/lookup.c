#include "translator.h"

#include <errno.h>
#include <glusterfs/timer.h>

/*
 * A file that somebody creates is there a moment before its GFID is, and the storage answers a lookup in between with ENODATA. Up to
 * version 10 cluster/distribute then looks it up for ever, and whoever asked hangs (https://github.com/gluster/glusterfs/issues/3688):
 * eight processes that open one new file at a time, as programs with MPI do, meet it once in some ten files. Here the lookup is sent
 * again a moment later, so that distribute never sees that answer. A file that stays without one, because it was put into a data
 * server's directory by hand, keeps it: distribute gives it a GFID by the lookup that comes next.
 */

/* 1, 2, 4, ... ms: a second in all, for which GlusterFS takes a file without a GFID for one that is being made. */
#define TRIES 10
#define FIRST_NS 1000000L

/* A lookup on its way: the local of its frame. */
struct lookup {
    loc_t loc;
    dict_t *xdata;
    unsigned tries;
};

static void lookup_free(struct lookup *lookup)
{
    loc_wipe(&lookup->loc);
    if (lookup->xdata)
        dict_unref(lookup->xdata);
    GF_FREE(lookup);
}

static void ask(call_frame_t *frame, xlator_t *this);

static void ask_again(void *data)
{
    call_frame_t *frame = data;
    ask(frame, frame->this);
}

/* Whether it will be sent again. */
static bool postpone(call_frame_t *frame, xlator_t *this, struct lookup *lookup)
{
    if (lookup->tries == TRIES)
        return false;
    long delay = FIRST_NS << lookup->tries++;
    return gf_timer_call_after(this->ctx, (struct timespec){delay / 1000000000, delay % 1000000000}, ask_again, frame);
}

static int32_t lookup_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error, inode_t *inode,
                          struct iatt *stat, dict_t *xdata, struct iatt *parent)
{
    struct translator *translator = this->private;
    struct lookup *lookup = frame->local;
    (void)cookie;
    if (result < 0 && error == ENODATA && postpone(frame, this, lookup))
        return 0;
    frame->local = NULL;
    STACK_UNWIND_STRICT(lookup, frame, result, error, inode, stat, xdata, parent);
    lookup_free(lookup);
    atomic_fetch_sub(&translator->calls, 1);
    return 0;
}

static void ask(call_frame_t *frame, xlator_t *this)
{
    struct lookup *lookup = frame->local;
    xlator_t *child = FIRST_CHILD(this);
    STACK_WIND(frame, lookup_cbk, child, child->fops->lookup, &lookup->loc, lookup->xdata);
}

void lookup_start(call_frame_t *frame, xlator_t *this, loc_t *loc, dict_t *xdata)
{
    struct translator *translator = this->private;
    struct lookup *lookup = GF_CALLOC(1, sizeof(*lookup), MEMORY_LOOKUP);
    if (!lookup || loc_copy(&lookup->loc, loc)) {
        if (lookup)
            lookup_free(lookup);
        default_lookup_failure_cbk(frame, ENOMEM);
        return;
    }
    lookup->xdata = xdata ? dict_ref(xdata) : NULL;
    frame->local = lookup;
    atomic_fetch_add(&translator->calls, 1);
    ask(frame, this);
}
