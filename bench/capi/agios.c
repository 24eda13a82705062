/* The measurement that AGIOS's own figures come from, with libagios: requests a second through add -> callback -> release.
 * Threads add requests to files in turn, sequential in each; the callback releases at once. Or all requests are random and to
 * one file, of which as many are queued as the algorithm lets wait.
 *   agios [--json]                     one adding thread, 8,192 outstanding; beside the figures published for AGIOS on a machine
 *                                      with 2 cores
 *   agios [--json] --against LIBRARY   two adding threads with 64 outstanding each, for each algorithm and number of files, with
 *                                      this libagios and with another one (the path of AGIOS's own, or of an earlier build), in
 *                                      turns, each measurement in a process of its own
 *         [--rounds N] [--only NAME[,FILES]] [--milliseconds N] */
#define _GNU_SOURCE
#include <agios.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 5, DEEP = 8192, SHALLOW = 64, PRODUCERS = 2, QUEUES = 4, FILES_MAX = 16384, ROUNDS_MAX = 101, CHILD_MS = 3000 };
static const struct row { const char *algorithm; int files, random; double theirs; } ROWS[] = {
    {"SJF", 1, 0, 353e3}, {"SJF", 1024, 0, 60e3}, {"SJF", 16384, 0, 2.5e3}, {"aIOLi", 1, 0, 477e3}, {"aIOLi", 1024, 0, 50e3},
    {"aIOLi", 16384, 0, 2.3e3}, {"TO", 1, 0, 255e3}, {"TO", 1024, 0, 155e3}, {"TO-agg", 1, 0, 379e3}, {"TO-agg", 1024, 0, 117e3},
    {"TO-agg", 16384, 0, 39e3}, {"aIOLi", 1, 1, 0.4e3}, {"MLF", 1, 1, 2e3}, {"TO-agg", 1, 1, 48e3}, {"SJF", 1, 1, 108e3}};
enum { COUNT = sizeof ROWS / sizeof *ROWS };
static const char *const ALGORITHMS[] = {"NOOP", "TO", "TO-agg", "SJF", "MLF", "aIOLi", "SW", "TWINS"};
static const int FILES[] = {1, 1024, FILES_MAX};
/* At least as fast with NOOP, three times as fast with every other algorithm where there is one file. Not with TWINS: its time
 * windows and what may be outstanding set the pace there, about the same for whoever keeps to them. */
static const double BAR_NOOP = 1.0, BAR_ONE_FILE = 3.0, BAR_ELSEWHERE = 1.0;

/* With every key that AGIOS itself does not do without, at the value of the file that it comes with. */
static const char CONFIG[] =
    "library_options : { trace = false; trace_file_prefix = \"/tmp/agios\"; trace_file_sufix = \"out\"; max_trace_buffer_size = 32768;\n"
    "  waiting_time = 900000; aioli_quantum = 65536; mlf_quantum = 8192; SW_window = 1000; twins_window = 2000;\n"
    "  performance_values = 5; default_algorithm = \"%s\"; select_algorithm_period = 1000; select_algorithm_min_reqnumber = 1;\n"
    "  enable_SW = false; starting_algorithm = \"SJF\"; };\n";

/* The calls of one of the libraries compared. */
static struct calls {
    bool (*init)(void *(int64_t), void *(int64_t *, int32_t), char *, int32_t);
    void (*exit)(void);
    bool (*add)(char *, int32_t, int64_t, int64_t, int64_t, int32_t);
    bool (*release)(char *, int32_t, int64_t, int64_t);
} calls = {agios_init, agios_exit, agios_add_request, agios_release_request};

