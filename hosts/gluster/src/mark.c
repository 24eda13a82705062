/*
 * In a client's graph: nothing is scheduled, but servers are told with each read and write which job it is of. Programs say that
 * themselves, by attributes of any file of the mount that are not stored (announced.h); of others it is what the option says.
 *
 * It is told here because here is where the process can be known: a request that is on its way has the number of a thread, of which
 * there are others with the same number on other clients, and several in a program. And all servers are told, whichever have which
 * part of a file. What programs do they are told once, when that changes (phases.c).
 */
#include "translator.h"
#include "announced.h"

#include <errno.h>

#include <glusterfs/statedump.h>

#define JOB_NAME ANNOUNCE_PREFIX "job"
#define APP_NAME ANNOUNCE_PREFIX "app"

/* Processes of a client that are remembered. */
#define MOST 4096

/* One for all graphs: what programs have said outlives a graph that is replaced. */
static struct announced *announced;

static uint32_t thread_of(const call_frame_t *frame)
{
    /* GlusterFS's own work has numbers below 0. */
    return frame->root->pid > 0 ? (uint32_t)frame->root->pid : 0;
}

/* Of whom a request is; NULL: of nobody in particular. */
static const char *job_of(const call_frame_t *frame, const struct translator *translator, char said[ANNOUNCED_NAME + 1])
{
    return announced_job_of(announced, thread_of(frame), said) ? said : translator->job;
}

/* The word for its job, beside what is there already; nothing, if there is neither. */
static dict_t *marked(const call_frame_t *frame, const xlator_t *this, dict_t *xdata)
{
    char said[ANNOUNCED_NAME + 1];
    const char *job = job_of(frame, this->private, said);
    if (!job)
        return xdata ? dict_ref(xdata) : NULL;
    dict_t *words = xdata ? dict_ref(xdata) : dict_new();
    /* Without memory for it the request is of no job. */
    if (words && (dict_set_uint32(words, UID_KEY, frame->root->uid) || dict_set_dynstr_with_alloc(words, JOB_KEY, job)))
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
    dict_t *words = marked(frame, this, xdata);
    STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->readv, fd, size, offset, flags, words);
    unmark(words);
    return 0;
}

static int32_t mark_writev(call_frame_t *frame, xlator_t *this, fd_t *fd, struct iovec *vector, int32_t count,
                           off_t offset, uint32_t flags, struct iobref *iobref, dict_t *xdata)
{
    dict_t *words = marked(frame, this, xdata);
    STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->writev, fd, vector, count, offset, flags, iobref,
                    words);
    unmark(words);
    return 0;
}

/* A process says something of itself, at an inode: 0, or why that is not heard. */
static int hear(const call_frame_t *frame, xlator_t *this, inode_t *inode, dict_t *words)
{
    const data_t *job = dict_get_sizen(words, JOB_NAME);
    const data_t *phase = dict_get_sizen(words, PHASE_NAME);
    struct announced_news news = {.is_news = false};
    if (job)
        return announced_job(announced, thread_of(frame), frame->root->uid, job->data, job->len > 0 ? (size_t)job->len : 0);
    /* What a process is served as is only read. */
    if (!phase)
        return EOPNOTSUPP;
    int error = announced_phase(announced, thread_of(frame), phase->data, phase->len > 0 ? (size_t)phase->len : 0, &news);
    if (news.is_news)
        phase_tell(this, inode, &news);
    return error;
}

static int32_t mark_setxattr(call_frame_t *frame, xlator_t *this, loc_t *loc, dict_t *words, int32_t flags, dict_t *xdata)
{
    if (is_announcement(words)) {
        int error = hear(frame, this, loc->inode, words);
        int32_t result = error ? -1 : 0;
        STACK_UNWIND_STRICT(setxattr, frame, result, error, NULL);
    } else {
        STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->setxattr, loc, words, flags, xdata);
    }
    return 0;
}

