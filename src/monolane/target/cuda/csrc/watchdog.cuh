// The attendant: a warp of each block that looks after it while the others work. It raises `over` when the block has not
// got on for too long, or when another has reported so. In the first block it also is the link to the host: it tells of
// tokens, and brings the wish to abort, so that no consumer ever waits for the host's memory.
#pragma once
#include "launch.cuh"

namespace monolane {

class Watchdog {
 public:
  MONOLANE_DEVICE void run() {
    const bool host = worker_id() == 0;
    bool stopped = false;
    while (!stopped) {
      stopped = ptx::load_shared_acquire(&flags()->consumers_done) != 0;  // looked at first: what was posted before it is seen after it
      check();
      if (!host) {
        ptx::nanosleep(kPollNs);
        continue;
      }
      deliver();
      if (step_ - told_ >= kStageCount) monolane_launch.outcome->steps = told_ = step_;
      if (ptx::load_system(monolane_launch.abort)) ptx::store_shared(&flags()->aborted, 1);
    }
    const uint32_t status = ptx::load_shared(&flags()->status);
    if (host && status != kRunning) ptx::store_system_release(&monolane_launch.outcome->status, status);
  }

 private:
  static constexpr int kPollNs = 5000;

  MONOLANE_DEVICE static shared::Flags* flags() { return shared::flags(); }

  MONOLANE_DEVICE void check() {
    if (ptx::load_relaxed(monolane_launch.failed)) return ptx::store_shared(&flags()->failed, 1);
    const uint32_t step = ptx::load_shared(&flags()->step);
    const int64_t now = ptx::now_ns();
    if (step != step_) step_ = step, since_ = now;
    if (now - since_ < monolane_launch.deadline_ns) return;
    if (ptx::compare_and_swap(monolane_launch.failed, 0, 1) == 0) {
      Outcome* outcome = monolane_launch.outcome;
      const uint32_t stage = ptx::load_shared(&flags()->stage);
      outcome->worker = worker_id();
      outcome->stage = stage;
      outcome->layer = stage > 0 ? min(static_cast<int>(stage - 1) / kStagesPerLayer, kLayers - 1) : 0;
      outcome->waited_for = ptx::load_shared(&flags()->waits_for);
      ptx::store_system_release(&outcome->status, kStuck);
    }
    ptx::store_shared(&flags()->failed, 1);
  }

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

  uint32_t step_ = 0, told_ = 0, written_ = 0;
  int64_t since_ = ptx::now_ns();
};

// A token for the host, by one thread of the first block.
MONOLANE_DEVICE void post(int32_t token, int64_t made) {
  shared::Flags* flags = shared::flags();
  const uint32_t posted = ptx::load_shared(&flags->posted);
  while (posted - ptx::load_shared_acquire(&flags->written) >= shared::kMailbox && !shared::failed()) ptx::nanosleep(100);
  shared::mailbox()[posted % shared::kMailbox] = {token, static_cast<int32_t>(made), ptx::now_ns()};
  ptx::store_shared_release(&flags->posted, posted + 1);
}

}  // namespace monolane
