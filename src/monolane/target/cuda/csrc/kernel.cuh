// The monokernel: one launch is one request. Prefill in wide passes, then a token a pass, sampled and checked for its end
// here. One warp of every block streams the block's tape; the others are the consumers, and all blocks are in step.
#pragma once
#include "attend.cuh"
#include "project.cuh"
#include "sample.cuh"

namespace monolane {

struct Pass {
  int64_t start;
  int width;
  bool last_of_prompt;  // or of the answer so far: its last position's logits are asked for
};

class Consumer {
 public:
  MONOLANE_DEVICE explicit Consumer(const Block& block) : block_(block), launch_(block.launch) {}

  MONOLANE_DEVICE void run() {
    const Request& request = launch_.request;
    int64_t position = request.cached;
    Cursor<true> wide;
    if (block_.worker == 0 && block_.thread == 0) launch_.outcome->start_ns = ptx::now_ns();
    mark_prompt();
    while (request.token_count - position > 1 && !left_) {
      const int64_t rest = request.token_count - position;
      const int width = rest < kWidth ? static_cast<int>(rest) : kWidth;
      pass<true>({position, width, position + width == request.token_count}, wide);
      position += width;
    }
    ptx::fence_async();  // the upper slots of the ring held inputs; copies may write there now
    ptx::sync(0, kThreads);
    Cursor<false> narrow;
    while (!left_ && !(request.scores && position >= request.token_count)) {
      if (position < request.token_count) token_ = request.tokens[position];
      pass<false>({position, 1, true}, narrow);
      position++;
    }
    if (request.scores && block_.worker == 0 && block_.thread == 0 && !failed()) ptx::store_host_release(&launch_.outcome->status, kLengthReached);
    *block_.stop() = 1;
  }

 private:
  MONOLANE_DEVICE bool failed() const { return ptx::load_relaxed(launch_.failed) != 0; }

  MONOLANE_DEVICE void mark_prompt() {
    if (block_.worker != 0) return;
    const Request& request = launch_.request;
    for (int64_t i = block_.thread; i < request.token_count; i += kConsumers) launch_.counts[request.tokens[i]] = kSeen;
    block_.sync();
  }

  template <bool kWide>
  MONOLANE_DEVICE void pass(const Pass& now, Cursor<kWide>& cursor) {
    for (int s = 0; s < kStageCount && !left_; s++) {
      const Stage& stage = kStages[s];
      step_++;
      if (block_.worker == kStallWorker && s == kStallStage) stall();
      const bool logits = stage.kind == Kind::kSample || stage.output == Output::kLogits;
      if (logits && !now.last_of_prompt && !launch_.request.scores) continue;
      switch (stage.kind) {
        case Kind::kEmbed: embed<kWide>(now); break;
        case Kind::kProject: project_stage<kWide>(s, now, cursor); break;
        case Kind::kAttend: attend_stage<kWide>(s, now); break;
        case Kind::kSample: sample(s, now); break;
      }
      if (kWide && (stage.kind == Kind::kProject || stage.kind == Kind::kAttend)) grid_barrier(block_, s, barriers_);
      if (failed_together()) left_ = true;
    }
  }

  MONOLANE_DEVICE void stall() const {
    const int64_t end = ptx::now_ns() + kStallSeconds * int64_t(1000000000);
    while (ptx::now_ns() < end) ptx::pause(1000000);
  }

  // Asked once per stage by one thread, so that all threads of the block agree. Two places in turn: a thread that is slow
  // to read one is not overtaken by the next stage's answer.
  MONOLANE_DEVICE bool failed_together() {
    volatile uint32_t* answer = reinterpret_cast<volatile uint32_t*>(block_.reduce()) + 30 + step_ % 2;
    if (block_.thread == 0) *answer = failed();
    block_.sync();
    return *answer;
  }

