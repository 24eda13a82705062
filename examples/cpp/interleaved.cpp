// Eight threads read a file in strides; the scheduler puts neighbouring blocks together again.
//   g++ -std=c++17 interleaved.cpp $(pkg-config --cflags --libs sluice) -pthread -o interleaved && ./interleaved FILE
#include "sluice.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include <vector>

constexpr uint32_t BLOCK = 16384;
constexpr unsigned THREADS = 8;

struct reader : sluicegate::scheduler {
    int fd;
    std::vector<char> data;
    std::atomic<uint64_t> bytes{0};
    std::atomic<int> failed{0};

    reader(int fd, uint64_t blocks, const sluicegate::options &o) : scheduler(o), fd(fd), data(blocks * BLOCK) {}

    void start(const sluice_part *parts, size_t count) noexcept override {
        std::vector<iovec> places(count);
        for (size_t i = 0; i < count; i++) places[i] = {&data[parts[i].offset], parts[i].len};
        ssize_t read = preadv(fd, places.data(), static_cast<int>(count), static_cast<off_t>(parts[0].offset));
        if (read < 0) failed = errno;
        for (size_t i = 0; i < count; i++) {
            uint64_t done = read < 0 ? 0 : std::min<uint64_t>(static_cast<uint64_t>(read), parts[i].len);
            read -= static_cast<ssize_t>(done);
            bytes += done;
            complete(parts[i].id, static_cast<uint32_t>(done), failed);
        }
    }
    void cancelled(const sluice_part &, int error) noexcept override { failed = error; }
};

int main(int argc, char **argv) try {
    if (argc != 2) return std::fprintf(stderr, "usage: interleaved FILE\n"), 2;
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0) return std::perror(argv[1]), 1;
    uint64_t size = static_cast<uint64_t>(lseek(fd, 0, SEEK_END)), blocks = (size + BLOCK - 1) / BLOCK;
    sluicegate::options options;
    options.policy = "to-agg", options.flags = SLUICE_OWN_THREAD;
    reader r(fd, blocks, options);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < THREADS; t++)
        threads.emplace_back([&, t] {
            for (uint64_t block = t; block < blocks; block += THREADS)
                r.submit(sluicegate::request(SLUICE_READ, 1, block * BLOCK, BLOCK, 0, t));
        });
    for (auto &thread : threads) thread.join();
    r.end();
    sluice_counters c = r.stats();
    std::printf("%llu bytes of %llu, requests: %llu, batches: %llu\n", (unsigned long long)r.bytes, (unsigned long long)size,
                (unsigned long long)c.batched_requests, (unsigned long long)c.batches);
    return r.bytes == size && !r.failed ? 0 : 1;
} catch (const sluicegate::error &e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
}
