// Draws a token from what temperature, top-k, top-p and min-p leave: steps 2 to 4 of sample.cuh. The consumer warps of all workers run it together.
// It reads the logits and the noise of the worker's own tokens, exchanges histograms, race keys and sums with the other workers through global
// memory, and returns the same token in every worker.
//
// The noinline functions take numbers, not an object: an object whose address is taken lives in local memory, and every access to it is slow.
#pragma once
#include "rank.cuh"

namespace monolane::drawing {

// kFarthest is the largest distance: farther tokens get this one. At any temperature up to 100 the weight is zero long before, and no token so far
// away wins the race. kEverything is larger than any distance.
constexpr uint32_t kFarthest = UINT32_MAX - 1, kEverything = UINT32_MAX;

MONOLANE_DEVICE const Sampling& sampling_params() { return monolane_launch.request.sampling; }
MONOLANE_DEVICE uint64_t weight(uint32_t distance) { return weight_of(distance, static_cast<uint32_t>(sampling_params().rate)); }
MONOLANE_DEVICE int bit_width(uint32_t v) { return 32 - ptx::leading_zeros(v); }
MONOLANE_DEVICE bool has_top_k() { return sampling_params().top_k && sampling_params().top_k < kVocab; }
MONOLANE_DEVICE bool has_top_p() { return !(sampling_params().top_p >> kShareBits); }

// The number that the running sum of weights must exceed for top-p, where `weight` is the weight of all tokens that top-k keeps.
MONOLANE_DEVICE uint64_t share_of(uint64_t weight) {
  const uint64_t needed = ptx::umul64hi(weight, sampling_params().top_p << 32);
  return needed ? needed - 1 : 0;
}

// Computes the noise of this worker's tokens. `random`: the 64 random bits of the position, see random_bits().
MONOLANE_DEVICE void make_noise(uint64_t random) {
  const OwnTokens own = own_tokens();
  uint32_t* noise = sampling::noise(own);
  MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers)
    noise[i] = noise_of(mixed_bits(random, own.first + i), sampling::logarithms(), sampling::stretches());
}

// Replaces the logits of this worker's tokens by their distances from the highest fixed-point logit, `top`.
MONOLANE_DEVICE void take_distances(int64_t top) {
  const OwnTokens own = own_tokens();
  uint32_t* distances = sampling::distances(own);
  each_logit(own, [&](int i, float logit) {
    distances[i] = static_cast<uint32_t>(min(top - adjusted_logit(logit, i, own), static_cast<int64_t>(kFarthest)));
  });
  sync_consumers();
}

// --- the race ---

// A race key is the time of a token in the exponential race and its id in one comparable integer: an earlier time has a larger key and, of equal
// times, the lower id. The lowest bit is 0 for a token in doubt: one of which is not known whether top-k and top-p keep it.
static_assert(2 * kVocab <= static_cast<int>(kTokenMask), "a race key has no room for so many tokens");
MONOLANE_DEVICE uint64_t race_key(uint64_t time, uint32_t token, bool doubtful) {
  return (kLargestTime + 1 - time) << kTokenBits | (kTokenMask - (2 * token + doubtful));
}
MONOLANE_DEVICE bool is_doubtful(uint64_t key) { return !(key & 1); }
MONOLANE_DEVICE uint32_t token_of_race_key(uint64_t key) { return (kTokenMask - (static_cast<uint32_t>(key) & kTokenMask)) >> 1; }

// Runs the race among the tokens of all workers and returns the winner's race key. Tokens nearer than `kept` are kept, tokens from `dropped` on are
// not, and tokens between are in doubt but take part. Tokens lighter than min-p allows do not take part.
MONOLANE_NOINLINE uint64_t race(uint32_t kept, uint32_t dropped, Published which, uint32_t step) {
  const OwnTokens own = own_tokens();
  const uint32_t *distances = sampling::distances(own), *noise = sampling::noise(own);
  uint64_t best_key = 0;       // of this thread's tokens
  uint32_t best_distance = 0;  // the distance of that token
  MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) {
    const uint32_t distance = distances[i], token = own.first + i;
    if (distance >= dropped || (sampling_params().min_weight && weight(distance) < sampling_params().min_weight)) continue;
    const uint64_t key = race_key(race_time(distance, static_cast<uint32_t>(sampling_params().rate), noise[i]), token, distance >= kept);
    if (key > best_key) best_key = key, best_distance = distance;
  }
  const uint64_t first = max_of_block_noinline(best_key);
  if (best_key == first && (first || thread_id() == 0)) {
    publish64(published_words(worker_here(), which), first, step);
    if (which == kFirst) publish32(published_words(worker_here(), kDistance), best_distance, step);
  }
  return max_of_block_noinline(await_parts(step, which));
}

