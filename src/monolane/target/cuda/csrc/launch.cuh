// What a launch is given, how a block's shared memory is divided, and how a thread waits.
#pragma once

namespace monolane {

// Twelve warps begin with kRegisters each, as many as there are. The last four (producer, attendant, prefetcher, and one that does nothing)
// give most of theirs to the consumers.
constexpr int kConsumerWarps = 8;
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kThreads = kConsumers + 4 * 32;
constexpr int kRegisters = 168, kConsumerRegisters = 232, kProducerRegisters = 40;
// Or the consumers would wait for theirs for ever.
static_assert(kConsumerRegisters * kConsumers + kProducerRegisters * (kThreads - kConsumers) <= kRegisters * kThreads, "registers");
constexpr int kWarpgroupWarps = 4;  // warps that share a chunk
constexpr int kWarpgroups = kConsumerWarps / kWarpgroupWarps;
constexpr int kFragmentBytes = kTileRows * kKBlock * 2;  // what one warp loads at once, 16 bytes a lane
constexpr int kSlotBytes = kSlotFragments * kFragmentBytes;
constexpr int kPassRows = 16;                         // positions of a wide pass: the rows of a tensor core's A operand
constexpr int kMmaCols = 8;                        // of a tensor core's product: rows of a tile, or of half a tile twice
constexpr int kTileSums = kWarpgroups * kWarpgroupWarps * kMmaCols;  // of a tile, at one position
constexpr int kDecodeBatch = 32, kBatchSums = kDecodeBatch * kTileSums;
// A wide pass has its input elsewhere, and that place for sums, too: as many tiles for each group of warps.
constexpr int kPrefillBatch = (kXBytes / 4 + kBatchSums) / (kTileSums * kPassRows) / kWarpgroups * kWarpgroups;
constexpr int kQueriesPerKv = kHeads / kKvHeads;
constexpr int kQueryDims = kHeads * kHeadDim;
constexpr int kKvDims = kKvHeads * kHeadDim;
constexpr int kStageCount = kLayers * kStagesPerLayer + 3;  // embedding, layers, head, sampling

// What the host reads while the kernel runs.
struct Outcome {
  uint32_t made, status;
  uint32_t worker, stage, layer, waited_for;  // of a wait that took too long
  uint32_t steps, unused;                     // stages begun, now and then: a sign of life
  int64_t start_ns;                           // when the kernel began, on its own clock
};

// What penalties and biases need to know of a token.
struct TokenUse {
  int32_t count;  // times in the answer, and kSeen for what the prompt has
  int32_t bias;
};

struct Launch {
  const uint8_t* const* tapes;  // [workers]
  const Segment* segments;      // [workers][projections]
  const uint8_t* const* head_tiles;  // where each tile of a tied head lies; null where there is a table
  const uint16_t* table;
  const float* constants;
  const float* rope_table;  // [position][head_dim / 2][cosine, sine]
  uint16_t* keys;          // [layer][key/value head][block of positions], see cache.cuh
  uint16_t* values;
  float* logits;           // [vocabulary]
  // Words with tags, in one piece of `tagged_bytes`: a value in the upper half of a word, its tag in the lower.
  uint32_t* activation_words;      // activations of a narrow pass, bf16
  uint64_t* qkv_words;  // queries, keys and values, fp32
  uint32_t* partial_outputs;      // [position of the pass][split][query head's dimension]: attention over a split, bf16
  uint64_t* split_lses;     // [position of the pass][split][query head][a line]: logarithm of the split's weight, fp32
  uint64_t* published;    // [workers][kChoices][2]: what each worker publishes while a token is chosen, see rank.cuh
  struct TopList* top_lists;   // [workers]: its likeliest tokens, for logprobs
  uint64_t* logprob_sums;       // [workers][2]: its sum of weights for logprobs; and the score of the chosen token
  // Zero at launch.
  uint32_t* grid_arrivals;     // of the grid's barrier
  uint64_t* histograms;  // [kHistograms][2][kBuckets]: weights, counts
  uint32_t* failed;      // not 0: a worker is stuck, everybody leaves
  // Whatever was there before.
  uint16_t* prefill_activations;       // activations of a wide pass: plain bf16
  float* prefill_qkv;
  uint16_t* prefill_normed;     // [position of the pass]: the input of a norm where shared memory has no room for it
  uint32_t* prefill_scales;     // [position of the pass]: fp32, what such an input is to be multiplied with
  uint32_t* noise;      // [vocab], where shared memory has no room
  uint32_t* distances;  // [vocabulary], where a block's own do not fit its shared memory
  TokenUse* token_use;       // [vocabulary], each looked at by its worker alone
  Entry* entries;      // host memory
  Outcome* outcome;    // host memory
  const uint32_t* abort;  // host memory
  int64_t* trace;         // of a traced kernel, [passes][workers][stages][3]: when a stage began, had its input, ended; in ns
  int64_t trace_from, trace_passes;  // which narrow passes are traced
  int64_t deadline_ns;
  int64_t tagged_bytes;
  int32_t context;
  int32_t adjusts_logits;  // by penalties or biases
  int32_t plain_greedy;    // nothing but the highest logit matters
  uint32_t reach;          // the distance beyond which top-k and top-p hardly ever end
  uint32_t zero;           // 0, which the compiler must not know: see Cursor::leave
  uint32_t unused;
  Request request;
};

}  // namespace monolane

extern "C" {
MONOLANE_LAUNCH monolane::Launch monolane_launch;  // the host fills it in before every launch
}

