// Choosing the next token, in integers, by all blocks: each has the logits of its own tokens, which are consecutive. The
// specification is program/sample.py. Integer sums do not depend on their order, so the token is the reference's, bit for bit.
//
//   1. Every block publishes the rank of its best token; all find the best of all. A greedy request is done.
//   2. Top-k and top-p: all blocks add up one histogram of distances (highest score - score). It tells all but what is in the bucket of the border.
//   3. Every block publishes the place in the race of its first token that is kept, or may be. All find the winner.
//   4. In doubt, which is seldom: the border's distance is found exactly, bucket by bucket, and the race is run again.
//
// A token is chosen every few hundred microseconds, and by then its instructions have left the caches: what takes time is how many different ones
// there are. So loops stay loops, and what is needed more than once is a function of its own.
#pragma once
#include "draw.cuh"

namespace monolane {

// --- logprobs: of the model's own logits, into the host's entry ---

class Logprobs {
 public:
  MONOLANE_DEVICE Logprobs(uint32_t step) : own_(own_tokens()), wanted_(min(monolane_launch.request.logprobs, kVocab)), step_(step) {}

  // `chosen`: the token that was chosen. In the first block, fills in `entry`.
  MONOLANE_DEVICE void report(uint32_t chosen, Entry* entry) {
    sync_consumers();  // the ranks have been read
    const uint64_t theirs = await_best(step_ - 1, kLikeliest);
    if (thread_id() < kWorkers) sampling::ranks()[thread_id()] = theirs;
    const int64_t top = fixed_logit_of(max_of_block_noinline(theirs));
    const uint64_t threshold = wanted_ && wanted_ <= kWorkers ? nth_rank(wanted_) : 0;
    uint64_t sum = 0;
MONOLANE_LOOP
    for (int i = thread_id(); i < own_.count; i += kConsumers) sum += weight_of(static_cast<uint32_t>(top - fixed_logit(logit(i))), static_cast<uint32_t>(kUnitRate));
    sum = prefix_of_block(sum).total;
    if (thread_id() == 0) {
      publish64(sum_of(worker_id()), sum, step_);
      if (own_.has(chosen)) {
        const uint32_t score = static_cast<uint32_t>(fixed_logit(monolane_launch.logits[chosen]));
        ptx::store_relaxed(chosen_score(), static_cast<uint64_t>(score) << 32 | step_);
      }
    }
    publish_likeliest(own_, wanted_, threshold, step_, [&](int i) { return rank_of(logit(i), own_.first + i); });
    if (worker_id() == 0) write(top, entry);
  }

 private:
  // A greedy request has them in shared memory still; a draw has put distances in their place.
  MONOLANE_DEVICE float logit(int i) const {
    return kLogitsFit && monolane_launch.request.sampling.greedy ? shared::at<float>(kLogitsOffset)[i] : monolane_launch.logits[own_.first + i];
  }
  MONOLANE_DEVICE static uint64_t* sum_of(int worker) { return monolane_launch.logprob_sums + 2 * worker; }
  MONOLANE_DEVICE static uint64_t* chosen_score() { return sum_of(kWorkers); }

  // By the first block. At most as many blocks as tokens are wanted have any, and each at most as many; if they are more than a block can
  // sort at once, as where all logits are equal, it takes the first ones one after the other.
  MONOLANE_DEVICE void write(int64_t top, Entry* entry) {
    const uint64_t sum = prefix_of_block(thread_id() < kWorkers ? await64(sum_of(thread_id()), step_) : 0).total;
    const int count = collect_likeliest(step_);
    if (count == kTooMany)
      write_in_order(top, entry);
    else
      write_at_once(count, top, entry);
    if (thread_id() != 0) return;
    entry->total = sum;
    entry->distance = top - static_cast<int32_t>(await_word64(chosen_score(), step_));
    entry->top_count = wanted_;
  }

  MONOLANE_DEVICE static void put(int n, uint64_t rank, int64_t top, Entry* entry) {
    entry->top_tokens[n] = static_cast<int32_t>(token_of(rank));
    entry->top_distances[n] = top - fixed_logit_of(rank);
  }
  MONOLANE_DEVICE void write_at_once(int count, int64_t top, Entry* entry) const {
    const uint64_t* ranks = sampling::buckets();
    if (thread_id() >= count) return;
    const uint64_t rank = ranks[thread_id()];
    int higher = 0;
MONOLANE_LOOP
    for (int i = 0; i < count; i++) higher += ranks[i] > rank;
    if (higher < wanted_) put(higher, rank, top, entry);
  }
  MONOLANE_DEVICE void write_in_order(int64_t top, Entry* entry) const {
    const TopList* theirs = top_list(min(thread_id(), kWorkers - 1));
    const int count = thread_id() < kWorkers ? static_cast<int>(await_word64(&theirs->count, step_)) : 0;
    int next = 0;
MONOLANE_LOOP
    for (int n = 0; n < wanted_; n++) {
      const uint64_t mine = next < count ? await64(theirs->ranks + 2 * next, step_) : 0, highest = max_of_block_noinline(mine);
      if (mine == highest && highest) put(n, highest, top, entry), next++;
    }
  }

  const OwnTokens own_;
  const int wanted_;
  const uint32_t step_;
};

MONOLANE_NOINLINE void report_logprobs(uint32_t token, Entry* entry, uint32_t step) { Logprobs(step).report(token, entry); }

// The token at `position`, the same for all blocks. Apart: it is long, and not on the way of a plain greedy request.
MONOLANE_NOINLINE uint32_t choose(int64_t position, int64_t made, uint32_t step) {
  const Request& request = monolane_launch.request;
  const bool greedy = request.sampling.greedy;
  // What can be done before the others' best tokens are here.
  const uint64_t power = kPowers[thread_id()], logarithm = kLogarithms[thread_id()], stretch = kStretches[thread_id()];
  sampling::powers()[thread_id()] = power, sampling::logarithms()[thread_id()] = logarithm, sampling::stretches()[thread_id()] = stretch;
  if (!greedy) {
    const uint64_t random = random_bits(request.sampling.seed, static_cast<uint64_t>(position));
    sync_consumers();
    drawing::make_noise(random);
  }
  const uint64_t theirs = await_best(step - 1, kBest);
  if (thread_id() < kWorkers) sampling::ranks()[thread_id()] = theirs;
  const uint64_t best = max_of_block_noinline(theirs);
  if (best >= kAbortRank) return token_of(best);
  const uint32_t token = greedy ? token_of(best) : drawing::draw(best, step);
  if (request.logprobs >= 0) report_logprobs(token, monolane_launch.entries + made, step);
  if (monolane_launch.adjusts_logits) note_token(token);
  sync_consumers();  // the scratch is free for others
  return token;
}

}  // namespace monolane
