// The functions of ptx.cuh for a machine without a GPU: the same names, signatures and meaning, made of fibers, memcpy and atomics
// (machine.hpp, scheduler.hpp). A kernel includes either this file or ptx.cuh, and nothing else in it changes. Every CUDA thread is a fiber.
// Most functions that other CUDA threads can observe give the scheduler a chance to delay the fiber or to switch to others.
//
// ThreadSanitizer reports a race between CUDA threads unless the kernel orders their accesses: by a named barrier, by sync_warp, by an mbarrier,
// by a release that an acquire reads, or by a fence on both sides. Shuffles, `any` and `mma` order no memory, as on the GPU. A relaxed load
// orders no other memory either: memory that is reused because of a relaxed load alone must itself be read and written relaxed.
#pragma once

#include <cmath>
#include <limits>

#include "scheduler.hpp"

#define MONOLANE_DEVICE inline
#define MONOLANE_LOOP
#define MONOLANE_LEADING_ZEROS(bits) __builtin_clzll(bits)
#define MONOLANE_NOINLINE __attribute__((noinline))
#define MONOLANE_KERNEL static
#define MONOLANE_BOUNDS(threads)
#define MONOLANE_PARAMETER const
#define MONOLANE_LAUNCH
#define MONOLANE_CONSTANT static const
#define MONOLANE_TABLE static const

namespace monolane {

// CUDA declares them in the global namespace. <algorithm> would take a tenth of the time that a kernel takes to compile.
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

struct alignas(16) Word4 {
  uint32_t x, y, z, w;
};
struct alignas(16) LongWord2 {
  uint64_t x, y;
};

namespace emulate {

// Warp-wide functions: every thread leaves its operands in the Warp, the last one to arrive computes the results of all threads, and then each
// takes its own.

// The value of thread `source` of the warp. `what` names the function in messages.
MONOLANE_UNTRACKED uint64_t shuffle(const char* what, uint64_t value, int source) {
  Warp& warp = emulate::warp();
  const int lane_id = emulate::lane();
  warp.value[lane_id] = value;
  warp.source[lane_id] = source;
  if (meet_warp(warp, what)) {
    for (int i = 0; i < kLanes; ++i) warp.result[i] = warp.value[warp.source[i]];
    open(warp.meeting);
  }
  return warp.result[lane_id];
}

// The thread that shuffle_xor with this mask reads from.
MONOLANE_UNTRACKED int lane_across(int mask) {
  if (mask < 0 || mask >= kLanes) fail("shuffle_xor: mask %d is not within a warp", mask);
  return lane() ^ mask;
}

MONOLANE_UNTRACKED bool any_lane(bool value) {
  Warp& warp = emulate::warp();
  const int lane_id = emulate::lane();
  warp.value[lane_id] = value;
  if (meet_warp(warp, "any")) {
    uint64_t found = 0;
    for (int i = 0; i < kLanes; ++i) found |= warp.value[i];
    for (int i = 0; i < kLanes; ++i) warp.result[i] = found;
    open(warp.meeting);
  }
  return warp.result[lane_id] != 0;
}

// C += A B from the registers of all threads of a warp. Thread 4g+t holds a0 = A[g][2t, 2t+1], a1 = A[g+8][2t, 2t+1], a2 = A[g][2t+8, 2t+9],
// a3 = A[g+8][2t+8, 2t+9]; b0 = B[2t, 2t+1][g], b1 = B[2t+8, 2t+9][g]; c0, c1 = C[g][2t, 2t+1]; c2, c3 = C[g+8][2t, 2t+1]. A register of a or b has
// two bf16, the lower index in the lower half.
MONOLANE_UNTRACKED void multiply_fragments(Warp& warp) {
  float a[16][16], b[16][8], c[16][8];
  const auto low = [](uint32_t pair) { return __builtin_bit_cast(float, pair << 16); };
  const auto high = [](uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); };
  for (int lane_id = 0; lane_id < kLanes; ++lane_id) {
    const int g = lane_id / 4, k = lane_id % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = warp.a[lane_id][i];
      a[g + i % 2 * 8][k + i / 2 * 8] = low(pair);
      a[g + i % 2 * 8][k + i / 2 * 8 + 1] = high(pair);
      c[g + i / 2 * 8][k + i % 2] = warp.c[lane_id][i];
    }
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = warp.b[lane_id][i];
      b[k + i * 8][g] = low(pair);
      b[k + i * 8 + 1][g] = high(pair);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane_id = 0; lane_id < kLanes; ++lane_id)
    for (int i = 0; i < 4; ++i) warp.sum[lane_id][i] = c[lane_id / 4 + i / 2 * 8][lane_id % 4 * 2 + i % 2];
}

