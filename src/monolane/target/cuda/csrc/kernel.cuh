// The monokernel: one launch is one request. Prefill in wide passes, then a token a pass, sampled and checked for its end
// here. One warp of every block streams the block's tape; the others are the consumers, and all blocks are in step.
#pragma once
#include "attend.cuh"
#include "attendant.cuh"
#include "prefetch.cuh"
#include "project.cuh"
#include "sample.cuh"

namespace monolane {

struct Pass {
  int start, width;
  bool last_of_prompt;  // or of the answer so far: its last position's logits are asked for
};

// Wide passes keep within a block of the cache.
MONOLANE_DEVICE Pass wide_pass(int position, int count) {
  const int width = min(kBlockPositions - position % kBlockPositions, count - position);
  return {position, width, position + width == count};
}

class Consumer {
 public:
  MONOLANE_DEVICE void run() {
    const Request& request = monolane_launch.request;
    if (worker_index() == 0 && thread_index() == 0) monolane_launch.outcome->start_ns = ptx::now_ns();
    if (monolane_launch.adjusts_scores) note_prompt();
    if (request.token_count - request.cached > 1) *this = read_prompt(*this);
    ptx::fence_async();  // the upper slots of the ring held inputs; copies may write there now
    sync_consumers_and_producer();
    Cursor<false> cursor;
    while (!left_ && !(request.scores && position_ >= request.token_count)) {
      if (position_ < request.token_count) token_ = request.tokens[position_];
      pass<false>({position_, 1, true}, cursor);
      position_++;
    }
    if (request.scores && !left_) end(kLengthReached);
    sync_consumers();
    if (thread_index() == 0) ptx::store_shared_release(&shared::flags()->stop, 1);
  }

 private:
  // All wide passes.
  MONOLANE_APART static Consumer read_prompt(Consumer consumer) {
    const int count = static_cast<int>(monolane_launch.request.token_count);
    Cursor<true> cursor;
    while (count - consumer.position_ > 1 && !consumer.left_) {
      const Pass now = wide_pass(consumer.position_, count);
      consumer.pass<true>(now, cursor);
      consumer.position_ += now.width;
    }
    return consumer;
  }

  template <bool kWide>
  MONOLANE_DEVICE void pass(const Pass& now, Cursor<kWide>& cursor) {
    if (step_ + kStageCount > kMostTags) renew_tags();
    begin<kWide>(0, now);
    embed<kWide>(now);
    mark<kWide>(0, 2);
#pragma unroll 1
    for (int layer = 0; layer < kLayers; layer++) {
      project_stage<kWide, 0>(layer, now, cursor);
      attend_stage<kWide>(layer, now, cursor);
      layer_forms<kWide, 1>(layer, now, cursor);
    }
    if (now.last_of_prompt || monolane_launch.request.scores) {
      project_stage<kWide, kHeadForm>(0, now, cursor);
      begin<kWide>(kStageCount - 1, now);
      if (!monolane_launch.request.scores) sample(now);
      mark<kWide>(kStageCount - 1, 2);
    }
    if (over_together()) left_ = true;
    if (kTraced) narrow_passes_ += !kWide;
  }

  template <bool kWide, int kForm>
  MONOLANE_DEVICE void layer_forms(int layer, const Pass& now, Cursor<kWide>& cursor) {
    if constexpr (kForm < kHeadForm) {
      project_stage<kWide, kForm>(layer, now, cursor);
      layer_forms<kWide, kForm + 1>(layer, now, cursor);
    }
  }

  // Tags run out before the next pass ends: all words are cleared, and tags begin anew. Between two passes nobody has a word to wait for but
  // the chosen token, so the first barrier is for that.
  MONOLANE_APART static void clear_words() {
    grid_barrier();
    Word4* words = reinterpret_cast<Word4*>(monolane_launch.words);
    for (int64_t i = worker_index() * kConsumers + thread_index(); i < monolane_launch.tagged_bytes / 16; i += kWorkers * kConsumers) words[i] = {0, 0, 0, 0};
    grid_barrier();
  }
  MONOLANE_DEVICE void renew_tags() {
    clear_words();
    if (thread_index() == 0) shared::flags()->steps_before += step_;
    step_ = 0;
  }

