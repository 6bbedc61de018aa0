// How results reach every block. A narrow pass publishes words that carry their own tag, the number of the step, so that
// no fence and no counter is needed: who needs a word looks at it until its tag is right. A wide pass has sixteen times the
// data and one barrier per stage instead.
//
// Memory for such words is cleared before a launch, and 0 is nobody's tag. Tags have kTagBits bits, and before they run out (see
// renew_tags) all words are cleared again: no word ever has the tag of another step, however long a request is.
#pragma once
#include "launch.cuh"

namespace monolane {

constexpr uint32_t kMaxTag = (1u << kTagBits) - 1;
static_assert(kTagBits <= 16 && kMaxTag >= kStageCount, "a pass needs a tag for every stage");

MONOLANE_DEVICE uint32_t tagged(float v, uint32_t step) { return bf16_bits(v) << 16 | step; }
MONOLANE_DEVICE bool is_tagged(uint32_t word, uint32_t step) { return ((word ^ step) & 0xffffu) == 0; }
MONOLANE_DEVICE float value_of(uint32_t word) { return ptx::float_of(word & 0xffff0000u); }

MONOLANE_DEVICE uint64_t tagged_float(float v, uint32_t step) { return static_cast<uint64_t>(ptx::bits_of(v)) << 32 | step; }

// Whether a look has shown all lanes of a warp what they need, or none will: for looks with shuffles behind them. Lanes that leave
// a loop one by one take shuffles one by one, too, which took as long as the look itself. Where none follow, a lane that has its
// words need not look again.
MONOLANE_DEVICE bool all_ready(bool ready) { return !ptx::any(!ready && !shared::failed()); }

// The upper 32 bits of a word whose lower 32 are the step.
MONOLANE_DEVICE uint32_t await_word64(const uint64_t* p, uint32_t step) {
  for (;;) {
    const uint64_t v = ptx::load_relaxed(p);
    if (static_cast<uint32_t>(v) == step || shared::failed()) return static_cast<uint32_t>(v >> 32);
  }
}

// A number that another block has written before a barrier: past L1.
MONOLANE_DEVICE float load_float(const float* p) { return ptx::float_of(ptx::load_relaxed(reinterpret_cast<const uint32_t*>(p))); }

// All blocks have written what they had to write. Called by all consumers.
MONOLANE_DEVICE void grid_barrier() {
  note_wait(kWaitBarrier);
  sync_consumers();
  if (thread_id() == 0) {
    const uint32_t all = ++shared::flags()->barriers * kWorkers;
    uint32_t* counter = monolane_launch.grid_arrivals;
    ptx::add_release(counter, 1);
    while (static_cast<int32_t>(ptx::load_acquire(counter) - all) < 0)
      if (shared::failed()) break;
  }
  sync_consumers();
}

}  // namespace monolane