// --- the border of top-k and top-p ---

// The number of tokens in a bucket of the histogram, and their weight.
struct Bucket {
  uint64_t count, weight;
};

MONOLANE_DEVICE uint64_t* histogram(uint32_t round) { return monolane_launch.histograms + round % kHistograms * 2 * kBuckets; }

// Adds the bucket of this thread's number of all other lanes, where lanes are apart. The workers of a launch send some of its buckets each. Rounds use two
// places alternately: a lane that sends in a round has received all buckets of the round before, and then all its workers had those of the one before that.
MONOLANE_NOINLINE Bucket with_other_lanes(Bucket own, uint32_t round) {
  constexpr int kWords = 4;  // of a bucket: two for each number
  const auto words_of = [&](int from) { return monolane_launch.bucket_words + ((round % 2 * kLanes + from) * kBuckets + thread_id()) * kWords; };
  const uint32_t tag = round + 1;
  if (thread_id() % kWorkersHere == worker_here()) {
    MONOLANE_LOOP
    for (int to = 0; to < kLanes; to++) {
      uint64_t* words = at_lane(to, words_of(lane()));
      publish64(words, own.count, tag), publish64(words + 2, own.weight, tag);
    }
  }
  Bucket total{0, 0};
  MONOLANE_LOOP
  for (int from = 0; from < kLanes; from++) total.count += await64(words_of(from), tag), total.weight += await64(words_of(from) + 2, tag);
  return total;
}

// One round of a histogram over the tokens of all workers whose distances lie between `low` and `last`. A bucket has 2^shift distances; the last
// bucket also has everything beyond it. Each worker fills its own buckets in shared memory and adds them to those in global memory. After a grid
// barrier each thread returns the bucket of its own number. `counts`, `weights`: which of the two is needed.
MONOLANE_NOINLINE Bucket add_up(uint32_t low, uint32_t last, int shift, bool counts, bool weights) {
  const OwnTokens own = own_tokens();
  const uint32_t* distances = sampling::distances(own);
  uint64_t* sums = sampling::buckets();
  uint32_t* own_counts = reinterpret_cast<uint32_t*>(sums + kBuckets);  // 64-bit numbers like the weights; their upper halves stay zero
  const uint32_t round = shared::flags()->histograms;
  uint64_t *accumulators = histogram(round), *next = histogram(round + 1);
  constexpr int kCleared = divide_up(2 * kBuckets, kWorkersHere);
  const int cleared = worker_here() * kCleared + thread_id();
  if (thread_id() < kCleared && cleared < 2 * kBuckets) ptx::store_relaxed(&next[cleared], 0);
  sums[thread_id()] = sums[kBuckets + thread_id()] = 0;
  sync_consumers();
  // Most tokens may fall into the last bucket. A thread adds up its tokens of that bucket in registers and adds the sums to the bucket once, at its
  // end, so that the threads do not contend for one address.
  uint32_t count_beyond = 0;
  uint64_t weight_beyond = 0;
  MONOLANE_LOOP
  for (int i = thread_id();; i += kConsumers) {
    const bool end = i >= own.count;
    uint32_t bucket = kBuckets - 1, count = count_beyond;
    uint64_t added_weight = weight_beyond;
    if (!end) {
      const uint32_t distance = distances[i];
      if (distance < low || distance > last) continue;
      added_weight = weights ? weight(distance) : 0, count = 1, bucket = (distance - low) >> shift;
      if (bucket >= kBuckets - 1) {
        count_beyond++, weight_beyond += added_weight;
        continue;
      }
    }
    if (added_weight) ptx::add_shared64(&sums[bucket], added_weight);
    if (counts) ptx::add_shared(&own_counts[2 * bucket], count);
    if (end) break;
  }
  sync_consumers();
  MONOLANE_LOOP
  for (int b = thread_id(); b < 2 * kBuckets; b += kConsumers)
    if (sums[b]) ptx::add_global(&accumulators[b], sums[b]);
  grid_barrier();
  if (thread_id() == 0) shared::flags()->histograms = round + 1;  // barriers lie between this store and the next round
  const Bucket own_bucket{ptx::load_relaxed(&accumulators[kBuckets + thread_id()]), ptx::load_relaxed(&accumulators[thread_id()])};
  if constexpr (kApart) return with_other_lanes(own_bucket, round);
  return own_bucket;
}