/* An identifier is the number of the producer, and that of its request. */
enum { NUMBER_BITS = 48 };
static struct producer {
    _Alignas(128) atomic_long done;
    /* How many it waits for; 0 if it does not. */
    atomic_long wanted;
    sem_t enough;
    int64_t added;
    double until;
    int index, window;
    pthread_t thread;
} producers[PRODUCERS];
static int files, is_random;
static int64_t *offsets;
static char (*names)[16];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Producers read different parts of the files. */
static int64_t offset_of(int64_t id) {
    int64_t producer = id >> NUMBER_BITS, number = id & ((1LL << NUMBER_BITS) - 1);
    return is_random ? offsets[number % DEEP] : (producer << 40) + number / files * 4096;
}

static char *name_of(int64_t id) {
    return names[(id & ((1LL << NUMBER_BITS) - 1)) % files];
}

static void *process_one(int64_t id) {
    calls.release(name_of(id), RT_READ, 4096, offset_of(id));
    struct producer *p = &producers[id >> NUMBER_BITS];
    long done = atomic_fetch_add(&p->done, 1) + 1, wanted = p->wanted;
    if (wanted && done >= wanted && atomic_compare_exchange_strong(&p->wanted, &wanted, 0)) sem_post(&p->enough);
    return NULL;
}

static void *process_many(int64_t *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) process_one(ids[i]);
    return NULL;
}

/* Sleeps until so many of its requests are done. */
static void wait_for(struct producer *p, int64_t count) {
    if (p->done >= count) return;
    long wanted = count;
    p->wanted = count;
    if (p->done >= count && atomic_compare_exchange_strong(&p->wanted, &wanted, 0)) return;
    while (sem_wait(&p->enough)) {}
}

static void *produce(void *argument) {
    struct producer *p = argument;
    while (now() < p->until)
        for (int i = 0; i < SHALLOW; i++, p->added++) {
            int64_t id = (int64_t)p->index << NUMBER_BITS | p->added;
            /* Whoever has to wait does so until few are left: to be woken up costs more than what is measured. */
            if (p->added - p->done >= p->window) wait_for(p, p->added - p->window / 8);
            calls.add(name_of(id), RT_READ, offset_of(id), 4096, id, (int32_t)(p->added % QUEUES));
        }
    wait_for(p, p->added);
    return NULL;
}

/* Requests a second. */
static double measure(const char *algorithm, int threads, int window, char *config, double seconds) {
    FILE *file = fopen(config, "w");
    if (!file) exit((perror(config), 1));
    fprintf(file, CONFIG, algorithm);
    fclose(file);
    if (!calls.init(process_one, process_many, config, QUEUES)) exit(1);
    double begin = now(), end = begin, done = 0;
    for (int i = 0; i < threads; i++) {
        producers[i] = (struct producer){.until = begin + seconds, .index = i, .window = window};
        sem_init(&producers[i].enough, 0, 0);
        if (pthread_create(&producers[i].thread, NULL, produce, &producers[i])) exit((perror("a thread"), 1));
    }
    for (int i = 0; i < threads; i++) pthread_join(producers[i].thread, NULL), done += (double)producers[i].added;
    end = now();
    calls.exit();
    return done / (end - begin);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) exit((fprintf(stderr, "agios: %s\n", dlerror()), 1));
    return found;
}

/* The rate in a process of its own, or 0 if that crashed or took too long. `library`: NULL for the one linked. */
static double measure_apart(const char *library, const char *algorithm, char *config, double seconds) {
    int ends[2];
    double rate = 0;
    if (pipe(ends)) exit((perror("a pipe"), 1));
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) exit((perror("fork"), 1));
    if (child == 0) {
        if (library) {
            /* Its own calls among each other stay its own. */
            void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
            if (!handle) _exit((fprintf(stderr, "agios: %s\n", dlerror()), 1));
            *(void **)&calls.init = symbol(handle, "agios_init"), *(void **)&calls.exit = symbol(handle, "agios_exit");
            *(void **)&calls.add = symbol(handle, "agios_add_request");
            *(void **)&calls.release = symbol(handle, "agios_release_request");
        }
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, STDOUT_FILENO), dup2(nowhere, STDERR_FILENO);
        rate = measure(algorithm, PRODUCERS, SHALLOW, config, seconds);
        _exit(write(ends[1], &rate, sizeof rate) != sizeof rate);
    }
    close(ends[1]);
    struct pollfd answer = {.fd = ends[0], .events = POLLIN};
    if (poll(&answer, 1, CHILD_MS) <= 0 || read(ends[0], &rate, sizeof rate) != sizeof rate) rate = 0;
    close(ends[0]);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return rate;
}

