// The hand-off between two stages: a barrier of all worker threads. Every worker announces its step in a cache line of its own, then waits until all
// workers have announced the same step. A waiting worker watches the pulse of the worker it waits for. Where that pulse has not beaten for the
// deadline, the waiting worker records its own id, the missing worker and the stage, and all workers leave.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "pulse.hpp"

namespace monolane {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Stall {
  int worker = kNone, missing = kNone, stage = kNone;
};

class Handoff {
 public:
  Handoff(int workers, double deadline_s)
      : steps_(workers), pulses_(workers), check_ns_(static_cast<int64_t>(deadline_s * 1e9 / kChecks)) {}

  Pulse& pulse(int worker) { return pulses_[worker]; }

  // Passes the hand-off at the end of `stage`. Returns false when a worker is stuck; all workers then leave the request.
  bool pass(int worker, int stage) {
    const uint64_t step = steps_[worker].value.load(std::memory_order_relaxed) + 1;
    steps_[worker].value.store(step, std::memory_order_release);
    pulses_[worker].beat();
    for (int other = 0; other < static_cast<int>(steps_.size()); other++)
      if (!wait_for(worker, other, step, stage)) return false;
    return true;
  }

  // The number of hand-offs that this worker has announced. It is the same for all workers at the same point of the program.
  uint64_t step(int worker) const { return steps_[worker].value.load(std::memory_order_relaxed); }

  Stall stall() const { return stall_; }

 private:
  static constexpr int kSpins = 4096;               // polls without yielding, about 100 µs; then the thread yields between polls
  static constexpr int64_t kMostNs = 10'000'000;    // most ns that count between two polls: time in which the process was stopped is not waiting
  static constexpr int kChecks = 8;                  // checks of the pulse without a beat that make up the deadline
  static constexpr int kMostStarved = 20 * kChecks;  // checks of a starved worker: the wait ends even on a machine that is overloaded for long

  bool wait_for(int worker, int other, uint64_t step, int stage) {
    const auto& theirs = steps_[other].value;
    for (int i = 0; i < kSpins; i++) {
      if (theirs.load(std::memory_order_acquire) >= step) return true;
      relax();
    }
    Watch watch(pulses_[other]);
    int64_t waited = 0, last = now_ns();
    int still = 0, starved = 0;  // checks of the pulse: in a row without a beat; in all, of a worker without processor time
    while (theirs.load(std::memory_order_acquire) < step) {
      if (failed_.load(std::memory_order_acquire)) return false;
      std::this_thread::yield();
      const int64_t now = now_ns();
      waited += std::min(now - last, kMostNs);
      last = now;
      if (waited < check_ns_) continue;
      waited = 0;
      if (watch.beats()) {
        still = 0;
      } else if (++still >= kChecks) {
        if (!watch.starved() || ++starved > kMostStarved) return fail(worker, other, stage);
        pulses_[worker].beat();  // this worker is alive: a worker that waits for it must not report it
      }
    }
    return true;
  }

  bool fail(int worker, int other, int stage) {
    bool first = false;
    if (claimed_.compare_exchange_strong(first, true)) {
      stall_ = {worker, other, stage};
      failed_.store(true, std::memory_order_release);
    }
    return false;
  }

  struct alignas(128) Step {  // two cache lines of 64 bytes: its own, and the adjacent one that the processor prefetches with it
    std::atomic<uint64_t> value{0};
  };
  std::vector<Step> steps_;
  std::vector<Pulse> pulses_;
  const int64_t check_ns_;  // ns between two checks of a pulse
  std::atomic<bool> claimed_{false}, failed_{false};
  Stall stall_;
};

}  // namespace monolane
