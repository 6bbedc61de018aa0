// How long a word takes from this GPU to the host and back: the kernel writes a number where the host sees it, the host
// writes the same number where the kernel looks. Without rounds it only says that it is there. The lines generated before this one
// include ptx.cuh (or emulate.hpp) and define AnswerLaunch of latency_gpu.py as Launch.

constexpr int kThreads = 32;

namespace monolane {

constexpr int kLooksPerClock = 16;

MONOLANE_DEVICE bool hears(uint32_t round, int64_t deadline) {
  for (int looks = 1; ptx::load_system(monolane_launch.heard) != round; looks++)
    if (looks % kLooksPerClock == 0 && ptx::now_ns() > deadline) {
      ptx::store_relaxed(monolane_launch.failed, 1u);
      return false;
    }
  return true;
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  if (ptx::block_index() != 0 || ptx::thread_index() != 0) return;
  const int64_t deadline = ptx::now_ns() + monolane_launch.deadline_ns;
  const uint32_t rounds = monolane_launch.rounds;
  for (uint32_t round = 1; round <= rounds; round++) {
    const int64_t began = ptx::now_ns();
    ptx::store_system_release(monolane_launch.said, round);
    if (!hears(round, deadline)) break;
    monolane_launch.took[round - 1] = ptx::now_ns() - began;
  }
  ptx::store_system_release(monolane_launch.said, rounds + 1);
}
