// Measures how fast this GPU reads its memory, with one thread block per SM. The kernel computes only sums, which prove that every byte was read.
// The lines generated before this one include ptx.cuh (or emulate.hpp), define the Launch of read_gpu.py, and fix two constants: kThreads, and
// kUnroll, which is the number of 16-byte loads that a thread issues at a time, or 0 for bulk copies into a ring. A piece is what a thread block
// reads at a time: kUnroll loads of every thread, or one bulk copy.

namespace monolane {

constexpr int kPollsPerClockRead = 16;  // the clock is read once per so many polls

MONOLANE_DEVICE uint64_t total(Word4 v) { return uint64_t{v.x} + v.y + v.z + v.w; }

MONOLANE_DEVICE const Word4* first_piece() { return monolane_launch.memory + ptx::block_index() * monolane_launch.origin; }

MONOLANE_DEVICE void fail() { ptx::store_relaxed(monolane_launch.failed, 1u); }

struct Loads {
  MONOLANE_DEVICE static uint64_t read(int64_t) {
    uint64_t sum = 0;
    for (int pass = 0; pass < monolane_launch.passes; pass++) {
      const Word4* from = first_piece() + ptx::thread_index();
      for (int piece = 0; piece < monolane_launch.pieces; piece++, from += monolane_launch.step) {
        Word4 loaded[kUnroll + 1];  // one element more than needed: this must also compile where kUnroll is 0
#pragma unroll
        for (int j = 0; j < kUnroll; j++) loaded[j] = ptx::load_l2(from + j * kThreads);
#pragma unroll
        for (int j = 0; j < kUnroll; j++) sum += total(loaded[j]);
      }
    }
    return sum;
  }
};

// The producer, one thread of the last warp, issues the bulk copies into the ring. The other warps, the readers, sum the chunks that have landed.
struct Copies {
  static constexpr int kReaders = kThreads - 32;

  MONOLANE_DEVICE static uint64_t read(int64_t deadline) {
    if (ptx::thread_index() == 0) {
      for (int slot = 0; slot < monolane_launch.slots; slot++) {
        ptx::mbarrier_init(full() + slot, 1);
        ptx::mbarrier_init(empty() + slot, kReaders / 32);
      }
      ptx::mbarrier_init_fence();
    }
    ptx::named_barrier<0, kThreads>();
    if (ptx::thread_index() < kReaders) return drain(deadline);
    if (ptx::thread_index() == kReaders) fill(deadline);
    return 0;
  }

 private:
  MONOLANE_DEVICE static Word4* ring() { return reinterpret_cast<Word4*>(ptx::shared_memory()); }
  MONOLANE_DEVICE static uint64_t* full() { return reinterpret_cast<uint64_t*>(ring() + monolane_launch.slots * monolane_launch.chunk_words); }
  MONOLANE_DEVICE static uint64_t* empty() { return full() + monolane_launch.slots; }

  MONOLANE_DEVICE static void fill(int64_t deadline) {
    const uint32_t bytes = monolane_launch.chunk_words * 16;
    int slot = 0;
    uint32_t parity = 1;  // waiting for parity 1 of a new mbarrier returns at once: its slot is empty
    for (int pass = 0; pass < monolane_launch.passes; pass++) {
      const Word4* from = first_piece();
      for (int piece = 0; piece < monolane_launch.pieces; piece++, from += monolane_launch.step) {
        if (!wait(empty() + slot, parity, deadline)) return;
        ptx::mbarrier_arrive_expect(full() + slot, bytes);
        ptx::bulk_copy(ring() + slot * monolane_launch.chunk_words, from, bytes, full() + slot);
        advance(slot, parity);
      }
    }
  }

  // After a wait that missed the deadline, a thread continues without waiting instead of leaving: all threads of a warp must reach sync_warp.
  MONOLANE_DEVICE static uint64_t drain(int64_t deadline) {
    uint64_t sum = 0;
    bool late = false;
    int slot = 0;
    uint32_t parity = 0;
    for (int n = monolane_launch.pieces * monolane_launch.passes; n > 0; n--) {
      late = late || !wait(full() + slot, parity, deadline);
      const Word4* words = ring() + slot * monolane_launch.chunk_words;
#pragma unroll 4
      for (int i = ptx::thread_index(); i < monolane_launch.chunk_words; i += kReaders) sum += total(words[i]);
      ptx::sync_warp();
      if (ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(empty() + slot);
      advance(slot, parity);
    }
    return sum;
  }

  MONOLANE_DEVICE static void advance(int& slot, uint32_t& parity) {
    if (++slot == monolane_launch.slots) slot = 0, parity ^= 1;
  }

  MONOLANE_DEVICE static bool wait(uint64_t* barrier, uint32_t parity, int64_t deadline) {
    for (int polls = 1; !ptx::mbarrier_try_wait(barrier, parity); polls++)
      if (polls % kPollsPerClockRead == 0 && ptx::now_ns() > deadline) {
        fail();
        return false;
      }
    return true;
  }
};

template <bool kBulk>
struct Way : Loads {};
template <>
struct Way<true> : Copies {};

// Waits until all thread blocks have started, so that no thread block's time includes the launch.
MONOLANE_DEVICE void await_all_blocks(int64_t deadline) {
  if (ptx::thread_index() == 0) {
    ptx::add_release(monolane_launch.arrived, 1);
    for (int polls = 1; ptx::load_acquire(monolane_launch.arrived) < static_cast<uint32_t>(monolane_launch.blocks); polls++)
      if (polls % kPollsPerClockRead == 0 && ptx::now_ns() > deadline) {
        fail();
        break;
      }
  }
  ptx::named_barrier<0, kThreads>();
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int64_t deadline = ptx::now_ns() + monolane_launch.deadline_ns;
  await_all_blocks(deadline);
  const int64_t began = ptx::now_ns();
  uint64_t sum = Way<(kUnroll == 0)>::read(deadline);
  ptx::named_barrier<0, kThreads>();
  if (ptx::thread_index() == 0) {
    monolane_launch.times[2 * ptx::block_index()] = began;
    monolane_launch.times[2 * ptx::block_index() + 1] = ptx::now_ns();
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
  if (ptx::thread_index() % 32 == 0) ptx::add_global(monolane_launch.sum, sum);
}
