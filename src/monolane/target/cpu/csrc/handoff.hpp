// The hand-off between two stages: every worker announces its step, then waits until all have announced it. A wait
// looks at the other's pulse; when there was none for the deadline, it is recorded who waited, at which stage, and for
// whom, and all leave.
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
      : steps_(workers), pulses_(workers), look_ns_(static_cast<int64_t>(deadline_s * 1e9 / kLooks)) {}

  Pulse& pulse(int worker) { return pulses_[worker]; }

  // False when a worker is stuck and everybody leaves.
  bool pass(int worker, int stage) {
    const uint64_t step = steps_[worker].value.load(std::memory_order_relaxed) + 1;
    steps_[worker].value.store(step, std::memory_order_release);
    pulses_[worker].beat();
    for (int other = 0; other < static_cast<int>(steps_.size()); other++)
      if (!wait_for(worker, other, step, stage)) return false;
    return true;
  }

  // Hand-offs this worker has announced; the same for all workers at the same place of the program.
  uint64_t step(int worker) const { return steps_[worker].value.load(std::memory_order_relaxed); }

  Stall stall() const { return stall_; }

 private:
  static constexpr int kSpins = 4096;             // about 100 us, then the processor is offered to others between looks
  static constexpr int64_t kMostNs = 10'000'000;  // that one wait counts: a process that was halted has not waited
  static constexpr int kLooks = 8;                // without a beat: the deadline
  static constexpr int kMostStarved = 20 * kLooks;  // nobody waits for ever, even on a machine that is far too busy

  bool wait_for(int worker, int other, uint64_t step, int stage) {
    const auto& theirs = steps_[other].value;
    for (int i = 0; i < kSpins; i++) {
      if (theirs.load(std::memory_order_acquire) >= step) return true;
      relax();
    }
    Watch watch(pulses_[other]);
    int64_t waited = 0, last = now_ns();
    int still = 0, starved = 0;  // looks
    while (theirs.load(std::memory_order_acquire) < step) {
      if (failed_.load(std::memory_order_acquire)) return false;
      std::this_thread::yield();
      const int64_t now = now_ns();
      waited += std::min(now - last, kMostNs);
      last = now;
      if (waited < look_ns_) continue;
      waited = 0;
      if (watch.beats()) {
        still = 0;
      } else if (++still >= kLooks) {
        if (!watch.starved() || ++starved > kMostStarved) return fail(worker, other, stage);
        pulses_[worker].beat();  // whoever watches us should know that it is no reason to worry
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

  struct alignas(128) Step {  // a line of its own, and the one its neighbour prefetches
    std::atomic<uint64_t> value{0};
  };
  std::vector<Step> steps_;
  std::vector<Pulse> pulses_;
  const int64_t look_ns_;  // between two looks at a pulse
  std::atomic<bool> claimed_{false}, failed_{false};
  Stall stall_;
};

}  // namespace monolane
