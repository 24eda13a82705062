#include "translator.h"

#include <glusterfs/statedump.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Of GlusterFS's numbers for translators one that it leaves to others. */
#define XLATOR_ID 0x736c7567

static struct volume_options options[] = {
    {
        .key = {"policy"},
        .type = GF_OPTION_TYPE_STR,
        .value = {"noop", "to", "to-agg", "sjf", "mlf", "aioli", "sw", "twins", "hbrr", "wfq"},
        .default_value = "hbrr",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "The algorithm that reads and writes are scheduled by.",
    },
    {
        .key = {"policy-parameters"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "Parameters of the algorithm, as in 'window=2ms' (twins) or 'wait_time=500us quantum=16K' (mlf).",
    },
    {
        .key = {"scheduler"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "Translators of a process with the same name here share one scheduler, each as a target of it: "
                       "in an I/O node, one for each data server. Empty: a scheduler of its own.",
    },
    {
        .key = {"in-flight"},
        .type = GF_OPTION_TYPE_INT,
        .min = 0,
        .max = 65536,
        .default_value = "16",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "Most batches under way at a time, of all translators that share the scheduler; more would "
                       "leave nothing to choose from. 0: no limit, so that nothing is ever reordered.",
    },
    {
        .key = {"batch-size"},
        .type = GF_OPTION_TYPE_SIZET,
        .min = 4096,
        .max = 1 << 30,
        .default_value = "1MB",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "Most bytes of requests that are served as one.",
    },
    {
        .key = {"merge"},
        .type = GF_OPTION_TYPE_BOOL,
        .default_value = "on",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "Contiguous requests through one open file go down as one operation. off: one after the other.",
    },
    {
        .key = {"max-wait"},
        .type = GF_OPTION_TYPE_INT,
        .min = 1,
        .max = 3600000,
        .default_value = "500",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "Milliseconds after which a request goes next whatever the algorithm prefers.",
    },
    {
        .key = {"capacity"},
        .type = GF_OPTION_TYPE_INT,
        .min = 1,
        .max = 1048576,
        .default_value = "32768",
        .flags = OPT_FLAG_DOC,
        .description = "Most requests in the scheduler. More wait in order of arrival.",
    },
    {
        .key = {"shards"},
        .type = GF_OPTION_TYPE_INT,
        .min = 1,
        .max = 64,
        .default_value = "1",
        .flags = OPT_FLAG_DOC,
        .description = "Engines of the scheduler; targets take turns. twins needs 1.",
    },
    {
        .key = {"positioning-time"},
        .type = GF_OPTION_TYPE_INT,
        .min = 0,
        .max = 1000000,
        .default_value = "0",
        .flags = OPT_FLAG_SETTABLE | OPT_FLAG_DOC,
        .description = "Microseconds that reading from another place costs the device, about 8000 for a hard disk: it is "
                       "kept idle for the stream it serves where that pays. 0: never.",
    },
    {
        .key = {"profile"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "The device's profile (sluice profile). Without one predictions do not wait.",
    },
    {
        .key = {"predict"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "A trace of earlier runs that requests are predicted from.",
    },
    {
        .key = {"learn"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "A file in which what repeats is kept, to predict that.",
    },
    {
        .key = {"target"},
        .type = GF_OPTION_TYPE_INT,
        .min = -1,
        .max = 1023,
        .default_value = "-1",
        .flags = OPT_FLAG_DOC,
        .description = "Which target of the shared scheduler this is: the number of the data server, the same in all I/O "
                       "nodes, since twins tells them apart by it. -1: the first that is free.",
    },
    {
        .key = {"selector"},
        .type = GF_OPTION_TYPE_STR,
        .value = {"fixed", "bandit", "tree", "tree+bandit"},
        .default_value = "fixed",
        .flags = OPT_FLAG_DOC,
        .description = "Who chooses the algorithm: fixed is what policy says, bandit finds out what is best while running, tree "
                       "asks a trained model, tree+bandit begins with what that expects.",
    },
    {
        .key = {"selector-state"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "A file in which a selector keeps what it has learned.",
    },
    {
        .key = {"coordinator"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "HOST:PORT of a coordinator (sluice coordinate), which then chooses the algorithm where policy is twins: "
                       "that and its parameters are where it begins. Requests never wait for it.",
    },
    {
        .key = {"coordinator-name"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "Names this scheduler among all of the coordinator. Empty: host, process and volume.",
    },
    {
        .key = {"coordinator-token"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "A file with the coordinator's secret in its first line. Empty: it has none.",
    },
    {
        .key = {"metrics"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "ADDRESS:PORT where GET /metrics is answered for Prometheus, for each scheduler another one. Empty: nowhere.",
    },
    {
        .key = {"shard-size"},
        .type = GF_OPTION_TYPE_SIZET,
        .min = 0,
        .max = 4ULL << 40,
        .default_value = "0",
        .flags = OPT_FLAG_DOC,
        .description = "Bytes of a piece where features/shard is above: pieces are taken for what they are parts of. 0: each is "
                       "a file of its own.",
    },
    {
        .key = {"job"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "In a client's graph: nothing is scheduled, but reads and writes are marked as those of this job, so that "
                       "the translators behind it tell its jobs apart. Empty: it schedules.",
    },
    {
        .key = {"announce"},
        .type = GF_OPTION_TYPE_BOOL,
        .default_value = "off",
        .flags = OPT_FLAG_DOC,
        .description = "In a client's graph: nothing is scheduled, but reads and writes are marked as those of the job that their "
                       "program names (sluice mpirun), or of that of the option job.",
    },
    {
        .key = {"trace"},
        .type = GF_OPTION_TYPE_STR,
        .default_value = "",
        .flags = OPT_FLAG_DOC,
        .description = "A new file in which all requests are recorded, for sluice trace and predict.",
    },
    {.key = {NULL}},
};

static int read_settings(struct settings *settings)
{
    GF_OPTION_INIT("policy", settings->policy, str, failed);
    GF_OPTION_INIT("policy-parameters", settings->parameters, str, failed);
    GF_OPTION_INIT("scheduler", settings->scheduler, str, failed);
    GF_OPTION_INIT("profile", settings->profile, str, failed);
    GF_OPTION_INIT("predict", settings->predict, str, failed);
    GF_OPTION_INIT("learn", settings->learn, str, failed);
    GF_OPTION_INIT("trace", settings->trace, str, failed);
    GF_OPTION_INIT("selector", settings->selector, str, failed);
    GF_OPTION_INIT("selector-state", settings->selector_state, str, failed);
    GF_OPTION_INIT("coordinator", settings->coordinator, str, failed);
    GF_OPTION_INIT("coordinator-name", settings->coordinator_name, str, failed);
    GF_OPTION_INIT("coordinator-token", settings->coordinator_token, str, failed);
    GF_OPTION_INIT("metrics", settings->metrics, str, failed);
    GF_OPTION_INIT("job", settings->job, str, failed);
    GF_OPTION_INIT("announce", settings->announce, bool, failed);
    GF_OPTION_INIT("shard-size", settings->shard_bytes, size_uint64, failed);
    GF_OPTION_INIT("target", settings->target, int32, failed);
    GF_OPTION_INIT("in-flight", settings->in_flight, uint32, failed);
    GF_OPTION_INIT("shards", settings->shards, uint32, failed);
    GF_OPTION_INIT("capacity", settings->capacity, uint32, failed);
    GF_OPTION_INIT("batch-size", settings->batch_bytes, size_uint64, failed);
    GF_OPTION_INIT("max-wait", settings->max_wait_ms, uint32, failed);
    GF_OPTION_INIT("positioning-time", settings->positioning_us, uint32, failed);
    GF_OPTION_INIT("merge", settings->merge, bool, failed);
    return 0;
failed:
    return -1;
}

static int32_t mem_acct_init(xlator_t *this)
{
    return xlator_mem_acct_init(this, MEMORY_END + 1);
}

/* In a client's graph. 0, or -1: no memory. */
static int begin_marking(struct translator *translator, const struct settings *settings)
{
    xlator_t *this = translator->this;
    if (*settings->job) {
        /* Options are GlusterFS's, which may replace them. */
        translator->job = gf_strdup(settings->job);
        if (!translator->job)
            return -1;
    }
    if (mark_only(this)) {
        GF_FREE(translator->job);
        return -1;
    }
    translator->marks = true;
    this->private = translator;
    gf_log(this->name, GF_LOG_INFO, "requests are of the jobs that programs name%s%s", translator->job ? ", others of " : "",
           translator->job ? translator->job : "");
    return 0;
}

static int32_t init(xlator_t *this)
{
    struct settings settings = {0};
    if (!this->children || this->children->next) {
        gf_log(this->name, GF_LOG_ERROR, "a translator of type sluice has one subvolume, not %s",
               this->children ? "several" : "none");
        return -1;
    }
    if (!this->parents)
        gf_log(this->name, GF_LOG_WARNING, "no volume uses this one");
    struct translator *translator = GF_CALLOC(1, sizeof(*translator), MEMORY_TRANSLATOR);
    if (!translator)
        return -1;
    translator->this = this;
    GF_ATOMIC_INIT(translator->ordered, 0);
    GF_ATOMIC_INIT(translator->merged, 0);
    GF_ATOMIC_INIT(translator->merged_requests, 0);
    if (read_settings(&settings)) {
        GF_FREE(translator);
        return -1;
    }
    translator->shard_bytes = settings.shard_bytes;
    if (*settings.job || settings.announce) {
        if (begin_marking(translator, &settings)) {
            GF_FREE(translator);
            return -1;
        }
        return 0;
    }
    translator->workers = workers_new(translator);
    if (!translator->workers || group_join(translator, &settings)) {
        if (translator->workers)
            workers_free(translator->workers);
        GF_FREE(translator);
        return -1;
    }
    translator->merge = settings.merge;
    this->private = translator;
    gf_log(this->name, GF_LOG_INFO, "policy %s, target %u%s%s", settings.policy, translator->target,
           *group_name(translator->group) ? " of scheduler " : "", group_name(translator->group));
    return 0;
}

static int32_t reconfigure(xlator_t *this, dict_t *wanted)
{
    struct translator *translator = this->private;
    struct settings settings = {0};
    if (translator->marks)
        return 0;
    GF_OPTION_RECONF("policy", settings.policy, wanted, str, failed);
    GF_OPTION_RECONF("policy-parameters", settings.parameters, wanted, str, failed);
    GF_OPTION_RECONF("in-flight", settings.in_flight, wanted, uint32, failed);
    GF_OPTION_RECONF("batch-size", settings.batch_bytes, wanted, size_uint64, failed);
    GF_OPTION_RECONF("max-wait", settings.max_wait_ms, wanted, uint32, failed);
    GF_OPTION_RECONF("positioning-time", settings.positioning_us, wanted, uint32, failed);
    GF_OPTION_RECONF("merge", settings.merge, wanted, bool, failed);
    if (group_change(translator, &settings))
        goto failed;
    translator->merge = settings.merge;
    return 0;
failed:
    return -1;
}

static void fini(xlator_t *this)
{
    struct translator *translator = this->private;
    if (!translator)
        return;
    if (!translator->marks) {
        group_leave(translator);
        workers_free(translator->workers);
    }
    this->private = NULL;
    GF_FREE(translator->job);
    GF_FREE(translator);
}

static int32_t forget(xlator_t *this, inode_t *inode)
{
    uint64_t known = 0;
    if (!inode_ctx_del(inode, this, &known) && known)
        file_forget((struct file *)(uintptr_t)known);
    return 0;
}

static const char *const operations[] = {"read", "write"};

/* What is told of a translator, one value at a time. */
static void tell(struct translator *translator, void (*say)(void *to, const char *key, uint64_t value), void *to)
{
    struct sluice_counters counters = {.struct_size = sizeof(counters)};
    char key[64];
    if (sluice_stats(translator->client, SLUICE_TOTAL, &counters) != SLUICE_OK)
        return;
    for (int op = 0; op < 2; op++) {
        const struct {
            const char *name;
            uint64_t value;
        } values[] = {
            {"submitted", counters.submitted[op]},
            {"completed", counters.completed[op]},
            {"errors", counters.errors[op]},
            {"bytes", counters.bytes[op]},
        };
        for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
            snprintf(key, sizeof(key), "%s.%s", operations[op], values[i].name);
            say(to, key, values[i].value);
        }
    }
    say(to, "batches", counters.batches);
    say(to, "batched-requests", counters.batched_requests);
    say(to, "blocked", counters.blocked);
    say(to, "expired", counters.expired);
    say(to, "stale", counters.stale);
    say(to, "queued", counters.queued);
    say(to, "in-flight", counters.in_flight);
    say(to, "wait-p50-ns", counters.wait_p50_ns);
    say(to, "wait-p99-ns", counters.wait_p99_ns);
    say(to, "service-p50-ns", counters.service_p50_ns);
    say(to, "service-p99-ns", counters.service_p99_ns);
    say(to, "ordered", GF_ATOMIC_GET(translator->ordered));
    say(to, "merged-batches", GF_ATOMIC_GET(translator->merged));
    say(to, "merged-requests", GF_ATOMIC_GET(translator->merged_requests));
}

static void dump_value(void *to, const char *key, uint64_t value)
{
    (void)to;
    gf_proc_dump_write((char *)key, "%" PRIu64, value);
}

static int32_t dump_priv(xlator_t *this)
{
    struct translator *translator = this->private;
    char section[256];
    char policy[256];
    char coordinator[8192];
    if (!translator)
        return 0;
    snprintf(section, sizeof(section), "xlator.sluice.%s", this->name);
    gf_proc_dump_add_section("%s", section);
    if (translator->marks) {
        mark_dump();
        return 0;
    }
    if (sluice_get_policy(translator->client, policy, sizeof(policy)) == SLUICE_OK)
        gf_proc_dump_write("policy", "%s", policy);
    gf_proc_dump_write("scheduler", "%s", group_name(translator->group));
    gf_proc_dump_write("target", "%u", translator->target);
    if (sluice_coordination(translator->client, coordinator, sizeof(coordinator)) == SLUICE_OK)
        gf_proc_dump_write("coordinator", "%s", coordinator);
    tell(translator, dump_value, NULL);
    return 0;
}

struct metrics {
    xlator_t *this;
    int fd;
};

static void print_metric(void *to, const char *key, uint64_t value)
{
    struct metrics *metrics = to;
    dprintf(metrics->fd, "%s.sluice.%s %" PRIu64 "\n", metrics->this->name, key, value);
}

static int32_t dump_metrics(xlator_t *this, int fd)
{
    struct metrics metrics = {this, fd};
    const struct translator *translator = this->private;
    if (translator && !translator->marks)
        tell(this->private, print_metric, &metrics);
    return 0;
}

static struct xlator_cbks callbacks = {.forget = forget};
static struct xlator_dumpops dumps = {.priv = dump_priv};

xlator_api_t xlator_api = {
    .init = init,
    .fini = fini,
    .reconfigure = reconfigure,
    .mem_acct_init = mem_acct_init,
    .dump_metrics = dump_metrics,
    .op_version = {1},
    .xlator_id = XLATOR_ID,
    .identifier = "sluice",
    .options = options,
    .category = GF_EXPERIMENTAL,
    .fops = &sluice_fops,
    .cbks = &callbacks,
    .dumpops = &dumps,
};
