/*
 * What processes say of themselves, with a directory of ours in the place of /proc: threads, processes that end, numbers that are
 * used again, and more processes than there is room for.
 *
 * Usage: announced [DIRECTORY], which it makes that directory in.
 */
#include "../src/announced.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 200, JOB = 1000 };

static char proc[64];

#define CHECK(what) check(what, #what, __LINE__)

static void check(bool is_so, const char *what, int line)
{
    if (is_so)
        return;
    fprintf(stderr, "announced.c:%d: not so: %s\n", line, what);
    exit(1);
}

static void write_about(uint32_t number, const char *file, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%u", proc, number);
    mkdir(path, 0700);
    snprintf(path, sizeof(path), "%s/%u/%s", proc, number, file);
    FILE *out = fopen(path, "w");
    CHECK(out && fputs(text, out) >= 0 && !fclose(out));
}

/* A process began then, or one of its threads, whose number is another one. */
static void starts(uint32_t number, uint32_t process, unsigned began)
{
    char text[256];
    snprintf(text, sizeof(text), "Name:\ta) b\nUmask:\t0022\nTgid:\t%u\nPid:\t%u\n", process, number);
    write_about(number, "status", text);
    snprintf(text, sizeof(text), "%u (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %u 20 21\n", number, began);
    write_about(number, "stat", text);
}

static void ends(uint32_t number)
{
    static const char *const files[] = {"/status", "/stat", ""};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%u%s", proc, number, files[i]);
        CHECK(remove(path) == 0);
    }
}

static int names(struct announced *announced, uint32_t thread, const char *job)
{
    return announced_job(announced, thread, 1000, job, strlen(job));
}

static struct announced_news news;

static int says(struct announced *announced, uint32_t thread, const char *phase)
{
    return announced_phase(announced, thread, phase, strlen(phase), &news);
}

/* Whether that is news of its program, and that it computes. */
static bool tells(struct announced *announced, uint32_t thread, const char *phase, bool computes)
{
    uint64_t before = news.number;
    CHECK(says(announced, thread, phase) == 0 && news.number > before && !strcmp(news.job, "run-17") && news.uid == 1000);
    return news.is_news && news.computes == computes;
}

static bool is_of(struct announced *announced, uint32_t thread, const char *job)
{
    char said[ANNOUNCED_NAME + 1];
    return announced_job_of(announced, thread, said) == (*job != 0) && !strcmp(said, job);
}

static void a_job_is_of_all_threads_and_ends_with_the_process(void)
{
    struct announced *announced = announced_new(proc, MOST);
    starts(10, 10, 500);
    starts(11, 10, 510);
    starts(20, 20, 500);
    CHECK(is_of(announced, 10, ""));
    CHECK(names(announced, 11, "run-17") == 0);
    CHECK(is_of(announced, 10, "run-17") && is_of(announced, 11, "run-17") && is_of(announced, 20, ""));
    CHECK(names(announced, 20, "other") == 0 && is_of(announced, 20, "other") && is_of(announced, 10, "run-17"));
    /* Nobody, the kernel itself, and what has ended. */
    CHECK(is_of(announced, 0, "") && is_of(announced, 30, "") && names(announced, 0, "x") == EINVAL && names(announced, 30, "x") == EINVAL);
    /* A thread of process 20 gets the number of one of process 10's; what was known of it is not older than what was said. */
    ends(11);
    starts(11, 20, 520);
    CHECK(names(announced, 20, "third") == 0 && is_of(announced, 11, "third"));
    /* The same of processes. */
    ends(10);
    starts(10, 10, 900);
    CHECK(names(announced, 20, "other") == 0 && is_of(announced, 10, "") && says(announced, 10, "io") == EINVAL);
    CHECK(names(announced, 10, "new") == 0 && is_of(announced, 10, "new"));
    ends(10);
    ends(11);
    ends(20);
    announced_free(announced);
}

static void names_are_short_and_plain(void)
{
    struct announced *announced = announced_new(proc, MOST);
    char longest[ANNOUNCED_NAME + 2];
    memset(longest, 'x', sizeof(longest));
    longest[ANNOUNCED_NAME + 1] = 0;
    starts(10, 10, 500);
    CHECK(names(announced, 10, "") == EINVAL && names(announced, 10, "a b") == EINVAL && names(announced, 10, "a\n") == EINVAL);
    CHECK(names(announced, 10, "\xc3\xa4") == EINVAL && names(announced, 10, longest) == EINVAL);
    CHECK(announced_job(announced, 10, 1000, "a\0b", 3) == EINVAL && is_of(announced, 10, ""));
    longest[ANNOUNCED_NAME] = 0;
    CHECK(names(announced, 10, longest) == 0 && is_of(announced, 10, longest));
    ends(10);
    announced_free(announced);
}