// A distance beyond which the border hardly ever lies. The host computes one from the sampling parameters (reach() of launch.py), but it may be so
// large that most tokens fall into a few buckets. Then the best tokens of all workers (or lanes) serve as a sample of all tokens. Where top-k is no
// larger than their number, the k-th best of them is a bound: none of the top-k tokens is farther away.
MONOLANE_DEVICE uint32_t reach(int64_t top) {
  constexpr uint32_t kFar = 32u << kLogitBits;  // a difference of 32 between two logits
  if (!has_top_k() && monolane_launch.reach < kFar) return monolane_launch.reach;
  const bool few = has_top_k() && sampling_params().top_k <= kParts;
  const int64_t spread = top - fixed_logit_of(nth_rank(few ? sampling_params().top_k : kParts));
  const int times = few ? 1 : has_top_k() && sampling_params().top_k <= kVocab / 8 ? 2 : 4;
  return static_cast<uint32_t>(min(static_cast<int64_t>(monolane_launch.reach), times * spread + kBuckets));
}

// Tokens nearer than `kept` are kept, and those from `dropped` on are not. `least`, `most`: bounds of the weight of all tokens that top-k keeps.
struct Border {
  uint32_t kept, dropped;
  uint64_t least, most;
};

// The border of top-k and top-p as far as one histogram tells it: the bucket in which it lies. The tokens in this bucket are in doubt. They weigh
// little, so the winner of the race is hardly ever one of them.
MONOLANE_DEVICE Border bracket(int64_t top) {
  const uint32_t limit = reach(top);
  const int shift = max(bit_width(limit + limit / (kBuckets / 2)) - kBucketBits, 0);  // leaves the last bucket to what lies beyond the limit
  const Bucket own = add_up(0, kFarthest, shift, has_top_k(), has_top_p());
  const Prefix weights = prefix_of_block(own.weight);
  uint64_t least = weights.total, most = weights.total;
  uint32_t kept = 0, dropped = 0;  // numbers of buckets
  if (has_top_k()) {
    const Prefix counts = prefix_of_block(own.count);
    const uint64_t wanted = static_cast<uint64_t>(sampling_params().top_k);
    if (counts.passes(wanted - 1, own.count)) {
      const bool whole = counts.before + own.count == wanted;  // top-k ends with this bucket, so none of its tokens is in doubt
      found()[0] = thread_id() + whole, found()[1] = thread_id() + 1;
      found()[2] = weights.before + (whole ? own.weight : 0), found()[3] = weights.before + own.weight;
    }
    sync_consumers();
    kept = static_cast<uint32_t>(found()[0]), dropped = static_cast<uint32_t>(found()[1]), least = found()[2], most = found()[3];
  }
  if (has_top_p()) {
    if (weights.passes(share_of(least), own.weight)) found()[4] = thread_id(), found()[5] = own.weight;
    if (weights.passes(share_of(most), own.weight)) found()[6] = thread_id() + 1;
    sync_consumers();
    kept = static_cast<uint32_t>(found()[4]), dropped = static_cast<uint32_t>(found()[6]);
    // Where the border lies in one bucket that has a single token, that token is the last one kept and is not in doubt. `each` is about the least
    // weight of a token in the bucket, so a bucket below 1.5 times that weight has one token.
    const uint64_t each = weight(dropped << shift);
    if (dropped == kept + 1 && dropped < kBuckets && found()[5] < each + each / 2) kept = dropped;
  }
  return {kept << shift, dropped < kBuckets ? dropped << shift : kEverything, least, most};
}

// --- a winner in doubt ---

