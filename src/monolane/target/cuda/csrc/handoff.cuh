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
// Two of them, of a pair of bf16.
MONOLANE_DEVICE uint64_t tagged_pair(uint32_t pair, uint32_t step) { return static_cast<uint64_t>((pair & 0xffff0000u) | step) << 32 | (pair << 16 | step); }
MONOLANE_DEVICE bool is_tagged(uint32_t word, uint32_t step) { return ((word ^ step) & 0xffffu) == 0; }
MONOLANE_DEVICE float value_of(uint32_t word) { return ptx::float_of(word & 0xffff0000u); }

// Where the word of an element lies in a buffer of 32-bit words. Where inputs become integers, a thread has 8 consecutive columns and loads them in two halves (Fours in
// prepare.cuh). So of 256 columns the first halves of all threads lie side by side, and then the second halves: a load of a warp has whole lines, and no sector is loaded
// twice. All workers load every input from L2, and several times while they poll: with columns in order, a token of the 1B and 1.5B shapes in 4 bits took 4 to 5% longer.
constexpr int kPlacedCols = 256, kSecondHalf = kPlacedCols / 2;  // from the first half of a thread to the second
MONOLANE_DEVICE int word_place(int element) {
  if (!kAnyLowBit) return element;
  return (element & ~(kPlacedCols - 1)) | (element & 4) << 5 | (element & 0xf8) >> 1 | (element & 3);
}

MONOLANE_DEVICE uint64_t tagged_float(float v, uint32_t step) { return static_cast<uint64_t>(ptx::bits_of(v)) << 32 | step; }

// Whether all threads of the warp have the words that they poll for, or the launch has failed and they never will. For polling loops that
// shuffles follow: threads that leave such a loop one by one stay diverged and execute the shuffles one by one, which took as long as the
// polling itself. Where no shuffles follow, a thread that has its words leaves the loop on its own.
//
// The polling loops of attend.cuh and prepare.cuh are written out. As calls of one function template the compiler orders the loads around them in
// another way, in up to 42 instructions more.
MONOLANE_DEVICE bool all_ready(bool ready) { return !ptx::any(!ready && !shared::failed()); }

// A word that may cross launches, and so GPUs, where lanes are apart.
MONOLANE_DEVICE void store_word(uint64_t* p, uint64_t word) {
  if constexpr (kApart)
    ptx::store_system(p, word);
  else
    ptx::store_relaxed(p, word);
}
MONOLANE_DEVICE uint64_t load_word(const uint64_t* p) {
  if constexpr (kApart)
    return ptx::load_system(p);
  else
    return ptx::load_relaxed(p);
}

// Polls a 64-bit tagged word and returns the bits of its value. `kCrosses`: it may come from another launch.
template <bool kCrosses = false>
MONOLANE_DEVICE uint32_t await_word64(const uint64_t* p, uint32_t step) {
  for (;;) {
    const uint64_t word = kCrosses ? load_word(p) : ptx::load_relaxed(p);
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
// A barrier of all workers of this launch, and one of the workers of a lane.
MONOLANE_DEVICE void grid_barrier() { barrier(monolane_launch.grid_arrivals, shared::flags()->barriers, kWorkersHere); }
MONOLANE_DEVICE void lane_barrier() {
  if (kLanesHere == 1) return grid_barrier();
  barrier(buffers().lane_arrivals, shared::flags()->lane_barriers, kLaneWorkers);
}

// --- sums over the threads of a warp ---

MONOLANE_DEVICE float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) v += ptx::shuffle_xor(v, mask);
  return v;
}

// --- launches of other lanes ---

// The same place in the memory of the launch of lane `to`. All launches divide the memory of hand-offs in the same way, so one distance leads from any
// place in it to the same place of another launch. Lanes only ever store to each other's memory; each reads its own.
template <class T>
MONOLANE_DEVICE T* at_lane(int to, T* here) {
  if constexpr (kApart) return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(here) + monolane_launch.peers[ptx::hidden(to)]);
  return here;
}
// Waits until all lanes have passed as many grid barriers of the same request. One worker of each launch stores their number to all of them, and all
// workers wait for the numbers of all lanes. The numbers only grow, also from request to request: they are not cleared. What a lane has stored before
// is visible after.
MONOLANE_DEVICE void meet_lanes() {
  note_wait(kWaitLanes);
  const uint64_t number = static_cast<uint64_t>(monolane_launch.number) << 32 | shared::flags()->barriers;
  if (thread_id() < kLanes) {
    constexpr int kLineWords = kLineBytes / 8;
    if (worker_here() == 0) ptx::store_system_release(at_lane(thread_id(), monolane_launch.meetings + lane() * kLineWords), number);
    while (ptx::load_system_acquire(monolane_launch.meetings + thread_id() * kLineWords) < number)
      if (shared::failed()) break;
  }
  sync_consumers();
}
// A barrier of the workers of all lanes.
MONOLANE_DEVICE void all_lanes_barrier() {
  grid_barrier();
  if constexpr (kApart) meet_lanes();
}

// Clears all tagged words between two passes. The only ones that a worker may still have to read are those of the chosen token; the first barrier waits
// until every worker has read them, the second until every word is cleared.
MONOLANE_NOINLINE void clear_words() {
  all_lanes_barrier();
  Word4* words = reinterpret_cast<Word4*>(monolane_launch.activation_words);
  for (int64_t i = worker_here() * kConsumers + thread_id(); i < monolane_launch.tagged_bytes / 16; i += kWorkersHere * kConsumers)
    words[i] = {0, 0, 0, 0};
  all_lanes_barrier();
}

}  // namespace monolane