static int by_size(const void *left, const void *right) {
    double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

static double median(double *values, int count) {
    if (!count) return 0;
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int compare(const char *library, const char *only, int only_files, char *config, int rounds, double seconds, int json) {
    enum { ALL = sizeof ALGORITHMS / sizeof *ALGORITHMS * sizeof FILES / sizeof *FILES };
    static struct cell {
        const char *algorithm;
        /* Rounds that both finished, and that one of them did not: it crashed, or stood still. */
        int files, rounds, failed[2];
        double rate[2][ROUNDS_MAX], ratio[ROUNDS_MAX];
    } cells[ALL];
    int count = 0, misses = 0;
    if (access(library, R_OK)) exit((perror(library), 1));
    for (size_t a = 0; a < sizeof ALGORITHMS / sizeof *ALGORITHMS; a++)
        for (size_t f = 0; f < sizeof FILES / sizeof *FILES; f++)
            if ((!only || !strcasecmp(only, ALGORITHMS[a])) && (!only_files || only_files == FILES[f]))
                cells[count].algorithm = ALGORITHMS[a], cells[count++].files = FILES[f];
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            struct cell *cell = &cells[i];
            double rate[2];
            files = cell->files;
            for (int turn = 0; turn < 2; turn++) {
                int side = (turn + round) % 2;
                rate[side] = measure_apart(side ? library : NULL, cell->algorithm, config, seconds);
                cell->failed[side] += rate[side] <= 0;
            }
            if (rate[0] <= 0 || rate[1] <= 0) continue;
            cell->rate[0][cell->rounds] = rate[0], cell->rate[1][cell->rounds] = rate[1];
            cell->ratio[cell->rounds++] = rate[0] / rate[1];
        }
    if (json) printf("{\"unit\":\"requests/s\",\"producers\":%d,\"outstanding_each\":%d,\"rounds\":%d,\"cells\":[", PRODUCERS, SHALLOW, rounds);
    else printf("thousand requests a second, %d adding threads with %d outstanding each (medians of %d rounds in turns)\n\n%-8s %6s %9s %9s %8s\n",
                PRODUCERS, SHALLOW, rounds, "", "files", "this", "other", "ratio");
    for (int i = 0; i < count; i++) {
        struct cell *cell = &cells[i];
        double bar = !strcmp(cell->algorithm, "NOOP") ? BAR_NOOP
                   : cell->files == 1 && strcmp(cell->algorithm, "TWINS") ? BAR_ONE_FILE : BAR_ELSEWHERE;
        int whole = cell->rounds, last = whole ? whole - 1 : 0;
        double this = median(cell->rate[0], whole), other = median(cell->rate[1], whole), ratio = median(cell->ratio, whole);
        /* One that fails always is not beaten: there is nothing to compare with. */
        int missed = ratio < bar || cell->failed[0];
        misses += missed;
        if (json)
            printf("%s{\"algorithm\":\"%s\",\"files\":%d,\"this\":%.0f,\"other\":%.0f,\"ratio\":%.2f,\"ratio_range\":[%.2f,%.2f],"
                   "\"bar\":%.1f,\"failed\":{\"this\":%d,\"other\":%d}}",
                   i ? "," : "", cell->algorithm, cell->files, this, other, ratio, cell->ratio[0], cell->ratio[last], bar,
                   cell->failed[0], cell->failed[1]);
        else
            printf("%-8s %6d %9.1f %9.1f %8.2f (%.2f..%.2f)  bar %.1f%s", cell->algorithm, cell->files, this / 1e3, other / 1e3, ratio,
                   cell->ratio[0], cell->ratio[last], bar, missed ? ", missed" : "");
        if (!json && cell->failed[0]) printf(", this failed %d times", cell->failed[0]);
        if (!json && cell->failed[1]) printf(", the other failed %d times", cell->failed[1]);
        if (!json) puts("");
    }
    if (json) printf("],\"misses\":%d}\n", misses);
    else printf("\n%d of %d cells miss the bar\n", misses, count);
    return 0;
}

static int next_to_published(char *config, int rounds, double seconds, int json) {
    static double best[COUNT];
    int misses = 0;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < COUNT; i++) {
            files = ROWS[i].files, is_random = ROWS[i].random;
            double rate = measure(ROWS[i].algorithm, 1, DEEP, config, seconds);
            if (rate > best[i]) best[i] = rate;
        }
    if (json) printf("{\"cells\":[");
    else printf("thousand requests a second, one adding thread (fastest of %d rounds), beside AGIOS's published figure\n\n", rounds);
    for (int i = 0; i < COUNT; i++) {
        misses += best[i] <= ROWS[i].theirs;
        const struct row *row = &ROWS[i];
        const char *order = row->random ? "random" : "sequential";
        if (json)
            printf("%s{\"algorithm\":\"%s\",\"files\":%d,\"pattern\":\"%s\",\"requests_per_s\":%.0f,\"agios\":%.0f}",
                   i ? "," : "", row->algorithm, row->files, order, best[i], row->theirs);
        else
            printf("%-8s %6d %-5s  %-10s %8.0f %8.1f\n", row->algorithm, row->files, row->files == 1 ? "file" : "files", order,
                   best[i] / 1e3, row->theirs / 1e3);
    }
    if (json) printf("],\"misses\":%d}\n", misses);
    else printf("\nbar: more than AGIOS everywhere: %s\n", misses ? "missed" : "met");
    return 0;
}

