// The hand-off between two stages: a barrier of the workers of a lane. Every worker announces its step in a cache line of its own, then waits until
// all workers of its lane have announced the same step. An exchange between lanes has a counter of its own: a worker counts what it has sent, and
// workers of other lanes wait for the count. Workers are numbered over all lanes; those of a lane follow each other.
//
// A waiting worker watches the pulse of the worker it waits for. Where that pulse has not beaten for the deadline, the waiting worker records its own
// number, the missing worker and the stage, and all workers leave. A waiting worker beats, because it is alive: only the one that is stuck is reported.
// Counters, pulses and the report are in memory that lanes in other processes share.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "pulse.hpp"
#include "region.hpp"

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
  Handoff(Region& region, int lanes, int workers, double deadline_s)
      : workers_(workers),
        counters_(region.take<Counters>(lanes * workers)),
        pulses_(region.take<Pulse>(lanes * workers)),
        report_(region.take<Report>(1)),
        own_(static_cast<size_t>(lanes) * workers),
        check_ns_(static_cast<int64_t>(deadline_s * 1e9 / kChecks)) {}

  Pulse& pulse(int worker) { return pulses_[worker]; }

  // Passes the hand-off at the end of `stage`. Returns false when a worker is stuck; all workers then leave the request.
  bool pass(int worker, int stage) {
    announce(worker, stage);
    return wait(worker, stage);
  }

  // The two halves of pass(), for a thread that runs several workers: it announces all of them before it waits.
  void announce(int worker, int stage) {
    count(counters_[worker].steps, own_[worker].steps, worker, stage);
    pulses_[worker].beat();
  }
  bool wait(int worker, int stage) {
    const int first = worker / workers_ * workers_;
    for (int other = first; other < first + workers_; other++)
      if (!wait_for(worker, other, counters_[other].steps, step(worker), stage)) return false;
    return true;
  }

  // Counts what the worker has written for other lanes. Returns the count.
  uint64_t send(int worker, int stage) { return count(counters_[worker].sent, own_[worker].sent, worker, stage); }

  // Waits until another worker has sent as much.
  bool receive(int worker, int other, uint64_t sent, int stage) { return wait_for(worker, other, counters_[other].sent, sent, stage); }

  // Waits until a counter that another worker increases has reached a value.
  bool receive_count(int worker, int other, const std::atomic<uint64_t>& counter, uint64_t value, int stage) {
    return wait_for(worker, other, counter, value, stage);
  }

  // The number of hand-offs that this worker has announced. It is the same for all workers at the same point of the program.
  uint64_t step(int worker) const { return own_[worker].steps; }

  Stall stall() const { return report_->stall; }

 private:
  static constexpr int kSpins = 4096;               // polls without yielding, about 100 µs; then the thread yields between polls
  static constexpr uint64_t kMostAhead = 1 << 20;   // counts: far more than those of two passes
  static constexpr int64_t kMostNs = 10'000'000;    // most ns that count between two polls: time in which the process was stopped is not waiting
  static constexpr int kChecks = 8;                  // checks of the pulse without a beat that make up the deadline
  static constexpr int kMostStarved = 20 * kChecks;  // checks of a starved worker: the wait ends even on a machine that is overloaded for long
  static constexpr int kMostChecks = 240 * kChecks;  // checks in all: no wait is endless, even where the other worker beats

  // A worker's own count is what it says to others. Where the counter says something else, another process has overwritten it: the worker reports
  // itself, because nobody can know what others have made of it.
  uint64_t count(std::atomic<uint64_t>& counter, uint64_t& own, int worker, int stage) {
    if (counter.load(std::memory_order_relaxed) != own) fail(worker, worker, stage);
    counter.store(++own, std::memory_order_release);
    return own;
  }

  bool wait_for(int worker, int other, const std::atomic<uint64_t>& theirs, uint64_t value, int stage) {
    for (int i = 0; i < kSpins; i++) {
      if (const uint64_t seen = theirs.load(std::memory_order_acquire); seen >= value) return is_possible(seen - value) || fail(worker, other, stage);
      relax();
    }
    Watch watch(pulses_[other], pulses_[worker].round());
    int64_t waited = 0, last = now_ns();
    int still = 0, starved = 0, checks = 0;  // checks of the pulse: in a row without a beat; of a worker without processor time; in all
    uint64_t seen;
    while ((seen = theirs.load(std::memory_order_acquire)) < value) {
      if (report_->failed.load(std::memory_order_acquire)) return false;
      std::this_thread::yield();
      const int64_t now = now_ns();
      waited += std::min(now - last, kMostNs);
      last = now;
      if (waited < check_ns_) continue;
      waited = 0;
      pulses_[worker].beat();
      still = watch.beats() ? 0 : still + 1;
      const bool is_stuck = still >= kChecks && (!watch.starved() || ++starved > kMostStarved);
      if (is_stuck || ++checks > kMostChecks) return fail(worker, other, stage);
    }
    return is_possible(seen - value) || fail(worker, other, stage);
  }

  // Whether a worker can be so far ahead: no lane is two passes ahead of another. Where a process has overwritten the memory that lanes share, a
  // counter may say anything.
  static bool is_possible(uint64_t ahead) { return ahead < kMostAhead; }

  bool fail(int worker, int other, int stage) {
    uint32_t nobody = 0;
    if (report_->claimed.compare_exchange_strong(nobody, 1)) {
      report_->stall = {worker, other, stage};
      report_->failed.store(1, std::memory_order_release);
    }
    return false;
  }

  struct alignas(128) Counters {  // two cache lines of 64 bytes: its own, and the adjacent one that the processor prefetches with it
    std::atomic<uint64_t> steps{0}, sent{0};
  };
  struct Report {
    std::atomic<uint32_t> claimed{0}, failed{0};
    Stall stall;
  };
  struct alignas(128) Own {
    uint64_t steps = 0, sent = 0;
  };
  const int workers_;  // of a lane
  Counters* const counters_;
  Pulse* const pulses_;
  Report* const report_;
  std::vector<Own> own_;  // what the workers of this process have counted
  const int64_t check_ns_;  // ns between two checks of a pulse
};

}  // namespace monolane
