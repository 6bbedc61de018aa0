// What crosses lanes: the sums of residual projections, and the stage that combines the lanes' residual streams before the head. A worker writes its
// rows of its lane's output to the mailbox, and needs the same rows of the other lanes: those of the workers of the same rank, because all lanes divide
// their rows alike. Sums are in the order of the lanes.
#pragma once
#include "prepare.hpp"

namespace monolane {

// Adds to the residual stream what the stage's exchange says, for the rows of the matrix that the worker owns. Returns false when a worker is stuck.
inline bool add_outputs(Worker& worker, int s, const Pass& pass) {
  const Stage& stage = kStages[s];
  const Exchange& exchange = kStageExchanges[s];
  Lane& lane = worker.lane;
  if (exchange.source != kNone && !worker.receive(exchange.source, s)) return false;
  const bool is_now = exchange.source == s;
  const int source = exchange.source == kNone ? kNone : kStageExchanges[exchange.source].slot;
  const Segment& segment = lane.segment(worker.rank, stage.projection);
  const int first = static_cast<int>(segment.first_tile) * kTileRows;
  const int last = std::min(stage.rows, first + static_cast<int>(segment.tiles) * kTileRows);
  for (int p = 0; p < pass.rows; p++) {
    const float* residual = lane.row(stage.residual, p);
    const float* own = lane.mailbox.output(pass, exchange.slot, lane.index, p);
    float* out = lane.row(stage.writes, p);
    for (int r = first; r < last; r++) {
      float sum = is_now ? lane.mailbox.output(pass, source, 0, p)[r] : exchange.own * own[r];
      if (source != kNone)
        for (int other = is_now; other < kLanes; other++)
          if (is_now || other != lane.index) sum += lane.mailbox.output(pass, source, other, p)[r];
      out[r] = residual[r] + sum;
    }
  }
  return true;
}

// The elements of a residual stream that the worker combines.
inline std::pair<int, int> combined_share(const Worker& worker) {
  const int share = divide_up(kHidden, worker.lane.setup.workers);
  return {std::min(kHidden, worker.rank * share), std::min(kHidden, (worker.rank + 1) * share)};
}

// Writes the worker's share of its lane's residual stream, normed where the stage has a norm, to the mailbox.
inline void offer_stream(Worker& worker, int s, const Pass& pass) {
  const Stage& stage = kStages[s];
  Lane& lane = worker.lane;
  const auto [first, last] = combined_share(worker);
  for (int p = pass.logits_from; p < pass.rows; p++) {
    const float* in = lane.row(stage.reads, p);
    const float scale = stage.norm == kNone ? 1.0f : inverse_rms(in, kHidden, stage.eps);
    float* out = lane.mailbox.output(pass, kStageExchanges[s].slot, lane.index, p);
    for (int k = first; k < last; k++) out[k] = stage.norm == kNone ? in[k] : in[k] * scale * lane.constants[stage.norm + k];
  }
}

// Joins the worker's share of all lanes' streams. Returns false when a worker is stuck.
inline bool join_streams(Worker& worker, int s, const Pass& pass) {
  if (!worker.receive(s, s)) return false;
  const Stage& stage = kStages[s];
  Lane& lane = worker.lane;
  const int slot = kStageExchanges[s].slot;
  const auto [first, last] = combined_share(worker);
  for (int p = pass.logits_from; p < pass.rows; p++) {
    float* out = lane.row(stage.writes, p);
    for (int k = first; k < last; k++) {
      if (kJoining == Joining::kConcat) {
        for (int other = 0; other < kLanes; other++) out[other * kHidden + k] = lane.mailbox.output(pass, slot, other, p)[k];
        continue;
      }
      float sum = lane.mailbox.output(pass, slot, 0, p)[k];
      for (int other = 1; other < kLanes; other++) sum += lane.mailbox.output(pass, slot, other, p)[k];
      out[k] = kJoining == Joining::kMean ? sum / static_cast<float>(kLanes) : sum;
    }
  }
  return true;
}

// Waits until all workers of all other lanes have written their logits.
inline bool receive_logits(Worker& worker, int head, int stage) {
  for (int other = 0; other < kLanes * worker.lane.setup.workers; other++)
    if (other / worker.lane.setup.workers != worker.lane.index && !worker.handoff.receive(worker.id, other, worker.sent[head], stage)) return false;
  return true;
}

}  // namespace monolane
