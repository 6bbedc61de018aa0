// What choosing a token is made of: ranks, reductions over a block, each block's own tokens and their logits, and the likeliest tokens of all blocks.
#pragma once
#include "prepare.cuh"
#include "integers.hpp"

namespace monolane {

constexpr uint32_t kNoToken = 0xffffffffu;     // in place of a token: a logit was not a number
constexpr uint32_t kAbortToken = 0xfffffffeu;  // the host wants the request to end
constexpr int32_t kSeen = 1 << 30;             // in TokenUse::count: the prompt has it, or the answer

MONOLANE_DEVICE int64_t fixed_logit(float logit) {
  const float limited = logit < -kLogitLimit ? -kLogitLimit : logit > kLogitLimit ? kLogitLimit : logit;
  return ptx::round_to_integer(limited * static_cast<float>(1 << kLogitBits));
}

// A score and a token as one number, which is larger for a higher score and then for a lower id. Penalties may carry a score beyond 32 bits:
// 42 are enough for a token that has occurred a million times.
constexpr int kTokenBits = 22;
constexpr uint32_t kTokenMask = (1u << kTokenBits) - 1;
constexpr int64_t kLogitOffset = int64_t(1) << (63 - kTokenBits);
static_assert(kVocab <= static_cast<int>(kTokenMask), "a rank has no room for so many tokens");
constexpr uint64_t kNoNumberRank = ~uint64_t(0), kAbortRank = ~uint64_t(0) - 1;  // higher than any token's

MONOLANE_DEVICE uint64_t rank_of(int64_t score, uint32_t token) {
  return static_cast<uint64_t>(score + kLogitOffset) << kTokenBits | (kTokenMask - token);
}
MONOLANE_DEVICE uint64_t rank_of(float logit, uint32_t token) { return logit != logit ? kNoNumberRank : rank_of(fixed_logit(logit), token); }
MONOLANE_DEVICE uint32_t token_of(uint64_t rank) {
  return rank == kNoNumberRank ? kNoToken : rank == kAbortRank ? kAbortToken : kTokenMask - (static_cast<uint32_t>(rank) & kTokenMask);
}
MONOLANE_DEVICE int64_t fixed_logit_of(uint64_t rank) { return static_cast<int64_t>(rank >> kTokenBits) - kLogitOffset; }

// --- reductions over a block ---

MONOLANE_DEVICE uint64_t max_of_warp(uint64_t v) {
  for (int mask = 16; mask; mask >>= 1) {
    const uint64_t other = ptx::shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

MONOLANE_DEVICE uint64_t max_of_block(uint64_t v) {
  sync_consumers();  // the numbers of the last reduction have been read
  v = max_of_warp(v);
  if (lane_id() == 0) shared::reduce64()[warp_id()] = v;
  sync_consumers();
  uint64_t highest = shared::reduce64()[0];
  for (int w = 1; w < kConsumerWarps; w++) highest = max(highest, shared::reduce64()[w]);
  return highest;
}

// The same in few instructions, for those who are not in a hurry with the first one: see sample.cuh.
MONOLANE_NOINLINE uint64_t max_of_warp_noinline(uint64_t v) {
MONOLANE_LOOP
  for (int mask = 16; mask; mask >>= 1) v = max(v, ptx::shuffle_xor(v, mask));
  return v;
}
MONOLANE_NOINLINE uint64_t max_of_block_noinline(uint64_t v) {
  v = max_of_warp_noinline(v);
  sync_consumers();  // the numbers of the last reduction have been read
  if (lane_id() == 0) shared::reduce64()[warp_id()] = v;
  sync_consumers();
  return max_of_warp_noinline(shared::reduce64()[lane_id() % kConsumerWarps]);
}

// The sums over the threads before this one, and over all of them.
struct Prefix {
  uint64_t before, total;
  // Whether the running sum passes `target` at this thread, whose own number this is.
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
  sync_consumers();  // the numbers of the last reduction have been read
  if (lane_id() == 31) shared::reduce64()[warp_id()] = sum;
  sync_consumers();
  const uint64_t of_warps = prefix_sum_of_warp(shared::reduce64()[lane_id() % kConsumerWarps]);
  const uint64_t before = ptx::shuffle(of_warps, max(warp_id() - 1, 0));
  return {(warp_id() ? before : 0) + sum - own, ptx::shuffle(of_warps, kConsumerWarps - 1)};
}
// What one thread has found, for all of them: behind the numbers of reductions.
MONOLANE_DEVICE uint64_t* found() { return shared::reduce64() + 16; }

// --- the best token ---

MONOLANE_DEVICE void publish32(uint64_t* to, uint32_t value, uint32_t step) { ptx::store_relaxed(to, static_cast<uint64_t>(value) << 32 | step); }
MONOLANE_DEVICE void publish64(uint64_t* to, uint64_t value, uint32_t step) {
  ptx::store_relaxed(to, value >> 32 << 32 | step);
  ptx::store_relaxed(to + 1, value << 32 | step);
}
MONOLANE_DEVICE uint64_t await64(const uint64_t* from, uint32_t step) {
  const uint64_t high = await_word64(from, step), low = await_word64(from + 1, step);
  return high << 32 | low;
}

static_assert(kWorkers <= kConsumers, "a block has a thread for every block");

// Numbers that a block publishes: the rank of its best token, with penalties and biases; for logprobs, by its logits alone; and for draw.cuh, the
// place in the race of its first token, up to three times, the distance of the first, and how many of its tokens are nearer than some distance, and
// their weight.
MONOLANE_DEVICE uint64_t* published_words(int worker, Published which) { return monolane_launch.published + 2 * (kPublishedCount * worker + which); }

MONOLANE_DEVICE void publish_best(uint64_t rank, uint32_t step, Published which = kBest) {
  rank = max_of_block(rank);
  if (thread_id() == 0) publish64(published_words(worker_id(), which), rank, step);
}

// What the block has published whose number is this thread's; 0 where there is none.
MONOLANE_DEVICE uint64_t await_best(uint32_t step, Published which) { return thread_id() < kWorkers ? await64(published_words(thread_id(), which), step) : 0; }

// --- a block's own tokens ---

// This block's tokens: its rows of the head.
struct OwnTokens {
  int first, count;
  MONOLANE_DEVICE bool has(uint32_t token) const { return token - static_cast<uint32_t>(first) < static_cast<uint32_t>(count); }
};
MONOLANE_DEVICE OwnTokens own_tokens() {
  const Own own = shared::own()[kProjections - 1];
  const int first = own.first_tile * Head::kTileRows;
  return {first, max(min(own.tiles * Head::kTileRows, kVocab - first), 0)};
}

// The scratch of sampling lies in the place of inputs and sums: tables; ranks; the logits of this block's tokens, behind the input that they come
// from, if there is room; buckets; and the noise of this block's tokens, if there is room.
static_assert(kTableEntries == kConsumers && kBuckets == kConsumers, "a thread for every entry of a table, and for every bucket");

// In global memory they are for logprobs, which are those of the logits, while a draw writes distances in their place.
MONOLANE_DEVICE void keep_logit(int local, int token, float logit) {
  if (kLogitsFit) shared::at<float>(kLogitsOffset)[local] = logit;
  if (!kLogitsFit || monolane_launch.request.logprobs >= 0) monolane_launch.logits[token] = logit;
}

// Calls `use(token's place among this block's own, logit)` for this thread's tokens: those whose logits it has kept (see finish_batch).
template <class Use>
MONOLANE_DEVICE void each_logit(const OwnTokens& own, Use use) {
  const float* logits = kLogitsFit ? shared::at<float>(kLogitsOffset) : monolane_launch.logits + own.first;
MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) use(i, logits[i]);
}

// What penalties and biases need to know of this block's tokens; nobody else looks at it. Most tokens are not touched by them, and what is known of a
// token is far away.
MONOLANE_NOINLINE void note_prompt() {
  const Request& request = monolane_launch.request;
  const OwnTokens own = own_tokens();
MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) monolane_launch.token_use[own.first + i] = {0, 0}, shared::touched()[i] = 0;
  sync_consumers();
MONOLANE_LOOP
  for (int64_t i = thread_id(); i < request.token_count; i += kConsumers)
    if (own.has(request.tokens[i])) monolane_launch.token_use[request.tokens[i]].count = kSeen, shared::touched()[request.tokens[i] - own.first] = 1;
  sync_consumers();  // a token may have both
MONOLANE_LOOP
  for (int64_t i = thread_id(); i < request.sampling.bias_count; i += kConsumers) {
    const Bias& bias = request.sampling.bias[i];
    if (own.has(bias.token)) monolane_launch.token_use[bias.token].bias = static_cast<int32_t>(bias.value), shared::touched()[bias.token - own.first] = 1;
  }
  sync_consumers();
}

MONOLANE_NOINLINE void note_token(uint32_t token) {
  const OwnTokens own = own_tokens();
  if (thread_id() != 0 || !own.has(token)) return;
  TokenUse& used = monolane_launch.token_use[token];
  used.count = (used.count | kSeen) + 1;
  shared::touched()[token - own.first] = 1;
}

MONOLANE_NOINLINE int64_t adjusted(int64_t score, uint32_t token) {
  const TokenUse used = monolane_launch.token_use[token];
  return (used.count ? penalised(score, used.count & (kSeen - 1), monolane_launch.request.sampling) : score) + used.bias;
}

// A token's score, with penalties and biases; `local`: its place among this block's own.
MONOLANE_DEVICE int64_t adjusted_logit(float logit, int local, const OwnTokens& own) {
  const int64_t score = fixed_logit(logit);
  const bool touched = monolane_launch.adjusts_logits && shared::touched()[local];
  return touched ? adjusted(score, own.first + local) : score;
}

// The best of this thread's tokens, with penalties and biases.
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
MONOLANE_DEVICE uint64_t* ranks() { return powers() + 3 * kTableEntries; }                          // [workers]: of each one's best token
MONOLANE_DEVICE uint64_t* buckets() { return shared::at<uint64_t>(kBucketsOffset); }  // [2][kBuckets]
// [this block's tokens]: highest score - score, at most what 32 bits hold. Where logits are in shared memory, each takes the place of its logit.
MONOLANE_DEVICE uint32_t* distances(const OwnTokens& own) { return kLogitsFit ? shared::at<uint32_t>(kLogitsOffset) : monolane_launch.distances + own.first; }

MONOLANE_DEVICE uint32_t* noise(const OwnTokens& own) { return kNoiseFits ? shared::at<uint32_t>(kNoiseOffset) : monolane_launch.noise + own.first; }

}  // namespace sampling

