// Drawing a token from what temperature, top-k, top-p and min-p leave, by all blocks: steps 2 to 5 of sample.cuh.
#pragma once
#include "rank.cuh"

namespace monolane {

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

}  // namespace monolane
