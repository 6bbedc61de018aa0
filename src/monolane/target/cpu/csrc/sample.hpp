// Sampling in integers: the same arithmetic as program/sample.py, so the same token. What is summed is integers, and
// what is compared is (distance, id), so nothing depends on the order of the work.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "integers.hpp"
#include "state.hpp"

namespace monolane {

class Sampler {
 public:
  Sampler() : scores_(kVocab), weights_(kVocab), seen_(kVocab), counts_(kVocab) {}

  void begin(const Request& request) {
    request_ = request;
    std::fill(seen_.begin(), seen_.end(), false);
    std::fill(counts_.begin(), counts_.end(), 0);
    history_.clear();
    for (int64_t i = 0; i < request.token_count; i++) see(request.tokens[i]);
  }

  // False when the logits are not numbers.
  bool choose(const float* logits, int64_t position, Entry& entry) {
    const Sampling& how = request_.sampling;
    if (!take_scores(logits)) return false;
    if (request_.logprobs >= 0) raw_ = scores_;
    penalise();
    entry.token = how.greedy ? argmax() : draw(position);
    entry.top_count = 0;
    if (request_.logprobs >= 0) report(entry);
    see(entry.token);
    counts_[entry.token]++;
    return true;
  }

 private:
  static constexpr int kBuckets = 4096;
  static constexpr int kBucketShift = kScoreBits - 6;  // a bucket is 1/64 of a logit wide, the last one takes the rest

  void see(int32_t token) {
    if (!seen_[token]) history_.push_back(token);
    seen_[token] = true;
  }

  bool take_scores(const float* logits) {
    int64_t* scores = scores_.data();
    int not_numbers = 0;
    for (int i = 0; i < kVocab; i++) {
      const float v = logits[i];
      not_numbers |= v != v;
      const float limited = v < -kScoreLimit ? -kScoreLimit : v > kScoreLimit ? kScoreLimit : v;
      scores[i] = static_cast<int32_t>(std::nearbyint(limited * static_cast<float>(1 << kScoreBits)));
    }
    return not_numbers == 0;
  }

  void penalise() {
    const Sampling& how = request_.sampling;
    for (const int32_t token : history_) scores_[token] = penalised(scores_[token], counts_[token], how);
    for (int64_t i = 0; i < how.bias_count; i++) scores_[how.bias[i].token] += how.bias[i].value;
  }

  int32_t argmax() const {
    int64_t top = scores_[0];
    for (const int64_t score : scores_) top = std::max(top, score);  // two simple loops: both in vectors
    return static_cast<int32_t>(std::find(scores_.begin(), scores_.end(), top) - scores_.begin());
  }

  int32_t draw(int64_t position) {
    const Sampling& how = request_.sampling;
    const int64_t top = scores_[argmax()];
    uint64_t total = 0;
    for (int i = 0; i < kVocab; i++) {
      weights_[i] = weight_of(top - scores_[i], how.rate);
      total += weights_[i];
    }
    Cutoff cutoff;
    if (how.top_k && how.top_k < kVocab) {
      cutoff = cut(top, cutoff, static_cast<uint64_t>(how.top_k), [](int) { return uint64_t(1); });
      total = 0;
      for (int i = 0; i < kVocab; i++) total += cutoff.keeps(top - scores_[i], i) ? weights_[i] : 0;
    }
    const uint64_t needed = static_cast<uint64_t>((static_cast<unsigned __int128>(total) * how.top_p) >> kShareBits);
    if (needed < total) cutoff = cut(top, cutoff, needed, [this](int i) { return weights_[i]; });
    const auto kept = [&](int i) { return weights_[i] >= how.min_weight && cutoff.keeps(top - scores_[i], i); };
    total = 0;
    for (int i = 0; i < kVocab; i++) total += kept(i) ? weights_[i] : 0;
    const uint64_t target = static_cast<uint64_t>(
        (static_cast<unsigned __int128>(random_bits(how.seed, static_cast<uint64_t>(position))) * total) >> 64);
    uint64_t running = 0;
    for (int i = 0; i < kVocab; i++)
      if (kept(i) && (running += weights_[i]) > target) return i;
    return kVocab - 1;  // not reached: target < total
  }

  // The shortest run of tokens, in order of distance, whose mass reaches `needed`: buckets first, then inside one bucket.
  template <class Mass>
  Cutoff cut(int64_t top, const Cutoff& within, uint64_t needed, Mass mass) {
    const auto bucket_of = [](int64_t distance) { return std::min<int64_t>(distance >> kBucketShift, kBuckets - 1); };
    buckets_.assign(kBuckets, 0);
    for (int i = 0; i < kVocab; i++)
      if (within.keeps(top - scores_[i], i)) buckets_[bucket_of(top - scores_[i])] += mass(i);
    uint64_t running = 0;
    int64_t bucket = 0;
    while (bucket < kBuckets - 1 && running + buckets_[bucket] < needed) running += buckets_[bucket++];
    order_.clear();
    for (int i = 0; i < kVocab; i++)
      if (within.keeps(top - scores_[i], i) && bucket_of(top - scores_[i]) == bucket) order_.push_back(i);
    std::sort(order_.begin(), order_.end(), [this](int a, int b) { return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b; });
    for (const int32_t i : order_)
      if ((running += mass(i)) >= needed) return {top - scores_[i], i};
    return within;
  }

  void report(Entry& entry) {
    const int64_t top = *std::max_element(raw_.begin(), raw_.end());
    entry.distance = top - raw_[entry.token];
    entry.total = 0;
    for (int i = 0; i < kVocab; i++) entry.total += weight_of(top - raw_[i], kUnitRate);
    order_.resize(kVocab);
    for (int i = 0; i < kVocab; i++) order_[i] = i;
    const int count = std::min(request_.logprobs, kVocab);
    std::partial_sort(order_.begin(), order_.begin() + count, order_.end(), [this](int a, int b) { return raw_[a] != raw_[b] ? raw_[a] > raw_[b] : a < b; });
    entry.top_count = count;
    for (int i = 0; i < count; i++) {
      entry.top_tokens[i] = order_[i];
      entry.top_distances[i] = top - raw_[order_[i]];
    }
  }

  Request request_{};
  std::vector<int64_t> scores_, raw_;
  std::vector<uint64_t> weights_, buckets_;
  std::vector<int32_t> order_, history_;
  std::vector<bool> seen_;
  std::vector<int64_t> counts_;
};

}  // namespace monolane
