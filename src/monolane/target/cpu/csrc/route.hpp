// The choice of experts, as program/route.py defines it, and the rows of a pass grouped by the experts that they use. Every worker makes the choice for
// itself, and all make the same one, bit for bit.
#pragma once
#include "state.hpp"

namespace monolane {

struct Choice {  // of one row of the pass, in order of the experts' indexes
  int experts[kMaxChosen];
  float weights[kMaxChosen];
};

// Those with the highest logits; of equal ones the first.
inline void choose(const Routing& routing, const float* logits, Choice& out) {
  bool taken[kMaxExperts] = {};
  float top = 0.0f;
  for (int n = 0; n < routing.chosen; n++) {
    int best = kNone;
    for (int e = 0; e < routing.count; e++)
      if (!taken[e] && (best == kNone || logits[e] > logits[best])) best = e;
    taken[best] = true;
    if (n == 0) top = logits[best];
  }
  const bool sigmoid = routing.scoring == Scoring::kSigmoid, over_all = routing.scoring == Scoring::kSoftmax;
  float total = 0.0f;
  for (int e = 0, n = 0; e < routing.count; e++) {
    if (!taken[e] && !over_all) continue;
    const float power = sigmoid ? 1.0f / (1.0f + exponential(-logits[e])) : exponential(logits[e] - top);
    total += power;
    if (taken[e]) out.experts[n] = e, out.weights[n++] = power;
  }
  for (int n = 0; n < routing.chosen && !sigmoid; n++) out.weights[n] /= total;
}

// The rows of a pass that use one expert of a matrix.
struct Group {
  int expert, count;
  int rows[kPassRows];
  int places[kPassRows];     // of the expert among those that a row has chosen
  float weights[kPassRows];  // of the expert
};

// All groups of a stage, in order of the experts' indexes. A matrix without experts has one group, of all rows from `first` on.
class Groups {
 public:
  Groups(Lane& lane, const Stage& stage, const Pass& pass, int first) : routing_(stage.routing), first_(first), rows_(pass.rows) {
    for (int p = first; p < rows_ && has_experts(); p++) choose(routing_, lane.row(routing_.reads, p) + routing_.first, choices_[p]);
  }

  // Returns false where there is no other group.
  bool next(Group& group) {
    group.expert = kMaxExperts, group.count = 0;
    for (int p = first_; p < rows_; p++) group.expert = std::min(group.expert, expert_of(p));
    for (int p = first_; p < rows_; p++) {
      if (expert_of(p) != group.expert || group.expert == kMaxExperts) continue;
      group.rows[group.count] = p, group.places[group.count] = next_[p];
      group.weights[group.count++] = has_experts() ? choices_[p].weights[next_[p]] : 1.0f;
    }
    for (int i = 0; i < group.count; i++) next_[group.rows[i]]++;
    return group.count > 0;
  }

 private:
  bool has_experts() const { return routing_.reads != kNone; }
  // The next expert that a row has chosen; kMaxExperts where there is none.
  int expert_of(int p) const { return next_[p] == routing_.chosen ? kMaxExperts : has_experts() ? choices_[p].experts[next_[p]] : 0; }

  const Routing routing_;
  const int first_, rows_;
  Choice choices_[kPassRows];
  int next_[kPassRows] = {};
};

}  // namespace monolane
