// Drawing a token from what temperature, top-k, top-p and min-p leave, by all blocks: steps 2 to 4 of sample.cuh.
//
// Functions that stand apart take numbers, not an object: what has an address is kept in local memory, which is far away.
#pragma once
#include "rank.cuh"

namespace monolane::drawing {

// A weight is zero long before, and nobody so far away wins, at any temperature up to 100.
constexpr uint32_t kFarthest = UINT32_MAX - 1, kEverything = UINT32_MAX;

MONOLANE_DEVICE const Sampling& sampling_params() { return monolane_launch.request.sampling; }
MONOLANE_DEVICE uint64_t weight(uint32_t distance) { return weight_of(distance, static_cast<uint32_t>(sampling_params().rate)); }
MONOLANE_DEVICE int bit_width(uint32_t v) { return 32 - ptx::leading_zeros(v); }
MONOLANE_DEVICE bool has_top_k() { return sampling_params().top_k && sampling_params().top_k < kVocab; }
MONOLANE_DEVICE bool has_top_p() { return !(sampling_params().top_p >> kShareBits); }

// What the running sum of weights has to exceed for top-p.
MONOLANE_DEVICE uint64_t share_of(uint64_t weight) {
  const uint64_t needed = ptx::umul64hi(weight, sampling_params().top_p << 32);
  return needed ? needed - 1 : 0;
}

// The noise of this block's tokens at a position. `random`: what it begins with there.
MONOLANE_DEVICE void make_noise(uint64_t random) {
  const OwnTokens own = own_tokens();
  uint32_t* noise = sampling::noise(own);
MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) noise[i] = noise_of(mixed_bits(random, own.first + i), sampling::logarithms(), sampling::stretches());
}

MONOLANE_DEVICE void take_distances(int64_t top) {
  const OwnTokens own = own_tokens();
  uint32_t* distances = sampling::distances(own);
  each_logit(own, [&](int i, float logit) {
    distances[i] = static_cast<uint32_t>(min(top - adjusted_logit(logit, i, own), static_cast<int64_t>(kFarthest)));
  });
  sync_consumers();
}

// --- the race ---

// A token's place in the race as one number: larger for an earlier time and then for a lower id. The last bit is 0 for a token in doubt.
static_assert(2 * kVocab <= static_cast<int>(kTokenMask), "a place has no room for so many tokens");
MONOLANE_DEVICE uint64_t race_key(uint64_t time, uint32_t token, bool doubtful) {
  return (kLargestTime + 1 - time) << kTokenBits | (kTokenMask - (2 * token + doubtful));
}
MONOLANE_DEVICE bool is_doubtful(uint64_t place) { return !(place & 1); }
MONOLANE_DEVICE uint32_t token_of_race_key(uint64_t place) { return (kTokenMask - (static_cast<uint32_t>(place) & kTokenMask)) >> 1; }

// The place of the winner among all blocks' tokens. Those nearer than `kept` are kept, and those from `dropped` on are not; those between are in doubt.
MONOLANE_NOINLINE uint64_t race(uint32_t kept, uint32_t dropped, Published which, uint32_t step) {
  const OwnTokens own = own_tokens();
  const uint32_t *distances = sampling::distances(own), *noise = sampling::noise(own);
  uint64_t mine = 0;
  uint32_t nearest = 0;  // the distance of this thread's first
MONOLANE_LOOP
  for (int i = thread_id(); i < own.count; i += kConsumers) {
    const uint32_t distance = distances[i], token = own.first + i;
    if (distance >= dropped || (sampling_params().min_weight && weight(distance) < sampling_params().min_weight)) continue;
    const uint64_t place = race_key(race_time(distance, static_cast<uint32_t>(sampling_params().rate), noise[i]), token, distance >= kept);
    if (place > mine) mine = place, nearest = distance;
  }
  const uint64_t first = max_of_block_noinline(mine);
  if (mine == first && (first || thread_id() == 0)) {
    publish64(published_words(worker_id(), which), first, step);
    if (which == kFirst) publish32(published_words(worker_id(), kDistance), nearest, step);
  }
  return max_of_block_noinline(await_best(step, which));
}

// --- the border ---

// How many tokens a bucket has, and their weight.
struct Bucket {
  uint64_t count, weight;
};

MONOLANE_DEVICE uint64_t* histogram(uint32_t round) { return monolane_launch.histograms + round % kHistograms * 2 * kBuckets; }