  // A stage begins: a new tag, and the others of the block know where we are.
  template <bool kWide>
  MONOLANE_DEVICE void begin(int s, const Pass& now) {
    step_++;
    if (thread_index() == 0) {
      shared::Flags* flags = shared::flags();
      ptx::store_shared(&flags->stage, s);
      ptx::store_shared(&flags->position, now.start);
      ptx::store_shared(&flags->step, flags->steps_before + step_);
    }
    if (s == 0 && thread_index() == 0) ptx::store_shared_release(&shared::flags()->reached, now.start);
    if (kStallWorker >= 0 && worker_index() == kStallWorker && s == kStallStage) stall();
    mark<kWide>(s, 0);
  }

  template <bool kWide>
  MONOLANE_DEVICE void attend_stage(int layer, const Pass& now, Cursor<kWide>& cursor) {
    const int s = kAttendStage + layer * kStagesPerLayer;
    begin<kWide>(s, now);
    if constexpr (kWide)
      attend_wide(layer, now.start, now.width, step_);
    else
      attend_narrow(layer, now.start, step_, cursor, [&] { mark<false>(s, 1); });
    mark<kWide>(s, 2);
    if (kWide) grid_barrier();
  }

  // A time stamp for the trace: 0 at the beginning of a stage, 1 when its input is there, 2 at its end.
  template <bool kWide>
  MONOLANE_DEVICE void mark(int s, int what) const {
    if (!kTraced || kWide || thread_index() != 0) return;
    const int64_t pass = narrow_passes_ - monolane_launch.trace_from;
    if (pass < 0 || pass >= monolane_launch.trace_passes) return;
    monolane_launch.trace[((pass * kWorkers + worker_index()) * kStageCount + s) * 3 + what] = ptx::now_ns();
  }

  MONOLANE_DEVICE void stall() const {
    const int64_t end = ptx::now_ns() + kStallSeconds * int64_t(1000000000);
    while (ptx::now_ns() < end) ptx::pause(1000000);
  }

  // Looked at once per pass by one thread, so that all threads of the block agree. They meet many times before the next.
  MONOLANE_DEVICE static bool over_together() {
    uint32_t* answer = reinterpret_cast<uint32_t*>(shared::reduce()) + 31;
    if (thread_index() == 0) *answer = shared::over();
    sync_consumers();
    return *answer;
  }

  // The owners of the residual stream take their rows; everybody reads the embedding for himself in the stage that follows.
  template <bool kWide>
  MONOLANE_DEVICE void embed(const Pass& now) {
    const Own own = shared::own()[kResidualProjection];
    constexpr int kRows = kForms[kResidualProjection].tile_rows;
    const int rows = own.tiles * kRows;
#pragma unroll 1
    for (int i = thread_index() * 4; i < rows * now.width; i += kConsumers * 4) {
      float v[4];
      const int position = i / rows, row = i % rows;
      embedding(token_at<kWide>(now, position), own.first_tile * kRows + row, v);
      for (int j = 0; j < 4; j++) shared::residual()[position * kMaxOwnedRows + row + j] = v[j];
    }
  }

  template <bool kWide>
  MONOLANE_DEVICE int32_t token_at(const Pass& now, int position) const {
    return kWide ? monolane_launch.request.tokens[now.start + position] : token_;
  }