// The same with 8-bit operands, A of the type OfA and signed B, and 32 k: a0 = A[g][4t .. 4t+3], a1 = A[g+8][4t .. 4t+3], a2 = A[g][4t+16 .. 4t+19], a3 = A[g+8][4t+16 ..
// 4t+19]; b0 = B[4t .. 4t+3][g], b1 = B[4t+16 .. 4t+19][g].
template <class OfA>
MONOLANE_UNTRACKED void multiply_integers(Warp& warp) {
  const auto of_a = [](uint32_t word, int i) { return static_cast<int32_t>(static_cast<OfA>(word >> 8 * i)); };
  const auto of_b = [](uint32_t word, int i) { return static_cast<int32_t>(static_cast<int8_t>(word >> 8 * i)); };
  for (int lane_id = 0; lane_id < kLanes; ++lane_id)
    for (int i = 0; i < 4; ++i) {
      const int row = lane_id / 4, half = i / 2, column = lane_id % 4 * 2 + i % 2;  // of C: row `row` + 8 `half`
      int32_t sum = warp.integer_c[lane_id][i];
      for (int t = 0; t < 4; ++t)
        for (int k = 0; k < 8; ++k) sum += of_a(warp.a[row * 4 + t][half + k / 4 * 2], k % 4) * of_b(warp.b[column * 4 + t][k / 4], k % 4);
      warp.integer_sum[lane_id][i] = sum;
    }
}

// Leaves operands of an MMA, lets the last thread of the warp multiply, and returns this thread's part of the sums.
template <class T>
MONOLANE_UNTRACKED void mma(T (&c)[4], T (&own_c)[4], T (&own_sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char* what,
                            void (*multiply)(Warp&)) {
  Warp& warp = emulate::warp();
  const int lane_id = emulate::lane();
  for (int i = 0; i < 4; ++i) warp.a[lane_id][i] = a[i], own_c[i] = c[i];
  for (int i = 0; i < 2; ++i) warp.b[lane_id][i] = b[i];
  if (meet_warp(warp, what)) {
    multiply(warp);
    open(warp.meeting);
  }
  for (int i = 0; i < 4; ++i) c[i] = own_sum[i];
}

// ThreadSanitizer does not support fences. So every fence is an acquire and release of this word, which orders it after all fences before it.
inline uint32_t fences = 0;

}  // namespace emulate

namespace ptx {

MONOLANE_DEVICE int thread_index() { return emulate::thread(); }
MONOLANE_DEVICE int block_index() { return emulate::block().index; }
MONOLANE_DEVICE int hidden(int v) { return v; }

MONOLANE_DEVICE char* shared_memory() { return emulate::block().shared; }

MONOLANE_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - emulate::block().shared);
}

// --- mbarriers and bulk copies ---

MONOLANE_DEVICE void mbarrier_init(uint64_t* barrier, int arrivals) {
  emulate::act();
  emulate::check_shared(barrier, sizeof *barrier, 8, "mbarrier_init");
  if (arrivals < 1 || arrivals > emulate::kMostArrivals) emulate::fail("mbarrier_init: %d arrivals", arrivals);
  const auto count = static_cast<uint16_t>(arrivals);
  *barrier = emulate::pack({.bytes = 0, .pending = count, .arrivals = count, .phase = 0});
}
MONOLANE_DEVICE void mbarrier_init_fence() {}
MONOLANE_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  emulate::act();
  emulate::check_shared(barrier, sizeof *barrier, 8, "mbarrier_arrive");
  emulate::update_barrier(barrier, 1, 0);
}
MONOLANE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  emulate::act();
  emulate::check_shared(barrier, sizeof *barrier, 8, "mbarrier_arrive_expect");
  emulate::update_barrier(barrier, 1, bytes);
}
MONOLANE_DEVICE bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  emulate::check_shared(barrier, sizeof *barrier, 8, "mbarrier_try_wait");
  if (parity > 1) emulate::fail("mbarrier_try_wait: parity %u is neither 0 nor 1", parity);
  const auto passed = [&] { return emulate::unpack(__atomic_load_n(barrier, __ATOMIC_RELAXED)).phase != parity; };
  if (!passed()) emulate::poll("mbarrier_try_wait");
  if (!passed()) return false;
  (void)__atomic_load_n(barrier, __ATOMIC_ACQUIRE);
  emulate::act();
  return true;
}

