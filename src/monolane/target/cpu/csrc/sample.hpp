// The sampling stage, in integer arithmetic: the same as program/sample.py, so it chooses the same token. All workers of a lane run it together, and
// all lanes sample the same logits, so that every lane knows the token. Every worker
// has a share of the vocabulary, consecutive ids; the shares exchange what they need at hand-offs. Sums are of integers, and the drawn token is the
// one with the lowest (race time, id), so the result depends neither on the order of the work nor on the number of workers.
//
// It reads the logits of one row; the worker whose share has the chosen token writes the Entry. Fixed-point logits are
// logits in steps of 2^-20. The distance of a token is the highest fixed-point logit minus its fixed-point logit.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "integers.hpp"
#include "state.hpp"

namespace monolane {

// Bits of a number without its leading zeros.
inline int bit_width(uint64_t number) { return number ? 64 - __builtin_clzll(number) : 0; }

struct Stuck {};  // thrown where a hand-off fails because a worker is stuck

// The fixed-point logit: clamped to ±kLogitLimit, in steps of 2^-20, rounded to nearest even.
inline int32_t to_fixed(float logit) {
  const float limited = logit < -kLogitLimit ? -kLogitLimit : logit > kLogitLimit ? kLogitLimit : logit;
  return static_cast<int32_t>(std::nearbyint(limited * static_cast<float>(1 << kLogitBits)));
}

// weight_of() without a branch, so that the compiler vectorises loops over it.
inline uint64_t branchless_weight(int64_t distance, uint64_t rate) {
  const uint64_t exponent = static_cast<uint64_t>(std::min(distance, kDistanceLimit)) * rate;
  const uint64_t whole = exponent >> 36, power = power_of(exponent & ((uint64_t(1) << 36) - 1));
  return whole > kWeightBits ? 0 : power >> (whole & 63);
}

// Computes the weights of `count` fixed-point logits, 0 for fixed-point logits below `lowest`, and returns their sum.
inline uint64_t weigh(const int64_t* __restrict fixed_logits, uint64_t* __restrict weights, int count, int64_t top, int64_t lowest,
                      uint64_t rate) {
  uint64_t sum = 0;
  for (int i = 0; i < count; i++) {
    const uint64_t weight = branchless_weight(top - fixed_logits[i], rate);
    weights[i] = fixed_logits[i] >= lowest ? weight : 0;
    sum += weights[i];
  }
  return sum;
}

// Returns 0 where the race time of a token is certainly later than `time`, else 1. It is 0 for nearly all tokens, and it needs no table and no
// branch, so the compiler vectorises loops over it. The bound: noise_of() is log2 of at least 2x + 1, where x is the random bits without the lowest
// 24, so it is no less than the number of binary digits of x.
inline uint64_t may_arrive_by(uint64_t time, int64_t distance, uint64_t rate, uint64_t bits) {
  constexpr int kDoublingBits = 24;
  const uint64_t exponent = static_cast<uint64_t>(std::min(distance, kDistanceLimit)) * rate;
  const int64_t left = static_cast<int64_t>(time) - static_cast<int64_t>(exponent >> (kExponentBits - kTimeBits));
  const int64_t digits = std::min<int64_t>(left >> kTimeBits, 63) & 63;
  return uint64_t(left >= 0) & uint64_t(bits >> kDoublingBits >> digits == 0);
}

// The sum of the weights at temperature 1, before penalties. It takes two loops over 256 tokens at a time, because loops that mix elements of 4 and
// of 8 bytes are not vectorised.
inline uint64_t raw_weight(const float* logits, int count, int64_t top) {
  constexpr int kStretch = 256;
  int64_t fixed_logits[kStretch];
  uint64_t weights[kStretch], weight = 0;
  for (int start = 0; start < count; start += kStretch) {
    const int size = std::min(kStretch, count - start);
    for (int i = 0; i < size; i++) fixed_logits[i] = to_fixed(logits[start + i]);
    weight += weigh(fixed_logits, weights, size, top, INT64_MIN, kUnitRate);
  }
  return weight;
}

// The likeliest tokens of a share by the model's own fixed-point logits, before penalties: the highest fixed-point logit first and, of equal fixed-point logits, the lowest id first.
class Likeliest {
 public:
  // Finds the likeliest `wanted` of ids [first, last). The maximum of each stretch of 64 ids comes first: a stretch whose maximum is lower than the
  // `wanted`-th highest maximum has none of them.
  void find(const float* logits, int first, int last, int wanted) {
    count_ = 0;
    if (wanted == 0 || first == last) return;
    tops_.clear();
    for (int start = first; start < last; start += kStretch) {
      int32_t top = INT32_MIN;
      for (int id = start; id < std::min(last, start + kStretch); id++) top = std::max(top, to_fixed(logits[id]));
      tops_.push_back(top);
    }
    ordered_ = tops_;
    const size_t place = std::min<size_t>(wanted, ordered_.size()) - 1;
    std::nth_element(ordered_.begin(), ordered_.begin() + place, ordered_.end(), [](int a, int b) { return a > b; });
    for (size_t stretch = 0; stretch < tops_.size(); stretch++) {
      if (tops_[stretch] < ordered_[place]) continue;
      if (count_ == wanted && tops_[stretch] <= fixed_logits_[count_ - 1]) continue;
      const int start = first + static_cast<int>(stretch) * kStretch;
      for (int id = start; id < std::min(last, start + kStretch); id++) add(to_fixed(logits[id]), id, wanted);
    }
  }

