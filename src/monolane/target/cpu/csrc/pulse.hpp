// Tells whether a worker thread is alive. A worker beats while it works, many times within a stage. A worker that has not beaten for long is stuck,
// unless it is starved: ready to run, but without processor time. Workers write their own Pulse; other threads read it through a Watch.
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

class alignas(128) Pulse {  // two cache lines of 64 bytes: its own, and the adjacent one that the processor prefetches with it
 public:
  // Called once by the worker's own thread.
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

  // Processor time that the worker has used, in ns.
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

  // Whether the worker runs or waits for a processor or for the disk (a page of the weights that was evicted). False where it sleeps, and on systems
  // where this cannot be found out.
  bool could_run() const {
#if defined(__linux__)
    const int thread = thread_.load(std::memory_order_acquire);
    if (!thread) return true;  // the thread has not started yet
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
  std::atomic<int> thread_{0};  // thread id; 0 until begin()
  std::atomic<clockid_t> clock_{};
#endif
};

// One observer's view of a worker's pulse: what has changed since the observer last checked.
class Watch {
 public:
  explicit Watch(const Pulse& pulse) : pulse_(&pulse) { restart(); }

  // Whether the worker has beaten since the last call that returned true, or since construction.
  bool beats() {
    if (pulse_->beats() == beats_) return false;
    restart();
    return true;
  }

  // Whether the worker could run but has had too little processor time to beat since its last beat. The limit, kEnoughNs, is far longer than the time
  // between two beats, because a virtual machine counts time that its host took away as processor time of the thread.
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
