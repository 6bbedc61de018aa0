// Measures how long pinned CPU threads take to synchronise: by a hand-off in tagged words (each thread publishes one word and reads the
// words of all), by a barrier on one counter, by a ping-pong between two threads, and by waking threads that sleep on a condition
// variable. Every wait has a deadline.
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "pinned.hpp"

namespace {

enum Kind { kNothing = 0, kWords = 1, kCounter = 2 };  // as in cpu.py
constexpr int kPollsPerClockRead = 1024;               // the clock is read once per so many polls
constexpr int64_t kLine = 64;                          // bytes of a cache line

struct alignas(64) Word {
  std::atomic<uint64_t> value{0};
};

// A deadline that all threads of a measurement share: after one thread has missed it, the waits of all threads return false.
class Deadline {
 public:
  explicit Deadline(double seconds) : latest_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  // Polls ready() until it is true. False after the deadline.
  template <class Ready>
  bool wait(Ready ready) {
    for (int polls = 1; !ready(); polls++) {
      if (polls % kPollsPerClockRead) continue;
      if (Clock::now() > latest_) failed_ = true;
      if (failed_) return false;
      std::this_thread::yield();  // the thread that is waited for may need this processor
    }
    return true;
  }
  bool failed() const { return failed_; }

 private:
  Clock::time_point latest_;
  std::atomic<bool> failed_{false};
};

// Loads 8 bytes of every cache line, which brings the whole line in.
uint64_t read_piece(const uint8_t* p, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes; i += kLine) {
    uint64_t loaded;
    std::memcpy(&loaded, p + i, sizeof loaded);
    sum += loaded;
  }
  return sum;
}

// Synchronises all threads once per round, by tagged words or by one counter.
class Synchronizer {
 public:
  Synchronizer(int threads, double deadline_s) : threads_(threads), words_(2 * threads), deadline_(deadline_s) {}

  // Returns when every thread has entered this round; false after the deadline. There are two sets of words, used in alternate rounds. A thread
  // overwrites its word two rounds later, after it has seen every thread's word of the round between, so every thread has read the old word.
  bool wait(Kind kind, int thread, uint64_t round) {
    if (kind == kNothing) return true;
    if (kind == kCounter) {
      arrived_.fetch_add(1, std::memory_order_release);
      return deadline_.wait([&] { return arrived_.load(std::memory_order_acquire) >= round * threads_; });
    }
    Word* words = words_.data() + (round & 1) * threads_;
    words[thread].value.store(round, std::memory_order_relaxed);
    for (int other = 0; other < threads_; other++)
      if (!deadline_.wait([&] { return words[other].value.load(std::memory_order_relaxed) == round; })) return false;
    return true;
  }
  bool failed() const { return deadline_.failed(); }

 private:
  const uint64_t threads_;
  std::vector<Word> words_;
  alignas(64) std::atomic<uint64_t> arrived_{0};
  Deadline deadline_;
};

}  // namespace

extern "C" {

// Returns the seconds that all rounds take together, or -1 after the deadline. In each round every thread reads the next piece of its buffer
// and then synchronises with the others. With pieces of 0 bytes memory is idle.
double monolane_sync_seconds(int kind, int threads, const int32_t* processors, int rounds, const uint8_t* const* buffers, int64_t buffer_bytes, int64_t piece_bytes, double deadline_s, uint64_t* sink) {
  Synchronizer all(threads, deadline_s);
  const double seconds = run_pinned(threads, processors, [&](int t) {
    uint64_t sum = 0;
    int64_t offset = 0;
    for (int round = 1; round <= rounds; round++) {
      if (piece_bytes) sum += read_piece(buffers[t] + offset, piece_bytes);
      offset = offset + 2 * piece_bytes > buffer_bytes ? 0 : offset + piece_bytes;
      if (!all.wait(static_cast<Kind>(kind), t, round)) break;
    }
    sink[t] = sum;
  });
  return all.failed() ? -1 : seconds;
}

// Writes, for each round, the seconds from notifying the sleeping threads until the last of them is awake. False after the deadline.
bool monolane_wake_seconds(int threads, const int32_t* processors, int rounds, double deadline_s, double* seconds) {
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> awake{0}, asleep{0};
  int round = 0;  // guarded by the mutex
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; t++)
    workers.emplace_back([&, t] {
      pin(processors[t]);
      for (int mine = 1; mine <= rounds; mine++) {
        std::unique_lock lock(mutex);
        asleep++;
        wake.wait(lock, [&] { return round >= mine; });
        lock.unlock();
        awake++;
      }
    });
  Deadline deadline(deadline_s);
  for (int mine = 1; mine <= rounds; mine++) {
    deadline.wait([&] { return asleep >= mine * threads; });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // enough time for every thread to reach wake.wait() and sleep there
    const auto start = Clock::now();
    {
      std::lock_guard lock(mutex);
      round = mine;
    }
    wake.notify_all();
    deadline.wait([&] { return awake >= mine * threads; });
    seconds[mine - 1] = seconds_since(start);
  }
  for (auto& worker : workers) worker.join();
  return !deadline.failed();
}

// Returns the mean seconds of a round trip: thread 0 writes the round number to its word, thread 1 answers in its own. -1 after the deadline.
double monolane_ping_seconds(const int32_t* processors, int rounds, double deadline_s) {
  Word ping, pong;
  Deadline deadline(deadline_s);
  const double seconds = run_pinned(2, processors, [&](int t) {
    Word &mine = t ? pong : ping, &other = t ? ping : pong;
    for (uint64_t round = 1; round <= static_cast<uint64_t>(rounds); round++) {
      if (!t) mine.value.store(round, std::memory_order_release);
      if (!deadline.wait([&] { return other.value.load(std::memory_order_acquire) >= round; })) return;
      if (t) mine.value.store(round, std::memory_order_release);
    }
  });
  return deadline.failed() ? -1 : seconds / rounds;
}
}