  int count() const { return count_; }
  int32_t fixed_logit(int place) const { return fixed_logits_[place]; }
  int32_t id(int place) const { return ids_[place]; }

 private:
  static constexpr int kStretch = 64;

  // Inserts a token into the sorted list. Ids come in rising order, so a token goes behind those of equal fixed-point logit.
  void add(int32_t fixed_logit, int32_t id, int wanted) {
    if (count_ == wanted && fixed_logit <= fixed_logits_[count_ - 1]) return;
    int place = count_ < wanted ? count_++ : count_ - 1;
    for (; place > 0 && fixed_logits_[place - 1] < fixed_logit; place--) {
      fixed_logits_[place] = fixed_logits_[place - 1];
      ids_[place] = ids_[place - 1];
    }
    fixed_logits_[place] = fixed_logit;
    ids_[place] = id;
  }

  std::vector<int32_t> tops_, ordered_;
  int count_ = 0;
  int32_t fixed_logits_[kMaxLogprobs], ids_[kMaxLogprobs];
};

class Sampler {
 public:
  // `first`: the number of the lane's first worker.
  Sampler(int first, int workers, Handoff& handoff)
      : first_(first), handoff_(handoff), fixed_logits_(kVocab), weights_(kVocab), seen_(kVocab), counts_(kVocab) {
    const int ids = round_up(divide_up(kVocab, workers), kShareUnit);
    for (int w = 0; w < workers; w++) shares_.emplace_back(w, std::min(kVocab, w * ids), std::min(kVocab, (w + 1) * ids));
  }

  void begin(const Request& request) {
    request_ = request;
    for (Share& share : shares_) share.seen.clear();
    std::fill(seen_.begin(), seen_.end(), 0);
    std::fill(counts_.begin(), counts_.end(), 0);
    for (int64_t i = 0; i < request.token_count; i++) see(request.tokens[i]);
  }

  enum Outcome { kMine, kOthers, kNoNumbers };

  // Chooses the token at `position`; all workers call it. Returns kMine in the worker whose share has the token, after it has filled in the entry;
  // kOthers in all others; kNoNumbers in all workers where a logit is NaN.
  Outcome choose(int worker, int stage, const float* logits, int64_t position, Entry& entry) {
    Share& mine = shares_[worker];
    mine.stage = stage;
    take_logits(mine, logits);
    penalise(mine);
    measure(mine);
    hand_off(mine);
    const Common all = common();
    if (all.not_numbers) return kNoNumbers;
    if (request_.logprobs >= 0) collect_report(mine, logits, all.raw_top);
    const int32_t token = request_.sampling.greedy ? highest(mine, all.top) : draw(mine, all, position);
    if (request_.logprobs >= 0 && request_.sampling.greedy) hand_off(mine);  // a draw has had a hand-off since collect_report()
    if (token == kNone) return kOthers;
    entry.token = token;
    entry.top_count = 0;
    if (request_.logprobs >= 0) report(entry, logits, all.raw_top);
    see(token);
    counts_[token]++;
    return kMine;
  }

 private:
  static constexpr int kShareUnit = 64;  // a share is a multiple of 64 ids, so that no two workers write to one cache line
  static constexpr int kStretch = 64;    // ids that the race checks together
  static constexpr int kBucketBits = 11, kBuckets = 1 << kBucketBits;

  // What one worker has for itself, and what it publishes to the other workers. Published members are written before a hand-off, read after it, and
  // not written again before the next hand-off but one.
  struct alignas(128) Share {
    Share(int number, int first_id, int last_id) : worker(number), first(first_id), last(last_id), candidates(last - first) {}

