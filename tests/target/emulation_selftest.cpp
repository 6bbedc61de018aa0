// Small kernels that use the emulated instructions as the real kernel does. `emulation_selftest NAME [delay_permille seed]`
// runs one; it exits with 0 where the results are right.
#include "emulate.hpp"

#include <random>
#include <string_view>

namespace {

using namespace monolane;
using namespace monolane::ptx;

constexpr int kBlocks = MONOLANE_TSAN ? 2 : 4;  // ThreadSanitizer takes a millisecond per thread
constexpr int kThreads = 416, kWarps = kThreads / 32, kConsumers = kWarps - 1;

[[noreturn]] void wrong(const char* what, double got, double expected) {
  std::fprintf(stderr, "%s: got %g, expected %g\n", what, got, expected);
  std::_Exit(1);
}
void expect(const char* what, double got, double expected, double tolerance = 0) {
  if (!(std::abs(got - expected) <= tolerance)) wrong(what, got, expected);
}

// --- a producer warp streams chunks through a ring, twelve consumer warps sum them ---

struct Stream {
  const uint32_t* chunks;
  uint32_t* sums;
  int count;  // of chunks
  bool wait_for_full, wait_for_empty;
};
constexpr int kChunks = 40, kChunkWords = kConsumers * 32, kSlots = 4;

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) stream(MONOLANE_PARAMETER Stream job) {
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
  uint32_t* ring = reinterpret_cast<uint32_t*>(shared_memory());
  uint64_t* full = reinterpret_cast<uint64_t*>(ring + kSlots * kChunkWords);
  uint64_t* empty = full + kSlots;
  if (thread == 0) {
    for (int slot = 0; slot < kSlots; ++slot) mbarrier_init(&full[slot], 1), mbarrier_init(&empty[slot], kConsumers);
    mbarrier_init_fence();
  }
  named_barrier<0, kThreads>();
  uint32_t sum = 0;
  for (int i = 0; i < job.count; ++i) {
    const int slot = i % kSlots;
    const uint32_t round = static_cast<uint32_t>(i / kSlots) & 1;
    if (warp == kConsumers) {
      if (lane != 0) continue;
      uint64_t* before = job.wait_for_empty ? &empty[slot] : &full[slot];
      while (!mbarrier_try_wait(before, round ^ 1)) {
      }
      mbarrier_arrive_expect(&full[slot], kChunkWords * 4);
      bulk_copy(ring + slot * kChunkWords, job.chunks + i * kChunkWords, kChunkWords * 2, &full[slot]);
      bulk_copy(ring + slot * kChunkWords + kChunkWords / 2, job.chunks + i * kChunkWords + kChunkWords / 2,
                kChunkWords * 2, &full[slot]);
    } else {
      while (job.wait_for_full && !mbarrier_try_wait(&full[slot], round)) {
      }
      sum = sum * 31 + ring[slot * kChunkWords + thread];
      sync_warp();
      if (lane == 0) mbarrier_arrive(&empty[slot]);
    }
  }
  if (job.wait_for_full) {
    if (warp < kConsumers) job.sums[block_index() * kChunkWords + thread] = sum;
  } else {  // no copy may be in flight at the end
    for (int i = 0; i < 100; ++i) nanosleep(0);
  }
}

void run_stream(int count, bool wait_for_full, bool wait_for_empty) {
  alignas(16) static uint32_t chunks[kChunks * kChunkWords];
  static uint32_t sums[kBlocks * kChunkWords];
  for (int i = 0; i < kChunks * kChunkWords; ++i) chunks[i] = static_cast<uint32_t>(i * i);
  const size_t bytes = kSlots * kChunkWords * 4 + 2 * kSlots * 8;
  emulate::launch(stream, Stream{chunks, sums, count, wait_for_full, wait_for_empty}, kBlocks, kThreads, bytes);
  for (int i = 0; i < kBlocks * kChunkWords; ++i) {
    uint32_t sum = 0;
    for (int chunk = 0; chunk < count; ++chunk) sum = sum * 31 + chunks[chunk * kChunkWords + i % kChunkWords];
    expect("sum of the stream", sums[i], sum);
  }
}

// --- every block publishes tagged words, every block reads all of them, two buffers in turn ---

struct Exchange {
  Word4* words;  // [2][kGroups]
  uint32_t* sums;
};
constexpr uint32_t kHandOffs = 30, kGroups = kBlocks * kThreads / 4;