// The n-th highest of the ranks in `ranks`, or 0: that many tokens, or more, have such a rank or a higher one.
MONOLANE_DEVICE uint64_t nth_rank(int n) {
  const uint64_t* ranks = sampling::ranks();
  if (thread_id() == 0) found()[0] = 0;
  sync_consumers();
  if (thread_id() < kWorkers) {
    const uint64_t mine = ranks[thread_id()];
    int higher = 0;
#pragma unroll 4
    for (int w = 0; w < kWorkers; w++) higher += ranks[w] > mine;
    if (higher == n - 1 && mine) found()[0] = mine;  // ranks of tokens differ
  }
  sync_consumers();
  return found()[0];
}

// weight_of() of program/sample.py for distances of 32 bits, with fewer instructions: the same numbers.
MONOLANE_DEVICE uint64_t weight_of(uint32_t distance, uint32_t rate) {
  const uint64_t exponent = static_cast<uint64_t>(distance) * rate;
  const uint32_t low = static_cast<uint32_t>(exponent), high = static_cast<uint32_t>(exponent >> 32), whole = high >> 4;
  const uint32_t rest = static_cast<uint32_t>(static_cast<uint64_t>(low & 0xfffffffu) * static_cast<uint32_t>(kLn2Q32) >> 36);
  const uint32_t square = static_cast<uint32_t>(static_cast<uint64_t>(rest) * rest >> 33);
  const uint32_t series = (1u << 22) - ((rest - square + 1023) >> 10);  // 1 - r + r * r / 2, in steps of 2^-22, rounded down
  const uint64_t weight = sampling::powers()[low >> 28 | (high & 15) << 4] * series >> 22;
  return whole > kWeightBits ? 0 : weight >> whole;
}

