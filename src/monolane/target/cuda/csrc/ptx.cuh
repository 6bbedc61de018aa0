// One function for each PTX instruction or CUDA intrinsic that the kernel uses, and nothing else. Every warp uses this file.
// target/emulation/csrc/emulate.hpp defines the same functions for CPU threads, so the kernel compiles and runs there unchanged.
#pragma once

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

#define INT32_MAX 0x7fffffff
#define UINT32_MAX 0xffffffffu
#define INT64_MAX 0x7fffffffffffffffLL

#define MONOLANE_DEVICE __device__ __forceinline__
#define MONOLANE_LOOP _Pragma("unroll 1")
#define MONOLANE_LEADING_ZEROS(bits) __clzll(static_cast<long long>(bits))
#define MONOLANE_NOINLINE __device__ __noinline__  // the compiler allocates the registers of such a function separately
#define MONOLANE_KERNEL extern "C" __global__
#define MONOLANE_BOUNDS(threads) __launch_bounds__(threads, 1)
#define MONOLANE_PARAMETER const __grid_constant__
#define MONOLANE_LAUNCH __constant__
#define MONOLANE_CONSTANT __constant__ const
// A table whose elements the threads of a warp index differently: constant memory would serialize such loads.
#define MONOLANE_TABLE __device__ const