    int worker, first, last;  // ids first to last - 1
    int stage = 0;
    std::vector<int32_t> seen;        // tokens of prompt and answer, each once
    std::vector<int32_t> candidates;  // ids among which the border of top-k or top-p is searched
    uint64_t spare[kBuckets];         // the second set of buckets of fill()
    // Published:
    int not_numbers = 0;
    int32_t raw_top = 0;
    int64_t top = 0, lowest = 0;
    uint64_t raw_weight = 0, weight = 0;
    uint64_t time = 0;  // the earliest race time of its tokens
    Likeliest likeliest;
    uint64_t buckets[kBuckets];
    uint64_t merged[kBuckets];  // the sums over all workers of those buckets that this worker adds up
  };

  // Over all shares.
  struct Common {
    int not_numbers = 0;
    int32_t raw_top = INT32_MIN;
    int64_t top = INT64_MIN, lowest = INT64_MAX;
  };

  // A hand-off within the stage.
  void hand_off(const Share& mine) {
    if (!handoff_.pass(first_ + mine.worker, mine.stage)) throw Stuck();
  }

  Share& share_of(int32_t token) { return shares_[token / shares_[0].last]; }

  void see(int32_t token) {
    if (!seen_[token]) share_of(token).seen.push_back(token);
    seen_[token] = 1;
  }

  void take_logits(Share& mine, const float* logits) {
    int64_t* fixed_logits = fixed_logits_.data();
    int not_numbers = 0;
    int32_t top = INT32_MIN;
    for (int i = mine.first; i < mine.last; i++) {
      const int32_t fixed_logit = to_fixed(logits[i]);
      not_numbers |= logits[i] != logits[i];
      top = std::max(top, fixed_logit);
      fixed_logits[i] = fixed_logit;
    }
    mine.not_numbers = not_numbers;
    mine.raw_top = top;
  }

  void penalise(Share& mine) {
    const Sampling& params = request_.sampling;
    constexpr int64_t kOne = int64_t(1) << kFactorBits;
    if (params.repeat_up != kOne || params.repeat_down != kOne || params.presence || params.frequency)
      for (const int32_t token : mine.seen) fixed_logits_[token] = penalised(fixed_logits_[token], counts_[token], params);
    for (int64_t i = 0; i < params.bias_count; i++)
      if (mine.first <= params.bias[i].token && params.bias[i].token < mine.last) fixed_logits_[params.bias[i].token] += params.bias[i].value;
  }

  void measure(Share& mine) const {
    int64_t top = INT64_MIN, lowest = INT64_MAX;
    for (int i = mine.first; i < mine.last; i++) {
      top = std::max(top, fixed_logits_[i]);
      lowest = std::min(lowest, fixed_logits_[i]);
    }
    mine.top = top;
    mine.lowest = lowest;
  }

  Common common() const {
    Common all;
    for (const Share& share : shares_) {
      all.not_numbers |= share.not_numbers;
      all.raw_top = std::max(all.raw_top, share.raw_top);
      all.top = std::max(all.top, share.top);
      all.lowest = std::min(all.lowest, share.lowest);
    }
    return all;
  }

  // Greedy: the lowest id that has the highest fixed-point logit, or kNone where another share has it.
  int32_t highest(const Share& mine, int64_t top) const {
    for (const Share& share : shares_)
      if (share.worker < mine.worker && share.top == top) return kNone;
    if (mine.top != top) return kNone;
    return static_cast<int32_t>(std::find(fixed_logits_.begin() + mine.first, fixed_logits_.begin() + mine.last, top) - fixed_logits_.begin());
  }

  // Draws a token; returns kNone where another share has it.
  int32_t draw(Share& mine, const Common& all, int64_t position) {
    const Sampling& params = request_.sampling;
    int64_t lowest = INT64_MIN;  // the lowest fixed-point logit that is kept
    if (params.top_k > 0 && params.top_k < kVocab) lowest = top_k_border(mine, all);
    if (params.top_p < uint64_t(1) << kShareBits) lowest = top_p_border(mine, all, lowest);
    lowest = std::max(lowest, min_p_bound(all.top));
    const int32_t token = race(mine, all.top, lowest, random_bits(params.seed, static_cast<uint64_t>(position)));
    hand_off(mine);
    const auto earlier = [](const Share& a, const Share& b) { return a.time < b.time; };
    const auto winner = std::min_element(shares_.begin(), shares_.end(), earlier);  // of equal times the first share: its ids are lower
    return winner->worker == mine.worker ? token : kNone;
  }