  template <bool kWide, int kForm>
  MONOLANE_DEVICE void project_stage(int layer, const Pass& now, Cursor<kWide>& cursor) {
    constexpr bool kHead = kForm == kHeadForm;
    const int s = kForms[kForm].stage + layer * kStagesPerLayer;
    begin<kWide>(s, now);
    const Own own = shared::own()[kForms[kForm].projection + layer * kProjectionsPerLayer];
    const Rows rows{s, layer, own.tiles, (own.first_tile * kForms[kForm].tile_rows) >> (kForms[kForm].output == Output::kGate)};
    if (kHead) ptx::fence();  // keys and values that this pass has kept are seen by whoever sees what is published next
    if constexpr (kWide && kPaddedCols<kForm> > kWideCols && kForms[kForm].norm != kNone)
      if (!kHead || monolane_launch.request.scores) prepare_together<kForm>(layer, now);
    uint64_t best = 0;
    if (own.tiles) {
      if constexpr (!kWide)
        project_narrow<kForm>(rows, now, cursor, best);
      else if (kHead && !monolane_launch.request.scores)
        project_last<kForm>(rows, now, cursor, best);
      else
        project_wide<kForm>(rows, now, cursor);
    }
    if (kHead && !monolane_launch.request.scores) {
      if (monolane_launch.request.logprobs >= 0) publish_best(best, step_, kLikeliest);
      if (monolane_launch.adjusts_scores) best = best_adjusted();
      publish_best(ptx::load_shared(&shared::flags()->aborted) ? kAbortRank : best, step_);
    }
    mark<kWide>(s, 2);
    if (kWide) grid_barrier();
  }

  // This block's rows of one stage.
  struct Rows {
    int stage, layer, tiles, first;
  };

  template <int kForm>
  MONOLANE_DEVICE void project_narrow(const Rows& rows, const Pass& now, Cursor<false>& cursor, uint64_t& best) {
    const auto prepare = [&] {
      const float scale = finish_prepare<kForm>(prepare_one<kForm>(rows.layer, now));
      mark<false>(rows.stage, 1);
      return scale;
    };
    // That of the first row this thread will finish is asked for now: it would be waited for when all else is done.
    const Bias bias = bias_of<kForm>(rows.layer, rows.first + thread_index());
    project<false, kForm, 1, true>(rows.tiles, cursor, shared::x(), 0, 1, prepare, [&](int local, int, float first, float second, float scale) {
      const Bias own = local < kConsumers ? bias : bias_of<kForm>(rows.layer, rows.first + local);
      finish<false, kForm>(rows, now, local, 0, first * scale, second * scale, own, best);
    });
  }

  // Results of attention take 3 µs, so who has no part in it need not look for them at once; nor need anybody for merged ones, which take
  // another hand-off. A pause takes no more than twice its time.
  static constexpr int kRestNs = 1000, kMergeRestNs = 500;

  // The input of a narrow pass, wherever it comes from; returns this thread's part of the sum of its squares.
  template <int kForm>
  MONOLANE_DEVICE float prepare_one(int layer, const Pass& now) {
    if (kForm == 0 && layer == 0) return prepare_embedding<kForm, kConsumers>(layer, token_, shared::x(), thread_index());
    if constexpr (kForms[kForm].merges) {
      const int splits = span_of<false>(now.start, window_of(layer)).splits;
      if (splits > kFewSplits)
        ptx::pause(kMergeRestNs);
      else if (worker_index() >= kKvHeads * splits)
        ptx::pause(kRestNs);
      if constexpr (kFewSplits > 1)
        if (splits > 1 && splits <= kFewSplits) return prepare_parts(splits, step_ - 1);
    }
    return prepare_words<kForm>(layer, step_ - 1);
  }

  template <int kForm>
  MONOLANE_DEVICE void project_wide(const Rows& rows, const Pass& now, Cursor<true>& cursor) {
    constexpr bool kStaged = kPaddedCols<kForm> <= kWideCols, kNorm = kForms[kForm].norm != kNone;
    constexpr int kStride = kBufferStrides[kForms[kForm].reads];
    const uint16_t* plain = monolane_launch.wide + kWideOffsets[kForms[kForm].reads];
    const auto prepare = [&] {  // a warp per position; its scale goes to `reduce`
      if constexpr (kStaged) {
        for (int p = warp_index(); p < now.width; p += kConsumerWarps) {
          uint16_t* to = shared::wide_x() + p * kWideStride;
          const bool first = kForm == 0 && rows.layer == 0;
          const float squares = first ? prepare_embedding<kForm, 32>(rows.layer, token_at<true>(now, p), to, lane_index())
                                      : prepare_plain<kForm, 32>(rows.layer, plain + p * kStride, to, lane_index());
          const float scale = norm_scale<kForm>(sum_of_warp(squares));
          if (lane_index() == 0) shared::reduce()[p] = scale;
        }
        sync_consumers();
      }
      return 1.0f;
    };
    uint64_t unused = 0;
    const uint16_t* x = kStaged ? shared::wide_x() : kNorm ? monolane_launch.normed : plain;
    project<true, kForm, kWidth, kStaged>(rows.tiles, cursor, x, kStaged ? kWideStride : kStride, now.width, prepare,
                                          [&](int local, int position, float first, float second, float) {
                                            const float scale = kNorm ? shared::reduce()[position] : 1.0f;
                                            finish<true, kForm>(rows, now, local, position, first * scale, second * scale, bias_of<kForm>(rows.layer, rows.first + local), unused);
                                          });
  }

