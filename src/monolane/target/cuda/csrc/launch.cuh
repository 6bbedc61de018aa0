// What a launch is given, how a block's shared memory is divided, and how a thread waits.
#pragma once

namespace monolane {

constexpr int kConsumerWarps = 12;  // with the producer's they are charged as 16 and get 128 registers each
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kThreads = kConsumers + 32;
constexpr int kGroupWarps = 4;  // warps that share a chunk
constexpr int kGroups = kConsumerWarps / kGroupWarps;
constexpr int kUnitBytes = kTileRows * kBlock * 2;  // what one warp loads at once: 8 rows of 32 weights, 16 bytes a lane
constexpr int kSlotUnits = 32;
constexpr int kSlotBytes = kSlotUnits * kUnitBytes;
constexpr int kWidth = 16;                         // positions of a wide pass: the rows of a tensor core's A operand
constexpr int kBatchSums = 32 * kGroups * kGroupWarps * kTileRows;  // sums of 32 tiles at one position, or of 2 at 16
constexpr int kBatchOfOne = kBatchSums / (kGroups * kGroupWarps * kTileRows), kBatchOfMany = kBatchOfOne / kWidth;
constexpr int kHeadStride = round_up(kHeadDim, 8);
constexpr int kGroup = kHeads / kKvHeads;
constexpr int kQueries = kHeads * kHeadDim;
constexpr int kKeys = kKvHeads * kHeadDim;
constexpr int kPartial = kHeadStride + 2;  // weighted values, maximum, sum
constexpr int kStageCount = sizeof(kStages) / sizeof(kStages[0]);
constexpr int kBuckets = 4096;
constexpr int kAttendSums = kConsumerWarps * kPartial;  // attention's scratch is the place of the sums
constexpr int kScratch = kBatchSums > kAttendSums ? kBatchSums : kAttendSums;

// What the host reads while the kernel runs.
struct Outcome {
  uint32_t made, status;
  uint32_t worker, stage, layer, waited_for;  // of a wait that took too long
  int64_t start_ns;                           // when the kernel began, on its own clock
};

struct Launch {
  const uint8_t* const* tapes;  // [workers]
  const Segment* segments;      // [workers][projections]
  const uint8_t* const* head_tiles;  // where each tile of a tied head lies; null where there is a table
  const uint16_t* table;
  const float* constants;
  const float* rotations;  // [position][head_dim / 2][cosine, sine]
  uint16_t* keys;          // [layer][key/value head][position][head stride]
  uint16_t* values;
  uint32_t* words;      // activations of a narrow pass: bf16 and a 16-bit tag each
  uint64_t* qkv_words;  // queries, keys and values: fp32 and a 32-bit tag each
  uint16_t* wide;       // activations of a wide pass: plain bf16
  float* wide_qkv;
  float* partials;     // [position of the pass][split][head][kPartial]
  uint32_t* counters;  // [position of the pass][key/value head], then the grid's barrier
  uint64_t* choices;   // [workers][2] and one more: each worker's best token, the token that was drawn
  float* logits;
  int64_t* scores;     // [vocabulary]
  uint64_t* buckets;   // [kBuckets]
  int32_t* counts;     // [vocabulary]: times in the answer, and kSeen for what the prompt has
  uint32_t* failed;    // not 0: a worker is stuck, everybody leaves
  Entry* entries;      // host memory
  Outcome* outcome;    // host memory
  const uint32_t* abort;  // host memory
  int64_t* trace;         // null, or [passes][workers][stages][3]: when a stage began, had its input, ended; in ns
  int64_t trace_from, trace_passes;  // which narrow passes are traced
  int64_t deadline_ns;
  int32_t context, unused;
  Request request;
};

}  // namespace monolane

extern "C" {
MONOLANE_LAUNCH monolane::Launch monolane_launch;  // the host fills it in before every launch
}