  // The token of this share with the earliest race time, among those whose fixed-point logit is at least `lowest` and whose weight min-p allows; kNone where all
  // of them are too late to win. A stretch of 64 ids is skipped where none is kept, or where none can be earlier than the earliest so far.
  int32_t race(Share& mine, int64_t top, int64_t lowest, uint64_t state) const {
    const Sampling& params = request_.sampling;
    const int64_t* fixed_logits = fixed_logits_.data();
    int32_t first = kNone;
    mine.time = kLargestTime;
    for (int start = mine.first; start < mine.last; start += kStretch) {
      const int end = std::min(mine.last, start + kStretch);
      int64_t highest = INT64_MIN;
      for (int id = start; id < end; id++) highest = std::max(highest, fixed_logits[id]);
      if (highest < lowest) continue;
      uint64_t any = 0;
      for (int id = start; id < end; id++) any |= may_arrive_by(mine.time, top - fixed_logits[id], params.rate, mixed_bits(state, id));
      if (!any) continue;
      for (int id = start; id < end; id++) {
        const int64_t distance = top - fixed_logits[id];
        const uint64_t bits = mixed_bits(state, id);
        if (fixed_logits[id] < lowest || !may_arrive_by(mine.time, distance, params.rate, bits)) continue;
        if (weight_of(distance, params.rate) < params.min_weight) continue;
        const uint64_t time = race_time(distance, params.rate, noise_of(bits, kLogarithms, kStretches));
        if (time >= mine.time) continue;
        mine.time = time;
        first = id;
      }
    }
    return first;
  }

  // A fixed-point logit below which every token is lighter than min-p allows. Some tokens above it are too light as well, because the bound is only exact to a
  // factor of two in weight; race() checks them one by one.
  int64_t min_p_bound(int64_t top) const {
    const Sampling& params = request_.sampling;
    if (!params.min_weight || !params.rate) return INT64_MIN;
    const uint64_t halvings = kWeightBits + 2 - bit_width(params.min_weight);  // after so many halvings every weight is too light
    const int64_t distance = static_cast<int64_t>((halvings << kExponentBits) / params.rate);
    return distance < kDistanceLimit ? top - distance : INT64_MIN;
  }

  // The lowest fixed-point logit that top-k keeps.
  int64_t top_k_border(Share& mine, const Common& all) {
    std::iota(mine.candidates.begin(), mine.candidates.end(), mine.first);
    return border<false>(mine, all, mine.last - mine.first, static_cast<uint64_t>(request_.sampling.top_k));
  }

  // The lowest fixed-point logit that top-p keeps, of the tokens whose fixed-point logit is at least `lowest`.
  int64_t top_p_border(Share& mine, const Common& all, int64_t lowest) {
    const Sampling& params = request_.sampling;
    uint64_t* weights = weights_.data();
    mine.weight = weigh(fixed_logits_.data() + mine.first, weights + mine.first, mine.last - mine.first, all.top, lowest, params.rate);
    hand_off(mine);
    uint64_t total = 0;
    for (const Share& share : shares_) total += share.weight;
    const uint64_t needed = static_cast<uint64_t>((static_cast<unsigned __int128>(total) * params.top_p) >> kShareBits);
    // All tokens lighter than `least` together weigh less than what top-p drops, so the border lies before them and they are no candidates. The
    // division by two allows for weights that, because of rounding, are not in the order of distances.
    const uint64_t least = std::max<uint64_t>(1, (total - needed) / kVocab / 2);
    int32_t* candidates = mine.candidates.data();
    int count = 0;
    for (int id = mine.first; id < mine.last; id++) {
      candidates[count] = id;
      count += weights[id] >= least;
    }
    return border<true>(mine, all, count, needed);
  }

  // The fixed-point logit at which the number of the candidates, or their weight, counted from the highest fixed-point logit down, reaches `needed`. Each round finds 11 more
  // bits of its distance, the highest bits first: a histogram over all workers tells the bucket, and the tokens of that bucket are the next
  // candidates.
  template <bool kByWeight>
  int64_t border(Share& mine, const Common& all, int count, uint64_t needed) {
    int64_t distance = 0;
    uint64_t before = 0;
    for (int shift = bit_width(static_cast<uint64_t>(all.top - all.lowest)); shift > 0;) {
      shift = std::max(0, shift - kBucketBits);
      fill<kByWeight>(mine, count, all.top - distance, shift);
      const int64_t bucket = border_bucket(mine, needed, before);
      count = keep_bucket(mine, count, all.top - distance, shift, bucket);
      distance += bucket << shift;
    }
    return all.top - distance;
  }

