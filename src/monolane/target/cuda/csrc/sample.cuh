// Choosing the next token, in integers. Greedy: every block finds the best of its own rows, publishes it, and all find the
// same best of all. Otherwise one block draws from all logits and publishes the token.
#pragma once
#include "handoff.cuh"
#include "integers.hpp"

namespace monolane {

constexpr uint32_t kNoToken = 0xffffffffu;      // published in place of a token: a logit was not a number
constexpr uint32_t kAbortToken = 0xfffffffeu;   // the host wants the request to end
constexpr int32_t kSeen = 1 << 30;              // in counts: the prompt has it, or the answer

MONOLANE_DEVICE int64_t to_score(float logit) {
  const float limited = logit < -kScoreLimit ? -kScoreLimit : logit > kScoreLimit ? kScoreLimit : logit;
  return ptx::round_to_integer(limited * static_cast<float>(1 << kScoreBits));
}

// A score and a token as one number, which is larger for a higher score and then for a lower id. Not a number beats all.
MONOLANE_DEVICE uint64_t rank_of(float logit, uint32_t token) {
  if (logit != logit) return ~uint64_t(0);
  return static_cast<uint64_t>(to_score(logit) + (int64_t(1) << 31)) << 32 | (kAbortToken - token);
}
constexpr uint64_t kAbortRank = ~uint64_t(0) - 1;
MONOLANE_DEVICE uint32_t token_of(uint64_t rank) {
  return rank == ~uint64_t(0) ? kNoToken : rank == kAbortRank ? kAbortToken : kAbortToken - static_cast<uint32_t>(rank);
}

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

// --- greedy ---

MONOLANE_DEVICE void publish_best(uint64_t rank, uint32_t step) {
  rank = highest_of_block(rank);
  if (thread_index() != 0) return;
  uint64_t* to = monolane_launch.choices + 2 * worker_index();
  ptx::store_relaxed(to, rank >> 32 << 32 | step);
  ptx::store_relaxed(to + 1, rank << 32 | step);
}

MONOLANE_DEVICE uint32_t best_of_all(uint32_t step) {
  uint64_t rank = 0;
  for (int w = thread_index(); w < kWorkers; w += kConsumers) {
    const uint64_t* from = monolane_launch.choices + 2 * w;
    const uint64_t high = await_wide_word(from, step), low = await_wide_word(from + 1, step);
    const uint64_t theirs = high << 32 | low;
    rank = theirs > rank ? theirs : rank;
  }
  return token_of(highest_of_block(rank));
}

// --- drawn, by one block ---

class Draw {
 public:
  MONOLANE_DEVICE Draw() : how_(monolane_launch.request.sampling) {}

  MONOLANE_DEVICE uint32_t token(int64_t position) {
    if (!take_scores()) return kNoToken;
    const uint64_t best = highest_of_block(best_of_thread());
    const uint32_t likeliest = kTokenMask - (static_cast<uint32_t>(best) & kTokenMask);
    if (how_.greedy) return likeliest;
    top_ = monolane_launch.scores[likeliest];
    Cutoff cutoff;
    if (how_.top_k && how_.top_k < kVocab) cutoff = cut(cutoff, how_.top_k, [](int64_t) { return uint64_t(1); });
    const auto mass = [this](int64_t distance) { return weight_of(distance, how_.rate); };
    uint64_t total = total_of(cutoff, 0);
    const uint64_t needed = ptx::multiply_high(total, how_.top_p << 32) ;
    const uint64_t wanted = how_.top_p >> kShareBits ? total : needed;
    if (wanted < total) cutoff = cut(cutoff, wanted, mass);
    total = total_of(cutoff, how_.min_weight);
    const uint64_t target = ptx::multiply_high(random_bits(how_.seed, static_cast<uint64_t>(position)), total);
    return find(cutoff, target);
  }

  // Logprobs of the model's own logits, into the host's entry.
  MONOLANE_DEVICE void report(uint32_t token, Entry* entry) {
    uint64_t rank = 0;
    for (int i = thread_index(); i < kVocab; i += kConsumers) rank = max(rank, rank_of(monolane_launch.logits[i], i));
    const uint64_t best = highest_of_block(rank);
    const int64_t top = to_score(monolane_launch.logits[token_of(best)]);
    uint64_t sum = 0;
    for (int i = thread_index(); i < kVocab; i += kConsumers) sum += weight_of(top - to_score(monolane_launch.logits[i]), kUnitRate);
    sum = sum_of_block(sum);
    if (thread_index() == 0) {
      entry->total = sum;
      entry->distance = top - to_score(monolane_launch.logits[token]);
      entry->top_count = min(monolane_launch.request.logprobs, kVocab);
    }
    uint64_t below = ~uint64_t(0);  // the likeliest, one after the other
    for (int n = 0; n < min(monolane_launch.request.logprobs, kVocab); n++) {
      uint64_t next = 0;
      for (int i = thread_index(); i < kVocab; i += kConsumers) {
        const uint64_t r = rank_of(monolane_launch.logits[i], i);
        if (r < below) next = max(next, r);
      }
      below = highest_of_block(next);
      if (thread_index() == 0) {
        entry->top_tokens[n] = static_cast<int32_t>(token_of(below));
        entry->top_distances[n] = top - to_score(monolane_launch.logits[token_of(below)]);
      }
    }
  }

