// The engine: worker threads that serve one request after the other. A request runs prefill passes of up to kPassRows = 16 rows, then decode passes of
// 1 row; the workers sample every token and check the stop conditions. The host starts a request, reads its tokens, and may set an abort flag, which
// is read once per pass. The C functions at the end are the interface to native.py.
//
// Every lane has as many workers as every other, and all lanes run the same passes. A process has all lanes, or some of them beside other processes
// that have the rest. The first lane of a process gives tokens to its host. A thread runs one worker, or, where there are fewer threads than lanes, the
// only worker of several lanes, stage by stage.
#pragma once
#include <condition_variable>
#include <mutex>
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "attend.hpp"
#include "embed.hpp"
#include "exchange.hpp"
#include "project.hpp"
#include "sample.hpp"
#include "trace.hpp"

namespace monolane {

class Engine {
 public:
  explicit Engine(const Setup& setup)
      : setup_(setup),
        own_memory_(setup.shared ? nullptr : make_floats(shared_bytes(setup.workers) / sizeof(float))),
        region_(setup.shared ? setup.shared : own_memory_.get()),
        handoff_(region_, kLanes, setup.workers, setup.deadline_s),
        mailbox_(region_),
        entries_(setup.context) {
    for (int lane = setup.first_lane; lane < setup.first_lane + setup.lanes; lane++) {
      lanes_.push_back(std::make_unique<Lane>(lane, setup_, mailbox_));
      samplers_.push_back(std::make_unique<Sampler>(lane * setup.workers, setup.workers, handoff_));
    }
    try {
      for (int t = 0; t < setup.threads; t++) threads_.emplace_back([this, t] { serve(t); });
    } catch (...) {  // a thread could not be created: the threads that run must end before the members they wait on are destroyed
      close();
      throw;
    }
  }

  // Bytes of the memory that lanes share, in whole pages.
  static size_t shared_bytes(int workers) {
    constexpr size_t kPage = 4096;
    Region region(nullptr);
    Handoff(region, kLanes, workers, 0.0);
    Mailbox{region};
    return (region.size() + kPage - 1) / kPage * kPage;
  }

  ~Engine() { close(); }

  void close() {
    abort(round_);
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_workers_.notify_all();
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

  // Starts a request. Returns its number, by which it can be aborted, or 0 where it cannot start.
  int64_t start(const Request& request, const Cache& cache, const Trace& trace) {
    std::lock_guard lock(mutex_);
    if (working_ != 0 || status_ == kStuck) return 0;
    request_ = request;
    trace_ = trace;
    for (auto& lane : lanes_) {
      lane->cache = cache;
      lane->made = 0;
      lane->leave_at = Lane::kNever;
      samplers_[lane->local_index]->begin(request);
    }
    made_ = 0;
    status_ = kRunning;
    working_ = setup_.threads;
    start_ns_ = now_ns();
    round_++;
    std::lock_guard watching(watches_mutex_);
    watches_.clear();
    for (int w = 0; w < setup_.lanes * setup_.workers; w++) watches_.emplace_back(handoff_.pulse(first_worker() + w), round_.load());
    wake_workers_.notify_all();
    return round_;
  }

  // Aborts the request with this number only: where it has already ended, the next request must go on.
  void abort(int64_t round) { abort_ = round; }

  // Waits until the request has made more than `seen` tokens or has ended, for `timeout_ms` at most. Returns the number of tokens.
  int64_t wait(int64_t seen, int timeout_ms) {
    std::unique_lock lock(mutex_);
    wake_host_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return made_ > seen || ended(); });
    return made_;
  }

  // The final status once every worker has left the request; kRunning before that.
  int32_t status() {
    std::lock_guard lock(mutex_);
    return ended() ? status_ : static_cast<int32_t>(kRunning);
  }

  const Entry* entries() const { return entries_.data(); }
  int64_t start_ns() const { return start_ns_; }

  // A number that grows as long as the workers are alive. A worker that the operating system gives no processor time counts as alive. Only one thread
  // at a time may call this.
  uint64_t steps() {
    std::lock_guard watching(watches_mutex_);
    for (Watch& watch : watches_) steps_ += watch.beats() || watch.starved();
    return steps_;
  }

  Stall stall() const { return handoff_.stall(); }

 private:
  using Workers = std::vector<std::unique_ptr<Worker>>;

  bool ended() const { return status_ == kStuck || (status_ != kRunning && working_ == 0); }

  // Whether this worker's latest hand-off was the last one of the request. The number of the hand-off decides, not a flag: a fast worker may already
  // have ended the request at the next hand-off while a slow worker still evaluates this one.
  bool left(const Worker& worker) const { return worker.lane.leave_at <= handoff_.step(worker.id); }

