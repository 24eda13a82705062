/* Predictions: from a trace, from what repeats, and none; what is wrong is said, and every request is served.
 *   predict DIR TRACE PROFILE     writes DIR/learned.slt */
#define _GNU_SOURCE
#include <sluice.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 24, PROCESSES = 4, LEN = 65536 };

static atomic_int started, wrong;

#define EXPECT(call, wanted) do { int got = call; if (got != (wanted)) { \
    fprintf(stderr, "line %d: %s: %d (%s)\n", __LINE__, #call, got, sluice_last_error()); atomic_fetch_add(&wrong, 1); } } while (0)

static void start(void *user, sluice *s, const sluice_part *part) {
    const char *path = "x";
    (void)user;
    atomic_fetch_add(&started, 1);
    /* Not from inside. */
    if (sluice_predict_load(s, &path, 1) == SLUICE_OK || sluice_predict_learn(s, NULL) == SLUICE_OK) atomic_fetch_add(&wrong, 1);
    EXPECT(sluice_complete(s, part->id, part->len, 0), SLUICE_OK);
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    (void)user, (void)s, (void)part, (void)error;
    atomic_fetch_add(&wrong, 1);
}

/* A step of each process, a millisecond apart, then a pause in which what is learned is noticed. */
static void use(sluice *s, uint64_t file) {
    struct timespec moment = {0, 1000000};
    for (int n = 0; n < STEPS * PROCESSES; n++) {
        sluice_request r = {.struct_size = sizeof r, .file = file, .op = SLUICE_WRITE, .len = LEN, .offset = (uint64_t)n * LEN};
        EXPECT(sluice_submit_wait(s, &r), SLUICE_OK);
        if (n % PROCESSES == PROCESSES - 1) nanosleep(&moment, NULL);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    char state[4096];
    snprintf(state, sizeof state, "%s/learned.slt", argv[1]);
    sluice_options o = {.struct_size = sizeof o, .policy = "to-agg", .start = start, .cancelled = cancelled, .in_flight_max = 2};
    sluice *s = NULL;
    EXPECT(sluice_create(&o, &s), SLUICE_OK);
    if (!s) return 1;
    const char *missing[] = {argv[2], "/nowhere/run.slt"}, *none[] = {NULL}, *good[] = {argv[2]};
    EXPECT(sluice_predict_load(s, missing, 2), SLUICE_ERR_INVALID);
    if (!strstr(sluice_last_error(), "/nowhere/run.slt")) EXPECT(-99, SLUICE_OK);
    EXPECT(sluice_predict_load(s, none, 1), SLUICE_ERR_INVALID);
    EXPECT(sluice_predict_load(s, NULL, 1), SLUICE_ERR_INVALID);
    EXPECT(sluice_predict_profile(s, argv[2]), SLUICE_ERR_INVALID);
    EXPECT(sluice_predict_profile(s, argv[3]), SLUICE_OK);
    EXPECT(sluice_predict_load(s, good, 1), SLUICE_OK);
    use(s, 7);
    EXPECT(sluice_predict_load(s, NULL, 0), SLUICE_OK);
    use(s, 7);
    EXPECT(sluice_predict_learn(s, state), SLUICE_OK);
    for (uint64_t file = 20; file < 24; file++) use(s, file);
    EXPECT(sluice_predict_profile(s, NULL), SLUICE_OK);
    EXPECT(sluice_shutdown(s, 20ull * 1000 * 1000 * 1000), SLUICE_OK);
    EXPECT(sluice_destroy(s), SLUICE_OK);
    EXPECT(sluice_predict_learn(s, state), SLUICE_ERR_CLOSED);
    if (atomic_load(&started) != 6 * STEPS * PROCESSES) EXPECT(atomic_load(&started), 6 * STEPS * PROCESSES);
    return atomic_load(&wrong) != 0;
}
