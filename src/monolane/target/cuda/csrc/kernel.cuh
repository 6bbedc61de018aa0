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
  MONOLANE_DEVICE void run() {
    const Request& request = monolane_launch.request;
    if (worker_index() == 0 && thread_index() == 0) monolane_launch.outcome->start_ns = ptx::now_ns();
    mark_prompt();
    if (request.token_count - request.cached > 1) *this = read_prompt(*this);
    ptx::fence_async();  // the upper slots of the ring held inputs; copies may write there now
    ptx::sync(0, kThreads);
    Cursor<false> cursor;
    while (!left_ && !(request.scores && position_ >= request.token_count)) {
      if (position_ < request.token_count) token_ = request.tokens[position_];
      pass<false>({position_, 1, true}, cursor);
      position_++;
    }
    if (request.scores && worker_index() == 0 && thread_index() == 0 && !failed()) ptx::store_host_release(&monolane_launch.outcome->status, kLengthReached);
    *shared::stop() = 1;
  }

 private:
  // All wide passes. Apart, and on a copy of its own, so that decoding has the registers to itself.
  MONOLANE_APART static Consumer read_prompt(Consumer consumer) {
    const Request& request = monolane_launch.request;
    Cursor<true> cursor;
    while (request.token_count - consumer.position_ > 1 && !consumer.left_) {
      const int64_t rest = request.token_count - consumer.position_;
      const int width = rest < kWidth ? static_cast<int>(rest) : kWidth;
      consumer.pass<true>({consumer.position_, width, consumer.position_ + width == request.token_count}, cursor);
      consumer.position_ += width;
    }
    return consumer;
  }

  MONOLANE_DEVICE bool failed() const { return ptx::load_relaxed(monolane_launch.failed) != 0; }

  MONOLANE_DEVICE void mark_prompt() {
    if (worker_index() != 0) return;
    const Request& request = monolane_launch.request;
    for (int64_t i = thread_index(); i < request.token_count; i += kConsumers) monolane_launch.counts[request.tokens[i]] = kSeen;
    sync_consumers();
  }

  template <bool kWide>
  MONOLANE_DEVICE void pass(const Pass& now, Cursor<kWide>& cursor) {
    for (int s = 0; s < kStageCount && !left_; s++) {
      const Stage& stage = kStages[s];
      step_++;
      if (worker_index() == kStallWorker && s == kStallStage) stall();
      const bool logits = stage.kind == Kind::kSample || stage.output == Output::kLogits;
      if (logits && !now.last_of_prompt && !monolane_launch.request.scores) continue;
      mark<kWide>(s, 0);
      switch (stage.kind) {
        case Kind::kEmbed: embed<kWide>(now); break;
        case Kind::kProject: project_stage<kWide>(s, now, cursor); break;
        case Kind::kAttend: barriers_ = attend_stage<kWide>(s, now.start, now.width, step_, barriers_); break;
        case Kind::kSample: sample(s, now); break;
      }
      mark<kWide>(s, 2);
      if (kWide && (stage.kind == Kind::kProject || stage.kind == Kind::kAttend)) grid_barrier(s, barriers_);
    }
    if (failed_together()) left_ = true;
    narrow_passes_ += !kWide;
  }

  // A time stamp for the trace: 0 at the beginning of a stage, 1 when its input is there, 2 at its end.
  template <bool kWide>
  MONOLANE_DEVICE void mark(int s, int what) const {
    if (kWide || !monolane_launch.trace || thread_index() != 0) return;
    const int64_t pass = narrow_passes_ - monolane_launch.trace_from;
    if (pass < 0 || pass >= monolane_launch.trace_passes) return;
    monolane_launch.trace[((pass * kWorkers + worker_index()) * kStageCount + s) * 3 + what] = ptx::now_ns();
  }

  MONOLANE_DEVICE void stall() const {
    const int64_t end = ptx::now_ns() + kStallSeconds * int64_t(1000000000);
    while (ptx::now_ns() < end) ptx::pause(1000000);
  }

  // Asked once per pass by one thread, so that all threads of the block agree. Two places in turn: a thread that is slow
  // to read one is not overtaken by the next answer.
  MONOLANE_DEVICE bool failed_together() {
    volatile uint32_t* answer = reinterpret_cast<volatile uint32_t*>(shared::reduce()) + 30 + passes_++ % 2;
    if (thread_index() == 0) *answer = failed();
    sync_consumers();
    return *answer;
  }

  // The owners of the residual stream take their rows; everybody reads the embedding for himself in the stage that follows.
  template <bool kWide>
  MONOLANE_DEVICE void embed(const Pass& now) {
    const Own own = shared::own()[kResidualProjection];
    const int rows = own.tiles * kTileRows;
    for (int i = thread_index() * 4; i < rows * now.width; i += kConsumers * 4) {
      float v[4];
      const int position = i / rows, row = i % rows;
      embedding(token_at<kWide>(now, position), own.first_tile * kTileRows + row, v);
      for (int j = 0; j < 4; j++) shared::residual()[position * kMaxOwnedRows + row + j] = v[j];
    }
  }

  template <bool kWide>
  MONOLANE_DEVICE int32_t token_at(const Pass& now, int position) const {
    return kWide ? monolane_launch.request.tokens[now.start + position] : token_;
  }

  template <bool kWide>
  MONOLANE_DEVICE Source source(int s, const Pass& now, int position) const {
    const Stage& stage = kStages[s];
    const uint16_t* plain = monolane_launch.wide + kWideOffsets[stage.reads] + static_cast<int64_t>(position) * kBufferStrides[stage.reads];
    return {s == 1 ? token_at<kWide>(now, position) : kNone, kWide ? nullptr : monolane_launch.words + kWordOffsets[stage.reads], plain, step_ - 1};
  }

  template <bool kWide>
  MONOLANE_DEVICE void project_stage(int s, const Pass& now, Cursor<kWide>& cursor) {
    const Stage& stage = kStages[s];
    const bool logits = stage.output == Output::kLogits;
    if (logits && !monolane_launch.request.scores) return head<kWide>(s, now, cursor);
    if (shared::own()[stage.projection].tiles == 0) return;
    if (!kWide) {
      const float scale = prepare_one(s, source<kWide>(s, now, 0));
      mark<kWide>(s, 1);
      project<kWide, 1, true>(s, cursor, shared::x(), 0, 1, [&](int local, int position, float first, float second) {
        finish<kWide>(s, now, local, position, first * scale, second * scale);
      });
      return;
    }
    const auto finish_scaled = [&](int local, int position, float first, float second) {
      const float scale = stage.input == Input::kNorm ? shared::reduce()[position] : 1.0f;
      finish<kWide>(s, now, local, position, first * scale, second * scale);
    };
    if (stage.cols <= kWideCols) {
      prepare_wide(s, now.width, [&](int p) { return source<kWide>(s, now, p); });
      project<kWide, kWidth, true>(s, cursor, shared::wide_x(), kWideStride, now.width, finish_scaled);
    } else {
      const uint16_t* x = monolane_launch.wide + kWideOffsets[stage.reads];
      project<kWide, kWidth, false>(s, cursor, x, kBufferStrides[stage.reads], now.width, finish_scaled);
    }
  }

  // The logits of the last position, and the best of this block's rows.
  template <bool kWide>
  MONOLANE_DEVICE void head(int s, const Pass& now, Cursor<kWide>& cursor) {
    const Stage& stage = kStages[s];
    const int64_t first_row = shared::own()[stage.projection].first_tile * kTileRows;
    uint64_t best = 0;
    if (shared::own()[stage.projection].tiles) {
      const float scale = prepare_one(s, source<kWide>(s, now, now.width - 1));
      mark<kWide>(s, 1);
      project<kWide, 1, true>(s, cursor, shared::x(), 0, 1, [&](int local, int, float sum, float) {
        const int64_t row = first_row + local;
        if (row >= stage.rows) return;
        const float logit = with_bias(stage, row, sum * scale);
        if (!plain_greedy()) monolane_launch.logits[row] = logit;
        best = max(best, rank_of(logit, static_cast<uint32_t>(row)));
      });
    }
    if (plain_greedy()) publish_best(best, step_);
  }

  // Nothing but the highest logit matters: no block needs to see all of them.
  MONOLANE_DEVICE bool plain_greedy() const {
    const Request& request = monolane_launch.request;
    const Sampling& how = request.sampling;
    const bool neutral = how.repeat_up == 1 << kFactorBits && how.repeat_down == 1 << kFactorBits && !how.presence && !how.frequency;
    return how.greedy && neutral && !how.bias_count && request.logprobs < 0;
  }

  MONOLANE_DEVICE float with_bias(const Stage& stage, int64_t row, float v) const {
    return stage.bias == kNone ? v : v + monolane_launch.constants[stage.bias + row];
  }

  // What becomes of a row's sum.
  template <bool kWide>
  MONOLANE_DEVICE void finish(int s, const Pass& now, int local, int position, float first, float second) {
    const Stage& stage = kStages[s];
    const bool gate = stage.output == Output::kGate;
    const int row = shared::own()[stage.projection].first_tile * (gate ? kTileRows / 2 : kTileRows) + local;
    if (row >= (gate ? stage.rows / 2 : stage.rows)) return;
    if (gate) {
      const float g = with_bias(stage, 2 * row, first), u = with_bias(stage, 2 * row + 1, second);
      return hand_over<kWide>(stage, row, position, g / (1.0f + ptx::exponential(-g)) * u, step_);
    }
    float v = with_bias(stage, row, first);
    switch (stage.output) {
      case Output::kResidual: {
        float& residual = shared::residual()[position * kMaxOwnedRows + local];
        residual += v;
        return hand_over<kWide>(stage, row, position, residual, step_);
      }
      case Output::kStore:
        if (kWide)
          monolane_launch.wide_qkv[position * (kQueries + 2 * kKeys) + row] = v;
        else
          ptx::store_relaxed(monolane_launch.qkv_words + row, tagged_float(v, step_));
        return;
      default:
        monolane_launch.request.scores[(now.start - monolane_launch.request.cached + position) * kVocab + row] = v;
    }
  }

  template <bool kWide>
  MONOLANE_DEVICE static void hand_over(const Stage& stage, int row, int position, float v, uint32_t step) {
    if (kWide)
      monolane_launch.wide[kWideOffsets[stage.writes] + static_cast<int64_t>(position) * kBufferStrides[stage.writes] + row] = static_cast<uint16_t>(narrow_bits(v));
    else
      ptx::store_relaxed(monolane_launch.words + kWordOffsets[stage.writes] + row, tagged(v, step));
  }

  // Apart, for its registers: it needs as many as a projection, and not at the same time.
  template <bool kWide>
  MONOLANE_APART static uint32_t attend_stage(int s, int64_t start, int width, uint32_t step, uint32_t barriers) {
    const Stage& stage = kStages[s];
    if (kWide) {  // keys and values of all positions first: later ones look at earlier ones
      const int items = width * kKvHeads;
      for (int i = worker_index() * kConsumerWarps + warp_index(); i < items; i += kWorkers * kConsumerWarps) {
        const int row = i / kKvHeads;
        const Qkv<kWide> qkv{s, row, step - 1};
        append(stage.layer, i % kKvHeads, start + row, fresh(stage, qkv, i % kKvHeads, start + row));
      }
      grid_barrier(s, barriers);
    }
    for (int row = 0; row < width; row++) {
      const int64_t position = start + row, length = split_length(position, stage.window);
      const int first = static_cast<int>(first_seen(position, stage.window) / length) * kKvHeads;
      const int last = static_cast<int>(position / length + 1) * kKvHeads;
      // Blocks take turns; the positions of a wide pass begin at different blocks.
      const int owner = kWide ? (worker_index() + kWorkers * kWidth - row * (kWorkers / kWidth + 1)) % kWorkers : worker_index();
      for (int item = first + (owner + kWorkers - first % kWorkers) % kWorkers; item < last; item += kWorkers) {
        const auto publish = [&](int q, int d, float v) { hand_over<kWide>(stage, q * kHeadDim + d, row, v, step); };
        attend_item<kWide>(s, Qkv<kWide>{s, row, step - 1}, position, length, item / kKvHeads, item % kKvHeads, publish);
        // The last split had a key and a value to append, which another block may read in a later pass.
        if (!kWide && item >= last - kKvHeads) ptx::fence();
      }
    }
    return barriers;
  }

  // One token more, the same for all blocks.
  MONOLANE_DEVICE void sample(int s, const Pass& now) {
    const Request& request = monolane_launch.request;
    if (request.scores) return;
    if (!plain_greedy()) grid_barrier(s, barriers_);
    const uint32_t token = choose(s, now.start + now.width, made_, step_, plain_greedy());
    if (token == kAbortToken || token == kNoToken) return end(token == kNoToken ? kNotANumber : kAborted);
    token_ = static_cast<int32_t>(token);
    if (worker_index() == 0 && thread_index() == 0) hand_token_over();
    made_++;
    bool stop = false;
    for (int64_t i = 0; i < request.stop_count; i++) stop |= request.stop_tokens[i] == token_;
    if (stop || made_ == request.max_tokens) end(stop ? kStopped : kLengthReached);
  }

  MONOLANE_APART static uint32_t choose(int s, int64_t position, int64_t made, uint32_t step, bool greedy) {
    const Request& request = monolane_launch.request;
    const bool aborted = worker_index() == 0 && thread_index() == 0 && ptx::load_host(monolane_launch.abort);
    uint64_t* drawn = monolane_launch.choices + 2 * kWorkers;
    uint32_t token = greedy ? best_of_all(s, step - 1) : 0;
    if (worker_index() == 0) {
      if (!greedy) token = Draw().token(position);
      if (!greedy && request.logprobs >= 0 && token != kNoToken) Draw().report(token, monolane_launch.entries + made);
      if (thread_index() == 0) ptx::store_relaxed(drawn, static_cast<uint64_t>(aborted ? kAbortToken : token) << 32 | step);
    }
    return await_wide_word(s, drawn, step, kForChoice);
  }

  MONOLANE_DEVICE void hand_token_over() {
    Entry* entry = monolane_launch.entries + made_;
    entry->token = token_;
    if (monolane_launch.request.logprobs < 0) entry->top_count = 0;
    entry->time_ns = ptx::now_ns();
    monolane_launch.counts[token_] = (monolane_launch.counts[token_] | kSeen) + 1;
    ptx::store_host_release(&monolane_launch.outcome->made, static_cast<uint32_t>(made_ + 1));
  }

  MONOLANE_DEVICE void end(Status status) {
    left_ = true;
    if (worker_index() == 0 && thread_index() == 0) ptx::store_host_release(&monolane_launch.outcome->status, status);
  }

  uint32_t step_ = 0, barriers_ = 0, passes_ = 0;
  int32_t token_ = kNone;
  int64_t made_ = 0, narrow_passes_ = 0;
  int64_t position_ = monolane_launch.request.cached;
  bool left_ = false;
};

