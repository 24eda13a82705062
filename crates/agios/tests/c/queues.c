/*
 * Two writes to the same bytes of a file with different queue_ids. Where these are applications, the second waits until
 * the first was released; where they are servers (argument "servers"), the bytes have nothing to do with each other.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agios.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool processed[4];

static void *process(int64_t identifier)
{
    pthread_mutex_lock(&lock);
    processed[identifier] = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void wait_for(int identifier)
{
    pthread_mutex_lock(&lock);
    while (!processed[identifier])
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static bool is_processed(int identifier)
{
    pthread_mutex_lock(&lock);
    bool is = processed[identifier];
    pthread_mutex_unlock(&lock);
    return is;
}

static void expect(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "not true: %s\n", what);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    bool servers = argc > 2 && !strcmp(argv[2], "servers");
    expect(argc > 1 && agios_init(process, NULL, argv[1], 1), "it starts");
    expect(agios_add_request("f", RT_WRITE, 0, 100, 1, 0), "the first write is accepted");
    expect(agios_add_request("f", RT_WRITE, 50, 100, 2, 1), "the second write is accepted");
    expect(agios_add_request("g", RT_WRITE, 0, 100, 3, 1), "a write to another file is accepted");
    wait_for(1);
    wait_for(3);
    if (servers)
        wait_for(2);
    else
        expect(!is_processed(2), "the second write waits for the first");
    expect(agios_release_request("f", RT_WRITE, 100, 0), "the first write is released");
    wait_for(2);
    expect(agios_release_request("f", RT_WRITE, 100, 50), "the second write is released");
    expect(agios_release_request("g", RT_WRITE, 100, 0), "the third write is released");
    agios_exit();
    return 0;
}
