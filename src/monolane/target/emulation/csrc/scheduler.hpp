// How thread blocks run: each in one thread of the operating system, turn after turn, until all its fibers have left the kernel. A thread block
// whose fibers only poll yields its core to the other thread blocks. When no thread block makes progress, the process ends with a report of
// what each fiber waits for.
#pragma once

#include <sched.h>

#include <map>
#include <string>
#include <thread>

#include "machine.hpp"

namespace monolane::emulate {

constexpr int kIdleTurns = 8;  // turns without progress after which a thread block yields its core
constexpr size_t kStack = (MONOLANE_TSAN ? 256 : 64) * 1024;  // bytes of a fiber's stack; ThreadSanitizer needs some for its reports

inline Block::Block(Run& run_, int index_, int threads_, size_t shared_bytes_)
    : run(run_),
      index(index_),
      threads(threads_),
      shared_bytes(shared_bytes_),
      shared_pages(shared_bytes_ + 128),
      shared(shared_pages.end() - (shared_bytes_ + 127) / 128 * 128),  // ends at the guard page
      fibers(new Fiber[static_cast<size_t>(threads_)]),
      warps(new Warp[static_cast<size_t>(threads_ / kLanes)]),
      random(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(index_)) {
  std::memset(shared, 0xff, shared_bytes);  // NaN when read as floats
  for (int i = 0; i < threads; ++i) {
    fibers[i].index = i;
    fibers[i].warp = &warps[i / kLanes];
    stacks.push_back(std::make_unique<Pages>(kStack));
  }
}

// The end of a fiber. The scheduler does not resume it.
MONOLANE_UNTRACKED void leave() {
  Block& self = *here;
  Fiber& fiber = *self.current;
  Warp& warp = *fiber.warp;
  if (warp.meeting.arrived > 0) fail("leaves the kernel while its warp waits at %s", warp.meeting.what);
  ++warp.finished;
  ++self.finished;
  fiber.finished = self.progress = true;
  give_turn("nothing: it has left");
}

inline void fiber_main() {
  Block& self = block();
  self.run.kernel();
  __atomic_fetch_add(&self.ended, 1, __ATOMIC_RELEASE);
  leave();
}

// One turn: resumes every fiber that can run. Returns whether there was one, or one that is only delayed.
MONOLANE_UNTRACKED bool give_turns(Block& self, Fiber* fibers) {
  bool awake = false;
  for (int i = 0; i < self.threads; ++i) {
    Fiber& fiber = fibers[i];
    if (fiber.finished || (fiber.gate != nullptr && *fiber.gate == fiber.closed)) continue;
    awake = true;
    if (fiber.delay > 0 && --fiber.delay > 0) continue;
    fiber.gate = nullptr;
    self.current = &fiber;
    switch_context(self.scheduler, fiber.context);
    self.current = nullptr;
  }
  return awake;
}

MONOLANE_UNTRACKED const char* waits_of(const Fiber& fiber) { return fiber.waits; }
MONOLANE_UNTRACKED bool all_left(const Block& block) { return block.finished == block.threads; }
// Whether there was progress since the last call. Copies in flight count as progress.
MONOLANE_UNTRACKED bool take_progress(Block& block) {
  const bool progress = block.progress || block.in_flight > 0;
  block.progress = false;
  return progress;
}

// Reports, for every thread block, how many threads wait for what.
inline void Block::deadlock() {
  std::string report = "deadlock: no progress";
  for (const auto& each : run.blocks) {
    std::map<std::string, int> waiting;
    for (int i = 0; i < threads; ++i) ++waiting[waits_of(each->fibers[i])];
    report += "\n  block " + std::to_string(each->index) + ":";
    for (const auto& [what, count] : waiting) report += " " + std::to_string(count) + " threads wait for " + what + ";";
  }
  fail("%s", report.c_str());
}

inline void Block::execute() {
  here = this;
  scheduler.begin_here();
  for (int i = 0; i < threads; ++i) fibers[i].context.begin(*stacks[i], i, fiber_main);
  for (int idle_turns = 0; !all_left(*this);) {
    const bool awake = give_turns(*this, fibers.get());
    land_copies();
    if (take_progress(*this)) {
      idle_turns = 0;
      __atomic_store_n(&run.progress_ns, steady_ns(), __ATOMIC_RELAXED);
    } else if (!awake) {
      deadlock();  // every fiber waits at a meeting of this thread block
    } else if (++idle_turns > kIdleTurns) {
      if (steady_ns() - __atomic_load_n(&run.progress_ns, __ATOMIC_RELAXED) > patience_s * 1e9) deadlock();
      sched_yield();
    }
  }
  (void)__atomic_load_n(&ended, __ATOMIC_ACQUIRE);
  for (int i = 0; i < threads; ++i) fibers[i].context.end();
  if (in_flight > 0) fail("block %d has ended with %d copies in flight", index, in_flight);
  here = nullptr;
}

// Runs the kernel as <<<blocks, threads, shared_bytes>>> would, and returns when all threads have left it.
template <class Launch>
void launch(void (*kernel)(Launch), const Launch& launch, int blocks, int threads, size_t shared_bytes) {
  if (blocks < 1 || threads < kLanes || threads > kMostThreads || threads % kLanes != 0 || shared_bytes > kMostShared)
    fail("cannot launch %d blocks of %d threads and %zu bytes: threads are whole warps, at most %d; bytes at most %zu",
         blocks, threads, shared_bytes, kMostThreads, kMostShared);
  Run run;
  run.kernel = [&] { kernel(launch); };
  run.progress_ns = steady_ns();
  for (int i = 0; i < blocks; ++i) run.blocks.push_back(std::make_unique<Block>(run, i, threads, shared_bytes));
  std::vector<std::jthread> running;
  for (const auto& block : run.blocks) running.emplace_back([&block] { block->execute(); });
}

}  // namespace monolane::emulate
