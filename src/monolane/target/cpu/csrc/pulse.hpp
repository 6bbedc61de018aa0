// Tells whether a worker thread is alive. A worker beats while it works, many times within a stage. A worker that has not beaten for long is stuck,
// unless it is starved: ready to run, but without processor time; or not yet in the request. Workers write their own Pulse; other threads, also those
// of other processes, read it through a Watch.
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
  // Called by the worker's own thread at the beginning of a request.
  void begin(int64_t round) {
#if defined(__linux__)
    process_.store(getpid(), std::memory_order_relaxed);
    thread_.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
#endif
    round_.store(round, std::memory_order_release);
  }

  // The latest request that the worker has begun.
  int64_t round() const { return round_.load(std::memory_order_acquire); }

  void beat() { beats_.store(beats_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

  // Processor time that the worker has used, in ns; that of all its process where this is not its process.
  int64_t used_ns() const {
#if defined(__linux__)
    const int process = process_.load(std::memory_order_relaxed), thread = thread_.load(std::memory_order_relaxed);
    clockid_t clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);  // what pthread_getcpuclockid() gives for the thread
    timespec used{};
    if (process != getpid() && clock_getcpuclockid(process, &clock)) return 0;
    if (clock_gettime(clock, &used)) return 0;
    return used.tv_sec * int64_t{1'000'000'000} + used.tv_nsec;
#else
    return 0;
#endif
  }

  // Whether the worker runs or waits for a processor or for the disk (a page of the weights that was evicted). False where it sleeps, and on systems
  // where this cannot be found out.
  bool could_run() const {
#if defined(__linux__)
    char path[64], text[256];
    std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process_.load(std::memory_order_relaxed), thread_.load(std::memory_order_relaxed));
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
  std::atomic<int> process_{0}, thread_{0};
#endif
  std::atomic<int64_t> round_{0};
};

// One observer's view of a worker's pulse in a request: what has changed since the observer last checked.
class Watch {
 public:
  Watch(const Pulse& pulse, int64_t round) : pulse_(&pulse), round_(round) { restart(); }

  // Whether the worker has beaten since the last call that returned true, or since construction.
  bool beats() {
    if (pulse_->beats() == beats_) return false;
    restart();
    return true;
  }

  // Whether the worker could run but has had too little processor time to beat since its last beat. The limit, kEnoughNs, is far longer than the time
  // between two beats, because a virtual machine counts time that its host took away as processor time of the thread. A worker that has not begun the
  // request sleeps until the host wakes it.
  bool starved() const { return pulse_->round() < round_ || (pulse_->used_ns() - used_ns_ < kEnoughNs && pulse_->could_run()); }

 private:
  static constexpr int64_t kEnoughNs = 5'000'000'000;

  void restart() {
    beats_ = pulse_->beats();
    used_ns_ = pulse_->used_ns();
  }

  const Pulse* pulse_;
  int64_t round_;
  uint64_t beats_;
  int64_t used_ns_;
};

}  // namespace monolane