  // Counts the candidates, or adds up their weights, in each bucket. Every second candidate goes to a second set of buckets, so that additions to the
  // same bucket, frequent in a flat distribution, do not all depend on each other.
  template <bool kByWeight>
  void fill(Share& mine, int count, int64_t origin, int shift) const {
    const int64_t* fixed_logits = fixed_logits_.data();
    const uint64_t* weights = weights_.data();
    const int32_t* candidates = mine.candidates.data();
    std::fill_n(mine.buckets, kBuckets, 0);
    std::fill_n(mine.spare, kBuckets, 0);
    const auto add = [=](uint64_t* to, int32_t id) { to[(origin - fixed_logits[id]) >> shift] += kByWeight ? weights[id] : 1; };
    for (int i = 0; i + 1 < count; i += 2) {
      add(mine.buckets, candidates[i]);
      add(mine.spare, candidates[i + 1]);
    }
    if (count % 2) add(mine.buckets, candidates[count - 1]);
    for (int bucket = 0; bucket < kBuckets; bucket++) mine.buckets[bucket] += mine.spare[bucket];
  }

  // Keeps the candidates that lie in `bucket` and returns their number.
  int keep_bucket(Share& mine, int count, int64_t origin, int shift, int64_t bucket) const {
    const int64_t* fixed_logits = fixed_logits_.data();
    int32_t* candidates = mine.candidates.data();
    int left = 0;
    for (int i = 0; i < count; i++) {
      const int32_t id = candidates[i];
      candidates[left] = id;
      left += (origin - fixed_logits[id]) >> shift == bucket;
    }
    return left;
  }

  // Adds up the buckets of all workers, each worker a part of them, and returns the bucket in which the running sum reaches `needed`. `before`: the
  // running sum before this bucket, updated.
  int border_bucket(Share& mine, uint64_t needed, uint64_t& before) {
    hand_off(mine);
    const int part = divide_up(kBuckets, static_cast<int>(shares_.size()));
    const int first = std::min(kBuckets, mine.worker * part), last = std::min(kBuckets, first + part);
    std::copy(shares_[0].buckets + first, shares_[0].buckets + last, mine.merged + first);
    for (size_t w = 1; w < shares_.size(); w++)
      for (int bucket = first; bucket < last; bucket++) mine.merged[bucket] += shares_[w].buckets[bucket];
    hand_off(mine);
    for (int bucket = 0;; bucket++) {
      const uint64_t weight = shares_[bucket / part].merged[bucket];
      if (bucket == kBuckets - 1 || before + weight >= needed) return bucket;
      before += weight;
    }
  }

  // Logprobs: this share's sum of weights at temperature 1 and its likeliest tokens.
  void collect_report(Share& mine, const float* logits, int32_t raw_top) const {
    mine.raw_weight = raw_weight(logits + mine.first, mine.last - mine.first, raw_top);
    mine.likeliest.find(logits, mine.first, mine.last, std::min(request_.logprobs, kVocab));
  }

  // Logprobs: writes the sum over all shares and the likeliest tokens of all shares, merged in order, to the entry.
  void report(Entry& entry, const float* logits, int32_t raw_top) const {
    entry.distance = int64_t(raw_top) - to_fixed(logits[entry.token]);
    entry.total = 0;
    for (const Share& share : shares_) entry.total += share.raw_weight;
    const int wanted = std::min(request_.logprobs, kVocab);
    std::vector<int> places(shares_.size(), 0);
    while (entry.top_count < wanted) {
      const Share* best = nullptr;  // of equal fixed-point logits the first share: its ids are lower
      for (const Share& share : shares_) {
        if (places[share.worker] == share.likeliest.count()) continue;
        const int32_t fixed_logit = share.likeliest.fixed_logit(places[share.worker]);
        if (!best || fixed_logit > best->likeliest.fixed_logit(places[best->worker])) best = &share;
      }
      const int place = places[best->worker]++;
      entry.top_tokens[entry.top_count] = best->likeliest.id(place);
      entry.top_distances[entry.top_count++] = int64_t(raw_top) - best->likeliest.fixed_logit(place);
    }
  }

  const int first_;
  Handoff& handoff_;
  Request request_{};
  std::vector<Share> shares_;
  std::vector<int64_t> fixed_logits_;    // [vocabulary]: fixed-point logits with penalties and biases
  std::vector<uint64_t> weights_;  // [vocabulary]: for top-p
  std::vector<uint8_t> seen_;      // [vocabulary]: whether the token occurs in the prompt or the answer
  std::vector<int64_t> counts_;    // [vocabulary]: how often the token occurs in the answer
};

}  // namespace monolane
