// Time stamps of a request for `monolane trace`: when each worker began a stage and when it finished its share. Every worker writes its own stamps.
#pragma once
#include "state.hpp"

namespace monolane {

// Stamp 0, the time at which the worker began to wait for its input, is the end of the stage before; the host fills it in.
enum Mark : int { kHadInput = 1, kEnded = 2 };

// `pass`: number of the decode pass; prefill passes have negative numbers.
inline void write_stamp(const Trace& trace, int64_t pass, int workers, int worker, int stage, Mark what) {
  const int64_t place = pass - trace.first;
  if (place < 0 || place >= trace.passes) return;
  trace.stamps[((place * workers + worker) * kStages_ + stage) * 3 + what] = now_ns();
}

}  // namespace monolane