  void serve(int thread) {
    pin(thread);
    Workers workers;
    for (int w = thread; w < setup_.lanes * setup_.workers; w += setup_.threads)
      workers.push_back(std::make_unique<Worker>(first_worker() + w, w % setup_.workers, *lanes_[w / setup_.workers], handoff_));
    for (int64_t round = 1;; round++) {
      {
        std::unique_lock lock(mutex_);
        wake_workers_.wait(lock, [&] { return closing_ || round_ >= round; });
        if (closing_) return;
      }
      for (auto& worker : workers) handoff_.pulse(worker->id).begin(round);
      const bool together = work(workers);
      std::lock_guard lock(mutex_);
      if (!together) status_ = kStuck;
      working_--;
      wake_host_.notify_all();
      if (!together) return;  // the workers' steps differ from now on, so no further hand-off can succeed
    }
  }

  void pin(int thread) {
#if defined(__linux__)
    if (!setup_.processors) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(setup_.processors[thread], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a refusal costs speed, not correctness
#endif
  }

  // Runs one request; every thread calls this. Returns false when a hand-off has failed because a worker is stuck.
  bool work(Workers& workers) {
    int64_t position = request_.cached, number = 0;
    for (; position < request_.token_count; number++) {
      Pass pass;
      pass.number = number;
      pass.start = position;
      pass.rows = static_cast<int>(std::min<int64_t>(kPassRows, request_.token_count - position));
      std::copy_n(request_.tokens + position, pass.rows, pass.tokens);
      const bool last = position + pass.rows == request_.token_count;
      pass.logits_from = request_.all_logits ? 0 : pass.rows - (last ? 1 : 0);
      if (!run(workers, pass)) return false;
      if (left(*workers[0])) return true;
      position += pass.rows;
    }
    if (request_.all_logits) {
      if (workers[0]->id == first_worker()) finish(*workers[0], kLengthReached);
      return true;
    }
    for (;; position++, number++) {
      Pass pass{number, position, 1, 0, {workers[0]->lane.token}};
      if (!run(workers, pass)) return false;
      if (left(*workers[0])) return true;
    }
  }

  bool run(Workers& workers, const Pass& pass) {
    for (int s = 0; s < kStages_; s++) {
      if (pass.logits_from == pass.rows && s >= kFirstLogitsStage) break;  // the logits of this pass are not needed: no head, no sampling
      for (auto& worker : workers) {
        if (worker->id == kStallWorker && s == kStallStage) std::this_thread::sleep_for(std::chrono::seconds(kStallSeconds));
        mark(*worker, pass, s, kHadInput);
        if (!begin(*worker, s, pass)) return false;
      }
      for (auto& worker : workers) {
        if (!end(*worker, s, pass)) return false;
        mark(*worker, pass, s, kEnded);
        if (!kStageWeights[s].goes_on) handoff_.announce(worker->id, s);
      }
      if (kStageWeights[s].goes_on) continue;
      for (auto& worker : workers)
        if (!handoff_.wait(worker->id, s)) return false;
      if (left(*workers[0])) return true;
    }
    return true;
  }

  // A worker's share of a stage, up to what it sends to other lanes. Returns false when a worker is stuck.
  bool begin(Worker& worker, int s, const Pass& pass) {
    const Stage& stage = kStages[s];
    switch (stage.kind) {
      case Kind::kEmbed:
        if (worker.rank == 0 && !check_abort(worker, s, pass)) return false;
        embed(worker, stage, pass);
        return true;
      case Kind::kProject:
        project(worker, stage, kStageWeights[s], kLanes > 1 ? kStageExchanges[s].slot : kNone, pass);
        if (kLanes > 1 && stage.output != Output::kStore && stage.output != Output::kGate) worker.send(s);
        return true;
      case Kind::kAttend:
        attend(worker, stage, pass);
        return true;
      case Kind::kCombine:
        offer_stream(worker, s, pass);
        worker.send(s);
        return true;
      case Kind::kSample:
        return receive_logits(worker, s - 1, s) && sample(worker, s, pass);
    }
    return true;
  }

  // The rest of the stage, which needs what other lanes have sent.
  bool end(Worker& worker, int s, const Pass& pass) {
    const Stage& stage = kStages[s];
    if (stage.kind == Kind::kCombine) return join_streams(worker, s, pass);
    if (kLanes > 1 && stage.kind == Kind::kProject && stage.output == Output::kResidual) return add_outputs(worker, s, pass);
    return true;
  }

  // The first worker of lane 0 reads the abort flag, and the workers of every lane leave at the hand-off that follows. Other lanes may be further than
  // lane 0, but not by a whole pass: where there are any, they leave in the pass after this one. Returns false when a worker is stuck.
  bool check_abort(Worker& worker, int s, const Pass& pass) {
    const uint64_t none = Mailbox::place(round_, 0), now = Mailbox::place(round_, pass.number);
    if (worker.id == 0) {
      if (abort_ == round_ && mailbox_.aborted() < none) mailbox_.aborted() = now + (kLanes > 1);
      mailbox_.begun().store(now + 1, std::memory_order_release);
    } else if (pass.number > 0) {
      // Lane 0 has begun the pass before, so it has decided about this one.
      if (!handoff_.receive_count(worker.id, 0, mailbox_.begun(), now, s)) return false;
    }
    if (mailbox_.aborted() >= none && mailbox_.aborted() <= now) finish(worker, kAborted);
    return true;
  }

  void mark(const Worker& worker, const Pass& pass, int stage, Mark what) const {
    if (trace_.stamps) write_stamp(trace_, pass.start - request_.token_count, setup_.lanes * setup_.workers, worker.id - first_worker(), stage, what);
  }

  // The sampling stage, or the copy of all logits where the request wants them. Returns false when a hand-off has failed.
  bool sample(Worker& worker, int stage, const Pass& pass) {
    Lane& lane = worker.lane;
    if (request_.all_logits) {
      for (int p = 0; p < pass.rows && worker.id == 0; p++)
        std::copy_n(mailbox_.logits(pass, p), kVocab, request_.all_logits + (pass.start - request_.cached + p) * kVocab);
      return true;
    }
    try {
      Entry other_lanes;  // nobody reads it
      Entry& entry = lane.local_index == 0 ? entries_[lane.made] : other_lanes;
      switch (samplers_[lane.local_index]->choose(worker.rank, stage, mailbox_.logits(pass, 0), pass.start + pass.rows, entry)) {
        case Sampler::kMine:
          publish(worker, entry);
          break;
        case Sampler::kNoNumbers:
          if (worker.rank == 0) finish(worker, kNotANumber);
          break;
        case Sampler::kOthers:
          break;
      }
    } catch (const Stuck&) {
      return false;
    }
    return true;
  }

  // Makes a token known to the lane and, in the first lane of the process, visible to the host; called by the worker whose share of the vocabulary has the token.
  void publish(const Worker& worker, Entry& entry) {
    Lane& lane = worker.lane;
    entry.time_ns = now_ns();
    lane.token = entry.token;
    lane.made++;
    const bool stop = std::find(request_.stop_tokens, request_.stop_tokens + request_.stop_count, entry.token) !=
                      request_.stop_tokens + request_.stop_count;
    if (stop || lane.made == request_.max_tokens) finish(worker, stop ? kStopped : kLengthReached);
    if (lane.local_index != 0) return;
    std::lock_guard lock(mutex_);
    made_ = lane.made;
    wake_host_.notify_all();
  }

  // Ends the request; called by one worker of every lane. The workers of the lane leave at the hand-off that follows.
  void finish(const Worker& worker, Status status) {
    worker.lane.leave_at = handoff_.step(worker.id) + 1;
    if (worker.lane.local_index != 0) return;
    std::lock_guard lock(mutex_);
    status_ = status;
  }

  int first_worker() const { return setup_.first_lane * setup_.workers; }

  const Setup setup_;
  Floats own_memory_;
  Region region_;
  Handoff handoff_;
  Mailbox mailbox_;
  std::vector<std::unique_ptr<Lane>> lanes_;        // those of this process
  std::vector<std::unique_ptr<Sampler>> samplers_;  // one for each of them
  Request request_{};
  Trace trace_{};
  std::vector<Entry> entries_;
  std::vector<std::thread> threads_;
  std::vector<Watch> watches_;
  std::mutex watches_mutex_;  // apart from mutex_: a worker that waited for a lock held here would look as if it slept
  uint64_t steps_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_workers_, wake_host_;
  std::atomic<int64_t> made_{0};
  std::atomic<int64_t> abort_{0}, round_{0};
  int32_t status_ = kStopped;
  int working_ = 0;
  int64_t start_ns_ = 0;
  bool closing_ = false;
};

}  // namespace monolane