// The producer's twin of Consumer::run: the same passes in the same order.
MONOLANE_DEVICE void produce() {
  const Request& request = monolane_launch.request;
  int64_t position = request.cached;
  bool going = true;
  {
    Producer<true> wide;
    while (request.token_count - position > 1 && going) {
      const int64_t rest = request.token_count - position;
      position += rest < kWidth ? rest : kWidth;
      if (lane_index() == 0) going = wide.pass(position == request.token_count || request.scores);
      going = !ptx::any(!going);
    }
    if (lane_index() == 0) wide.drain();
  }
  ptx::sync(0, kThreads);
  if (lane_index() != 0) return;
  Producer<false> narrow;
  const int64_t passes = (request.token_count - position) + (request.scores ? 0 : request.max_tokens - 1);
  for (int64_t i = 0; i < passes && going && !*shared::stop(); i++) going = narrow.pass(true);
  narrow.drain();
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(monolane::kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int thread = ptx::thread_index();
  if (thread == 0) {
    for (int wide = 0; wide < 2; wide++)
      for (int slot = 0; slot < kSlots; slot++) {
        ptx::barrier_init(&shared::full(wide)[slot], 1);
        ptx::barrier_init(&shared::empty(wide)[slot], kGroupWarps);
      }
    *shared::stop() = 0;
    ptx::barrier_init_fence();
  }
  for (int p = thread; p < kProjections; p += kThreads)
    shared::own()[p] = {static_cast<int>(segment(p).first_tile), static_cast<int>(segment(p).tiles)};
  ptx::sync(0, kThreads);
  if (warp_index() == kConsumerWarps)
    produce();
  else
    Consumer().run();
}
