// The threads of a measurement: each is pinned to its own processor, and all start their work at the same moment.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

inline void pin(int processor) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a failure costs speed, not correctness, and is ignored
#else
  (void)processor;
#endif
}

// Calls work(thread) in every thread. Returns the seconds from the moment all threads are ready until the last one has finished.
template <class Work>
double run_pinned(int threads, const int32_t* processors, Work work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; t++)
    workers.emplace_back([&, t] {
      pin(processors[t]);
      ready++;
      while (!go) {
      }
      work(t);
    });
  while (ready < threads) std::this_thread::yield();
  const auto start = Clock::now();
  go = true;
  for (auto& worker : workers) worker.join();
  return seconds_since(start);
}
