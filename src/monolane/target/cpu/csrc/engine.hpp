// The engine: worker threads that serve one request after the other. A request runs prefill passes of up to kPassRows = 16 rows, then decode passes of
// 1 row; the workers sample every token and check the stop conditions. The host starts a request, reads its tokens, and may set an abort flag, which
// is read once per pass. The C functions at the end are the interface to native.py.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "attend.hpp"
#include "embed.hpp"
#include "project.hpp"
#include "sample.hpp"
#include "trace.hpp"

namespace monolane {

class Engine {
 public:
  explicit Engine(const Setup& setup) : shared_(setup), sampler_(setup.workers, shared_.handoff), entries_(setup.context) {
    for (int w = 0; w < setup.workers; w++) watches_.emplace_back(shared_.handoff.pulse(w));
    try {
      for (int w = 0; w < setup.workers; w++) threads_.emplace_back([this, w] { serve(w); });
    } catch (...) {  // a thread could not be created: the threads that run must end before the members they wait on are destroyed
      close();
      throw;
    }
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
    shared_.cache = cache;
    trace_ = trace;
    sampler_.begin(request);
    made_ = 0;
    leave_at_ = kNever;
    status_ = kRunning;
    working_ = shared_.setup.workers;
    start_ns_ = now_ns();
    round_++;
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
    for (Watch& watch : watches_) steps_ += watch.beats() || watch.starved();
    return steps_;
  }

  Stall stall() const { return shared_.handoff.stall(); }

 private:
  static constexpr uint64_t kNever = UINT64_MAX;

  bool ended() const { return status_ == kStuck || (status_ != kRunning && working_ == 0); }

  // Whether this worker's latest hand-off was the last one of the request. The number of the hand-off decides, not a flag: a fast worker may already
  // have ended the request at the next hand-off while a slow worker still evaluates this one.
  bool left(const Worker& worker) const { return leave_at_ <= shared_.handoff.step(worker.id); }

  void serve(int index) {
    pin(index);
    shared_.handoff.pulse(index).begin();
    Worker worker(index, shared_);
    for (int64_t round = 1;; round++) {
      {
        std::unique_lock lock(mutex_);
        wake_workers_.wait(lock, [&] { return closing_ || round_ >= round; });
        if (closing_) return;
      }
      const bool together = work(worker);
      std::lock_guard lock(mutex_);
      if (!together) status_ = kStuck;
      working_--;
      wake_host_.notify_all();
      if (!together) return;  // the workers' steps differ from now on, so no further hand-off can succeed
    }
  }

  void pin(int index) {
#if defined(__linux__)
    if (!shared_.setup.processors) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(shared_.setup.processors[index], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a refusal costs speed, not correctness
#endif
  }

  // Runs one request; every worker calls this. Returns false when a hand-off has failed because a worker is stuck.
  bool work(Worker& worker) {
    int64_t position = request_.cached;
    while (position < request_.token_count) {
      Pass pass;
      pass.start = position;
      pass.rows = static_cast<int>(std::min<int64_t>(kPassRows, request_.token_count - position));
      std::copy_n(request_.tokens + position, pass.rows, pass.tokens);
      const bool last = position + pass.rows == request_.token_count;
      pass.logits_from = request_.all_logits ? 0 : pass.rows - (last ? 1 : 0);
      if (!run(worker, pass)) return false;
      if (left(worker)) return true;
      position += pass.rows;
    }
    if (request_.all_logits) {
      if (worker.id == 0) finish(worker, kLengthReached);
      return true;
    }
    for (;; position++) {
      Pass pass{position, 1, 0, {entries_[made_.load() - 1].token}};
      if (!run(worker, pass)) return false;
      if (left(worker)) return true;
    }
  }

  bool run(Worker& worker, const Pass& pass) {
    for (int s = 0; s < kStages_; s++) {
      const Stage& stage = kStages[s];
      if (pass.logits_from == pass.rows && s >= kStages_ - 2) break;  // the logits of this pass are not needed: no head, no sampling
      if (worker.id == kStallWorker && s == kStallStage) std::this_thread::sleep_for(std::chrono::seconds(kStallSeconds));
      mark(worker, pass, s, kHadInput);
      switch (stage.kind) {
        case Kind::kEmbed:
          // Worker 0 reads the abort flag, and all workers leave at the hand-off that follows.
          if (worker.id == 0 && abort_ == round_) finish(worker, kAborted);
          embed(worker, stage, pass);
          break;
        case Kind::kProject:
          project(worker, stage, pass);
          break;
        case Kind::kAttend:
          attend(worker, stage, pass);
          break;
        case Kind::kSample:
          if (!sample(worker, s, pass)) return false;
          break;
      }
      mark(worker, pass, s, kEnded);
      if (!shared_.handoff.pass(worker.id, s)) return false;
      if (left(worker)) return true;
    }
    return true;
  }

  void mark(const Worker& worker, const Pass& pass, int stage, Mark what) const {
    if (trace_.stamps) write_stamp(trace_, pass.start - request_.token_count, shared_.setup.workers, worker.id, stage, what);
  }

  // The sampling stage, or the copy of all logits where the request wants them. Returns false when a hand-off has failed.
  bool sample(const Worker& worker, int stage, const Pass& pass) {
    const int logits = kStages[stage].reads;
    if (request_.all_logits) {
      for (int p = 0; p < pass.rows && worker.id == 0; p++)
        std::copy_n(shared_.row(logits, p), kVocab, request_.all_logits + (pass.start - request_.cached + p) * kVocab);
      return true;
    }
    try {
      Entry& entry = entries_[made_];
      switch (sampler_.choose(worker.id, stage, shared_.row(logits, 0), pass.start + pass.rows, entry)) {
        case Sampler::kMine:
          publish(worker, entry);
          break;
        case Sampler::kNoNumbers:
          if (worker.id == 0) finish(worker, kNotANumber);
          break;
        case Sampler::kOthers:
          break;
      }
    } catch (const Stuck&) {
      return false;
    }
    return true;
  }

  // Makes a token visible to the host; called by the worker whose share of the vocabulary has the token.
  void publish(const Worker& worker, Entry& entry) {
    entry.time_ns = now_ns();
    const int64_t made = made_ + 1;
    const bool stop = std::find(request_.stop_tokens, request_.stop_tokens + request_.stop_count, entry.token) !=
                      request_.stop_tokens + request_.stop_count;
    if (stop || made == request_.max_tokens) finish(worker, stop ? kStopped : kLengthReached);
    std::lock_guard lock(mutex_);
    made_ = made;
    wake_host_.notify_all();
  }

  // Ends the request; called by one worker. All workers leave at the hand-off that follows.
  void finish(const Worker& worker, Status status) {
    std::lock_guard lock(mutex_);
    status_ = status;
    leave_at_ = shared_.handoff.step(worker.id) + 1;
  }

  Shared shared_;
  Sampler sampler_;
  Request request_{};
  Trace trace_{};
  std::vector<Entry> entries_;
  std::vector<std::thread> threads_;
  std::vector<Watch> watches_;
  uint64_t steps_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_workers_, wake_host_;
  std::atomic<int64_t> made_{0};
  std::atomic<int64_t> abort_{0}, round_{0};
  std::atomic<uint64_t> leave_at_{kNever};
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
