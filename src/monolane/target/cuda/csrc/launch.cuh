// What all parts of the kernel use: the launch struct, the accessors of shared memory, thread and warp indices, and the flags that end all waits.
//
// target/cuda/launch.py defines the structs Launch, Outcome, TokenUse and TopList, target/cuda/shared_memory.py divides shared memory, and
// target/cuda/constants.py has the numbers of the kernel's structure; their C++ is generated in front of this header.
#pragma once

namespace monolane {

// All warps begin with kRegisters registers a thread, as many as an SM has. The warpgroup of the producer, watchdog, prefetch and exchange warps gives
// most of its registers to the two warpgroups of consumers. The exchange warp needs more than the others, and so does a producer warp that copies experts.
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kRegisters = 168, kProducerRegisters = kAnyLate ? 72 : kRouted ? 56 : 40, kConsumerRegisters = 252 - kProducerRegisters / 2;
static_assert(kConsumerRegisters * kConsumers + kProducerRegisters * (kThreads - kConsumers) <= kRegisters * kThreads,
              "the consumers would wait for registers for ever");
constexpr int kSlotFragments = kSlotBytes / kFragmentBytes;
constexpr int kTileSums = kConsumerWarps * kMmaCols;  // partial sums of a tile for one row of the pass: every consumer warp has its own
constexpr int kBatchSums = kDecodeBatch * kTileSums;
// Tiles of a batch in a prefill pass. Its input lies in the ring, so the place of inputs holds sums as well.
constexpr int kPrefillBatch = (kXBytes / 4 + kBatchSums) / (kTileSums * kPassRows) / kWarpgroups * kWarpgroups;
constexpr int kQueriesPerKv = kHeads / kKvHeads;
constexpr int kQueryDims = kHeads * kHeadDim;
constexpr int kKvDims = kKvHeads * kHeadDim;
constexpr int kStageCount = kLayers * kStagesPerLayer + 3 + kCombines;  // embedding, layers, combining streams, head, sampling

}  // namespace monolane

extern "C" {
MONOLANE_LAUNCH monolane::Launch monolane_launch;  // the host fills it in before every launch
}

