#include "translator.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of windows by which a coordinator decides, in nanoseconds: several between two announcements. */
#define COORDINATED_NS 250000000ULL
/* Characters of a node's name, at most: sluice_coordinate() refuses longer ones. */
#define NODE_NAME 64
/* Targets of a scheduler: translators that share it. */
#define TARGETS 1024
/* How long the end of a translator waits before it says that it does, in nanoseconds. */
#define PATIENCE_NS 10000000000ULL

struct group {
    struct group *next;
    char *name;
    struct sluice *scheduler;
    unsigned members;
    /* Somebody else than the options chooses the algorithm. */
    bool selects;
    /* It is an I/O node of a coordinator: of data servers none chooses the algorithm. */
    bool coordinated;
    struct room room;
    bool taken[TARGETS];
};

static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups;

const char *group_name(const struct group *group)
{
    return group->name;
}

static char *policy_text(const struct settings *settings)
{
    char *text = NULL;
    const char *parameters = settings->parameters ? settings->parameters : "";
    if (gf_asprintf(&text, "%s %s", settings->policy, parameters) < 0)
        return NULL;
    return text;
}

static bool is_set(const char *text)
{
    return text && *text;
}

static int predict(xlator_t *this, struct sluice *scheduler, const struct settings *settings)
{
    int code = SLUICE_OK;
    if (is_set(settings->profile))
        code = sluice_predict_profile(scheduler, settings->profile);
    if (code == SLUICE_OK && is_set(settings->learn))
        code = sluice_predict_learn(scheduler, settings->learn);
    else if (code == SLUICE_OK && is_set(settings->predict)) {
        const char *path = settings->predict;
        code = sluice_predict_load(scheduler, &path, 1);
    }
    if (code != SLUICE_OK)
        gf_log(this->name, GF_LOG_ERROR, "prediction: %s", sluice_last_error());
    return code;
}

/* Host, process and volume; of a long name the beginning, and a hash (FNV-1a) of all: what comes last tells volumes apart. */
static void make_name(char made[NODE_NAME + 1], const char *volume)
{
    char host[HOST_NAME_MAX + 1] = "";
    const char *machine = gethostname(host, sizeof(host) - 1) ? "host" : host;
    char *full = NULL;
    if (gf_asprintf(&full, "%s:%d:%s", machine, (int)getpid(), volume) < 0) {
        snprintf(made, NODE_NAME + 1, "%.40s:%d", machine, (int)getpid());
        return;
    }
    if (strlen(full) <= NODE_NAME)
        strcpy(made, full);
    else
        snprintf(made, NODE_NAME + 1, "%.*s-%016" PRIx64, NODE_NAME - 17, full,
                 fnv1a(HASH_NOTHING, full, strlen(full)));
    GF_FREE(full);
}

/* Lets a coordinator choose, if there is to be one. */
static int coordinate(xlator_t *this, struct sluice *scheduler, const struct settings *settings)
{
    char made[NODE_NAME + 1];
    const char *name = settings->coordinator_name;
    const char *token = is_set(settings->coordinator_token) ? settings->coordinator_token : NULL;
    if (!is_set(settings->coordinator))
        return SLUICE_OK;
    if (!is_set(name)) {
        make_name(made, this->name);
        name = made;
    }
    int code = sluice_coordinate(scheduler, settings->coordinator, name, token);
    if (code != SLUICE_OK)
        gf_log(this->name, GF_LOG_ERROR, "coordinator: %s", sluice_last_error());
    return code;
}

/* What can be changed while running. */
static void set_limits(struct sluice_options *options, const struct settings *settings)
{
    options->in_flight_max = settings->in_flight;
    options->batch_bytes_max = settings->batch_bytes;
    options->max_wait_ns = (uint64_t)settings->max_wait_ms * 1000000;
    options->positioning_ns = (uint64_t)settings->positioning_us * 1000;
}

static int create(xlator_t *this, struct group *group, const struct settings *settings)
{
    struct sluice_options options = SLUICE_OPTIONS_INIT;
    char *policy = policy_text(settings);
    if (!policy)
        return -1;
    /* All I/O nodes have their windows at the same time. */
    options.flags = SLUICE_SHARED | SLUICE_REALTIME;
    options.policy = policy;
    options.shards = settings->shards;
    options.capacity = settings->capacity;
    options.selector = is_set(settings->selector) ? settings->selector : NULL;
    options.selector_state = is_set(settings->selector_state) ? settings->selector_state : NULL;
    options.window_ns = is_set(settings->coordinator) ? COORDINATED_NS : 0;
    set_limits(&options, settings);
    int code = sluice_create(&options, &group->scheduler);
    if (code != SLUICE_OK)
        gf_log(this->name, GF_LOG_ERROR, "no scheduler with policy \"%s\": %s", policy, sluice_last_error());
    GF_FREE(policy);
    if (code == SLUICE_OK && (predict(this, group->scheduler, settings) != SLUICE_OK ||
                              coordinate(this, group->scheduler, settings) != SLUICE_OK)) {
        sluice_destroy(group->scheduler);
        return -1;
    }
    group->selects = is_set(settings->selector) && strcmp(settings->selector, "fixed");
    group->coordinated = is_set(settings->coordinator) && !strcmp(settings->policy, "twins");
    if (code == SLUICE_OK && is_set(settings->metrics) &&
        sluice_metrics(group->scheduler, settings->metrics) != SLUICE_OK)
        gf_log(this->name, GF_LOG_ERROR, "nothing is told: %s", sluice_last_error());
    if (code == SLUICE_OK && is_set(settings->trace) &&
        sluice_trace_start(group->scheduler, settings->trace) != SLUICE_OK)
        gf_log(this->name, GF_LOG_ERROR, "nothing is recorded: %s", sluice_last_error());
    return code == SLUICE_OK ? 0 : -1;
}

