// Choosing the next token, in integers, by all blocks: each has the logits of its own tokens, which are consecutive. The
// specification is program/sample.py. Integer sums do not depend on their order, so the token is the reference's, bit for bit.
//
//   1. Every block publishes the rank of its best token; all find the best of all. A greedy request is done.
//   2. Top-k and top-p: the last distance (highest score - score) that is kept is found by histograms over all blocks, ten
//      bits of the distance a round. Tokens whose weight is zero are never drawn, so distances beyond those do not matter.
//   3. Every block publishes the weight of its tokens that are kept; all find the block that the random number falls into.
//   4. That block finds the token and publishes it.
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

MONOLANE_DEVICE uint64_t sum_of_warp64(uint64_t v) {
  for (int mask = 16; mask; mask >>= 1) v += ptx::shuffle_xor(v, mask);
  return v;
}

template <class OfWarp, class Combine>
MONOLANE_DEVICE uint64_t reduce_block(uint64_t v, OfWarp of_warp, Combine combine) {
  sync_consumers();  // the numbers of the last reduction have been read
  v = of_warp(v);
  if (lane_index() == 0) shared::reduce64()[warp_index()] = v;
  sync_consumers();
  uint64_t total = shared::reduce64()[0];
  for (int w = 1; w < kConsumerWarps; w++) total = combine(total, shared::reduce64()[w]);
  return total;
}
MONOLANE_DEVICE uint64_t highest_of_block(uint64_t v) {
  return reduce_block(v, highest_of_warp, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}
MONOLANE_DEVICE uint64_t sum_of_block(uint64_t v) {
  return reduce_block(v, sum_of_warp64, [](uint64_t a, uint64_t b) { return a + b; });
}

// The first of `count` whose running sum exceeds `target`, and the sum before it: each thread sums a run, one of them walks its own.
template <class Mass>
MONOLANE_DEVICE uint32_t walk(int count, Mass mass, uint64_t target, uint64_t& sum_before) {
  const int run = divide_up(count, kConsumers), first = min(thread_index() * run, count), last = min(first + run, count);
  uint64_t own = 0;
#pragma unroll 1
  for (int i = first; i < last; i++) own += mass(i);
  uint64_t before = own;  // inclusive sum within the warp
  for (int delta = 1; delta < 32; delta <<= 1) {
    const uint64_t lower = ptx::shuffle_up(before, delta);
    if (lane_index() >= delta) before += lower;
  }
  sync_consumers();
  if (lane_index() == 31) shared::reduce64()[warp_index()] = before;
  if (thread_index() == 0) shared::reduce64()[16] = count - 1, shared::reduce64()[17] = 0;
  sync_consumers();
  for (int w = 0; w < warp_index(); w++) before += shared::reduce64()[w];
  before -= own;
  if (before <= target && target < before + own) {
    int i = first;
#pragma unroll 1
    for (uint64_t next; i < last - 1 && before + (next = mass(i)) <= target; i++) before += next;
    shared::reduce64()[16] = i;
    shared::reduce64()[17] = before;
  }
  sync_consumers();
  const uint32_t found = static_cast<uint32_t>(shared::reduce64()[16]);
  sum_before = shared::reduce64()[17];
  sync_consumers();
  return found;
}

// --- the best token ---

MONOLANE_DEVICE void publish64(uint64_t* to, uint64_t value, uint32_t step) {
  ptx::store_relaxed(to, value >> 32 << 32 | step);
  ptx::store_relaxed(to + 1, value << 32 | step);
}
MONOLANE_DEVICE uint64_t await64(const uint64_t* from, uint32_t step) {
  const uint64_t high = await_wide_word(from, step), low = await_wide_word(from + 1, step);
  return high << 32 | low;
}

// Of each block: the rank of its best token, with penalties and biases; and, for logprobs, by its logits alone.
enum Choice { kBest, kLikeliest, kChoices };
MONOLANE_DEVICE uint64_t* choice_of(int worker, Choice which) { return monolane_launch.choices + 2 * (kChoices * worker + which); }

MONOLANE_DEVICE void publish_best(uint64_t rank, uint32_t step, Choice which = kBest) {
  rank = highest_of_block(rank);
  if (thread_index() == 0) publish64(choice_of(worker_index(), which), rank, step);
}

// `use(worker, rank)` is called once for each block. Returns the best of all.
template <class Use>
MONOLANE_DEVICE uint64_t best_of_all(uint32_t step, Choice which, Use use) {
  uint64_t best = 0;
  for (int w = thread_index(); w < kWorkers; w += kConsumers) {
    const uint64_t theirs = await64(choice_of(w, which), step);
    use(w, theirs);
    best = theirs > best ? theirs : best;
  }
  return highest_of_block(best);
}

// --- what a request asks for ---

// Whether scores differ from what the logits say.
MONOLANE_DEVICE bool adjusts_scores() {
  const Sampling& how = monolane_launch.request.sampling;
  const bool neutral = how.repeat_up == 1 << kFactorBits && how.repeat_down == 1 << kFactorBits && !how.presence && !how.frequency;
  return !neutral || how.bias_count;
}
// Nothing but the highest logit matters.
MONOLANE_DEVICE bool plain_greedy() { return monolane_launch.request.sampling.greedy && !adjusts_scores() && monolane_launch.request.logprobs < 0; }

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

// Calls `use(token's place among this block's own, logit)` for this thread's tokens. Logits are loaded together: they come from L2. A thread has
// the tokens whose logits it has stored (see finish_batch).
template <class Use>
MONOLANE_DEVICE void each_logit(const OwnTokens& own, Use use) {
  constexpr int kTogether = lesser(divide_up(kMostTokens, kConsumers), 8);
#pragma unroll 1
  for (int base = thread_index(); base < own.count; base += kTogether * kConsumers) {
    float logit[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; j++) logit[j] = base + j * kConsumers < own.count ? monolane_launch.logits[own.first + base + j * kConsumers] : 0.0f;
#pragma unroll
    for (int j = 0; j < kTogether; j++)
      if (base + j * kConsumers < own.count) use(base + j * kConsumers, logit[j]);
  }
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

MONOLANE_DEVICE int64_t adjusted(float logit, uint32_t token) {
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

// --- scratch, in the place of inputs and sums ---

constexpr int kBucketBits = 10, kBuckets = 1 << kBucketBits;
constexpr int kHistograms = 3;  // in global memory: one is filled while the next is cleared and the last may still be read
namespace sampling {

constexpr int kPowersOffset = kXOffset, kBucketsOffset = kPowersOffset + 256 * 8;
constexpr int kSharesOffset = kBucketsOffset + kBuckets * 8, kDistancesOffset = kSharesOffset + round_up(kWorkers * 8, 128);
constexpr bool kDistancesFit = kDistancesOffset + kMostTokens * 4 <= kResidualOffset;
static_assert(kDistancesOffset <= kResidualOffset, "the scratch of sampling does not fit");

MONOLANE_DEVICE uint64_t* powers() { return shared::at<uint64_t>(kPowersOffset); }
MONOLANE_DEVICE uint64_t* buckets() { return shared::at<uint64_t>(kBucketsOffset); }  // [kBuckets]
MONOLANE_DEVICE uint64_t* shares() { return shared::at<uint64_t>(kSharesOffset); }    // [workers]: ranks, then weights
// [this block's tokens]: highest score - score, at most what 32 bits hold: a weight is zero long before, at any temperature up to 100.
MONOLANE_DEVICE uint32_t* distances(const OwnTokens& own) { return kDistancesFit ? shared::at<uint32_t>(kDistancesOffset) : monolane_launch.distances + own.first; }

}  // namespace sampling

// The n-th highest of the ranks in `shares`, or 0: that many tokens, or more, have such a rank or a higher one.
MONOLANE_DEVICE uint64_t nth_rank(int n) {
  if (thread_index() == 0) shared::reduce64()[16] = 0;
  sync_consumers();
  for (int w = thread_index(); w < kWorkers; w += kConsumers) {
    const uint64_t mine = sampling::shares()[w];
    int higher = 0;
    for (int v = 0; v < kWorkers; v++) higher += sampling::shares()[v] > mine;
    if (higher == n - 1 && mine) shared::reduce64()[16] = mine;  // ranks of tokens differ
  }
  sync_consumers();
  return shared::reduce64()[16];
}

// --- drawing ---

class Draw {
 public:
  MONOLANE_DEVICE Draw(uint64_t best, uint32_t step)
      : how_(monolane_launch.request.sampling), own_(own_tokens()), distance_(sampling::distances(own_)), top_(score_of(best)), step_(step) {
    const bool adjusts = adjusts_scores();
    each_logit(own_, [&](int i, float logit) {
      const int64_t score = adjusts ? adjusted(logit, own_.first + i) : to_score(logit);
      distance_[i] = static_cast<uint32_t>(min(top_ - score, static_cast<int64_t>(UINT32_MAX)));
    });
  }

  MONOLANE_DEVICE uint32_t token(int64_t position) {
    Cutoff cutoff = first_zero() - 1;
    if (how_.top_k && how_.top_k < kVocab) cutoff = cut(top_k_limit(), false, [&](uint64_t) { return static_cast<uint64_t>(how_.top_k); });
    if (!(how_.top_p >> kShareBits)) {
      const uint64_t dropped = cutoff.dropped * weight(cutoff.distance);  // by top-k, of those at the last distance
      cutoff = cut(cutoff.distance + 1, true, [&](uint64_t total) { return ptx::multiply_high(total - dropped, how_.top_p << 32); });
    }
    return find(cutoff, random_bits(how_.seed, static_cast<uint64_t>(position)));
  }

 private:
  // Distances up to this one are kept; of those that have it, the first `kept` in order of id.
  struct Cutoff {
    uint32_t distance;
    uint64_t kept = kAll, dropped = 0;
    MONOLANE_DEVICE Cutoff(uint32_t distance) : distance(distance) {}
  };
  static constexpr uint64_t kAll = ~uint64_t(0);

  MONOLANE_DEVICE uint64_t weight(uint32_t distance) const { return weight_of(distance, how_.rate, sampling::powers()); }

  // A distance from which on weights are zero: the exponent is beyond what weight_of gives one for.
  MONOLANE_DEVICE uint32_t first_zero() const {
    const float limit = (kWeightBits + 1.01f) * 68719476736.0f / static_cast<float>(how_.rate);  // 2^36: an exponent's fraction
    return limit < 4294967040.0f ? static_cast<uint32_t>(limit) + 1 : UINT32_MAX;
  }

  // Tokens before this distance are at least as many as top-k keeps, or all that can be drawn.
  MONOLANE_DEVICE uint32_t top_k_limit() {
    const uint64_t rank = how_.top_k <= kWorkers ? nth_rank(how_.top_k) : 0;
    const int64_t limit = rank ? top_ - score_of(rank) + 1 : UINT32_MAX;
    return static_cast<uint32_t>(min(limit, static_cast<int64_t>(first_zero())));
  }

  // The shortest run of tokens, in order of (distance, id), whose mass (weights, or how many they are) reaches `needed(total)`. Only
  // distances before `limit` count.
  template <class Needed>
  MONOLANE_DEVICE Cutoff cut(uint32_t limit, bool by_weight, Needed needed) {
    uint32_t low = 0;
    int shift = max(bit_width(limit - 1) - kBucketBits, 0);
    uint64_t left = 0;
    for (bool first = true;; first = false) {
      add_up(low, limit, shift, by_weight);
      if (first) {
        uint64_t total = 0;
        for (int b = thread_index(); b < kBuckets; b += kConsumers) total += sampling::buckets()[b];
        total = sum_of_block(total);
        left = needed(total);
        if (left >= total) return limit - 1;
      }
      uint64_t before;
      const uint32_t bucket = walk(kBuckets, [](int b) { return sampling::buckets()[b]; }, left ? left - 1 : 0, before);
      const uint64_t mass = sampling::buckets()[bucket];
      left -= before;
      low += bucket << shift;
      const uint32_t last = min(low + ((1u << shift) - 1), limit - 1);
      const uint64_t each = by_weight ? weight(last) : 1;  // of no token in the bucket is it less
      if (mass < 2 * each) return last;                    // there is one token in it
      if (!shift) return among_equals(low, mass, left, max(each, uint64_t(1)));
      limit = last + 1;
      shift = max(shift - kBucketBits, 0);
    }
  }

  // Of tokens that all have this distance, and `mass` together, as many as reach `needed`.
  MONOLANE_DEVICE static Cutoff among_equals(uint32_t distance, uint64_t mass, uint64_t needed, uint64_t each) {
    Cutoff cutoff = distance;
    const uint64_t equals = mass / each, kept = needed ? (needed + each - 1) / each : 1;
    if (kept < equals) cutoff.kept = kept, cutoff.dropped = equals - kept;
    return cutoff;
  }

  MONOLANE_DEVICE static int bit_width(uint32_t v) { return 32 - ptx::leading_zeros(v); }

  // The mass of all blocks' tokens at distances [low, limit), to `buckets`, each of 2^shift distances.
  MONOLANE_DEVICE void add_up(uint32_t low, uint32_t limit, int shift, bool by_weight) {
    uint64_t* buckets = sampling::buckets();
    sync_consumers();  // those of the last round have been read
    for (int b = thread_index(); b < kBuckets; b += kConsumers) buckets[b] = 0;
    const uint32_t round = shared::flags()->histograms;
    sync_consumers();
    if (thread_index() == 0) shared::flags()->histograms = round + 1;
#pragma unroll 1
    for (int i = thread_index(); i < own_.count; i += kConsumers) {
      const uint32_t distance = distance_[i];
      if (distance >= low && distance < limit) ptx::add_shared64(&buckets[(distance - low) >> shift], by_weight ? weight(distance) : 1);
    }
    sync_consumers();
    uint64_t* totals = monolane_launch.histograms + round % kHistograms * kBuckets;
    for (int b = thread_index(); b < kBuckets; b += kConsumers)
      if (buckets[b]) ptx::add_global(&totals[b], buckets[b]);
    uint64_t* next = monolane_launch.histograms + (round + 1) % kHistograms * kBuckets;
    for (int b = worker_index() + kWorkers * thread_index(); b < kBuckets; b += kWorkers * kConsumers) ptx::store_relaxed(&next[b], 0);
    grid_barrier();
    for (int b = thread_index(); b < kBuckets; b += kConsumers) buckets[b] = ptx::load_relaxed(&totals[b]);
    sync_consumers();
  }

  // The token that a random number falls on, among those that are kept.
  MONOLANE_DEVICE uint32_t find(const Cutoff& cutoff, uint64_t random) {
    const bool some = cutoff.kept != kAll;  // and not all of those at the last distance
    uint64_t sum = 0, equal = 0;
#pragma unroll 1
    for (int i = thread_index(); i < own_.count; i += kConsumers) {
      equal += distance_[i] == cutoff.distance;
      if (distance_[i] < cutoff.distance || (!some && distance_[i] == cutoff.distance)) sum += drawable(distance_[i]);
    }
    sum = sum_of_block(sum);
    if (some) equal = sum_of_block(equal);
    uint64_t* mine = monolane_launch.kept + 3 * worker_index();
    if (thread_index() == 0) {
      publish64(mine, sum, step_);
      if (some) ptx::store_relaxed(mine + 2, equal << 32 | step_);
    }
    for (int w = thread_index(); w < kWorkers; w += kConsumers) sampling::shares()[w] = await64(monolane_launch.kept + 3 * w, step_);
    const uint64_t equals_kept = some ? share_equals(cutoff) : 0;
    uint64_t total = 0, before, unused;
    sync_consumers();
    for (int w = thread_index(); w < kWorkers; w += kConsumers) total += sampling::shares()[w];
    total = sum_of_block(total);
    const uint64_t target = ptx::multiply_high(random, total);
    const int owner = static_cast<int>(walk(kWorkers, [](int w) { return sampling::shares()[w]; }, target, before));
    if (owner == worker_index()) {
      int last_equal = some ? -1 : own_.count;
      if (equals_kept) last_equal = walk(own_.count, [&](int i) { return uint64_t(distance_[i] == cutoff.distance); }, equals_kept - 1, unused);
      const auto kept = [&](int i) { return distance_[i] < cutoff.distance || (distance_[i] == cutoff.distance && i <= last_equal) ? drawable(distance_[i]) : 0; };
      const uint64_t token = own_.first + walk(own_.count, kept, target - before, unused);
      if (thread_index() == 0) ptx::store_relaxed(monolane_launch.drawn, token << 32 | step_);
    }
    return await_wide_word(monolane_launch.drawn, step_);
  }

  // What is left of a token's weight by min-p.
  MONOLANE_DEVICE uint64_t drawable(uint32_t distance) const {
    const uint64_t own = weight(distance);
    return own >= how_.min_weight ? own : 0;
  }

  // Tokens at the last distance are kept in order of id, so the blocks have their share of them in order, too: it is added to their weights.
  // Returns how many this block keeps.
  MONOLANE_DEVICE uint64_t share_equals(const Cutoff& cutoff) {
    uint64_t* equals = sampling::buckets();
    sync_consumers();
    for (int w = thread_index(); w < kWorkers; w += kConsumers) equals[w] = await_wide_word(monolane_launch.kept + 3 * w + 2, step_);
    sync_consumers();
    const auto kept_by = [&](int worker) {
      uint64_t left = cutoff.kept;
      for (int v = 0; v < worker; v++) left -= min(left, equals[v]);
      return min(left, equals[worker]);
    };
    for (int w = thread_index(); w < kWorkers; w += kConsumers) sampling::shares()[w] += kept_by(w) * drawable(cutoff.distance);
    return kept_by(worker_index());
  }

  const Sampling& how_;
  const OwnTokens own_;
  uint32_t* const distance_;
  const int64_t top_;
  const uint32_t step_;
};

// --- logprobs: of the model's own logits, into the host's entry ---

// What a block publishes for the first block, words with tags: its sum of weights, the chosen token's score where it has that token, and its likeliest
// tokens, the likeliest first, as far as they may be among those of all.
struct Report {
  uint64_t sum[2], chosen, count, ranks[2 * kMaxLogprobs];
};

class Logprobs {
 public:
  MONOLANE_DEVICE Logprobs(uint32_t step) : own_(own_tokens()), wanted_(min(monolane_launch.request.logprobs, kVocab)), step_(step) {}

  // `chosen`: the token that was chosen. In the first block, fills in `entry`.
  MONOLANE_DEVICE void report(uint32_t chosen, Entry* entry) {
    sync_consumers();  // the shares have been read
    const uint64_t best = best_of_all(step_ - 1, kLikeliest, [](int w, uint64_t rank) { sampling::shares()[w] = rank; });
    const uint64_t threshold = wanted_ && wanted_ <= kWorkers ? nth_rank(wanted_) : 0;
    const int64_t top = score_of(best);
    Report* mine = report_of(worker_index());
    uint64_t sum = 0;
    each_logit(own_, [&](int, float logit) { sum += weight_of(top - to_score(logit), kUnitRate, sampling::powers()); });
    sum = sum_of_block(sum);
    const uint32_t count = publish_likeliest(mine, threshold);
    if (thread_index() == 0) {
      publish64(mine->sum, sum, step_);
      ptx::store_relaxed(&mine->count, static_cast<uint64_t>(count) << 32 | step_);
      if (own_.has(chosen)) {
        const uint32_t score = static_cast<uint32_t>(to_score(monolane_launch.logits[chosen]));
        ptx::store_relaxed(&first_report()->chosen, static_cast<uint64_t>(score) << 32 | step_);
      }
    }
    if (worker_index() == 0) collect(top, entry);
  }

 private:
  MONOLANE_DEVICE static Report* report_of(int worker) { return monolane_launch.reports + worker; }
  MONOLANE_DEVICE static Report* first_report() { return report_of(0); }

  // This block's tokens from `threshold` on, no more than are wanted; returns how many.
  MONOLANE_DEVICE uint32_t publish_likeliest(Report* mine, uint64_t threshold) {
    uint64_t below = kNoNumberRank;
    int count = 0;
    for (; count < wanted_; count++) {
      uint64_t next = 0;
      each_logit(own_, [&](int i, float logit) {
        const uint64_t rank = rank_of(logit, own_.first + i);
        if (rank < below) next = max(next, rank);
      });
      next = highest_of_block(next);
      if (!next || next < threshold) break;
      if (thread_index() == 0) publish64(mine->ranks + 2 * count, next, step_);
      below = next;
    }
    return count;
  }

  // What all blocks have published: at most as many blocks as tokens are wanted have any, and each at most as many.
  MONOLANE_DEVICE void collect(int64_t top, Entry* entry) {
    static_assert(kMaxLogprobs * kMaxLogprobs <= kBuckets, "the scratch has no room for so many logprobs");
    uint64_t* ranks = sampling::buckets();
    uint64_t sum = 0;
    sync_consumers();
    for (int w = thread_index(); w < kWorkers; w += kConsumers) {
      sum += await64(report_of(w)->sum, step_);
      sampling::shares()[w] = await_wide_word(&report_of(w)->count, step_);
    }
    sum = sum_of_block(sum);
    int total = 0;
    for (int w = 0; w < kWorkers; w++) {  // one after the other: nearly all of them have none
      const int count = min(static_cast<int>(sampling::shares()[w]), kBuckets - total);
      for (int i = thread_index(); i < count; i += kConsumers) ranks[total + i] = await64(report_of(w)->ranks + 2 * i, step_);
      total += count;
    }
    sync_consumers();
    for (int i = thread_index(); i < total; i += kConsumers) {
      int higher = 0;
      for (int j = 0; j < total; j++) higher += ranks[j] > ranks[i];
      if (higher >= wanted_) continue;
      entry->top_tokens[higher] = static_cast<int32_t>(token_of(ranks[i]));
      entry->top_distances[higher] = top - score_of(ranks[i]);
    }
    if (thread_index() != 0) return;
    entry->total = sum;
    entry->distance = top - static_cast<int32_t>(await_wide_word(&first_report()->chosen, step_));
    entry->top_count = wanted_;
  }

  const OwnTokens own_;
  const int wanted_;
  const uint32_t step_;
};

// The token at `position`, the same for all blocks. Apart: it is long, and not on the way of a plain greedy request.
MONOLANE_APART uint32_t choose(int64_t position, int64_t made, uint32_t step) {
  const Request& request = monolane_launch.request;
  for (int i = thread_index(); i < 256; i += kConsumers) sampling::powers()[i] = kPowers[i];
  const uint64_t best = best_of_all(step - 1, kBest, [](int w, uint64_t rank) { sampling::shares()[w] = rank; });
  if (best >= kAbortRank) return token_of(best);
  const uint32_t token = request.sampling.greedy ? token_of(best) : Draw(best, step).token(position);
  if (request.logprobs >= 0) Logprobs(step).report(token, monolane_launch.entries + made);
  if (adjusts_scores() && thread_index() == 0 && own_tokens().has(token)) monolane_launch.used[token].count = (monolane_launch.used[token].count | kSeen) + 1;
  sync_consumers();  // the scratch is free for others
  return token;
}

}  // namespace monolane