int main(int argc, char **argv) {
    char config[64], *only = NULL;
    const char *library = NULL;
    int json = 0, rounds = ROUNDS, only_files = 0;
    double seconds = 0.1;
    uint64_t state = 88172645463325252u;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) json = 1;
        else if (!strcmp(argv[i], "--against") && i + 1 < argc) library = argv[++i];
        else if (!strcmp(argv[i], "--rounds") && i + 1 < argc) rounds = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--milliseconds") && i + 1 < argc) seconds = atof(argv[++i]) / 1e3;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) {
            only = argv[++i];
            char *comma = strchr(only, ',');
            if (comma) *comma = 0, only_files = atoi(comma + 1);
        } else return fprintf(stderr, "usage: agios [--json] [--against LIBRARY [--only NAME[,FILES]]] [--rounds N] [--milliseconds N]\n"), 2;
    }
    if (rounds < 1 || rounds > ROUNDS_MAX) return fprintf(stderr, "agios: --rounds must be from 1 to %d\n", ROUNDS_MAX), 2;
    snprintf(config, sizeof config, "/tmp/agios-bench-%d.conf", (int)getpid());
    offsets = calloc(DEEP, sizeof *offsets), names = calloc(FILES_MAX, sizeof *names);
    if (!offsets || !names) return perror("agios"), 1;
    for (int i = 0; i < DEEP; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        offsets[i] = (int64_t)(state >> 24) / 4096 * 4096;
    }
    for (int i = 0; i < FILES_MAX; i++) snprintf(names[i], sizeof *names, "file.%d", i);
    int result = library ? compare(library, only, only_files, config, rounds, seconds, json) : next_to_published(config, rounds, seconds, json);
    unlink(config);
    free(offsets), free(names);
    return result;
}
