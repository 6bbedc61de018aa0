// Every instruction that C++ has no word for, one function each, and nothing else. target/emulation/csrc/emulate.hpp has the
// same functions for threads of a CPU, so that the kernel compiles and runs there unchanged.
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
#define MONOLANE_NOINLINE __device__ __noinline__  // with registers of its own
#define MONOLANE_KERNEL extern "C" __global__
#define MONOLANE_BOUNDS(threads) __launch_bounds__(threads, 1)
#define MONOLANE_PARAMETER const __grid_constant__
#define MONOLANE_LAUNCH __constant__
#define MONOLANE_CONSTANT __constant__ const
#define MONOLANE_TABLE __device__ const  // for threads that look at different places

namespace monolane {

struct alignas(16) Word4 {
  uint32_t x, y, z, w;
};

namespace ptx {

MONOLANE_DEVICE int thread_index() {
  int t = threadIdx.x;
  asm volatile("" : "+r"(t));
  return t;
}
MONOLANE_DEVICE int block_index() { return blockIdx.x; }

MONOLANE_DEVICE char* shared_memory() {  // all of the block's dynamic shared memory, 128-byte aligned
  extern __shared__ __align__(128) char memory[];
  return memory;
}

MONOLANE_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// --- barriers of copies (mbarrier): the phase ends when all arrivals and all expected bytes are in ---

MONOLANE_DEVICE void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
MONOLANE_DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
MONOLANE_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
MONOLANE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {  // an arrival, and bytes to wait for
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
MONOLANE_DEVICE bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {  // may sleep a moment before it says no
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return passed;
}

// Global to shared memory, asynchronously; 16-byte aligned, a multiple of 16 bytes.
MONOLANE_DEVICE void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// The same of what nobody will need again soon: L2 gives it up first, and keeps instructions, activations and the cache instead.
MONOLANE_DEVICE void bulk_copy_evict_first(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}

// --- threads of a block ---

// A barrier of whole warps. Lanes of a warp may come one by one: they meet first.
template <int kId, int kCount>
MONOLANE_DEVICE void named_barrier() {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kCount) : "memory");
}
// The same for warps that come from different places of the program, where synccheck wants it. Not for all barriers: it makes
// the compiler bring lanes together everywhere, in a tenth more instructions.
template <int kId, int kCount>
MONOLANE_DEVICE void named_barrier_unaligned() {
  __syncwarp();
  asm volatile("barrier.cta.sync %0, %1;" ::"n"(kId), "n"(kCount) : "memory");
}
// Registers move from warps that need few to others; called by all threads of four warps (a warpgroup).
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
MONOLANE_DEVICE uint64_t shuffle_xor(uint64_t value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
MONOLANE_DEVICE uint64_t shuffle(uint64_t value, int lane) { return __shfl_sync(~0u, value, lane); }  // that of a lane
MONOLANE_DEVICE uint64_t shuffle_up(uint64_t value, int delta) { return __shfl_up_sync(~0u, value, delta); }
MONOLANE_DEVICE bool any(bool value) { return __any_sync(~0u, value); }

// Flags that threads of a block set and look at without a barrier between.
MONOLANE_DEVICE uint32_t load_shared(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
MONOLANE_DEVICE void store_shared(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory"); }

MONOLANE_DEVICE uint32_t load_shared_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
MONOLANE_DEVICE void store_shared_release(uint32_t* p, uint32_t v) { asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory"); }

// Of a matrix of 8x8 bf16, of which thread 4g+t of the warp holds row g, columns 2t and 2t+1: column g, rows 2t and 2t+1.
MONOLANE_DEVICE uint32_t transpose(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// c[16x8] += a[16x16] * b[16x8], bf16 in, fp32 sums. Thread 4g+t of the warp holds rows g, g+8 and columns 2t, 2t+1 of c.
MONOLANE_DEVICE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// --- words other blocks write while we look ---

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
MONOLANE_DEVICE uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE void store_relaxed(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
MONOLANE_DEVICE void store_relaxed(Word4* p, const Word4& v) {  // each word by itself
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
MONOLANE_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
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
// Shared memory that was read and written by threads may be written by copies from now on.
MONOLANE_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Global memory that threads wrote, and that we have seen to be written, may be read by copies from now on.
MONOLANE_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
MONOLANE_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// --- the host's memory ---

MONOLANE_DEVICE uint32_t load_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE void store_system_release(uint32_t* p, uint32_t v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// --- the rest ---

MONOLANE_DEVICE Word4 load_l2(const Word4* p) {  // not kept in L1
  Word4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
MONOLANE_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }  // 128 bytes, into L2
MONOLANE_DEVICE int64_t now_ns() {
  int64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
MONOLANE_DEVICE void nanosleep(int ns) { __nanosleep(ns); }
MONOLANE_DEVICE float rsqrt(float x) { return rsqrtf(x); }
MONOLANE_DEVICE float exp(float x) { return __expf(x); }
MONOLANE_DEVICE float exp2(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
MONOLANE_DEVICE float log2(float x) { return __log2f(x); }
MONOLANE_DEVICE float divide(float a, float b) { return __fdividef(a, b); }
MONOLANE_DEVICE uint32_t bf16_pair(float low, float high) {  // rounded to nearest even
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
// Four bytes of eight: `a` has bytes 0 to 3, `b` 4 to 7; each digit of `which`, the lowest first, names one.
MONOLANE_DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
MONOLANE_DEVICE uint64_t umul64hi(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
MONOLANE_DEVICE int32_t round_to_integer(float x) { return __float2int_rn(x); }  // to nearest even; zero for what is no number
MONOLANE_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
MONOLANE_DEVICE float float_of(uint32_t x) { return __uint_as_float(x); }
MONOLANE_DEVICE int leading_zeros(uint32_t x) { return __clz(static_cast<int>(x)); }
MONOLANE_DEVICE void add_global(uint64_t* p, uint64_t v) { atomicAdd(p, v); }
MONOLANE_DEVICE void add_shared(uint32_t* p, uint32_t v) { atomicAdd(p, v); }
// In shared memory there are additions of 32 bits alone: the first one tells of a carry.
MONOLANE_DEVICE void add_shared64(uint64_t* p, uint64_t v) {
  uint32_t* words = reinterpret_cast<uint32_t*>(p);
  const uint32_t low = static_cast<uint32_t>(v), sum = atomicAdd(words, low) + low, high = static_cast<uint32_t>(v >> 32) + (sum < low);
  if (high) atomicAdd(words + 1, high);
}

}  // namespace ptx
}  // namespace monolane