MONOLANE_KERNEL void exchange(MONOLANE_PARAMETER Exchange job) {
  const int thread = thread_index();
  const int me = block_index() * kThreads + thread;
  uint32_t sum = 0;
  for (uint32_t tag = 1; tag <= kHandOffs; ++tag) {
    Word4* words = job.words + (tag & 1) * kGroups;
    store_relaxed(&words->x + me, tag << 16 | ((static_cast<uint32_t>(me) * tag) & 0xffff));
    Word4 word;
    do {
      word = load_relaxed(&words[static_cast<uint32_t>(thread) % kGroups]);
    } while (word.x >> 16 != tag || word.y >> 16 != tag || word.z >> 16 != tag || word.w >> 16 != tag);
    sum += (word.x ^ word.y ^ word.z ^ word.w) & 0xffff;
    named_barrier<0, kThreads>();
  }
  job.sums[me] = sum;
}

void run_exchange() {
  static Word4 words[2 * kGroups];
  static uint32_t sums[kBlocks * kThreads];
  emulate::launch(exchange, Exchange{words, sums}, kBlocks, kThreads, 0);
  for (uint32_t i = 0; i < kBlocks * kThreads; ++i) {
    uint32_t sum = 0;
    for (uint32_t tag = 1; tag <= kHandOffs; ++tag) {
      uint32_t all = 0;
      for (uint32_t j = 0; j < 4; ++j) all ^= (4 * (i % kThreads % kGroups) + j) * tag;
      sum += all & 0xffff;
    }
    expect("sum of the exchange", sums[i], sum);
  }
}

// --- mma, fragments loaded as the PTX ISA lays them out ---

struct Product {
  const uint16_t *a, *b;  // A[16][16], B[8][16] (column after column), bf16
  const float* c;         // C[16][8]
  float* result;
};

MONOLANE_KERNEL void product(MONOLANE_PARAMETER Product job) {
  const int g = thread_index() / 4, t = thread_index() % 4;
  const auto pair = [](const uint16_t* p) { return p[0] | static_cast<uint32_t>(p[1]) << 16; };
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = job.c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  const uint16_t* a = job.a + g * 16 + 2 * t;
  const uint16_t* b = job.b + g * 16 + 2 * t;
  mma(c, pair(a), pair(a + 8 * 16), pair(a + 8), pair(a + 8 * 16 + 8), pair(b), pair(b + 8));
  for (int i = 0; i < 4; ++i) job.result[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

void run_mma() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  uint16_t a[16 * 16], b[8 * 16];
  float c[16 * 8], result[16 * 8];
  for (auto& x : a) x = static_cast<uint16_t>(bits_of(normal(random)) >> 16);
  for (auto& x : b) x = static_cast<uint16_t>(bits_of(normal(random)) >> 16);
  for (auto& x : c) x = normal(random);
  const auto value = [](uint16_t x) { return static_cast<double>(float_of(static_cast<uint32_t>(x) << 16)); };
  emulate::launch(product, Product{a, b, c, result}, 1, 32, 0);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      double sum = c[row * 8 + column];
      for (int k = 0; k < 16; ++k) sum += value(a[row * 16 + k]) * value(b[column * 16 + k]);
      expect("mma", result[row * 8 + column], sum, 1e-5);
    }
}

// --- the same with 8-bit integers, and half of k at a time ---

struct IntegerProduct {
  const int8_t *a, *b;  // A[16][32], B[8][32] (column after column)
  const int32_t* c;     // C[16][8]
  int32_t *result, *halves, *of_signed;
};

MONOLANE_KERNEL void integer_product(MONOLANE_PARAMETER IntegerProduct job) {
  const int g = thread_index() / 4, t = thread_index() % 4;
  const auto four = [](const int8_t* p) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(p[i])) << 8 * i;
    return word;
  };
  int32_t c[4], halves[4], of_signed[4];
  for (int i = 0; i < 4; ++i) c[i] = halves[i] = of_signed[i] = job.c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  const int8_t* a = job.a + g * 32 + 4 * t;
  const int8_t* b = job.b + g * 32 + 4 * t;
  mma(c, four(a), four(a + 8 * 32), four(a + 16), four(a + 8 * 32 + 16), four(b), four(b + 16));
  mma(halves, four(a), four(a + 8 * 32), four(b));
  mma(halves, four(a + 16), four(a + 8 * 32 + 16), four(b + 16));
  mma_signed(of_signed, four(a), four(a + 8 * 32), four(b));
  mma_signed(of_signed, four(a + 16), four(a + 8 * 32 + 16), four(b + 16));
  for (int i = 0; i < 4; ++i) {
    const int at = (g + i / 2 * 8) * 8 + 2 * t + i % 2;
    job.result[at] = c[i], job.halves[at] = halves[i], job.of_signed[at] = of_signed[i];
  }
}

