// Sampling in integers: the same arithmetic as program/sample.py, so the same token. What is summed is integers, and
// what is compared is (distance, id), so nothing depends on the order of the work, or on who does it: every worker has a
// share of the vocabulary, consecutive ids, and what the shares must know of each other crosses at hand-offs.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "integers.hpp"
#include "state.hpp"

namespace monolane {

struct Stuck {};  // thrown where a hand-off fails: the workers have lost each other

// The logit in steps of 2^-20.
inline int32_t score_of(float logit) {
  const float limited = logit < -kScoreLimit ? -kScoreLimit : logit > kScoreLimit ? kScoreLimit : logit;
  return static_cast<int32_t>(std::nearbyint(limited * static_cast<float>(1 << kScoreBits)));
}

// weight_of without a branch, so that loops over it become vectors.
inline uint64_t branchless_weight(int64_t distance, uint64_t rate) {
  const uint64_t exponent = static_cast<uint64_t>(std::min(distance, kDistanceLimit)) * rate;
  const uint64_t whole = exponent >> 36, power = power_of(exponent & ((uint64_t(1) << 36) - 1));
  return whole > kWeightBits ? 0 : power >> (whole & 63);
}

// The weights of some scores; their sum.
inline uint64_t weigh(const int64_t* __restrict scores, uint64_t* __restrict weights, int count, int64_t top, uint64_t rate) {
  uint64_t mass = 0;
  for (int i = 0; i < count; i++) {
    weights[i] = branchless_weight(top - scores[i], rate);
    mass += weights[i];
  }
  return mass;
}

// The sum of the weights at temperature 1, before penalties; in two steps, because vectors of 4 and of 8 bytes do not mix.
inline uint64_t raw_mass(const float* logits, int count, int64_t top) {
  constexpr int kStretch = 256;
  int64_t scores[kStretch];
  uint64_t weights[kStretch], mass = 0;
  for (int start = 0; start < count; start += kStretch) {
    const int size = std::min(kStretch, count - start);
    for (int i = 0; i < size; i++) scores[i] = score_of(logits[start + i]);
    mass += weigh(scores, weights, size, top, kUnitRate);
  }
  return mass;
}

// The likeliest tokens of a share by the model's own scores, in the order (score falls, id rises).
class Likeliest {
 public:
  // The maxima of stretches tell where to look: those below the wanted-th highest of them have nothing to offer.
  void find(const float* logits, int first, int last, int wanted) {
    count_ = 0;
    if (wanted == 0 || first == last) return;
    tops_.clear();
    for (int start = first; start < last; start += kStretch) {
      int32_t top = INT32_MIN;
      for (int id = start; id < std::min(last, start + kStretch); id++) top = std::max(top, score_of(logits[id]));
      tops_.push_back(top);
    }
    ordered_ = tops_;
    const size_t place = std::min<size_t>(wanted, ordered_.size()) - 1;
    std::nth_element(ordered_.begin(), ordered_.begin() + place, ordered_.end(), std::greater<>());
    for (size_t stretch = 0; stretch < tops_.size(); stretch++) {
      if (tops_[stretch] < ordered_[place]) continue;
      if (count_ == wanted && tops_[stretch] <= scores_[count_ - 1]) continue;
      const int start = first + static_cast<int>(stretch) * kStretch;
      for (int id = start; id < std::min(last, start + kStretch); id++) add(score_of(logits[id]), id, wanted);
    }
  }

  int count() const { return count_; }
  int32_t score(int place) const { return scores_[place]; }
  int32_t id(int place) const { return ids_[place]; }

 private:
  static constexpr int kStretch = 64;

  // Ids come in rising order, so that a score which is no higher goes behind its equals.
  void add(int32_t score, int32_t id, int wanted) {
    if (count_ == wanted && score <= scores_[count_ - 1]) return;
    int place = count_ < wanted ? count_++ : count_ - 1;
    for (; place > 0 && scores_[place - 1] < score; place--) {
      scores_[place] = scores_[place - 1];
      ids_[place] = ids_[place - 1];
    }
    scores_[place] = score;
    ids_[place] = id;
  }