// The exact distance of the last token that is kept: the smallest distance up to which there are as many tokens as top-k keeps or, if by_weight, up
// to which tokens weigh as much as top-p demands of the weight of all tokens up to `last`. Each round finds eight more bits of the distance.
MONOLANE_NOINLINE uint32_t last_kept(uint32_t last, bool by_weight) {
  uint32_t low = 0;
  uint64_t target = static_cast<uint64_t>(sampling_params().top_k) - 1;
  int shift = max(bit_width(last) - kBucketBits, 0);
  MONOLANE_LOOP
  for (bool first = true;; first = false) {
    const Bucket bucket = add_up(low, last, shift, !by_weight, by_weight);
    const uint64_t own = by_weight ? bucket.weight : bucket.count;
    const Prefix prefix = prefix_of_block(own);
    if (first && by_weight) target = share_of(prefix.total);
    if (prefix.passes(target, own)) found()[0] = thread_id(), found()[1] = prefix.before;
    sync_consumers();
    low += static_cast<uint32_t>(found()[0]) << shift;
    target -= found()[1];
    if (!shift) return low;
    last = min(low + ((1u << shift) - 1), last);
    shift = max(shift - kBucketBits, 0);
  }
}

// The sum of a number over the consumer threads of all workers.
MONOLANE_NOINLINE uint64_t sum_over_grid(uint64_t own, Published which, uint32_t step) {
  uint64_t total = prefix_of_block(own).total;
  if (thread_id() == 0) publish64(published_words(worker_here(), which), total, step);
  total = prefix_of_block(await_best(step, which)).total;
  if constexpr (kApart) total = prefix_of_block(of_each_lane(total, which, step)).total;
  return total;
}

// The distance of the winner of the race, which its worker has published.
MONOLANE_DEVICE uint32_t distance_of(uint64_t winner, uint32_t step) {
  if constexpr (kApart) {
    if (thread_id() == 0) found()[0] = 0;  // stays 0 on all lanes but that of the winner
    sync_consumers();
  }
  if (await_best(step, kFirst) == winner) found()[0] = await32(published_words(thread_id(), kDistance), step);
  sync_consumers();
  if constexpr (kApart) return static_cast<uint32_t>(max_of_block_noinline(of_each_lane(found()[0], kDistance, step)));
  return static_cast<uint32_t>(found()[0]);
}

// Decides about a winner in doubt. The number of nearer tokens and their weight say whether the winner is kept. If it is not, all tokens as near as
// the winner or farther are dropped too, and the race is run again without them. If that winner is in doubt as well, or if the weight that top-k
// keeps is not known well enough, the exact border is found and the race is run a last time.
MONOLANE_NOINLINE uint64_t resolve(uint64_t winner, uint32_t kept, uint64_t least, uint64_t most, uint32_t step) {
  const uint32_t distance = distance_of(winner, step);
  const OwnTokens own = own_tokens();
  const uint32_t* distances = sampling::distances(own);
  uint64_t count = 0, nearer = 0;
  MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers)
    if (distances[i] < distance) count++, nearer += weight(distances[i]);
  count = sum_over_grid(count, kNearer, step), nearer = sum_over_grid(nearer, kNearerWeight, step);
  const bool among_k = !has_top_k() || count < static_cast<uint64_t>(sampling_params().top_k);
  if (among_k && (!has_top_p() || nearer <= share_of(least))) return winner;
  if (!among_k || nearer > share_of(most)) {
    winner = race(kept, distance, kFirstAgain, step);
    if (!is_doubtful(winner)) return winner;
  }
  uint32_t last = kFarthest;
  MONOLANE_LOOP
  for (int by_weight = !has_top_k(); by_weight <= has_top_p(); by_weight++) last = last_kept(last, by_weight);
  return race(last + 1, last + 1, kFirstExactly, step);
}

// --- the whole draw ---

// Draws a token. `best`: the rank of the best token of all workers. The noise of this worker's tokens must have been made.
MONOLANE_DEVICE uint32_t draw(uint64_t best, uint32_t step) {
  const int64_t top = fixed_logit_of(best);
  take_distances(top);
  Border border{kEverything, kEverything, 0, 0};
  if (has_top_k() || has_top_p()) border = bracket(top);
  uint64_t winner = race(border.kept, border.dropped, kFirst, step);
  if (is_doubtful(winner)) winner = resolve(winner, border.kept, border.least, border.most, step);
  return token_of_race_key(winner);
}

}  // namespace monolane::drawing
