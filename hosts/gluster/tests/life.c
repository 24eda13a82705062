/*
 * The life of translators inside one process, to be looked at by valgrind: graphs that come and go over libgfapi, with requests under
 * way, some of which fail below, and files that are closed, cut off and synced meanwhile. Nothing may be answered twice or never.
 *   life VOLFILE ROUNDS SEED FAILS     FAILS: the graph makes requests fail
 */
#include <glusterfs/api/glfs.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES 3
#define REQUESTS 60
#define REQUEST 16384
#define SPACE ((long)REQUESTS * REQUEST)

struct asked {
    unsigned char *buffer;
    long offset;
    int is_read;
    atomic_int answers;
    ssize_t result;
};

static atomic_int under_way;
static unsigned long state;

static unsigned below(unsigned n)
{
    /* Xorshift. */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 11) % n;
}

static void check(int is_so, const char *what)
{
    if (is_so)
        return;
    fprintf(stderr, "life: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void answered(glfs_fd_t *fd, ssize_t result, struct glfs_stat *before, struct glfs_stat *after, void *data)
{
    struct asked *asked = data;
    (void)fd;
    (void)before;
    (void)after;
    asked->result = result;
    atomic_fetch_add(&asked->answers, 1);
    atomic_fetch_sub(&under_way, 1);
}

static void ask(glfs_fd_t *fd, struct asked *asked)
{
    atomic_fetch_add(&under_way, 1);
    int code = asked->is_read ? glfs_pread_async(fd, asked->buffer, REQUEST, asked->offset, 0, answered, asked)
                              : glfs_pwrite_async(fd, asked->buffer, REQUEST, asked->offset, 0, answered, asked);
    if (code < 0) {
        atomic_fetch_sub(&under_way, 1);
        atomic_fetch_add(&asked->answers, 1);
        asked->result = -1;
    }
}

/* Writes in random order, and reads of what was written before, all at once; every now and then something that all must keep clear of. */
static void use(glfs_t *fs, int number, int fails)
{
    char name[32];
    struct asked *all = calloc(2 * REQUESTS, sizeof(*all));
    snprintf(name, sizeof(name), "/file-%d", number);
    glfs_fd_t *fd = glfs_creat(fs, name, O_RDWR, 0644);
    check(all && fd, "create");
    for (int i = 0; i < 2 * REQUESTS; i++) {
        struct asked *asked = &all[i];
        asked->buffer = malloc(REQUEST);
        asked->is_read = i >= REQUESTS;
        asked->offset = asked->is_read ? all[i - REQUESTS].offset : (long)i * REQUEST;
        memset(asked->buffer, asked->is_read ? 0 : 1 + i % 250, REQUEST);
    }
    for (int i = REQUESTS - 1; i > 0; i--) {
        int other = (int)below((unsigned)i + 1);
        struct asked *one = &all[i], *two = &all[other];
        long offset = one->offset;
        unsigned char *buffer = one->buffer;
        one->offset = two->offset;
        one->buffer = two->buffer;
        two->offset = offset;
        two->buffer = buffer;
        all[REQUESTS + i].offset = one->offset;
        all[REQUESTS + other].offset = two->offset;
    }
    for (int i = 0; i < 2 * REQUESTS; i++) {
        ask(fd, &all[i]);
        if (below(20) == 0)
            glfs_fsync(fd, NULL, NULL);
        if (below(40) == 0)
            glfs_ftruncate(fd, SPACE + below(REQUEST), NULL, NULL);
        if (below(40) == 0)
            glfs_discard(fd, SPACE, REQUEST);
    }
    /* With requests under way: the last of them holds the file. */
    check(!glfs_close(fd) || fails, "close");
    while (atomic_load(&under_way))
        usleep(1000);
    for (int i = 0; i < 2 * REQUESTS; i++) {
        struct asked *asked = &all[i];
        check(atomic_load(&asked->answers) == 1, "a request has not one answer");
        /* Reads go beside the writes: at the file's end of that moment they are short. */
        check(fails || asked->result == REQUEST || (asked->is_read && asked->result >= 0), "a request failed");
    }
    fd = glfs_open(fs, name, O_RDWR);
    check(fd != NULL, "open");
    for (int i = 0; i < REQUESTS; i++) {
        long offset = all[i].offset;
        unsigned char *read = all[REQUESTS + i].buffer;
        ssize_t got = glfs_pread(fd, read, REQUEST, offset, 0, NULL);
        check(fails || (got == REQUEST && !memcmp(read, all[i].buffer, REQUEST)), "what was written is not there");
    }
    check(!glfs_close(fd) || fails, "close");
    for (int i = 0; i < 2 * REQUESTS; i++)
        free(all[i].buffer);
    free(all);
}

int main(int argc, char **argv)
{
    check(argc == 5, "usage: life VOLFILE ROUNDS SEED FAILS");
    int rounds = atoi(argv[2]), fails = atoi(argv[4]);
    state = strtoul(argv[3], NULL, 10) * 2654435761u + 88172645463325252ul;
    for (int round = 0; round < rounds; round++) {
        glfs_t *fs = glfs_new("life");
        check(fs && !glfs_set_logging(fs, getenv("LIFE_LOG") ? getenv("LIFE_LOG") : "/dev/null", 5) && !glfs_set_volfile(fs, argv[1]), "a graph");
        check(!glfs_init(fs), "init");
        for (int i = 0; i < FILES; i++)
            use(fs, i, fails);
        glfs_fini(fs);
    }
    return 0;
}
