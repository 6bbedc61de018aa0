// Hand-offs: how the results of a stage reach the consumer warps of all workers, through global memory.
// A decode pass publishes tagged words, which have a value and the step number (the tag) in one word. A consumer polls a word until its
// tag is the step it waits for, so no fence and no counter is needed. A prefill pass has up to 16 times the data, writes plain values, and
// ends each stage with one grid barrier instead.
//
//   32-bit tagged word:  | bf16 value (16 bits) | tag (16 bits) |      activations, partial outputs of attention
//   64-bit tagged word:  | fp32 value (32 bits) | tag (32 bits) |      queries, keys, values, LSEs of splits, results of sampling
//
// The memory of tagged words is zeroed before a launch, and no step has the number 0. Tags have kTagBits bits. Before step numbers exceed
// them, all words are zeroed again and step numbers start over (Consumer::renew_tags), so a word never has the tag of a different step,
// however long a request is.
#pragma once
#include "launch.cuh"

namespace monolane {

constexpr uint32_t kMaxTag = (1u << kTagBits) - 1;
static_assert(kTagBits <= 16 && kMaxTag >= kStageCount, "a pass needs a tag for every stage");

MONOLANE_DEVICE uint32_t tagged(float v, uint32_t step) { return bf16_bits(v) << 16 | step; }
MONOLANE_DEVICE bool is_tagged(uint32_t word, uint32_t step) { return ((word ^ step) & 0xffffu) == 0; }
MONOLANE_DEVICE float value_of(uint32_t word) { return ptx::float_of(word & 0xffff0000u); }

MONOLANE_DEVICE uint64_t tagged_float(float v, uint32_t step) { return static_cast<uint64_t>(ptx::bits_of(v)) << 32 | step; }

// Whether all threads of the warp have the words that they poll for, or the launch has failed and they never will. For polling loops that
// shuffles follow: threads that leave such a loop one by one stay diverged and execute the shuffles one by one, which took as long as the
// polling itself. Where no shuffles follow, a thread that has its words leaves the loop on its own.
//
// The polling loops of attend.cuh and prepare.cuh are written out. As calls of one function template the compiler orders the loads around them in
// another way, in up to 42 instructions more.
MONOLANE_DEVICE bool all_ready(bool ready) { return !ptx::any(!ready && !shared::failed()); }

// Polls a 64-bit tagged word and returns the bits of its value.
MONOLANE_DEVICE uint32_t await_word64(const uint64_t* p, uint32_t step) {
  for (;;) {
    const uint64_t word = ptx::load_relaxed(p);
    if (static_cast<uint32_t>(word) == step || shared::failed()) return static_cast<uint32_t>(word >> 32);
  }
}

// A float that another worker wrote before a grid barrier. The load bypasses L1, which is not coherent with writes of other workers.
MONOLANE_DEVICE float load_float(const float* p) { return ptx::float_of(ptx::load_relaxed(reinterpret_cast<const uint32_t*>(p))); }

// Waits until `workers` workers have arrived; all consumer warps of a worker call it. Writes before the barrier are visible after it.
// The counter only grows: barrier number n is complete at n * workers arrivals, and the signed difference allows it to wrap around.
MONOLANE_DEVICE void barrier(uint32_t* counter, uint32_t& passed, int workers) {
  note_wait(kWaitBarrier);
  sync_consumers();
  if (thread_id() == 0) {
    const uint32_t complete = ++passed * workers;
    ptx::add_release(counter, 1);
    while (static_cast<int32_t>(ptx::load_acquire(counter) - complete) < 0)
      if (shared::failed()) break;
  }
  sync_consumers();
}
// A barrier of all workers, and one of the workers of a lane.
MONOLANE_DEVICE void grid_barrier() { barrier(monolane_launch.grid_arrivals, shared::flags()->barriers, kWorkers); }
MONOLANE_DEVICE void lane_barrier() {
  if (kLanes == 1) return grid_barrier();
  barrier(buffers().lane_arrivals, shared::flags()->lane_barriers, kLaneWorkers);
}

}  // namespace monolane
