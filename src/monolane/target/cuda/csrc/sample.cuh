// Choosing the next token, in integers, by all blocks: each has the logits of its own tokens, which are consecutive. The
// specification is program/sample.py. Integer sums do not depend on their order, so the token is the reference's, bit for bit.
//
//   1. Every block publishes the rank of its best token; all find the best of all. A greedy request is done.
//   2. A small top-k: every block publishes its tokens that may be among those; all sort them out and draw the same one.
//   3. A large top-k, and top-p: the last distance (highest score - score) that is kept is found by histograms over all blocks, ten
//      bits of the distance a round. Tokens whose weight is zero are never drawn, so distances beyond those do not matter.
//      Where a bucket has one token, or a distance several, the search is over.
//   4. Every block publishes the weight of its tokens that are kept; all find the block that the random number falls into.
//   5. That block finds the token and publishes it.
//
// A token is chosen every few hundred microseconds, and by then its instructions have left the caches: what takes time is how many different ones
// there are. So loops stay loops, and what is needed more than once is a function of its own.
#pragma once
#include "handoff.cuh"
#include "integers.hpp"

namespace monolane {

constexpr uint32_t kNoToken = 0xffffffffu;     // in place of a token: a logit was not a number
constexpr uint32_t kAbortToken = 0xfffffffeu;  // the host wants the request to end
constexpr int32_t kSeen = 1 << 30;             // in TokenUse::count: the prompt has it, or the answer

MONOLANE_DEVICE int64_t to_score(float logit) {
  const float limited = logit < -kScoreLimit ? -kScoreLimit : logit > kScoreLimit ? kScoreLimit : logit;
  return ptx::round_to_integer(limited * static_cast<float>(1 << kScoreBits));
}

// A score and a token as one number, which is larger for a higher score and then for a lower id. Penalties may carry a score beyond 32 bits:
// 42 are enough for a token that has occurred a million times.
constexpr int kTokenBits = 22;
constexpr uint32_t kTokenMask = (1u << kTokenBits) - 1;
constexpr int64_t kScoreOffset = int64_t(1) << (63 - kTokenBits);
static_assert(kVocab <= static_cast<int>(kTokenMask), "a rank has no room for so many tokens");
constexpr uint64_t kNoNumberRank = ~uint64_t(0), kAbortRank = ~uint64_t(0) - 1;  // higher than any token's

MONOLANE_DEVICE uint64_t rank_of(int64_t score, uint32_t token) {
  return static_cast<uint64_t>(score + kScoreOffset) << kTokenBits | (kTokenMask - token);
}
MONOLANE_DEVICE uint64_t rank_of(float logit, uint32_t token) { return logit != logit ? kNoNumberRank : rank_of(to_score(logit), token); }
MONOLANE_DEVICE uint32_t token_of(uint64_t rank) {
  return rank == kNoNumberRank ? kNoToken : rank == kAbortRank ? kAbortToken : kTokenMask - (static_cast<uint32_t>(rank) & kTokenMask);
}
MONOLANE_DEVICE int64_t score_of(uint64_t rank) { return static_cast<int64_t>(rank >> kTokenBits) - kScoreOffset; }

// --- reductions over a block ---

MONOLANE_DEVICE uint64_t highest_of_warp(uint64_t v) {
  for (int mask = 16; mask; mask >>= 1) {
    const uint64_t other = ptx::shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

MONOLANE_DEVICE uint64_t highest_of_block(uint64_t v) {
  sync_consumers();  // the numbers of the last reduction have been read
  v = highest_of_warp(v);
  if (lane_index() == 0) shared::reduce64()[warp_index()] = v;
  sync_consumers();
  uint64_t highest = shared::reduce64()[0];
  for (int w = 1; w < kConsumerWarps; w++) highest = max(highest, shared::reduce64()[w]);
  return highest;
}

// The same as a function of its own, for those who are not in a hurry with the first one.
MONOLANE_APART uint64_t highest_of_block_apart(uint64_t v) { return highest_of_block(v); }

// The sums over the threads before this one, and over all of them.
struct Prefix {
  uint64_t before, total;
  // Whether the running sum passes `target` at this thread, whose own number this is.
  MONOLANE_DEVICE bool passes(uint64_t target, uint64_t own) const { return before <= target && target < before + own; }
};
MONOLANE_DEVICE uint64_t running_sum_of_warp(uint64_t v) {
#pragma unroll
  for (int delta = 1; delta < 32; delta <<= 1) {
    const uint64_t lower = ptx::shuffle_up(v, delta);
    if (lane_index() >= delta) v += lower;
  }
  return v;
}
MONOLANE_APART Prefix prefix_of_block(uint64_t own) {
  const uint64_t sum = running_sum_of_warp(own);
  sync_consumers();  // the numbers of the last reduction have been read
  if (lane_index() == 31) shared::reduce64()[warp_index()] = sum;
  sync_consumers();
  Prefix prefix{sum - own, 0};
#pragma unroll
  for (int w = 0; w < kConsumerWarps; w++) {
    const uint64_t theirs = shared::reduce64()[w];
    if (w < warp_index()) prefix.before += theirs;
    prefix.total += theirs;
  }
  return prefix;
}
// What one thread has found, for all of them: behind the numbers of reductions.
MONOLANE_DEVICE uint64_t* found() { return shared::reduce64() + 16; }

// --- the best token ---

MONOLANE_DEVICE void publish64(uint64_t* to, uint64_t value, uint32_t step) {
  ptx::store_relaxed(to, value >> 32 << 32 | step);
  ptx::store_relaxed(to + 1, value << 32 | step);
}
MONOLANE_DEVICE uint64_t await64(const uint64_t* from, uint32_t step) {
  const uint64_t high = await_wide_word(from, step), low = await_wide_word(from + 1, step);
  return high << 32 | low;
}

static_assert(kWorkers <= kConsumers, "a block has a thread for every block");

// Of each block: the rank of its best token, with penalties and biases; and, for logprobs, by its logits alone.
enum Choice { kBest, kLikeliest, kChoices };
MONOLANE_DEVICE uint64_t* choice_of(int worker, Choice which) { return monolane_launch.choices + 2 * (kChoices * worker + which); }

MONOLANE_DEVICE void publish_best(uint64_t rank, uint32_t step, Choice which = kBest) {
  rank = highest_of_block(rank);
  if (thread_index() == 0) publish64(choice_of(worker_index(), which), rank, step);
}

// What the block has published whose number is this thread's; 0 where there is none.
MONOLANE_DEVICE uint64_t await_best(uint32_t step, Choice which) { return thread_index() < kWorkers ? await64(choice_of(thread_index(), which), step) : 0; }

// --- a block's own tokens ---

// This block's tokens: its rows of the head.
struct OwnTokens {
  int first, count;
  MONOLANE_DEVICE bool has(uint32_t token) const { return token - static_cast<uint32_t>(first) < static_cast<uint32_t>(count); }
};
MONOLANE_DEVICE OwnTokens own_tokens() {
  const Own own = shared::own()[kProjections - 1];
  const int first = own.first_tile * kForms[kHeadForm].tile_rows;
  return {first, max(min(own.tiles * kForms[kHeadForm].tile_rows, kVocab - first), 0)};
}
constexpr int kMostTokens = kForms[kHeadForm].most_tiles * kForms[kHeadForm].tile_rows;

// The scratch of sampling lies in the place of inputs and sums: a table of powers; ranks; the logits of this block's tokens, behind the input that
// they come from, if there is room; and buckets.
constexpr int kPowersBytes = 256 * 8, kSampleBytes = kPowersBytes + round_up(kWorkers * 8, 128);
constexpr int kLogitsOffset = kXOffset + round_up(kSampleBytes > kPaddedCols<kHeadForm> * 2 ? kSampleBytes : kPaddedCols<kHeadForm> * 2, 128);
constexpr int kLogitsEnd = kLogitsOffset + round_up(kMostTokens * 4, 128);
constexpr bool kLogitsFit = kLogitsEnd <= kSumsOffset;
constexpr int kBucketsOffset = kLogitsFit ? kLogitsEnd : kXOffset + kSampleBytes;
constexpr int kBucketBits = 10, kBuckets = 1 << kBucketBits;
constexpr int kHistograms = 3;  // in global memory: one is filled while the next is cleared and the last may still be read
static_assert(kConsumers == 256, "a thread for every power");
static_assert(kSampleBytes <= kXBytes && kBucketsOffset + kBuckets * 8 <= kResidualOffset, "the scratch of sampling does not fit");

MONOLANE_DEVICE void keep_logit(int local, int token, float logit) {
  if (kLogitsFit) shared::at<float>(kLogitsOffset)[local] = logit;
  monolane_launch.logits[token] = logit;
}

// Calls `use(token's place among this block's own, logit)` for this thread's tokens: those whose logits it has kept (see finish_batch).
template <class Use>
MONOLANE_DEVICE void each_logit(const OwnTokens& own, Use use) {
  const float* logits = kLogitsFit ? shared::at<float>(kLogitsOffset) : monolane_launch.logits + own.first;
MONOLANE_LOOP
  for (int i = thread_index(); i < own.count; i += kConsumers) use(i, logits[i]);
}

// What penalties and biases need to know of this block's tokens; nobody else looks at it.
MONOLANE_APART void note_prompt() {
  const Request& request = monolane_launch.request;
  const OwnTokens own = own_tokens();
  for (int i = thread_index(); i < own.count; i += kConsumers) monolane_launch.used[own.first + i] = {0, 0};
  sync_consumers();
  for (int64_t i = thread_index(); i < request.token_count; i += kConsumers)
    if (own.has(request.tokens[i])) monolane_launch.used[request.tokens[i]].count = kSeen;
  for (int64_t i = thread_index(); i < request.sampling.bias_count; i += kConsumers) {
    const Bias& bias = request.sampling.bias[i];
    if (own.has(bias.token)) monolane_launch.used[bias.token].bias = static_cast<int32_t>(bias.value);
  }
  sync_consumers();
}

MONOLANE_APART void note_token(uint32_t token) {
  TokenUse& used = monolane_launch.used[token];
  if (thread_index() == 0 && own_tokens().has(token)) used.count = (used.count | kSeen) + 1;
}

MONOLANE_APART int64_t adjusted(float logit, uint32_t token) {
  const TokenUse used = monolane_launch.used[token];
  const int64_t score = to_score(logit);
  return (used.count ? penalised(score, used.count & (kSeen - 1), monolane_launch.request.sampling) : score) + used.bias;
}

// The best of this thread's tokens, with penalties and biases.
MONOLANE_APART uint64_t best_adjusted() {
  const OwnTokens own = own_tokens();
  uint64_t best = 0;
  each_logit(own, [&](int i, float logit) {
    const uint32_t token = own.first + i;
    best = max(best, logit != logit ? kNoNumberRank : rank_of(adjusted(logit, token), token));
  });
  return best;
}

namespace sampling {

MONOLANE_DEVICE uint64_t* powers() { return shared::at<uint64_t>(kXOffset); }
MONOLANE_DEVICE uint64_t* ranks() { return shared::at<uint64_t>(kXOffset + kPowersBytes); }  // [workers]: of each one's best token
MONOLANE_DEVICE uint64_t* buckets() { return shared::at<uint64_t>(kBucketsOffset); }         // [kBuckets]
// [this block's tokens]: highest score - score, at most what 32 bits hold: a weight is zero long before, at any temperature up to 100.
// Where logits are in shared memory, each takes the place of its logit.
MONOLANE_DEVICE uint32_t* distances(const OwnTokens& own) { return kLogitsFit ? shared::at<uint32_t>(kLogitsOffset) : monolane_launch.distances + own.first; }

}  // namespace sampling

// The n-th highest of the ranks in `ranks`, or 0: that many tokens, or more, have such a rank or a higher one.
MONOLANE_DEVICE uint64_t nth_rank(int n) {
  const uint64_t* ranks = sampling::ranks();
  if (thread_index() == 0) found()[0] = 0;
  sync_consumers();
  if (thread_index() < kWorkers) {
    const uint64_t mine = ranks[thread_index()];
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
constexpr int kMostListed = kMaxLogprobs, kTooMany = 1 << 20;
struct List {
  uint64_t count, ranks[2 * kMostListed];
};
// Of each block, by scores, for top-k, and by the logits alone, for logprobs.
MONOLANE_DEVICE List* list_of(int worker, Choice which) { return monolane_launch.lists + kChoices * worker + which; }

// This block's tokens from `threshold` on, no more than are wanted; kTooMany if it has no room for them. `rank(i)`: of its i-th token.
template <class Rank>
MONOLANE_DEVICE void publish_likeliest(const OwnTokens& own, Choice which, int wanted, uint64_t threshold, uint32_t step, Rank rank) {
  List* mine = list_of(worker_index(), which);
  uint64_t below = kNoNumberRank;
  int count = 0;
MONOLANE_LOOP
  for (; count < wanted; count++) {
    uint64_t next = 0;
MONOLANE_LOOP
    for (int i = thread_index(); i < own.count; i += kConsumers) {
      const uint64_t theirs = rank(i);
      if (theirs < below) next = max(next, theirs);
    }
    next = highest_of_block_apart(next);
    if (!next || next < threshold) break;
    if (count == kMostListed) {
      count = kTooMany;
      break;
    }
    if (thread_index() == 0) publish64(mine->ranks + 2 * count, next, step);
    below = next;
  }
  if (thread_index() == 0) ptx::store_relaxed(&mine->count, static_cast<uint64_t>(count) << 32 | step);
}

// All that was published, to `buckets`; returns how many there are, or, if they are more than there are threads, only that.
MONOLANE_APART int collect_likeliest(Choice which, uint32_t step) {
  const List* theirs = list_of(min(thread_index(), kWorkers - 1), which);
  const uint64_t count = thread_index() < kWorkers ? await_wide_word(&theirs->count, step) : 0;
  const Prefix counts = prefix_of_block(count);
  if (counts.total > kConsumers) return kTooMany;
MONOLANE_LOOP
  for (int i = 0; i < static_cast<int>(min(count, uint64_t(kMostListed))); i++) sampling::buckets()[counts.before + i] = await64(theirs->ranks + 2 * i, step);
  sync_consumers();
  return static_cast<int>(counts.total);
}

// --- drawing ---

class Draw {
 public:
  MONOLANE_DEVICE Draw(uint64_t best, uint32_t step)
      : how_(monolane_launch.request.sampling), rate_(static_cast<uint32_t>(how_.rate)), own_(own_tokens()), distance_(sampling::distances(own_)),
        top_(score_of(best)), step_(step) {
    each_logit(own_, [&](int i, float logit) {
      const int64_t score = monolane_launch.adjusts_scores ? adjusted(logit, own_.first + i) : to_score(logit);
      distance_[i] = static_cast<uint32_t>(min(top_ - score, static_cast<int64_t>(UINT32_MAX)));
    });
    sync_consumers();
  }

  MONOLANE_DEVICE uint32_t token(int64_t position) {
    const bool top_k = how_.top_k && how_.top_k < kVocab, top_p = !(how_.top_p >> kShareBits);
    const uint64_t random = random_bits(how_.seed, static_cast<uint64_t>(position));
    if (top_k && how_.top_k <= kWorkers) {
      const uint32_t token = token_of_few(top_p, random);
      if (token != kNoToken) return token;
    }
    Cutoff cutoff = first_beyond(kWeightBits + 1) - 1;
MONOLANE_LOOP
    for (int by_weight = !top_k; by_weight <= top_p; by_weight++) cutoff = cut(cutoff, by_weight);
    return find(cutoff, random);
  }

 private:
  // Distances up to this one are kept; of those that have it, the first `kept` in order of id.
  struct Cutoff {
    uint32_t distance;
    uint64_t kept = kAll, dropped = 0;
    MONOLANE_DEVICE Cutoff(uint32_t distance) : distance(distance) {}
  };
  static constexpr uint64_t kAll = ~uint64_t(0);
  static constexpr int kThreadBuckets = kBuckets / kConsumers;
  // So many tokens may add to the buckets in global memory as they are; more are added up in shared memory first.
  static constexpr uint64_t kFewTokens = 4096;

  MONOLANE_DEVICE uint64_t weight(uint32_t distance) const { return weight_of(distance, rate_); }

  // A distance from which on weights are at most 2^-halvings of the highest.
  MONOLANE_DEVICE uint32_t first_beyond(int halvings) const {
    const float limit = (halvings + 0.01f) * 68719476736.0f / static_cast<float>(rate_);  // 2^36: the steps of an exponent
    return limit < 4294967040.0f ? static_cast<uint32_t>(limit) + 1 : UINT32_MAX;
  }

  // Of a top-k of no more tokens than there are blocks: the k-th best of the blocks' best tokens is a bound, and hardly more tokens are
  // above it. A thread has one of them, and finds out what comes before it. kNoToken: they are too many.
  MONOLANE_DEVICE uint32_t token_of_few(bool top_p, uint64_t random) {
    publish_likeliest(own_, kBest, how_.top_k, nth_rank(how_.top_k), step_, [&](int i) { return rank_of(top_ - distance_[i], own_.first + i); });
    const int count = collect_likeliest(kBest, step_);
    if (count == kTooMany) return kNoToken;
    uint64_t *ranks = sampling::buckets(), *weights = ranks + kConsumers;
    const uint64_t rank = thread_index() < count ? ranks[thread_index()] : 0;
    const uint32_t token = token_of(rank);
    int higher = 0;
#pragma unroll 4
    for (int i = 0; i < count; i++) higher += ranks[i] > rank;
    uint64_t own = rank && higher < how_.top_k ? weight(static_cast<uint32_t>(min(top_ - score_of(rank), static_cast<int64_t>(UINT32_MAX)))) : 0;
    weights[thread_index()] = own;
    const uint64_t total = prefix_of_block(own).total;
    if (top_p) {
      uint64_t before = 0;
#pragma unroll 4
      for (int i = 0; i < count; i++) before += ranks[i] > rank ? weights[i] : 0;
      if (higher && before >= ptx::multiply_high(total, how_.top_p << 32)) own = 0;
    }
    if (own < how_.min_weight) own = 0;
    sync_consumers();
    weights[thread_index()] = own;
    const uint64_t target = ptx::multiply_high(random, prefix_of_block(own).total);
    uint64_t before = 0;
#pragma unroll 4
    for (int i = 0; i < count; i++) before += (ranks[i] & kTokenMask) > (rank & kTokenMask) ? weights[i] : 0;  // lower ids
    if (before <= target && target < before + own) found()[0] = token;
    sync_consumers();
    return static_cast<uint32_t>(found()[0]);
  }

  // Tokens from this distance on, however many they are, weigh less than what top-p drops.
  MONOLANE_DEVICE uint32_t top_p_limit() const {
    const uint32_t dropped = static_cast<uint32_t>((uint64_t(1) << kShareBits) - how_.top_p);
    return first_beyond(bit_width(kVocab) + kShareBits + 1 - bit_width(dropped));
  }

  // The shortest run of tokens, in order of (distance, id), that are as many as top-k keeps, or whose weights reach top-p's share of the
  // weights of all that are kept `so_far`.
  MONOLANE_DEVICE Cutoff cut(const Cutoff& so_far, bool by_weight) {
    uint32_t low = 0, end = so_far.distance + 1, limit = by_weight ? min(end, top_p_limit()) : end;
    int shift = max(bit_width(limit + limit / (kBuckets / 2)) - kBucketBits, 0);  // the last bucket is for what lies beyond
    bool few = by_weight && so_far.distance < first_beyond(kWeightBits + 1) - 1 && !so_far.dropped && how_.top_k <= static_cast<int>(kFewTokens);
    uint64_t left = 0;
MONOLANE_LOOP
    for (bool first = true;; first = false) {
      uint64_t masses[kThreadBuckets], own = 0;
      add_up(low, limit, end, shift, by_weight, few, masses);
      for (const uint64_t mass : masses) own += mass;
      Prefix prefix = prefix_of_block(own);
      if (first) {
        const uint64_t dropped = so_far.dropped * weight(so_far.distance);
        left = by_weight ? ptx::multiply_high(prefix.total - dropped, how_.top_p << 32) : static_cast<uint64_t>(how_.top_k);
        if (left >= prefix.total) return so_far;
        end = limit;  // what lies beyond has been counted
      }
      const uint64_t target = left ? left - 1 : 0;
      if (prefix.passes(target, own)) tell_bucket(prefix.before, target, masses);
      sync_consumers();
      const uint64_t mass = found()[2];
      left -= found()[1];
      low += static_cast<uint32_t>(found()[0]) << shift;
      const uint32_t last = min(low + ((1u << shift) - 1), limit - 1);
      const uint64_t each = by_weight ? weight(last) : 1;  // of no token in the bucket is it less
      if (mass < 2 * each) return last;                    // there is one token in it
      if (!shift) return among_equals(low, mass, left, max(each, uint64_t(1)));
      few = mass < kFewTokens * each;
      end = limit = last + 1;
      shift = max(shift - kBucketBits, 0);
    }
  }

  // This thread's bucket where the running sum passes `target`: which, the sum before it, and its mass.
  MONOLANE_DEVICE static void tell_bucket(uint64_t before, uint64_t target, const uint64_t (&masses)[kThreadBuckets]) {
    int bucket = 0;
    uint64_t mass = masses[0];
#pragma unroll
    for (int j = 1; j < kThreadBuckets; j++)
      if (bucket == j - 1 && before + mass <= target) before += mass, mass = masses[j], bucket = j;
    found()[0] = thread_index() * kThreadBuckets + bucket, found()[1] = before, found()[2] = mass;
  }

  // Of tokens that all have this distance, and `mass` together, as many as reach `needed`.
  MONOLANE_APART static Cutoff among_equals(uint32_t distance, uint64_t mass, uint64_t needed, uint64_t each) {
    Cutoff cutoff = distance;
    const uint64_t equals = mass / each, kept = needed ? (needed + each - 1) / each : 1;
    if (kept < equals) cutoff.kept = kept, cutoff.dropped = equals - kept;
    return cutoff;
  }

  MONOLANE_DEVICE static int bit_width(uint32_t v) { return 32 - ptx::leading_zeros(v); }

  // The mass of all blocks' tokens at distances [low, limit), in buckets of 2^shift distances, and in the last bucket those up to `end`; each
  // thread gets the sums of a few.
  MONOLANE_DEVICE void add_up(uint32_t low, uint32_t limit, uint32_t end, int shift, bool by_weight, bool few, uint64_t (&masses)[kThreadBuckets]) {
    uint64_t* buckets = sampling::buckets();
    const uint32_t round = shared::flags()->histograms;
    uint64_t *totals = histogram(round), *next = histogram(round + 1);
MONOLANE_LOOP
    for (int b = worker_index() + kWorkers * thread_index(); b < kBuckets; b += kWorkers * kConsumers) ptx::store_relaxed(&next[b], 0);
    if (!few) {
MONOLANE_LOOP
      for (int b = thread_index(); b < kBuckets; b += kConsumers) buckets[b] = 0;
      sync_consumers();
    }
    uint64_t beyond = 0;
MONOLANE_LOOP
    for (int i = thread_index(); i < own_.count; i += kConsumers) {
      const uint32_t distance = distance_[i];
      if (distance < low || distance >= end) continue;
      const uint64_t mass = by_weight ? weight(distance) : 1;
      const uint32_t bucket = distance < limit ? (distance - low) >> shift : kBuckets - 1;
      if (few)
        ptx::add_global(&totals[bucket], mass);
      else if (distance < limit)
        ptx::add_shared64(&buckets[bucket], mass);
      else
        beyond += mass;  // most tokens, maybe: not one by one
    }
    if (!few) {
MONOLANE_LOOP
      for (int mask = 16; mask; mask >>= 1) beyond += ptx::shuffle_xor(beyond, mask);
      if (lane_index() == 0 && beyond) ptx::add_shared64(&buckets[kBuckets - 1], beyond);
      sync_consumers();
MONOLANE_LOOP
      for (int b = thread_index(); b < kBuckets; b += kConsumers)
        if (buckets[b]) ptx::add_global(&totals[b], buckets[b]);
    }
    grid_barrier();
    if (thread_index() == 0) shared::flags()->histograms = round + 1;  // before the next round there are barriers
#pragma unroll
    for (int j = 0; j < kThreadBuckets; j++) masses[j] = ptx::load_relaxed(&totals[thread_index() * kThreadBuckets + j]);
  }
  MONOLANE_DEVICE static uint64_t* histogram(uint32_t round) { return monolane_launch.histograms + round % kHistograms * kBuckets; }

  // The token that a random number falls on, among those that are kept. A thread has a run of the block's tokens here, in order of id.
  MONOLANE_DEVICE uint32_t find(const Cutoff& cutoff, uint64_t random) {
    const int length = divide_up(own_.count, kConsumers), first = min(thread_index() * length, own_.count);
    const bool some = cutoff.kept != kAll;  // and not all of those at the last distance
    Run run{distance_ + first, min(length, own_.count - first), cutoff.distance, some ? 0 : own_.count};
    uint64_t sum = sum_until(run, kAll).sum;
    Prefix own = prefix_of_block(sum);
    if (thread_index() == 0) publish64(kept_of(worker_index()), own.total, step_);
    uint64_t share = thread_index() < kWorkers ? await64(kept_of(thread_index()), step_) : 0;
    if (some) {
      const uint64_t weighs = weight(cutoff.distance);
      const Shared equals = share_equals(cutoff.kept, run, step_);
      run.equals_kept = equals.equals_kept, run.equals_before = equals.equals_before;
      share += equals.kept * (weighs < how_.min_weight ? 0 : weighs);
      sum = sum_until(run, kAll).sum;
      own = prefix_of_block(sum);
    }
    const Prefix shares = prefix_of_block(share);
    const uint64_t target = ptx::multiply_high(random, shares.total);
    if (shares.passes(target, share)) found()[0] = thread_index(), found()[1] = target - shares.before;
    sync_consumers();
    const uint64_t within = found()[1];
    if (found()[0] == static_cast<uint64_t>(worker_index()) && own.passes(within, sum)) {
      const uint64_t token = own_.first + first + sum_until(run, within - own.before).count;
      ptx::store_relaxed(monolane_launch.drawn, token << 32 | step_);
    }
    return await_wide_word(monolane_launch.drawn, step_);
  }

  MONOLANE_DEVICE static uint64_t* kept_of(int worker) { return monolane_launch.kept + 3 * worker; }

  // A thread's tokens in order of id. Those before the last distance are kept; of those that have it, the ones that come after fewer than
  // `equals_kept` others of the block.
  struct Run {
    const uint32_t* distances;
    int count;
    uint32_t last;
    int equals_kept, equals_before = 0;
  };
  // The weight of the first tokens of a run that are kept, and how many tokens that are: as many as weigh no more than `target`.
  struct Sum {
    uint64_t sum;
    int count;
  };
  MONOLANE_APART static Sum sum_until(Run run, uint64_t target) {
    const Sampling& how = monolane_launch.request.sampling;
    uint64_t sum = 0;
    int i = 0;
MONOLANE_LOOP
    for (; i < run.count; i++) {
      const uint32_t distance = run.distances[i];
      const bool keeps = distance < run.last || (distance == run.last && run.equals_before++ < run.equals_kept);
      const uint64_t own = keeps ? weight_of(distance, static_cast<uint32_t>(how.rate)) : 0;
      if (own < how.min_weight) continue;
      if (sum + own > target) break;
      sum += own;
    }
    return {sum, i};
  }

  // How many of each block's tokens have the last distance: they are kept in order of id, so the blocks have their share of them in order, too.
  // Returns how many the block keeps whose number is this thread's, how many this block keeps, and how many come before this thread's.
  struct Shared {
    uint64_t kept;
    int equals_kept, equals_before;
  };
  MONOLANE_APART static Shared share_equals(uint64_t kept_in_all, Run run, uint32_t step) {
    uint64_t equal = 0;
MONOLANE_LOOP
    for (int i = 0; i < run.count; i++) equal += run.distances[i] == run.last;
    const Prefix own = prefix_of_block(equal);
    if (thread_index() == 0) ptx::store_relaxed(kept_of(worker_index()) + 2, own.total << 32 | step);
    const uint64_t theirs = thread_index() < kWorkers ? await_wide_word(kept_of(thread_index()) + 2, step) : 0;
    const uint64_t before = prefix_of_block(theirs).before, kept = min(theirs, kept_in_all - min(kept_in_all, before));
    if (thread_index() == worker_index()) found()[0] = kept;
    sync_consumers();
    return {kept, static_cast<int>(found()[0]), static_cast<int>(own.before)};
  }

  const Sampling& how_;
  const uint32_t rate_;
  const OwnTokens own_;
  uint32_t* const distance_;
  const int64_t top_;
  const uint32_t step_;
};

// --- logprobs: of the model's own logits, into the host's entry ---

class Logprobs {
 public:
  MONOLANE_DEVICE Logprobs(uint32_t step) : own_(own_tokens()), wanted_(min(monolane_launch.request.logprobs, kVocab)), step_(step) {}

  // `chosen`: the token that was chosen. In the first block, fills in `entry`.
  MONOLANE_DEVICE void report(uint32_t chosen, Entry* entry) {
    sync_consumers();  // the ranks have been read
    const uint64_t theirs = await_best(step_ - 1, kLikeliest);
    if (thread_index() < kWorkers) sampling::ranks()[thread_index()] = theirs;
    const int64_t top = score_of(highest_of_block_apart(theirs));
    const uint64_t threshold = wanted_ && wanted_ <= kWorkers ? nth_rank(wanted_) : 0;
    uint64_t sum = 0;
MONOLANE_LOOP
    for (int i = thread_index(); i < own_.count; i += kConsumers) sum += weight_of(static_cast<uint32_t>(top - to_score(logit(i))), static_cast<uint32_t>(kUnitRate));
    sum = prefix_of_block(sum).total;
    if (thread_index() == 0) {
      publish64(sum_of(worker_index()), sum, step_);
      if (own_.has(chosen)) {
        const uint32_t score = static_cast<uint32_t>(to_score(monolane_launch.logits[chosen]));
        ptx::store_relaxed(chosen_score(), static_cast<uint64_t>(score) << 32 | step_);
      }
    }
    publish_likeliest(own_, kLikeliest, wanted_, threshold, step_, [&](int i) { return rank_of(logit(i), own_.first + i); });
    if (worker_index() == 0) write(top, entry);
  }

 private:
  MONOLANE_DEVICE float logit(int i) const { return monolane_launch.logits[own_.first + i]; }
  MONOLANE_DEVICE static uint64_t* sum_of(int worker) { return monolane_launch.sums + 2 * worker; }
  MONOLANE_DEVICE static uint64_t* chosen_score() { return sum_of(kWorkers); }

  // By the first block. At most as many blocks as tokens are wanted have any, and each at most as many; if they are more than a block can
  // sort at once, as where all logits are equal, it takes the first ones one after the other.
  MONOLANE_DEVICE void write(int64_t top, Entry* entry) {
    const uint64_t sum = prefix_of_block(thread_index() < kWorkers ? await64(sum_of(thread_index()), step_) : 0).total;
    const int count = collect_likeliest(kLikeliest, step_);
    if (count == kTooMany)
      write_in_order(top, entry);
    else
      write_at_once(count, top, entry);
    if (thread_index() != 0) return;
    entry->total = sum;
    entry->distance = top - static_cast<int32_t>(await_wide_word(chosen_score(), step_));
    entry->top_count = wanted_;
  }

  MONOLANE_DEVICE static void put(int n, uint64_t rank, int64_t top, Entry* entry) {
    entry->top_tokens[n] = static_cast<int32_t>(token_of(rank));
    entry->top_distances[n] = top - score_of(rank);
  }
  MONOLANE_DEVICE void write_at_once(int count, int64_t top, Entry* entry) const {
    const uint64_t* ranks = sampling::buckets();
    if (thread_index() >= count) return;
    const uint64_t rank = ranks[thread_index()];
    int higher = 0;
MONOLANE_LOOP
    for (int i = 0; i < count; i++) higher += ranks[i] > rank;
    if (higher < wanted_) put(higher, rank, top, entry);
  }
  MONOLANE_DEVICE void write_in_order(int64_t top, Entry* entry) const {
    const List* theirs = list_of(min(thread_index(), kWorkers - 1), kLikeliest);
    const int count = thread_index() < kWorkers ? static_cast<int>(await_wide_word(&theirs->count, step_)) : 0;
    int next = 0;
MONOLANE_LOOP
    for (int n = 0; n < wanted_; n++) {
      const uint64_t mine = next < count ? await64(theirs->ranks + 2 * next, step_) : 0, highest = highest_of_block_apart(mine);
      if (mine == highest && highest) put(n, highest, top, entry), next++;
    }
  }

  const OwnTokens own_;
  const int wanted_;
  const uint32_t step_;
};

MONOLANE_APART void report_logprobs(uint32_t token, Entry* entry, uint32_t step) { Logprobs(step).report(token, entry); }

// The token at `position`, the same for all blocks. Apart: it is long, and not on the way of a plain greedy request.
MONOLANE_APART uint32_t choose(int64_t position, int64_t made, uint32_t step) {
  const Request& request = monolane_launch.request;
  sampling::powers()[thread_index()] = kPowers[thread_index()];
  const uint64_t theirs = await_best(step - 1, kBest);
  if (thread_index() < kWorkers) sampling::ranks()[thread_index()] = theirs;
  const uint64_t best = highest_of_block_apart(theirs);
  if (best >= kAbortRank) return token_of(best);
  const uint32_t token = request.sampling.greedy ? token_of(best) : Draw(best, step).token(position);
  if (request.logprobs >= 0) report_logprobs(token, monolane_launch.entries + made, step);
  if (monolane_launch.adjusts_scores) note_token(token);
  sync_consumers();  // the scratch is free for others
  return token;
}

}  // namespace monolane
