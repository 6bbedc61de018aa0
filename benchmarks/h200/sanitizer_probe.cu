// What compute-sanitizer makes of two things the kernel does, each by itself and in its textbook form:
//
//     nvcc -arch=sm_90a -lineinfo -o probe sanitizer_probe.cu
//     compute-sanitizer --tool racecheck ./probe ring          a ring of bulk copies; one lane arrives for its warp
//     compute-sanitizer --tool racecheck ./probe ring_of_all   the same, every lane arrives for itself
//     compute-sanitizer --tool racecheck ./probe ring_broken   the same, and nobody waits for a free slot: a true race
//     compute-sanitizer --tool racecheck ./probe ring_once     copies into fresh slots only
//     compute-sanitizer --tool synccheck ./probe aligned       two roles meet at bar.sync, each at an instruction of its own
//     compute-sanitizer --tool synccheck ./probe unaligned     the same with barrier.cta.sync
#include <cstdint>
#include <cstdio>
#include <cstring>

constexpr int kSlots = 4, kSlotBytes = 2048, kWarps = 4, kThreads = kWarps * 32 + 32;

__device__ uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void init(uint64_t* b, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(b)), "r"(count)); }
__device__ void arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(b)) : "memory"); }
__device__ void wait(uint64_t* b, uint32_t parity) {
  uint32_t passed = 0;
  while (!passed)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(passed) : "r"(address(b)), "r"(parity) : "memory");
}

template <bool kAllArrive, bool kBroken>
__global__ void ring(const char* from, uint4* sums, int chunks) {
  __shared__ alignas(128) char memory[kSlots * kSlotBytes];
  __shared__ uint64_t full[kSlots], empty[kSlots];
  const int thread = threadIdx.x, lane = thread % 32;
  if (thread == 0) {
    for (int slot = 0; slot < kSlots; slot++) init(&full[slot], 1), init(&empty[slot], kAllArrive ? kWarps * 32 : kWarps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (thread >= kWarps * 32) {
    if (lane) return;
    for (int i = 0; i < chunks; i++) {
      const int slot = i % kSlots, round = i / kSlots;
      if (round && !kBroken) wait(&empty[slot], (round - 1) & 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[slot])), "r"(kSlotBytes) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(memory + slot * kSlotBytes)),
                   "l"(from + i * kSlotBytes), "r"(kSlotBytes), "r"(address(&full[slot]))
                   : "memory");
      if (kBroken) wait(&full[slot], round & 1);
    }
    return;
  }
  uint4 sum = {};
  for (int i = 0; i < chunks; i++) {
    const int slot = i % kSlots, round = i / kSlots;
    if (!kBroken) wait(&full[slot], round & 1);
    const uint4 v = reinterpret_cast<const uint4*>(memory + slot * kSlotBytes)[thread];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    if (kAllArrive) {
      arrive(&empty[slot]);
    } else {
      __syncwarp();
      if (lane == 0) arrive(&empty[slot]);
    }
  }
  sums[thread] = sum;
}

template <bool kAligned>
__device__ void meet() {
  __syncwarp();
  if (kAligned)
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
  else
    asm volatile("barrier.cta.sync 2, %0;" ::"n"(kThreads) : "memory");
}

template <bool kAligned>
__global__ void roles(uint4* sums) {
  if (threadIdx.x < kWarps * 32) {
    sums[threadIdx.x].x = threadIdx.x;
    meet<kAligned>();
    sums[threadIdx.x].y = 1;
  } else {
    meet<kAligned>();
    sums[threadIdx.x].z = 2;
  }
}

int main(int, char** arguments) {
  constexpr int kChunks = 32;
  const char* what = arguments[1];
  char* from;
  uint4* sums;
  cudaMalloc(&from, kChunks * kSlotBytes);
  cudaMalloc(&sums, kThreads * sizeof(uint4));
  cudaMemset(from, 1, kChunks * kSlotBytes);
  if (!strcmp(what, "ring")) ring<false, false><<<1, kThreads>>>(from, sums, kChunks);
  if (!strcmp(what, "ring_of_all")) ring<true, false><<<1, kThreads>>>(from, sums, kChunks);
  if (!strcmp(what, "ring_broken")) ring<true, true><<<1, kThreads>>>(from, sums, kChunks);
  if (!strcmp(what, "ring_once")) ring<false, false><<<1, kThreads>>>(from, sums, kSlots);
  if (!strcmp(what, "aligned")) roles<true><<<1, kThreads>>>(sums);
  if (!strcmp(what, "unaligned")) roles<false><<<1, kThreads>>>(sums);
  printf("%s: %s\n", what, cudaGetErrorString(cudaDeviceSynchronize()));
}