void run_integer_mma() {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> any_byte(-128, 127);
  int8_t a[16 * 32], b[8 * 32];
  int32_t c[16 * 8], result[16 * 8], halves[16 * 8], of_signed[16 * 8];
  for (auto& x : a) x = static_cast<int8_t>(any_byte(random));
  for (auto& x : b) x = static_cast<int8_t>(any_byte(random));
  for (auto& x : c) x = any_byte(random) << 16;
  emulate::launch(integer_product, IntegerProduct{a, b, c, result, halves, of_signed}, 1, 32, 0);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      double sum = c[row * 8 + column], signed_sum = sum;
      for (int k = 0; k < 32; ++k) {
        sum += static_cast<uint8_t>(a[row * 32 + k]) * b[column * 32 + k];
        signed_sum += a[row * 32 + k] * b[column * 32 + k];
      }
      expect("mma of integers", result[row * 8 + column], sum);
      expect("mma of integers with 16 k", halves[row * 8 + column], sum);
      expect("mma of signed integers", of_signed[row * 8 + column], signed_sum);
    }
}

// --- exchanges within a warp ---

struct Nothing {};

MONOLANE_KERNEL void shuffles(MONOLANE_PARAMETER Nothing) {
  const int thread = thread_index(), lane = thread % 32, first = thread - lane;
  for (int mask = 0; mask < 32; ++mask) {
    expect("shuffle_xor", shuffle_xor(thread * 0.5f, mask), (first + (lane ^ mask)) * 0.5);
    expect("shuffle_xor of 32 bits", shuffle_xor(static_cast<uint32_t>(thread), mask), first + (lane ^ mask));
    expect("shuffle", shuffle(static_cast<uint32_t>(thread), mask), first + mask);
    const uint64_t wide = shuffle_xor(static_cast<uint64_t>(thread) << 40, mask);
    expect("shuffle_xor of 64 bits", static_cast<double>(wide >> 40), first + (lane ^ mask));
    const uint64_t up = shuffle_up(static_cast<uint64_t>(thread), mask);
    expect("shuffle_up", static_cast<double>(up), lane < mask ? thread : thread - mask);
    expect("any", any(first == mask && lane == 17), first == mask);
  }
}

// --- twelve of thirteen warps hand values round through shared memory; the last warp does not take part ---

struct Rounds {
  bool synchronise;
};

MONOLANE_KERNEL void subset(MONOLANE_PARAMETER Rounds job) {
  constexpr int threads = kConsumers * 32;
  const int thread = thread_index();
  int* values = reinterpret_cast<int*>(shared_memory());
  if (thread < threads) {
    int value = thread;
    for (int i = 0; i < 20; ++i) {
      values[i % 2 * threads + thread] = value;
      if (job.synchronise) named_barrier<1, threads>();
      value = values[i % 2 * threads + (thread + 37) % threads];
    }
    if (job.synchronise) expect("value handed round", value, (thread + 20 * 37) % threads);
  } else {
    for (int i = 0; i < 5; ++i) named_barrier<2, 32>();
  }
  named_barrier<0, kThreads>();
  if (thread >= threads && job.synchronise) expect("the last warp sees", values[threads + 5], (5 + 19 * 37) % threads);
}

// --- a flag that one thread sets and the others of its block watch, without a barrier ---

MONOLANE_KERNEL void flag(MONOLANE_PARAMETER Nothing) {
  uint32_t* flag = reinterpret_cast<uint32_t*>(shared_memory());
  if (thread_index() == 0) *flag = 0;
  named_barrier<0, 64>();
  if (thread_index() == 40) store_shared(flag, 1);
  while (load_shared(flag) == 0) {
  }
}

// --- plain words written before a barrier of the grid, read after it ---