  // The owners of the residual stream take their rows; everybody reads the embedding for himself in the stage that follows.
  template <bool kWide>
  MONOLANE_DEVICE void embed(const Pass& now) {
    const Segment& own = block_.segment(kResidualProjection);
    const int rows = static_cast<int>(own.tiles) * kTileRows;
    for (int i = block_.thread * 4; i < rows * now.width; i += kConsumers * 4) {
      float v[4];
      const int position = i / rows, row = i % rows;
      embedding(launch_, token_at<kWide>(now, position), static_cast<int>(own.first_tile) * kTileRows + row, v);
      for (int j = 0; j < 4; j++) block_.residual()[position * kMaxOwnedRows + row + j] = v[j];
    }
  }

  template <bool kWide>
  MONOLANE_DEVICE int32_t token_at(const Pass& now, int position) const {
    return kWide ? launch_.request.tokens[now.start + position] : token_;
  }

  template <bool kWide>
  MONOLANE_DEVICE Source source(int s, const Pass& now, int position) const {
    const Stage& stage = kStages[s];
    const uint16_t* plain = launch_.wide + kWideOffsets[stage.reads] + static_cast<int64_t>(position) * kBufferStrides[stage.reads];
    return {s == 1 ? token_at<kWide>(now, position) : kNone, kWide ? nullptr : launch_.words + kWordOffsets[stage.reads], plain, step_ - 1};
  }

  template <bool kWide>
  MONOLANE_DEVICE void project_stage(int s, const Pass& now, Cursor<kWide>& cursor) {
    const Stage& stage = kStages[s];
    const bool logits = stage.output == Output::kLogits;
    if (logits && !launch_.request.scores) return head<kWide>(s, now, cursor);
    if (block_.segment(stage.projection).tiles == 0) return;
    if (!kWide) {
      const float scale = prepare_one(block_, s, source<kWide>(s, now, 0));
      project<kWide, 1>(block_, s, cursor, block_.x(), 0, 1, [&](int local, int position, float first, float second) {
        finish<kWide>(s, now, local, position, first * scale, second * scale);
      });
      return;
    }
    const bool staged = stage.cols <= kWideCols;
    if (staged) prepare_wide(block_, s, now.width, [&](int p) { return source<kWide>(s, now, p); });
    const uint16_t* x = staged ? block_.wide_x() : launch_.wide + kWideOffsets[stage.reads];
    const int stride = staged ? kWideStride : kBufferStrides[stage.reads];
    project<kWide, kWidth>(block_, s, cursor, x, stride, now.width, [&](int local, int position, float first, float second) {
      const float scale = staged ? block_.reduce()[position] : 1.0f;
      finish<kWide>(s, now, local, position, first * scale, second * scale);
    });
  }

  // The logits of the last position, and the best of this block's rows.
  template <bool kWide>
  MONOLANE_DEVICE void head(int s, const Pass& now, Cursor<kWide>& cursor) {
    const Stage& stage = kStages[s];
    const int64_t first_row = block_.segment(stage.projection).first_tile * kTileRows;
    uint64_t best = 0;
    if (block_.segment(stage.projection).tiles) {
      const float scale = prepare_one(block_, s, source<kWide>(s, now, now.width - 1));
      project<kWide, 1>(block_, s, cursor, block_.x(), 0, 1, [&](int local, int, float sum, float) {
        const int64_t row = first_row + local;
        if (row >= stage.rows) return;
        const float logit = with_bias(stage, row, sum * scale);
        if (!plain_greedy()) launch_.logits[row] = logit;
        best = max(best, rank_of(logit, static_cast<uint32_t>(row)));
      });
    }
    if (plain_greedy()) publish_best(block_, best, step_);
  }

  // Nothing but the highest logit matters: no block needs to see all of them.
  MONOLANE_DEVICE bool plain_greedy() const {
    const Request& request = launch_.request;
    const Sampling& how = request.sampling;
    const bool neutral = how.repeat_up == 1 << kFactorBits && how.repeat_down == 1 << kFactorBits && !how.presence && !how.frequency;
    return how.greedy && neutral && !how.bias_count && request.logprobs < 0;
  }