MONOLANE_DEVICE void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  emulate::act();
  emulate::check_shared(to, bytes, 16, "bulk_copy to");
  emulate::check_shared(barrier, sizeof *barrier, 8, "bulk_copy's barrier");
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulate::fail("bulk_copy from: %p is not 16-byte aligned", from);
  if (bytes == 0 || bytes % 16 != 0) emulate::fail("bulk_copy: %u bytes are not a multiple of 16", bytes);
  __atomic_fetch_add(&emulate::block().issued, 1, __ATOMIC_RELEASE);
  emulate::enqueue(to, from, bytes, barrier);
}

MONOLANE_DEVICE void bulk_copy_evict_first(void* to, const void* from, uint32_t bytes, uint64_t* barrier) { bulk_copy(to, from, bytes, barrier); }

// --- threads of one thread block ---

template <int kId, int kCount>
MONOLANE_DEVICE void named_barrier() {
  emulate::act();
  static_assert(kId >= 0 && kId < emulate::kNamedBarriers && kCount % emulate::kLanes == 0, "a named barrier of whole warps");
  if (kCount > emulate::block().threads) emulate::fail("sync: %d threads are not whole warps of this block", kCount);
  emulate::synchronise(emulate::block().named[kId], kCount);
}
template <int kId, int kCount>
MONOLANE_DEVICE void named_barrier_unaligned() {
  named_barrier<kId, kCount>();
}
template <int kCount>
MONOLANE_DEVICE void shrink_registers() {}
template <int kCount>
MONOLANE_DEVICE void grow_registers() {}
MONOLANE_DEVICE void sync_warp() { emulate::synchronise_warp(emulate::warp()); }
MONOLANE_DEVICE float shuffle_xor(float value, int mask) {
  const auto bits = emulate::shuffle("shuffle_xor(float)", __builtin_bit_cast(uint32_t, value), emulate::lane_across(mask));
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits));
}
MONOLANE_DEVICE uint32_t shuffle_xor(uint32_t value, int mask) {
  return static_cast<uint32_t>(emulate::shuffle("shuffle_xor(uint32_t)", value, emulate::lane_across(mask)));
}
MONOLANE_DEVICE uint64_t shuffle_xor(uint64_t value, int mask) {
  return emulate::shuffle("shuffle_xor(uint64_t)", value, emulate::lane_across(mask));
}
MONOLANE_DEVICE uint32_t shuffle(uint32_t value, int source) { return static_cast<uint32_t>(emulate::shuffle("shuffle(uint32_t)", value, source)); }
MONOLANE_DEVICE uint64_t shuffle(uint64_t value, int source) { return emulate::shuffle("shuffle", value, source); }
MONOLANE_DEVICE uint64_t shuffle_up(uint64_t value, int delta) {
  const int lane_id = emulate::lane();
  if (delta < 0) emulate::fail("shuffle_up: delta %d is negative", delta);
  return emulate::shuffle("shuffle_up", value, delta > lane_id ? lane_id : lane_id - delta);
}
MONOLANE_DEVICE bool any(bool value) { return emulate::any_lane(value); }
MONOLANE_DEVICE uint32_t ballot(bool value) {
  uint32_t bits = static_cast<uint32_t>(value) << emulate::lane();
  for (int mask = 1; mask < 32; mask *= 2) bits |= shuffle_xor(bits, mask);
  return bits;
}
MONOLANE_DEVICE int popcount(uint32_t word) { return __builtin_popcount(word); }

