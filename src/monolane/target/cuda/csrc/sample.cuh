// Sampling: chooses the next token, in integer arithmetic. The consumer warps of all workers run it together; each worker has the logits of its own
// tokens, which have consecutive ids. It reads these logits and the sampling parameters, and returns the same token in every worker; worker 0 writes
// logprobs to the host's entry. The specification is program/sample.py. Integer sums do not depend on their order, so the token is exactly the one
// that the specification chooses.
//
//   1. Every worker publishes the rank of its best token, and every worker finds the best of all. A greedy request is done. Where lanes are apart, a
//      worker of each lane passes the lane's best on to all lanes; likewise in the steps below.
//   2. Top-k and top-p: all workers add up one histogram of distances (highest fixed-point logit - fixed-point logit). It says which tokens are kept
//      and which are not, except for those in the bucket that has the border: they are in doubt.
//   3. Every worker publishes the race key of its first token in the exponential race, among those that are kept or in doubt. Every worker finds the
//      winner.
//   4. Where the winner is in doubt, which is rare: the number and weight of nearer tokens decide; if need be the exact distance of the border is
//      found, one histogram after the other, and the race is run again.
//
// A token is chosen every few hundred microseconds, and by then the instructions of sampling have left the instruction caches. The time it takes
// depends on how many different instructions there are. So loops are not unrolled, and what is needed more than once is a noinline function.
#pragma once
#include "draw.cuh"

namespace monolane {

// --- logprobs ---

// The logprobs of the chosen token and of the likeliest tokens, by the model's own logits, before penalties and temperature. The entry in host memory
// gets distances and a sum of weights at temperature 1, from which the host computes logarithms.
class Logprobs {
 public:
  MONOLANE_DEVICE Logprobs(uint32_t step) : own_(own_tokens()), wanted_(min(monolane_launch.request.logprobs, kVocab)), step_(step) {}

  // All workers publish their sums and likeliest tokens; worker 0 fills in `entry`. `chosen`: the token that was chosen. `best`: the rank of the best
  // token. This rank and those in sampling::ranks() are what choose() has found: they are by the model's own logits, unless penalties or biases have
  // changed some.
  MONOLANE_DEVICE void report(uint32_t chosen, uint64_t best, Entry* entry) {
    if (thread_id() == 0) listed() = 0;
    sync_consumers();  // all threads have read the ranks that choose() has left
    if (monolane_launch.adjusts_logits) {
      const uint64_t theirs = await_parts(step_ - 1, kLikeliest);
      if (thread_id() < kParts) sampling::ranks()[thread_id()] = theirs;
      best = max_of_block_noinline(theirs);
    }
    const int64_t top = fixed_logit_of(best);
    const uint64_t threshold = !wanted_ ? kNoNumberRank : wanted_ <= kParts ? nth_rank(wanted_) : 0;
    uint64_t sum = 0;
    MONOLANE_LOOP
    for (int i = thread_id(); i < own_.count; i += kConsumers) {
      const uint64_t rank = rank_of(logit(i), own_.first + i);
      sum += weight_of(static_cast<uint32_t>(top - fixed_logit_of(rank)), static_cast<uint32_t>(kUnitRate));
      if (rank >= threshold) list(rank);
    }
    sum = prefix_of_block(sum).total;
    if (thread_id() == 0) {
      publish64(at_lane(0, sum_of(worker_id())), sum, step_);
      if (own_.has(chosen)) {
        const uint32_t fixed = static_cast<uint32_t>(fixed_logit(monolane_launch.logits[chosen]));
        publish32(at_lane(0, chosen_logit()), fixed, step_);
      }
    }
    if (static_cast<int>(listed()) > wanted_) list_in_order([&](int i) { return rank_of(logit(i), own_.first + i); }, wanted_, own_.count);
    publish_list(step_);
    if (worker_id() == 0) write(top, entry);
  }

 private:
  // The logit of the worker's i-th token. A greedy request still has the logits in shared memory; a draw has overwritten them with distances.
  MONOLANE_DEVICE float logit(int i) const {
    return kLogitsFit && monolane_launch.request.sampling.greedy ? shared::at<float>(kLogitsOffset)[i] : monolane_launch.logits[own_.first + i];
  }
  MONOLANE_DEVICE static uint64_t* sum_of(int worker) { return monolane_launch.logprob_sums + 2 * worker; }
  MONOLANE_DEVICE static uint64_t* chosen_logit() { return sum_of(kWorkers); }

  // In worker 0: collects what all workers have published. Each worker lists `wanted_` tokens at most. Where the listed tokens are more than there are
  // consumer threads, as where many logits are equal, they are merged one token after the other.
  MONOLANE_DEVICE void write(int64_t top, Entry* entry) {
    const uint64_t sum = prefix_of_block(kApart ? sum_of_some() : thread_id() < kWorkers ? await64(sum_of(thread_id()), step_) : 0).total;
    const int count = kApart ? kTooMany : collect_likeliest(step_);
    if (count == kTooMany)
      write_in_order(top, entry);
    else
      write_at_once(count, top, entry);
    if (thread_id() != 0) return;
    entry->total = sum;
    entry->distance = top - static_cast<int32_t>(await32(chosen_logit(), step_));
    entry->top_count = wanted_;
  }

