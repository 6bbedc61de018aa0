// How long a word takes from this GPU to the host and back: the kernel writes a number where the host sees it, the host
// writes the same number where the kernel looks. Without rounds it only says that it is there. The line generated before this one
// includes ptx.cuh, or its twin for a CPU.

constexpr int kThreads = 32;

namespace monolane {

constexpr int kLooksPerClock = 16;

struct Launch {
  uint32_t* said;        // in the host's memory: the round; one more than there are when the kernel has ended
  const uint32_t* heard; // in the host's memory
  int64_t* took;         // [round], ns from saying to hearing
  uint32_t* failed;      // not 0: the host did not answer in time
  int64_t deadline_ns;   // for the whole launch
  int32_t rounds;
  int32_t unused;
};

}  // namespace monolane

extern "C" {
MONOLANE_LAUNCH monolane::Launch monolane_launch;
}

namespace monolane {

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