 private:
  MONOLANE_DEVICE bool take_scores() {
    uint64_t not_numbers = 0;
    for (int i = thread_index(); i < kVocab; i += kConsumers) {
      const float logit = monolane_launch.logits[i];
      not_numbers += logit != logit;
      int64_t score = to_score(logit);
      const int32_t count = monolane_launch.counts[i];
      if (count) score = penalised(score, count & (kSeen - 1), how_);
      monolane_launch.scores[i] = score;
    }
    if (sum_of_block(not_numbers)) return false;
    for (int64_t i = thread_index(); i < how_.bias_count; i += kConsumers) monolane_launch.scores[how_.bias[i].token] += how_.bias[i].value;
    sync_consumers();
    return true;
  }

  MONOLANE_DEVICE uint64_t best_of_thread() const {
    uint64_t best = 0;
    for (int i = thread_index(); i < kVocab; i += kConsumers) best = max(best, wide_rank(monolane_launch.scores[i], i));
    return best;
  }
  // Penalties may carry a score beyond 32 bits; 38 are enough for the largest, and tokens need 26.
  static constexpr uint32_t kTokenMask = (1u << 26) - 1;
  MONOLANE_DEVICE static uint64_t wide_rank(int64_t score, uint32_t token) {
    return static_cast<uint64_t>(score + (int64_t(1) << 36)) << 26 | (kTokenMask - token);
  }

  MONOLANE_DEVICE uint64_t total_of(const Cutoff& cutoff, uint64_t min_weight) {
    uint64_t total = 0;
    for (int i = thread_index(); i < kVocab; i += kConsumers) total += kept(cutoff, i, min_weight);
    return sum_of_block(total);
  }
  MONOLANE_DEVICE uint64_t kept(const Cutoff& cutoff, int i, uint64_t min_weight) const {
    const int64_t distance = top_ - monolane_launch.scores[i];
    if (!cutoff.keeps(distance, i)) return 0;
    const uint64_t weight = weight_of(distance, how_.rate);
    return weight >= min_weight ? weight : 0;
  }

  // The shortest run of tokens, in order of (distance, id), whose mass reaches `needed`. The distance is found twelve
  // bits at a time; among equals the run ends at an id.
  template <class Mass>
  MONOLANE_DEVICE Cutoff cut(const Cutoff& within, uint64_t needed, Mass mass) {
    int64_t prefix = 0;
    for (int shift = 36; shift >= 0; shift -= 12) {
      for (int b = thread_index(); b < kBuckets; b += kConsumers) monolane_launch.buckets[b] = 0;
      sync_consumers();
      for (int i = thread_index(); i < kVocab; i += kConsumers) {
        const int64_t distance = top_ - monolane_launch.scores[i];
        if (within.keeps(distance, i) && distance >> (shift + 12) == prefix)
          ptx::add_global(&monolane_launch.buckets[distance >> shift & (kBuckets - 1)], mass(distance));
      }
      sync_consumers();
      uint64_t before;
      prefix = prefix << 12 | walk(kBuckets, [&](int b) { return ptx::load_relaxed(&monolane_launch.buckets[b]); }, needed ? needed - 1 : 0, before);
      needed -= before;
    }
    // All of distance `prefix` have the same mass each: count them off in order of id.
    return {prefix, static_cast<int32_t>(last_of_equals(within, prefix, needed, mass(prefix)))};
  }

  MONOLANE_DEVICE uint32_t last_of_equals(const Cutoff& within, int64_t distance, uint64_t needed, uint64_t each) {
    uint64_t before;
    return walk(kVocab, [&](int i) { return top_ - monolane_launch.scores[i] == distance && within.keeps(distance, i) ? each : uint64_t(0); },
                needed ? needed - 1 : 0, before);
  }

  MONOLANE_DEVICE uint32_t find(const Cutoff& cutoff, uint64_t target) {
    uint64_t before;
    return walk(kVocab, [&](int i) { return kept(cutoff, i, how_.min_weight); }, target, before);
  }

  // The first of `count` whose running sum exceeds `target`, and the sum before it: each thread sums a run, one of them
  // walks its own.
  template <class Mass>
  MONOLANE_DEVICE uint32_t walk(int count, Mass mass, uint64_t target, uint64_t& sum_before) {
    const int run = divide_up(count, kConsumers), first = min(thread_index() * run, count), last = min(first + run, count);
    uint64_t own = 0;
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
      while (before + mass(i) <= target) before += mass(i++);
      shared::reduce64()[16] = i;
      shared::reduce64()[17] = before;
    }
    sync_consumers();
    const uint32_t found = static_cast<uint32_t>(shared::reduce64()[16]);
    sum_before = shared::reduce64()[17];
    sync_consumers();
    return found;
  }

  const Sampling& how_;
  int64_t top_ = 0;
};

// Apart: they are long, and seldom needed.
MONOLANE_APART uint32_t draw(int64_t position) { return Draw().token(position); }
MONOLANE_APART void report_logprobs(uint32_t token, Entry* entry) { Draw().report(token, entry); }

}  // namespace monolane
