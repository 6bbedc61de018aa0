// Measures how long all thread blocks take to synchronise, while memory is idle or while every thread block streams bulk copies: by a hand-off
// in tagged words (every thread block publishes one word and reads the words of all), or by a barrier on one counter. Eight warps of each thread
// block run the hand-offs; one thread of a ninth warp issues the copies. The lines generated before this one include ptx.cuh (or emulate.hpp),
// define HandoffLaunch of latency_gpu.py as Launch, and contain stream.cuh.

constexpr int kReaders = 256, kThreads = kReaders + 32;

namespace monolane {

// Set by a thread that missed the deadline in this round. Alternate rounds use two flags: a thread may still have to check the flag of one
// round while another thread already sets that of the next.
MONOLANE_DEVICE uint32_t* late(uint32_t round) { return Shared::done() + 1 + (round & 1); }

class Rounds {
 public:
  MONOLANE_DEVICE explicit Rounds(int64_t deadline) : deadline_(deadline) {}

  // Returns the sum of all numbers that this thread has read. All threads of a thread block leave the loop after the same round.
  MONOLANE_DEVICE uint64_t run() {
    const uint32_t warm_up = monolane_launch.warm_up, last = warm_up + monolane_launch.rounds;
    for (uint32_t round = 1; round <= last; round++) {
      if (round == warm_up + 1 && ptx::thread_index() == 0) stamps()[0] = ptx::now_ns();
      if (monolane_launch.barriers)
        barrier(round);
      else
        hand_over(round);
      if (ptx::load_shared(late(round))) break;
    }
    if (ptx::thread_index() == 0) {
      stamps()[1] = ptx::now_ns();
      ptx::store_shared(Shared::done(), 1);
    }
    return sum_;
  }

 private:
  // There are two sets of words, used in alternate rounds. A thread block overwrites its word two rounds later, after it has seen every thread
  // block's word of the round between, so every thread block has read the old word.
  MONOLANE_DEVICE void hand_over(uint32_t round) {
    uint64_t* words = monolane_launch.words + (round & 1) * monolane_launch.blocks;
    if (ptx::thread_index() == 0) ptx::store_relaxed(words + ptx::block_index(), uint64_t{round} << 32 | (ptx::block_index() + round));
    for (int from = ptx::thread_index(); from < monolane_launch.blocks; from += kReaders) {
      uint64_t word = ptx::load_relaxed(words + from);
      for (int polls = 1; word >> 32 != round && !too_late(polls, round); polls++) word = ptx::load_relaxed(words + from);
      sum_ += static_cast<uint32_t>(word);
    }
    ptx::named_barrier<1, kReaders>();
  }

  MONOLANE_DEVICE void barrier(uint32_t round) {
    ptx::named_barrier<1, kReaders>();
    if (ptx::thread_index() == 0) {
      ptx::add_release(monolane_launch.arrived, 1);
      const uint32_t all = round * monolane_launch.blocks;
      for (int polls = 1; ptx::load_acquire(monolane_launch.arrived) < all && !too_late(polls, round); polls++) {
      }
    }
    ptx::named_barrier<1, kReaders>();
  }

  MONOLANE_DEVICE bool too_late(int polls, uint32_t round) {
    if (polls % kPollsPerClockRead || ptx::now_ns() <= deadline_) return false;
    ptx::store_shared(late(round), 1);
    ptx::store_relaxed(monolane_launch.failed, 1u);
    return true;
  }

  int64_t deadline_;
  uint64_t sum_ = 0;
};

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int64_t deadline = ptx::now_ns() + monolane_launch.deadline_ns;
  prepare_shared<kThreads>();
  uint64_t sum = 0;
  if (ptx::thread_index() < kReaders)
    sum = Rounds(deadline).run();
  else if (ptx::thread_index() == kReaders && monolane_launch.in_flight)
    Stream(deadline).run();
  ptx::named_barrier<0, kThreads>();
  for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
  if (ptx::thread_index() % 32 == 0) ptx::add_global(monolane_launch.sum, sum);
}