namespace monolane {

struct alignas(16) Word4 {
  uint32_t x, y, z, w;
};
struct alignas(16) LongWord2 {
  uint64_t x, y;
};

namespace ptx {

// The empty asm hides where the value comes from. Otherwise the compiler hoists address arithmetic on the thread index out of the
// token loop and spills it.
MONOLANE_DEVICE int thread_index() {
  int t = threadIdx.x;
  asm volatile("" : "+r"(t));
  return t;
}
MONOLANE_DEVICE int block_index() { return blockIdx.x; }
// The same for another value: what is computed from it is computed again at every use.
MONOLANE_DEVICE int hidden(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

// All dynamic shared memory of the thread block, aligned to 128 bytes.
MONOLANE_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

MONOLANE_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// --- mbarriers and bulk copies. A phase of an mbarrier completes when all arrivals and all expected bytes have come in ---

MONOLANE_DEVICE void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
MONOLANE_DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
MONOLANE_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// One arrival, which also adds `bytes` to the bytes that the current phase expects.
MONOLANE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Whether the phase with this parity has completed. The hardware may suspend the thread for a short time before it returns false.
MONOLANE_DEVICE bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return passed;
}

// Copies from global to shared memory asynchronously and reports the bytes to the mbarrier. Both addresses are aligned to 16 bytes, and
// `bytes` is a multiple of 16.
MONOLANE_DEVICE void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// The same for bytes that no worker reads again soon: L2 evicts them first and keeps instructions, activations and the KV cache instead.
MONOLANE_DEVICE void bulk_copy_evict_first(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}

// --- threads of one thread block ---

// A named barrier of kCount threads in whole warps. bar.sync is the aligned form, which all threads of a warp must execute together.
// Threads of a warp may have diverged before, so __syncwarp() reconverges them first.
template <int kId, int kCount>
MONOLANE_DEVICE void named_barrier() {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kCount) : "memory");
}
// The same for warps that reach the barrier from different places in the program, where synccheck demands the unaligned form. Other
// barriers do not use it: it makes the compiler reconverge warps everywhere, which takes 10% more instructions.
template <int kId, int kCount>
MONOLANE_DEVICE void named_barrier_unaligned() {
  __syncwarp();
  asm volatile("barrier.cta.sync %0, %1;" ::"n"(kId), "n"(kCount) : "memory");
}
// Move registers from warps that need few to warps that need many. All threads of a hardware warpgroup (4 warps) call them.
template <int kCount>
MONOLANE_DEVICE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
MONOLANE_DEVICE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
MONOLANE_DEVICE void sync_warp() { __syncwarp(); }
MONOLANE_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
MONOLANE_DEVICE uint32_t shuffle_xor(uint32_t value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
MONOLANE_DEVICE uint64_t shuffle_xor(uint64_t value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
MONOLANE_DEVICE uint32_t shuffle(uint32_t value, int source) { return __shfl_sync(~0u, value, source); }
MONOLANE_DEVICE uint64_t shuffle(uint64_t value, int source) { return __shfl_sync(~0u, value, source); }
MONOLANE_DEVICE uint64_t shuffle_up(uint64_t value, int delta) { return __shfl_up_sync(~0u, value, delta); }
MONOLANE_DEVICE bool any(bool value) { return __any_sync(~0u, value); }
MONOLANE_DEVICE uint32_t ballot(bool value) { return __ballot_sync(~0u, value); }
MONOLANE_DEVICE int popcount(uint32_t word) { return __popc(word); }

// Flags in shared memory that threads of a thread block write and poll without a barrier in between.
MONOLANE_DEVICE uint32_t load_shared(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
MONOLANE_DEVICE void store_shared(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}

MONOLANE_DEVICE uint32_t load_shared_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
MONOLANE_DEVICE void store_shared_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}

// Transposes an 8x8 matrix of bf16. Thread 4g+t of the warp passes row g, columns 2t and 2t+1, and gets column g, rows 2t and 2t+1.
MONOLANE_DEVICE uint32_t transpose(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// c[16x8] += a[16x16] * b[16x8], with bf16 operands and fp32 sums. Each register of a and b has two bf16, the lower index in the lower half.
// Thread 4g+t of the warp holds:
//   a0 = A[g][2t, 2t+1]   a1 = A[g+8][2t, 2t+1]   a2 = A[g][2t+8, 2t+9]   a3 = A[g+8][2t+8, 2t+9]
//   b0 = B[2t, 2t+1][g]   b1 = B[2t+8, 2t+9][g]
//   c0, c1 = C[g][2t, 2t+1]   c2, c3 = C[g+8][2t, 2t+1]
MONOLANE_DEVICE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c[16x8] += a[16x32] * b[32x8], with 8-bit operands, unsigned a and signed b, and 32-bit sums. Each register of a and b has four integers, the lowest index in the lowest
// byte. Thread 4g+t of the warp holds:
//   a0 = A[g][4t .. 4t+3]   a1 = A[g+8][4t .. 4t+3]   a2 = A[g][4t+16 .. 4t+19]   a3 = A[g+8][4t+16 .. 4t+19]
//   b0 = B[4t .. 4t+3][g]   b1 = B[4t+16 .. 4t+19][g]   c as above
MONOLANE_DEVICE void mma(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same with 16 k, which are a0, a1 and b0.
MONOLANE_DEVICE void mma(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
// And with signed a.
MONOLANE_DEVICE void mma_signed(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// a * b + c, rounded once.
MONOLANE_DEVICE float multiply_add(float a, float b, float c) {
  float result;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
}

// The same value, which the compiler keeps in a register and does not compute again where it is used.
MONOLANE_DEVICE int kept(int value) {
  asm volatile("mov.b32 %0, %1;" : "=r"(value) : "r"(value));
  return value;
}

// The instruction itself, where the compiler puts it: it does not move it behind a wait.
MONOLANE_DEVICE uint32_t exclusive_or(uint32_t a, uint32_t b) {
  uint32_t v;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}

// Does nothing for some cycles.
MONOLANE_DEVICE void spin(uint32_t cycles) {
  uint32_t begin, now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(begin)::"memory");
  do asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  while (now - begin < cycles);
}

// --- words in global memory that other thread blocks write while this one polls them ---

MONOLANE_DEVICE Word4 load_relaxed(const Word4* p) {
  Word4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE uint32_t load_relaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
// The load is atomic for each 64-bit word, not for all 16 bytes; so is the store below.
MONOLANE_DEVICE LongWord2 load_relaxed(const LongWord2* p) {
  LongWord2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE void store_relaxed(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// The store is atomic for each 32-bit word, not for all 16 bytes.
MONOLANE_DEVICE void store_relaxed(Word4* p, const Word4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
MONOLANE_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
MONOLANE_DEVICE void store_relaxed(LongWord2* p, const LongWord2& v) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(v.x), "l"(v.y) : "memory");
}
MONOLANE_DEVICE void add_release(uint32_t* p, uint32_t v) { asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
MONOLANE_DEVICE uint32_t add_acquire_release(uint32_t* p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
MONOLANE_DEVICE uint32_t compare_and_swap(uint32_t* p, uint32_t expected, uint32_t desired) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(expected), "r"(desired) : "memory");
  return old;
}
// Orders earlier reads and writes of shared memory by threads before later bulk copies (async proxy) that write it.
MONOLANE_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Orders writes of global memory that this thread has observed before later bulk copies (async proxy) that read them.
MONOLANE_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
MONOLANE_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// --- memory that others than the threads of this GPU use, too: that of the host, and that of lanes on other GPUs ---

MONOLANE_DEVICE uint32_t load_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE uint64_t load_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE uint64_t load_system_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE void store_system(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
MONOLANE_DEVICE void store_system(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
MONOLANE_DEVICE void store_system_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MONOLANE_DEVICE void store_system_release(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// --- other loads, time, numbers, counters ---

// Reads through L2 and does not allocate in L1.
MONOLANE_DEVICE Word4 load_l2(const Word4* p) {
  Word4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
// Prefetches a line of 128 bytes into L2.
MONOLANE_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
MONOLANE_DEVICE int64_t now_ns() {
  int64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
MONOLANE_DEVICE void nanosleep(int ns) { __nanosleep(ns); }
MONOLANE_DEVICE float rsqrt(float x) {  // x is 0 or not a denormal number
  float v;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
MONOLANE_DEVICE float reciprocal(float x) {  // x is not a denormal number
  float v;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
MONOLANE_DEVICE float exp(float x) { return __expf(x); }
MONOLANE_DEVICE float exp2(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
MONOLANE_DEVICE float log2(float x) { return __log2f(x); }
MONOLANE_DEVICE float divide(float a, float b) { return __fdividef(a, b); }
// The fp16 number in the lower half of a register, and the one in the upper half.
MONOLANE_DEVICE float half_to_float(uint32_t halves) {
  float v;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(v) : "r"(halves));
  return v;
}
MONOLANE_DEVICE float upper_half_to_float(uint32_t halves) {
  float v;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}" : "=f"(v) : "r"(halves));
  return v;
}
// Two bf16 in one register, rounded to nearest even.
MONOLANE_DEVICE uint32_t bf16_pair(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
// The high 16 bits. A shift is an instruction of the ALUs; this dot product, with 0 and 1, is one of the FMA units.
MONOLANE_DEVICE uint32_t high_half(uint32_t v) {
  uint32_t high;
  asm("dp2a.lo.u32.u32 %0, %1, 0x100, 0;" : "=r"(high) : "r"(v));
  return high;
}
// Selects 4 of 8 bytes: `a` has bytes 0 to 3 and `b` has bytes 4 to 7. Each hexadecimal digit of `which`, the lowest first, selects one.
MONOLANE_DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
// The same, where a digit above 7 selects the sign bit of byte `digit` - 8, eight times.
MONOLANE_DEVICE uint32_t byte_perm_signed(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(which));
  return v;
}
// Products of two pairs of bf16, rounded to nearest even.
MONOLANE_DEVICE uint32_t multiply_bf16_pairs(uint32_t a, uint32_t b) {
  uint32_t v;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
MONOLANE_DEVICE uint64_t umul64hi(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
// Rounds to nearest even; NaN becomes 0.
// 0 if a <= b, else 1, also where one of them is not a number.
MONOLANE_DEVICE float not_at_most(float a, float b) {
  float v;
  asm("set.gtu.f32.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
// The larger of two magnitudes, or NaN where one of them is.
MONOLANE_DEVICE float larger_magnitude(float a, float b) {
  float v;
  asm("{\n.reg .f32 x, y;\nabs.f32 x, %1;\nabs.f32 y, %2;\nmax.NaN.f32 %0, x, y;\n}" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
MONOLANE_DEVICE int32_t round_to_integer(float x) { return __float2int_rn(x); }
MONOLANE_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
MONOLANE_DEVICE float float_of(uint32_t x) { return __uint_as_float(x); }
MONOLANE_DEVICE int leading_zeros(uint32_t x) { return __clz(static_cast<int>(x)); }
MONOLANE_DEVICE void add_global(uint64_t* p, uint64_t v) { atomicAdd(p, v); }
MONOLANE_DEVICE uint32_t add_shared(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }  // returns the old value
// Shared memory has native atomic additions of 32 bits only. The old value that the addition of the low half returns shows its carry.
MONOLANE_DEVICE void add_shared64(uint64_t* p, uint64_t v) {
  uint32_t* words = reinterpret_cast<uint32_t*>(p);
  const uint32_t low = static_cast<uint32_t>(v), sum = atomicAdd(words, low) + low, high = static_cast<uint32_t>(v >> 32) + (sum < low);
  if (high) atomicAdd(words + 1, high);
}

}  // namespace ptx
}  // namespace monolane