extern "C" {
using monolane::Engine;
void* monolane_open(const monolane::Setup* setup) {
  try {
    return new Engine(*setup);
  } catch (...) {  // buffers could not be allocated or threads could not be created
    return nullptr;
  }
}
int64_t monolane_shared_bytes(int32_t workers) { return static_cast<int64_t>(Engine::shared_bytes(workers)); }
// Returns 0 when a worker is stuck: the worker may still use the engine and its memory, so neither may be freed.
int monolane_close(void* engine) {
  if (static_cast<Engine*>(engine)->status() == monolane::kStuck) return 0;
  delete static_cast<Engine*>(engine);
  return 1;
}
int64_t monolane_start(void* engine, const monolane::Request* request, const monolane::Cache* cache, const monolane::Trace* trace) {
  return static_cast<Engine*>(engine)->start(*request, *cache, *trace);
}
void monolane_abort(void* engine, int64_t round) { static_cast<Engine*>(engine)->abort(round); }
int64_t monolane_wait(void* engine, int64_t seen, int timeout_ms) { return static_cast<Engine*>(engine)->wait(seen, timeout_ms); }
int32_t monolane_status(void* engine) { return static_cast<Engine*>(engine)->status(); }
const void* monolane_entries(void* engine) { return static_cast<Engine*>(engine)->entries(); }
int64_t monolane_start_ns(void* engine) { return static_cast<Engine*>(engine)->start_ns(); }
uint64_t monolane_steps(void* engine) { return static_cast<Engine*>(engine)->steps(); }
void monolane_stall(void* engine, int32_t* out) {
  const monolane::Stall stall = static_cast<Engine*>(engine)->stall();
  out[0] = stall.worker, out[1] = stall.missing, out[2] = stall.stage;
}
}