  std::vector<int32_t> tops_, ordered_;
  int count_ = 0;
  int32_t scores_[kMaxLogprobs], ids_[kMaxLogprobs];
};

class Sampler {
 public:
  Sampler(int workers, Handoff& handoff) : handoff_(handoff), scores_(kVocab), weights_(kVocab), seen_(kVocab), counts_(kVocab) {
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

  // By all workers at once. The one that has the token in its share fills the entry.
  Outcome choose(int worker, int stage, const float* logits, int64_t position, Entry& entry) {
    Share& mine = shares_[worker];
    mine.stage = stage;
    take_scores(mine, logits);
    penalise(mine);
    measure(mine);
    meet(mine);
    const Common all = common();
    if (all.not_numbers) return kNoNumbers;
    if (request_.logprobs >= 0) look_for_report(mine, logits, all.raw_top);
    const int32_t token = request_.sampling.greedy ? highest(mine, all.top) : draw(mine, all, position);
    if (request_.logprobs >= 0 && request_.sampling.greedy) meet(mine);  // a draw has met on its way
    if (token == kNone) return kOthers;
    entry.token = token;
    entry.top_count = 0;
    if (request_.logprobs >= 0) report(entry, logits, all.raw_top);
    see(token);
    counts_[token]++;
    return kMine;
  }

 private:
  static constexpr int kShareUnit = 64;  // ids: no two workers write to one cache line
  static constexpr int kStretch = 64;
  static constexpr int kBucketBits = 11, kBuckets = 1 << kBucketBits;

  // What one worker has for itself, and what it tells the others: written before a hand-off, read after it, and not
  // written again before the next but one.
  struct alignas(128) Share {
    Share(int number, int first_id, int last_id) : worker(number), first(first_id), last(last_id), candidates(last - first) {}

    int worker, first, last;  // ids first .. last - 1
    int stage = 0;
    std::vector<int32_t> seen;        // tokens of prompt and answer, each once
    std::vector<int32_t> candidates;  // for the border of top-k or top-p, in order of id
    uint64_t spare[kBuckets];         // see fill
    // Told to the others.
    int not_numbers = 0;
    int32_t raw_top = 0;
    int64_t top = 0, lowest = 0;
    uint64_t raw_mass = 0, mass = 0, kept_mass = 0;
    Likeliest likeliest;
    int64_t ties[2] = {};  // of top-k, of top-p
    uint64_t buckets[kBuckets];
    uint64_t merged[kBuckets];  // its part of the sum of all workers' buckets
  };

  struct Common {
    int not_numbers = 0;
    int32_t raw_top = INT32_MIN;
    int64_t top = INT64_MIN, lowest = INT64_MAX;
  };

  void meet(const Share& mine) {
    if (!handoff_.pass(mine.worker, mine.stage)) throw Stuck();
  }

  Share& share_of(int32_t token) { return shares_[token / shares_[0].last]; }

  void see(int32_t token) {
    if (!seen_[token]) share_of(token).seen.push_back(token);
    seen_[token] = 1;
  }

  void take_scores(Share& mine, const float* logits) {
    int64_t* scores = scores_.data();
    int not_numbers = 0;
    int32_t top = INT32_MIN;
    for (int i = mine.first; i < mine.last; i++) {
      const int32_t score = score_of(logits[i]);
      not_numbers |= logits[i] != logits[i];
      top = std::max(top, score);
      scores[i] = score;
    }
    mine.not_numbers = not_numbers;
    mine.raw_top = top;
  }

  void penalise(Share& mine) {
    const Sampling& how = request_.sampling;
    constexpr int64_t kOne = int64_t(1) << kFactorBits;
    if (how.repeat_up != kOne || how.repeat_down != kOne || how.presence || how.frequency)
      for (const int32_t token : mine.seen) scores_[token] = penalised(scores_[token], counts_[token], how);
    for (int64_t i = 0; i < how.bias_count; i++)
      if (mine.first <= how.bias[i].token && how.bias[i].token < mine.last) scores_[how.bias[i].token] += how.bias[i].value;
  }

  void measure(Share& mine) const {
    int64_t top = INT64_MIN, lowest = INT64_MAX;
    for (int i = mine.first; i < mine.last; i++) {
      top = std::max(top, scores_[i]);
      lowest = std::min(lowest, scores_[i]);
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

  // The lowest id that has the highest score, where it is in this share.
  int32_t highest(const Share& mine, int64_t top) const {
    for (const Share& share : shares_)
      if (share.worker < mine.worker && share.top == top) return kNone;
    if (mine.top != top) return kNone;
    return static_cast<int32_t>(std::find(scores_.begin() + mine.first, scores_.begin() + mine.last, top) - scores_.begin());
  }

  // A token where it is in this share. Tokens that are not kept lose their weight on the way.
  int32_t draw(Share& mine, const Common& all, int64_t position) {
    const Sampling& how = request_.sampling;
    mine.mass = weigh(scores_.data() + mine.first, weights_.data() + mine.first, mine.last - mine.first, all.top, how.rate);
    if (how.top_k && how.top_k < kVocab) {
      narrow<false>(mine, all, 0, static_cast<uint64_t>(how.top_k));
      mine.mass = drop_lighter(mine, 0);
    }
    meet(mine);
    uint64_t total = 0;
    for (const Share& share : shares_) total += share.mass;
    const uint64_t needed = static_cast<uint64_t>((static_cast<unsigned __int128>(total) * how.top_p) >> kShareBits);
    // Tokens below this weight, and those behind them, have together less than what may be left away: the border is before
    // them. The half is for weights that, by a rounding, are not in the order of distances.
    if (needed < total) narrow<true>(mine, all, std::max<uint64_t>(1, (total - needed) / kVocab / 2), needed);
    mine.kept_mass = drop_lighter(mine, how.min_weight);
    meet(mine);
    uint64_t before = 0;
    total = 0;
    for (const Share& share : shares_) {
      total += share.kept_mass;
      if (share.worker < mine.worker) before += share.kept_mass;
    }
    const uint64_t target = static_cast<uint64_t>(
        (static_cast<unsigned __int128>(random_bits(how.seed, static_cast<uint64_t>(position))) * total) >> 64);
    if (target < before || target - before >= mine.kept_mass) return kNone;
    return walk(mine, target - before);
  }

  // Returns the mass of those that are left.
  uint64_t drop_lighter(const Share& mine, uint64_t least) {
    uint64_t* weights = weights_.data();
    uint64_t mass = 0;
    for (int id = mine.first; id < mine.last; id++) {
      weights[id] = weights[id] >= least ? weights[id] : 0;
      mass += weights[id];
    }
    return mass;
  }

  // The first id whose running sum exceeds the target, which is below the share's sum.
  int32_t walk(const Share& mine, uint64_t target) const {
    const uint64_t* weights = weights_.data();
    int id = mine.first;
    uint64_t running = 0;
    for (;; id += kStretch) {
      uint64_t mass = 0;
      for (int i = id; i < std::min(mine.last, id + kStretch); i++) mass += weights[i];
      if (running + mass > target) break;
      running += mass;
    }
    while ((running += weights[id]) <= target) id++;
    return id;
  }

  // Keep the shortest run of tokens, in the order (distance rises, id rises), whose number or weight reaches `needed`: the
  // border's distance digit by digit, from the highest, and among equals by id. None below `least` is at the border.
  template <bool kByWeight>
  void narrow(Share& mine, const Common& all, uint64_t least, uint64_t needed) {
    const int64_t* scores = scores_.data();
    uint64_t* weights = weights_.data();
    int32_t* candidates = mine.candidates.data();
    int count = 0;
    for (int id = mine.first; id < mine.last; id++) {
      candidates[count] = id;
      count += weights[id] >= least;
    }
    int64_t border = 0;
    uint64_t before = 0;
    for (int shift = std::bit_width(static_cast<uint64_t>(all.top - all.lowest)); shift > 0;) {
      shift = std::max(0, shift - kBucketBits);
      fill<kByWeight>(mine, count, all.top - border, shift);
      const int64_t bucket = border_bucket(mine, needed, before);
      count = keep_bucket(mine, count, all.top - border, shift, bucket);
      border += bucket << shift;
    }
    // All candidates that are left are equally far away, and weigh the same.
    const uint64_t each = kByWeight ? weight_of(border, request_.sampling.rate) : 1;
    mine.ties[kByWeight] = count;
    meet(mine);
    int64_t kept = std::max<int64_t>(1, static_cast<int64_t>((needed - before + each - 1) / each));
    for (int w = 0; w < mine.worker; w++) kept -= shares_[w].ties[kByWeight];
    const int64_t lowest = all.top - border;
    for (int id = mine.first; id < mine.last; id++) weights[id] = scores[id] >= lowest ? weights[id] : 0;
    for (int64_t i = std::max<int64_t>(0, kept); i < count; i++) weights[candidates[i]] = 0;
  }

  // The candidates' number or weight in each bucket. Every other one goes to a second set of buckets, so that additions to
  // one bucket, as in a flat distribution, do not all wait for each other.
  template <bool kByWeight>
  void fill(Share& mine, int count, int64_t origin, int shift) const {
    const int64_t* scores = scores_.data();
    const uint64_t* weights = weights_.data();
    const int32_t* candidates = mine.candidates.data();
    std::fill_n(mine.buckets, kBuckets, 0);
    std::fill_n(mine.spare, kBuckets, 0);
    const auto add = [=](uint64_t* to, int32_t id) { to[(origin - scores[id]) >> shift] += kByWeight ? weights[id] : 1; };
    for (int i = 0; i + 1 < count; i += 2) {
      add(mine.buckets, candidates[i]);
      add(mine.spare, candidates[i + 1]);
    }
    if (count % 2) add(mine.buckets, candidates[count - 1]);
    for (int bucket = 0; bucket < kBuckets; bucket++) mine.buckets[bucket] += mine.spare[bucket];
  }

  int keep_bucket(Share& mine, int count, int64_t origin, int shift, int64_t bucket) const {
    const int64_t* scores = scores_.data();
    int32_t* candidates = mine.candidates.data();
    int left = 0;
    for (int i = 0; i < count; i++) {
      const int32_t id = candidates[i];
      candidates[left] = id;
      left += (origin - scores[id]) >> shift == bucket;
    }
    return left;
  }

  // The bucket in which the masses of all workers reach what is needed; `before` grows by the buckets before it.
  int border_bucket(Share& mine, uint64_t needed, uint64_t& before) {
    meet(mine);
    const int part = divide_up(kBuckets, static_cast<int>(shares_.size()));
    const int first = std::min(kBuckets, mine.worker * part), last = std::min(kBuckets, first + part);
    std::copy(shares_[0].buckets + first, shares_[0].buckets + last, mine.merged + first);
    for (size_t w = 1; w < shares_.size(); w++)
      for (int bucket = first; bucket < last; bucket++) mine.merged[bucket] += shares_[w].buckets[bucket];
    meet(mine);
    for (int bucket = 0;; bucket++) {
      const uint64_t mass = shares_[bucket / part].merged[bucket];
      if (bucket == kBuckets - 1 || before + mass >= needed) return bucket;
      before += mass;
    }
  }

  void look_for_report(Share& mine, const float* logits, int32_t raw_top) const {
    mine.raw_mass = raw_mass(logits + mine.first, mine.last - mine.first, raw_top);
    mine.likeliest.find(logits, mine.first, mine.last, std::min(request_.logprobs, kVocab));
  }

  void report(Entry& entry, const float* logits, int32_t raw_top) const {
    entry.distance = int64_t(raw_top) - score_of(logits[entry.token]);
    entry.total = 0;
    for (const Share& share : shares_) entry.total += share.raw_mass;
    const int wanted = std::min(request_.logprobs, kVocab);
    std::vector<int> places(shares_.size(), 0);
    while (entry.top_count < wanted) {
      const Share* best = nullptr;  // of equals the first: its ids are lower
      for (const Share& share : shares_) {
        if (places[share.worker] == share.likeliest.count()) continue;
        const int32_t score = share.likeliest.score(places[share.worker]);
        if (!best || score > best->likeliest.score(places[best->worker])) best = &share;
      }
      const int place = places[best->worker]++;
      entry.top_tokens[entry.top_count] = best->likeliest.id(place);
      entry.top_distances[entry.top_count++] = int64_t(raw_top) - best->likeliest.score(place);
    }
  }

  Handoff& handoff_;
  Request request_{};
  std::vector<Share> shares_;
  std::vector<int64_t> scores_;
  std::vector<uint64_t> weights_;
  std::vector<uint8_t> seen_;
  std::vector<int64_t> counts_;
};

}  // namespace monolane