  MONOLANE_DEVICE float with_bias(const Stage& stage, int64_t row, float v) const {
    return stage.bias == kNone ? v : v + launch_.constants[stage.bias + row];
  }

  // What becomes of a row's sum.
  template <bool kWide>
  MONOLANE_DEVICE void finish(int s, const Pass& now, int local, int position, float first, float second) {
    const Stage& stage = kStages[s];
    const bool gate = stage.output == Output::kGate;
    const int row = static_cast<int>(block_.segment(stage.projection).first_tile) * (gate ? kTileRows / 2 : kTileRows) + local;
    if (row >= (gate ? stage.rows / 2 : stage.rows)) return;
    if (gate) {
      const float g = with_bias(stage, 2 * row, first), u = with_bias(stage, 2 * row + 1, second);
      return hand_over<kWide>(stage, row, position, g / (1.0f + ptx::exponential(-g)) * u);
    }
    float v = with_bias(stage, row, first);
    switch (stage.output) {
      case Output::kResidual: {
        float& residual = block_.residual()[position * kMaxOwnedRows + local];
        residual += v;
        return hand_over<kWide>(stage, row, position, residual);
      }
      case Output::kStore:
        if (kWide)
          launch_.wide_qkv[position * (kQueries + 2 * kKeys) + row] = v;
        else
          ptx::store_relaxed(launch_.qkv_words + row, tagged_float(v, step_));
        return;
      default:
        launch_.request.scores[(now.start - launch_.request.cached + position) * kVocab + row] = v;
    }
  }

  template <bool kWide>
  MONOLANE_DEVICE void hand_over(const Stage& stage, int row, int position, float v) const {
    if (kWide)
      launch_.wide[kWideOffsets[stage.writes] + static_cast<int64_t>(position) * kBufferStrides[stage.writes] + row] = static_cast<uint16_t>(narrow_bits(v));
    else
      ptx::store_relaxed(launch_.words + kWordOffsets[stage.writes] + row, tagged(v, step_));
  }

  template <bool kWide>
  MONOLANE_DEVICE void attend_stage(int s, const Pass& now) {
    const Stage& stage = kStages[s];
    if (kWide) {  // keys and values of all positions first: later ones look at earlier ones
      const int items = now.width * kKvHeads;
      for (int i = block_.worker * kConsumerWarps + block_.warp; i < items; i += kWorkers * kConsumerWarps) {
        const int row = i / kKvHeads;
        append<kWide>(block_, s, Qkv<kWide>{block_, s, row, step_ - 1}, i % kKvHeads, now.start + row, block_.sums() + block_.warp * kHeadStride);
      }
      grid_barrier(block_, s, barriers_);
    }
    for (int row = 0; row < now.width; row++) {
      const int64_t position = now.start + row;
      const int first = static_cast<int>(first_seen(position, stage.window) / kSplit) * kKvHeads;
      const int last = static_cast<int>(position / kSplit + 1) * kKvHeads;
      // In a narrow pass a split of a head always falls to the same block, which has appended what it reads. In a wide one
      // the positions are spread.
      const int owner = kWide ? (block_.worker + kWorkers * kWidth - row * (kWorkers / kWidth + 1)) % kWorkers : block_.worker;
      for (int item = first + (owner + kWorkers - first % kWorkers) % kWorkers; item < last; item += kWorkers)
        attend_item<kWide>(block_, s, Qkv<kWide>{block_, s, row, step_ - 1}, position, item / kKvHeads, item % kKvHeads, [&](int q, int d, float v) { hand_over<kWide>(stage, q * kHeadDim + d, row, v); });
    }
  }

