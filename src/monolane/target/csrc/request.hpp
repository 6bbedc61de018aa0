// What crosses the border between host and kernel. The host's twin of each struct is in target/structs.py.
#pragma once

namespace monolane {

constexpr int kMaxLogprobs = 20;

struct Bias {
  int32_t token;
  int32_t unused;
  int64_t value;
};

struct Sampling {
  int32_t greedy, top_k;
  uint64_t rate, top_p, min_weight, seed;
  int64_t repeat_up, repeat_down, presence, frequency;
  const Bias* bias;
  int64_t bias_count;
};

struct Request {
  const int32_t* tokens;
  int64_t token_count, cached, max_tokens;
  const int32_t* stop_tokens;
  int64_t stop_count;
  int32_t logprobs;  // kNone: not asked for
  int32_t unused;
  float* all_logits;  // not null: store the logits after every token here, and sample nothing
  Sampling sampling;
};

// A sampled token as the host sees it.
struct Entry {
  int32_t token, top_count;
  int64_t time_ns, distance;
  uint64_t total;
  int64_t top_distances[kMaxLogprobs];
  int32_t top_tokens[kMaxLogprobs];
};

enum Status : int32_t { kRunning, kStopped, kLengthReached, kAborted, kStuck, kNotANumber };

}  // namespace monolane