static void phases_are_counted_by_job_and_user(void)
{
    static const char *const nonsense[] = {"", "sleep", "io ", "batch", "batch ", "batch -1", "batch +1", "batch 1k",
                                           "batch 99999999999999999999", "batch 000000000000000000000000000001"};
    struct announced *announced = announced_new(proc, MOST);
    struct announced_program *programs;
    size_t count;
    CHECK(!announced_programs(announced, &count) && count == 0);
    for (uint32_t process = 10; process < 14; process++)
        starts(process, process, 500);
    CHECK(says(announced, 10, "io") == EINVAL);
    CHECK(names(announced, 10, "run-17") == 0 && names(announced, 11, "run-17") == 0 && names(announced, 12, "a") == 0);
    CHECK(announced_job(announced, 13, 1001, "a", 1) == 0);
    CHECK(says(announced, 10, "io") == 0 && says(announced, 11, "batch 4096") == 0 && says(announced, 12, "batch 7") == 0);
    CHECK(says(announced, 12, "batch end") == 0 && says(announced, 12, "compute") == 0);
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(*nonsense); i++)
        CHECK(says(announced, 10, nonsense[i]) == EINVAL);
    CHECK(announced_phase(announced, 10, "io\0x", 4, &news) == EINVAL);
    programs = announced_programs(announced, &count);
    CHECK(count == 3 && !strcmp(programs[0].job, "a") && programs[0].uid == 1000 && programs[0].computing == 1);
    CHECK(programs[0].batches == 1 && programs[0].batch_bytes == 7);
    CHECK(!strcmp(programs[1].job, "run-17") && programs[1].in_io == 1 && programs[1].in_batch == 1 && programs[1].batch_bytes == 4096);
    CHECK(!strcmp(programs[2].job, "a") && programs[2].uid == 1001);
    free(programs);
    for (uint32_t process = 10; process < 13; process++)
        ends(process);
    programs = announced_programs(announced, &count);
    CHECK(count == 1 && programs[0].uid == 1001);
    free(programs);
    ends(13);
    announced_free(announced);
}

static void a_program_computes_if_all_of_its_processes_do(void)
{
    struct announced *announced = announced_new(proc, MOST);
    for (uint32_t process = 10; process < 13; process++) {
        starts(process, process, 500);
        CHECK(names(announced, process, process < 12 ? "run-17" : "other") == 0);
    }
    news.number = 0;
    CHECK(announced_phase(announced, 12, "io", 2, &news) == 0 && news.is_news && !news.computes && !strcmp(news.job, "other"));
    CHECK(tells(announced, 10, "io", false));
    CHECK(says(announced, 11, "io") == 0 && !news.is_news);
    CHECK(says(announced, 11, "compute") == 0 && !news.is_news);
    CHECK(says(announced, 10, "batch 1") == 0 && !news.is_news);
    CHECK(tells(announced, 10, "compute", true));
    CHECK(says(announced, 10, "compute") == 0 && !news.is_news);
    CHECK(tells(announced, 11, "batch 1", false));
    /* Who has ended does nothing. */
    CHECK(says(announced, 10, "io") == 0 && !news.is_news);
    ends(11);
    CHECK(tells(announced, 10, "compute", true));
    ends(10);
    ends(12);
    announced_free(announced);
}

static void those_that_have_ended_make_room(void)
{
    struct announced *announced = announced_new(proc, MOST);
    struct announced_program *programs;
    size_t count;
    uint32_t process;
    for (process = JOB; process < JOB + MOST; process++) {
        starts(process, process, 500);
        CHECK(names(announced, process, "run-17") == 0);
    }
    starts(process, process, 500);
    CHECK(names(announced, process, "late") == ENOSPC && is_of(announced, process, ""));
    /* Who has a place may go on. */
    CHECK(names(announced, JOB, "again") == 0 && is_of(announced, JOB, "again"));
    ends(JOB + 1);
    programs = announced_programs(announced, &count);
    CHECK(count == 2 && programs[1].computing == MOST - 2);
    free(programs);
    CHECK(names(announced, process, "late") == 0 && is_of(announced, process, "late"));
    ends(JOB);
    for (process = JOB + 2; process <= JOB + MOST; process++)
        ends(process);
    announced_free(announced);
}

static void the_system_tells_as_expected(void)
{
    struct announced *announced = announced_new("/proc", MOST);
    CHECK(names(announced, (uint32_t)syscall(SYS_gettid), "run-17") == 0 && is_of(announced, (uint32_t)getpid(), "run-17"));
    CHECK(is_of(announced, (uint32_t)getppid(), ""));
    announced_free(announced);
}

int main(int argc, char **argv)
{
    snprintf(proc, sizeof(proc), "%s/announced-%d", argc > 1 ? argv[1] : "/tmp", (int)getpid());
    CHECK(mkdir(proc, 0700) == 0);
    a_job_is_of_all_threads_and_ends_with_the_process();
    names_are_short_and_plain();
    phases_are_counted_by_job_and_user();
    a_program_computes_if_all_of_its_processes_do();
    those_that_have_ended_make_room();
    the_system_tells_as_expected();
    CHECK(rmdir(proc) == 0);
    printf("what processes say is heard, and ends with them\n");
    return 0;
}
