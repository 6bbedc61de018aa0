// How fast this GPU reads its memory: one block per multiprocessor, nothing computed but sums that prove that every byte
// was read. The lines generated before this one include ptx.cuh (or its twin for a CPU) and fix kThreads and the way: kUnroll
// 16-byte loads per thread at a time, or a ring of kSlots bulk copies of 16 KiB; the other of the two is 0.

namespace monolane {

constexpr int kChunkBytes = 16384;
constexpr int kChunkWords = kChunkBytes / 16;

struct Launch {
  const Word4* memory;
  int64_t bytes;   // a multiple of blocks * kThreads * kUnroll * 16, and of blocks * kChunkBytes
  int64_t* times;  // [block][began, ended], ns
  uint64_t* sum;   // of all 32-bit words of all passes
  int32_t blocks;
  int32_t passes;
};

}  // namespace monolane

extern "C" {
MONOLANE_LAUNCH monolane::Launch monolane_launch;
}

namespace monolane {

MONOLANE_DEVICE uint64_t total(Word4 v) { return uint64_t{v.x} + v.y + v.z + v.w; }

struct Loads {
  MONOLANE_DEVICE static uint64_t read(const Launch& launch) {
    constexpr int kStep = kThreads * kUnroll;
    uint64_t sum = 0;
    for (int pass = 0; pass < launch.passes; pass++)
      for (int64_t i = ptx::block_index() * kStep + ptx::thread_index(); i < launch.bytes / 16; i += launch.blocks * kStep) {
        Word4 loaded[kUnroll + 1];  // one more: without loads this still has to compile
#pragma unroll
        for (int j = 0; j < kUnroll; j++) loaded[j] = ptx::load_l2(launch.memory + i + j * kThreads);
#pragma unroll
        for (int j = 0; j < kUnroll; j++) sum += total(loaded[j]);
      }
    return sum;
  }
};

// The last warp copies chunks into the ring, the others add up what has come.
struct Copies {
  static constexpr int kSlotCount = kSlots ? kSlots : 1;
  static constexpr int kReaders = kThreads - 32;

  MONOLANE_DEVICE static uint64_t read(const Launch& launch) {
    if (ptx::thread_index() == 0) {
      for (int slot = 0; slot < kSlotCount; slot++) {
        ptx::barrier_init(full() + slot, 1);
        ptx::barrier_init(empty() + slot, kReaders / 32);
      }
      ptx::barrier_init_fence();
    }
    ptx::sync<0, kThreads>();
    // Chunk by chunk in turn with the other blocks; all of a block's threads count its chunks alike.
    const int64_t chunks = launch.bytes / kChunkBytes;
    uint64_t sum = 0;
    uint32_t count = 0;
    for (int pass = 0; pass < launch.passes; pass++)
      for (int64_t chunk = ptx::block_index(); chunk < chunks; chunk += launch.blocks, count++) {
        const int slot = count % kSlotCount, round = count / kSlotCount;
        if (ptx::thread_index() < kReaders)
          sum += drain(slot, round);
        else if (ptx::thread_index() == kReaders)
          fill(slot, round, launch.memory + chunk * kChunkWords);
      }
    return sum;
  }

 private:
  MONOLANE_DEVICE static char* ring() { return ptx::shared_memory(); }
  MONOLANE_DEVICE static uint64_t* full() { return reinterpret_cast<uint64_t*>(ring() + kSlotCount * kChunkBytes); }
  MONOLANE_DEVICE static uint64_t* empty() { return full() + kSlotCount; }

  MONOLANE_DEVICE static void fill(int slot, int round, const Word4* from) {
    if (round) wait(empty() + slot, (round - 1) & 1);
    ptx::barrier_expect(full() + slot, kChunkBytes);
    ptx::bulk_copy(ring() + slot * kChunkBytes, from, kChunkBytes, full() + slot);
  }

  MONOLANE_DEVICE static uint64_t drain(int slot, int round) {
    wait(full() + slot, round & 1);
    const Word4* words = reinterpret_cast<const Word4*>(ring() + slot * kChunkBytes);
    uint64_t sum = 0;
#pragma unroll 4
    for (int i = ptx::thread_index(); i < kChunkWords; i += kReaders) sum += total(words[i]);
    ptx::sync_warp();
    if (ptx::thread_index() % 32 == 0) ptx::barrier_arrive(empty() + slot);
    return sum;
  }

  // For a copy or for threads that wait only for copies: it always ends.
  MONOLANE_DEVICE static void wait(uint64_t* barrier, uint32_t parity) {
    while (!ptx::barrier_passed(barrier, parity)) {
    }
  }
};

template <bool kBulk>
struct Way : Loads {};
template <>
struct Way<true> : Copies {};

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int64_t began = ptx::now_ns();
  const uint64_t sum = Way<(kSlots > 0)>::read(monolane_launch);
  ptx::sync<0, kThreads>();
  if (ptx::thread_index() == 0) {
    monolane_launch.times[2 * ptx::block_index()] = began;
    monolane_launch.times[2 * ptx::block_index() + 1] = ptx::now_ns();
  }
  ptx::add_global(monolane_launch.sum, sum);
}