  // One token more, the same for all blocks.
  MONOLANE_DEVICE void sample(int s, const Pass& now) {
    const Request& request = launch_.request;
    if (request.scores) return;
    const bool greedy = plain_greedy();
    if (!greedy) grid_barrier(block_, s, barriers_);
    const bool aborted = block_.worker == 0 && block_.thread == 0 && ptx::load_host(launch_.abort);
    uint32_t token = 0;
    uint64_t* drawn = launch_.choices + 2 * kWorkers;
    if (greedy) token = best_of_all(block_, s, step_ - 1);
    if (block_.worker == 0) {
      if (!greedy) token = Draw(block_).token(now.start + now.width);
      if (!greedy && request.logprobs >= 0 && token != kNoToken) Draw(block_).report(token, launch_.entries + made_);
      if (block_.thread == 0) ptx::store_relaxed(drawn, static_cast<uint64_t>(aborted ? kAbortToken : token) << 32 | step_);
    }
    token = await_wide_word(block_, s, drawn, step_, kForChoice);
    if (token == kAbortToken || token == kNoToken) return end(token == kNoToken ? kNotANumber : kAborted);
    token_ = static_cast<int32_t>(token);
    if (block_.worker == 0 && block_.thread == 0) hand_token_over();
    made_++;
    bool stop = false;
    for (int64_t i = 0; i < request.stop_count; i++) stop |= request.stop_tokens[i] == token_;
    if (stop || made_ == request.max_tokens) end(stop ? kStopped : kLengthReached);
  }

  MONOLANE_DEVICE void hand_token_over() {
    Entry* entry = launch_.entries + made_;
    entry->token = token_;
    if (launch_.request.logprobs < 0) entry->top_count = 0;
    entry->time_ns = ptx::now_ns();
    launch_.counts[token_] = (launch_.counts[token_] | kSeen) + 1;
    ptx::store_host_release(&launch_.outcome->made, static_cast<uint32_t>(made_ + 1));
  }

  MONOLANE_DEVICE void end(Status status) {
    left_ = true;
    if (block_.worker == 0 && block_.thread == 0) ptx::store_host_release(&launch_.outcome->status, status);
  }

  const Block& block_;
  const Launch& launch_;
  uint32_t step_ = 0, barriers_ = 0;
  int32_t token_ = kNone;
  int64_t made_ = 0;
  bool left_ = false;
};

// The producer's twin of Consumer::run: the same passes in the same order.
MONOLANE_DEVICE void produce(const Block& block) {
  const Request& request = block.launch.request;
  int64_t position = request.cached;
  bool going = true;
  {
    Producer<true> wide(block);
    while (request.token_count - position > 1 && going) {
      const int64_t rest = request.token_count - position;
      position += rest < kWidth ? rest : kWidth;
      if (block.lane == 0) going = wide.pass(position == request.token_count || request.scores);
      going = !ptx::any(!going);
    }
    if (block.lane == 0) wide.drain();
  }
  ptx::sync(0, kThreads);
  if (block.lane != 0) return;
  Producer<false> narrow(block);
  const int64_t passes = (request.token_count - position) + (request.scores ? 0 : request.max_tokens - 1);
  for (int64_t i = 0; i < passes && going && !*block.stop(); i++) going = narrow.pass(true);
  narrow.drain();
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(monolane::kThreads) monolane_kernel(MONOLANE_PARAMETER monolane::Launch launch) {
  using namespace monolane;
  const int thread = ptx::thread_index();
  const Block block{ptx::shared_memory(), launch, ptx::block_index(), thread, thread / 32, thread % 32};
  if (thread == 0) {
    for (int wide = 0; wide < 2; wide++)
      for (int slot = 0; slot < kSlots; slot++) {
        ptx::barrier_init(&block.full(wide)[slot], 1);
        ptx::barrier_init(&block.empty(wide)[slot], kGroupWarps);
      }
    *block.stop() = 0;
    ptx::barrier_init_fence();
  }
  ptx::sync(0, kThreads);
  if (block.warp == kConsumerWarps)
    produce(block);
  else
    Consumer(block).run();
}