namespace monolane {

// The tiles of one matrix that this worker owns.
struct Own {
  int first_tile, tiles;
};

// --- this thread and its worker ---

MONOLANE_DEVICE int thread_id() { return ptx::thread_index(); }
MONOLANE_DEVICE int warp_id() { return static_cast<uint32_t>(ptx::thread_index()) / 32; }
MONOLANE_DEVICE int lane_id() { return static_cast<uint32_t>(ptx::thread_index()) % 32; }
// A launch has all lanes of a model, or one: then every lane has a launch of its own, in a process of its own (kApart). Workers are numbered lane
// after lane, in all launches; `worker_here` counts those of this launch, and `rank` those of a lane.
constexpr bool kApart = kLanesHere < kLanes;
MONOLANE_DEVICE int worker_here() { return ptx::block_index(); }
MONOLANE_DEVICE int lane_here() { return kLanesHere > 1 ? worker_here() / kLaneWorkers : 0; }
MONOLANE_DEVICE int lane() { return kApart ? monolane_launch.lane : lane_here(); }
MONOLANE_DEVICE int rank() { return kLanesHere > 1 ? worker_here() % kLaneWorkers : worker_here(); }
MONOLANE_DEVICE int worker_id() { return kApart ? lane() * kLaneWorkers + worker_here() : worker_here(); }
MONOLANE_DEVICE LaneBuffers buffers() { return buffers_of(monolane_launch, lane_here()); }
// All lanes divide their matrices among their workers in the same way.
MONOLANE_DEVICE const Segment& segment(int projection) { return monolane_launch.segments[rank() * kProjections + projection]; }

// Named barriers of the thread block.
MONOLANE_DEVICE void sync_block() { ptx::named_barrier<0, kThreads>(); }
MONOLANE_DEVICE void sync_consumers() { ptx::named_barrier<1, kConsumers>(); }
MONOLANE_DEVICE void sync_consumers_and_producer() { ptx::named_barrier_unaligned<2, kConsumers + 32>(); }

namespace shared {

template <class T>
MONOLANE_DEVICE T* at(int offset) {
  return reinterpret_cast<T*>(ptx::shared_memory() + offset);
}
MONOLANE_DEVICE char* ring() { return at<char>(0); }
MONOLANE_DEVICE uint16_t* x() { return at<uint16_t>(kXOffset); }
MONOLANE_DEVICE uint16_t* prefill_x() { return at<uint16_t>(kPrefillXOffset); }
MONOLANE_DEVICE float* sums() { return at<float>(kSumsOffset); }
MONOLANE_DEVICE float* prefill_sums() { return at<float>(kXOffset); }
MONOLANE_DEVICE float* residual() { return at<float>(kResidualOffset); }
// mbarriers of the ring, full and empty, [slot]: those of decode passes (prefill = 0) and those of prefill passes.
MONOLANE_DEVICE uint64_t* full(int prefill) { return at<uint64_t>(kBarriersOffset) + prefill * 2 * kSlots; }
MONOLANE_DEVICE uint64_t* empty(int prefill) { return full(prefill) + kSlots; }
MONOLANE_DEVICE Own* own() { return at<Own>(kOwnOffset); }                          // [projection]
MONOLANE_DEVICE uint8_t* touched() { return at<uint8_t>(kTouchedOffset); }          // [own token]: whether penalties or biases may change its logit
MONOLANE_DEVICE float* reduce() { return at<float>(kReduceOffset); }                // [32]
MONOLANE_DEVICE uint64_t* reduce64() { return at<uint64_t>(kReduceOffset + 128); }  // [32]

// Flags between the consumer warps, the producer warp and the watchdog warp of a thread block.
struct Flags {
  uint32_t consumers_done;   // the consumers have left the request
  uint32_t failed;           // a worker is stuck: all waits end at once
  uint32_t step, stage, waits_for;  // the step and stage that the consumers are in, and the WaitReason of their last wait
  uint32_t aborted;          // the host wants the request to end
  uint32_t status;           // how the request ended
  uint32_t barriers;         // grid barriers that thread 0 has passed
  uint32_t lane_barriers;    // the same for barriers of its lane
  uint32_t posted, written;  // tokens that the consumers have generated, and those that the watchdog has passed on to the host
  uint32_t pass_position;    // first position of the pass that the consumers have begun
  uint32_t histograms;       // histograms that sampling has used
  uint32_t steps_before;     // steps before tags were renewed for the last time
  uint32_t choices;          // of experts, which the consumers have made
};
// Tokens on their way from the consumers to the watchdog.
constexpr uint32_t kMailbox = 4;
struct Message {
  int32_t token, made;
  int64_t time_ns;
};
MONOLANE_DEVICE Flags* flags() { return at<Flags>(kReduceOffset + 384); }
MONOLANE_DEVICE Message* mailbox() { return at<Message>(kReduceOffset + 448); }  // [kMailbox]
static_assert(sizeof(Flags) <= 64 && 448 + kMailbox * sizeof(Message) <= kReduceBytes, "flags or mailbox do not fit");
MONOLANE_DEVICE bool consumers_done() { return ptx::load_shared(&flags()->consumers_done) != 0; }
MONOLANE_DEVICE bool failed() { return ptx::load_shared(&flags()->failed) != 0; }

}  // namespace shared

// --- waiting ---

// Every wait polls shared::failed(), which the watchdog warp raises when a deadline has passed in any thread block. From then on all waits end at once
// with whatever data is there, the control flow of all threads stays the same, and all of them leave at the end of the pass.

// Records the reason of the next wait for the watchdog's report.
MONOLANE_DEVICE void note_wait(WaitReason what) {
  if (thread_id() == 0) ptx::store_shared(&shared::flags()->waits_for, what);
}

// --- numbers ---

#define kInfinity (ptx::float_of(0x7f800000u))

MONOLANE_DEVICE float bf16_to_float(uint16_t bf16) { return ptx::float_of(static_cast<uint32_t>(bf16) << 16); }
MONOLANE_DEVICE uint32_t bf16_bits(float v) { return ptx::bf16_pair(v, 0.0f); }  // bf16 in the low half

}  // namespace monolane