static void drop(struct group *group)
{
    for (struct group **at = &groups; *at; at = &(*at)->next) {
        if (*at == group) {
            *at = group->next;
            break;
        }
    }
    room_end(&group->room);
    sluice_destroy(group->scheduler);
    GF_FREE(group->name);
    GF_FREE(group);
}

/* Found or created, with one more member. */
static struct group *enter(xlator_t *this, const struct settings *settings, bool *joined)
{
    const char *name = settings->scheduler ? settings->scheduler : "";
    for (struct group *group = groups; *name && group; group = group->next) {
        if (!strcmp(group->name, name)) {
            *joined = true;
            return group;
        }
    }
    struct group *group = GF_CALLOC(1, sizeof(*group), MEMORY_GROUP);
    if (!group)
        return NULL;
    group->name = gf_strdup(name);
    if (!group->name || create(this, group, settings)) {
        GF_FREE(group->name);
        GF_FREE(group);
        return NULL;
    }
    room_init(&group->room);
    group->next = groups;
    groups = group;
    return group;
}

static int attach(struct translator *translator, struct group *group, int32_t wanted)
{
    uint32_t target = wanted < 0 ? 0 : (uint32_t)wanted;
    /* When GlusterFS replaces a graph, that of the old one may be there for a while: then another one serves. */
    while (target < TARGETS && group->taken[target])
        target++;
    if (target == TARGETS) {
        gf_log(translator->this->name, GF_LOG_ERROR, "scheduler %s has no target for it", group->name);
        return -1;
    }
    struct sluice_options options = SLUICE_OPTIONS_INIT;
    options.start = on_start;
    options.start_batch = on_start_batch;
    options.cancelled = on_cancelled;
    options.user = translator;
    options.target_first = target;
    options.target_count = 1;
    if (sluice_attach(group->scheduler, &options, &translator->client) != SLUICE_OK) {
        gf_log(translator->this->name, GF_LOG_ERROR, "cannot join the scheduler: %s", sluice_last_error());
        return -1;
    }
    group->taken[target] = true;
    group->members++;
    translator->group = group;
    translator->room = &group->room;
    translator->target = target;
    return 0;
}

int group_join(struct translator *translator, const struct settings *settings)
{
    pthread_mutex_lock(&groups_lock);
    bool joined = false;
    struct group *group = enter(translator->this, settings, &joined);
    int failed = group ? attach(translator, group, settings->target) : -1;
    if (failed && group && !group->members)
        drop(group);
    pthread_mutex_unlock(&groups_lock);
    if (failed || !joined)
        return failed;
    /* The newest graph says how: the one before may have had other options. */
    failed = group_change(translator, settings);
    if (failed)
        /* Nobody ends a translator that has not begun: the others keep neither its place nor its client. */
        group_leave(translator);
    return failed;
}

/* Whether a scheduler could have this algorithm: nothing else tells. */
static int check_policy(const struct settings *settings, const char *policy)
{
    struct sluice_options options = SLUICE_OPTIONS_INIT;
    struct sluice *scheduler;
    options.flags = SLUICE_SHARED;
    options.policy = policy;
    options.shards = settings->shards;
    int code = sluice_create(&options, &scheduler);
    return code == SLUICE_OK ? sluice_destroy(scheduler) : code;
}

int group_change(struct translator *translator, const struct settings *settings)
{
    struct sluice_options options = SLUICE_OPTIONS_INIT;
    const char *name = translator->this->name;
    const struct group *group = translator->group;
    if (group->selects) {
        gf_log(name, GF_LOG_INFO, "the selector chooses: policy and limits stay as they were");
        return 0;
    }
    char *policy = policy_text(settings);
    if (!policy)
        return -1;
    set_limits(&options, settings);
    int code = group->coordinated ? check_policy(settings, policy) : sluice_set_policy(translator->client, policy);
    if (group->coordinated && code == SLUICE_OK)
        gf_log(name, GF_LOG_INFO, "the coordinator chooses: policy stays as it was");
    if (code == SLUICE_OK)
        code = sluice_set_limits(translator->client, &options);
    if (code != SLUICE_OK)
        gf_log(name, GF_LOG_ERROR, "policy \"%s\": %s", policy, sluice_last_error());
    GF_FREE(policy);
    return code == SLUICE_OK ? 0 : -1;
}

void group_leave(struct translator *translator)
{
    xlator_t *this = translator->this;
    room_leave(translator->room, translator);
    /* What is queued fails at once: whoever ends a translator has no use for it. What is under way below is waited for. */
    while (sluice_detach(translator->client, 0) == SLUICE_ERR_TIMEOUT) {
        gf_log(this->name, GF_LOG_WARNING, "requests are still under way below: waiting for them");
        if (sluice_detach(translator->client, PATIENCE_NS) != SLUICE_ERR_TIMEOUT)
            break;
    }
    /* One more may have waited for room; and barriers are nothing that the scheduler knows. */
    room_leave(translator->room, translator);
    while (atomic_load(&translator->calls) > 0)
        usleep(1000);
    pthread_mutex_lock(&groups_lock);
    struct group *group = translator->group;
    group->taken[translator->target] = false;
    if (!--group->members)
        drop(group);
    pthread_mutex_unlock(&groups_lock);
}

/* GlusterFS's processes end without the end of their translators: what is recorded would lack its last second. */
__attribute__((destructor)) static void complete_traces(void)
{
    /* Other threads run on: one that ends a scheduler just now completes its recording by that. */
    if (pthread_mutex_trylock(&groups_lock))
        return;
    for (struct group *group = groups; group; group = group->next)
        sluice_trace_stop(group->scheduler);
    pthread_mutex_unlock(&groups_lock);
}
