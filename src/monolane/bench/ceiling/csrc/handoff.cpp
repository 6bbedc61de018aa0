// What it costs threads of a CPU to hear of each other: in tagged words (each publishes one, each reads all), at a barrier on
// one counter, between two of them, and when they sleep. No wait is longer than its deadline.
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "pinned.hpp"

namespace {

enum Kind { kNothing = 0, kWords = 1, kCounter = 2 };
constexpr int kLooksPerClock = 1024;
constexpr int64_t kLine = 64;  // bytes

struct alignas(64) Word {
  std::atomic<uint64_t> value{0};
};

// A wait that gives up; then all do, because the deadline is the same.
class Patience {
 public:
  explicit Patience(double seconds) : latest_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  template <class Ready>
  bool wait(Ready ready) {
    for (int looks = 1; !ready(); looks++) {
      if (looks % kLooksPerClock) continue;
      if (Clock::now() > latest_) failed_ = true;
      if (failed_) return false;
      std::this_thread::yield();  // whom we wait for may need this processor
    }
    return true;
  }
  bool failed() const { return failed_; }

 private:
  Clock::time_point latest_;
  std::atomic<bool> failed_{false};
};

uint64_t read_piece(const uint8_t* p, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes; i += kLine) {
    uint64_t lane;
    std::memcpy(&lane, p + i, sizeof lane);
    sum += lane;
  }
  return sum;
}

class Meeting {
 public:
  Meeting(int threads, double deadline_s) : threads_(threads), words_(2 * threads), patience_(deadline_s) {}

  // A word is written again two rounds later, when all have answered the round between, and so have read it.
  bool pass(Kind kind, int thread, uint64_t round) {
    if (kind == kNothing) return true;
    if (kind == kCounter) {
      arrived_.fetch_add(1, std::memory_order_release);
      return patience_.wait([&] { return arrived_.load(std::memory_order_acquire) >= round * threads_; });
    }
    Word* words = words_.data() + (round & 1) * threads_;
    words[thread].value.store(round, std::memory_order_relaxed);
    for (int other = 0; other < threads_; other++)
      if (!patience_.wait([&] { return words[other].value.load(std::memory_order_relaxed) == round; })) return false;
    return true;
  }
  bool failed() const { return patience_.failed(); }

 private:
  const uint64_t threads_;
  std::vector<Word> words_;
  alignas(64) std::atomic<uint64_t> arrived_{0};
  Patience patience_;
};

}  // namespace

extern "C" {

// Seconds for so many rounds, in each of which a thread reads the next piece of its buffer, then meets the others; below 0 where they
// waited too long. A piece of 0 bytes: memory is idle.
double monolane_meet_seconds(int kind, int threads, const int32_t* processors, int rounds, const uint8_t* const* buffers, int64_t buffer_bytes, int64_t piece_bytes, double deadline_s, uint64_t* sink) {
  Meeting meeting(threads, deadline_s);
  const double seconds = run_pinned(threads, processors, [&](int t) {
    uint64_t sum = 0;
    int64_t place = 0;
    for (int round = 1; round <= rounds; round++) {
      if (piece_bytes) sum += read_piece(buffers[t] + place, piece_bytes);
      place = place + 2 * piece_bytes > buffer_bytes ? 0 : place + piece_bytes;
      if (!meeting.pass(static_cast<Kind>(kind), t, round)) break;
    }
    sink[t] = sum;
  });
  return meeting.failed() ? -1 : seconds;
}

// Seconds from waking sleeping threads until the last of them is awake, for each round; false where one did not wake.
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
  Patience patience(deadline_s);
  for (int mine = 1; mine <= rounds; mine++) {
    patience.wait([&] { return asleep >= mine * threads; });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // by now they sleep
    const auto start = Clock::now();
    {
      std::lock_guard lock(mutex);
      round = mine;
    }
    wake.notify_all();
    patience.wait([&] { return awake >= mine * threads; });
    seconds[mine - 1] = seconds_since(start);
  }
  for (auto& worker : workers) worker.join();
  return !patience.failed();
}

// Seconds for a word from one thread to another and back, mean of the rounds; below 0 where one waited too long.
double monolane_ping_seconds(const int32_t* processors, int rounds, double deadline_s) {
  Word said, heard;
  Patience patience(deadline_s);
  const double seconds = run_pinned(2, processors, [&](int t) {
    Word &mine = t ? heard : said, &other = t ? said : heard;
    for (uint64_t round = 1; round <= static_cast<uint64_t>(rounds); round++) {
      if (!t) mine.value.store(round, std::memory_order_release);
      if (!patience.wait([&] { return other.value.load(std::memory_order_acquire) >= round; })) return;
      if (t) mine.value.store(round, std::memory_order_release);
    }
  });
  return patience.failed() ? -1 : seconds / rounds;
}
}
