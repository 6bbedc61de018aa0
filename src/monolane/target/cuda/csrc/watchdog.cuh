// The watchdog warp, of which one thread runs. It sets the flag `failed` in shared memory, which ends all waits of its worker, when the
// worker has begun no stage for deadline_ns, or when another worker has reported a failure in global memory. On the first worker of a launch it
// also is the link to the host: it writes tokens from the mailbox in shared memory to host memory, and it reads the host's abort flag into
// shared memory, so consumer warps never wait for host memory.
#pragma once
#include "handoff.cuh"

namespace monolane {

class Watchdog {
 public:
  MONOLANE_DEVICE void run() {
    const bool host = worker_here() == 0;
    bool stopped = false;
    while (!stopped) {
      // The flag is read before the mailbox, so tokens that were posted before the flag was set are still delivered in this iteration.
      stopped = ptx::load_shared_acquire(&flags()->consumers_done) != 0;
      check();
      if (!host) {
        ptx::nanosleep(kPollNs);
        continue;
      }
      deliver();
      if (step_ - reported_ >= kStageCount) monolane_launch.outcome->steps = reported_ = step_;  // a sign of life, about once per pass
      if (ptx::load_system(monolane_launch.abort)) ptx::store_shared(&flags()->aborted, 1);
    }
    const uint32_t status = ptx::load_shared(&flags()->status);
    if (host && status != kRunning) ptx::store_system_release(&monolane_launch.outcome->status, status);
  }

 private:
  static constexpr int kPollNs = 5000;

  MONOLANE_DEVICE static shared::Flags* flags() { return shared::flags(); }

  // Sets `failed` where a deadline has passed, here or on another worker. The first worker to find itself stuck reports where it waits, and tells the
  // other lanes where they have launches of their own.
  MONOLANE_DEVICE void check() {
    if (ptx::load_relaxed(monolane_launch.failed)) return ptx::store_shared(&flags()->failed, 1);
    const uint32_t step = ptx::load_shared(&flags()->steps_before) + ptx::load_shared(&flags()->step);
    const int64_t now = ptx::now_ns();
    if (step != step_) step_ = step, since_ = now;
    if (now - since_ < monolane_launch.deadline_ns) return;
    if (ptx::compare_and_swap(monolane_launch.failed, 0, 1) == 0) {
      Outcome* outcome = monolane_launch.outcome;
      const uint32_t stage = ptx::load_shared(&flags()->stage);
      outcome->worker = worker_id();
      outcome->step = step;
      outcome->stage = stage;
      outcome->layer = stage > 0 ? min(static_cast<int>(stage - 1) / kStagesPerLayer, kLayers - 1) : 0;
      outcome->waited_for = ptx::load_shared(&flags()->waits_for);
      ptx::store_system_release(&outcome->status, kStuck);
      if constexpr (kApart)
        for (int to = 0; to < kLanes; to++) ptx::store_system(at_lane(to, monolane_launch.failed), 1);
    }
    ptx::store_shared(&flags()->failed, 1);
  }

  // Writes all posted tokens to host memory. The host reads the count `made`, stored with release, before it reads the entries.
  MONOLANE_DEVICE void deliver() {
    const uint32_t posted = ptx::load_shared_acquire(&flags()->posted);
    for (; written_ != posted; written_++) {
      const shared::Message message = shared::mailbox()[written_ % shared::kMailbox];
      Entry* entry = monolane_launch.entries + message.made;
      entry->token = message.token;
      if (monolane_launch.request.logprobs < 0) entry->top_count = 0;
      entry->time_ns = message.time_ns;
      ptx::store_system_release(&monolane_launch.outcome->made, message.made + 1);
      ptx::store_shared_release(&flags()->written, written_ + 1);
    }
  }

  uint32_t step_ = 0, reported_ = 0, written_ = 0;  // last step seen, last step reported to the host, tokens delivered
  int64_t since_ = ptx::now_ns();                   // when step_ was first seen
};

// Posts a token to the mailbox for the host; called by one consumer thread of worker 0. Waits while the mailbox is full.
MONOLANE_DEVICE void post(int32_t token, int64_t made) {
  shared::Flags* flags = shared::flags();
  const uint32_t posted = ptx::load_shared(&flags->posted);
  while (posted - ptx::load_shared_acquire(&flags->written) >= shared::kMailbox && !shared::failed()) ptx::nanosleep(100);
  shared::mailbox()[posted % shared::kMailbox] = {token, static_cast<int32_t>(made), ptx::now_ns()};
  ptx::store_shared_release(&flags->posted, posted + 1);
}

// Whether a worker is stuck. Thread 0 reads the flag once per pass and all consumer threads take its answer, so that they leave together. Many
// barriers lie between this read of the answer and the next write.
MONOLANE_DEVICE bool failed_together() {
  uint32_t* answer = reinterpret_cast<uint32_t*>(shared::reduce()) + 31;
  if (thread_id() == 0) *answer = shared::failed();
  sync_consumers();
  return *answer;
}

// Tests make one worker wait here, to see that the other workers report it.
MONOLANE_DEVICE void stall() {
  const int64_t end = ptx::now_ns() + kStallSeconds * int64_t(1000000000);
  while (ptx::now_ns() < end) ptx::nanosleep(1000000);
}

}  // namespace monolane
