/* A small file server: a thread for each client, reads and writes scheduled by libsluice.
 * Clients send struct order (and the bytes of a write) and get a count or -errno (and the bytes of a read).
 *   gcc fileserver.c $(pkg-config --cflags --libs sluice) -pthread -o fileserver && ./fileserver DIRECTORY SOCKET */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct order { uint32_t op, file, len, app; uint64_t offset; };
struct job { sem_t go; uint64_t id; int error; };
static sluice *scheduler;
static int directory;

/* The scheduler says that it is this request's turn: wake the client's thread, which does the I/O itself. */
static void start(void *user, sluice *s, const sluice_part *part) {
    struct job *job = (struct job *)(uintptr_t)part->cookie;
    (void)user, (void)s;
    job->id = part->id;
    sem_post(&job->go);
}

static void cancelled(void *user, sluice *s, const sluice_part *part, int error) {
    struct job *job = (struct job *)(uintptr_t)part->cookie;
    (void)user, (void)s;
    job->error = error;
    sem_post(&job->go);
}

static int64_t serve(const struct order *o, char *data, struct job *job) {
    char name[16];
    snprintf(name, sizeof name, "%u", o->file);
    int fd = openat(directory, name, O_RDWR | O_CREAT, 0644);
    sluice_request r = {.struct_size = sizeof r, .op = o->op, .file = o->file, .offset = o->offset, .len = o->len,
                        .app = o->app, .cookie = (uintptr_t)job};
    job->error = 0;
    if (fd < 0) return -errno;
    if (sluice_submit_wait(scheduler, &r) != SLUICE_OK) return close(fd), fprintf(stderr, "%s\n", sluice_last_error()), -EIO;
    sem_wait(&job->go);
    if (job->error) return close(fd), -job->error;
    ssize_t n = o->op == SLUICE_WRITE ? pwrite(fd, data, o->len, (off_t)o->offset) : pread(fd, data, o->len, (off_t)o->offset);
    int error = n < 0 ? errno : 0;
    sluice_complete(scheduler, job->id, n < 0 ? 0 : (uint32_t)n, error);
    return close(fd), error ? -error : n;
}

static void *client(void *socket) {
    int fd = (int)(intptr_t)socket;
    struct order o;
    struct job job;
    char *data = malloc(1 << 20);
    sem_init(&job.go, 0, 0);
    while (data && recv(fd, &o, sizeof o, MSG_WAITALL) == sizeof o && o.op <= SLUICE_WRITE && o.len <= 1 << 20) {
        if (o.op == SLUICE_WRITE && recv(fd, data, o.len, MSG_WAITALL) != (ssize_t)o.len) break;
        int64_t result = serve(&o, data, &job);
        send(fd, &result, sizeof result, MSG_NOSIGNAL);
        if (o.op == SLUICE_READ && result > 0) send(fd, data, (size_t)result, MSG_NOSIGNAL);
    }
    return free(data), close(fd), NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sluice_options options = SLUICE_OPTIONS_INIT;
    if (argc != 3) return fprintf(stderr, "usage: fileserver DIRECTORY SOCKET\n"), 2;
    if ((directory = open(argv[1], O_DIRECTORY)) < 0) return perror(argv[1]), 1;
    options.policy = getenv("POLICY"), options.start = start, options.cancelled = cancelled, options.in_flight_max = 4;
    if (sluice_create(&options, &scheduler) != SLUICE_OK) return fprintf(stderr, "%s\n", sluice_last_error()), 1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[2]);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), fd;
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 64)) return perror(argv[2]), 1;
    while ((fd = accept(server, NULL, NULL)) >= 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, client, (void *)(intptr_t)fd)) close(fd); else pthread_detach(thread);
    }
    return perror("accept"), 1;
}
