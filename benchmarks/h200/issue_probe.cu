// What instructions of the low-bit loops take on one scheduler of an H200, alone and beside each other: cycles of the scheduler for one group of instructions, with 1, 2 and 4
// warps on it. Seen: an MMA of 8-bit integers takes 6.1 cycles, in which nothing is issued to the ALUs nor to the FMA units: with 8 permutations, 6 + 8 * 2 = 22.
//
//     nvcc -O3 -std=c++17 -arch=sm_90a issue_probe.cu -o issue_probe && ./issue_probe
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

constexpr int kRepeats = 64, kGroups = 16, kSchedulers = 4, kWarpThreads = 32;

struct Registers {
  uint32_t r[8];
  int32_t c[4][4];
};

__device__ __forceinline__ void multiply(Registers& x, int i, uint32_t a, uint32_t b) {
  int32_t(&c)[4] = x.c[i % 4];
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%4,%5}, {%4,%5}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a), "r"(b));
}
__device__ __forceinline__ void multiply_sparse(Registers& x, int i, uint32_t a, uint32_t b) {
  int32_t(&c)[4] = x.c[i % 4];
  asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%4,%5}, {%4,%5,%4,%5}, {%0,%1,%2,%3}, %4, 0;"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a), "r"(b));
}
__device__ __forceinline__ void permute(Registers& x, int i, uint32_t a, uint32_t b) { asm volatile("prmt.b32 %0, %1, %2, %0;" : "+r"(x.r[i % 8]) : "r"(a), "r"(b)); }
__device__ __forceinline__ void multiply_add(Registers& x, int i, uint32_t a, uint32_t b) { asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(x.r[i % 8]) : "r"(a), "r"(b)); }
__device__ __forceinline__ void dot(Registers& x, int i, uint32_t a, uint32_t b) { asm volatile("dp2a.lo.u32.u32 %0, %0, %1, %2;" : "+r"(x.r[i % 8]) : "r"(a), "r"(b)); }
__device__ __forceinline__ void multiply_high(Registers& x, int i, uint32_t a, uint32_t) { asm volatile("mul.hi.u32 %0, %0, %1;" : "+r"(x.r[i % 8]) : "r"(a)); }

enum Group { kMma, kSparseMma, kPermute, kMultiplyAdd, kDot, kMultiplyHigh, kMmaAndPermutes, kMmaAndMultiplyAdds, kMmaAndBoth, kCount };
constexpr const char* kNames[] = {"MMA, 16 x 8 x 32, 8 bits", "sparse MMA, 16 x 8 x 64", "PRMT (ALU)", "IMAD (FMA)", "dp2a (FMA)", "mul.hi", "MMA and 8 PRMT", "MMA and 8 IMAD", "MMA, 4 PRMT and 4 IMAD"};

template <int kGroup>
__global__ void run(long long* cycles, uint32_t* sink, uint32_t a, uint32_t b) {
  Registers x = {};
  __syncthreads();
  const long long begin = clock64();
#pragma unroll 1
  for (int n = 0; n < kRepeats; n++)
#pragma unroll
    for (int i = 0; i < kGroups; i++) {
      if (kGroup == kMma || kGroup >= kMmaAndPermutes) multiply(x, i, a, b);
      if (kGroup == kSparseMma) multiply_sparse(x, i, a, b);
      if (kGroup == kPermute) permute(x, i, a, b);
      if (kGroup == kMultiplyAdd) multiply_add(x, i, a, b);
      if (kGroup == kDot) dot(x, i, a, b);
      if (kGroup == kMultiplyHigh) multiply_high(x, i, a, b);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (kGroup == kMmaAndPermutes || (kGroup == kMmaAndBoth && j % 2 == 0)) permute(x, j, a, b);
        if (kGroup == kMmaAndMultiplyAdds || (kGroup == kMmaAndBoth && j % 2 == 1)) multiply_add(x, j, a, b);
      }
    }
  __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - begin;
  uint32_t all = 0;
  for (int i = 0; i < 8; i++) all ^= x.r[i] ^ x.c[i / 4][i % 4] ^ x.c[2 + i / 4][i % 4];
  sink[threadIdx.x] = all;
}

template <int kGroup>
void measure(long long* cycles, uint32_t* sink) {
  printf("%-26s", kNames[kGroup]);
  for (int warps : {1, 2, 4}) {
    long long took = 0;
    for (int i = 0; i < 3; i++) {
      run<kGroup><<<1, warps * kSchedulers * kWarpThreads>>>(cycles, sink, 3, 5);
      cudaMemcpy(&took, cycles, sizeof took, cudaMemcpyDeviceToHost);
    }
    printf("  %d warps %6.2f", warps, static_cast<double>(took) / (kRepeats * kGroups * warps));
  }
  printf("\n");
  if constexpr (kGroup + 1 < kCount) measure<kGroup + 1>(cycles, sink);
}

int main() {
  long long* cycles;
  uint32_t* sink;
  if (cudaMalloc(&cycles, sizeof *cycles) != cudaSuccess || cudaMalloc(&sink, 4096) != cudaSuccess) return fprintf(stderr, "no GPU\n"), 1;
  measure<0>(cycles, sink);
  return cudaDeviceSynchronize() != cudaSuccess;
}