struct Grid {
  uint32_t* flags;
  int* values;  // [2][kBlocks]
  bool fenced;
};

MONOLANE_KERNEL void grid(MONOLANE_PARAMETER Grid job) {
  const int thread = thread_index(), me = block_index();
  int value = me;
  for (int i = 0; i < 30; ++i) {
    int* values = job.values + i % 2 * kBlocks;
    if (thread == 5) values[me] = value;
    named_barrier<0, 64>();
    if (thread == 0) {
      add_release(job.flags, 1);
      while (load_acquire(job.flags) < static_cast<uint32_t>(kBlocks * (i + 1))) {
      }
    }
    named_barrier<0, 64>();
    value = values[(me + 1) % kBlocks];
  }
  expect("value round the grid", value, (me + 30) % kBlocks);
}

// The same once, with a relaxed flag per block: it needs a fence on both sides.
MONOLANE_KERNEL void flags(MONOLANE_PARAMETER Grid job) {
  const int me = block_index(), next = (me + 1) % kBlocks;
  if (thread_index() != 0) return;
  job.values[me] = me;
  if (job.fenced) fence();
  store_relaxed(&job.flags[me], 1);
  while (load_relaxed(&job.flags[next]) != 1) nanosleep(100);
  if (job.fenced) fence();
  expect("value of the next block", job.values[next], next);
}

void run_grid(void (*kernel)(Grid), bool fenced) {
  static uint32_t flags[kBlocks];
  static int values[2 * kBlocks];
  emulate::launch(kernel, Grid{flags, values, fenced}, kBlocks, 64, 0);
}

// --- a warp whose lanes exchange through shared memory ---

MONOLANE_KERNEL void lanes(MONOLANE_PARAMETER Rounds job) {
  int* values = reinterpret_cast<int*>(shared_memory());
  const int lane = thread_index();
  values[lane] = lane;
  if (job.synchronise)
    sync_warp();
  else
    (void)any(true);  // meets, but orders no memory
  expect("value of the neighbour", values[lane ^ 1], lane ^ 1);
}

// --- words that all threads change ---

struct Counters {
  uint64_t* sum;
  uint32_t *tickets, *owner, *drawn;
};

MONOLANE_KERNEL void counters(MONOLANE_PARAMETER Counters job) {
  const uint32_t me = static_cast<uint32_t>(block_index() * 64 + thread_index());
  add_global(job.sum, me);
  job.drawn[add_acquire_release(job.tickets, 1)] = 1;
  if (compare_and_swap(job.owner, 0, me + 1) == 0) store_relaxed(job.sum + 1, static_cast<uint64_t>(me));
}

void run_counters() {
  static uint64_t sum[2];
  static uint32_t tickets, owner, drawn[kBlocks * 64];
  emulate::launch(counters, Counters{sum, &tickets, &owner, drawn}, kBlocks, 64, 0);
  expect("add_global", static_cast<double>(sum[0]), kBlocks * 64 * (kBlocks * 64 - 1) / 2);
  for (const uint32_t each : drawn) expect("a ticket each", each, 1);
  expect("one owner", static_cast<double>(sum[1]), owner - 1.0);
}

// --- numbers ---

MONOLANE_KERNEL void numbers(MONOLANE_PARAMETER Nothing) {
  expect("rsqrt", monolane::ptx::rsqrt(4), 0.5, 1e-7);
  expect("exp", monolane::ptx::exp(1), std::exp(1.0), 1e-6);
  expect("exp2", monolane::ptx::exp2(-1.5f), std::exp2(-1.5), 1e-6);
  expect("log2", monolane::ptx::log2(8), 3, 1e-6);
  expect("divide", divide(1, 3), 1.0 / 3.0, 1e-6);
  expect("byte_perm", byte_perm(0x33221100u, 0x77665544u, 0x5410u), 0x55441100u);
  expect("bf16_pair", bf16_pair(1.0f, -2.0f), 0xc0003f80u);
  expect("bf16_pair to even", bf16_pair(float_of(0x3f808000u), float_of(0x3f818000u)), 0x3f823f80u);
  expect("bf16_pair of no number", bf16_pair(NAN, -NAN), 0x7fff7fffu);
  expect("half_to_float", half_to_float(0xffff3e00u), 1.5);
  expect("half_to_float of a small one", half_to_float(0x8001u), -std::exp2(-24.0));
  expect("half_to_float of infinity", half_to_float(0x7c00u) == INFINITY && std::isnan(half_to_float(0x7e00u)), true);
  expect("umul64hi", static_cast<double>(umul64hi(1ull << 63, 6)), 3);
  expect("round 2.5", static_cast<double>(round_to_integer(2.5f)), 2);
  expect("round -3.5", static_cast<double>(round_to_integer(-3.5f)), -4);
  expect("round infinity", round_to_integer(INFINITY), 2147483647);
  expect("float_of", float_of(bits_of(1.5f)), 1.5);
  expect("poison", std::isnan(*reinterpret_cast<float*>(shared_memory())), true);
  const int64_t before = now_ns();
  nanosleep(1000);
  expect("time goes on", now_ns() >= before, true);
}