// --- the likeliest tokens of all blocks ---

// What a block publishes: the ranks of its tokens that may be among them, the highest first. Words with tags.
constexpr int kMaxListed = kMaxLogprobs, kTooMany = 1 << 20;
MONOLANE_DEVICE TopList* top_list(int worker) { return monolane_launch.top_lists + worker; }

// This block's tokens from `threshold` on, no more than are wanted; kTooMany if it has no room for them. `rank(i)`: of its i-th token.
template <class Rank>
MONOLANE_DEVICE void publish_likeliest(const OwnTokens& own, int wanted, uint64_t threshold, uint32_t step, Rank rank) {
  TopList* mine = top_list(worker_id());
  uint64_t below = kNoNumberRank;
  int count = 0;
MONOLANE_LOOP
  for (; count < wanted; count++) {
    uint64_t next = 0;
MONOLANE_LOOP
    for (int i = thread_id(); i < own.count; i += kConsumers) {
      const uint64_t theirs = rank(i);
      if (theirs < below) next = max(next, theirs);
    }
    next = max_of_block_noinline(next);
    if (!next || next < threshold) break;
    if (count == kMaxListed) {
      count = kTooMany;
      break;
    }
    if (thread_id() == 0) publish64(mine->ranks + 2 * count, next, step);
    below = next;
  }
  if (thread_id() == 0) ptx::store_relaxed(&mine->count, static_cast<uint64_t>(count) << 32 | step);
}

// All that was published, to `buckets`; returns how many there are, or, if they are more than there are threads, only that.
MONOLANE_NOINLINE int collect_likeliest(uint32_t step) {
  const TopList* theirs = top_list(min(thread_id(), kWorkers - 1));
  const uint64_t count = thread_id() < kWorkers ? await_word64(&theirs->count, step) : 0;
  const Prefix counts = prefix_of_block(count);
  if (counts.total > kConsumers) return kTooMany;
MONOLANE_LOOP
  for (int i = 0; i < static_cast<int>(min(count, uint64_t(kMaxListed))); i++) sampling::buckets()[counts.before + i] = await64(theirs->ranks + 2 * i, step);
  sync_consumers();
  return static_cast<int>(counts.total);
}

}  // namespace monolane
