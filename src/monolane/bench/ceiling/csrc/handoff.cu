// Measures how long all thread blocks take to synchronise, while memory is idle or while every thread block streams bulk copies: by a hand-off
// in tagged words (every thread block publishes one word and reads the words of all), or by a barrier on one counter. Eight warps of each thread
// block run the hand-offs; one thread of a ninth warp issues the copies. The lines generated before this one include ptx.cuh (or emulate.hpp) and
// define HandoffLaunch of latency_gpu.py as Launch.

constexpr int kReaders = 256, kThreads = kReaders + 32;

namespace monolane {

constexpr int kChunkBytes = 16384;
constexpr int kPollsPerClockRead = 16;  // the clock is read once per so many polls

MONOLANE_DEVICE int64_t* stamps() { return monolane_launch.stamps + 5 * ptx::block_index(); }

struct Shared {
  MONOLANE_DEVICE static char* slot(int index) { return ptx::shared_memory() + index * kChunkBytes; }
  MONOLANE_DEVICE static uint64_t* landed() { return reinterpret_cast<uint64_t*>(slot(monolane_launch.in_flight)); }
  MONOLANE_DEVICE static uint32_t* done() { return reinterpret_cast<uint32_t*>(landed() + monolane_launch.in_flight); }
  // Set by a thread that missed the deadline in this round. Alternate rounds use two flags: a thread may still have to check the flag of one
  // round while another thread already sets that of the next.
  MONOLANE_DEVICE static uint32_t* late(uint32_t round) { return done() + 1 + (round & 1); }
};

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
      if (ptx::load_shared(Shared::late(round))) break;
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
    ptx::store_shared(Shared::late(round), 1);
    ptx::store_relaxed(monolane_launch.failed, 1u);
    return true;
  }

  int64_t deadline_;
  uint64_t sum_ = 0;
};

// Keeps in_flight bulk copies in flight: each slot gets a new copy as soon as the previous one has landed. The copied bytes are not used.
class Stream {
 public:
  MONOLANE_DEVICE explicit Stream(int64_t deadline) : deadline_(deadline) {}

  MONOLANE_DEVICE void run() {
    const int64_t began = ptx::now_ns();
    const Word4* share = monolane_launch.memory + ptx::block_index() * monolane_launch.share_chunks * (kChunkBytes / 16);
    int64_t chunks = 0;
    for (int64_t next = 0; wait() && !ptx::load_shared(Shared::done()); chunks++, advance()) {
      ptx::mbarrier_arrive_expect(Shared::landed() + slot_, kChunkBytes);
      ptx::bulk_copy(Shared::slot(slot_), share + next * (kChunkBytes / 16), kChunkBytes, Shared::landed() + slot_);
      if (++next == monolane_launch.share_chunks) next = 0;
    }
    for (int left = 0; left < monolane_launch.in_flight && wait(); left++) advance();  // no copy may land after the kernel has ended
    stamps()[2] = began;
    stamps()[3] = ptx::now_ns();
    stamps()[4] = chunks;
  }

 private:
  // Waits until the slot's copy has landed. False after the deadline.
  MONOLANE_DEVICE bool wait() {
    for (int polls = 1; !ptx::mbarrier_try_wait(Shared::landed() + slot_, parity_); polls++)
      if (polls % kPollsPerClockRead == 0 && ptx::now_ns() > deadline_) {
        ptx::store_relaxed(monolane_launch.failed, 1u);
        return false;
      }
    return true;
  }
  MONOLANE_DEVICE void advance() {
    if (++slot_ == monolane_launch.in_flight) slot_ = 0, parity_ ^= 1;
  }

  int64_t deadline_;
  int slot_ = 0;
  uint32_t parity_ = 1;  // waiting for parity 1 of a new mbarrier returns at once: its slot is free
};

MONOLANE_DEVICE void prepare() {
  if (ptx::thread_index() == 0) {
    for (int slot = 0; slot < monolane_launch.in_flight; slot++) ptx::mbarrier_init(Shared::landed() + slot, 1);
    ptx::mbarrier_init_fence();
    for (int word = 0; word < 3; word++) ptx::store_shared(Shared::done() + word, 0);
  }
  ptx::named_barrier<0, kThreads>();
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int64_t deadline = ptx::now_ns() + monolane_launch.deadline_ns;
  prepare();
  uint64_t sum = 0;
  if (ptx::thread_index() < kReaders)
    sum = Rounds(deadline).run();
  else if (ptx::thread_index() == kReaders && monolane_launch.in_flight)
    Stream(deadline).run();
  ptx::named_barrier<0, kThreads>();
  for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
  if (ptx::thread_index() % 32 == 0) ptx::add_global(monolane_launch.sum, sum);
}
