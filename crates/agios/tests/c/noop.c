/* NOOP hands every request over inside agios_add_request, on the thread that calls it, also while others that overlap it are
 * being done, and also inside a callback. */
#define _GNU_SOURCE
#include <agios.h>
#include <pthread.h>
#include <stdio.h>

enum { DEPTH = 3 };
static __thread int64_t last = -1, depth;
static int failures;

#define EXPECT(condition) \
    do { \
        if (!(condition)) fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition), failures++; \
    } while (0)

static void *one(int64_t id) {
    last = id;
    /* Some add another one to the same bytes before they are released. */
    if (depth > 0) {
        depth--;
        EXPECT(agios_add_request((char *)"nested", RT_WRITE, 0, 10, id + 1, 0));
        EXPECT(last == 100 + DEPTH);
        EXPECT(agios_release_request((char *)"nested", RT_WRITE, 10, 0));
    }
    return 0;
}

static void *add(void *ignored) {
    for (int64_t id = 0; id < 1000; id++) {
        EXPECT(agios_add_request((char *)"shared", RT_WRITE, 0, 10, id, 0));
        EXPECT(last == id);
        EXPECT(agios_release_request((char *)"shared", RT_WRITE, 10, 0));
    }
    return ignored;
}

int main(int argc, char **argv) {
    if (!agios_init(one, NULL, argc > 1 ? argv[1] : NULL, 0)) return 1;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, add, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    EXPECT(!agios_release_request((char *)"shared", RT_WRITE, 10, 0));
    EXPECT(!agios_cancel_request((char *)"shared", RT_WRITE, 10, 0));
    depth = DEPTH;
    EXPECT(agios_add_request((char *)"outer", RT_READ, 0, 10, 100, 0) && depth == 0 && last == 100 + DEPTH);
    EXPECT(!agios_cancel_request((char *)"outer", RT_READ, 10, 0));
    if (argc > 2) EXPECT(agios_release_request((char *)"outer", RT_READ, 10, 0));
    agios_exit();
    EXPECT(!agios_add_request((char *)"outer", RT_READ, 0, 10, 0, 0));
    EXPECT(agios_init(one, NULL, argv[1], 0));
    agios_exit();
    return failures != 0;
}