MONOLANE_DEVICE uint32_t load_shared(const uint32_t* p) {
  emulate::check_shared(p, sizeof *p, 4, "load_shared");
  emulate::poll("load_shared");
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void store_shared(uint32_t* p, uint32_t v) {
  emulate::check_shared(p, sizeof *p, 4, "store_shared");
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE uint32_t load_shared_acquire(const uint32_t* p) {
  emulate::check_shared(p, sizeof *p, 4, "load_shared_acquire");
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
MONOLANE_DEVICE void store_shared_release(uint32_t* p, uint32_t v) {
  emulate::check_shared(p, sizeof *p, 4, "store_shared_release");
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
MONOLANE_DEVICE uint32_t transpose(uint32_t pair) {
  const int column = emulate::lane() / 4, row = emulate::lane() % 4 * 2;
  const uint64_t first = emulate::shuffle("transpose", pair, row * 4 + column / 2);
  const uint64_t second = emulate::shuffle("transpose", pair, (row + 1) * 4 + column / 2);
  const int shift = column % 2 * 16;
  return static_cast<uint32_t>((first >> shift & 0xffff) | (second >> shift & 0xffff) << 16);
}
MONOLANE_DEVICE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  emulate::Warp& warp = emulate::warp();
  emulate::mma(c, warp.c[emulate::lane()], warp.sum[emulate::lane()], {a0, a1, a2, a3}, {b0, b1}, "mma", emulate::multiply_fragments);
}
MONOLANE_DEVICE void mma(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  emulate::Warp& warp = emulate::warp();
  const int lane_id = emulate::lane();
  emulate::mma(c, warp.integer_c[lane_id], warp.integer_sum[lane_id], {a0, a1, a2, a3}, {b0, b1}, "mma of integers", emulate::multiply_integers<uint8_t>);
}
MONOLANE_DEVICE void mma(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) { mma(c, a0, a1, 0, 0, b0, 0); }
MONOLANE_DEVICE void mma_signed(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  emulate::Warp& warp = emulate::warp();
  const int lane_id = emulate::lane();
  emulate::mma(c, warp.integer_c[lane_id], warp.integer_sum[lane_id], {a0, a1, 0, 0}, {b0, 0}, "mma of signed integers", emulate::multiply_integers<int8_t>);
}

MONOLANE_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MONOLANE_DEVICE int kept(int value) { return value; }
MONOLANE_DEVICE uint32_t exclusive_or(uint32_t a, uint32_t b) { return a ^ b; }
MONOLANE_DEVICE void spin(uint32_t cycles) { static_cast<void>(cycles); }

// --- words in global memory that other thread blocks write while this one polls them. Every load lets the other fibers run first ---

// The load is atomic for each 32-bit word, not for all 16 bytes.
MONOLANE_DEVICE Word4 load_relaxed(const Word4* p) {
  emulate::poll("load_relaxed(Word4)");
  return {__atomic_load_n(&p->x, __ATOMIC_RELAXED), __atomic_load_n(&p->y, __ATOMIC_RELAXED),
          __atomic_load_n(&p->z, __ATOMIC_RELAXED), __atomic_load_n(&p->w, __ATOMIC_RELAXED)};
}
MONOLANE_DEVICE uint32_t load_relaxed(const uint32_t* p) {
  emulate::poll("load_relaxed(uint32_t)");
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  emulate::poll("load_relaxed(uint64_t)");
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
// Likewise for each 64-bit word.
MONOLANE_DEVICE LongWord2 load_relaxed(const LongWord2* p) {
  emulate::poll("load_relaxed(LongWord2)");
  return {__atomic_load_n(&p->x, __ATOMIC_RELAXED), __atomic_load_n(&p->y, __ATOMIC_RELAXED)};
}
MONOLANE_DEVICE uint32_t load_acquire(const uint32_t* p) {
  emulate::poll("load_acquire");
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
MONOLANE_DEVICE void store_relaxed(uint32_t* p, uint32_t v) {
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void store_relaxed(Word4* p, const Word4& v) {
  uint32_t* words = reinterpret_cast<uint32_t*>(p);
  store_relaxed(words, v.x), store_relaxed(words + 1, v.y), store_relaxed(words + 2, v.z), store_relaxed(words + 3, v.w);
}
MONOLANE_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void store_relaxed(LongWord2* p, const LongWord2& v) { store_relaxed(&p->x, v.x), store_relaxed(&p->y, v.y); }
MONOLANE_DEVICE void add_release(uint32_t* p, uint32_t v) {
  emulate::act();
  __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
MONOLANE_DEVICE uint32_t add_acquire_release(uint32_t* p, uint32_t v) {
  emulate::act();
  return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
MONOLANE_DEVICE uint32_t compare_and_swap(uint32_t* p, uint32_t expected, uint32_t desired) {
  emulate::poll("compare_and_swap");
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
// Emulated copies have no proxy of their own: they see what threads have written.
MONOLANE_DEVICE void fence_proxy_async_global() {}
MONOLANE_DEVICE void fence_proxy_async_shared() {}
MONOLANE_DEVICE void fence() { __atomic_fetch_add(&emulate::fences, 1, __ATOMIC_ACQ_REL); }

// --- memory of the host, and of lanes on other GPUs ---

MONOLANE_DEVICE uint32_t load_system(const uint32_t* p) {
  emulate::poll("load_system");
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE uint64_t load_system(const uint64_t* p) {
  emulate::poll("load_system(uint64_t)");
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE uint64_t load_system_acquire(const uint64_t* p) {
  emulate::poll("load_system_acquire");
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
MONOLANE_DEVICE void store_system(uint32_t* p, uint32_t v) {
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void store_system(uint64_t* p, uint64_t v) {
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void store_system_release(uint32_t* p, uint32_t v) {
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
MONOLANE_DEVICE void store_system_release(uint64_t* p, uint64_t v) {
  emulate::act();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

// --- other loads, time, numbers, counters ---

MONOLANE_DEVICE Word4 load_l2(const Word4* p) { return *p; }
MONOLANE_DEVICE void prefetch(const void* p) { (void)p; }
MONOLANE_DEVICE int64_t now_ns() {
  emulate::poll("now_ns");
  return emulate::steady_ns();
}
MONOLANE_DEVICE void nanosleep(int ns) {
  (void)ns;  // one turn of the other fibers takes longer
  emulate::poll("nanosleep");
}
MONOLANE_DEVICE float rsqrt(float x) { return 1.0f / std::sqrt(x); }
MONOLANE_DEVICE float reciprocal(float x) { return 1.0f / x; }
MONOLANE_DEVICE float exp(float x) { return std::exp(x); }
MONOLANE_DEVICE float exp2(float x) { return std::exp2(x); }
MONOLANE_DEVICE float log2(float x) { return std::log2(x); }
MONOLANE_DEVICE float divide(float a, float b) { return a / b; }
MONOLANE_DEVICE float half_to_float(uint32_t halves) {
  const float v = __builtin_bit_cast(float, (halves & 0x7fffu) << 13) * 0x1p112f;  // the exponent moves from a bias of 15 to one of 127
  const uint32_t bits = (halves & 0x7c00u) == 0x7c00u ? (halves & 0x7fffu) << 13 | 0x7f800000u : __builtin_bit_cast(uint32_t, v);
  return __builtin_bit_cast(float, bits | (halves & 0x8000u) << 16);
}
MONOLANE_DEVICE float upper_half_to_float(uint32_t halves) { return half_to_float(halves >> 16); }
MONOLANE_DEVICE uint32_t bf16_pair(float low, float high) {
  const auto rounded = [](float v) -> uint32_t {
    const uint32_t bits = __builtin_bit_cast(uint32_t, v);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
}
MONOLANE_DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t all = static_cast<uint64_t>(b) << 32 | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) picked |= static_cast<uint32_t>(all >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
  return picked;
}
MONOLANE_DEVICE uint32_t high_half(uint32_t v) { return v >> 16; }
MONOLANE_DEVICE uint32_t byte_perm_signed(uint32_t a, uint32_t b, uint32_t which) {
  const uint32_t picked = byte_perm(a, b, which);
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = picked >> 8 * i & 0xff;
    result |= (which >> 4 * i & 8 ? (byte >> 7 ? 0xffu : 0u) : byte) << 8 * i;
  }
  return result;
}
MONOLANE_DEVICE uint32_t multiply_bf16_pairs(uint32_t a, uint32_t b) {
  const auto low = [](uint32_t pair) { return __builtin_bit_cast(float, pair << 16); };
  const auto high = [](uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); };
  return bf16_pair(low(a) * low(b), high(a) * high(b));
}
MONOLANE_DEVICE uint64_t umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
MONOLANE_DEVICE float not_at_most(float a, float b) { return a <= b ? 0.0f : 1.0f; }
MONOLANE_DEVICE float larger_magnitude(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::max(std::fabs(a), std::fabs(b));
}
// Rounds to nearest even. Numbers beyond the range are clamped and NaN becomes 0, as on the GPU.
MONOLANE_DEVICE int32_t round_to_integer(float x) {
  if (x >= 0x1p31f) return std::numeric_limits<int32_t>::max();
  if (x < -0x1p31f) return std::numeric_limits<int32_t>::min();
  return x != x ? 0 : static_cast<int32_t>(std::nearbyint(x));
}
MONOLANE_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
MONOLANE_DEVICE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }
MONOLANE_DEVICE int leading_zeros(uint32_t x) { return x ? __builtin_clz(x) : 32; }
MONOLANE_DEVICE uint32_t add_shared(uint32_t* p, uint32_t v) {
  emulate::check_shared(p, sizeof *p, 4, "add_shared");
  emulate::act();
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void add_shared64(uint64_t* p, uint64_t v) {
  emulate::check_shared(p, sizeof *p, 8, "add_shared64");
  emulate::act();
  __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
MONOLANE_DEVICE void add_global(uint64_t* p, uint64_t v) {
  emulate::act();
  __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

}  // namespace ptx
}  // namespace monolane
