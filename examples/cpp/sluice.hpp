// sluice.hpp: libsluice for C++17, header only. Errors are exceptions; callbacks are virtual functions.
#pragma once
#include <chrono>
#include <sluice.h>
#include <stdexcept>
#include <string>

namespace sluicegate {

// What a call answered.
struct error : std::runtime_error {
    int code;
    explicit error(int code) : std::runtime_error(sluice_last_error()), code(code) {}
};

inline void check(int code) {
    if (code != SLUICE_OK) throw error(code);
}

// How to create a scheduler: struct sluice_options with its defaults.
struct options : sluice_options {
    options() : sluice_options() { struct_size = sizeof(sluice_options); }
};

inline sluice_request request(uint32_t op, uint64_t file, uint64_t offset, uint32_t len, uint64_t cookie, uint32_t app = 0) {
    sluice_request r = sluice_request();
    r.struct_size = sizeof r, r.op = op, r.file = file, r.offset = offset, r.len = len, r.cookie = cookie, r.app = app;
    return r;
}

// Derive from it, and end() it before the derived part is destroyed.
class scheduler {
  public:
    explicit scheduler(options o) {
        o.user = this;
        o.start = [](void *self, sluice *, const sluice_part *p) noexcept { of(self)->start(p, 1); };
        o.start_batch = [](void *self, sluice *, const sluice_part *p, size_t n) noexcept { of(self)->start(p, n); };
        o.cancelled = [](void *self, sluice *, const sluice_part *p, int e) noexcept { of(self)->cancelled(*p, e); };
        check(sluice_create(&o, &handle_));
    }
    scheduler(const scheduler &) = delete;
    scheduler &operator=(const scheduler &) = delete;
    virtual ~scheduler() { sluice_destroy(handle_); }

    void submit(const sluice_request &r) { check(sluice_submit_wait(handle_, &r)); }
    uint64_t submit_numbered(const sluice_request &r) {
        uint64_t id;
        check(sluice_submit(handle_, &r, &id));
        return id;
    }
    void cancel(uint64_t id) { check(sluice_cancel(handle_, id)); }
    void complete(uint64_t id, uint32_t bytes, int errno_or_0 = 0) { check(sluice_complete(handle_, id, bytes, errno_or_0)); }
    void policy(const std::string &p) { check(sluice_set_policy(handle_, p.c_str())); }
    sluice_counters stats(int which = SLUICE_TOTAL) const {
        sluice_counters c = sluice_counters();
        c.struct_size = sizeof c;
        check(sluice_stats(handle_, which, &c));
        return c;
    }
    // Waits for everything submitted.
    void end(std::chrono::nanoseconds timeout = std::chrono::seconds(30)) {
        check(sluice_shutdown(handle_, static_cast<uint64_t>(timeout.count())));
    }

  protected:
    // One request, or several that are contiguous. Must return soon and not throw.
    virtual void start(const sluice_part *parts, size_t count) noexcept = 0;
    virtual void cancelled(const sluice_part &part, int error) noexcept = 0;

  private:
    static scheduler *of(void *self) { return static_cast<scheduler *>(self); }
    sluice *handle_ = nullptr;
};

} // namespace sluicegate
