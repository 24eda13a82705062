/*
 * What programs do, on its way from the translator of a client, which hears it, to those of the data servers, whose coordinator wants
 * to know (docs/orchestration.md).
 *
 * It goes as an attribute of the root of the volume, which is the one file that all data servers have: what distributes files sets it on all
 * of them. The first translator above a storage takes it; none stores it. It is the client's word and not the user's, who need not
 * be allowed to write there; of whose program it is it says as the client says whose requests it sends.
 */
#include "translator.h"
#include "announced.h"

#include <errno.h>
#include <string.h>

#define CLIENT_KEY "sluice.client"
#define NUMBER_KEY "sluice.number"

static int32_t told(call_frame_t *frame, void *cookie, xlator_t *this, int32_t result, int32_t error, dict_t *xdata)
{
    (void)cookie;
    (void)xdata;
    if (result < 0)
        gf_log(this->name, GF_LOG_DEBUG, "not all servers heard what a program does: %s", strerror(error));
    STACK_DESTROY(frame->root);
    return 0;
}

/* Which client speaks: the same at all servers, also behind I/O nodes. */
static uint64_t speaker(const xlator_t *this)
{
    const char *name = this->ctx->process_uuid;
    return name ? fnv1a(HASH_NOTHING, name, strlen(name)) : 0;
}

static dict_t *message(const xlator_t *this, const struct announced_news *news)
{
    dict_t *xdata = dict_new();
    if (!xdata)
        return NULL;
    if (!dict_set_dynstr_with_alloc(xdata, JOB_KEY, news->job) && !dict_set_uint32(xdata, UID_KEY, news->uid) &&
        !dict_set_uint64(xdata, CLIENT_KEY, speaker(this)) && !dict_set_uint64(xdata, NUMBER_KEY, news->number))
        return xdata;
    dict_unref(xdata);
    return NULL;
}

void phase_tell(xlator_t *this, inode_t *inode, const struct announced_news *news)
{
    inode_t *root = inode && inode->table ? inode->table->root : NULL;
    dict_t *words = dict_new();
    dict_t *xdata = message(this, news);
    call_frame_t *frame = root && words && xdata ? create_frame(this, this->ctx->pool) : NULL;
    if (frame && !dict_set_dynstr_with_alloc(words, PHASE_NAME, news->computes ? "compute" : "io")) {
        loc_t loc = {.path = "/", .name = "", .inode = root};
        gf_uuid_copy(loc.gfid, root->gfid);
        frame->root->op = GF_FOP_SETXATTR;
        frame->root->uid = frame->root->gid = 0;
        STACK_WIND(frame, told, FIRST_CHILD(this), FIRST_CHILD(this)->fops->setxattr, &loc, words, 0, xdata);
    } else if (frame) {
        STACK_DESTROY(frame->root);
    }
    if (words)
        dict_unref(words);
    if (xdata)
        dict_unref(xdata);
}

int phase_hear(xlator_t *this, dict_t *words, dict_t *xdata)
{
    struct translator *translator = this->private;
    const data_t *phase = dict_get_sizen(words, PHASE_NAME);
    uint32_t uid;
    uint64_t client, number;
    if (!phase || !phase->data || !xdata || !dict_get_sizen(xdata, JOB_KEY) || dict_get_uint32(xdata, UID_KEY, &uid) ||
        dict_get_uint64(xdata, CLIENT_KEY, &client) || dict_get_uint64(xdata, NUMBER_KEY, &number))
        return EOPNOTSUPP;
    static const char compute[] = "compute";
    size_t length = strnlen(phase->data, (size_t)phase->len);
    bool computes = length == sizeof compute - 1 && !memcmp(phase->data, compute, length);
    if (sluice_activity(translator->client, application(NULL, uid, xdata), client, number, computes) != SLUICE_OK)
        gf_log(this->name, GF_LOG_WARNING, "what a program does: %s", sluice_last_error());
    return 0;
}