namespace monolane {

// --- shared memory ---

constexpr int kPrefillStride = kPrefillCols + 32;  // elements: rows 64 bytes apart modulo 128, so that two rows share no bank
constexpr int kRingBytes = kSlots * kSlotBytes;
constexpr int kXOffset = kRingBytes;
constexpr int kSumsOffset = kXOffset + kXBytes;
constexpr int kResidualOffset = kSumsOffset + round_up(kBatchSums * 4, 128);
constexpr int kAttendBytes = kResidualOffset - kXOffset;  // attention's scratch is the place of inputs and sums
constexpr int kBarriersOffset = kResidualOffset + round_up(kMaxOwnedRows * kPassRows * 4, 128);
constexpr int kOwnOffset = kBarriersOffset + 4 * kSlots * 8;
constexpr int kMaxOwnTokens = Head::kMaxTiles * Head::kTileRows;  // of the vocabulary, that a block has
constexpr int kTouchedOffset = kOwnOffset + round_up(kProjections * 8, 128);
constexpr int kReduceOffset = kTouchedOffset + round_up(kMaxOwnTokens, 128);
constexpr int kSharedBytes = kReduceOffset + 512;
constexpr int kPrefillXOffset = kPrefillSlots * kSlotBytes;  // a wide pass keeps its input in the upper slots of the ring
static_assert(kPrefillXOffset + kPassRows * kPrefillStride * 2 <= kRingBytes, "the input of a wide pass does not fit");
static_assert(kXBytes >= round_up(kMaxCols, kSlotFragments * kKBlock) * 2 && kXBytes % 128 == 0, "the input of a narrow pass does not fit");
static_assert(kPrefillSlots >= kWarpgroups && kSharedBytes <= kSharedLimit, "shared memory");

// This block's tiles of one matrix.
struct Own {
  int first_tile, tiles;
};

MONOLANE_DEVICE const Segment& segment(int projection) {
  return monolane_launch.segments[ptx::block_index() * kProjections + projection];
}

// --- this thread and its block; all of it known from where it runs ---

MONOLANE_DEVICE int thread_id() { return ptx::thread_index(); }
MONOLANE_DEVICE int warp_id() { return static_cast<uint32_t>(ptx::thread_index()) / 32; }
MONOLANE_DEVICE int lane_id() { return static_cast<uint32_t>(ptx::thread_index()) % 32; }
MONOLANE_DEVICE int worker_id() { return ptx::block_index(); }
// Barriers of a block.
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
// Barriers of the ring: full and empty, for narrow passes (wide = 0) and for wide ones.
MONOLANE_DEVICE uint64_t* full(int prefill) { return at<uint64_t>(kBarriersOffset) + prefill * 2 * kSlots; }
MONOLANE_DEVICE uint64_t* empty(int prefill) { return full(prefill) + kSlots; }
MONOLANE_DEVICE Own* own() { return at<Own>(kOwnOffset); }                          // [projections]
MONOLANE_DEVICE uint8_t* touched() { return at<uint8_t>(kTouchedOffset); }          // [own tokens]: whether penalties or biases may change its score
MONOLANE_DEVICE float* reduce() { return at<float>(kReduceOffset); }                // 32
MONOLANE_DEVICE uint64_t* reduce64() { return at<uint64_t>(kReduceOffset + 128); }  // 32

// Flags between the consumers, the producer and the attendant of a block.
struct Flags {
  uint32_t consumers_done;             // the consumers have left
  uint32_t failed;             // somebody is stuck: no wait is worth while any more
  uint32_t step, stage, position, waits_for;  // where the consumers are, and what they waited for last
  uint32_t aborted;          // the host wants the request to end
  uint32_t status;           // how the request ended
  uint32_t barriers;         // of the grid that the first thread has passed
  uint32_t posted, written;  // tokens that were made, and those the host has been told of
  uint32_t pass_position;          // the position of the pass that has begun
  uint32_t histograms;       // that were used for sampling
  uint32_t steps_before;     // tags began anew
};
constexpr uint32_t kMailbox = 4;
struct Message {
  int32_t token, made;
  int64_t time_ns;
};
MONOLANE_DEVICE Flags* flags() { return at<Flags>(kReduceOffset + 384); }
MONOLANE_DEVICE Message* mailbox() { return at<Message>(kReduceOffset + 448); }  // [kMailbox]
static_assert(sizeof(Flags) <= 64 && 448 + kMailbox * sizeof(Message) <= 512, "shared memory");
MONOLANE_DEVICE bool consumers_done() { return ptx::load_shared(&flags()->consumers_done) != 0; }
MONOLANE_DEVICE bool failed() { return ptx::load_shared(&flags()->failed) != 0; }

}  // namespace shared

// --- waiting ---

// Every wait looks at shared::over(), which the attendant of the block raises when a deadline has passed anywhere. After
// that waits end at once, the control flow stays the same for all threads, and everybody leaves at the end of the pass.
enum WaitReason : uint32_t { kWaitCopy, kWaitActivations, kWaitBarrier, kWaitToken };

// For the attendant's report, by one thread.
MONOLANE_DEVICE void note_wait(WaitReason what) {
  if (thread_id() == 0) ptx::store_shared(&shared::flags()->waits_for, what);
}

// --- numbers ---

#define kInfinity (ptx::float_of(0x7f800000u))

MONOLANE_DEVICE float bf16_to_float(uint16_t bf16) { return ptx::float_of(static_cast<uint32_t>(bf16) << 16); }
MONOLANE_DEVICE uint32_t bf16_bits(float v) { return ptx::bf16_pair(v, 0.0f); }  // bf16 in the low half

}  // namespace monolane