namespace monolane {

// --- shared memory ---

constexpr int kWideStride = kWideCols + 32;  // elements: rows 64 bytes apart modulo 128, so that two rows share no bank
constexpr int kRingBytes = kSlots * kSlotBytes;
constexpr int kXOffset = kRingBytes;
constexpr int kSumsOffset = kXOffset + round_up(kMaxCols * 2, 128);
constexpr int kResidualOffset = kSumsOffset + round_up(kScratch * 4, 128);
constexpr int kBarriersOffset = kResidualOffset + round_up(kMaxOwnedRows * kWidth * 4, 128);
constexpr int kOwnOffset = kBarriersOffset + 4 * kSlots * 8;
constexpr int kReduceOffset = kOwnOffset + round_up(kProjections * 8, 128);
constexpr int kSharedBytes = kReduceOffset + 512;
constexpr int kWideXOffset = kWideSlots * kSlotBytes;  // a wide pass keeps its input in the upper slots of the ring
static_assert(kWideXOffset + kWidth * kWideStride * 2 <= kRingBytes, "the input of a wide pass does not fit");
static_assert(kWideSlots >= 2 && kSharedBytes <= kSharedLimit, "shared memory");

// This block's tiles of one matrix.
struct Own {
  int first_tile, tiles;
};

MONOLANE_DEVICE const Segment& segment(int projection) { return monolane_launch.segments[ptx::block_index() * kProjections + projection]; }

// --- this thread and its block; all of it known from where it runs ---

MONOLANE_DEVICE int thread_index() { return ptx::thread_index(); }
MONOLANE_DEVICE int warp_index() { return static_cast<uint32_t>(ptx::thread_index()) / 32; }
MONOLANE_DEVICE int lane_index() { return static_cast<uint32_t>(ptx::thread_index()) % 32; }
MONOLANE_DEVICE int worker_index() { return ptx::block_index(); }
MONOLANE_DEVICE void sync_consumers() { ptx::sync(1, kConsumers); }

namespace shared {

template <class T>
MONOLANE_DEVICE T* at(int offset) {
  return reinterpret_cast<T*>(ptx::shared_memory() + offset);
}
MONOLANE_DEVICE char* ring() { return at<char>(0); }
MONOLANE_DEVICE uint16_t* x() { return at<uint16_t>(kXOffset); }
MONOLANE_DEVICE uint16_t* wide_x() { return at<uint16_t>(kWideXOffset); }
MONOLANE_DEVICE float* sums() { return at<float>(kSumsOffset); }
MONOLANE_DEVICE float* residual() { return at<float>(kResidualOffset); }
// Barriers of the ring: full and empty, for narrow passes (wide = 0) and for wide ones.
MONOLANE_DEVICE uint64_t* full(int wide) { return at<uint64_t>(kBarriersOffset) + wide * 2 * kSlots; }
MONOLANE_DEVICE uint64_t* empty(int wide) { return full(wide) + kSlots; }
MONOLANE_DEVICE Own* own() { return at<Own>(kOwnOffset); }                          // [projections]
MONOLANE_DEVICE float* reduce() { return at<float>(kReduceOffset); }                // 32
MONOLANE_DEVICE uint64_t* reduce64() { return at<uint64_t>(kReduceOffset + 128); }  // 32
MONOLANE_DEVICE volatile uint32_t* stop() { return at<volatile uint32_t>(kReduceOffset + 384); }

}  // namespace shared

// --- waiting ---

// Every wait has a deadline and looks whether others have given up. After that waits end at once, the control flow stays
// the same for all threads, and everybody leaves at the end of the stage.
class Wait {
 public:
  MONOLANE_DEVICE Wait(int stage, int waited_for) : stage_(stage), waited_for_(waited_for) {}

  MONOLANE_DEVICE bool over() {
    if (++looks_ & kLooks) return false;
    if (ptx::load_relaxed(monolane_launch.failed)) return true;
    const int64_t now = ptx::now_ns();
    if (!since_) since_ = now;
    if (now - since_ < monolane_launch.deadline_ns) return false;
    if (ptx::compare_and_swap(monolane_launch.failed, 0, 1) == 0) {
      Outcome* outcome = monolane_launch.outcome;
      outcome->worker = worker_index();
      outcome->stage = stage_;
      outcome->layer = stage_ >= 0 ? kStages[stage_].layer : 0;
      outcome->waited_for = waited_for_;
      ptx::store_host_release(&outcome->status, kStuck);
    }
    return true;
  }

 private:
  static constexpr uint32_t kLooks = 1023;  // between two looks at the clock
  const int stage_, waited_for_;
  uint32_t looks_ = 0;
  int64_t since_ = 0;
};

enum WaitFor : int { kForCopy, kForSlot, kForWords, kForBarrier, kForChoice };

// --- numbers ---

#define kInfinity (ptx::float_of(0x7f800000u))

MONOLANE_DEVICE float widen(uint16_t bf16) { return ptx::float_of(static_cast<uint32_t>(bf16) << 16); }
MONOLANE_DEVICE uint32_t narrow_bits(float v) {  // bf16 in the low half, rounded to nearest even
  const uint32_t bits = ptx::bits_of(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
MONOLANE_DEVICE int64_t first_seen(int64_t position, int window) {
  return window && position >= window ? position - window + 1 : 0;
}

}  // namespace monolane