  MONOLANE_DEVICE static void put(int n, uint64_t rank, int64_t top, Entry* entry) {
    entry->top_tokens[n] = static_cast<int32_t>(token_of(rank));
    entry->top_distances[n] = top - fixed_logit_of(rank);
  }
  // One thread per listed token: the number of higher ranks is its index in the entry.
  MONOLANE_DEVICE void write_at_once(int count, int64_t top, Entry* entry) const {
    const uint64_t* ranks = sampling::buckets();
    if (thread_id() >= count) return;
    const uint64_t rank = ranks[thread_id()];
    int higher = 0;
    MONOLANE_LOOP
    for (int i = 0; i < count; i++) higher += ranks[i] > rank;
    if (higher < wanted_) put(higher, rank, top, entry);
  }
  // One thread per worker: in each round the thread with the highest rank below that of the round before writes its token.
  MONOLANE_DEVICE void write_in_order(int64_t top, Entry* entry) const {
    const TopList* theirs = top_list(min(thread_id(), kWorkers - 1));
    const int count = !kApart && thread_id() < kWorkers ? static_cast<int>(await_word64(&theirs->count, step_)) : 0;
    uint64_t below = kNoNumberRank;
    MONOLANE_LOOP
    for (int n = 0; n < wanted_; n++) {
      uint64_t mine = kApart ? highest_below(below) : 0;
      MONOLANE_LOOP
      for (int i = 0; i < count; i++) {
        const uint64_t rank = await64(theirs->ranks + 2 * i, step_);
        if (rank < below) mine = max(mine, rank);
      }
      below = max_of_block_noinline(mine);
      if (mine == below && below) put(n, below, top, entry);
    }
  }

  // Where lanes are apart, workers may be more than consumer threads: a thread looks at some of them. Lane 0 has what all of them have published.
  MONOLANE_DEVICE uint64_t sum_of_some() const {
    uint64_t sum = 0;
    MONOLANE_LOOP
    for (int worker = thread_id(); worker < kWorkers; worker += kConsumers) sum += await64(sum_of(worker), step_);
    return sum;
  }
  MONOLANE_DEVICE uint64_t highest_below(uint64_t below) const {
    uint64_t highest = 0;
    MONOLANE_LOOP
    for (int worker = thread_id(); worker < kWorkers; worker += kConsumers) {
      const TopList* theirs = top_list(worker);
      const int count = min(static_cast<int>(await32(&theirs->count, step_)), kMaxListed);
      MONOLANE_LOOP
      for (int i = 0; i < count; i++) {
        const uint64_t rank = await64(theirs->ranks + 2 * i, step_);
        if (rank < below) highest = max(highest, rank);
      }
    }
    return highest;
  }

  const OwnTokens own_;
  const int wanted_;  // how many of the likeliest tokens the entry gets
  const uint32_t step_;
};

MONOLANE_NOINLINE void report_logprobs(uint32_t token, uint64_t best, Entry* entry, uint32_t step) { Logprobs(step).report(token, best, entry); }

// Chooses the token at `position`: the same one in every worker. `made`: tokens of the answer before it. The function is noinline because it is long
// and a plain greedy request does not need it.
MONOLANE_NOINLINE uint32_t choose(int64_t position, int64_t made, uint32_t step) {
  const Request& request = monolane_launch.request;
  const bool greedy = request.sampling.greedy;
  // Work that needs nothing from the other workers comes first, while their best tokens are on the way: the tables are copied to shared memory, one
  // entry by each thread, and the noise is made.
  const uint64_t power = kPowers[thread_id()], logarithm = kLogarithms[thread_id()], stretch = kStretches[thread_id()];
  sampling::powers()[thread_id()] = power, sampling::logarithms()[thread_id()] = logarithm, sampling::stretches()[thread_id()] = stretch;
  if (!greedy) {
    const uint64_t random = random_bits(request.sampling.seed, static_cast<uint64_t>(position));
    sync_consumers();
    drawing::make_noise(random);
  }
  const uint64_t theirs = await_parts(step - 1, kBest);
  if (thread_id() < kParts) sampling::ranks()[thread_id()] = theirs;
  const uint64_t best = max_of_block_noinline(theirs);
  if (best >= kAbortRank) return token_of(best);
  const uint32_t token = greedy ? token_of(best) : drawing::draw(best, step);
  if (request.logprobs >= 0) report_logprobs(token, best, monolane_launch.entries + made, step);
  if (monolane_launch.adjusts_logits) note_token(token);
  sync_consumers();  // the next stage may overwrite the scratch
  return token;
}

}  // namespace monolane