static int32_t mark_fsetxattr(call_frame_t *frame, xlator_t *this, fd_t *fd, dict_t *words, int32_t flags, dict_t *xdata)
{
    if (is_announcement(words)) {
        int error = hear(frame, this, fd->inode, words);
        int32_t result = error ? -1 : 0;
        STACK_UNWIND_STRICT(fsetxattr, frame, result, error, NULL);
    } else {
        STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->fsetxattr, fd, words, flags, xdata);
    }
    return 0;
}

/* As whom the caller is served: `job=run-17 uid=1000`, `uid=1000`. NULL: no memory. */
static dict_t *served_as(const call_frame_t *frame, const xlator_t *this)
{
    char said[ANNOUNCED_NAME + 1];
    char *text = NULL;
    const char *job = job_of(frame, this->private, said);
    int len = gf_asprintf(&text, "%s%s%suid=%u", job ? "job=" : "", job ? job : "", job ? " " : "", frame->root->uid);
    if (len < 0)
        return NULL;
    dict_t *words = dict_new();
    /* Not as a string: its last zero would be told, too. */
    if (words && !dict_set_dynptr(words, APP_NAME, text, (size_t)len))
        return words;
    if (words)
        dict_unref(words);
    else
        GF_FREE(text);
    return NULL;
}

static int32_t mark_getxattr(call_frame_t *frame, xlator_t *this, loc_t *loc, const char *name, dict_t *xdata)
{
    if (name && !strcmp(name, APP_NAME)) {
        dict_t *words = served_as(frame, this);
        STACK_UNWIND_STRICT(getxattr, frame, words ? 0 : -1, words ? 0 : ENOMEM, words, NULL);
        unmark(words);
    } else if (is_announced_name(name)) {
        STACK_UNWIND_STRICT(getxattr, frame, -1, EOPNOTSUPP, NULL, NULL);
    } else {
        STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->getxattr, loc, name, xdata);
    }
    return 0;
}

static int32_t mark_fgetxattr(call_frame_t *frame, xlator_t *this, fd_t *fd, const char *name, dict_t *xdata)
{
    if (name && !strcmp(name, APP_NAME)) {
        dict_t *words = served_as(frame, this);
        STACK_UNWIND_STRICT(fgetxattr, frame, words ? 0 : -1, words ? 0 : ENOMEM, words, NULL);
        unmark(words);
    } else if (is_announced_name(name)) {
        STACK_UNWIND_STRICT(fgetxattr, frame, -1, EOPNOTSUPP, NULL, NULL);
    } else {
        STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->fgetxattr, fd, name, xdata);
    }
    return 0;
}

/* The same in all graphs of a process; what is not here GlusterFS has filled in. */
static struct xlator_fops marking;

/* Once: a graph that is being replaced uses them while the next one begins. */
static void begin(void)
{
    struct xlator_fops fops = sluice_fops;
    fops.lookup = default_lookup;
    fops.readv = mark_readv;
    fops.writev = mark_writev;
    fops.setxattr = mark_setxattr;
    fops.fsetxattr = mark_fsetxattr;
    fops.getxattr = mark_getxattr;
    fops.fgetxattr = mark_fgetxattr;
    fops.flush = default_flush;
    fops.fsync = default_fsync;
    fops.truncate = default_truncate;
    fops.ftruncate = default_ftruncate;
    fops.fallocate = default_fallocate;
    fops.discard = default_discard;
    fops.zerofill = default_zerofill;
    fops.copy_file_range = default_copy_file_range;
    marking = fops;
    announced = announced_new("/proc", MOST);
}

int mark_only(xlator_t *this)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    if (!announced)
        return -1;
    this->fops = &marking;
    return 0;
}

void mark_dump(void)
{
    size_t count = 0;
    struct announced_program *programs = announced_programs(announced, &count);
    for (size_t i = 0; i < count; i++) {
        const struct announced_program *program = &programs[i];
        gf_proc_dump_write("program", "job=%s uid=%u computing=%u in-io=%u in-batch=%u batches=%" PRIu64 " batch-bytes=%" PRIu64,
                           program->job, program->uid, program->computing, program->in_io, program->in_batch,
                           program->batches, program->batch_bytes);
    }
    free(programs);
}
