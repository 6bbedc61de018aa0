// The parts that sampling is made of: ranks, reductions over the consumer threads of a worker, the worker's own tokens and their logits, penalties
// and biases, and the likeliest tokens of all workers. The consumer warps of every worker run it. It reads logits from shared or global memory and
// exchanges numbers with other workers as tagged words: a 32-bit value in the upper half of a 64-bit word, the step in the lower half.
#pragma once
#include "prepare.cuh"
#include "integers.hpp"

namespace monolane {

constexpr uint32_t kNoToken = 0xffffffffu;     // instead of a token id: a logit was not a number
constexpr uint32_t kAbortToken = 0xfffffffeu;  // instead of a token id: the host has asked to end the request
constexpr int32_t kSeen = 1 << 30;             // flag in TokenUse::count: the token occurs in the prompt or in the answer

// The fixed-point logit: the logit, clamped to ±kLogitLimit, in steps of 2^-kLogitBits, rounded to nearest even.
MONOLANE_DEVICE int64_t fixed_logit(float logit) {
  const float limited = logit < -kLogitLimit ? -kLogitLimit : logit > kLogitLimit ? kLogitLimit : logit;
  return ptx::round_to_integer(limited * static_cast<float>(1 << kLogitBits));
}

// A rank is a fixed-point logit and a token id in one comparable integer: a higher logit has a higher rank and, of equal logits, the lower id. The id
// takes the lower 22 bits. The logit takes the upper 42 bits, because penalties may carry it beyond 32 bits: 42 bits are enough for a token that has
// occurred a million times.
constexpr int kTokenBits = 22;
constexpr uint32_t kTokenMask = (1u << kTokenBits) - 1;
constexpr int64_t kLogitOffset = int64_t(1) << (63 - kTokenBits);
static_assert(kVocab <= static_cast<int>(kTokenMask), "a rank has no room for so many tokens");
constexpr uint64_t kNoNumberRank = ~uint64_t(0), kAbortRank = ~uint64_t(0) - 1;  // higher than the rank of any token

MONOLANE_DEVICE uint64_t rank_of(int64_t logit, uint32_t token) {
  return static_cast<uint64_t>(logit + kLogitOffset) << kTokenBits | (kTokenMask - token);
}
MONOLANE_DEVICE uint64_t rank_of(float logit, uint32_t token) { return logit != logit ? kNoNumberRank : rank_of(fixed_logit(logit), token); }
MONOLANE_DEVICE uint32_t token_of(uint64_t rank) {
  return rank == kNoNumberRank ? kNoToken : rank == kAbortRank ? kAbortToken : kTokenMask - (static_cast<uint32_t>(rank) & kTokenMask);
}
MONOLANE_DEVICE int64_t fixed_logit_of(uint64_t rank) { return static_cast<int64_t>(rank >> kTokenBits) - kLogitOffset; }

// --- reductions over the consumer threads of a worker ---

MONOLANE_DEVICE uint64_t max_of_warp(uint64_t v) {
  for (int mask = 16; mask; mask >>= 1) {
    const uint64_t other = ptx::shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

MONOLANE_DEVICE uint64_t max_of_block(uint64_t v) {
  sync_consumers();  // all threads have read the results of the reduction before
  v = max_of_warp(v);
  if (lane_id() == 0) shared::reduce64()[warp_id()] = v;
  sync_consumers();
  uint64_t highest = shared::reduce64()[0];
  for (int w = 1; w < kConsumerWarps; w++) highest = max(highest, shared::reduce64()[w]);
  return highest;
}

// The same maxima as functions of few instructions, for code that runs once per token and has to be fetched from L2 or memory first (see sample.cuh).
MONOLANE_NOINLINE uint64_t max_of_warp_noinline(uint64_t v) {
  MONOLANE_LOOP
  for (int mask = 16; mask; mask >>= 1) v = max(v, ptx::shuffle_xor(v, mask));
  return v;
}
MONOLANE_NOINLINE uint64_t max_of_block_noinline(uint64_t v) {
  v = max_of_warp_noinline(v);
  sync_consumers();  // all threads have read the results of the reduction before
  if (lane_id() == 0) shared::reduce64()[warp_id()] = v;
  sync_consumers();
  return max_of_warp_noinline(shared::reduce64()[lane_id() % kConsumerWarps]);
}

// A prefix sum over the consumer threads: the sum over the threads before this one, and the sum over all threads.
struct Prefix {
  uint64_t before, total;
  // Whether the running sum first exceeds `target` at this thread, whose own number is `own`.
  MONOLANE_DEVICE bool passes(uint64_t target, uint64_t own) const { return before <= target && target < before + own; }
};
MONOLANE_NOINLINE uint64_t prefix_sum_of_warp(uint64_t v) {
  MONOLANE_LOOP
  for (int delta = 1; delta < 32; delta <<= 1) {
    const uint64_t lower = ptx::shuffle_up(v, delta);
    if (lane_id() >= delta) v += lower;
  }
  return v;
}
MONOLANE_NOINLINE Prefix prefix_of_block(uint64_t own) {
  const uint64_t sum = prefix_sum_of_warp(own);
  sync_consumers();  // all threads have read the results of the reduction before
  if (lane_id() == 31) shared::reduce64()[warp_id()] = sum;
  sync_consumers();
  const uint64_t of_warps = prefix_sum_of_warp(shared::reduce64()[lane_id() % kConsumerWarps]);
  const uint64_t before = ptx::shuffle(of_warps, max(warp_id() - 1, 0));
  return {(warp_id() ? before : 0) + sum - own, ptx::shuffle(of_warps, kConsumerWarps - 1)};
}
// Numbers that one thread has found, for all consumer threads. They lie behind the entries of shared::reduce64() that reductions use.
MONOLANE_DEVICE uint64_t* found() { return shared::reduce64() + 16; }

// --- what workers publish ---

// A 64-bit value needs two tagged words: its upper half in the first, its lower half in the second.
MONOLANE_DEVICE void publish32(uint64_t* to, uint32_t value, uint32_t step) { store_word(to, static_cast<uint64_t>(value) << 32 | step); }
MONOLANE_DEVICE void publish64(uint64_t* to, uint64_t value, uint32_t step) {
  store_word(to, value >> 32 << 32 | step);
  store_word(to + 1, value << 32 | step);
}
MONOLANE_DEVICE uint32_t await32(const uint64_t* from, uint32_t step) { return await_word64<true>(from, step); }
MONOLANE_DEVICE uint64_t await64(const uint64_t* from, uint32_t step) {
  const uint64_t high = await32(from, step), low = await32(from + 1, step);
  return high << 32 | low;
}

static_assert(kWorkersHere <= kConsumers && kLanes <= kConsumers, "a worker has a consumer thread for each worker of its launch, and for each lane");

// What the workers of this launch publish for each other.
MONOLANE_DEVICE uint64_t* published_words(int worker, Published which) { return monolane_launch.published + 2 * (kPublishedCount * worker + which); }

// Publishes the highest of the ranks that this worker's consumer threads have.
MONOLANE_DEVICE void publish_best(uint64_t rank, uint32_t step, Published which = kBest) {
  rank = max_of_block(rank);
  if (thread_id() == 0) publish64(published_words(worker_here(), which), rank, step);
}

// Waits for the number that worker thread_id() of this launch has published; 0 in threads beyond the last worker.
MONOLANE_DEVICE uint64_t await_best(uint32_t step, Published which) {
  return thread_id() < kWorkersHere ? await64(published_words(thread_id(), which), step) : 0;
}

// Where every lane has a launch of its own: the number of lane thread_id(); 0 in threads beyond the last lane. `own` is that of this lane, the same in
// all consumer threads of its workers, of which one passes it on.
MONOLANE_NOINLINE uint64_t of_each_lane(uint64_t own, Published which, uint32_t step) {
  if (thread_id() >= kLanes) return 0;
  uint64_t* words = monolane_launch.lane_published;  // [lane][Published][2]
  if (worker_here() == 0) publish64(at_lane(thread_id(), words + 2 * (kPublishedCount * lane() + which)), own, step);
  return await64(words + 2 * (kPublishedCount * thread_id() + which), step);
}

// The highest of what all workers have published is the highest of kParts numbers, of which thread i gets number i: those of all workers or, where lanes
// are apart, those of all lanes.
constexpr int kParts = kApart ? kLanes : kWorkers;
MONOLANE_DEVICE uint64_t await_parts(uint32_t step, Published which) {
  const uint64_t theirs = await_best(step, which);
  if constexpr (kApart) return of_each_lane(max_of_block_noinline(theirs), which, step);
  return theirs;
}

// --- a worker's own tokens ---

// The tokens whose logits this worker computes: its output rows of the head, consecutive ids.
struct OwnTokens {
  int first, count;
  MONOLANE_DEVICE bool has(uint32_t token) const { return token - static_cast<uint32_t>(first) < static_cast<uint32_t>(count); }
};
MONOLANE_DEVICE OwnTokens own_tokens() {
  const Own own = shared::own()[kProjections - 1];
  const int row = own.first_tile * Head::kTileRows, first = lane() * Head::kRows + row;
  return {first, max(min(own.tiles * Head::kTileRows, min(Head::kRows - row, kVocab - first)), 0)};
}

// The scratch of sampling, in the part of shared memory that inputs and sums of projections have (kXOffset to kResidualOffset):
//
//     kXOffset         tables: powers, logarithms, stretches, 256 numbers of 8 bytes each
//                      ranks: 8 bytes per worker
//     kLogitsOffset    fp32 logits of the worker's own tokens, later their distances, 4 bytes each, if kLogitsFit. They lie behind the input of
//                      the head and before the sums, because both are in use while the logits are written
//     kBucketsOffset   a histogram: 2 x kBuckets numbers of 8 bytes
//     kNoiseOffset     noise of the worker's own tokens, 4 bytes each, if kNoiseFits
static_assert(kTableEntries == kConsumers && kBuckets == kConsumers, "one consumer thread for each entry of a table and for each bucket");

// Keeps the logit of the worker's token number `local`. Logprobs need the logits in global memory too, because a draw overwrites those in shared
// memory with distances.
MONOLANE_DEVICE void keep_logit(int local, int token, float logit) {
  if (kLogitsFit) shared::at<float>(kLogitsOffset)[local] = logit;
  if (!kLogitsFit || monolane_launch.request.logprobs >= 0) monolane_launch.logits[token] = logit;
}

// Calls `use(i, logit)` for this thread's tokens, where i counts the worker's own tokens. A thread gets the logits that it has stored itself (see
// finish_batch), so there is no barrier between.
template <class Use>
MONOLANE_DEVICE void each_logit(const OwnTokens& own, Use use) {
  const float* logits = kLogitsFit ? shared::at<float>(kLogitsOffset) : monolane_launch.logits + own.first;
  MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) use(i, logits[i]);
}

// Records what penalties and biases need to know of this worker's tokens: TokenUse in global memory, which only this worker reads, and one byte per
// token in shared memory that says whether TokenUse has anything about it. For most tokens it has nothing, and reading global memory takes long.
MONOLANE_NOINLINE void note_prompt() {
  const Request& request = monolane_launch.request;
  const OwnTokens own = own_tokens();
  MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) monolane_launch.token_use[own.first + i] = {0, 0}, shared::touched()[i] = 0;
  sync_consumers();
  MONOLANE_LOOP
  for (int64_t i = thread_id(); i < request.token_count; i += kConsumers)
    if (own.has(request.tokens[i])) monolane_launch.token_use[request.tokens[i]].count = kSeen, shared::touched()[request.tokens[i] - own.first] = 1;
  sync_consumers();  // a token of the prompt may also have a bias
  MONOLANE_LOOP
  for (int64_t i = thread_id(); i < request.sampling.bias_count; i += kConsumers) {
    const Bias& bias = request.sampling.bias[i];
    if (own.has(bias.token))
      monolane_launch.token_use[bias.token].bias = static_cast<int32_t>(bias.value), shared::touched()[bias.token - own.first] = 1;
  }
  sync_consumers();
}

// Records a token of the answer, in the worker that owns it.
MONOLANE_NOINLINE void note_token(uint32_t token) {
  const OwnTokens own = own_tokens();
  if (thread_id() != 0 || !own.has(token)) return;
  TokenUse& used = monolane_launch.token_use[token];
  used.count = (used.count | kSeen) + 1;
  shared::touched()[token - own.first] = 1;
}

MONOLANE_NOINLINE int64_t adjusted(int64_t logit, uint32_t token) {
  const TokenUse used = monolane_launch.token_use[token];
  return (used.count ? penalised(logit, used.count & (kSeen - 1), monolane_launch.request.sampling) : logit) + used.bias;
}

// The fixed-point logit of the worker's token number `local`, with penalties and biases.
MONOLANE_DEVICE int64_t adjusted_logit(float logit, int local, const OwnTokens& own) {
  const int64_t fixed = fixed_logit(logit);
  const bool touched = monolane_launch.adjusts_logits && shared::touched()[local];
  return touched ? adjusted(fixed, own.first + local) : fixed;
}

// The rank of the best of this thread's tokens, with penalties and biases.
MONOLANE_NOINLINE uint64_t best_adjusted() {
  const OwnTokens own = own_tokens();
  uint64_t best = 0;
  each_logit(own, [&](int i, float logit) {
    best = max(best, logit != logit ? kNoNumberRank : rank_of(adjusted_logit(logit, i, own), own.first + i));
  });
  return best;
}

namespace sampling {

MONOLANE_DEVICE uint64_t* powers() { return shared::at<uint64_t>(kXOffset); }
MONOLANE_DEVICE uint64_t* logarithms() { return powers() + kTableEntries; }
MONOLANE_DEVICE uint64_t* stretches() { return powers() + 2 * kTableEntries; }
MONOLANE_DEVICE uint64_t* ranks() { return powers() + 3 * kTableEntries; }            // [kParts]: the ranks of their best tokens
MONOLANE_DEVICE uint64_t* buckets() { return shared::at<uint64_t>(kBucketsOffset); }  // [2][kBuckets]
// [own tokens]: the highest fixed-point logit minus the token's, limited to 32 bits. Where logits are in shared memory, distances overwrite them.
MONOLANE_DEVICE uint32_t* distances(const OwnTokens& own) {
  return kLogitsFit ? shared::at<uint32_t>(kLogitsOffset) : monolane_launch.distances + own.first;
}
// [own tokens]: the noise of the exponential race (see noise_of).
MONOLANE_DEVICE uint32_t* noise(const OwnTokens& own) { return kNoiseFits ? shared::at<uint32_t>(kNoiseOffset) : monolane_launch.noise + own.first; }

}  // namespace sampling

// The n-th highest of the ranks in sampling::ranks(), or 0 where there are fewer. At least n tokens of the vocabulary have this rank or a higher one.
MONOLANE_DEVICE uint64_t nth_rank(int n) {
  const uint64_t* ranks = sampling::ranks();
  if (thread_id() == 0) found()[0] = 0;
  sync_consumers();
  if (thread_id() < kParts) {
    const uint64_t mine = ranks[thread_id()];
    int higher = 0;
#pragma unroll 4
    for (int w = 0; w < kParts; w++) higher += ranks[w] > mine;
    if (higher == n - 1 && mine) found()[0] = mine;  // one thread at most: no two tokens have the same rank
  }
  sync_consumers();
  return found()[0];
}

// weight_of() of integers.hpp for distances of 32 bits, with fewer instructions. The results are the same.
MONOLANE_DEVICE uint64_t weight_of(uint32_t distance, uint32_t rate) {
  const uint64_t exponent = static_cast<uint64_t>(distance) * rate;
  const uint32_t low = static_cast<uint32_t>(exponent), high = static_cast<uint32_t>(exponent >> 32), whole = high >> 4;
  const uint32_t rest = static_cast<uint32_t>(static_cast<uint64_t>(low & 0xfffffffu) * static_cast<uint32_t>(kLn2Q32) >> 36);
  const uint32_t square = static_cast<uint32_t>(static_cast<uint64_t>(rest) * rest >> 33);
  const uint32_t series = (1u << 22) - ((rest - square + 1023) >> 10);  // 1 - r + r * r / 2 in steps of 2^-22, rounded down
  const uint64_t weight = sampling::powers()[low >> 28 | (high & 15) << 4] * series >> 22;
  return whole > kWeightBits ? 0 : weight >> whole;
}

// --- the likeliest tokens of all workers, for logprobs ---

// A worker lists the ranks of its tokens that may be among the likeliest, in any order: in shared memory first, then as tagged words, two for each
// rank. listed() counts the tokens, which may be more than the list has room for.
constexpr int kMaxListed = kMaxLogprobs, kTooMany = 1 << 20;
MONOLANE_DEVICE TopList* top_list(int worker) { return monolane_launch.top_lists + worker; }
MONOLANE_DEVICE uint32_t& listed() { return *reinterpret_cast<uint32_t*>(found() + 8); }
MONOLANE_DEVICE uint64_t* list() { return sampling::buckets(); }

// Appends a rank to the list.
MONOLANE_DEVICE void list(uint64_t rank) {
  const uint32_t at = ptx::add_shared(&listed(), 1);
  if (at < kMaxListed) list()[at] = rank;
}

// Replaces a list that has no room for all tokens by the `wanted` highest ranks. `rank(i)`: the rank of the worker's i-th token of `count`. Each round
// finds the highest rank below the one before.
template <class Rank>
MONOLANE_DEVICE void list_in_order(Rank rank, int wanted, int count) {
  uint64_t below = kNoNumberRank;
  MONOLANE_LOOP
  for (int n = 0; n < wanted; n++) {
    uint64_t next = 0;
    MONOLANE_LOOP
    for (int i = thread_id(); i < count; i += kConsumers) {
      const uint64_t candidate = rank(i);
      if (candidate < below) next = max(next, candidate);
    }
    below = max_of_block_noinline(next);
    if (thread_id() == 0) list()[n] = below;
  }
  if (thread_id() == 0) listed() = static_cast<uint32_t>(wanted);
  sync_consumers();
}

// Publishes the list, one rank by each thread.
MONOLANE_DEVICE void publish_list(uint32_t step) {
  TopList* mine = at_lane(0, top_list(worker_id()));
  const int count = static_cast<int>(listed());
  if (thread_id() < count) publish64(mine->ranks + 2 * thread_id(), list()[thread_id()], step);
  if (thread_id() == 0) publish32(&mine->count, static_cast<uint32_t>(count), step);
}

// Copies the ranks that all workers have published to sampling::buckets() and returns their number; or copies nothing and returns kTooMany where they
// are more than there are consumer threads.
MONOLANE_NOINLINE int collect_likeliest(uint32_t step) {
  const TopList* theirs = top_list(min(thread_id(), kWorkers - 1));
  const uint64_t count = thread_id() < kWorkers ? await_word64(&theirs->count, step) : 0;
  const Prefix counts = prefix_of_block(count);
  if (counts.total > kConsumers) return kTooMany;
  MONOLANE_LOOP
  for (int i = 0; i < static_cast<int>(min(count, uint64_t(kMaxListed))); i++)
    sampling::buckets()[counts.before + i] = await64(theirs->ranks + 2 * i, step);
  sync_consumers();
  return static_cast<int>(counts.total);
}

}  // namespace monolane
