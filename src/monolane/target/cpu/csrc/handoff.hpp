// The hand-off between two stages: a barrier of the workers of a lane. Every worker announces its step in a cache line of its own, then waits until
// all workers of its lane have announced the same step. An exchange between lanes has a counter of its own: a worker counts what it has sent, and
// workers of other lanes wait for the count. Workers are numbered over all lanes; those of a lane follow each other.
//
// A waiting worker watches the pulse of the worker it waits for. Where that pulse has not beaten for the deadline, the waiting worker records its own
// number, the missing worker and the stage, and all workers leave. A waiting worker beats, because it is alive: only the one that is stuck is reported.
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
  Handoff(int lanes, int workers, double deadline_s)
      : workers_(workers), counters_(lanes * workers), pulses_(lanes * workers), check_ns_(static_cast<int64_t>(deadline_s * 1e9 / kChecks)) {}

  Pulse& pulse(int worker) { return pulses_[worker]; }

  // Passes the hand-off at the end of `stage`. Returns false when a worker is stuck; all workers then leave the request.
  bool pass(int worker, int stage) {
    announce(worker);
    return wait(worker, stage);
  }

  // The two halves of pass(), for a thread that runs several workers: it announces all of them before it waits.
  void announce(int worker) {
    count(counters_[worker].steps);
    pulses_[worker].beat();
  }
  bool wait(int worker, int stage) {
    const int first = worker / workers_ * workers_;
    for (int other = first; other < first + workers_; other++)
      if (!wait_for(worker, other, counters_[other].steps, step(worker), stage)) return false;
    return true;
  }

  // Counts what the worker has written for other lanes. Returns the count.
  uint64_t send(int worker) { return count(counters_[worker].sent); }

  // Waits until another worker has sent as much.
  bool receive(int worker, int other, uint64_t sent, int stage) { return wait_for(worker, other, counters_[other].sent, sent, stage); }

  // Waits until a counter that another worker increases has reached a value.
  bool receive_count(int worker, int other, const std::atomic<uint64_t>& counter, uint64_t value, int stage) {
    return wait_for(worker, other, counter, value, stage);
  }

  // The number of hand-offs that this worker has announced. It is the same for all workers at the same point of the program.
  uint64_t step(int worker) const { return counters_[worker].steps.load(std::memory_order_relaxed); }

  Stall stall() const { return stall_; }

 private:
  static constexpr int kSpins = 4096;               // polls without yielding, about 100 µs; then the thread yields between polls
  static constexpr int64_t kMostNs = 10'000'000;    // most ns that count between two polls: time in which the process was stopped is not waiting
  static constexpr int kChecks = 8;                  // checks of the pulse without a beat that make up the deadline
  static constexpr int kMostStarved = 20 * kChecks;  // checks of a starved worker: the wait ends even on a machine that is overloaded for long

  static uint64_t count(std::atomic<uint64_t>& counter) {
    const uint64_t value = counter.load(std::memory_order_relaxed) + 1;
    counter.store(value, std::memory_order_release);
    return value;
  }

  bool wait_for(int worker, int other, const std::atomic<uint64_t>& theirs, uint64_t value, int stage) {
    for (int i = 0; i < kSpins; i++) {
      if (theirs.load(std::memory_order_acquire) >= value) return true;
      relax();
    }
    Watch watch(pulses_[other]);
    int64_t waited = 0, last = now_ns();
    int still = 0, starved = 0;  // checks of the pulse: in a row without a beat; in all, of a worker without processor time
    while (theirs.load(std::memory_order_acquire) < value) {
      if (failed_.load(std::memory_order_acquire)) return false;
      std::this_thread::yield();
      const int64_t now = now_ns();
      waited += std::min(now - last, kMostNs);
      last = now;
      if (waited < check_ns_) continue;
      waited = 0;
      pulses_[worker].beat();
      if (watch.beats()) {
        still = 0;
      } else if (++still >= kChecks) {
        if (!watch.starved() || ++starved > kMostStarved) return fail(worker, other, stage);
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

  struct alignas(128) Counters {  // two cache lines of 64 bytes: its own, and the adjacent one that the processor prefetches with it
    std::atomic<uint64_t> steps{0}, sent{0};
  };
  const int workers_;  // of a lane
  std::vector<Counters> counters_;
  std::vector<Pulse> pulses_;
  const int64_t check_ns_;  // ns between two checks of a pulse
  std::atomic<bool> claimed_{false}, failed_{false};
  Stall stall_;
};

}  // namespace monolane
