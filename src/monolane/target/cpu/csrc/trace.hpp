// Time stamps of a request, for `monolane trace`: when each worker took a stage up, and when its share was done.
#pragma once
#include "state.hpp"

namespace monolane {

enum Mark : int { kHadInput = 1, kEnded = 2 };  // 0, when it began to wait, is the end of the stage before: the host knows

// Its twin is in native.py.
struct Trace {
  int64_t* stamps;        // ns, [pass][worker][stage][3]; null: nothing is traced
  int64_t first, passes;  // of decoding: 0 is the one that takes the answer's first token in

  // Passes of the prompt have negative numbers.
  void mark(int64_t pass, int workers, int worker, int stage, Mark what) const {
    const int64_t place = pass - first;
    if (place < 0 || place >= passes) return;
    stamps[((place * workers + worker) * kStages_ + stage) * 3 + what] = now_ns();
  }
};

}  // namespace monolane
