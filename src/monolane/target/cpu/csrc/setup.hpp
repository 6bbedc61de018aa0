// What the host prepares once for a loaded model: tapes, constants, and how workers run. native.py has the same structs.
#pragma once

namespace monolane {

struct Setup {
  int32_t workers, context;  // context: most positions of a sequence
  const Segment* segments;  // [workers][projections]
  const uint8_t* const* tapes;  // [workers]
  const float* constants;       // weights of norms, and biases
  const uint16_t* table;        // the embedding table, bf16; null where it is tied to the output head
  const int32_t* processors;    // the processor of each worker, or null: workers are not pinned
  double deadline_s;            // seconds without a beat after which a worker counts as stuck
};

// The KV cache of one sequence; attend.hpp has its layout.
struct Cache {
  void* keys;
  void* values;
};

}  // namespace monolane
