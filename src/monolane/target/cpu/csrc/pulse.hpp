// Whether a worker is alive. It beats while it works, many times within a stage; one that does not beat for long is stuck,
// unless it is the machine that gives it no time: then it could run, and has not been allowed to.
#pragma once
#include <atomic>
#include <cstdint>
#if defined(__linux__)
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#endif

namespace monolane {

class alignas(128) Pulse {  // a line of its own, and the one its neighbour prefetches
 public:
  // By the worker's own thread.
  void begin() {
#if defined(__linux__)
    clockid_t clock{};
    pthread_getcpuclockid(pthread_self(), &clock);
    clock_.store(clock, std::memory_order_relaxed);
    thread_.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_release);
#endif
  }

  void beat() { beats_.store(beats_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

  // Processor time that the worker has had, in ns.
  int64_t used_ns() const {
#if defined(__linux__)
    if (!thread_.load(std::memory_order_acquire)) return 0;
    timespec used{};
    clock_gettime(clock_.load(std::memory_order_relaxed), &used);
    return used.tv_sec * int64_t{1'000'000'000} + used.tv_nsec;
#else
    return 0;
#endif
  }

  // Whether it runs, or waits for a processor or for the disk (a page of the weights that was dropped); false where it
  // sleeps, and where nobody can tell.
  bool could_run() const {
#if defined(__linux__)
    const int thread = thread_.load(std::memory_order_acquire);
    if (!thread) return true;  // it has not even begun
    char path[64], text[256];
    std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = 0;
    const char* name_end = std::strrchr(text, ')');  // "1234 (name) R ..."
    return name_end && (std::strncmp(name_end, ") R", 3) == 0 || std::strncmp(name_end, ") D", 3) == 0);
#else
    return false;
#endif
  }

 private:
  std::atomic<uint64_t> beats_{0};
#if defined(__linux__)
  std::atomic<int> thread_{0};  // 0 until it has begun
  std::atomic<clockid_t> clock_{};
#endif
};

// What somebody has seen of a worker's pulse.
class Watch {
 public:
  explicit Watch(const Pulse& pulse) : pulse_(&pulse) { restart(); }

  // Whether it has beaten since the last look.
  bool beats() {
    if (pulse_->beats() == beats_) return false;
    restart();
    return true;
  }

  // Since its last beat it has had too little time to beat, and not because it slept. A virtual machine counts the time
  // its host took away as time the thread had, so this needs far more than what lies between two beats.
  bool starved() const { return pulse_->used_ns() - used_ns_ < kEnoughNs && pulse_->could_run(); }

 private:
  static constexpr int64_t kEnoughNs = 5'000'000'000;

  void restart() {
    beats_ = pulse_->beats();
    used_ns_ = pulse_->used_ns();
  }

  const Pulse* pulse_;
  uint64_t beats_;
  int64_t used_ns_;
};

}  // namespace monolane