  // The input of a norm that shared memory has no room for: a block prepares a position for all. Called by all blocks, with rows or without.
  template <int kForm>
  MONOLANE_DEVICE void prepare_together(int layer, const Pass& now) {
    constexpr int kStride = kBufferStrides[kForms[kForm].reads];
    const uint16_t* plain = monolane_launch.wide + kWideOffsets[kForms[kForm].reads];
    for (int p = worker_index(); p < now.width; p += kWorkers) {
      uint16_t* to = monolane_launch.normed + p * kStride;
      const float squares = kForm == 0 && layer == 0 ? prepare_embedding<kForm, kConsumers, To::kGlobal>(layer, token_at<true>(now, p), to, thread_index())
                                                     : prepare_plain<kForm, kConsumers, To::kGlobal>(layer, plain + p * kStride, to, thread_index());
      const float scale = finish_prepare<kForm>(squares);
      if (thread_index() == 0) ptx::store_relaxed(monolane_launch.scales + p, ptx::bits_of(scale));
      sync_consumers();  // the sums of squares have been read
    }
    grid_barrier();
    if (thread_index() < now.width) shared::reduce()[thread_index()] = ptx::float_of(ptx::load_relaxed(monolane_launch.scales + thread_index()));
    sync_consumers();
  }

  // The logits of the last position of a wide pass.
  template <int kForm>
  MONOLANE_DEVICE void project_last(const Rows& rows, const Pass& now, Cursor<true>& cursor, uint64_t& best) {
    constexpr int kBuffer = kForms[kForm].reads;
    const uint16_t* plain = monolane_launch.wide + kWideOffsets[kBuffer] + (now.width - 1) * kBufferStrides[kBuffer];
    const auto prepare = [&] { return finish_prepare<kForm>(prepare_plain<kForm, kConsumers>(0, plain, shared::x(), thread_index())); };
    project<true, kForm, 1, true>(rows.tiles, cursor, shared::x(), 0, 1, prepare, [&](int local, int, float first, float second, float scale) {
      finish<true, kForm>(rows, now, local, now.width - 1, first * scale, second * scale, bias_of<kForm>(rows.layer, rows.first + local), best);
    });
  }

  // A row's bias; of a gate, those of both its rows.
  struct Bias {
    float first = 0.0f, second = 0.0f;
  };
  template <int kForm>
  MONOLANE_DEVICE static Bias bias_of(int layer, int row) {
    constexpr int kBias = kForms[kForm].bias, kGate = kForms[kForm].output == Output::kGate;
    if (kBias == kNone || row >= kForms[kForm].rows >> kGate) return {};
    const float* from = monolane_launch.constants + kBias + layer * kConstantsPerLayer + (row << kGate);
    return {from[0], kGate ? from[1] : 0.0f};
  }