// All blocks' tokens at distances from `low` to `last`, in buckets of 2^shift distances; in the last bucket all that lie beyond. Returns this thread's.
MONOLANE_NOINLINE Bucket add_up(uint32_t low, uint32_t last, int shift, bool counts, bool weights) {
  const OwnTokens own = own_tokens();
  const uint32_t* distances = sampling::distances(own);
  uint64_t* sums = sampling::buckets();
  uint32_t* own_counts = reinterpret_cast<uint32_t*>(sums + kBuckets);  // as wide as weights; the upper halves stay zero
  const uint32_t round = shared::flags()->histograms;
  uint64_t *accumulators = histogram(round), *next = histogram(round + 1);
  constexpr int kCleared = divide_up(2 * kBuckets, kWorkers);
  const int cleared = worker_id() * kCleared + thread_id();
  if (thread_id() < kCleared && cleared < 2 * kBuckets) ptx::store_relaxed(&next[cleared], 0);
  sums[thread_id()] = sums[kBuckets + thread_id()] = 0;
  sync_consumers();
  // Those in the last bucket, which are most, maybe, are not added one by one: all of a thread's at its end.
  uint32_t count_beyond = 0;
  uint64_t weight_beyond = 0;
MONOLANE_LOOP
  for (int i = thread_id();; i += kConsumers) {
    const bool end = i >= own.count;
    uint32_t bucket = kBuckets - 1, count = count_beyond;
    uint64_t lse = weight_beyond;
    if (!end) {
      const uint32_t distance = distances[i];
      if (distance < low || distance > last) continue;
      lse = weights ? weight(distance) : 0, count = 1, bucket = (distance - low) >> shift;
      if (bucket >= kBuckets - 1) {
        count_beyond++, weight_beyond += lse;
        continue;
      }
    }
    if (lse) ptx::add_shared64(&sums[bucket], lse);
    if (counts) ptx::add_shared(&own_counts[2 * bucket], count);
    if (end) break;
  }
  sync_consumers();
MONOLANE_LOOP
  for (int b = thread_id(); b < 2 * kBuckets; b += kConsumers)
    if (sums[b]) ptx::add_global(&accumulators[b], sums[b]);
  grid_barrier();
  if (thread_id() == 0) shared::flags()->histograms = round + 1;  // before the next round there are barriers
  return {ptx::load_relaxed(&accumulators[kBuckets + thread_id()]), ptx::load_relaxed(&accumulators[thread_id()])};
}

// How far away a border hardly ever is: see reach() of launch.py. That may be too far to tell tokens apart, and so the blocks' best tokens are taken for
// a sample of all: of a top-k of no more tokens than there are blocks, none is worse than the k-th of them.
MONOLANE_DEVICE uint32_t reach(int64_t top) {
  constexpr uint32_t kFar = 32u << kLogitBits;
  if (!has_top_k() && monolane_launch.reach < kFar) return monolane_launch.reach;
  const bool few = has_top_k() && sampling_params().top_k <= kWorkers;
  const int64_t spread = top - fixed_logit_of(nth_rank(few ? sampling_params().top_k : kWorkers));
  const int times = few ? 1 : has_top_k() && sampling_params().top_k <= kVocab / 8 ? 2 : 4;
  return static_cast<uint32_t>(min(static_cast<int64_t>(monolane_launch.reach), times * spread + kBuckets));
}

// Tokens nearer than `kept` are kept, and those from `dropped` on are not. `least`, `most`: of the weight that top-k keeps.
struct Border {
  uint32_t kept, dropped;
  uint64_t least, most;
};

// Where the border of top-k and top-p is, as far as one histogram tells: in some bucket. What is in the bucket weighs little, so that the winner of
// the race is hardly ever one of those.
MONOLANE_DEVICE Border bracket(int64_t top) {
  const uint32_t limit = reach(top);
  const int shift = max(bit_width(limit + limit / (kBuckets / 2)) - kBucketBits, 0);  // the last bucket is for what lies beyond
  const Bucket own = add_up(0, kFarthest, shift, has_top_k(), has_top_p());
  const Prefix weights = prefix_of_block(own.weight);
  uint64_t least = weights.total, most = weights.total;
  uint32_t kept = 0, dropped = 0;  // buckets
  if (has_top_k()) {
    const Prefix counts = prefix_of_block(own.count);
    const uint64_t wanted = static_cast<uint64_t>(sampling_params().top_k);
    if (counts.passes(wanted - 1, own.count)) {
      const bool whole = counts.before + own.count == wanted;
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
    const uint64_t each = weight(dropped << shift);  // about the least that a token in the last of these buckets weighs
    if (dropped == kept + 1 && dropped < kBuckets && found()[5] < each + each / 2) kept = dropped;  // there is one token in it
  }
  return {kept << shift, dropped < kBuckets ? dropped << shift : kEverything, least, most};
}

// --- in doubt ---

// Exactly: the distance at which the tokens up to it are as many as top-k keeps, or weigh as much as top-p wants of the weight of those up to `last`.
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

MONOLANE_NOINLINE uint64_t sum_over_grid(uint64_t own, Published which, uint32_t step) {
  const uint64_t total = prefix_of_block(own).total;
  if (thread_id() == 0) publish64(published_words(worker_id(), which), total, step);
  return prefix_of_block(await_best(step, which)).total;
}

// The winner is a token in doubt. Whether it is kept can be told from how many tokens are nearer, and from their weight. If it is not, those as near
// as it or farther are out, and the race is run again; if the winner is in doubt once more, with the exact border.
MONOLANE_NOINLINE uint64_t resolve(uint64_t winner, uint32_t kept, uint64_t least, uint64_t most, uint32_t step) {
  if (await_best(step, kFirst) == winner) found()[0] = await_word64(published_words(thread_id(), kDistance), step);
  sync_consumers();
  const uint32_t distance = static_cast<uint32_t>(found()[0]);
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

// --- all of it ---

// `best`: the rank of the best token. Noise has been made.
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
