// Threads of a measurement: each on a processor of its own, all let go at the same moment.
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
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a refusal costs speed, not correctness
#else
  (void)processor;
#endif
}

// Seconds from the moment all threads are ready to the moment the last has done its work(thread).
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