  // What becomes of a row's sum; of logits, the best is kept.
  template <bool kWide, int kForm>
  MONOLANE_DEVICE void finish(const Rows& rows, const Pass& now, int local, int position, float first, float second, const Bias& bias, uint64_t& best) {
    constexpr Output kOutput = kForms[kForm].output;
    constexpr int kGate = kOutput == Output::kGate, kBuffer = kForms[kForm].writes;
    const int row = rows.first + local;
    if (row >= kForms[kForm].rows >> kGate) return;
    float v = first + bias.first;
    if constexpr (kGate) {
      v = ptx::divide(v, 1.0f + ptx::exponential(-v)) * (second + bias.second);
      hand_over<kWide>(kBuffer, row, position, v, step_);
    } else if constexpr (kOutput == Output::kResidual) {
      v += shared::residual()[position * kMaxOwnedRows + local];
      shared::residual()[position * kMaxOwnedRows + local] = v;
      hand_over<kWide>(kBuffer, row, position, v, step_);
    } else if constexpr (kOutput == Output::kStore) {
      if (kWide)
        monolane_launch.wide_qkv[position * (kQueries + 2 * kKeys) + row] = v;
      else
        ptx::store_relaxed(monolane_launch.qkv_words + row, tagged_float(v, step_));
    } else if (monolane_launch.request.scores) {
      monolane_launch.request.scores[(now.start - monolane_launch.request.cached + position) * kVocab + row] = v;
    } else {
      if (!monolane_launch.plain_greedy) keep_logit(local, row, v);
      best = max(best, rank_of(v, static_cast<uint32_t>(row)));
    }
  }

  // One token more, the same for all blocks.
  MONOLANE_DEVICE void sample(const Pass& now) {
    const Request& request = monolane_launch.request;
    about_to_wait(kForChoice);
    const int made = now.start + now.width - static_cast<int>(request.token_count);  // before this one
    const uint32_t token = monolane_launch.plain_greedy ? token_of(highest_of_block(await_best(step_ - 1, kBest))) : choose(now.start + now.width, made, step_);
    if (shared::over()) return;  // whatever was chosen, it is not an answer
    if (token == kAbortToken || token == kNoToken) return end(token == kNoToken ? kNotANumber : kAborted);
    token_ = static_cast<int32_t>(token);
    if (worker_index() == 0 && thread_index() == 0) post(token_, made);
    bool stop = false;
#pragma unroll 1
    for (int64_t i = 0; i < request.stop_count; i++) stop |= request.stop_tokens[i] == token_;
    if (stop || made + 1 == request.max_tokens) end(stop ? kStopped : kLengthReached);
  }

  MONOLANE_DEVICE void end(Status status) {
    left_ = true;
    if (thread_index() == 0) ptx::store_shared(&shared::flags()->status, status);
  }

  uint32_t step_ = 0;  // the tag of what this stage publishes: 1 to kMostTags
  int32_t token_ = kNone;
  int narrow_passes_ = 0;
  int position_ = static_cast<int>(monolane_launch.request.cached);
  bool left_ = false;
};

// The producer's twin of Consumer::run: the same passes in the same order.
MONOLANE_DEVICE void produce() {
  const Request& request = monolane_launch.request;
  const uint8_t* tape = monolane_launch.tapes[worker_index()];
  const int count = static_cast<int>(request.token_count);
  int position = static_cast<int>(request.cached);
  bool going = true;
  {
    Producer<true> wide;
    while (count - position > 1 && going) {
      const Pass now = wide_pass(position, count);
      position += now.width;
      if (lane_index() == 0) going = wide.pass(tape, now.start, now.last_of_prompt || request.scores);
      going = !ptx::any(!going);
    }
    if (lane_index() == 0) wide.drain();
  }
  sync_consumers_and_producer();
  if (lane_index() != 0) return;
  Producer<false> narrow;
  const int passes = (count - position) + (request.scores ? 0 : static_cast<int>(request.max_tokens) - 1);  // no more than fit the context
  for (int i = 0; i < passes && going && !shared::stopped(); i++) going = narrow.pass(tape, position + i, true);
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
    *shared::flags() = {};
    ptx::barrier_init_fence();
  }
  for (int p = thread; p < kProjections; p += kThreads)
    shared::own()[p] = {static_cast<int>(segment(p).first_tile), static_cast<int>(segment(p).tiles)};
  sync_block();
  if (warp_index() < kConsumerWarps) {
    ptx::take_registers<kConsumerRegisters>();
    Consumer().run();
  } else {
    ptx::give_registers<kProducerRegisters>();
    if (warp_index() == kConsumerWarps) produce();
    if (warp_index() == kConsumerWarps + 1 && lane_index() == 0) Attendant().run();
    if (warp_index() == kConsumerWarps + 2) Prefetcher().run();
  }
}
