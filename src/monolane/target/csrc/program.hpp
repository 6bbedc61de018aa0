// What the generated source fills in: the stages of one pass. The same for every target.
#pragma once

namespace monolane {

enum class Kind : int { kEmbed, kProject, kAttend, kSample, kCombine };
enum class Input : int { kPlain, kNorm, kMerge };
enum class Output : int { kStore, kResidual, kGate, kLogits };

constexpr int kNone = -1;

struct Stage {
  Kind kind;
  int layer;
  int reads, writes, residual;  // buffers
  int projection;               // index of its segments on the tapes
  int rows, cols;
  Input input;
  Output output;
  int norm, bias, order, q_norm, k_norm;  // offsets into the constants, or kNone
  float eps;
  int window;  // positions seen, 0: all
};

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }
constexpr int divide_up(int n, int unit) { return (n + unit - 1) / unit; }
constexpr int lesser(int a, int b) { return a < b ? a : b; }
constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from(divide_up(n, 2)); }

}  // namespace monolane