// --- misuse: each must end the process with a message ---

MONOLANE_KERNEL void misuse(MONOLANE_PARAMETER std::string_view what) {
  alignas(16) static char from[64];
  char* shared = shared_memory();
  uint64_t* barrier = reinterpret_cast<uint64_t*>(shared);
  const int lane = thread_index();
  if (lane == 0 && what != "uninitialised") mbarrier_init(barrier, 1);
  named_barrier<0, 32>();
  if (lane == 0) {
    if (what == "misaligned") bulk_copy(shared + 24, from, 16, barrier);
    if (what == "misaligned_source") bulk_copy(shared + 16, from + 8, 16, barrier);
    if (what == "odd_size") bulk_copy(shared + 16, from, 24, barrier);
    if (what == "outside") bulk_copy(shared + 112, from, 32, barrier);
    if (what == "in_flight") bulk_copy(shared + 16, from, 16, barrier);
    if (what == "uninitialised") mbarrier_arrive(barrier);
    if (what == "too_many_arrivals") {
      bulk_copy(shared + 16, from, 16, barrier);
      mbarrier_arrive_expect(barrier, 32);
      mbarrier_arrive(barrier);
    }
  }
  if (what == "mixed_collectives") (void)(lane == 7 ? any(true) : shuffle_up(1, 1) != 0);
  if (what == "lane_left" && lane != 3) sync_warp();
  if (what == "deadlock_in_sync" && lane < 20) named_barrier<3, 32>();
  while (what == "deadlock_in_poll" && !mbarrier_try_wait(barrier, 0)) {
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view name = count > 1 ? arguments[1] : "";
  if (count > 2) emulate::delay_permille = std::atoi(arguments[2]);
  if (count > 3) emulate::seed = static_cast<uint64_t>(std::atoi(arguments[3]));
  constexpr size_t subset_bytes = 2 * kConsumers * 32 * 4;
  if (name == "stream") return run_stream(kChunks, true, true), 0;
  if (name == "exchange") return run_exchange(), 0;
  if (name == "mma") return run_mma(), 0;
  if (name == "integer_mma") return run_integer_mma(), 0;
  if (name == "shuffles") return emulate::launch(shuffles, {}, 2, 96, 0), 0;
  if (name == "subset") return emulate::launch(subset, {true}, kBlocks, kThreads, subset_bytes), 0;
  if (name == "grid") return run_grid(grid, false), 0;
  if (name == "counters") return run_counters(), 0;
  if (name == "fences") return run_grid(flags, true), 0;
  if (name == "lanes") return emulate::launch(lanes, {true}, 1, 32, 128), 0;
  if (name == "flag") return emulate::launch(flag, {}, kBlocks, 64, 4), 0;
  if (name == "numbers") return emulate::launch(numbers, {}, 1, 32, 4), 0;
  // What ThreadSanitizer must find.
  if (name == "stream_not_full") return run_stream(kSlots, false, true), 0;
  if (name == "stream_not_empty") return run_stream(2 * kSlots, true, false), 0;
  if (name == "subset_unordered") return emulate::launch(subset, {false}, 1, kThreads, subset_bytes), 0;
  if (name == "not_fenced") return run_grid(flags, false), 0;
  if (name == "lanes_unordered") return emulate::launch(lanes, {false}, 1, 32, 128), 0;
  emulate::patience_s = 0.3;
  emulate::launch(misuse, name, name == "deadlock_in_poll" ? 2 : 1, 32, 128);
  std::fprintf(stderr, "there is no test %s\n", arguments[1]);
  return 2;
}
